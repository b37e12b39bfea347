//! The statistics against machines that are known: pretended processes with given effects and with noise like a shared
//! machine's. All seeds are fixed, so that a test gives the same answer every time.

#![allow(clippy::unwrap_used, reason = "tests")]

mod bench_fixture;

use bench_fixture::{Takes, arm, finish, run};
use record::bench::{ArmKind, BenchRecord, Metric, Verdict};
use record::statistics::of_record;
use record::statistics::order::schedule;
use record::statistics::paired::{Pair, compare};
use record::statistics::random::Random;
use record::statistics::verdict::{DEFAULT_BAND, Names, judge};

/// A shared machine. All are parts of the time a process takes.
#[derive(Clone, Copy)]
struct Machine {
    /// Independent from process to process, log-normal.
    jitter: f64,
    /// Wandering: nine tenths stay from one process to the next.
    drift: f64,
    /// What running second of two costs; the second of four pays it twice.
    slot: f64,
    /// Part of the processes that take 10 to 50 % longer.
    wild: f64,
}

const MACHINES: [(&str, Machine); 5] = [
    ("calm", Machine { jitter: 0.02, drift: 0.0, slot: 0.0, wild: 0.0 }),
    ("noisy", Machine { jitter: 0.05, drift: 0.0, slot: 0.0, wild: 0.0 }),
    ("drifting", Machine { jitter: 0.02, drift: 0.05, slot: 0.0, wild: 0.0 }),
    ("minding its places", Machine { jitter: 0.02, drift: 0.02, slot: 0.02, wild: 0.0 }),
    ("like ours", Machine { jitter: 0.03, drift: 0.03, slot: 0.01, wild: 0.04 }),
];

/// The factors of successive processes.
struct Weather {
    machine: Machine,
    random: Random,
    wander: f64,
}

impl Weather {
    fn new(machine: Machine, seed: u64) -> Weather {
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let wander = machine.drift * random.normal();
        Weather { machine, random, wander }
    }

    fn factor(&mut self, order: usize) -> f64 {
        let Machine { jitter, drift, slot, wild } = self.machine;
        self.wander = 0.9 * self.wander + (1.0f64 - 0.81).sqrt() * drift * self.random.normal();
        let places = f64::from(u8::from(order % 2 == 1) + u8::from(order % 4 == 1));
        let wild = if self.random.uniform() < wild { 0.1 + 0.4 * self.random.uniform() } else { 0.0 };
        (jitter * self.random.normal() + self.wander + slot * places + wild).exp()
    }
}

/// Two arms; the second takes `effect` times what the first does.
fn two(machine: Machine, repeats: usize, effect: f64, seed: u64) -> BenchRecord {
    let mut weather = Weather::new(machine, seed);
    let kind = if effect == 1.0 { ArmKind::SameAgain } else { ArmKind::Checkpoint };
    run(vec![arm("selected", ArmKind::Checkpoint), arm("other", kind)], repeats, |order, _, arm| {
        let factor = weather.factor(order);
        Some(Takes::times(if arm == 1 { factor * effect } else { factor }))
    })
}

/// The pairs that [`two`] has, without the records: tests need tens of thousands.
fn pairs(machine: Machine, repeats: usize, effect: f64, seed: u64) -> Vec<Pair> {
    let mut weather = Weather::new(machine, seed);
    let slots: Vec<(usize, usize)> = schedule(2, repeats).unwrap().slots().collect();
    slots
        .chunks(2)
        .enumerate()
        .map(|(row, pair)| {
            let factors = [weather.factor(2 * row), weather.factor(2 * row + 1)];
            let of = |arm: usize| factors[usize::from(pair[1].1 == arm)] * if arm == 1 { effect } else { 1.0 };
            // As tokens per second.
            Pair { control: 50.0 / of(0), arm: 50.0 / of(1), control_first: pair[0].1 == 0 }
        })
        .collect()
}

fn verdict(pairs: &[Pair]) -> Verdict {
    let comparison = compare(pairs).unwrap();
    let names = Names { control: "selected", arm: "other" };
    *judge(&comparison, Metric::Decode, DEFAULT_BAND, names).unwrap().verdict.known().unwrap()
}

fn differs(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Better | Verdict::Worse)
}

