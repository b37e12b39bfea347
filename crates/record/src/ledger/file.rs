//! The ledger's file: appending under a lock, so that two commands at once both get their line, whole.
//! Not here: what is appended, and the checks of what is there (`chain.rs`).

use super::chain::{ChainError, Ledger, MAX_LEDGER_BYTES};
use super::{Body, Entry};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A ledger in a file.
#[derive(Clone, Debug)]
pub struct LedgerFile {
    path: PathBuf,
}

/// Why a ledger was not read or not written.
#[derive(Debug, thiserror::Error)]
pub enum LedgerFileError {
    #[error("{}: {why}", path.display())]
    Chain { path: PathBuf, why: ChainError },
    #[error("{}: there is no ledger yet; `hourglass decide open` begins one", path.display())]
    Nothing { path: PathBuf },
    #[error("{}: cannot be {doing}: {why}", path.display())]
    File { path: PathBuf, doing: &'static str, why: io::Error },
    #[error("{}: the line was written only in part ({why}) and was taken away again; free some space", path.display())]
    Partial { path: PathBuf, why: io::Error },
}

impl LedgerFile {
    pub fn new(path: impl Into<PathBuf>) -> LedgerFile {
        LedgerFile { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads and checks it.
    ///
    /// # Errors
    /// No such file; anything wrong in it.
    pub fn read(&self) -> Result<Ledger, LedgerFileError> {
        Ledger::read(&self.bytes()?).map_err(|why| self.chain(why))
    }

    /// The same with branches allowed, and the hashes that end them.
    ///
    /// # Errors
    /// As for [`LedgerFile::read`], branches apart.
    pub fn read_with_ends(&self) -> Result<(Ledger, Vec<String>), LedgerFileError> {
        Ledger::read_with_ends(&self.bytes()?).map_err(|why| self.chain(why))
    }

    /// Appends the entry that `body` makes of the ledger as it is once nobody else writes to it. The file is made if it is not
    /// there; the line is on the disk when this returns.
    ///
    /// # Errors
    /// A ledger that does not verify is not written to; `body`'s own refusals; the disk's.
    pub fn append<E>(
        &self,
        created: &str,
        body: impl FnOnce(&Ledger) -> Result<Body, E>,
    ) -> Result<Result<Entry, E>, LedgerFileError> {
        self.locked(|ledger, ends| match ends {
            [] | [_] => body(ledger).map(|body| Entry::new(created, ledger.head(), body)).map(Ok),
            _ => Ok(Err(ledger.forked(ends.len()))),
        })
    }

    /// Appends an entry that names the ends of all branches. None where there are none to merge.
    ///
    /// # Errors
    /// As for [`LedgerFile::append`].
    pub fn merge(&self, created: &str) -> Result<Option<Entry>, LedgerFileError> {
        let merged = self.locked(|ledger, ends| match ledger.merge(ends) {
            Some(body) => Ok(Ok(Entry::new(created, ledger.head(), body))),
            None => Err(()),
        })?;
        Ok(merged.ok())
    }

    /// Under the lock: reads, asks for an entry, appends it.
    fn locked<E>(
        &self,
        entry: impl FnOnce(&Ledger, &[String]) -> Result<Result<Entry, ChainError>, E>,
    ) -> Result<Result<Entry, E>, LedgerFileError> {
        let options = || OpenOptions::new().read(true).append(true).create(true).open(&self.path);
        let mut file = options().map_err(|why| self.failed("opened for writing", why))?;
        file.lock().map_err(|why| self.failed("locked", why))?;
        let bytes = self.all_of(&file)?;
        let (ledger, ends) = Ledger::read_with_ends(&bytes).map_err(|why| self.chain(why))?;
        let entry = match entry(&ledger, &ends) {
            Ok(Ok(entry)) => entry,
            Ok(Err(why)) => return Err(self.chain(why)),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let line = entry.line() + "\n";
        let written = file.write_all(line.as_bytes()).and_then(|()| file.sync_all());
        if let Err(why) = written {
            // What did reach the file would be a torn line.
            let _ = file.set_len(bytes.len() as u64);
            return Err(LedgerFileError::Partial { path: self.path.clone(), why });
        }
        Ok(Ok(entry))
    }

    fn bytes(&self) -> Result<Vec<u8>, LedgerFileError> {
        let file = File::open(&self.path).map_err(|why| match why.kind() {
            io::ErrorKind::NotFound => LedgerFileError::Nothing { path: self.path.clone() },
            _ => self.failed("read", why),
        })?;
        // A line that is being written has no end yet; whoever writes it holds the lock.
        file.lock_shared().map_err(|why| self.failed("locked", why))?;
        self.all_of(&file)
    }

    fn all_of(&self, file: &File) -> Result<Vec<u8>, LedgerFileError> {
        let mut bytes = Vec::new();
        let mut from_start = file;
        from_start.seek(SeekFrom::Start(0)).map_err(|why| self.failed("read", why))?;
        from_start.take(MAX_LEDGER_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|why| self.failed("read", why))?;
        Ok(bytes)
    }

    fn chain(&self, why: ChainError) -> LedgerFileError {
        LedgerFileError::Chain { path: self.path.clone(), why }
    }

    fn failed(&self, doing: &'static str, why: io::Error) -> LedgerFileError {
        LedgerFileError::File { path: self.path.clone(), doing, why }
    }
}
