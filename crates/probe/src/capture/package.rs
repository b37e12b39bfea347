//! Writes a capture's trace directory: the files of `record::capture::raw`.
//! Not here: where the directory is and its manifest, which the caller makes.

use super::Capture;
use super::executables::executables;
use crate::error::Error;
use record::capture::raw::{self, Place, RawSample, RawSpans};
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Digests of what this program was compiled from.
pub(super) const SOURCES: &str = include_str!(concat!(env!("OUT_DIR"), "/sources.sha256"));

impl Capture {
    /// Writes every file into `directory`.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&mut self, directory: &Path) -> Result<(), Error> {
        let maps = fs::read_to_string("/proc/self/maps")
            .map_err(|source| Error::Read { path: "/proc/self/maps".into(), source })?;
        let executables = executables(&maps, &self.sampled.samples);
        let texts = [(raw::MAPS, maps.as_str()), (raw::SOURCES, SOURCES)];
        for (name, text) in texts {
            file(directory, name, |out| out.write_all(text.as_bytes()))?;
        }
        file(directory, raw::CALLS, |out| json(out, &self.calls))?;
        file(directory, raw::THREADS, |out| json(out, &self.threads))?;
        file(directory, raw::KERNEL_FUNCTIONS, |out| json(out, &self.functions))?;
        file(directory, raw::EXECUTABLES, |out| json(out, &executables))?;
        file(directory, raw::COUNTERS, |out| json(out, &self.counters))?;
        file(directory, raw::STEPS, |out| self.steps.iter().try_for_each(|step| line(out, step)))?;
        file(directory, raw::SAMPLES, |out| self.samples().try_for_each(|sample| line(out, &sample)))?;
        file(directory, raw::SPANS, |out| self.write_spans(out))
    }

    fn samples(&self) -> impl Iterator<Item = RawSample> {
        self.sampled.samples.iter().map(|sample| RawSample {
            at_ns: sample.at_ns,
            thread: sample.thread,
            weight_ns: sample.weight_ns,
            stack: sample
                .stack
                .iter()
                .map(|address| Place { at: address.at, kernel: address.kernel, returns: address.returns }.into())
                .collect(),
        })
    }

    /// By pass, then worker. Every pass has each call once, so that spans are told apart by counting.
    fn write_spans(&mut self, out: &mut impl Write) -> io::Result<()> {
        let calls = self.calls.len().max(1);
        for step in 0..self.steps.len() {
            for worker in 0..self.workers {
                let (spans, dropped) = self.traced.spans(worker);
                let own = spans.chunks(calls).nth(step).unwrap_or(&[]);
                let times = |span: &ops::Span| {
                    let [arrive, start, end] =
                        [span.arrive_ns, span.start_ns, span.end_ns].map(|since| self.origin_ns + since);
                    [u64::from(span.call), arrive, start, end]
                };
                let missing = (calls - own.len()) as u64;
                let spans = RawSpans {
                    step: step as u64,
                    worker: worker as u32,
                    spans: own.iter().map(times).collect(),
                    dropped: missing.min(dropped),
                };
                line(out, &spans)?;
            }
        }
        Ok(())
    }
}

fn file(directory: &Path, name: &str, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), Error> {
    let path = directory.join(name);
    let written = File::create_new(&path).and_then(|file| {
        let mut out = BufWriter::with_capacity(1 << 16, file);
        write(&mut out)?;
        out.flush()
    });
    written.map_err(|source| Error::Write { path, source })
}

fn json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    out.write_all(b"\n")
}

fn line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}
