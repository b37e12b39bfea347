//! NVIDIA's profiling library (CUPTI), loaded at run time: a record of every kernel, read by the published layout of its common
//! beginning, and the profiler's clock beside the monotonic one.
//! Not here: which launch of ours a record is of (`recorder.rs`).

#![allow(
    unsafe_code,
    reason = "calls and callbacks by CUPTI's published signatures, and records read at its published offsets"
)]

use crate::library::Library;
use std::alloc::{Layout, alloc};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

/// A kernel's record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelRecord {
    /// Of the profiler's clock, in nanoseconds; 0 where it was not collected.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) device: u32,
    pub(crate) stream: u32,
    /// Of the launch; all kernels of one replayed graph have that of the replay.
    pub(crate) correlation: u32,
    /// 0 for a launch outside of graphs.
    pub(crate) graph: u32,
    /// Rises with the order in which the graph's nodes were made.
    pub(crate) node: u64,
    pub(crate) name: String,
}

/// Where fields lie in `CUpti_ActivityKernel9` to `11` (CUPTI of CUDA 12 and 13), which begin alike.
pub(crate) mod layout {
    pub(crate) const START: usize = 16;
    pub(crate) const END: usize = 24;
    pub(crate) const DEVICE: usize = 40;
    pub(crate) const STREAM: usize = 48;
    pub(crate) const CORRELATION: usize = 92;
    pub(crate) const NAME: usize = 104;
    pub(crate) const NODE: usize = 144;
    pub(crate) const GRAPH: usize = 156;
    /// What is read.
    pub(crate) const BYTES: usize = 160;
}

/// The numbers of a record whose name is elsewhere.
pub(crate) fn kernel_record(bytes: &[u8; layout::BYTES], name: String) -> KernelRecord {
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    KernelRecord {
        start: long(layout::START),
        end: long(layout::END),
        device: word(layout::DEVICE),
        stream: word(layout::STREAM),
        correlation: word(layout::CORRELATION),
        graph: word(layout::GRAPH),
        node: long(layout::NODE),
        name,
    }
}

/// Both clocks read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockPair {
    pub(crate) monotonic_ns: u64,
    pub(crate) profiler_ns: u64,
    /// Half of the time between the readings around it.
    pub(crate) error_ns: u64,
}

type Status = c_int;
type Request = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Complete = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// CUPTI's functions.
pub(crate) struct Cupti {
    version: u32,
    register: extern "C" fn(Request, Complete) -> Status,
    enable: extern "C" fn(u32) -> Status,
    disable: extern "C" fn(u32) -> Status,
    flush: extern "C" fn(u32) -> Status,
    next: extern "C" fn(*mut u8, usize, *mut *mut c_void) -> Status,
    dropped: extern "C" fn(*mut c_void, u32, *mut usize) -> Status,
    timestamp: extern "C" fn(*mut u64) -> Status,
    text: extern "C" fn(Status, *mut *const c_char) -> Status,
}

