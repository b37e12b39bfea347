//! What a kernel seems to wait for, inferred from its exact bytes and flops, its times and the machine's measured ceilings.
//! Not here: measuring any of them.

use crate::capture::raw::RawCall;
use crate::capture::reduced::instructions::{DearInstruction, LoadUse};
use crate::capture::reduced::kernels::{Bound, Limiter, LimiterPart, Sure};
use crate::ceilings::{Ceilings, InstructionPath};
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use std::collections::HashMap;

/// A ceiling that is so nearly reached is the limit.
const STRONG: f64 = 0.7;
/// More than half of the time is explained.
const WEAK: f64 = 0.5;
/// A fraction above it contradicts the ceiling.
const IMPOSSIBLE: f64 = 1.15;
/// Instructions per cycle from which on a processor of four to six slots is busy with instructions rather than waiting.
const BUSY: f64 = 2.0;
/// A counter of the whole stretch speaks for a kernel with so large a share of it.
const DOMINANT: f64 = 0.8;

/// So large a part of a kernel's samples on one instruction that needs a load's value says that it waits there. A loop that is
/// busy with instructions spreads its samples over them.
const WAITS: f64 = 0.3;
/// And so many times its even share of the hot loop.
const STANDS_OUT: f64 = 4.0;

/// What kernels' times are held against.
#[derive(Clone, Copy, Debug)]
pub struct Roofs<'a> {
    pub ceilings: Option<&'a Ceilings>,
    pub threads: u64,
    /// Bytes that a pass reads of weights, keys and values: they come from wherever so many bytes stay between two passes.
    pub footprint: u64,
}

/// What is known from elsewhere about a capture's kernels.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// The fastest multiplying instruction that was found in a kernel's code, by (operator, kernel).
    pub paths: HashMap<(String, String), InstructionPath>,
    /// Instructions in the kernel's hot loop that multiply, and all of them.
    pub mixes: HashMap<(String, String), (u64, u64)>,
    /// The dearest instruction of the hot loop.
    pub dearest: HashMap<(String, String), Dearest>,
    /// Over the whole stretch.
    pub instructions_per_cycle: Option<f64>,
}

/// What samples say of one instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Dearest {
    pub instruction: DearInstruction,
    /// Instructions in the hot loop.
    pub of_instructions: u64,
    /// All samples of the kernel.
    pub kernel_samples: u64,
}

impl Dearest {
    /// Its part of the kernel's samples, if so many of them cannot be chance and it needs a load's value.
    fn waits(&self) -> Option<f64> {
        let (samples, all) = (self.instruction.samples as f64, self.kernel_samples as f64);
        let share = samples / all.max(1.0);
        // The lower end of the interval that so few samples leave.
        let low = share - 1.96 * (share * (1.0 - share) / all.max(1.0)).sqrt();
        let stands_out = share * self.of_instructions as f64 >= STANDS_OUT;
        (self.instruction.load != LoadUse::None && low >= WAITS && stands_out).then_some(share)
    }

    fn words(&self, share: f64) -> String {
        let DearInstruction { at, mnemonic, load, .. } = &self.instruction;
        let needs = match load {
            LoadUse::Itself => "which reads memory".to_owned(),
            LoadUse::Before(1) => "which uses what the instruction before it loads".to_owned(),
            LoadUse::Before(far) => format!("which uses what a load {far} instructions before it brings"),
            LoadUse::None => "which needs no load".to_owned(),
        };
        format!(
            "{:.0} % of its samples are on one of the {} instructions of its hot loop, {mnemonic} at {at}, {needs}",
            100.0 * share,
            self.of_instructions
        )
    }
}

/// One kernel of one pass.
#[derive(Clone, Debug)]
pub(crate) struct Measured<'a> {
    pub calls: Vec<&'a RawCall>,
    /// Microseconds per pass.
    pub per_pass: Reading,
    pub imbalance: Reading,
    /// Of all workers' samples.
    pub share: f64,
}

/// The parts of a pass that a kernel's bytes, flops and meetings would take at the ceilings, and the verdict.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    pub bandwidth_fraction: Reading,
    pub arithmetic_fraction: Reading,
    pub limiter: Limiter,
}

/// Whether a call's bytes were last touched a pass ago: weights, and cached keys and values.
pub(crate) fn is_cold(call: &RawCall) -> bool {
    !call.weights.is_empty() || call.group == "attention"
}