#[test]
fn processes_run_in_the_balanced_order_and_the_record_says_so() {
    let mut ran = Vec::new();
    let arms = ["a", "b", "c"].map(|name| arm(name, ArmKind::Checkpoint));
    let record = run(arms.into(), 6, |order, row, arm| {
        ran.push((order, row, arm));
        Some(Takes::times(1.0))
    });
    let mut record = record;
    finish(&mut record);
    let arms: Vec<usize> = ran.iter().map(|(_, _, arm)| *arm).collect();
    assert_eq!(arms, [0, 1, 2, 2, 1, 0, 1, 2, 0, 0, 2, 1, 2, 0, 1, 1, 0, 2]);
    let stored: Vec<_> = record.samples.iter().map(|s| (s.order as usize, s.block as usize, s.arm as usize)).collect();
    assert_eq!(stored, ran);
    assert!(!record.void, "{:?}", record.checks);
    assert_eq!(
        record.comparison(1, Metric::Decode).unwrap().verdict.known(),
        Some(&Verdict::NoDifference { within_percent: 0.0 })
    );
    // Every pair: neighbours of one row, and both orders equally often.
    for arm in [1, 2] {
        let first: Vec<bool> =
            of_record::pairs(&record, arm, Metric::Decode).iter().map(|pair| pair.control_first).collect();
        assert_eq!((first.len(), first.iter().filter(|first| **first).count()), (6, 3));
    }
}

#[test]
fn two_hundred_experiments_of_the_control_with_itself_stay_below_the_stated_rate() {
    let (_, machine) = MACHINES[4];
    for repeats in [2, 4, 8, 12] {
        let wrong = (0..200).filter(|seed| differs(verdict(&pairs(machine, repeats, 1.0, *seed)))).count();
        assert!(wrong <= 10, "{repeats} repeats: {wrong} of 200 false alarms");
    }
}

/// The same on every machine, with enough experiments to see a rate of 7 %.
#[test]
fn false_alarms_stay_below_the_stated_rate_on_every_machine() {
    let mut all = 0;
    for (name, machine) in MACHINES {
        for repeats in [2, 4, 6, 8, 10, 16] {
            let wrong = (0..1000).filter(|seed| differs(verdict(&pairs(machine, repeats, 1.0, *seed)))).count();
            // Three standard errors of a rate that is exactly 5 %.
            assert!(wrong <= 71, "a {name} machine, {repeats} repeats: {wrong} of 1000 false alarms");
            all += wrong;
        }
    }
    assert!(all <= 1500, "{all} of 30000 false alarms");
}

/// Stricter than verdicts, whose band keeps small errors out: the interval itself holds the truth.
#[test]
fn intervals_hold_the_true_ratio_as_often_as_they_say() {
    for (name, machine) in MACHINES {
        for repeats in [4, 8, 10, 16] {
            let missed = (1000..1800)
                .filter(|seed| {
                    let comparison = compare(&pairs(machine, repeats, 0.8, *seed)).unwrap();
                    let interval = comparison.interval.known().unwrap();
                    !(interval.low..=interval.high).contains(&(1.0 / 0.8))
                })
                .count();
            // 5 % of 800 are 40; four standard errors of a rate that is exactly 5 % are 25.
            assert!(missed <= 52, "a {name} machine, {repeats} repeats: {missed} of 800 missed");
        }
    }
}

/// A pilot run of the control with itself promises how many repeats find 3 %; they do.
#[test]
fn three_percent_are_found_with_the_promised_repeats() {
    for (name, machine) in [MACHINES[0], MACHINES[2], MACHINES[3]] {
        let (mut found, mut wrong, mut repeats) = (0, 0, Vec::new());
        for seed in 0..100 {
            let noise = of_record::noise_of(&two(machine, 12, 1.0, seed), Metric::Decode).unwrap();
            let promised = *noise.repeats_for_3_percent.known().unwrap() as usize;
            repeats.push(promised);
            match verdict(&pairs(machine, promised, 1.0 / 1.03, 5000 + seed)) {
                Verdict::Better => found += 1,
                Verdict::Worse => wrong += 1,
                _ => {}
            }
        }
        repeats.sort_unstable();
        // 80 are promised; three standard errors of 100 experiments are 12, and the pilots err on their own.
        assert!(found >= 70 && wrong == 0, "a {name} machine, about {} repeats: {found} of 100 found", repeats[50]);
    }
}

/// Neighbours slow down together: the verdict is that of the run without the slow minute.
#[test]
fn a_slow_minute_on_both_arms_does_not_turn_the_verdict() {
    let machine = Machine { jitter: 0.01, drift: 0.01, slot: 0.0, wild: 0.0 };
    let with = |effect: f64, repeats: usize, from: usize, length: usize, seed: u64| {
        let mut weather = Weather::new(machine, seed);
        let arms = vec![arm("selected", ArmKind::Checkpoint), arm("other", ArmKind::Checkpoint)];
        let record = run(arms, repeats, |order, _, arm| {
            let slow = if (from..from + length).contains(&order) { 1.4 } else { 1.0 };
            let effect = if arm == 1 { effect } else { 1.0 };
            Some(Takes::times(weather.factor(order) * slow * effect))
        });
        verdict(&of_record::pairs(&record, 1, Metric::Decode))
    };
    for length in [2, 3, 4, 5, 8] {
        for from in 0..16 {
            let seed = (100 * length + from) as u64;
            let place = format!("{length} processes from number {from} on");
            // A minute on both arms: whole pairs.
            if from % 2 == 0 && length % 2 == 0 {
                for repeats in [8, 12] {
                    assert_eq!(with(0.9, repeats, from, length, seed), Verdict::Better, "{repeats} repeats, {place}");
                    assert_eq!(with(1.1, repeats, from, length, seed), Verdict::Worse, "{repeats} repeats, {place}");
                    assert!(!differs(with(1.0, repeats, from, length, seed)), "{repeats} repeats, {place}");
                }
            }
            // One that cuts pairs at its ends makes two wild log-ratios. Few repeats become inconclusive, never wrong;
            // twenty do not notice.
            for repeats in [4, 6, 8, 12] {
                assert_ne!(with(0.9, repeats, from, length, seed), Verdict::Worse, "{repeats} repeats, {place}");
                assert!(!differs(with(1.0, repeats, from, length, seed)), "{repeats} repeats, {place}");
            }
            assert_eq!(with(0.9, 20, from, length, seed), Verdict::Better, "{place}");
            assert_eq!(with(1.1, 20, from, length, seed), Verdict::Worse, "{place}");
        }
    }
}

