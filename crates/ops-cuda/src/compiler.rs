//! CUDA C++ to machine code at run time, through NVRTC, and the cache of what was compiled before.
//! Not here: the sources (`sources.rs`), and loading what comes out (`gpu.rs`).

#![allow(unsafe_code, reason = "calls through addresses that the dynamic loader gave, by NVRTC's published signatures")]

use crate::library::Library;
use crate::sources::Source;
use sha2::{Digest, Sha256};
use std::ffi::{CString, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

type Program = *mut c_void;

type Create = extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type SizeOf = extern "C" fn(Program, *mut usize) -> c_int;
type Copy = extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = extern "C" fn(*mut Program) -> c_int;

/// Loaded NVRTC.
pub struct Compiler {
    version: (i32, i32),
    create: Create,
    compile: Compile,
    size_of: [SizeOf; 2],
    copy: [Copy; 2],
    destroy: Destroy,
}

/// Machine code and what the compiler said.
pub struct Compiled {
    pub cubin: Vec<u8>,
    pub log: String,
}

const LOG: usize = 0;
const CUBIN: usize = 1;

/// Where toolkits put NVRTC when it is not on the loader's path.
const PLACES: &[&str] = &[
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/usr/local/cuda-13.0/targets/x86_64-linux/lib",
    "/usr/lib/x86_64-linux-gnu",
];
const NAMES: [&str; 2] = ["libnvrtc.so.13", "libnvrtc.so.12"];

impl Compiler {
    /// From the loader's path, or from where toolkits are usually installed.
    ///
    /// # Errors
    /// The loader's message.
    pub fn find() -> Result<Compiler, String> {
        let first = match Library::open(&[c"libnvrtc.so.13", c"libnvrtc.so.12", c"libnvrtc.so"]) {
            Ok(library) => return Compiler::of(&library),
            Err(error) => error,
        };
        PLACES.iter().find_map(|place| Compiler::open(Path::new(place)).ok()).ok_or(first)
    }

    /// From this directory.
    ///
    /// # Errors
    /// The loader's message, or that no NVRTC is there.
    pub fn open(directory: &Path) -> Result<Compiler, String> {
        let library = NAMES.iter().map(|name| directory.join(name)).find(|path| path.is_file());
        let library = library.ok_or_else(|| format!("no {} in {}", NAMES[0], directory.display()))?;
        // NVRTC looks for its second library by name alone; it is found if it is loaded already.
        for entry in fs::read_dir(directory).map_err(|error| error.to_string())?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so.") {
                Library::open_path(&entry.path())?;
            }
        }
        Compiler::of(&Library::open_path(&library)?)
    }

    fn of(library: &Library) -> Result<Compiler, String> {
        let (status, major, minor) = library.read_two_numbers(c"nvrtcVersion")?;
        if status != 0 {
            return Err(format!("nvrtcVersion failed with status {status}"));
        }
        // SAFETY: each of NVRTC's functions has the signature of the field it goes to (nvrtc.h).
        unsafe {
            use std::mem::transmute;
            Ok(Compiler {
                version: (major, minor),
                create: transmute::<*mut c_void, Create>(library.symbol(c"nvrtcCreateProgram")?),
                compile: transmute::<*mut c_void, Compile>(library.symbol(c"nvrtcCompileProgram")?),
                size_of: [
                    transmute::<*mut c_void, SizeOf>(library.symbol(c"nvrtcGetProgramLogSize")?),
                    transmute::<*mut c_void, SizeOf>(library.symbol(c"nvrtcGetCUBINSize")?),
                ],
                copy: [
                    transmute::<*mut c_void, Copy>(library.symbol(c"nvrtcGetProgramLog")?),
                    transmute::<*mut c_void, Copy>(library.symbol(c"nvrtcGetCUBIN")?),
                ],
                destroy: transmute::<*mut c_void, Destroy>(library.symbol(c"nvrtcDestroyProgram")?),
            })
        }
    }

    /// `13.0`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// Compiles a source for an architecture such as `sm_90a`; `more` are further options.
    ///
    /// # Errors
    /// What the compiler said.
    pub fn compile(&self, source: &Source, architecture: &str, more: &[&str]) -> Result<Compiled, String> {
        let more = more.iter().map(|option| (*option).to_owned());
        let all: Vec<String> = options(architecture).into_iter().chain(more).collect();
        self.compile_with(source, &all, architecture)
    }

    /// The same with these options alone, which are those of `architecture`.
    ///
    /// # Errors
    /// What the compiler said.
    pub fn compile_with(&self, source: &Source, options: &[String], architecture: &str) -> Result<Compiled, String> {
        let text = CString::new(source.text()).map_err(|error| error.to_string())?;
        let name = CString::new(source.name).map_err(|error| error.to_string())?;
        let options: Vec<CString> = options
            .iter()
            .map(|option| CString::new(option.as_str()).map_err(|error| error.to_string()))
            .collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = ptr::null_mut();
        let status = (self.create)(&mut program, text.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null());
        if status != 0 {
            return Err(format!("{}: nvrtcCreateProgram failed with status {status}", source.name));
        }
        let status = (self.compile)(program, pointers.len() as c_int, pointers.as_ptr());
        let log = self.take(program, LOG).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
        let cubin = if status == 0 { self.take(program, CUBIN) } else { Err(format!("status {status}")) };
        (self.destroy)(&mut program);
        match cubin {
            Ok(cubin) => Ok(Compiled { cubin, log }),
            Err(error) => Err(format!("{} does not compile for {architecture} ({error}):\n{log}", source.name)),
        }
    }

    fn take(&self, program: Program, which: usize) -> Result<Vec<u8>, String> {
        let mut size = 0;
        let status = (self.size_of[which])(program, &mut size);
        if status != 0 {
            return Err(format!("status {status}"));
        }
        let mut bytes = vec![0u8; size];
        let status = (self.copy[which])(program, bytes.as_mut_ptr().cast());
        if status == 0 { Ok(bytes) } else { Err(format!("status {status}")) }
    }

    /// The same from the cache, or compiled and put there, with a sentence if what was there was damaged. A cache that cannot be read
    /// or written only costs time.
    ///
    /// # Errors
    /// As for [`Compiler::compile`].
    pub(crate) fn cached(&self, source: &Source, architecture: &str) -> Result<(Vec<u8>, Option<String>), String> {
        let mut hash = Sha256::new();
        for part in [source.text().as_str(), &options(architecture).join(" "), &self.version()] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let key: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let path = cache_directory().map(|directory| directory.join(format!("{key}.cubin")));
        let mut damaged = None;
        if let Some((path, bytes)) = path.as_ref().and_then(|path| Some((path, fs::read(path).ok()?))) {
            match unsealed(&bytes) {
                Some(cubin) => return Ok((cubin, None)),
                None => damaged = Some(format!("{} was damaged: {} was compiled again", path.display(), source.name)),
            }
        }
        let cubin = self.compile(source, architecture, &[])?.cubin;
        if let Some(path) = path {
            let _ = keep(&path, &cubin);
        }
        Ok((cubin, damaged))
    }
}

