//! `records list`: what is in the folder of records, newest first. What cannot be read is in it, with the reason.
//! Not here: how one file is judged (`entry.rs`).

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use jiff::Timestamp;

use super::entry::{Entry, State};
use super::time;
use crate::figures::thousands;
use crate::prose::paragraph;
use crate::store::{Store, records_in};

/// Widths of the columns whose texts vary, so that a line has at most 100.
const CHECKPOINT: usize = 18;
const WORK: usize = 24;

/// Which records are wanted; one that cannot be read is wanted always, because it might be any.
#[derive(Default)]
pub(crate) struct Filter {
    kind: Option<String>,
    checkpoint: Option<String>,
    since: Option<Timestamp>,
}

impl Filter {
    /// # Errors
    /// A time that is none; `since` is what the message calls it.
    pub(crate) fn new(kind: Option<&str>, checkpoint: Option<&str>, since: Option<&str>, flag: &str) -> Result<Filter> {
        let since = since.map(|text| time::since(flag, text)).transpose()?;
        Ok(Filter { kind: kind.map(str::to_owned), checkpoint: checkpoint.map(str::to_owned), since })
    }

    fn takes(&self, entry: &Entry) -> bool {
        if entry.state == State::Unreadable {
            return true;
        }
        let kind = self.kind.as_ref().is_none_or(|kind| entry.kind() == kind || entry.schema.known() == Some(kind));
        let checkpoint = self.checkpoint.as_ref().is_none_or(|name| entry.checkpoints.contains(name));
        let recent = self.since.is_none_or(|since| created(entry).is_none_or(|created| created >= since));
        kind && checkpoint && recent
    }
}

fn created(entry: &Entry) -> Option<Timestamp> {
    entry.created.known()?.parse().ok()
}

/// The entries of the store that are wanted, newest first; those of one time by path, those without a time last.
pub(crate) fn entries(store: &Store, filter: &Filter) -> Vec<Entry> {
    let found = records_in(&[store.root().to_path_buf()]);
    let mut entries: Vec<Entry> = found
        .into_iter()
        .map(|found| Entry::read(found.path, store.root()))
        .filter(|entry| filter.takes(entry))
        .collect();
    entries.sort_by(|a, b| created(b).cmp(&created(a)).then_with(|| a.path.cmp(&b.path)));
    entries
}

/// The table, a folder's records under its name.
pub(crate) fn text(entries: &[Entry], root: &Path) -> String {
    if entries.is_empty() {
        let words = format!(
            "No records in {} that fit. `hourglass find` writes some; --json-output of any verb can write into it.",
            root.display()
        );
        return paragraph("", &words, "");
    }
    let mut text = format!("Records in {}\n", root.display());
    let _ = writeln!(
        text,
        "{:<12} {:<16} {:<17} {:<CHECKPOINT$} {:<WORK$} {:>8}",
        "id", "time (UTC)", "kind", "checkpoint", "work", "KiB"
    );
    let mut folder = None;
    for entry in entries {
        let parent = entry.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if folder != Some(parent) {
            folder = Some(parent);
            let _ =
                writeln!(text, "{}", parent.map_or_else(|| "./".to_owned(), |parent| format!("{}/", parent.display())));
        }
        line(&mut text, entry);
    }
    let bad = entries.iter().filter(|entry| !matches!(entry.state, State::Complete | State::Incomplete)).count();
    let bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
    let _ = writeln!(text, "{} files, {} KiB; {bad} to be distrusted", entries.len(), kibibytes(bytes));
    text
}

fn line(text: &mut String, entry: &Entry) {
    let time = entry.created.known().map_or("-".to_owned(), |time| time.chars().take(16).collect()).replace('T', " ");
    let checkpoints = entry.checkpoints.join(", ");
    let file = entry.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    // A file that is no record is known by its name alone.
    let kind = if entry.schema.known().is_some() { entry.kind() } else { &file };
    let _ = writeln!(
        text,
        "{:<12} {:<16} {:<17} {:<CHECKPOINT$} {:<WORK$} {:>8}",
        entry.id(),
        time,
        cut(kind, 17),
        cut(if checkpoints.is_empty() { "-" } else { &checkpoints }, CHECKPOINT),
        cut(entry.work.known().map_or("-", String::as_str), WORK),
        kibibytes(entry.bytes),
    );
    if entry.state != State::Complete {
        let reason = entry.reason.as_deref().unwrap_or("no reason is given");
        let lead = format!("  {}: ", entry.state.words());
        *text += &paragraph(&lead, &shortened(reason), "    ");
    }
}

pub(crate) fn kibibytes(bytes: u64) -> String {
    thousands((bytes as f64 / 1024.0).ceil())
}

/// At most `width` characters, with a sign where some are missing.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width - 1).chain(['…']).collect()
}

/// A reason may quote a whole file; one line or three are enough here.
fn shortened(text: &str) -> String {
    cut(text, 300)
}
