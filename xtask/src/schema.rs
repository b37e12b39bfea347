//! `cargo xtask schema`: the JSON Schema of each record, written to `schemas/` from the types of crate `record`.
//! Not here: the types, and reading a record.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// (file in `schemas/`, its content) of every record.
fn schemas() -> Result<Vec<(PathBuf, String)>> {
    let kinds = record::KINDS.iter().map(|kind| (kind.schema.replace('/', "-"), (kind.json_schema)()));
    // Lines of files that hold many, which are no record.
    let lines = [
        ("bench-child-1".to_owned(), record::bench::child_schema()),
        ("ledger-1".to_owned(), record::ledger::ledger_schema()),
    ];
    let written = kinds.chain(lines).map(|(name, schema)| {
        let text = serde_json::to_string_pretty(&schema).context("a schema is JSON")? + "\n";
        Ok((crate::root().join(format!("schemas/{name}.json")), text))
    });
    written.collect()
}

pub(crate) fn write() -> Result<()> {
    for (path, text) in schemas()? {
        let folder = path.parent().expect("a file in schemas/");
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("schema: wrote {}", path.display());
    }
    Ok(())
}

/// # Errors
/// A schema file that differs from the types, or is not there.
pub(crate) fn check() -> Result<()> {
    for (path, text) in schemas()? {
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        if found != text {
            bail!("{} does not fit the record types: run `cargo xtask schema` and commit the result", path.display());
        }
    }
    println!("schema: every file in schemas/ fits the record types");
    Ok(())
}