/// Judges one kernel; `key` is its (operator, kernel).
pub(crate) fn judge(key: &(String, String), kernel: &Measured<'_>, roofs: Roofs<'_>, hints: &Hints) -> Judged {
    let path = hints.paths.get(key).copied();
    let memory = fraction(memory_us(kernel, roofs), &kernel.per_pass);
    let arithmetic = fraction(arithmetic_us(kernel, roofs, path), &kernel.per_pass);
    let dispatch = dispatch_fraction(kernel, roofs);
    let parts = vec![
        LimiterPart {
            limit: Bound::Memory,
            fraction: memory.clone(),
            from: "exact bytes over the measured read bandwidth at their footprint".to_owned(),
        },
        LimiterPart {
            limit: Bound::ComputePath,
            fraction: arithmetic.clone(),
            from: match path {
                Some(path) => format!("exact flops over the measured peak of {}, found in its code", path.name()),
                None => "exact flops over the peak of the multiplying instruction".to_owned(),
            },
        },
        LimiterPart {
            limit: Bound::Barrier,
            fraction: kernel.imbalance.clone(),
            from: "clocked: 1 - mean worker over slowest worker".to_owned(),
        },
        LimiterPart {
            limit: Bound::Dispatch,
            fraction: dispatch,
            from: "a measured barrier per call, over it and the clocked time".to_owned(),
        },
    ];
    let limiter = verdict(key, parts, kernel.share, hints);
    Judged { bandwidth_fraction: memory, arithmetic_fraction: arithmetic, limiter }
}

fn verdict(key: &(String, String), parts: Vec<LimiterPart>, share: f64, hints: &Hints) -> Limiter {
    let known = parts.iter().filter_map(|part| Some((part.limit, part.fraction.value()?)));
    let largest = known.max_by(|a, b| a.1.total_cmp(&b.1));
    let of = |limit| parts.iter().find(|part| part.limit == limit).and_then(|part| part.fraction.value());
    let (memory, arithmetic) = (of(Bound::Memory), of(Bound::ComputePath));
    let percent = |fraction: f64| format!("{:.0} %", 100.0 * fraction);
    let (verdict, sure, how) = match largest {
        Some((limit, fraction)) if fraction > IMPOSSIBLE => (
            Known::Is(limit),
            Sure::Weak,
            format!(
                "{} would explain {} of its time, which is more than there is: the ceiling was held down by other load, \
                 or the bytes came from a nearer cache",
                limit.name(),
                percent(fraction)
            ),
        ),
        Some((limit, fraction)) if fraction >= WEAK => {
            let sure = if fraction >= STRONG { Sure::Strong } else { Sure::Weak };
            (Known::Is(limit), sure, format!("{} alone explains {} of its time", limit.name(), percent(fraction)))
        }
        _ => match (memory, arithmetic) {
            (Some(memory), Some(arithmetic)) => {
                let mut how = format!(
                    "by exclusion: memory explains {} and the compute path {} of its time",
                    percent(memory),
                    percent(arithmetic)
                );
                if let Some((multiply, all)) = hints.mixes.get(key) {
                    how += &format!("; {multiply} of the {all} instructions of its hot loop multiply");
                }
                let busy = hints.instructions_per_cycle.filter(|_| share >= DOMINANT);
                let sure = match busy {
                    Some(rate) => {
                        how += &format!("; {rate:.1} instructions per cycle over a stretch that it dominates");
                        if rate >= BUSY { Sure::Strong } else { Sure::Weak }
                    }
                    None => Sure::Weak,
                };
                // Counters of the whole stretch say whether it waits, samples say where.
                let dearest = hints.dearest.get(key).filter(|_| busy.is_none_or(|rate| rate < BUSY));
                if let Some((dearest, waits)) = dearest.and_then(|dearest| Some((dearest, dearest.waits()?))) {
                    let sure = if busy.is_some() { Sure::Strong } else { Sure::Weak };
                    let how = format!(
                        "{}; {how}. The bandwidth that was measured would take less, so it is latency, or a place that other \
                         accesses read slower",
                        dearest.words(waits)
                    );
                    return Limiter { verdict: Known::Is(Bound::Load), sure, how, parts };
                }
                match busy {
                    // Few instructions per cycle: it waits for something, and the ceilings do not say for what.
                    Some(rate) if rate < BUSY => (undecided("it waits, and no ceiling says for what"), Sure::None, how),
                    _ => (Known::Is(Bound::Issue), sure, how),
                }
            }
            _ => {
                let why = parts.iter().find_map(|part| part.fraction.missing());
                let why = why.map_or("a ceiling is missing", |missing| &missing.unavailable).to_owned();
                (undecided(&why), Sure::None, format!("not judged: {why}"))
            }
        },
    };
    Limiter { verdict, sure, how, parts }
}

