//! Clocks, temperature and power of a GPU, through NVIDIA's management library (NVML), loaded at run time.
//! Nothing is changed through it.

#![allow(unsafe_code, reason = "calls through addresses that the dynamic loader gave, by NVML's published signatures")]

use crate::library::Library;
use ops::recording::DeviceState;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;

type Handle = *mut c_void;
type Number = extern "C" fn(Handle, *mut c_uint) -> c_int;
type NumberOf = extern "C" fn(Handle, c_uint, *mut c_uint) -> c_int;

/// One GPU's sensors.
pub(crate) struct Sensors {
    handle: Handle,
    clock: NumberOf,
    temperature: NumberOf,
    power: Number,
    reasons: extern "C" fn(Handle, *mut u64) -> c_int,
    driver: extern "C" fn(*mut c_char, c_uint) -> c_int,
}

// SAFETY: NVML's handles and functions may be used by any thread.
unsafe impl Send for Sensors {}
// SAFETY: as above.
unsafe impl Sync for Sensors {}

/// `NVML_CLOCK_SM` and `NVML_CLOCK_MEM`; `NVML_TEMPERATURE_GPU`.
const SM: c_uint = 1;
const MEMORY: c_uint = 2;
const CHIP: c_uint = 0;

/// `nvmlClocksEventReasons`, but for being idle and for what somebody set: what keeps clocks down that could be higher.
const REASONS: [(u64, &str); 5] = [
    (0x4, "power limit"),
    (0x8, "hardware slowdown"),
    (0x20, "temperature"),
    (0x40, "temperature (hardware)"),
    (0x80, "power brake (hardware)"),
];

impl Sensors {
    /// Of the GPU at this place on the bus.
    ///
    /// # Errors
    /// No library, or none of its GPUs is there.
    pub(crate) fn open(bus: &CString) -> Result<Sensors, String> {
        let library = Library::open(&[c"libnvidia-ml.so.1"])?;
        // SAFETY: each of NVML's functions has the signature that it is given here (nvml.h).
        let (init, by_bus, sensors) = unsafe {
            use std::mem::transmute;
            let init = transmute::<*mut c_void, extern "C" fn() -> c_int>(library.symbol(c"nvmlInit_v2")?);
            let by_bus = transmute::<*mut c_void, extern "C" fn(*const c_char, *mut Handle) -> c_int>(
                library.symbol(c"nvmlDeviceGetHandleByPciBusId_v2")?,
            );
            let sensors = Sensors {
                handle: ptr::null_mut(),
                clock: transmute::<*mut c_void, NumberOf>(library.symbol(c"nvmlDeviceGetClockInfo")?),
                temperature: transmute::<*mut c_void, NumberOf>(library.symbol(c"nvmlDeviceGetTemperature")?),
                power: transmute::<*mut c_void, Number>(library.symbol(c"nvmlDeviceGetPowerUsage")?),
                reasons: transmute::<*mut c_void, extern "C" fn(Handle, *mut u64) -> c_int>(
                    library.symbol(c"nvmlDeviceGetCurrentClocksThrottleReasons")?,
                ),
                driver: transmute::<*mut c_void, extern "C" fn(*mut c_char, c_uint) -> c_int>(
                    library.symbol(c"nvmlSystemGetDriverVersion")?,
                ),
            };
            (init, by_bus, sensors)
        };
        ok("nvmlInit", init())?;
        let mut handle = ptr::null_mut();
        ok("nvmlDeviceGetHandleByPciBusId", by_bus(bus.as_ptr(), &mut handle))?;
        Ok(Sensors { handle, ..sensors })
    }

    /// The driver's own version, e.g. `580.159.04`.
    pub(crate) fn driver(&self) -> Result<String, String> {
        // The callee is told one byte less than there is, so that a NUL always ends the text.
        let mut text = [0u8; 97];
        ok("nvmlSystemGetDriverVersion", (self.driver)(text.as_mut_ptr().cast(), 96))?;
        Ok(CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy).unwrap_or_default().into_owned())
    }

    /// Now.
    pub(crate) fn read(&self) -> Result<DeviceState, String> {
        let of = |what, function: NumberOf, kind| {
            let mut value = 0;
            ok(what, function(self.handle, kind, &mut value)).map(|()| value)
        };
        let mut milliwatts = 0;
        ok("nvmlDeviceGetPowerUsage", (self.power)(self.handle, &mut milliwatts))?;
        let mut reasons = 0;
        ok("nvmlDeviceGetCurrentClocksThrottleReasons", (self.reasons)(self.handle, &mut reasons))?;
        Ok(DeviceState {
            clock_mhz: of("nvmlDeviceGetClockInfo", self.clock, SM)?,
            memory_clock_mhz: of("nvmlDeviceGetClockInfo", self.clock, MEMORY)?,
            celsius: of("nvmlDeviceGetTemperature", self.temperature, CHIP)?,
            milliwatts,
            held_back: held_back(reasons),
        })
    }
}

fn held_back(reasons: u64) -> Vec<&'static str> {
    REASONS.iter().filter(|(bit, _)| reasons & bit != 0).map(|(_, words)| *words).collect()
}

fn ok(call: &str, status: c_int) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{call} failed with status {status}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_gpu_is_not_held_back_and_a_hot_one_is() {
        assert!(held_back(0x1).is_empty() && held_back(0x2).is_empty() && held_back(0).is_empty());
        assert_eq!(held_back(0x24), ["power limit", "temperature"]);
    }
}
