//! The least time that calls could take on a machine with known ceilings, and what of it a measured time reached.
//! Not here: the ceilings themselves (`ceilings.rs`), and which calls a row is about (`replay.rs`).

use crate::known::Known;
use crate::quantity::{Reading, Unit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What calls must do at least, told apart by where it has to come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// Bytes of weights and of cached keys and values: last touched a whole pass ago, so they come from wherever a footprint
    /// of a whole pass stays.
    pub cold_bytes: u64,
    /// Bytes of activations read and written: a neighbouring call touches them too, so they may come from a cache.
    pub warm_bytes: u64,
    pub flops: u64,
    /// Meetings of all workers that the calls need.
    pub barriers: u64,
}

/// What the machine does at most for one row's calls.
#[derive(Clone, Debug)]
pub struct Roof {
    /// GB/s at the footprint of a whole pass, and at that of one call's activations.
    pub cold: Reading,
    pub warm: Reading,
    /// GFLOP/s of the kernel's instruction path.
    pub peak: Reading,
    /// One barrier, in microseconds.
    pub barrier: Reading,
    /// Starting a walk and skipping every call, in microseconds: what each sample of a replay contains once.
    pub dispatch: Reading,
    pub instruction_path: Known<String>,
}

/// What sets a floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    Memory,
    Arithmetic,
    Dispatch,
}

impl Limit {
    pub const fn name(self) -> &'static str {
        match self {
            Limit::Memory => "memory",
            Limit::Arithmetic => "arithmetic",
            Limit::Dispatch => "dispatch",
        }
    }
}

/// The floor of one row, at the measured ceilings.
///
/// `least = max(cold / bandwidth(pass) + warm / bandwidth(call), flops / peak, dispatch + barriers * barrier)`; a part whose
/// ceiling is unavailable is left out of the maximum and says why. A group's memory and arithmetic parts are the sums of its
/// operators' larger ones, because one operator's spare bandwidth does not help another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Floor {
    pub work: Work,
    pub least: Reading,
    /// What the largest part comes from.
    pub limit: Known<Limit>,
    /// `least` over the measured median: 1 is the machine's limit. Above 1 the ceiling or the cost is wrong.
    pub fraction: Reading,
    pub memory: Reading,
    pub arithmetic: Reading,
    pub dispatch: Reading,
    /// The instruction that the arithmetic part is for, e.g. `vpdpbusd`.
    pub instruction_path: Known<String>,
}

impl Floor {
    /// What a record made before there were floors says.
    pub(crate) fn not_recorded() -> Known<Floor> {
        Known::unavailable("the record has no floors", "`hourglass ceilings`, then `hourglass replay`")
    }

    /// The floor of one operator's `work` under `roof`, beside its measured `median` in microseconds.
    pub fn of(work: Work, roof: &Roof, median: &Reading) -> Floor {
        let over = |amount: u64, rate: &Reading| divide(amount, rate);
        let memory = match (over(work.cold_bytes, &roof.cold), over(work.warm_bytes, &roof.warm)) {
            (Ok(cold), Ok(warm)) => microseconds(cold + warm),
            (Err(missing), _) | (_, Err(missing)) => missing,
        };
        let arithmetic = over(work.flops, &roof.peak).map_or_else(|missing| missing, microseconds);
        let dispatch = match (&roof.dispatch, &roof.barrier) {
            (Known::Is(start), Known::Is(barrier)) => {
                microseconds(start.value() + work.barriers as f64 * barrier.value())
            }
            (Known::Unavailable(missing), _) | (_, Known::Unavailable(missing)) => Known::Unavailable(missing.clone()),
        };
        Floor::largest(work, memory, arithmetic, dispatch, roof.instruction_path.clone(), median)
    }

