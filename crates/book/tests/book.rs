//! The handbook of this repository builds: every record, value, figure, excerpt and link in it is there; what is not is named.
//! Not here: whether a figure draws, which takes a browser (`figures.rs`).

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

use book::{Options, build};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

#[test]
fn the_handbook_builds() {
    let out = tempfile::tempdir().unwrap();
    let summary = build(&Options { root: root(), records: None, out: out.path().join("book") }).unwrap();
    assert!(summary.chapters >= 8 && summary.figures >= 5 && summary.links >= 50, "{summary:?}");
    let first = std::fs::read_to_string(out.path().join("book/index.html")).unwrap();
    assert!(!first.contains("{{") && first.contains("Hourglass"));
}

/// A small book with one chapter.
fn small(chapter: &str) -> Result<book::Summary, String> {
    let root = tempfile::tempdir().unwrap();
    let place = root.path().join("book/src");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(root.path().join("book/book.toml"), "[book]\ntitle = 'x'\n[output.html]\ninput-404 = ''\n").unwrap();
    std::fs::write(root.path().join("book/records.toml"), "folder = 'none'\n[records]\n").unwrap();
    std::fs::write(place.join("SUMMARY.md"), "# Summary\n\n- [One](one.md)\n").unwrap();
    std::fs::write(place.join("one.md"), format!("# One\n\n{chapter}\n")).unwrap();
    std::fs::write(root.path().join("a.rs"), "fn two() -> u8 {\n    2\n}\n").unwrap();
    let options = Options { root: root.path().to_path_buf(), records: None, out: root.path().join("out") };
    build(&options).map_err(|why| format!("{why:#}"))
}

#[test]
fn a_chapter_may_include_code_and_escape_braces() {
    let summary = small("{{code a.rs two}} and \\{{value}} [there](repo:a.rs) [up](#one)").unwrap();
    assert_eq!((summary.chapters, summary.figures), (1, 0));
}

#[test]
fn what_resolves_to_nothing_fails_and_is_named() {
    for (chapter, part) in [
        ("{{value clock:/a | s}}", "one.md:3: {{value clock:/a | s}}: record 'clock': there is no file clock in"),
        ("{{figure clock bench.json}}", "there is no file bench.json"),
        ("{{table bench.json}}", "there is no file bench.json"),
        ("{{code a.rs three}}", "no item is called 'three'"),
        ("{{code b.rs two}}", "b.rs: cannot be read"),
        ("{{vaule x}}", "'vaule' is no inclusion"),
        ("{{value x", "is not closed"),
        ("{{expect 2 < 1}}", "suppose this"),
        ("{{line lines.json:/places/0}}", "there is no file lines.json"),
        ("```rust\nfn main() {}\n```", "Rust is included from the sources"),
        ("[x](two.md)", "the book has no such page"),
        ("[x](#two)", "the page has no such heading"),
        ("[x](repo:c.rs)", "the repository has no such file"),
    ] {
        let fault = small(chapter).unwrap_err();
        assert!(fault.contains(part), "{chapter}: {fault}");
    }
}

#[test]
fn every_fault_is_named_at_once() {
    let fault = small("{{value a:/b | s}}\n\n{{code a.rs three}}").unwrap_err();
    assert!(fault.starts_with("2 faults") && fault.contains("one.md:5"), "{fault}");
}
