//! A shared library opened by name at run time, and the few calls that ask it for its version and devices.
//! What the answers mean is in `availability.rs`.

#![allow(unsafe_code, reason = "dlopen, dlsym and calls through the addresses they give")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// An open library. It is never closed: GPU drivers start threads that outlive a `dlclose`.
pub(crate) struct Library {
    handle: *mut c_void,
    pub(crate) name: &'static str,
}

impl Library {
    /// The first of `names` that the dynamic loader finds.
    ///
    /// # Errors
    /// The loader's message for the first name.
    pub(crate) fn open(names: &[&'static CStr]) -> Result<Library, String> {
        let mut first = None;
        for name in names {
            // SAFETY: a valid string; the libraries asked for here have ordinary initialisers.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Ok(Library { handle, name: name.to_str().unwrap_or("a library") });
            }
            first.get_or_insert_with(last_error);
        }
        Err(first.unwrap_or_else(|| "no name to look for".to_owned()))
    }

    /// The library at this path; what it offers is found by libraries that are opened later, too.
    ///
    /// # Errors
    /// The loader's message.
    pub(crate) fn open_path(path: &Path) -> Result<Library, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: a valid string; the libraries asked for here have ordinary initialisers.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_GLOBAL) };
        if handle.is_null() { Err(last_error()) } else { Ok(Library { handle, name: "a library given by its path" }) }
    }

    /// The address of a function.
    pub(crate) fn symbol(&self, name: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: an open handle and a valid string.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if address.is_null() {
            return Err(format!("{} has no function {}", self.name, name.to_string_lossy()));
        }
        Ok(address)
    }

    /// Calls `status name(unsigned)`.
    pub(crate) fn call_with_flags(&self, name: &CStr, flags: u32) -> Result<c_int, String> {
        let address = self.symbol(name)?;
        // SAFETY: the caller names a function of this C signature.
        let function: extern "C" fn(u32) -> c_int = unsafe { std::mem::transmute(address) };
        Ok(function(flags))
    }

    /// Calls `status name(int *out)`; the status and what was written.
    pub(crate) fn read_number(&self, name: &CStr) -> Result<(c_int, c_int), String> {
        let address = self.symbol(name)?;
        // SAFETY: the caller names a function of this C signature (an `unsigned` out value has the same layout).
        let function: extern "C" fn(*mut c_int) -> c_int = unsafe { std::mem::transmute(address) };
        let mut out = 0;
        Ok((function(&mut out), out))
    }

    /// Calls `status name(int *out, int argument)`.
    pub(crate) fn read_number_of(&self, name: &CStr, argument: c_int) -> Result<(c_int, c_int), String> {
        let address = self.symbol(name)?;
        // SAFETY: as above.
        let function: extern "C" fn(*mut c_int, c_int) -> c_int = unsafe { std::mem::transmute(address) };
        let mut out = 0;
        Ok((function(&mut out, argument), out))
    }

    /// Calls `status name(int *out, int *out2)`.
    pub(crate) fn read_two_numbers(&self, name: &CStr) -> Result<(c_int, c_int, c_int), String> {
        let address = self.symbol(name)?;
        // SAFETY: as above.
        let function: extern "C" fn(*mut c_int, *mut c_int) -> c_int = unsafe { std::mem::transmute(address) };
        let (mut first, mut second) = (0, 0);
        Ok((function(&mut first, &mut second), first, second))
    }

    /// Calls `status name(char *out, int bytes, int argument)`; the text up to its first NUL.
    pub(crate) fn read_text_of(&self, name: &CStr, argument: c_int) -> Result<(c_int, String), String> {
        let address = self.symbol(name)?;
        // SAFETY: as above.
        let function: extern "C" fn(*mut c_char, c_int, c_int) -> c_int = unsafe { std::mem::transmute(address) };
        // The callee is told one byte less than there is, so that a NUL always ends the text.
        let mut text = [0u8; 257];
        let status = function(text.as_mut_ptr().cast(), text.len() as c_int - 1, argument);
        let text = CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy).unwrap_or_default();
        Ok((status, text.into_owned()))
    }
}

fn last_error() -> String {
    // SAFETY: the message, if any, is valid until the next call of the dl functions on this thread.
    unsafe {
        let message = libc::dlerror();
        if message.is_null() {
            "the dynamic loader gave no reason".to_owned()
        } else {
            CStr::from_ptr(message).to_string_lossy().into_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_a_message() {
        let error = Library::open(&[c"libhourglass-not-there.so.1", c"libnor-this.so.2"]).err().unwrap();
        assert!(error.contains("libhourglass-not-there.so.1"), "{error}");
    }

    #[test]
    fn a_function_that_is_not_there_is_a_message() {
        let library = Library::open(&[c"libhourglass-not-there.so.1", c"libc.so.6"]).unwrap();
        assert_eq!(library.name, "libc.so.6");
        let error = library.read_number(c"hourglass_has_no_such_function").unwrap_err();
        assert!(error.contains("libc.so.6") && error.contains("no_such_function"), "{error}");
    }

    #[test]
    fn a_function_that_is_there_is_called() {
        let library = Library::open(&[c"libc.so.6"]).unwrap();
        // int abs(int): the same signature as a status call with flags.
        assert_eq!(library.call_with_flags(c"abs", 17), Ok(17));
    }
}
