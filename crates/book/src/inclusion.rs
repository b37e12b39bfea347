//! What stands in double braces in a chapter, and what comes in its place: values, tables, figures, code, source lines.
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
        "expect" => value::expect(sources.records, given.trim()).map(|()| String::new()),
        "line" => line(sources, &words(given)?),
        "table" => table(sources.records, &words(given)?),
        "figure" => {
            *drawn += 1;
            sources.figures.place(sources.records, chapter, &words(given)?)
        }
        "code" => shown(sources.root, &words(given)?),
        _ => bail!("'{kind}' is no inclusion: expected value, expect, table, figure, code or line"),
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

/// What a verb prints for a record; with `from "WORDS"`, from the line that holds them to the next empty one, or with `to "WORDS"`
/// to before the next that holds those.
fn table(records: &Records, given: &[String]) -> Result<String> {
    let (name, part) = match given {
        [name] => (name, None),
        [name, from, first] if from == "from" => (name, Some((first, None))),
        [name, from, first, to, last] if (from.as_str(), to.as_str()) == ("from", "to") => {
            (name, Some((first, Some(last))))
        }
        _ => bail!("expected RECORD, RECORD from \"WORDS\", or RECORD from \"WORDS\" to \"WORDS\""),
    };
    let path = records.path(name)?;
    records.value(name)?;
    let bytes = std::fs::read(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
    let text = hourglass::handbook::table(&records.shown(&path).display().to_string(), &bytes)?;
    let shown = match part {
        None => text,
        Some((first, last)) => lines_of(&text, first, last.map(String::as_str))?,
    };
    Ok(format!("```text\n{}\n```", shown.trim_end()))
}

/// The lines of `text` from the first that holds `first` to before the next that holds `last`, or that is empty.
fn lines_of(text: &str, first: &str, last: Option<&str>) -> Result<String> {
    let mut lines = text.lines().skip_while(|line| !line.contains(first));
    let Some(begin) = lines.next() else { bail!("no line of the table has \"{first}\"; it is\n{text}") };
    let ends = |line: &str| last.map_or(line.trim().is_empty(), |last| line.contains(last));
    let mut found = vec![begin];
    for line in lines {
        if ends(line) {
            return Ok(found.join("\n"));
        }
        found.push(line);
    }
    match last {
        Some(last) => bail!("after \"{first}\" no line of the table has \"{last}\"; it is\n{text}"),
        None => Ok(found.join("\n")),
    }
}

/// The source line that a row of a record names, as the checkout has it; with `holds "WORDS"` it must have them.
fn line(sources: &Sources<'_>, given: &[String]) -> Result<String> {
    let (place, holds) = match given {
        [place] => (place, None),
        [place, holds, wanted] if holds == "holds" => (place, Some(wanted)),
        _ => bail!("expected RECORD:/POINTER, or RECORD:/POINTER holds \"WORDS\""),
    };
    let (file, line) = value::source_line(sources.records, place)?;
    let text = std::fs::read_to_string(sources.root.join(&file)).with_context(|| format!("{file}: cannot be read"))?;
    let found = text.lines().nth(line - 1).with_context(|| format!("{file} has no line {line}"))?.trim();
    match holds {
        Some(wanted) if !found.contains(wanted.as_str()) => {
            bail!("the words around it suppose \"{wanted}\" in {file}:{line}, and it is {found}: say it in another way")
        }
        _ => Ok(format!("`{found}`")),
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_part_of_a_table_ends_at_words_or_at_an_empty_line() {
        let text = "a\nb one\n  c\n\nd\n";
        assert_eq!(lines_of(text, "one", None).unwrap(), "b one\n  c");
        assert_eq!(lines_of(text, "b", Some("d")).unwrap(), "b one\n  c\n");
        assert_eq!(lines_of(text, "d", None).unwrap(), "d");
        assert!(lines_of(text, "x", None).unwrap_err().to_string().contains("\"x\""));
        assert!(lines_of(text, "d", Some("a")).unwrap_err().to_string().contains("\"a\""));
    }

    #[test]
    fn words_in_quotes_are_one() {
        assert_eq!(words("a \"b c\"  d").unwrap(), ["a", "b c", "d"]);
        assert!(words("a \"b").is_err());
    }
}
