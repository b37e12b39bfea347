//! The time of runs: the host's, or on a device the device's own, in which neither a launch nor the host's waiting is.
//! Not here: what is run.

use crate::error::Error;
use model::Engine;
use ops::Device;
use ops::recording::Record;
use std::sync::Arc;
use std::time::Instant;

/// Times runs of one engine until it is dropped. On a device no step is put ahead meanwhile.
pub(crate) struct Stopwatch {
    device: Option<Arc<dyn Device>>,
}

impl Stopwatch {
    /// # Errors
    /// The device's.
    pub(crate) fn new(engine: &Engine) -> Result<Stopwatch, Error> {
        let device = engine.options().device.clone();
        if let Some(device) = &device {
            device.record(Record::Calls).map_err(Error::of_device(device))?;
        }
        Ok(Stopwatch { device })
    }

    /// Microseconds of `run`, which runs one step at least partly.
    ///
    /// # Errors
    /// What `run` returns; a device that did not time it, as where no call was wanted.
    pub(crate) fn time(&self, run: impl FnOnce() -> model::Result<()>) -> Result<f64, Error> {
        let start = Instant::now();
        run()?;
        let elapsed = start.elapsed();
        let Some(device) = &self.device else { return Ok(elapsed.as_secs_f64() * 1e6) };
        let untimed =
            || Error::of_device(device)(std::io::Error::other("it did not time a run: of the pass it ran nothing"));
        Ok(device.calls_ns().ok_or_else(untimed)? as f64 / 1e3)
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            // What cannot be switched off will say so when it is switched on again.
            let _ = device.record(Record::Nothing);
        }
    }
}
