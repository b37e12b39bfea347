//! A `bench/1` record in the forms that other tools read.
//! Not here: the record itself, and writing files. What a form has no place for is lost: the record stays the evidence.

mod bmf;
mod csv;
mod google_benchmark;
mod llama_bench;
mod markdown;

use crate::bench::{Arm, BenchRecord, Measured, Sample};

/// A form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Rows of `llama-bench -o json`; the commit is the build, so that two records of one arm are compared.
    LlamaBench,
    /// The same with each arm as a build of its own, so that the arms of one record are compared.
    LlamaBenchArms,
    /// Google Benchmark's JSON, for its `compare.py`.
    GoogleBenchmark,
    /// Bencher Metric Format.
    Bmf,
    /// A row per process.
    Csv,
    /// The table for a document.
    Markdown,
}

/// Why there is no such export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    #[error("--export \"{given}\": expected one of {}", names())]
    Unknown { given: String },
    #[error(
        "--export {format}: no arm has a sample that counts, so there is nothing to export; the record says what was lost"
    )]
    Nothing { format: &'static str },
}

fn names() -> String {
    Format::ALL.map(Format::name).join(", ")
}

impl Format {
    pub const ALL: [Format; 6] = [
        Format::LlamaBench,
        Format::LlamaBenchArms,
        Format::GoogleBenchmark,
        Format::Bmf,
        Format::Csv,
        Format::Markdown,
    ];

    /// The spelling on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Format::LlamaBench => "llama-bench",
            Format::LlamaBenchArms => "llama-bench-arms",
            Format::GoogleBenchmark => "google-benchmark",
            Format::Bmf => "bmf",
            Format::Csv => "csv",
            Format::Markdown => "markdown",
        }
    }

    /// # Errors
    /// No form of this name.
    pub fn parse(name: &str) -> Result<Format, ExportError> {
        let known = Format::ALL.into_iter().find(|format| format.name() == name);
        known.ok_or_else(|| ExportError::Unknown { given: name.to_owned() })
    }

    /// The record in this form, with a newline at its end.
    ///
    /// # Errors
    /// Forms of numbers alone, and no numbers.
    pub fn render(self, record: &BenchRecord) -> Result<String, ExportError> {
        let numbers_only = !matches!(self, Format::Csv | Format::Markdown);
        if numbers_only && !record.samples.iter().any(|sample| sample.counting().is_some()) {
            return Err(ExportError::Nothing { format: self.name() });
        }
        Ok(match self {
            Format::LlamaBench => llama_bench::render(record, llama_bench::Build::Commit),
            Format::LlamaBenchArms => llama_bench::render(record, llama_bench::Build::Arm),
            Format::GoogleBenchmark => google_benchmark::render(record),
            Format::Bmf => bmf::render(record),
            Format::Csv => csv::render(record),
            Format::Markdown => markdown::render(record),
        })
    }
}

/// Arms that count, each with its samples that count; arms without one are left out.
fn counting(record: &BenchRecord) -> impl Iterator<Item = (usize, &Arm, Vec<(&Sample, &Measured)>)> {
    record.arms.iter().enumerate().filter(|(_, arm)| arm.counts).filter_map(|(index, arm)| {
        let samples: Vec<_> =
            record.samples_of(index).filter_map(|sample| Some((sample, sample.counting()?))).collect();
        (!samples.is_empty()).then_some((index, arm, samples))
    })
}

/// JSON with a newline at its end.
fn pretty(value: &serde_json::Value) -> String {
    // A `Value` has text keys and finite numbers, which always have a text.
    format!("{value:#}\n")
}
