//! The calls of the CUDA driver that this crate makes, loaded at run time; each gives its error as a sentence.
//! Not here: what they are for.

#![allow(
    unsafe_code,
    reason = "calls through addresses that the dynamic loader gave, by the driver's published signatures"
)]

use crate::library::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::io;
use std::ptr;

pub(crate) type Context = *mut c_void;
pub(crate) type Stream = *mut c_void;
pub(crate) type Module = *mut c_void;
pub(crate) type Function = *mut c_void;
pub(crate) type Event = *mut c_void;
pub(crate) type Graph = *mut c_void;
pub(crate) type GraphExec = *mut c_void;
type Status = c_int;

/// `CUlaunchAttribute`: an id, padding, and 64 bytes of value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchAttribute {
    id: c_int,
    padding: c_int,
    value: [u64; 8],
}

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`, allowed: the kernel may start before the one before it has ended.
pub(crate) const OVERLAP: LaunchAttribute = LaunchAttribute { id: 6, padding: 0, value: [1, 0, 0, 0, 0, 0, 0, 0] };

impl LaunchAttribute {
    /// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`: so many blocks that follow each other in each of the grid's dimensions run side by side.
    pub(crate) fn cluster([x, y, z]: [u32; 3]) -> LaunchAttribute {
        LaunchAttribute {
            id: 4,
            padding: 0,
            value: [u64::from(x) | u64::from(y) << 32, u64::from(z), 0, 0, 0, 0, 0, 0],
        }
    }
}

/// `CUtensorMap`: a matrix, and the tiles of it that the tensor memory unit copies.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct TensorMap([u64; 16]);

/// `CUlaunchConfig`.
#[repr(C)]
struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Stream,
    attributes: *const LaunchAttribute,
    attribute_count: c_uint,
}

macro_rules! driver_calls {
    ($($field:ident = $symbol:literal ( $($argument:ty),* );)+) => {
        /// Addresses of the driver's functions.
        pub(crate) struct Driver {
            $($field: extern "C" fn($($argument),*) -> Status,)+
        }

        impl Driver {
            /// # Errors
            /// No driver, or one that lacks a function.
            pub(crate) fn load() -> Result<Driver, String> {
                let library = Library::open(&[c"libcuda.so.1"])?;
                Ok(Driver {
                    $($field: {
                        let address = library.symbol($symbol)?;
                        // SAFETY: the driver's function of this name has this signature (cuda.h).
                        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn($($argument),*) -> Status>(address) }
                    },)+
                })
            }
        }
    };
}

driver_calls! {
    init = c"cuInit"(c_uint);
    driver_version = c"cuDriverGetVersion"(*mut c_int);
    device_get = c"cuDeviceGet"(*mut c_int, c_int);
    device_count = c"cuDeviceGetCount"(*mut c_int);
    device_name = c"cuDeviceGetName"(*mut c_char, c_int, c_int);
    device_attribute = c"cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
    device_bus = c"cuDeviceGetPCIBusId"(*mut c_char, c_int, c_int);
    context_retain = c"cuDevicePrimaryCtxRetain"(*mut Context, c_int);
    context_set = c"cuCtxSetCurrent"(Context);
    memory_info = c"cuMemGetInfo_v2"(*mut usize, *mut usize);
    memory_allocate = c"cuMemAlloc_v2"(*mut u64, usize);
    memory_free = c"cuMemFree_v2"(u64);
    memory_set = c"cuMemsetD8_v2"(u64, u8, usize);
    memory_upload = c"cuMemcpyHtoD_v2"(u64, *const c_void, usize);
    memory_download = c"cuMemcpyDtoH_v2"(*mut c_void, u64, usize);
    host_allocate = c"cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    host_device_pointer = c"cuMemHostGetDevicePointer_v2"(*mut u64, *mut c_void, c_uint);
    module_load = c"cuModuleLoadData"(*mut Module, *const c_void);
    module_function = c"cuModuleGetFunction"(*mut Function, Module, *const c_char);
    function_set = c"cuFuncSetAttribute"(Function, c_int, c_int);
    stream_create = c"cuStreamCreate"(*mut Stream, c_uint);
    stream_synchronize = c"cuStreamSynchronize"(Stream);
    stream_query = c"cuStreamQuery"(Stream);
    launch = c"cuLaunchKernelEx"(*const LaunchConfig, Function, *const *mut c_void, *const *mut c_void);
    tensor_map = c"cuTensorMapEncodeTiled"(
        *mut TensorMap, c_int, c_uint, u64, *const u64, *const u64, *const u32, *const u32, c_int, c_int, c_int, c_int
    );
    capture_begin = c"cuStreamBeginCapture_v2"(Stream, c_int);
    capture_end = c"cuStreamEndCapture"(Stream, *mut Graph);
    graph_instantiate = c"cuGraphInstantiateWithFlags"(*mut GraphExec, Graph, u64);
    graph_upload = c"cuGraphUpload"(GraphExec, Stream);
    graph_launch = c"cuGraphLaunch"(GraphExec, Stream);
    graph_exec_destroy = c"cuGraphExecDestroy"(GraphExec);
    graph_destroy = c"cuGraphDestroy"(Graph);
    event_create = c"cuEventCreate"(*mut Event, c_uint);
    event_record = c"cuEventRecord"(Event, Stream);
    event_destroy = c"cuEventDestroy_v2"(Event);
    event_query = c"cuEventQuery"(Event);
    event_synchronize = c"cuEventSynchronize"(Event);
    event_elapsed = c"cuEventElapsedTime"(*mut f32, Event, Event);
    profiler_start = c"cuProfilerStart"();
    profiler_stop = c"cuProfilerStop"();
    error_string = c"cuGetErrorString"(Status, *mut *const c_char);
}

