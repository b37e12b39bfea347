//! Records that a flag names, read and checked; a void one is refused.
//! Not here: writing files (`output`).

use std::io::Read;
use std::path::Path;

use anyhow::Result;
use record::{MAX_RECORD_BYTES, Record};

use crate::failure::usage;

/// The bytes of a record file, at most one more than the largest record has.
///
/// # Errors
/// No regular file, or one that cannot be read.
pub(crate) fn bytes(flag: &str, path: &Path) -> Result<Vec<u8>> {
    let failed = |why: &str| usage(format!("{flag} {}: {why}", path.display()));
    let metadata = std::fs::metadata(path).map_err(|error| failed(&format!("cannot be read: {error}")))?;
    if !metadata.is_file() {
        return Err(failed("is no regular file; give a file written by --json-output"));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| failed(&format!("cannot be read: {error}")))?;
    let limit = MAX_RECORD_BYTES as u64 + 1;
    file.take(limit).read_to_end(&mut bytes).map_err(|error| failed(&format!("cannot be read: {error}")))?;
    Ok(bytes)
}

/// The record in a file.
///
/// # Errors
/// As for [`bytes`]; not such a record; one that is void by its own checks.
pub(crate) fn read<R: Record>(flag: &str, path: &Path) -> Result<R> {
    let name = format!("{flag} {}", path.display());
    let record: R = record::read(&name, &bytes(flag, path)?).map_err(|error| usage(error.to_string()))?;
    if let Some(check) = record.checks().iter().find(|check| !check.passed) {
        return Err(usage(format!(
            "{name}: the record is void: {}: expected {}, found {}; measure again",
            check.name, check.expected, check.found
        )));
    }
    Ok(record)
}
