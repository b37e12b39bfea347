//! What a GPU does at most, as a record like that of this machine's processors; one "thread" stands for the GPU.
//! Not here: the kernels that do it (`ops-cuda`).

use crate::conditions::{conditions_of, now};
use crate::error::Error;
use model::LoadOptions;
use ops::DeviceCeilings;
use record::bench::Surroundings;
use record::{
    BandwidthRow, Ceilings, CeilingsWorkload, InstructionPath, Known, Level, Measured, Operands, PeakRow, Reading,
    Record, ThreadCeilings, Traffic, Unit,
};

/// Measures them, which takes about a second. Nothing is kept: they cost less than the check whether kept ones still hold.
///
/// # Errors
/// Options without a device; what the device says.
pub fn of_device(options: &LoadOptions, rounds: u64) -> Result<Ceilings, Error> {
    let device = options.device.as_ref().ok_or(Error::NoDevice)?;
    let found = device.ceilings(rounds as usize).map_err(Error::of_device(device))?;
    let mut conditions = conditions_of(options, Vec::new());
    conditions.threads = 1;
    record_of(found, rounds, conditions)
}

fn record_of(found: DeviceCeilings, rounds: u64, conditions: record::Conditions) -> Result<Ceilings, Error> {
    let row = |level, bytes, up_to_bytes, samples| -> Result<BandwidthRow, Error> {
        Ok(BandwidthRow {
            level,
            traffic: Traffic::Read,
            streams: 1,
            footprint_bytes: Known::Is(bytes),
            up_to_bytes,
            rate: Known::Is(Measured::new(samples, Unit::GigabytesPerSecond)?),
        })
    };
    let DeviceCeilings { memory_bytes, cache_bytes, cache_up_to, memory, cache, products, launch, dispatch } = found;
    let not_here = || Reading::unavailable("the GPU was measured, not the processors", "`hourglass ceilings`");
    let mut ceilings = Ceilings {
        schema: Ceilings::SCHEMA.to_owned(),
        created: now(),
        workload: CeilingsWorkload { rounds, sample_ms: 0, threads: vec![1], streams: vec![1], huge_pages: false },
        workload_id: String::new(),
        conditions,
        conditions_id: String::new(),
        processor_share: not_here(),
        surroundings: Surroundings {
            seconds: 0.0,
            steal: not_here(),
            others: not_here(),
            cpu_pressure: not_here(),
            memory_pressure: not_here(),
            involuntary_switches: Known::unavailable("the GPU was measured", "`hourglass ceilings`"),
            frequency_before: Known::unavailable("the GPU was measured", "`hourglass ceilings`"),
            frequency_after: Known::unavailable("the GPU was measured", "`hourglass ceilings`"),
            load_before: Known::unavailable("the GPU was measured", "`hourglass ceilings`"),
        },
        threads: vec![ThreadCeilings {
            threads: 1,
            bandwidth: vec![
                row(Level::L2, cache_bytes, Some(cache_up_to.max(cache_bytes)), cache)?,
                row(Level::Memory, memory_bytes, None, memory)?,
            ],
            peaks: vec![PeakRow {
                path: InstructionPath::TensorBf16,
                operands: Operands::Registers,
                rate: Known::Is(Measured::new(products, Unit::GigaflopsPerSecond)?),
            }],
            barrier: Known::Is(Measured::new(launch, Unit::Microseconds)?),
            dispatch: Known::Is(Measured::new(dispatch, Unit::Microseconds)?),
        }],
        checks: Vec::new(),
        void: false,
    };
    ceilings.close();
    Ok(ceilings)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::conditions::{binary, host};

    #[test]
    fn a_small_footprint_is_the_caches_and_a_large_one_the_memorys() {
        let found = DeviceCeilings {
            memory_bytes: 1 << 31,
            cache_bytes: 16 << 20,
            cache_up_to: 30 << 20,
            memory: vec![4600.0, 4700.0],
            cache: vec![7000.0, 7100.0],
            products: vec![6e5, 7e5],
            launch: vec![0.5, 0.6],
            dispatch: vec![9.0, 8.0],
        };
        let host = record::Host { device: "cuda:0 (a GPU)".into(), ..host() };
        let conditions = record::Conditions {
            binary: binary(),
            host,
            threads: 1,
            pinned: false,
            features: Vec::new(),
            kernels: Vec::new(),
        };
        let ceilings = record_of(found, 2, conditions).unwrap();
        assert!(!ceilings.void && ceilings.is_of_device());
        let at = |bytes| ceilings.bandwidth(1, bytes).value();
        assert_eq!(
            (at(1 << 20), at(30 << 20), at(31 << 20), at(1 << 40)),
            (Some(7100.0), Some(7100.0), Some(4700.0), Some(4700.0))
        );
        assert_eq!(ceilings.peak(InstructionPath::TensorBf16, 1).value(), Some(7e5));
        assert_eq!((ceilings.barrier(1).value(), ceilings.dispatch(1).value()), (Some(0.5), Some(8.0)));
        assert!(ceilings.peak(InstructionPath::AmxBf16, 1).known().is_none());
    }
}
