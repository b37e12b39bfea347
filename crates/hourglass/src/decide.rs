//! `hourglass decide`: decisions written down before their measurement, judged after it, and kept in the repository's ledger.
//! Not here: the ledger and the judging (`record::ledger`), and each verb (`decide/`).

mod close;
mod draft;
mod open;
mod show;
mod transfer;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use record::gate::Namespace;
use record::ledger::{Body, Entry, Ledger, LedgerFile, LedgerFileError, Note};

use crate::compare::groups;
use crate::failure::usage;
use crate::output;
use crate::store::Store;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// The folder with the ledger [default: .hourglass at the root of the repository, or here where there is none]
    #[arg(long, value_name = "FOLDER", global = true)]
    dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Write down what dominates, the one change, and the results that would keep or reject it, before measuring
    Open(Box<open::Args>),
    /// Judge an open decision by records that were measured since
    Close(close::Args),
    /// Every decision, and how it came out
    List,
    /// One decision with its rules, every number used, and notes
    Show {
        /// Id of the decision, or its beginning
        id: String,
    },
    /// Add words to an entry; nothing else about it can be changed
    Note {
        /// Id of the entry, or its beginning
        id: String,
        text: String,
    },
    /// Check every line of the ledger; exit 1 if any was changed, moved, or is missing
    Verify(verify::Args),
    /// After two branches of the repository were merged: an entry that names the ends of both
    Merge,
    /// The names that rules and gates may use, with their units
    Metrics,
    /// Take in decisions that were written down elsewhere
    Import {
        /// A decision/1 record, or {"decisions": [{"change", "dominated_before", "evidence", "kept"}]}
        file: PathBuf,
    },
    /// Decisions in the short form: the change, what dominated before, the evidence, kept or not
    Export(transfer::ExportArgs),
}

/// What every verb needs.
struct Context {
    store: Store,
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if matches!(args.verb, Verb::Metrics) {
        return metrics(args.json);
    }
    let writes = matches!(args.verb, Verb::Open(_) | Verb::Import { .. });
    // Only what begins a ledger makes its folder.
    let store = if writes { Store::open_or_create(args.dir.as_deref()) } else { Store::at(args.dir.as_deref()) }?;
    let context = Context { store, json: args.json };
    match &args.verb {
        Verb::Open(open) => open::run(&context, open),
        Verb::Close(close) => close::run(&context, close),
        Verb::List => show::list(&context),
        Verb::Show { id } => show::one(&context, id),
        Verb::Note { id, text } => note(&context, id, text),
        Verb::Verify(verify) => verify::run(&context, verify),
        Verb::Merge => merge(&context),
        Verb::Metrics => metrics(args.json),
        Verb::Import { file } => transfer::import(&context, file),
        Verb::Export(export) => transfer::export(&context, export),
    }
}

/// The names that a rule may use.
fn names(flag: &'static str) -> Namespace {
    Namespace::comparison(flag, &groups())
}

impl Context {
    fn file(&self) -> LedgerFile {
        LedgerFile::new(self.store.ledger())
    }

    /// # Errors
    /// There is none yet, or something in it was changed.
    fn ledger(&self) -> Result<Ledger> {
        self.file().read().map_err(failed)
    }

    /// The folder that paths of evidence start at: the one around the ledger's.
    fn root(&self) -> PathBuf {
        let root = self.store.root();
        let parent = root.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new(".")).to_path_buf()
    }

    /// Appends what `body` makes of the ledger.
    fn append(&self, body: impl FnOnce(&Ledger) -> Result<Body>) -> Result<Entry> {
        self.file().append(&probe::now(), body).map_err(failed)?
    }
}

/// A ledger that does not verify is a check that failed; one that is not there is bad input.
fn failed(error: LedgerFileError) -> anyhow::Error {
    match error {
        LedgerFileError::Nothing { .. } => usage(error.to_string()),
        other => other.into(),
    }
}

