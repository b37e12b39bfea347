//! The floor of each replayed row at this machine's measured ceilings.
//! Not here: measuring the ceilings, and how a floor follows from them (`record::Floor`).

use crate::replay::rows::Row;
use ops::{Feature, Features};
use record::{Ceilings, Floor, InstructionPath, Known, Reading, Roof};

/// Fills in the floors of operators and of the groups that they belong to, from their medians.
///
/// `dispatch_floor` is the replay's own: the quickest walk that ran no call.
pub(crate) fn fill(
    groups: &mut [Row],
    operators: &mut [Row],
    ceilings: &Ceilings,
    threads: u64,
    dispatch_floor: &Reading,
) {
    // Every byte that a pass reads cold comes up again one pass later: the footprint is the pass's.
    let footprint = groups.iter().map(|row| row.work.cold_bytes).sum();
    let roof = |features: Features, warm_footprint: u64| {
        let (peak, instruction_path) = peak(ceilings, features, threads);
        Roof {
            cold: ceilings.bandwidth(threads, footprint),
            warm: ceilings.bandwidth(threads, warm_footprint),
            peak,
            barrier: ceilings.barrier(threads),
            dispatch: dispatch_floor.clone(),
            instruction_path,
        }
    };
    for row in operators.iter_mut() {
        let floor = Floor::of(row.work, &roof(row.features, row.warm_footprint), &row.row.timing.median);
        row.row.floor = Known::Is(floor);
    }
    for row in groups.iter_mut() {
        let own = |operator: &&Row| operator.row.group == row.row.group;
        let floors: Vec<&Floor> =
            operators.iter().filter(own).filter_map(|operator| operator.row.floor.known()).collect();
        let floor = Floor::sum(&floors, &roof(row.features, row.warm_footprint), &row.row.timing.median);
        row.row.floor = Known::Is(floor);
    }
}

/// The fastest instruction that a kernel of these features may multiply with, and its rate: it may use any of them, and a
/// floor must not be above what it can do.
fn peak(ceilings: &Ceilings, features: Features, threads: u64) -> (Reading, Known<String>) {
    let needs = |path: InstructionPath| match path {
        InstructionPath::Fp32Avx2 => Feature::Fma,
        InstructionPath::Fp32Avx512 => Feature::Avx512f,
        InstructionPath::Vpdpbusd => Feature::Avx512vnni,
        InstructionPath::Vdpbf16ps => Feature::Avx512bf16,
        InstructionPath::AmxInt8 => Feature::AmxInt8,
        InstructionPath::AmxBf16 => Feature::AmxBf16,
    };
    let allowed = InstructionPath::ALL.into_iter().filter(|path| features.contains(needs(*path)));
    let rated = allowed.filter_map(|path| {
        let rate = ceilings.peak(path, threads);
        Some((rate.value()?, path, rate))
    });
    match rated.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((_, path, rate)) => (rate, Known::Is(path.name().to_owned())),
        None => {
            let why = "no peak was measured for an instruction that this kernel's features allow";
            let how = "nothing for portable code; else `hourglass ceilings --refresh`";
            (Known::unavailable(why, how), Known::unavailable(why, how))
        }
    }
}