    /// The floor of a group whose operators have these floors. Dispatching is paid once.
    pub fn sum(operators: &[&Floor], roof: &Roof, median: &Reading) -> Floor {
        let mut work = Work::default();
        let (mut memory, mut arithmetic) = (Some(0.0), Some(0.0));
        for floor in operators {
            work.cold_bytes += floor.work.cold_bytes;
            work.warm_bytes += floor.work.warm_bytes;
            work.flops += floor.work.flops;
            work.barriers += floor.work.barriers;
            let (bytes, flops) = (floor.memory.value(), floor.arithmetic.value());
            // Where arithmetic is the larger part it is what the operator waits for, and the other way round.
            let by_memory = bytes.is_none_or(|bytes| flops.is_none_or(|flops| bytes >= flops));
            let larger = if by_memory { bytes } else { flops };
            let sum = if by_memory { &mut memory } else { &mut arithmetic };
            *sum = sum.zip(larger).map(|(sum, larger)| sum + larger);
        }
        let read = |sum: Option<f64>| match sum {
            Some(us) => microseconds(us),
            None => Known::unavailable("an operator's part is unavailable", "read the operators' rows"),
        };
        // Both are waited for, one after the other.
        let both = match (memory, arithmetic) {
            (Some(bytes), Some(flops)) => Some(bytes + flops),
            (one, other) => one.or(other),
        };
        let dispatch = Floor::of(Work { barriers: work.barriers, ..Work::default() }, roof, median).dispatch;
        let path = Known::unavailable("a group's operators may differ", "read the operators' rows");
        let mut floor = Floor::largest(work, read(memory), read(arithmetic), dispatch, path, median);
        if let Some(both) = both
            && floor.dispatch.value().is_none_or(|dispatch| both > dispatch)
        {
            let memory_is_larger = memory.unwrap_or(0.0) >= arithmetic.unwrap_or(0.0);
            floor.limit = Known::Is(if memory_is_larger { Limit::Memory } else { Limit::Arithmetic });
            floor.least = microseconds(both);
            floor.fraction = fraction(&floor.least, median);
        }
        floor
    }

    fn largest(
        work: Work,
        memory: Reading,
        arithmetic: Reading,
        dispatch: Reading,
        instruction_path: Known<String>,
        median: &Reading,
    ) -> Floor {
        let parts = [(Limit::Memory, &memory), (Limit::Arithmetic, &arithmetic), (Limit::Dispatch, &dispatch)];
        let known = parts.iter().filter_map(|(limit, part)| Some((*limit, part.value()?)));
        let why = || Known::unavailable("no part of the floor is known", "`hourglass ceilings --refresh`");
        let (limit, least) = match known.max_by(|a, b| a.1.total_cmp(&b.1)) {
            Some((limit, us)) => (Known::Is(limit), microseconds(us)),
            None => (why(), Known::unavailable("no part of the floor is known", "`hourglass ceilings --refresh`")),
        };
        let fraction = fraction(&least, median);
        Floor { work, least, limit, fraction, memory, arithmetic, dispatch, instruction_path }
    }
}

/// Microseconds for `amount` at a rate in 10^9 per second; nothing takes no time, whatever the rate.
fn divide(amount: u64, rate: &Reading) -> Result<f64, Reading> {
    if amount == 0 {
        return Ok(0.0);
    }
    match rate {
        Known::Is(rate) if rate.value() > 0.0 => Ok(amount as f64 / 1e3 / rate.value()),
        Known::Is(_) => Err(Known::unavailable("the ceiling is no rate above zero", "`hourglass ceilings --refresh`")),
        Known::Unavailable(missing) => Err(Known::Unavailable(missing.clone())),
    }
}

fn microseconds(us: f64) -> Reading {
    Reading::measured(us, Unit::Microseconds, 1)
}

