//! The program text that samples are in: every mapped file with its build id and hash.
//! Not here: functions and lines.

use crate::sampler::RawSample;
use object::Object;
use record::Known;
use record::capture::raw::RawExecutable;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Executable mappings of `/proc/self/maps`: first address, address behind, what is mapped (may be empty).
fn mappings(maps: &str) -> Vec<(u64, u64, &str)> {
    let one = |line: &'_ str| -> Option<(u64, u64, usize)> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        // Permissions, offset, device, inode, then the name.
        let permissions = rest.split_whitespace().next()?;
        let name = rest.splitn(5, ' ').nth(4)?.trim_start();
        let name_at = line.len() - name.len();
        let place = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?, name_at);
        permissions.contains('x').then_some(place)
    };
    maps.lines().filter_map(|line| one(line).map(|(start, end, name_at)| (start, end, &line[name_at..]))).collect()
}

/// The files that addresses of `samples` are in, by path.
pub(super) fn executables(maps: &str, samples: &[RawSample]) -> Vec<RawExecutable> {
    let mappings = mappings(maps);
    let addresses: BTreeSet<u64> = samples
        .iter()
        .flat_map(|sample| &sample.stack)
        .filter(|address| !address.kernel)
        .map(|address| address.at)
        .collect();
    let touched = |(start, end, _): &&(u64, u64, &str)| addresses.range(*start..*end).next().is_some();
    let paths: BTreeSet<&str> =
        mappings.iter().filter(touched).map(|(_, _, name)| *name).filter(|name| !name.is_empty()).collect();
    let own = fs::read_link("/proc/self/exe").ok();
    let describe = |path: &str| describe(path, own.as_deref().is_some_and(|own| own == Path::new(path)));
    paths.into_iter().map(describe).collect()
}

fn describe(path: &str, program: bool) -> RawExecutable {
    // The program's own file is reachable also after it was replaced or removed.
    let bytes = fs::read(if program { "/proc/self/exe" } else { path });
    let why = match &bytes {
        _ if path.starts_with('[') => "it is no file: the operating system maps it".to_owned(),
        Err(error) => format!("{path} cannot be read: {error}"),
        Ok(_) => "it has no build id".to_owned(),
    };
    let missing = || Known::unavailable(why.clone(), "keep the file where it was loaded from");
    match bytes {
        Ok(bytes) => RawExecutable {
            path: path.to_owned(),
            build_id: build_id(&bytes).map_or_else(
                || Known::unavailable(why.as_str(), "link it with --build-id, as compilers do by default"),
                Known::Is,
            ),
            sha256: Known::Is(hex(&Sha256::digest(&bytes))),
            bytes: Known::Is(bytes.len() as u64),
            program,
        },
        Err(_) => RawExecutable {
            path: path.to_owned(),
            build_id: missing(),
            sha256: missing(),
            bytes: Known::unavailable(why.as_str(), "keep the file where it was loaded from"),
            program,
        },
    }
}

fn build_id(file: &[u8]) -> Option<String> {
    object::File::parse(file).ok()?.build_id().ok()?.map(hex)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::sampler::Address;

    #[test]
    fn mappings_are_read_as_documented() {
        let maps = "55d0c0000000-55d0c0100000 r--p 00000000 fe:01 42      /opt/a b/hourglass\n\
            55d0c0100000-55d0c0200000 r-xp 00100000 fe:01 42      /opt/a b/hourglass\n\
            7f0000000000-7f0000001000 r-xp 00000000 00:00 0 \n\
            7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0      [vdso]\nnonsense\n";
        let wanted = [
            (0x55d0_c010_0000, 0x55d0_c020_0000, "/opt/a b/hourglass"),
            (0x7f00_0000_0000, 0x7f00_0000_1000, ""),
            (0x7ffc_0000_0000, 0x7ffc_0000_2000, "[vdso]"),
        ];
        assert_eq!(mappings(maps), wanted);
    }

    /// The linker's own tool says which build id this test's binary has; here it is enough that the samples' file is named.
    #[test]
    fn this_program_is_found_by_an_address_of_it() {
        let at = describe as fn(&str, bool) -> RawExecutable as usize as u64;
        let stack = vec![Address { at, kernel: false, returns: false }];
        let sample = RawSample { at_ns: 1, thread: 1, weight_ns: 1, stack };
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let found = executables(&maps, &[sample]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].program && found[0].bytes.known().is_some());
        assert!(found[0].build_id.known().is_none_or(|id| id.len() >= 16), "{found:?}");
        assert!(executables(&maps, &[]).is_empty());
    }

    #[test]
    fn what_is_no_file_says_so() {
        let vdso = describe("[vdso]", false);
        assert!(vdso.sha256.missing().unwrap().unavailable.contains("no file"));
        assert!(describe("/nonexistent/x.so", false).build_id.missing().unwrap().unavailable.contains("/nonexistent"));
    }
}
