//! Which GPU libraries this machine has: the driver, the run-time compiler, the profiler.
//! Each is there with what it says of itself, or missing with the reason and the way to get it.

use crate::compiler::Compiler;
use crate::cupti;
use crate::library::Library;

/// What was found. Never an error: a machine without a GPU is an ordinary machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Availability {
    pub driver: Result<Driver, Missing>,
    /// Version of the run-time compiler.
    pub compiler: Result<String, Missing>,
    /// Version of the profiling interface (its own numbering).
    pub profiler: Result<String, Missing>,
}

/// A driver that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// The newest CUDA version that it supports, e.g. `13.0`.
    pub version: String,
    pub devices: Vec<Device>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub why: String,
    pub how_to_get: String,
}

/// Asks the dynamic loader and, where they load, the libraries themselves.
pub fn availability() -> Availability {
    Availability {
        driver: driver().map_err(|why| Missing {
            why,
            how_to_get: "on a machine with an NVIDIA GPU, install its driver (it brings libcuda.so.1); in a container, start it \
                         with the GPU passed through"
                .to_owned(),
        }),
        compiler: compiler().map_err(|why| Missing {
            why,
            how_to_get: "install the CUDA toolkit's libnvrtc (a package of its own in most distributions) and put its \
                         directory on the loader's path (LD_LIBRARY_PATH)"
                .to_owned(),
        }),
        profiler: profiler().map_err(|why| Missing {
            why,
            how_to_get: "install the CUDA toolkit's libcupti and put its directory (extras/CUPTI/lib64) on the loader's path \
                         (LD_LIBRARY_PATH)"
                .to_owned(),
        }),
    }
}

fn driver() -> Result<Driver, String> {
    let library = Library::open(&[c"libcuda.so.1"])?;
    succeeded("cuInit", library.call_with_flags(c"cuInit", 0)?)?;
    let (status, version) = library.read_number(c"cuDriverGetVersion")?;
    succeeded("cuDriverGetVersion", status)?;
    let (status, count) = library.read_number(c"cuDeviceGetCount")?;
    succeeded("cuDeviceGetCount", status)?;
    let mut devices = Vec::new();
    // No host has more; a number beyond is not believed.
    for ordinal in 0..count.clamp(0, 64) {
        let (status, device) = library.read_number_of(c"cuDeviceGet", ordinal)?;
        succeeded("cuDeviceGet", status)?;
        let (status, name) = library.read_text_of(c"cuDeviceGetName", device)?;
        succeeded("cuDeviceGetName", status)?;
        devices.push(Device { name });
    }
    Ok(Driver { version: dotted(version), devices })
}

fn compiler() -> Result<String, String> {
    Compiler::find().map(|compiler| compiler.version())
}

fn profiler() -> Result<String, String> {
    let (status, version) = cupti::library()?.read_number(c"cuptiGetVersion")?;
    succeeded("cuptiGetVersion", status)?;
    Ok(version.to_string())
}

fn succeeded(call: &str, status: i32) -> Result<(), String> {
    match status {
        0 => Ok(()),
        100 if call == "cuInit" => Err("the driver is installed, but it sees no GPU (cuInit: no device)".to_owned()),
        _ => Err(format!("{call} failed with status {status}")),
    }
}

/// 12040 is 12.4.
fn dotted(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_never_fails_and_what_is_missing_says_how_to_get_it() {
        let found = availability();
        let missing = [found.driver.err(), found.compiler.err(), found.profiler.err()];
        for missing in missing.into_iter().flatten() {
            assert!(!missing.why.is_empty() && missing.how_to_get.len() > 20, "{missing:?}");
        }
    }

    #[test]
    fn versions_are_dotted_and_a_driver_without_a_gpu_is_explained() {
        assert_eq!((dotted(12040).as_str(), dotted(13000).as_str()), ("12.4", "13.0"));
        assert!(succeeded("cuInit", 100).is_err_and(|why| why.contains("sees no GPU")));
        assert!(succeeded("nvrtcVersion", 100).is_err_and(|why| why.contains("status 100")));
    }
}