fn fraction(least: &Reading, median: &Reading) -> Reading {
    match (least, median) {
        (Known::Is(least), Known::Is(median)) => Reading::ratio(least.value(), median.value(), Unit::Share, median.n()),
        (Known::Unavailable(missing), _) | (_, Known::Unavailable(missing)) => Known::Unavailable(missing.clone()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn roof() -> Roof {
        let gigabytes = |value| Reading::measured(value, Unit::GigabytesPerSecond, 3);
        Roof {
            cold: gigabytes(20.0),
            warm: gigabytes(100.0),
            peak: Reading::measured(200.0, Unit::GigaflopsPerSecond, 3),
            barrier: microseconds(0.5),
            dispatch: microseconds(3.0),
            instruction_path: Known::Is("vpdpbusd".into()),
        }
    }

    fn work(cold_bytes: u64, warm_bytes: u64, flops: u64, barriers: u64) -> Work {
        Work { cold_bytes, warm_bytes, flops, barriers }
    }

    #[test]
    fn the_largest_part_is_the_floor() {
        let at = |work| Floor::of(work, &roof(), &microseconds(1000.0));
        // 2 MB at 20 GB/s are 100 µs, 1 MB at 100 GB/s 10 µs, 40 MFLOP at 200 GFLOP/s 200 µs, 3 + 28 * 0.5 = 17 µs.
        let memory = at(work(2_000_000, 1_000_000, 4_000_000, 28));
        assert_eq!((memory.least.value(), memory.limit.known()), (Some(110.0), Some(&Limit::Memory)));
        assert_eq!(memory.fraction.value(), Some(0.11));
        let arithmetic = at(work(2_000_000, 1_000_000, 40_000_000, 28));
        assert_eq!((arithmetic.least.value(), arithmetic.limit.known()), (Some(200.0), Some(&Limit::Arithmetic)));
        let dispatch = at(work(2_000, 0, 0, 28));
        assert_eq!((dispatch.least.value(), dispatch.limit.known()), (Some(17.0), Some(&Limit::Dispatch)));
    }

    #[test]
    fn a_part_without_a_ceiling_is_left_out_and_says_why() {
        let mut roof = roof();
        roof.peak = Known::unavailable("portable code has no path of its own", "use another kernel");
        let floor = Floor::of(work(2_000_000, 0, 1 << 40, 1), &roof, &microseconds(200.0));
        assert_eq!((floor.least.value(), floor.fraction.value()), (Some(100.0), Some(0.5)));
        assert!(floor.arithmetic.missing().unwrap().unavailable.contains("portable"));
        let none = Known::unavailable("not measured", "measure");
        let roof = Roof { cold: none.clone(), warm: none.clone(), barrier: none, ..roof };
        let floor = Floor::of(work(1, 1, 1, 1), &roof, &microseconds(200.0));
        assert!(floor.least.known().is_none() && floor.limit.known().is_none() && floor.fraction.known().is_none());
    }

    #[test]
    fn a_rate_of_nothing_is_no_ceiling() {
        for value in [0.0, -3.0] {
            let none = Roof { cold: Reading::measured(value, Unit::GigabytesPerSecond, 1), ..roof() };
            let floor = Floor::of(work(1000, 0, 0, 0), &none, &microseconds(200.0));
            assert!(floor.memory.missing().unwrap().unavailable.contains("above zero"), "{value}");
            assert_eq!(floor.limit.known(), Some(&Limit::Dispatch));
        }
    }

    #[test]
    fn a_group_waits_for_each_of_its_operators() {
        let roof = roof();
        let one = Floor::of(work(2_000_000, 0, 0, 10), &roof, &microseconds(500.0));
        let other = Floor::of(work(20_000, 0, 40_000_000, 10), &roof, &microseconds(500.0));
        let group = Floor::sum(&[&one, &other], &roof, &microseconds(600.0));
        assert_eq!((group.memory.value(), group.arithmetic.value()), (Some(100.0), Some(200.0)));
        assert_eq!((group.least.value(), group.fraction.value()), (Some(300.0), Some(0.5)));
        assert_eq!((group.dispatch.value(), group.work.barriers), (Some(13.0), 20));
        let small = Floor::of(work(20, 0, 0, 30), &roof, &microseconds(50.0));
        let group = Floor::sum(&[&small], &roof, &microseconds(50.0));
        assert_eq!((group.least.value(), group.limit.known()), (Some(18.0), Some(&Limit::Dispatch)));
    }
}