/// What is asked of a device by number (`CUdevice_attribute`).
pub(crate) const MULTIPROCESSORS: c_int = 16;
pub(crate) const CACHE_BYTES: c_int = 38;
pub(crate) const CAPABILITY_MAJOR: c_int = 75;
pub(crate) const CAPABILITY_MINOR: c_int = 76;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MOST_SHARED_BYTES: c_int = 8;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const MAPPED: c_uint = 3;
/// Ordered with the copies and fills, which go through the default stream.
const ORDERED: c_uint = 0;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const THREAD_LOCAL: c_int = 1;
const OUT_OF_MEMORY: Status = 2;
const NOT_READY: Status = 600;

impl Driver {
    fn ok(&self, what: &str, status: Status) -> io::Result<()> {
        if status == 0 {
            return Ok(());
        }
        let mut text = ptr::null();
        (self.error_string)(status, &mut text);
        let text = if text.is_null() {
            format!("status {status}")
        } else {
            // SAFETY: the driver's own NUL-terminated constant.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        let kind = if status == OUT_OF_MEMORY { io::ErrorKind::OutOfMemory } else { io::ErrorKind::Other };
        Err(io::Error::new(kind, format!("{what}: {text}")))
    }

    fn asked<T>(&self, what: &str, mut value: T, call: impl FnOnce(&mut T) -> Status) -> io::Result<T> {
        let status = call(&mut value);
        self.ok(what, status)?;
        Ok(value)
    }

    pub(crate) fn start(&self) -> io::Result<()> {
        self.ok("the driver did not start (cuInit)", (self.init)(0))
    }

    /// E.g. 13000 for 13.0.
    pub(crate) fn version(&self) -> io::Result<i32> {
        self.asked("the driver's version", 0, |version| (self.driver_version)(version))
    }

    pub(crate) fn devices(&self) -> io::Result<i32> {
        self.asked("counting GPUs", 0, |count| (self.device_count)(count))
    }

    pub(crate) fn device(&self, ordinal: i32) -> io::Result<i32> {
        self.asked("choosing a GPU", 0, |device| (self.device_get)(device, ordinal))
    }

    pub(crate) fn name(&self, device: i32) -> io::Result<String> {
        // The callee is told one byte less than there is, so that a NUL always ends the text.
        let mut text = [0u8; 257];
        self.ok("the GPU's name", (self.device_name)(text.as_mut_ptr().cast(), 256, device))?;
        Ok(CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy).unwrap_or_default().into_owned())
    }

