//! Code in chapters: an item of a source file, or the lines of one, as the file has them now.
//! Not here: whether it is right; it is the code that is built and tested.

use anyhow::{Context, Result, bail};

/// Keywords before a name that begin an item.
const KEYWORDS: &[&str] = &["fn", "const", "static", "struct", "enum", "trait", "type", "mod", "macro_rules!"];
/// Words that may stand before such a keyword.
const BEFORE: &[&str] = &["pub", "pub(crate)", "pub(super)", "const", "unsafe", "extern", "\"C\""];

/// Some lines of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Excerpt {
    /// Of the first line; the first of a file is 1.
    pub(crate) line: usize,
    /// Without the indentation that all of it shares.
    pub(crate) text: String,
}

/// What is asked of a file.
#[derive(Debug, Default)]
pub(crate) struct Wanted<'a> {
    /// An item's name, or `impl ...` as it is written.
    pub(crate) item: Option<&'a str>,
    /// The first line that holds these words, and the next after it that holds those.
    pub(crate) lines: Option<(&'a str, &'a str)>,
}

/// The excerpt of a file's `text`: an item with its comment and attributes, and of that the lines from one to another.
///
/// # Errors
/// No such item or line; two items of one name.
pub(crate) fn excerpt(text: &str, wanted: &Wanted<'_>) -> Result<Excerpt> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut start, mut end) = match wanted.item {
        Some(name) => item(&lines, name)?,
        None => (0, lines.len()),
    };
    if let Some((from, to)) = wanted.lines {
        let at = |from: usize, words: &str| {
            (from..end).find(|at| lines[*at].contains(words)).with_context(|| format!("no line has \"{words}\""))
        };
        let first = at(start, from)?;
        (start, end) = (first, at(first, to)? + 1);
    }
    let shown = &lines[start..end];
    let indent = shown.iter().filter(|line| !line.trim().is_empty()).map(|line| indent(line)).min().unwrap_or(0);
    let text: Vec<&str> = shown.iter().map(|line| line.get(indent..).unwrap_or_default()).collect();
    Ok(Excerpt { line: start + 1, text: text.join("\n") })
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The lines of an item, its comment and attributes among them. The file is formatted: an item ends where a line of its own
/// indentation closes it.
fn item(lines: &[&str], name: &str) -> Result<(usize, usize)> {
    let mut begins = (0..lines.len()).filter(|at| names(lines[*at], name));
    let Some(line) = begins.next() else { bail!("no item is called '{name}'") };
    if let Some(other) = begins.next() {
        bail!("'{name}' is defined in lines {} and {}; choose by `from` and `to`", line + 1, other + 1);
    }
    let own = indent(lines[line]);
    let closes = |at: &usize| {
        let text = lines[*at].trim_end();
        indent(text) == own && !text.trim().is_empty() && (text.ends_with('}') || text.ends_with(';'))
    };
    let end = (line..lines.len()).find(closes).with_context(|| format!("'{name}' has no end"))? + 1;
    let mut start = line;
    while start > 0 && ["///", "#["].iter().any(|mark| lines[start - 1].trim_start().starts_with(mark)) {
        start -= 1;
    }
    Ok((start, end))
}

/// Whether a line begins the item of this name.
fn names(line: &str, name: &str) -> bool {
    if name.starts_with("impl") {
        return line
            .trim_start()
            .strip_prefix(name)
            .is_some_and(|rest| rest.trim_start().starts_with(['{', '<']) || rest.is_empty());
    }
    let mut words = line.split_whitespace();
    while let Some(word) = words.next() {
        let called = |next: &str| next.split(|c: char| !(c.is_alphanumeric() || c == '_')).next() == Some(name);
        if KEYWORDS.contains(&word) && words.clone().next().is_some_and(called) {
            return true;
        }
        if !BEFORE.contains(&word) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const SOURCE: &str = "\
//! A file.

/// One.
pub(crate) const ONE: Row = Row {
    a: 1,
};

mod inner {
    /// Two
    /// lines.
    #[inline]
    pub unsafe fn two(
        a: u8,
    ) -> u8 {
        // first
        let b = a;

        // last
        b
    }
}

const fn two_more() -> u8 { 2 }
impl Row {}
";

    fn of(item: &str) -> String {
        excerpt(SOURCE, &Wanted { item: Some(item), lines: None }).unwrap().text
    }

    #[test]
    fn an_item_comes_whole() {
        assert_eq!(of("ONE"), "/// One.\npub(crate) const ONE: Row = Row {\n    a: 1,\n};");
        let two = excerpt(SOURCE, &Wanted { item: Some("two"), lines: None }).unwrap();
        assert_eq!(two.line, 9);
        assert!(two.text.starts_with("/// Two\n/// lines.\n#[inline]\npub unsafe fn two(\n    a: u8,"), "{}", two.text);
        assert!(two.text.ends_with("    b\n}"), "{}", two.text);
        assert_eq!(of("two_more"), "const fn two_more() -> u8 { 2 }");
        assert_eq!(of("impl Row"), "impl Row {}");
    }

    #[test]
    fn lines_are_chosen_inside_an_item() {
        let wanted = Wanted { item: Some("two"), lines: Some(("first", "let b")) };
        let found = excerpt(SOURCE, &wanted).unwrap();
        assert_eq!((found.line, found.text.as_str()), (15, "// first\nlet b = a;"));
    }

    #[test]
    fn what_is_not_there_is_said() {
        let fault = |item, lines| excerpt(SOURCE, &Wanted { item, lines }).unwrap_err().to_string();
        assert!(fault(Some("three"), None).contains("'three'"));
        assert!(fault(Some("ONE"), Some(("first", "last"))).contains("\"first\""));
        assert!(fault(None, Some(("last", "first"))).contains("\"first\""));
    }
}
