//! Sizes of this machine's second- and third-level caches, as the operating system tells them.
//! Not here: footprints that are measured (`measure.rs`); a virtual machine may be told sizes that it shares with others.

use std::fs;
use std::path::Path;

/// One level of cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CacheLevel {
    /// Of one instance.
    pub(super) bytes: u64,
    /// Processors that share an instance.
    pub(super) shared_by: u64,
}

impl CacheLevel {
    /// Level 2 or 3 of the first processor's data caches.
    ///
    /// # Errors
    /// What is missing, and where it was looked for.
    pub(super) fn of(level: u32) -> Result<CacheLevel, String> {
        read(Path::new("/sys/devices/system/cpu/cpu0/cache"), level)
    }

    /// What `threads` threads on as few instances as hold them have together.
    pub(super) fn together(self, threads: u64) -> u64 {
        self.bytes * threads.div_ceil(self.shared_by.max(1))
    }
}

fn read(folder: &Path, level: u32) -> Result<CacheLevel, String> {
    for index in 0..16 {
        let entry = folder.join(format!("index{index}"));
        let text = |name: &str| fs::read_to_string(entry.join(name)).map(|text| text.trim().to_owned());
        let (Ok(found), Ok(kind)) = (text("level"), text("type")) else { break };
        if found == level.to_string() && kind != "Instruction" {
            let (Ok(size), Ok(list)) = (text("size"), text("shared_cpu_list")) else { break };
            return match (bytes(&size), processors(&list)) {
                (Some(bytes), Some(shared_by)) => Ok(CacheLevel { bytes, shared_by }),
                _ => Err(format!("{}: size '{size}' and processors '{list}' are not as expected", entry.display())),
            };
        }
    }
    Err(format!("{} tells of no level-{level} cache", folder.display()))
}

/// `1024K`, `32M`.
fn bytes(size: &str) -> Option<u64> {
    let digits = size.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(size.len());
    let factor = match &size[digits..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    size[..digits].parse::<u64>().ok()?.checked_mul(factor).filter(|bytes| *bytes > 0)
}

/// How many processors a list like `0-3,8` names.
fn processors(list: &str) -> Option<u64> {
    list.split(',').try_fold(0u64, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u64>().ok()?, last.trim().parse::<u64>().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn sizes_and_lists_are_read() {
        assert_eq!((bytes("1024K"), bytes("32M"), bytes("4096")), (Some(1 << 20), Some(32 << 20), Some(4096)));
        assert_eq!((bytes("x"), bytes("12Q"), bytes(""), bytes("99999999999G")), (None, None, None, None));
        assert_eq!(
            (processors("0"), processors("0-3,8"), processors("3-1"), processors("")),
            (Some(1), Some(5), None, None)
        );
    }

    #[test]
    fn more_threads_than_share_an_instance_have_more_of_them() {
        let level = CacheLevel { bytes: 100, shared_by: 4 };
        assert_eq!([1, 4, 5, 16].map(|threads| level.together(threads)), [100, 100, 200, 400]);
    }

    #[test]
    fn a_missing_folder_says_so() {
        assert!(read(Path::new("/nonexistent"), 2).unwrap_err().contains("level-2"));
    }
}
