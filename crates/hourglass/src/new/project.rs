//! A crate of one's own outside the repository: the same program, with its own registry.
//! Not here: what goes into it afterwards (`stub.rs`).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Written;
use crate::failure::usage;

const TEMPLATE: [(&str, &str); 5] = [
    ("Cargo.toml", include_str!("template/Cargo.toml.txt")),
    (".cargo/config.toml", include_str!("template/config.toml.txt")),
    (".gitignore", "/target\n"),
    ("src/main.rs", include_str!("template/main.rs.txt")),
    ("src/lib.rs", include_str!("template/lib.rs.txt")),
];

/// Makes `directory`, whole or not at all.
///
/// # Errors
/// It exists, its name is no crate's, or the repository was not found.
pub(super) fn write(directory: &Path, checkout: Option<&Path>) -> Result<Written> {
    let shown = directory.display();
    if directory.symlink_metadata().is_ok() {
        return Err(usage(format!("{shown}: already exists and is never overwritten; choose another directory")));
    }
    let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    super::check_name(&name)?;
    if ["hourglass", "hourglass-ops", "hourglass-model", "ops", "model", "test", "core", "std"].contains(&name.as_str())
    {
        return Err(usage(format!("{shown}: a crate named '{name}' is in use already; choose another directory name")));
    }
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/"));
    let checkout = checkout.unwrap_or(built_from);
    let checkout = checkout
        .canonicalize()
        .ok()
        .filter(|root| root.join("crates/hourglass/Cargo.toml").is_file() && root.join("Cargo.lock").is_file())
        .ok_or_else(|| {
            usage(format!(
                "--checkout {}: expected the repository's root, with crates/hourglass and Cargo.lock in it",
                checkout.display()
            ))
        })?;
    let checkout = checkout.to_str().filter(|path| !path.contains(['"', '\\', '\n'])).ok_or_else(|| {
        usage("--checkout: the path of the repository has characters that Cargo.toml cannot hold; use a link to it")
    })?;
    let parent = match directory.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let cannot = || format!("{shown}: cannot be written");
    let parts = tempfile::Builder::new()
        .prefix(".new-project-")
        .tempdir_in(parent)
        .map_err(|error| usage(format!("{shown}: nothing can be written beside it ({error}); choose another place")))?;
    let made = parts.path().join(&name);
    for (file, text) in TEMPLATE {
        let path = made.join(file);
        std::fs::create_dir_all(path.parent().unwrap_or(&made)).with_context(cannot)?;
        let text = text.replace("@NAME@", &name).replace("@CRATE@", &name.replace('-', "_"));
        std::fs::write(&path, text.replace("@CHECKOUT@", checkout)).with_context(cannot)?;
    }
    // The versions that the repository is tested with.
    std::fs::copy(Path::new(checkout).join("Cargo.lock"), made.join("Cargo.lock")).with_context(cannot)?;
    std::fs::rename(&made, directory).with_context(cannot)?;
    let next = vec![
        format!("cd {shown}"),
        "cargo run --release -- new kernel rms_norm my-norm".to_owned(),
        "cargo test --release".to_owned(),
    ];
    Ok(Written { what: "project", name, file: PathBuf::from(directory), line: None, next })
}
