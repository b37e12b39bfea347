//! The handbook's builder: mdBook's pages from `book/src`, with figures, tables, values and code put in from records and sources.
//! Not here: the chapters (`book/src`), and how anything is drawn or printed (`hourglass::handbook`).

mod code;
mod figure;
mod inclusion;
mod links;
mod pointer;
mod records;
mod unit;
mod value;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use mdbook_driver::MDBook;
use mdbook_driver::book::BookItem;

use figure::Figures;
use inclusion::Sources;
use records::Records;

/// What to build.
pub struct Options {
    /// The repository.
    pub root: PathBuf,
    /// The folder of records, if it is not the one of `book/records.toml`.
    pub records: Option<PathBuf>,
    /// The folder that the pages go to; what is in it is replaced.
    pub out: PathBuf,
}

/// What a finished book holds.
#[derive(Debug)]
pub struct Summary {
    pub chapters: usize,
    pub figures: usize,
    pub links: usize,
}

/// Builds the book.
///
/// # Errors
/// An inclusion that resolves to nothing, a chapter that is not in `SUMMARY.md` or not there, a Rust block that is no code of
/// the repository, a link that leads nowhere: all that there are, each with its chapter.
pub fn build(options: &Options) -> Result<Summary> {
    let root = options.root.canonicalize().with_context(|| format!("{}: no such folder", options.root.display()))?;
    let mut book = MDBook::load(root.join("book")).context("book/")?;
    book.config.build.build_dir = std::path::absolute(&options.out)?;
    // Links and inclusions are ours: mdBook's own would leave what they do not find as it is, with a warning.
    book.config.build.use_default_preprocessors = false;
    let out = book.config.build.build_dir.clone();
    let chapters: Vec<PathBuf> = book.iter().filter_map(source).collect();
    refuse(&unlisted(&root.join("book/src"), &chapters)?)?;
    let (records, figures) = (Records::open(&root, options.records.as_deref())?, Figures::default());
    let sources = Sources { root: &root, records: &records, figures: &figures };
    let mut faults = Vec::new();
    book.book.for_each_chapter_mut(|chapter| {
        let Some(path) = chapter.source_path.clone() else { return };
        faults.extend(written_code(&path, &chapter.content));
        match inclusion::expand(&sources, &path, &chapter.content) {
            Ok(text) => chapter.content = text,
            Err(found) => faults.extend(found),
        }
    });
    refuse(&faults)?;
    book.build().context("mdBook")?;
    figures.write(&out)?;
    let (links, faults) = links::settle(&root, &out)?;
    refuse(&faults)?;
    Ok(Summary { chapters: chapters.len(), figures: figures.count(), links })
}

/// A sentence for each Rust block that was written into a chapter: nobody would notice when the code moves on.
fn written_code(chapter: &Path, text: &str) -> Vec<String> {
    let lines = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("```rust"));
    let said = |(index, _): (usize, &str)| {
        format!("{}:{}: Rust is included from the sources: {{{{code PATH ITEM}}}}", chapter.display(), index + 1)
    };
    lines.map(said).collect()
}

/// # Errors
/// There are faults; the message has one a line.
fn refuse(faults: &[String]) -> Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    let count = if faults.len() == 1 { "1 fault".to_owned() } else { format!("{} faults", faults.len()) };
    bail!("{count} in the handbook:\n{}", faults.join("\n"));
}

fn source(item: &BookItem) -> Option<PathBuf> {
    match item {
        BookItem::Chapter(chapter) => chapter.source_path.clone(),
        _ => None,
    }
}

/// A sentence for each page that `SUMMARY.md` does not list, so that nobody would see it.
fn unlisted(folder: &Path, chapters: &[PathBuf]) -> Result<Vec<String>> {
    let mut files = BTreeSet::new();
    pages(folder, Path::new(""), &mut files)?;
    let listed: BTreeSet<&Path> = chapters.iter().map(PathBuf::as_path).collect();
    let lost =
        files.iter().filter(|file| !listed.contains(file.as_path()) && file.as_path() != Path::new("SUMMARY.md"));
    Ok(lost.map(|file| format!("{}: SUMMARY.md does not list it", file.display())).collect())
}

fn pages(folder: &Path, from: &Path, files: &mut BTreeSet<PathBuf>) -> Result<()> {
    let here = folder.join(from);
    for entry in std::fs::read_dir(&here).with_context(|| format!("{}: cannot be listed", here.display()))? {
        let entry = entry?;
        let path = from.join(entry.file_name());
        if entry.path().is_dir() {
            pages(folder, &path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            files.insert(path);
        }
    }
    Ok(())
}
