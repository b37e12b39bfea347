//! One pass for a profiler that this process runs under, which looks at it alone, and what was launched in it.
//! Not here: the profiler, which is started around the process, and its pages (`record::capture::ncu`).

use super::calls;
use crate::conditions::bound_kernels;
use crate::error::Error;
use crate::seeded::{Seeded, seeded};
use model::Engine;
use ops::{Both, Until, Where};
use record::capture::raw::{RawCall, RawLaunch};
use record::{BoundKernel, Workload};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// What a pass on a device was.
pub struct ProfiledPass {
    pub calls: Vec<RawCall>,
    /// In the order in which they were put into the device's queue.
    pub launches: Vec<RawLaunch>,
    pub kernels: Vec<BoundKernel>,
}

/// Layers that are profiled: the first, which can begin with calls of its own, and one that stands for all others.
const LAYERS: usize = 2;

/// Prepares the pass as a capture does and runs its first layers and what is in no layer once, with the profiler told where that begins
/// and ends: each kernel is run several times, and of layers that run the same kernels one says as much as all.
///
/// # Errors
/// An engine without a device, a pass that fails, an interruption.
pub fn profiled_pass(engine: &mut Engine, workload: &Workload, tokens: &[u32]) -> Result<ProfiledPass, Error> {
    let device = engine.options().device.clone().ok_or(Error::NoDevice)?;
    let cancelled = Arc::clone(&engine.options().cancelled);
    let Seeded { mut cache, tokens, keep } = seeded(engine, workload, tokens)?;
    let mut step = engine.prepare(&mut cache, tokens, keep)?;
    device.watched(true).map_err(Error::of_device(&device))?;
    let first = Where(|call: &ops::BoundCall| call.layer.is_none_or(|layer| layer < LAYERS));
    step.run(&Both(&Until(&cancelled), &first))?;
    device.watched(false).map_err(Error::of_device(&device))?;
    if cancelled.load(std::sync::atomic::Ordering::Relaxed) {
        return Err(model::Error::Interrupted.into());
    }
    let calls = calls(&step);
    let layers = calls.iter().filter_map(|call| call.layer).max().map_or(0, |last| last + 1);
    let stands_for = |served: &[u32]| {
        let layer = served.first().and_then(|call| calls.get(*call as usize)).and_then(|call| call.layer);
        if layer == Some(LAYERS as u64 - 1) { layers - LAYERS as u64 + 1 } else { 1 }
    };
    let launches = device.launched().into_iter();
    let launches = launches.map(|launch| RawLaunch {
        stands_for: stands_for(&launch.calls),
        kernel: launch.kernel,
        calls: launch.calls,
    });
    Ok(ProfiledPass { launches: launches.collect(), calls, kernels: bound_kernels(workload.phase, step.bound()) })
}

/// Writes the list of the sources that this program was compiled from, as a trace has it.
///
/// # Errors
/// The file cannot be written.
pub fn write_sources(directory: &Path) -> Result<(), Error> {
    let path = directory.join(record::capture::raw::SOURCES);
    let written = File::create_new(&path).and_then(|mut file| file.write_all(super::package::SOURCES.as_bytes()));
    written.map_err(|source| Error::Write { path, source })
}