fn options(architecture: &str) -> Vec<String> {
    ["--std=c++17", "-default-device", "--generate-line-info"]
        .into_iter()
        .map(str::to_owned)
        .chain([format!("--gpu-architecture={architecture}")])
        .collect()
}

fn cache_directory() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    base.is_absolute().then(|| base.join("hourglass/cubins"))
}

/// The file begins with the digest of what follows, so that a damaged one is compiled again.
fn unsealed(bytes: &[u8]) -> Option<Vec<u8>> {
    let (digest, cubin) = bytes.split_at_checked(32)?;
    (Sha256::digest(cubin).as_slice() == digest).then(|| cubin.to_vec())
}

/// Written beside and renamed, so that others see all of it or nothing; several may do so at once, in other processes or in this one.
fn keep(path: &Path, cubin: &[u8]) -> std::io::Result<()> {
    static WRITTEN: AtomicU32 = AtomicU32::new(0);
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let number = WRITTEN.fetch_add(1, Relaxed);
    let beside = path.with_extension(format!("{}-{number}.part", std::process::id()));
    fs::write(&beside, [Sha256::digest(cubin).as_slice(), cubin].concat())?;
    fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_damaged_cache_entry_is_not_used() {
        let sealed = [Sha256::digest(b"code").as_slice(), b"code"].concat();
        assert_eq!(unsealed(&sealed).unwrap(), b"code");
        let mut damaged = sealed.clone();
        damaged[34] ^= 1;
        assert_eq!((unsealed(&damaged), unsealed(&sealed[..20])), (None, None));
    }

    #[test]
    fn whoever_reads_while_others_write_sees_all_of_it_or_nothing() {
        let folder = std::env::temp_dir().join(format!("hourglass-cubins-{}", std::process::id()));
        let (path, code) = (folder.join("deep/a.cubin"), vec![7_u8; 1 << 20]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20).for_each(|_| keep(&path, &code).unwrap()));
            }
            let mut seen = 0;
            while seen < 50 {
                if let Ok(bytes) = fs::read(&path) {
                    assert_eq!(unsealed(&bytes).as_deref(), Some(code.as_slice()));
                    seen += 1;
                }
            }
        });
        let left: Vec<_> = fs::read_dir(folder.join("deep")).unwrap().collect();
        assert_eq!(left.len(), 1, "nothing is left beside it");
        fs::remove_dir_all(&folder).unwrap();
    }
}