    /// Where it is on the bus, e.g. `0000:3b:00.0`: how other libraries of NVIDIA's know it.
    pub(crate) fn bus_id(&self, device: i32) -> io::Result<CString> {
        let mut text = [0u8; 33];
        self.ok("the GPU's place on the bus", (self.device_bus)(text.as_mut_ptr().cast(), 32, device))?;
        Ok(CStr::from_bytes_until_nul(&text).map(CStr::to_owned).unwrap_or_default())
    }

    pub(crate) fn attribute(&self, device: i32, which: c_int) -> io::Result<i32> {
        self.asked("a property of the GPU", 0, |value| (self.device_attribute)(value, which, device))
    }

    pub(crate) fn context(&self, device: i32) -> io::Result<Context> {
        self.asked("using the GPU", ptr::null_mut(), |context| (self.context_retain)(context, device))
    }

    /// Makes the context this thread's.
    pub(crate) fn enter(&self, context: Context) -> io::Result<()> {
        self.ok("using the GPU", (self.context_set)(context))
    }

    pub(crate) fn free_bytes(&self) -> io::Result<usize> {
        let mut total = 0;
        self.asked("the GPU's free memory", 0, |free| (self.memory_info)(free, &mut total))
    }

    pub(crate) fn allocate(&self, bytes: usize) -> io::Result<u64> {
        self.asked("allocating GPU memory", 0, |at| (self.memory_allocate)(at, bytes))
    }

    pub(crate) fn free(&self, at: u64) {
        // Nothing can be done about an error here; a lost GPU gives one for every call.
        let _ = (self.memory_free)(at);
    }

    pub(crate) fn fill(&self, at: u64, byte: u8, bytes: usize) -> io::Result<()> {
        self.ok("filling GPU memory", (self.memory_set)(at, byte, bytes))
    }

    pub(crate) fn upload(&self, to: u64, from: &[u8]) -> io::Result<()> {
        self.ok("copying to the GPU", (self.memory_upload)(to, from.as_ptr().cast(), from.len()))
    }

    pub(crate) fn download(&self, from: u64, to: &mut [u8]) -> io::Result<()> {
        self.ok("copying from the GPU", (self.memory_download)(to.as_mut_ptr().cast(), from, to.len()))
    }

    /// Page-locked host memory that the GPU reads and writes: its address here and there. It stays for the life of the process.
    pub(crate) fn mapped(&self, bytes: usize) -> io::Result<(*mut u8, u64)> {
        let here = self.asked("page-locked memory", ptr::null_mut(), |at| (self.host_allocate)(at, bytes, MAPPED))?;
        let there = self.asked("page-locked memory", 0, |at| (self.host_device_pointer)(at, here, 0))?;
        Ok((here.cast(), there))
    }

    pub(crate) fn load_module(&self, image: &[u8]) -> io::Result<Module> {
        self.asked("loading kernels", ptr::null_mut(), |module| (self.module_load)(module, image.as_ptr().cast()))
    }

    pub(crate) fn function(&self, module: Module, name: &str) -> io::Result<Function> {
        let c_name = CString::new(name)?;
        let what = format!("kernel {name}");
        self.asked(&what, ptr::null_mut(), |function| (self.module_function)(function, module, c_name.as_ptr()))
    }

    /// Lets launches of the function ask for so much shared memory.
    pub(crate) fn allow_shared(&self, function: Function, bytes: u32) -> io::Result<()> {
        self.ok("shared memory of a kernel", (self.function_set)(function, MOST_SHARED_BYTES, bytes as c_int))
    }

    pub(crate) fn stream(&self) -> io::Result<Stream> {
        self.asked("a stream", ptr::null_mut(), |stream| (self.stream_create)(stream, ORDERED))
    }

    pub(crate) fn wait(&self, stream: Stream) -> io::Result<()> {
        self.ok("running on the GPU", (self.stream_synchronize)(stream))
    }

    /// Whether everything in the stream has run.
    pub(crate) fn done(&self, stream: Stream) -> io::Result<bool> {
        match (self.stream_query)(stream) {
            NOT_READY => Ok(false),
            status => self.ok("running on the GPU", status).map(|()| true),
        }
    }

