//! What `--device` means: the CPU's workers, or a GPU that runs the programs in their place.
//! Not here: the GPU itself (`ops-cuda`), and what this machine has (`doctor`).

use std::sync::{Arc, Mutex, Once, PoisonError};

use anyhow::Result;
use ops::Device;
use ops_cuda::OpenError;

use crate::failure::usage;
use crate::output;

/// A value of `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    Cpu,
    Cuda(u32),
    /// The first GPU if there is one that can be used, else the CPU.
    Auto,
}

impl std::str::FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        match text {
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" => Ok(DeviceChoice::Cuda(0)),
            "auto" => Ok(DeviceChoice::Auto),
            _ => match text.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(ordinal)) => Ok(DeviceChoice::Cuda(ordinal)),
                _ => Err("expected cpu, cuda, cuda:N or auto".to_owned()),
            },
        }
    }
}

impl std::fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            DeviceChoice::Auto => f.write_str("auto"),
        }
    }
}

/// A GPU that was named and cannot be used here.
#[derive(Debug, thiserror::Error)]
#[error("--device {device}: {why}; {instead}")]
pub(crate) struct NoGpu {
    device: DeviceChoice,
    why: String,
    instead: String,
    /// The machine lacks what it takes, so that the same command will fail again.
    pub(crate) lacking: bool,
}

impl NoGpu {
    fn new(device: DeviceChoice, error: OpenError) -> NoGpu {
        let lacking = !matches!(error, OpenError::Compile { .. } | OpenError::Gpu(_));
        let instead = "leave --device out to run on the CPU".to_owned();
        NoGpu { device, why: format!("{:#}", anyhow::Error::new(error)), instead, lacking }
    }

    /// The same where a rung was asked for that no CPU runs.
    fn for_rung(self, rung: &str) -> NoGpu {
        let on_gpu_alone = |known: &&ops::Checkpoint| known.name == rung;
        if !ops::ladder::DEVICE.iter().any(on_gpu_alone) {
            return self;
        }
        let instead = format!("'{rung}' runs on a GPU alone: on the CPU take another of `hourglass ladder`");
        NoGpu { instead, ..self }
    }
}

/// An error of opening a device, where checkpoint `rung` was to run on it.
pub(crate) fn for_rung(error: anyhow::Error, rung: &str) -> anyhow::Error {
    match error.downcast::<NoGpu>() {
        Ok(no_gpu) => no_gpu.for_rung(rung).into(),
        Err(error) => error,
    }
}

/// What `auto` found is said once, however often it is asked.
static SAID: Once = Once::new();

/// GPUs that this process has opened: opening compiles kernels, and verbs ask for their options more than once.
static OPEN: Mutex<Vec<(u32, Arc<dyn Device>)>> = Mutex::new(Vec::new());

impl DeviceChoice {
    /// The device, opened; None for the CPU.
    ///
    /// # Errors
    /// A GPU that was named and cannot be used, with the reason. `auto` then says so and takes the CPU.
    pub(crate) fn open(self) -> Result<Option<Arc<dyn Device>>> {
        let ordinal = match self {
            DeviceChoice::Cpu => return Ok(None),
            DeviceChoice::Cuda(ordinal) => ordinal,
            DeviceChoice::Auto => 0,
        };
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, device)) = open.iter().find(|(known, _)| *known == ordinal) {
            return Ok(Some(Arc::clone(device)));
        }
        match ops_cuda::open(ordinal) {
            Ok(gpu) => {
                for note in gpu.notes() {
                    output::note(format_args!("hourglass: {note}"));
                }
                let device: Arc<dyn Device> = Arc::new(gpu);
                open.push((ordinal, Arc::clone(&device)));
                Ok(Some(device))
            }
            Err(error) if self == DeviceChoice::Auto => {
                SAID.call_once(|| output::note(format_args!("hourglass: --device auto: the CPU, because: {error}")));
                Ok(None)
            }
            Err(error) => Err(NoGpu::new(self, error).into()),
        }
    }

    /// Whether it means a GPU here. One that was named is not opened: another process may be about to use it.
    ///
    /// # Errors
    /// None: `auto` takes the CPU where it must.
    pub(crate) fn is_gpu(self) -> Result<bool> {
        match self {
            DeviceChoice::Cpu => Ok(false),
            DeviceChoice::Cuda(_) => Ok(true),
            DeviceChoice::Auto => Ok(self.open()?.is_some()),
        }
    }

    /// For what only the CPU does, because of `why`.
    ///
    /// # Errors
    /// Another device was named.
    pub(crate) fn expect_cpu(self, what: &str, why: &str, instead: &str) -> Result<()> {
        if self == DeviceChoice::Cpu {
            return Ok(());
        }
        Err(usage(format!("--device {self}: {what} runs on the CPU alone, because {why}; leave it out, or {instead}")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn devices_are_parsed_and_shown_alike() {
        for text in ["cpu", "cuda:0", "cuda:3", "auto"] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Cuda(0)));
        for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:99999999999", "CPU"] {
            assert!(text.parse::<DeviceChoice>().unwrap_err().contains("cuda:N"), "{text}");
        }
    }

    #[test]
    fn a_gpu_that_is_not_there_is_one_sentence_and_auto_takes_the_cpu() {
        if ops_cuda::availability().driver.is_ok() {
            println!("skipped: this machine has a GPU");
            return;
        }
        assert!(DeviceChoice::Auto.open().unwrap().is_none() && DeviceChoice::Cpu.open().unwrap().is_none());
        let error = format!("{:#}", DeviceChoice::Cuda(0).open().err().unwrap());
        assert!(error.contains("--device cuda:0") && error.contains("driver") && error.contains("doctor"), "{error}");
        assert!(error.contains("leave --device out"), "{error}");
        let for_rung = |rung: &str| {
            let error = DeviceChoice::Cuda(0).open().err().unwrap().downcast::<NoGpu>().unwrap();
            assert!(error.lacking);
            error.for_rung(rung).to_string()
        };
        let alone = for_rung("placed-attention");
        assert!(alone.contains("runs on a GPU alone") && !alone.contains("leave --device out"), "{alone}");
        assert!(for_rung("added-norm").contains("leave --device out"));
    }
}