/// The id of the entry that somebody calls `id`.
///
/// # Errors
/// None or several.
fn entry_named<'l>(ledger: &'l Ledger, id: &str) -> Result<&'l Entry> {
    ledger.entry(id).ok_or_else(|| {
        let known = ledger.entries().iter().filter(|entry| entry.id.starts_with(id)).count();
        let found = if known > 1 { "several entries" } else { "no entry" };
        usage(format!("'{id}': expected the id of an entry, found {found}; `hourglass decide list` shows the ids"))
    })
}

fn note(context: &Context, id: &str, text: &str) -> Result<ExitCode> {
    if text.trim().is_empty() {
        return Err(usage("decide note: expected words, found none"));
    }
    let entry = context.append(|ledger| {
        let about = entry_named(ledger, id)?.id.clone();
        Ok(Body::Note(Note { about, text: text.to_owned() }))
    })?;
    said(context, &entry, "noted")
}

fn merge(context: &Context) -> Result<ExitCode> {
    match context.file().merge(&probe::now()).map_err(failed)? {
        Some(entry) => said(context, &entry, "merged the branches"),
        None => {
            output::note("hourglass: the ledger has one end; there is nothing to merge");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Tells what was written.
fn said(context: &Context, entry: &Entry, what: &str) -> Result<ExitCode> {
    if context.json {
        output::print_json(entry)?;
    } else {
        let line = format!("{}: {what}, in {}\n", entry.id, context.store.ledger().display());
        output::print(line.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A name, its unit, and what it is.
#[derive(serde::Serialize)]
struct MetricRow {
    name: String,
    unit: &'static str,
    meaning: String,
}

fn metrics(json: bool) -> Result<ExitCode> {
    use record::bench::Metric;
    let clock = Metric::ALL.into_iter().map(|metric| MetricRow {
        name: metric.name().to_owned(),
        unit: metric.unit().name(),
        meaning: match metric {
            Metric::Prefill => "prompt tokens per second of prefill",
            Metric::Decode => "tokens after the first per second of decode",
            Metric::Output => "generated tokens per second of the whole request",
            Metric::Ttft => "time to the first token",
            Metric::Request => "the whole request",
            Metric::PerToken => "time per token after the first, on average",
            Metric::TokenMedian => "time between tokens: median",
            Metric::TokenP95 => "the same: 95th percentile",
            Metric::TokenP99 => "the same: 99th percentile",
            Metric::Peak => "the most bytes allocated at once during the request, weights included",
            Metric::PeakRss => "the most physical memory",
        }
        .to_owned(),
    });
    let rows =
        names("rules").rows.into_iter().map(|row| MetricRow { name: row.name, unit: row.unit, meaning: row.meaning });
    let tokens = MetricRow {
        name: "tokens_equal".to_owned(),
        unit: "yes/no",
        meaning: "whether both sides generated the same tokens".to_owned(),
    };
    let all: Vec<MetricRow> = clock.chain(rows).chain([tokens]).collect();
    if json {
        output::print_json(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::from(
        "A name is the candidate's value. NAME.baseline is the other side's, NAME.ratio the first over the\n\
         second, NAME.ratio.low and NAME.ratio.high the ends of its interval, NAME.verdict the finding\n\
         (faster, slower, smaller, larger, no_difference, inconclusive). `baseline` alone is that of the one\n\
         metric named. A rule holds if it holds for the whole interval.\n\n",
    );
    for row in &all {
        let lead = format!("{:<28} {:<6} ", row.name, row.unit);
        text += &crate::prose::paragraph(&lead, &row.meaning, "      ");
    }
    text += "\nFor example: 'decode.ratio > 1.05', 'ttft < 0.5 s', 'peak <= 1.02 * baseline', 'tokens_equal',\n\
             'replay.decode.projections < 0.8 * baseline', 'request.verdict == slower'\n";
    output::print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