fn undecided(why: &str) -> Known<Bound> {
    Known::unavailable(why, "`hourglass ceilings`, then reduce again; on a machine with a PMU its counters decide")
}

fn memory_us(kernel: &Measured<'_>, roofs: Roofs<'_>) -> Reading {
    let Some(ceilings) = roofs.ceilings else { return no_ceilings() };
    let mut sum = 0.0;
    for call in &kernel.calls {
        let bytes = call.bytes_read + call.bytes_written;
        let footprint = if is_cold(call) { roofs.footprint.max(bytes) } else { bytes };
        match ceilings.bandwidth(roofs.threads, footprint) {
            Known::Is(rate) if rate.value() > 0.0 => sum += bytes as f64 / 1e3 / rate.value(),
            Known::Is(_) => return Known::unavailable("the ceiling is no rate above zero", "measure it again"),
            missing => return missing,
        }
    }
    Reading::measured(sum, Unit::Microseconds, 1)
}

fn arithmetic_us(kernel: &Measured<'_>, roofs: Roofs<'_>, path: Option<InstructionPath>) -> Reading {
    let Some(ceilings) = roofs.ceilings else { return no_ceilings() };
    let flops: u64 = kernel.calls.iter().map(|call| call.flops).sum();
    if flops == 0 {
        return Reading::measured(0.0, Unit::Microseconds, 1);
    }
    let Some(path) = path else {
        return Known::unavailable(
            "its multiplying instruction is not known",
            "reduce beside the captured executable (--binary)",
        );
    };
    match ceilings.peak(path, roofs.threads) {
        Known::Is(rate) if rate.value() > 0.0 => {
            Reading::measured(flops as f64 / 1e3 / rate.value(), Unit::Microseconds, 1)
        }
        Known::Is(_) => Known::unavailable("the ceiling is no rate above zero", "measure it again"),
        missing => missing,
    }
}

fn dispatch_fraction(kernel: &Measured<'_>, roofs: Roofs<'_>) -> Reading {
    let Some(ceilings) = roofs.ceilings else { return no_ceilings() };
    match (&ceilings.barrier(roofs.threads), &kernel.per_pass) {
        (Known::Is(barrier), Known::Is(time)) => {
            let meetings = barrier.value() * kernel.calls.len() as f64;
            Reading::ratio(meetings, meetings + time.value(), Unit::Share, time.n())
        }
        (Known::Unavailable(missing), _) | (_, Known::Unavailable(missing)) => Known::Unavailable(missing.clone()),
    }
}

fn fraction(least: Reading, time: &Reading) -> Reading {
    match (least, time) {
        (Known::Is(least), Known::Is(time)) => Reading::ratio(least.value(), time.value(), Unit::Share, time.n()),
        (Known::Unavailable(missing), _) => Known::Unavailable(missing),
        (_, Known::Unavailable(missing)) => Known::Unavailable(missing.clone()),
    }
}

