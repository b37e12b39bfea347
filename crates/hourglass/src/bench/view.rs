//! What a person sees while a run goes on: a progress line with the time left, a partial verdict after each block; and saving.
//! Not here: the final text (`table.rs`).

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Result;
use record::bench::{BenchRecord, Metric, Outcome};

use super::growing::GrowingFile;
use super::runner::Watcher;
use super::table;
use crate::output;
use crate::progress::Progress;

pub(crate) struct View {
    file: Option<GrowingFile>,
    progress: Progress,
    /// Partial verdicts are for somebody who waits.
    watched: bool,
}

impl View {
    pub(crate) fn new(file: Option<GrowingFile>) -> View {
        View { file, progress: Progress::new("bench"), watched: std::io::stderr().is_terminal() }
    }

    /// The file gets its name.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn finish(self, record: &BenchRecord) -> Result<()> {
        drop(self.progress);
        self.file.map_or(Ok(()), |file| file.finish(record))
    }
}

impl Watcher for View {
    fn tick(&mut self, record: &BenchRecord, slot: usize, left: Option<Duration>) {
        let name = &record.arms[record.schedule[slot].arm as usize].name;
        let left = left.map_or_else(String::new, |left| format!(", about {} left", minutes(left)));
        self.progress.steps(slot, record.schedule.len(), &format!("now {name}{left}"));
    }

    fn sampled(&mut self, record: &BenchRecord) -> Result<()> {
        if let Some(file) = &mut self.file {
            file.save(record)?;
        }
        if !self.watched {
            return Ok(());
        }
        let Some(sample) = record.samples.last() else { return Ok(()) };
        let name = &record.arms[sample.arm as usize].name;
        self.progress.wipe();
        if let Outcome::Lost(why) = &sample.outcome {
            output::note(format_args!("bench: lost one of {name}: {why}"));
        }
        let next = record.schedule.get(record.samples.len());
        // After the last process the verdicts are no longer partial.
        if next.is_some_and(|next| next.block != sample.block) {
            for arm in 1..record.arms.len() {
                if let Some(row) = record.comparison(arm, Metric::Decode) {
                    output::note(format_args!("bench: so far: {}: {}", record.arms[arm].name, table::phrase(row)));
                }
            }
        }
        Ok(())
    }
}

fn minutes(left: Duration) -> String {
    let seconds = left.as_secs();
    if seconds < 90 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}
