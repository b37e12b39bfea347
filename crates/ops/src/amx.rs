//! The tile unit (AMX) as a resource: the operating system's leave to use it, and the shape that tiles are given.
//! Not here: instructions on tiles (`operators/tile_walk.rs`, `ceilings/amx.rs`).

#![allow(unsafe_code, reason = "leave to use tiles is a system call")]

use std::sync::OnceLock;

/// `arch_prctl` request for leave to use an optional part of the processor's state.
const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
/// The part that holds the tiles' contents.
const TILE_DATA: libc::c_long = 18;

/// Rows of a tile, and bytes of a row: the largest there are.
pub(crate) const ROWS: usize = 16;
pub(crate) const ROW_BYTES: usize = 64;
pub(crate) const TILE_BYTES: usize = ROWS * ROW_BYTES;

/// Asks the operating system, once per process, for leave to use tiles. Only where the processor has them.
///
/// # Errors
/// Why it was refused.
pub(crate) fn permission() -> Result<(), String> {
    static ANSWER: OnceLock<Result<(), String>> = OnceLock::new();
    let ask = || {
        // SAFETY: the request changes what this process may do and touches no memory of it.
        let answer = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) };
        if answer == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        Err(format!("the operating system refuses the use of tiles: {error}"))
    };
    ANSWER.get_or_init(ask).clone()
}

/// What `ldtilecfg` reads: eight tiles of 16 rows by 64 bytes.
#[repr(C, align(64))]
pub(crate) struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

pub(crate) static EIGHT_TILES: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

const _: () = assert!(size_of::<Configuration>() == 64 && std::mem::offset_of!(Configuration, rows) == 48);
