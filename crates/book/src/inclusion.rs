//! What stands in double braces in a chapter, and what comes in its place: values, tables, figures and code.
//! Not here: how each of them is made (`value.rs`, `figure.rs`, `code.rs`); the syntax is told in `book/README.md`.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::code::{self, Wanted};
use crate::figure::Figures;
use crate::records::Records;
use crate::value;

/// What inclusions are made from.
pub(crate) struct Sources<'a> {
    pub(crate) root: &'a Path,
    pub(crate) records: &'a Records,
    pub(crate) figures: &'a Figures,
}

/// A chapter with everything in double braces replaced; the messages of what could not be, each with the line it stands in.
pub(crate) fn expand(sources: &Sources<'_>, chapter: &Path, text: &str) -> Result<String, Vec<String>> {
    let mut out = String::with_capacity(text.len());
    let mut faults = Vec::new();
    let mut rest = text;
    let mut drawn = 0;
    while let Some(at) = rest.find("{{") {
        let line = text[..text.len() - rest.len() + at].matches('\n').count() + 1;
        if let Some(before) = rest[..at].strip_suffix('\\') {
            out += before;
            out += "{{";
            rest = &rest[at + 2..];
            continue;
        }
        out += &rest[..at];
        let Some(end) = rest[at..].find("}}") else {
            faults.push(format!("{}:{line}: {{{{ is not closed", chapter.display()));
            rest = &rest[at + 2..];
            continue;
        };
        let inside = rest[at + 2..at + end].trim();
        match one(sources, chapter, inside, &mut drawn) {
            Ok(words) => out += &words,
            Err(why) => faults.push(format!("{}:{line}: {{{{{inside}}}}}: {why:#}", chapter.display())),
        }
        rest = &rest[at + end + 2..];
    }
    out += rest;
    if drawn > 0 {
        out += &crate::figure::script(chapter);
    }
    if faults.is_empty() { Ok(out) } else { Err(faults) }
}

fn one(sources: &Sources<'_>, chapter: &Path, inside: &str, drawn: &mut usize) -> Result<String> {
    let (kind, given) = inside.split_once(char::is_whitespace).unwrap_or((inside, ""));
    match kind {
        "value" => value::words(sources.records, given.trim()),
        "table" => table(sources.records, &words(given)?),
        "figure" => {
            *drawn += 1;
            sources.figures.place(sources.records, chapter, &words(given)?)
        }
        "code" => shown(sources.root, &words(given)?),
        _ => bail!("'{kind}' is no inclusion: expected value, table, figure or code"),
    }
}

/// Words apart by spaces; those in quotes are one.
fn words(given: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    for (index, part) in given.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    if given.matches('"').count() % 2 == 1 {
        bail!("a quotation is not closed");
    }
    Ok(words)
}

/// What a verb prints for a record; with `from "WORDS"`, from the line that holds them to the next empty one.
fn table(records: &Records, given: &[String]) -> Result<String> {
    let (name, from) = match given {
        [name] => (name, None),
        [name, word, from] if word == "from" => (name, Some(from)),
        _ => bail!("expected RECORD, or RECORD from \"WORDS\""),
    };
    let path = records.path(name)?;
    records.value(name)?;
    let bytes = std::fs::read(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
    let text = hourglass::handbook::table(&records.shown(&path).display().to_string(), &bytes)?;
    let text = match from {
        None => text,
        Some(from) => {
            let lines = text.lines().skip_while(|line| !line.contains(from.as_str()));
            let part: Vec<&str> = lines.take_while(|line| !line.trim().is_empty()).collect();
            if part.is_empty() {
                bail!("no line of the table has \"{from}\"; it is\n{text}");
            }
            part.join("\n")
        }
    };
    Ok(format!("```text\n{}\n```", text.trim_end()))
}

/// Code of a file, with where it stands.
fn shown(root: &Path, given: &[String]) -> Result<String> {
    let (path, wanted) = match given {
        [path, item] => (path, Wanted { item: Some(item), lines: None }),
        [path, from, first, to, last] if (from.as_str(), to.as_str()) == ("from", "to") => {
            (path, Wanted { item: None, lines: Some((first, last)) })
        }
        [path, item, from, first, to, last] if (from.as_str(), to.as_str()) == ("from", "to") => {
            (path, Wanted { item: Some(item), lines: Some((first, last)) })
        }
        _ => bail!("expected PATH ITEM, PATH from \"WORDS\" to \"WORDS\", or both"),
    };
    let text = std::fs::read_to_string(root.join(path)).with_context(|| format!("{path}: cannot be read"))?;
    let found = code::excerpt(&text, &wanted).with_context(|| path.clone())?;
    let language = if path.ends_with(".rs") { "rust,ignore" } else { "text" };
    Ok(format!("[`{path}`](repo:{path}), from line {}:\n\n```{language}\n{}\n```", found.line, found.text.trim_end()))
}