fn no_ceilings() -> Reading {
    Known::unavailable(
        "no ceilings were given",
        "`hourglass ceilings --json-output FILE`, then `reduce --ceilings FILE`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::reduced::instructions::InstructionClass;

    fn key() -> (String, String) {
        ("linear".to_owned(), "x/avx512".to_owned())
    }

    fn judged(fractions: [Option<f64>; 4], share: f64, hints: &Hints) -> Limiter {
        let part = |(limit, fraction): (Bound, Option<f64>)| LimiterPart {
            limit,
            fraction: fraction.map_or_else(no_ceilings, |f| Reading::measured(f, Unit::Share, 1)),
            from: String::new(),
        };
        let limits = [Bound::Memory, Bound::ComputePath, Bound::Barrier, Bound::Dispatch];
        verdict(&key(), limits.into_iter().zip(fractions).map(part).collect(), share, hints)
    }

    #[test]
    fn the_largest_part_decides_and_says_how_surely() {
        let none = Hints::default();
        let of = |fractions, hints: &Hints| {
            let limiter = judged(fractions, 0.9, hints);
            (limiter.verdict.known().copied(), limiter.sure)
        };
        assert_eq!(of([Some(0.9), Some(0.2), Some(0.1), Some(0.0)], &none), (Some(Bound::Memory), Sure::Strong));
        assert_eq!(of([Some(0.3), Some(0.6), Some(0.1), Some(0.0)], &none), (Some(Bound::ComputePath), Sure::Weak));
        assert_eq!(of([Some(0.3), Some(0.2), Some(0.8), Some(0.0)], &none), (Some(Bound::Barrier), Sure::Strong));
        assert_eq!(of([Some(0.3), Some(0.2), Some(0.1), Some(0.75)], &none), (Some(Bound::Dispatch), Sure::Strong));
        assert_eq!(of([Some(0.3), Some(0.2), Some(0.1), Some(0.0)], &none), (Some(Bound::Issue), Sure::Weak));
        assert_eq!(of([Some(0.3), None, Some(0.1), Some(0.0)], &none), (None, Sure::None));
        assert_eq!(of([Some(1.3), Some(0.2), Some(0.1), Some(0.0)], &none), (Some(Bound::Memory), Sure::Weak));
        let busy = Hints { instructions_per_cycle: Some(3.1), ..Hints::default() };
        assert_eq!(of([Some(0.3), Some(0.2), Some(0.1), Some(0.0)], &busy), (Some(Bound::Issue), Sure::Strong));
        let waiting = Hints { instructions_per_cycle: Some(0.6), ..Hints::default() };
        assert_eq!(of([Some(0.3), Some(0.2), Some(0.1), Some(0.0)], &waiting), (None, Sure::None));
        // A counter of the whole stretch says nothing about a kernel that is a part of it.
        assert_eq!(judged([Some(0.3), Some(0.2), None, None], 0.3, &waiting).verdict.known(), Some(&Bound::Issue));
    }

    /// A decode kernel as captured: memory explains 40 % of it, and half of its samples are where a load's value is used.
    #[test]
    fn samples_on_one_load_say_that_it_waits_there() {
        let hints = |samples: u64, load: LoadUse, instructions_per_cycle: Option<f64>| {
            let instruction = DearInstruction {
                at: "1a2b".to_owned(),
                mnemonic: "vpand".to_owned(),
                class: InstructionClass::VectorLogic,
                samples,
                load,
            };
            let dearest = Dearest { instruction, of_instructions: 40, kernel_samples: 1000 };
            Hints { dearest: [(key(), dearest)].into(), instructions_per_cycle, ..Hints::default() }
        };
        let of = |fractions, hints: &Hints| {
            let limiter = judged(fractions, 0.9, hints);
            (limiter.verdict.known().copied(), limiter.sure, limiter.how)
        };
        let open = [Some(0.4), Some(0.2), Some(0.1), Some(0.0)];
        let (verdict, sure, how) = of(open, &hints(500, LoadUse::Before(2), None));
        assert_eq!((verdict, sure), (Some(Bound::Load), Sure::Weak));
        for words in ["50 % of its samples", "vpand at 1a2b", "2 instructions before", "memory explains 40 %"] {
            assert!(how.contains(words), "{how}");
        }
        assert_eq!(of(open, &hints(500, LoadUse::Itself, Some(0.7))).1, Sure::Strong, "a counter says that it waits");
        // Busy by its counter; no load; too few samples on it; a ceiling that is nearly reached.
        assert_eq!(of(open, &hints(500, LoadUse::Itself, Some(3.0))).0, Some(Bound::Issue));
        assert_eq!(of(open, &hints(500, LoadUse::None, None)).0, Some(Bound::Issue));
        assert_eq!(of(open, &hints(310, LoadUse::Itself, None)).0, Some(Bound::Issue), "310 of 1000 may be chance");
        let near = [Some(0.8), Some(0.2), Some(0.1), Some(0.0)];
        assert_eq!(of(near, &hints(500, LoadUse::Itself, None)).0, Some(Bound::Memory));
    }

    #[test]
    fn the_words_have_the_numbers() {
        let hints = Hints { mixes: [(key(), (4, 30))].into(), ..Hints::default() };
        let how = judged([Some(0.31), Some(0.2), None, None], 0.5, &hints).how;
        for words in ["31 %", "20 %", "4 of the 30"] {
            assert!(how.contains(words), "{how}");
        }
        assert!(judged([None; 4], 0.5, &hints).how.contains("no ceilings"), "what is missing is named");
    }
}
