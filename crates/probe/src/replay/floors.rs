//! The floor of each replayed row at this machine's measured ceilings.
//! Not here: measuring the ceilings, and how a floor follows from them (`record::Floor`).

use crate::replay::rows::Row;
use ops::{Feature, Features};
use record::{Ceilings, Floor, InstructionPath, Known, Reading, Roof, Unit};

/// Fills in the floors of operators and of the groups that they belong to, from their medians.
///
/// `start` is the replay's own: the quickest walk that ran no call. A GPU's times hold none, so there is nothing of it in their floors.
pub(crate) fn fill(
    groups: &mut [Row],
    operators: &mut [Row],
    ceilings: &Ceilings,
    threads: u64,
    start: Option<&Reading>,
) {
    // Every byte that a pass reads cold comes up again one pass later: the footprint is the pass's.
    let footprint = groups.iter().map(|row| row.work.cold_bytes).sum();
    let device = ceilings.is_of_device();
    let threads = if device { 1 } else { threads };
    let none = Reading::measured(0.0, Unit::Microseconds, 1);
    let start = start.unwrap_or(&none);
    let roof = |row: &Row| {
        let (peak, instruction_path) = if device {
            let tensor = InstructionPath::TensorBf16;
            (ceilings.peak(tensor, 1), Known::Is(tensor.name().to_owned()))
        } else {
            peak(|path| ceilings.peak(path, threads), row.features, row.products)
        };
        Roof {
            cold: ceilings.bandwidth(threads, footprint),
            warm: ceilings.bandwidth(threads, row.warm_footprint),
            peak,
            barrier: ceilings.barrier(threads),
            dispatch: start.clone(),
            instruction_path,
        }
    };
    for row in operators.iter_mut() {
        let floor = Floor::of(row.work, &roof(row), &row.row.timing.median);
        row.row.floor = Known::Is(floor);
    }
    for row in groups.iter_mut() {
        let own = |operator: &&Row| operator.row.group == row.row.group;
        let floors: Vec<&Floor> =
            operators.iter().filter(own).filter_map(|operator| operator.row.floor.known()).collect();
        let floor = Floor::sum(&floors, &roof(row), &row.row.timing.median);
        row.row.floor = Known::Is(floor);
    }
}

/// The fastest instruction that a kernel of these features may multiply with, and its rate: it may use any of them, and a
/// floor must not be above what it can do. Integer instructions count for as little as the kernel makes of them: with activations
/// in two planes of bytes each multiply-add takes two products.
fn peak(rate: impl Fn(InstructionPath) -> Reading, features: Features, products: u32) -> (Reading, Known<String>) {
    let needs = |path: InstructionPath| match path {
        InstructionPath::Fp32Avx2 => Feature::Fma,
        InstructionPath::Fp32Avx512 => Feature::Avx512f,
        InstructionPath::Vpdpbusd => Feature::Avx512vnni,
        InstructionPath::Vdpbf16ps => Feature::Avx512bf16,
        InstructionPath::AmxInt8 => Feature::AmxInt8,
        InstructionPath::AmxBf16 | InstructionPath::TensorBf16 => Feature::AmxBf16,
    };
    let allowed = InstructionPath::ALL.into_iter().filter(|path| features.contains(needs(*path)));
    let rated = allowed.filter_map(|path| {
        let rate = *rate(path).known()?;
        let products = if path == InstructionPath::Vpdpbusd { f64::from(products) } else { 1.0 };
        Some((rate.value() / products, path, rate))
    });
    match rated.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((peak, path, rate)) => (Reading::measured(peak, rate.unit(), rate.n()), Known::Is(path.name().to_owned())),
        None => {
            let why = "no peak was measured for an instruction that this kernel's features allow";
            let how = "nothing for portable code; else `hourglass ceilings --refresh`";
            (Known::unavailable(why, how), Known::unavailable(why, how))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(path: InstructionPath) -> Reading {
        let rate = match path {
            InstructionPath::Fp32Avx512 => 100.0,
            InstructionPath::Vpdpbusd => 400.0,
            InstructionPath::Vdpbf16ps => 190.0,
            _ => return Known::unavailable("not measured", "measure it"),
        };
        Reading::measured(rate, Unit::GigaflopsPerSecond, 1)
    }

    #[test]
    fn two_planes_halve_what_byte_products_are_worth() {
        let integers = Features::of(&[Feature::Avx512f, Feature::Avx512vnni]);
        let both = integers.with(Features::of(&[Feature::Avx512bf16]));
        for (features, products, rate, path) in [
            (integers, 1, 400.0, "vpdpbusd"),
            (integers, 2, 200.0, "vpdpbusd"),
            (both, 2, 200.0, "vpdpbusd"),
            (integers, 8, 100.0, "fp32-avx512"),
        ] {
            let (peak, name) = peak(rates, features, products);
            assert_eq!((peak.value(), name.known().map(String::as_str)), (Some(rate), Some(path)), "{products}");
        }
    }
}
