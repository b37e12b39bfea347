//! Lines to a chain of entries: every edit is found, and the message says on which line and what to do.
//! Not here: the file and its lock (`file.rs`).
//!
//! Each entry follows one that stands above it, the first none. Where two follow the same one, as after a merge of two branches
//! of a repository, the ledger has two ends, and is no chain until a merge entry names both.

use super::{Body, Closing, Entry, LEDGER_SCHEMA, Merge, NO_ENTRY, Opening};
use std::collections::{BTreeMap, BTreeSet};

/// The largest ledger that is read.
pub const MAX_LEDGER_BYTES: usize = 256 << 20;

/// A ledger whose every line is an entry of the chain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    entries: Vec<Entry>,
}

/// What a whole ledger comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    pub entries: usize,
    /// Hash of the last entry: kept elsewhere, it shows whether the end was cut off later.
    pub head: String,
}

/// What is wrong with a ledger; lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    #[error("{bytes} bytes is more than a ledger's largest size of {MAX_LEDGER_BYTES}; this is no ledger")]
    TooLarge { bytes: usize },
    #[error(
        "line {line} is torn: it has no end, so the machine stopped while it was being written and nobody was told that it \
         was. Look at it, remove it (`sed -i '$d' FILE`), and repeat the command that wrote it"
    )]
    Torn { line: usize },
    #[error(
        "line {line} is a mark that git left in a conflict. Keep the lines of both sides, remove the marks, and run \
         `hourglass decide merge`"
    )]
    Conflict { line: usize },
    #[error("line {line} is no entry of a ledger: {why}. Restore the line from the repository's history")]
    NotAnEntry { line: usize, why: String },
    #[error(
        "line {line} was changed after it was written: {what}. Restore the line from the repository's history; words can be \
         added with `hourglass decide note`"
    )]
    Changed { line: usize, what: String },
    #[error("line {line} repeats the entry of line {first}. Remove one of the two")]
    Repeated { line: usize, first: usize },
    #[error(
        "line {line} follows an entry ({previous}) that does not stand above it: a line before it was removed or moved. \
         Restore the file from the repository's history"
    )]
    Broken { line: usize, previous: String },
    #[error(
        "line {line} follows line {fork}, as line {other} does: two branches were merged, and {ends} entries end them. Run \
         `hourglass decide merge`, which adds an entry that names all ends"
    )]
    Forked { line: usize, other: usize, fork: String, ends: usize },
    #[error("line {line} merges a branch that ends with {head}, which no line above has. Restore the missing lines")]
    MissingBranch { line: usize, head: String },
    #[error("line {line} closes or is about '{id}', which no line above opened. Restore the missing line")]
    Unopened { line: usize, id: String },
    #[error("line {line} closes '{id}', which line {first} closed already. A decision is closed once; open another")]
    ClosedTwice { line: usize, id: String, first: usize },
}

impl Ledger {
    /// Reads and checks every line.
    ///
    /// # Errors
    /// The first thing that is wrong, branches that were not merged among them.
    pub fn read(bytes: &[u8]) -> Result<Ledger, ChainError> {
        let (ledger, ends) = Ledger::read_with_ends(bytes)?;
        match ends.as_slice() {
            [] | [_] => Ok(ledger),
            _ => Err(ledger.forked(ends.len())),
        }
    }