    /// Puts a kernel with one argument (a structure) into a stream.
    pub(crate) fn launch<T: Copy>(
        &self,
        function: Function,
        (grid, block, shared_bytes): ([u32; 3], [u32; 3], u32),
        stream: Stream,
        attributes: &[LaunchAttribute],
        argument: &T,
    ) -> io::Result<()> {
        let config = LaunchConfig {
            grid,
            block,
            shared_bytes,
            stream,
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len() as c_uint,
        };
        let arguments = [ptr::from_ref(argument).cast_mut().cast::<c_void>()];
        self.ok("starting a kernel", (self.launch)(&config, function, arguments.as_ptr(), ptr::null()))
    }

    /// A bfloat16 matrix `(rows, cols)` at `start`, whose columns divide by eight, in tiles of so many rows and columns; what reaches
    /// beyond it reads as zeros. A line of a tile is 128 bytes, swizzled in groups of eight.
    pub(crate) fn tensor_map(&self, start: u64, (rows, cols): (u32, u32), tile: (u32, u32)) -> io::Result<TensorMap> {
        // `CU_TENSOR_MAP_DATA_TYPE_BFLOAT16`, no interleaving, `SWIZZLE_128B`, `L2_PROMOTION_L2_128B`, zeros outside.
        let (bf16, plain, swizzle, promotion, zeros) = (9, 0, 3, 2, 0);
        let (sizes, line_bytes) = ([u64::from(cols), u64::from(rows)], u64::from(cols) * 2);
        let (tile, steps) = ([tile.1, tile.0], [1, 1]);
        self.asked("describing a matrix to the tensor memory unit", TensorMap([0; 16]), |map| {
            let (sizes, tile, steps) = (sizes.as_ptr(), tile.as_ptr(), steps.as_ptr());
            (self.tensor_map)(map, bf16, 2, start, sizes, &line_bytes, tile, steps, plain, swizzle, promotion, zeros)
        })
    }

    pub(crate) fn event(&self) -> io::Result<Event> {
        self.asked("an event", ptr::null_mut(), |event| (self.event_create)(event, 0))
    }

    /// Notes the time when the stream comes to it.
    pub(crate) fn mark(&self, event: Event, stream: Stream) -> io::Result<()> {
        self.ok("marking a time on the GPU", (self.event_record)(event, stream))
    }

    /// Whether the stream has come to a mark.
    pub(crate) fn passed(&self, event: Event) -> io::Result<bool> {
        match (self.event_query)(event) {
            NOT_READY => Ok(false),
            status => self.ok("asking for a mark on the GPU", status).map(|()| true),
        }
    }

    pub(crate) fn drop_event(&self, event: Event) {
        let _ = (self.event_destroy)(event);
    }

    /// Nanoseconds between two marks, when the stream has come to the second.
    pub(crate) fn between(&self, start: Event, end: Event) -> io::Result<u64> {
        self.ok("waiting for a mark on the GPU", (self.event_synchronize)(end))?;
        let ms = self.asked("the time between two marks", 0.0_f32, |ms| (self.event_elapsed)(ms, start, end))?;
        Ok((f64::from(ms) * 1e6) as u64)
    }

    /// Where an outside profiler's range begins or ends.
    pub(crate) fn profiler(&self, on: bool) -> io::Result<()> {
        let status = if on { (self.profiler_start)() } else { (self.profiler_stop)() };
        self.ok("telling a profiler where to look", status)
    }

    pub(crate) fn begin_capture(&self, stream: Stream) -> io::Result<()> {
        self.ok("capturing a graph", (self.capture_begin)(stream, THREAD_LOCAL))
    }

    /// What was put into the stream since, ready to run again.
    pub(crate) fn end_capture(&self, stream: Stream) -> io::Result<GraphExec> {
        let graph = self.asked("capturing a graph", ptr::null_mut(), |graph| (self.capture_end)(stream, graph))?;
        let exec =
            self.asked("instantiating a graph", ptr::null_mut(), |exec| (self.graph_instantiate)(exec, graph, 0));
        (self.graph_destroy)(graph);
        let exec = exec?;
        self.ok("uploading a graph", (self.graph_upload)(exec, stream))?;
        Ok(exec)
    }

    pub(crate) fn replay(&self, graph: GraphExec, stream: Stream) -> io::Result<()> {
        self.ok("replaying a graph", (self.graph_launch)(graph, stream))
    }

    pub(crate) fn drop_graph(&self, graph: GraphExec) {
        let _ = (self.graph_exec_destroy)(graph);
    }
}