/// `CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL`: kernels with their times, without making them wait for each other.
const KERNELS: u32 = 10;
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`.
const FORCED: u32 = 1;
/// Some 5,000 records. CUPTI clears a buffer when it gets it, in the middle of what is recorded.
const BUFFER_BYTES: usize = 1 << 20;
const BUFFER: Layout = match Layout::from_size_align(BUFFER_BYTES, 64) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// What the callbacks, which are given nothing of ours, fill.
#[derive(Default)]
pub(crate) struct Delivered {
    /// In the order of their delivery.
    pub(crate) kernels: Vec<KernelRecord>,
    pub(crate) dropped: u64,
    /// A buffer that could not be read to its end.
    pub(crate) problem: Option<String>,
}

/// A buffer that nobody uses.
struct Spare(*mut u8);

// SAFETY: who takes it out of the list is the only one who knows of it.
unsafe impl Send for Spare {}

impl Delivered {
    const NOTHING: Delivered = Delivered { kernels: Vec::new(), dropped: 0, problem: None };
}

static DELIVERED: Mutex<Delivered> = Mutex::new(Delivered::NOTHING);
/// Buffers that CUPTI gave back: what is recorded next meets no page for the first time.
static SPARE: Mutex<Vec<Spare>> = Mutex::new(Vec::new());
static CUPTI: OnceLock<Result<Cupti, String>> = OnceLock::new();

/// Where toolkits put CUPTI when it is not on the loader's path.
const PLACES: &[&str] = &[
    "/usr/local/cuda/extras/CUPTI/lib64",
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/usr/lib/x86_64-linux-gnu",
];

/// The library, opened once; its callbacks are registered then.
///
/// # Errors
/// It is not there or refuses: one sentence.
pub(crate) fn cupti() -> io::Result<&'static Cupti> {
    let opened = CUPTI.get_or_init(|| Cupti::open().and_then(|cupti| cupti.start().map(|()| cupti)));
    opened.as_ref().map_err(|why| {
        io::Error::other(format!("no profiling library (CUPTI): {why}; `hourglass doctor` says how to get it"))
    })
}

/// From the loader's path, or from where toolkits are usually installed.
///
/// # Errors
/// The loader's message.
pub(crate) fn library() -> Result<Library, String> {
    Library::open(&[c"libcupti.so.13", c"libcupti.so.12", c"libcupti.so"]).or_else(|error| {
        let names = PLACES.iter().flat_map(|place| ["libcupti.so.13", "libcupti.so.12"].map(|name| (place, name)));
        let found = names.map(|(place, name)| Path::new(place).join(name)).find(|path| path.is_file());
        Library::open_path(&found.ok_or(error)?)
    })
}

impl Cupti {
    fn open() -> Result<Cupti, String> {
        let library = library()?;
        // SAFETY: each of CUPTI's functions has the signature of the field it goes to (cupti_activity.h, cupti_version.h).
        let cupti = unsafe {
            use std::mem::transmute;
            Cupti {
                version: 0,
                register: transmute::<*mut c_void, extern "C" fn(Request, Complete) -> Status>(
                    library.symbol(c"cuptiActivityRegisterCallbacks")?,
                ),
                enable: transmute::<*mut c_void, extern "C" fn(u32) -> Status>(library.symbol(c"cuptiActivityEnable")?),
                disable: transmute::<*mut c_void, extern "C" fn(u32) -> Status>(
                    library.symbol(c"cuptiActivityDisable")?,
                ),
                flush: transmute::<*mut c_void, extern "C" fn(u32) -> Status>(
                    library.symbol(c"cuptiActivityFlushAll")?,
                ),
                next: transmute::<*mut c_void, extern "C" fn(*mut u8, usize, *mut *mut c_void) -> Status>(
                    library.symbol(c"cuptiActivityGetNextRecord")?,
                ),
                dropped: transmute::<*mut c_void, extern "C" fn(*mut c_void, u32, *mut usize) -> Status>(
                    library.symbol(c"cuptiActivityGetNumDroppedRecords")?,
                ),
                timestamp: transmute::<*mut c_void, extern "C" fn(*mut u64) -> Status>(
                    library.symbol(c"cuptiGetTimestamp")?,
                ),
                text: transmute::<*mut c_void, extern "C" fn(Status, *mut *const c_char) -> Status>(
                    library.symbol(c"cuptiGetResultString")?,
                ),
            }
        };
        let (status, version) = library.read_number(c"cuptiGetVersion")?;
        // 18 is CUDA 12.0's; from 13.0 on they are numbered like 130001.
        if status != 0 || version < 18 {
            return Err(format!("its version is {version}; install that of CUDA 12 or newer"));
        }
        Ok(Cupti { version: version as u32, ..cupti })
    }

    fn start(&self) -> Result<(), String> {
        self.ok("it does not start", (self.register)(request, complete)).map_err(|error| error.to_string())
    }

    fn ok(&self, what: &str, status: Status) -> io::Result<()> {
        if status == 0 {
            return Ok(());
        }
        let mut text = ptr::null();
        (self.text)(status, &mut text);
        let text = if text.is_null() {
            format!("status {status}")
        } else {
            // SAFETY: the library's own NUL-terminated constant.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(io::Error::other(format!(
            "{what} (CUPTI: {text}); end other profilers of this process, and see `hourglass doctor`"
        )))
    }

    pub(crate) fn version(&self) -> String {
        format!("CUPTI {}", self.version)
    }

    /// Kernels are recorded from now on.
    pub(crate) fn on(&self) -> io::Result<()> {
        self.ok("kernels cannot be recorded", (self.enable)(KERNELS))
    }

    /// Forgets what was recorded before, of kernels that have ended; both clocks.
    pub(crate) fn begin(&self) -> io::Result<ClockPair> {
        (self.flush)(FORCED);
        *delivered() = Delivered::NOTHING;
        self.clocks()
    }

    pub(crate) fn off(&self) -> io::Result<()> {
        self.ok("the recorded kernels cannot be had", (self.flush)(FORCED))?;
        self.ok("recording cannot be stopped", (self.disable)(KERNELS))
    }

    /// What was delivered since it was switched on.
    ///
    /// # Errors
    /// A buffer that could not be read.
    pub(crate) fn take(&self) -> io::Result<Delivered> {
        let delivered = std::mem::replace(&mut *delivered(), Delivered::NOTHING);
        match delivered.problem {
            Some(problem) => Err(io::Error::other(problem)),
            None => Ok(delivered),
        }
    }

    /// Of many readings the one whose ends are closest: one that was interrupted would put every kernel beside its dispatch.
    pub(crate) fn clocks(&self) -> io::Result<ClockPair> {
        let mut best: Option<ClockPair> = None;
        for _ in 0..64 {
            let (before, mut profiler_ns) = (monotonic_ns(), 0);
            self.ok("its clock cannot be read", (self.timestamp)(&mut profiler_ns))?;
            let after = monotonic_ns();
            let error_ns = after.saturating_sub(before).div_ceil(2);
            if best.is_none_or(|best| error_ns < best.error_ns) {
                best = Some(ClockPair { monotonic_ns: u64::midpoint(before, after), profiler_ns, error_ns });
            }
        }
        Ok(best.expect("read above"))
    }
}

fn spare() -> std::sync::MutexGuard<'static, Vec<Spare>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn delivered() -> std::sync::MutexGuard<'static, Delivered> {
    DELIVERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// CLOCK_MONOTONIC, as the host's own notes have it.
fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid structure to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CUPTI asks for room.
extern "C" fn request(buffer: *mut *mut u8, bytes: *mut usize, records: *mut usize) {
    let known = spare().pop();
    // SAFETY: CUPTI gives three places to write to; a null buffer tells it that there is none, and it drops records and counts them.
    unsafe {
        *buffer = known.map_or_else(|| alloc(BUFFER), |known| known.0);
        *bytes = if (*buffer).is_null() { 0 } else { BUFFER_BYTES };
        *records = 0;
    }
}

/// CUPTI gives a buffer back.
extern "C" fn complete(context: *mut c_void, stream: u32, buffer: *mut u8, _: usize, valid: usize) {
    if buffer.is_null() {
        return;
    }
    let mut delivered = delivered();
    if let Some(Ok(cupti)) = CUPTI.get() {
        let mut lost = 0;
        if (cupti.dropped)(context, stream, &mut lost) == 0 {
            delivered.dropped += lost as u64;
        }
        let mut record = ptr::null_mut();
        while valid > 0 && (cupti.next)(buffer, valid, &mut record) == 0 {
            // SAFETY: CUPTI gave a record inside the buffer; every kind begins with its number.
            let kind = unsafe { record.cast::<u32>().read() };
            if kind != KERNELS && kind != 3 {
                continue;
            }
            if (record as usize).wrapping_sub(buffer as usize) > valid.saturating_sub(layout::BYTES) {
                delivered.problem = Some("CUPTI gave a record that ends behind its buffer".to_owned());
                break;
            }
            // SAFETY: so many bytes are inside the buffer, checked above.
            let bytes = unsafe { &*record.cast::<[u8; layout::BYTES]>() };
            let at = &bytes[layout::NAME..layout::NAME + 8];
            let name = usize::from_le_bytes(std::array::from_fn(|index| at[index])) as *const c_char;
            let name = if name.is_null() {
                String::new()
            } else {
                // SAFETY: the record's NUL-terminated name, which CUPTI keeps for as long as the record.
                unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
            };
            delivered.kernels.push(kernel_record(bytes, name));
        }
    } else {
        delivered.problem = Some("CUPTI gave records before it was there".to_owned());
    }
    drop(delivered);
    spare().push(Spare(buffer));
}