    /// The same, branches allowed; with the hashes of all entries that none follows, in the order of their lines.
    ///
    /// # Errors
    /// As for [`Ledger::read`], branches apart.
    pub fn read_with_ends(bytes: &[u8]) -> Result<(Ledger, Vec<String>), ChainError> {
        if bytes.len() > MAX_LEDGER_BYTES {
            return Err(ChainError::TooLarge { bytes: bytes.len() });
        }
        let mut chain = Chain::default();
        if bytes.is_empty() {
            return Ok((Ledger::default(), Vec::new()));
        }
        let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        let (last, whole) = lines.split_last().expect("a split has at least one part");
        for (index, line) in whole.iter().enumerate() {
            chain.add(index + 1, line)?;
        }
        if !last.is_empty() {
            return Err(ChainError::Torn { line: lines.len() });
        }
        let ends =
            chain.entries.iter().map(|entry| entry.hash.clone()).filter(|hash| !chain.followed.contains_key(hash));
        let ends = ends.collect();
        Ok((Ledger { entries: chain.entries }, ends))
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Hash of the last entry; zeros if there is none.
    pub fn head(&self) -> &str {
        self.entries.last().map_or(NO_ENTRY, |entry| &entry.hash)
    }

    pub fn verified(&self) -> Verified {
        Verified { entries: self.entries.len(), head: self.head().to_owned() }
    }

    /// Whether this hash, or its beginning, is that of an entry.
    pub fn has_hash(&self, hash: &str) -> bool {
        hash.len() >= 8 && self.entries.iter().any(|entry| entry.hash.starts_with(hash))
    }

    /// The entry with this id or beginning of one, if exactly one has it.
    pub fn entry(&self, id: &str) -> Option<&Entry> {
        let mut found = self.entries.iter().filter(|entry| !id.is_empty() && entry.id.starts_with(id));
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    /// The opening of this id, with its entry.
    pub fn opening(&self, id: &str) -> Option<(&Entry, &Opening)> {
        let entry = self.entry(id)?;
        match &entry.body {
            Body::Open(opening) => Some((entry, opening)),
            _ => None,
        }
    }

    /// How the decision of this id was closed, if it was.
    pub fn closing(&self, id: &str) -> Option<(&Entry, &Closing)> {
        self.entries.iter().find_map(|entry| match &entry.body {
            Body::Close(closing) if closing.opened == id => Some((entry, closing.as_ref())),
            _ => None,
        })
    }

    /// Notes about the entry of this id.
    pub fn notes(&self, id: &str) -> impl Iterator<Item = (&Entry, &str)> {
        self.entries.iter().filter_map(move |entry| match &entry.body {
            Body::Note(note) if note.about == id => Some((entry, note.text.as_str())),
            _ => None,
        })
    }

    /// The merge entry's body for these ends; none where there is nothing to merge.
    pub fn merge(&self, ends: &[String]) -> Option<Body> {
        let heads: Vec<String> = ends.iter().filter(|end| *end != self.head()).cloned().collect();
        (!heads.is_empty()).then_some(Body::Merge(Merge { heads }))
    }

    /// What is wrong with a ledger of so many ends.
    pub(super) fn forked(&self, ends: usize) -> ChainError {
        let mut first: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, entry) in self.entries.iter().enumerate() {
            if let Some(other) = first.insert(&entry.previous, index) {
                let fork = self.entries.iter().position(|above| above.hash == entry.previous);
                let fork = fork.map_or_else(|| "0, the beginning".to_owned(), |fork| (fork + 1).to_string());
                return ChainError::Forked { line: index + 1, other: other + 1, fork, ends };
            }
        }
        ChainError::Forked { line: self.entries.len(), other: 1, fork: "0, the beginning".to_owned(), ends }
    }
}

#[derive(Default)]
struct Chain {
    entries: Vec<Entry>,
    /// Hash to line, for every entry so far.
    lines: BTreeMap<String, usize>,
    /// Hashes that an entry follows, and the line of the first that does.
    followed: BTreeMap<String, usize>,
    /// Ids of every entry so far.
    ids: BTreeSet<String>,
    opened: BTreeSet<String>,
    closed: BTreeMap<String, usize>,
}

impl Chain {
    fn add(&mut self, line: usize, bytes: &[u8]) -> Result<(), ChainError> {
        if [&b"<<<<<<<"[..], b"=======", b">>>>>>>", b"|||||||"].iter().any(|mark| bytes.starts_with(mark)) {
            return Err(ChainError::Conflict { line });
        }
        let entry: Entry = serde_json::from_slice(bytes)
            .map_err(|error| ChainError::NotAnEntry { line, why: error.to_string().chars().take(300).collect() })?;
        if entry.schema != LEDGER_SCHEMA {
            let why = format!("its schema is {:?}, expected \"{LEDGER_SCHEMA}\"", entry.schema);
            return Err(ChainError::NotAnEntry { line, why });
        }
        let changed = |what: &str| ChainError::Changed { line, what: what.to_owned() };
        if entry.hash != entry.computed_hash() {
            return Err(changed("its hash is not that of its contents"));
        }
        if entry.id != entry.computed_id() {
            return Err(changed("its id is not that of its contents"));
        }
        if entry.line().as_bytes() != bytes {
            return Err(changed("it is not written as an entry is (sorted keys, no spaces)"));
        }
        if let Some(&first) = self.lines.get(&entry.hash) {
            return Err(ChainError::Repeated { line, first });
        }
        self.follow(line, &entry.previous)?;
        if let Body::Merge(merge) = &entry.body {
            for head in &merge.heads {
                if !self.lines.contains_key(head) {
                    return Err(ChainError::MissingBranch { line, head: head.clone() });
                }
                self.followed.entry(head.clone()).or_insert(line);
            }
        }
        self.meaning(line, &entry)?;
        self.lines.insert(entry.hash.clone(), line);
        self.ids.insert(entry.id.clone());
        self.entries.push(entry);
        Ok(())
    }

    fn follow(&mut self, line: usize, previous: &str) -> Result<(), ChainError> {
        // Only one entry is the first, but each of two branches of an empty ledger may have begun with one.
        if previous != NO_ENTRY && !self.lines.contains_key(previous) {
            let previous = previous.chars().take(16).collect();
            return Err(ChainError::Broken { line, previous });
        }
        self.followed.entry(previous.to_owned()).or_insert(line);
        Ok(())
    }

    fn meaning(&mut self, line: usize, entry: &Entry) -> Result<(), ChainError> {
        match &entry.body {
            Body::Open(_) => {
                self.opened.insert(entry.id.clone());
            }
            Body::Close(closing) => {
                let id = closing.opened.clone();
                if !self.opened.contains(&id) {
                    return Err(ChainError::Unopened { line, id });
                }
                if let Some(first) = self.closed.insert(id.clone(), line) {
                    return Err(ChainError::ClosedTwice { line, id, first });
                }
            }
            Body::Note(note) => {
                if !self.ids.contains(&note.about) {
                    return Err(ChainError::Unopened { line, id: note.about.clone() });
                }
            }
            Body::Import(_) | Body::Merge(_) => {}
        }
        Ok(())
    }
}