/// Lost samples cost pairs and may unbalance the order, but invent nothing.
#[test]
fn lost_samples_do_not_raise_false_alarms() {
    let (_, machine) = MACHINES[3];
    let mut wrong = 0;
    for seed in 0..200 {
        let mut weather = Weather::new(machine, 9000 + seed);
        let mut loss = Random::new(seed);
        let arms = vec![arm("selected", ArmKind::Checkpoint), arm("again", ArmKind::SameAgain)];
        let record = run(arms, 10, |order, _, _| {
            let factor = weather.factor(order);
            (loss.uniform() > 0.15).then(|| Takes::times(factor))
        });
        wrong += usize::from(differs(verdict(&of_record::pairs(&record, 1, Metric::Decode))));
    }
    assert!(wrong <= 10, "{wrong} of 200 false alarms");
}

/// What the run says about its own noise is what other runs on that machine show.
#[test]
fn stated_rate_and_detectable_difference_are_those_of_the_machine() {
    let (_, machine) = MACHINES[0];
    let (mut rates, mut sizes) = (0.0, Vec::new());
    for seed in 0..40 {
        let record = two(machine, 8, 1.0, 300 + seed);
        let noise = of_record::noise_of(&record, Metric::Decode).unwrap();
        assert_eq!(noise.source, "the control against itself");
        rates += noise.false_positives.value().unwrap() / 40.0;
        sizes.push(*noise.detectable_percent.known().unwrap());
    }
    assert!(rates < 0.06, "{rates}");
    sizes.sort_by(f64::total_cmp);
    let typical = 1.0 + sizes[20] / 100.0;
    let found = (0..300).filter(|seed| verdict(&pairs(machine, 8, 1.0 / typical, 700 + seed)) == Verdict::Better);
    let share = found.count() as f64 / 300.0;
    // 0.8 is meant; what is drawn from eight values has lighter tails than the machine.
    assert!((0.65..0.9).contains(&share), "{share} of the experiments found {typical}");
}

/// Why no percentile bootstrap is used: with four pairs it sees a difference where there is none in a fifth of experiments.
#[test]
fn a_percentile_bootstrap_of_four_pairs_would_break_the_promise() {
    let (_, machine) = MACHINES[1];
    let mut random = Random::new(1);
    let wrong = (0..400)
        .filter(|seed| {
            let pairs = pairs(machine, 4, 1.0, *seed);
            let logs: Vec<f64> = pairs.iter().map(|pair| pair.arm.ln() - pair.control.ln()).collect();
            let mut means: Vec<f64> =
                (0..400).map(|_| (0..4).map(|_| logs[random.below(4)]).sum::<f64>() / 4.0).collect();
            means.sort_by(f64::total_cmp);
            means[9] > 0.0 || means[390] < 0.0
        })
        .count();
    assert!(wrong > 40, "{wrong} of 400: more than twice the promised 20");
}

/// The short way of these tests and the record's way have the same pairs.
#[test]
fn a_record_has_the_pairs_of_its_processes() {
    let record = two(MACHINES[4].1, 6, 0.9, 3);
    let (of_record, short) = (of_record::pairs(&record, 1, Metric::Decode), pairs(MACHINES[4].1, 6, 0.9, 3));
    assert_eq!(of_record.len(), short.len());
    for (one, other) in of_record.iter().zip(&short) {
        assert_eq!(one.control_first, other.control_first);
        assert!((one.control / other.control - 1.0).abs() < 1e-9 && (one.arm / other.arm - 1.0).abs() < 1e-9);
    }
}

#[test]
fn an_arm_that_does_not_count_is_not_compared() {
    let mut record = two(MACHINES[0].1, 4, 0.5, 1);
    record.arms[1].counts = false;
    record.arms[1].reason = Some("its tokens differ".into());
    finish(&mut record);
    assert!(record.comparisons.is_empty() && !record.void);
    assert!(of_record::noise(&record).missing().is_some());
}
