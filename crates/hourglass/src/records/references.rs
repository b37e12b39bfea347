//! Which records another record, or the ledger, rests on: the digests in it.
//! Not here: what follows from that for exporting and removing.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use record::EvidenceRef;
use serde_json::Value;

/// Every digest by which `value` refers to a record: of each object that is an [`EvidenceRef`], wherever it stands.
pub(crate) fn of(value: &Value) -> BTreeSet<String> {
    let mut digests = BTreeSet::new();
    collect(value, &mut digests);
    digests
}

/// The digests of every line of the ledger; none if there is no ledger.
///
/// # Errors
/// A ledger that cannot be read, or a line that is not JSON: what it refers to is then not known.
pub(crate) fn of_ledger(path: &Path) -> Result<BTreeSet<String>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error).with_context(|| format!("{}: the ledger cannot be read", path.display())),
    };
    let mut digests = BTreeSet::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let value: Value = serde_json::from_str(line).with_context(|| {
            format!("{}, line {}: not JSON, so what the ledger rests on is not known", path.display(), number + 1)
        })?;
        collect(&value, &mut digests);
    }
    Ok(digests)
}

fn collect(value: &Value, digests: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            let text = |key: &str| fields.get(key).and_then(Value::as_str);
            if let (Some(schema), Some(file), Some(sha256)) = (text("schema"), text("file"), text("sha256"))
                && let Ok(reference) = EvidenceRef::by_digest(schema, file, sha256)
            {
                digests.insert(reference.sha256().to_owned());
            }
            fields.values().for_each(|field| collect(field, digests));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, digests)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn references_are_found_wherever_they_stand() {
        let reference = EvidenceRef::of("find/1", "find.json", b"abc");
        let value =
            serde_json::json!({"a": [{"evidence": [reference]}], "sha256": "not one", "schema": "x/1", "file": "y"});
        assert_eq!(of(&value).into_iter().collect::<Vec<_>>(), [reference.sha256()]);
        let dir = tempfile::tempdir().unwrap();
        let ledger = dir.path().join("ledger.jsonl");
        assert!(of_ledger(&ledger).unwrap().is_empty());
        std::fs::write(&ledger, format!("{value}\n\n{value}\n")).unwrap();
        assert_eq!(of_ledger(&ledger).unwrap(), of(&value));
        std::fs::write(&ledger, "{}\n{half").unwrap();
        assert!(format!("{:#}", of_ledger(&ledger).unwrap_err()).contains("line 2"));
    }
}
