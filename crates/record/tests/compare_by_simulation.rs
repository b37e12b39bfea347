//! Comparisons of two runs on pretended machines: how often a difference is seen where there is none. Fixed seeds.

#![allow(clippy::unwrap_used, reason = "tests")]

use record::Unit;
use record::bench::{Better, Verdict};
use record::statistics::random::Random;
use record::statistics::unpaired::{Measured, compare, judge};
use record::statistics::verdict::{DEFAULT_BAND, Names};

/// A shared machine; all are parts of the time a process takes, as in `statistics_by_simulation.rs`.
#[derive(Clone, Copy)]
struct Machine {
    jitter: f64,
    drift: f64,
    wild: f64,
    /// Besides, what falls on a whole run: where pages lie, the clock rate of the day.
    run: f64,
}

const MACHINES: [(&str, Machine); 4] = [
    ("calm", Machine { jitter: 0.02, drift: 0.0, wild: 0.0, run: 0.02 }),
    ("noisy", Machine { jitter: 0.05, drift: 0.0, wild: 0.0, run: 0.03 }),
    ("drifting", Machine { jitter: 0.02, drift: 0.05, wild: 0.0, run: 0.0 }),
    ("like ours", Machine { jitter: 0.03, drift: 0.03, wild: 0.04, run: 0.03 }),
];

/// Times of one run's processes.
fn run(machine: Machine, processes: usize, effect: f64, random: &mut Random) -> Vec<f64> {
    let whole = machine.run * random.normal();
    let mut wander = machine.drift * random.normal();
    (0..processes)
        .map(|_| {
            wander = 0.9 * wander + (1.0f64 - 0.81).sqrt() * machine.drift * random.normal();
            let wild = if random.uniform() < machine.wild { 0.1 + 0.4 * random.uniform() } else { 0.0 };
            effect * (machine.jitter * random.normal() + wander + whole + wild).exp()
        })
        .collect()
}

fn verdict(machine: Machine, processes: usize, effect: f64, seed: u64) -> Verdict {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let (before, after) = (run(machine, processes, 1.0, &mut random), run(machine, processes, effect, &mut random));
    let found = compare(&before, &after, Measured::Time).unwrap();
    judge(&found, "request", Unit::Seconds, Better::Lower, DEFAULT_BAND, Names { control: "a", arm: "b" }).0
}

fn share(machine: Machine, processes: usize, effect: f64, wanted: impl Fn(Verdict) -> bool) -> f64 {
    let found = (0..1000).filter(|seed| wanted(verdict(machine, processes, effect, *seed))).count();
    found as f64 / 1000.0
}

#[test]
fn false_alarms_between_runs_stay_below_five_percent_on_every_machine() {
    for (name, machine) in MACHINES {
        for processes in [1, 2, 4, 8, 16, 40] {
            let rate = share(machine, processes, 1.0, |verdict| matches!(verdict, Verdict::Better | Verdict::Worse));
            println!("{name}, {processes} processes a run: {:.1} % false alarms", 100.0 * rate);
            assert!(rate <= 0.05, "a {name} machine, {processes} processes: {rate}");
        }
    }
}

/// What that costs: small differences are not found between runs, large ones are.
#[test]
fn large_differences_between_runs_are_found_and_small_ones_left_open() {
    let (_, calm) = MACHINES[0];
    let (_, ours) = MACHINES[3];
    assert!(share(calm, 8, 0.75, |verdict| verdict == Verdict::Better) > 0.95);
    assert!(share(ours, 8, 0.65, |verdict| verdict == Verdict::Better) > 0.95);
    assert!(share(ours, 1, 0.5, |verdict| verdict == Verdict::Better) > 0.95);
    assert!(share(calm, 40, 0.97, |verdict| matches!(verdict, Verdict::Inconclusive { .. })) > 0.9);
    // And never is "no difference" claimed where there is one of 5 %.
    assert_eq!(share(ours, 40, 0.95, |verdict| matches!(verdict, Verdict::NoDifference { .. })), 0.0);
}
