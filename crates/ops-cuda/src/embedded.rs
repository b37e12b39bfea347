//! Kernels compiled when the program was built, for machines that have a driver and no compiler: an archive that `cargo xtask cubins`
//! makes, found by what they were compiled from, so that one of other sources is never used. Without it the program needs NVRTC.
//! Not here: compiling at run time (`compiler.rs`).

use crate::sources::{ALL, Source};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::{self, Read, Write};

/// What kernels are compiled for ahead: each generation that the tests compile for.
pub const ARCHITECTURES: [&str; 5] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a"];

/// The archive, empty if the program was built without one.
const ARCHIVE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cubins.gz"));
/// No archive is larger; one that says so is damaged.
const MOST_BYTES: u64 = 256 << 20;
const KEY_BYTES: usize = 32;

type Key = [u8; KEY_BYTES];

/// Machine code by what it was compiled from.
pub struct Archive(HashMap<Key, Vec<u8>>);

/// What a kernel file is compiled from, for an architecture.
fn key(source: &Source, architecture: &str) -> Key {
    let mut hash = Sha256::new();
    for part in [source.text().as_str(), &options(architecture).join(" ")] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.finalize().into()
}

/// Without line information: it would double the archive, and a profiler's machine has a compiler.
pub fn options(architecture: &str) -> Vec<String> {
    ["--std=c++17", "-default-device"]
        .into_iter()
        .map(str::to_owned)
        .chain([format!("--gpu-architecture={architecture}")])
        .collect()
}

/// The embedded kernels for a GPU of this capability.
///
/// # Errors
/// None are embedded, for no such GPU, or of other sources: one sentence.
pub(crate) fn images(major: i32, minor: i32) -> Result<Vec<(&'static str, Vec<u8>)>, String> {
    if ARCHIVE.is_empty() {
        return Err("this build has no kernels compiled ahead".to_owned());
    }
    let architecture = nearest(major, minor).ok_or_else(|| {
        format!("none of this build's kernels compiled ahead is for compute capability {major}.{minor}")
    })?;
    let archive =
        Archive::read(ARCHIVE).map_err(|error| format!("the kernels compiled ahead cannot be read: {error}"))?;
    archive.images(architecture)
}

/// For which GPUs this build has kernels compiled ahead; why for none.
///
/// # Errors
/// As for what a GPU would get.
pub fn available() -> Result<String, String> {
    let of = |name: &'static str| {
        let digits = name.trim_start_matches("sm_").trim_end_matches('a').parse::<i32>().unwrap_or(0);
        images(digits / 10, digits % 10).map(|_| name)
    };
    Ok(ARCHITECTURES.into_iter().map(of).collect::<Result<Vec<_>, _>>()?.join(", "))
}

/// Code of a generation runs on its later members too, unless it uses instructions of one alone (`a`).
fn nearest(major: i32, minor: i32) -> Option<&'static str> {
    let number = |name: &str| name.trim_start_matches("sm_").parse::<i32>().ok();
    let capability = major * 10 + minor;
    let exact = ARCHITECTURES
        .into_iter()
        .find(|name| name.trim_start_matches("sm_").trim_end_matches('a') == capability.to_string());
    let earlier =
        ARCHITECTURES.into_iter().filter(|name| number(name).is_some_and(|own| own / 10 == major && own <= capability));
    exact.or_else(|| earlier.max_by_key(|name| number(name)))
}

impl Archive {
    /// An archive's own form: packed, entries of key, length and machine code.
    ///
    /// # Errors
    /// It is damaged.
    pub fn read(packed: &[u8]) -> io::Result<Archive> {
        let damaged = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the archive is damaged; build it again with `cargo xtask cubins`",
            )
        };
        let mut bytes = Vec::new();
        GzDecoder::new(packed).take(MOST_BYTES).read_to_end(&mut bytes)?;
        let (mut entries, mut rest) = (HashMap::new(), bytes.as_slice());
        while !rest.is_empty() {
            let (key, after) = rest.split_first_chunk::<KEY_BYTES>().ok_or_else(damaged)?;
            let (length, after) = after.split_first_chunk::<4>().ok_or_else(damaged)?;
            let (code, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(damaged)?;
            entries.insert(*key, code.to_vec());
            rest = after;
        }
        Ok(Archive(entries))
    }

    /// Packs every kernel file for every architecture, compiled by `compile(file, architecture)`.
    ///
    /// # Errors
    /// A file that does not compile.
    pub fn make(compile: impl Fn(&Source, &str) -> Result<Vec<u8>, String>) -> Result<Vec<u8>, String> {
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        for architecture in ARCHITECTURES {
            for source in ALL {
                let code = compile(source, architecture)?;
                let length = u32::try_from(code.len()).map_err(|_| format!("{}: {} bytes", source.name, code.len()))?;
                for part in [&key(source, architecture)[..], &length.to_le_bytes(), &code] {
                    packed.write_all(part).map_err(|error| error.to_string())?;
                }
            }
        }
        packed.finish().map_err(|error| error.to_string())
    }

    /// Every file's code.
    ///
    /// # Errors
    /// Files that are not in it: they were changed since it was made.
    pub fn images(&self, architecture: &str) -> Result<Vec<(&'static str, Vec<u8>)>, String> {
        let find = |source: &'static Source| {
            let code = self.0.get(&key(source, architecture)).cloned();
            code.map(|code| (source.name, code)).ok_or_else(|| {
                format!(
                    "{} was changed since the kernels were compiled ahead for {architecture}; build them again with `cargo xtask cubins`",
                    source.name
                )
            })
        };
        ALL.iter().map(find).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_gpu_gets_its_own_code_or_that_of_an_earlier_one_of_its_generation() {
        let found =
            [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0)].map(|(major, minor)| nearest(major, minor).unwrap());
        assert_eq!(found, ["sm_80", "sm_86", "sm_86", "sm_89", "sm_90a", "sm_100a"]);
        assert_eq!([(7, 5), (10, 3), (12, 0)].map(|(major, minor)| nearest(major, minor)), [None; 3]);
    }

    #[test]
    fn what_is_packed_is_found_and_what_is_damaged_or_missing_says_so() {
        let code = |source: &Source, architecture: &str| Ok(format!("{} {architecture}", source.name).into_bytes());
        let packed = Archive::make(code).unwrap();
        let images = Archive::read(&packed).unwrap().images("sm_90a").unwrap();
        assert_eq!(images.len(), ALL.len());
        assert!(images.iter().all(|(name, code)| *code == format!("{name} sm_90a").into_bytes()));
        assert!(Archive::read(&packed).unwrap().images("sm_120a").unwrap_err().contains("cargo xtask cubins"));
        assert!(Archive::read(&packed[..packed.len() / 2]).is_err());
        let mut short = GzEncoder::new(Vec::new(), Compression::fast());
        short.write_all(&[7; KEY_BYTES + 4]).unwrap();
        assert!(Archive::read(&short.finish().unwrap()).err().unwrap().to_string().contains("damaged"));
        assert!(Archive::make(|_, _| Err("no compiler".into())).is_err());
    }

    /// The archive that this build has, if it has one, is of these sources: a build with an old one would need a compiler after all.
    #[test]
    fn an_embedded_archive_is_of_these_sources() {
        if ARCHIVE.is_empty() {
            println!("skipped: built without kernels compiled ahead; `cargo xtask cubins` makes them");
            return;
        }
        let archive = Archive::read(ARCHIVE).unwrap();
        for architecture in ARCHITECTURES {
            archive.images(architecture).unwrap();
        }
    }
}
