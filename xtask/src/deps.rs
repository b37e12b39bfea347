//! `cargo xtask deps`: which crates of the workspace may depend on which. The map is ARCHITECTURE.md's.
//! Not here: dependencies on other people's crates.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// (crate, what it may depend on). Change ARCHITECTURE.md first, and say why there.
const EDGES: &[(&str, &[&str])] = &[
    ("hourglass-weights", &[]),
    ("hourglass-ops", &[]),
    ("hourglass-record", &[]),
    ("hourglass-ops-cuda", &["hourglass-ops"]),
    ("hourglass-lab", &["hourglass-ops"]),
    // The handbook shows what the program prints and draws.
    ("hourglass-book", &["hourglass", "hourglass-record"]),
    // A program like hourglass, with the days as its lab.
    ("hourglass-days", &["hourglass", "hourglass-ops"]),
    ("hourglass-model", &["hourglass-weights", "hourglass-ops"]),
    ("hourglass-probe", &["hourglass-model", "hourglass-ops", "hourglass-record", "hourglass-weights"]),
    (
        "hourglass",
        &[
            "hourglass-lab",
            "hourglass-model",
            "hourglass-ops",
            "hourglass-ops-cuda",
            "hourglass-probe",
            "hourglass-record",
            "hourglass-weights",
        ],
    ),
    // The schemas are made from the record types.
    ("xtask", &["hourglass-record"]),
];

pub(crate) fn run() -> Result<()> {
    let output = crate::cargo()
        .args(["metadata", "--format-version=1", "--no-deps"])
        .output()
        .context("cannot start cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata: not JSON")?;
    let faults = faults(&metadata).context("cargo metadata: not of the expected form")?;
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    println!("deps: {} crates, every edge is in the map", EDGES.len());
    Ok(())
}

/// One sentence per edge or crate that the map does not have; None for JSON that is not cargo's.
fn faults(metadata: &Value) -> Option<Vec<String>> {
    let packages = metadata["packages"].as_array()?;
    let ours: BTreeSet<&str> = packages.iter().map(|package| package["name"].as_str()).collect::<Option<_>>()?;
    let mut faults = Vec::new();
    for package in packages {
        let name = package["name"].as_str()?;
        let Some((_, allowed)) = EDGES.iter().find(|(from, _)| *from == name) else {
            faults.push(format!(
                "crate {name} is not in the map: add it to ARCHITECTURE.md with its invariant, then to xtask/src/deps.rs"
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array()? {
            let to = dependency["name"].as_str()?;
            // A crate's tests may use what its code may not.
            let in_tests = dependency["kind"].as_str() == Some("dev");
            if ours.contains(to) && !in_tests && !allowed.contains(&to) {
                faults.push(format!(
                    "{name} -> {to} is not an edge of the map: expected {}; move the code, or change ARCHITECTURE.md \
                     first and say why there",
                    if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") }
                ));
            }
        }
    }
    Some(faults)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use serde_json::json;

    #[test]
    fn an_edge_outside_the_map_is_named() {
        let metadata = json!({"packages": [
            {"name": "hourglass-ops", "dependencies": [{"name": "hourglass-weights", "kind": null}, {"name": "half", "kind": null}]},
            {"name": "hourglass-weights", "dependencies": [{"name": "hourglass-ops", "kind": "dev"}]},
            {"name": "hourglass-new", "dependencies": []},
        ]});
        let faults = faults(&metadata).unwrap();
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains("hourglass-ops -> hourglass-weights"), "{faults:?}");
        assert!(faults[1].contains("hourglass-new"), "{faults:?}");
    }

    #[test]
    fn the_map_has_no_cycle() {
        let mut done: BTreeSet<&str> = BTreeSet::new();
        while done.len() < EDGES.len() {
            let ready: Vec<_> = EDGES
                .iter()
                .filter(|(name, to)| !done.contains(name) && to.iter().all(|to| done.contains(to)))
                .map(|(name, _)| *name)
                .collect();
            assert!(!ready.is_empty(), "a cycle among what is left after {done:?}");
            done.extend(ready);
        }
    }
}
