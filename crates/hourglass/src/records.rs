//! `hourglass records`: what has been measured and kept: listed, shown, exported, and cleared away.
//! Not here: where records are kept (`store.rs`), and what is in them (`record`).

mod bundle;
mod entry;
mod export;
mod facts;
mod gc;
mod list;
mod references;
mod select;
mod show;
mod time;

pub(crate) use entry::Entry;
pub(crate) use list::{Filter, entries, text as list_text};
pub(crate) use references::of as references;
pub(crate) use select::{Selected, by_id, open};
pub(crate) use show::{table, text as show_text};

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use crate::failure::usage;
use crate::output;
use crate::store::Store;
use entry::State;
use select::select;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of records [default: .hourglass at the repository's root, or here without one]
    #[arg(long, value_name = "FOLDER", global = true)]
    dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// What there is, newest first; files that cannot be read are in the list
    List {
        /// Of this kind, e.g. bench or find/1
        #[arg(long, value_name = "KIND")]
        kind: Option<String>,
        /// About this checkpoint
        #[arg(long, value_name = "NAME")]
        checkpoint: Option<String>,
        /// Not older: 12h, 7d, or a date such as 2026-11-29
        #[arg(long, value_name = "WHEN")]
        since: Option<String>,
    },
    /// One record: what it rests on, and its verb's table
    Show {
        /// An evidence id (at least four of its digits), or a file
        #[arg(value_name = "ID|FILE")]
        record: String,
    },
    /// A record in another tool's form, or records and what they rest on as a bundle
    Export {
        /// Evidence ids or files; one where --format is given
        #[arg(value_name = "ID|FILE", required = true)]
        records: Vec<String>,
        /// json (the record itself), csv, markdown; for bench records also llama-bench, llama-bench-arms,
        /// google-benchmark, bmf
        #[arg(long, value_name = "FORMAT", required_unless_present = "out", conflicts_with = "out")]
        format: Option<String>,
        /// A new folder, or a new file that ends in .tar, for the records' files and manifest.sha256
        #[arg(long, value_name = "FOLDER|FILE.tar")]
        out: Option<PathBuf>,
    },
    /// What nothing rests on any more: old raw traces, then old runs. Shows it; --yes removes it
    Gc {
        /// Nothing younger is removed
        #[arg(long, value_name = "AGE", default_value = "30d")]
        older_than: String,
        /// Remove it
        #[arg(long)]
        yes: bool,
    },
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let store = Store::at(args.dir.as_deref())?;
    if let (Some(dir), false) = (&args.dir, store.root().is_dir()) {
        return Err(usage(format!("--dir {}: there is no such folder", dir.display())));
    }
    match &args.what {
        What::List { kind, checkpoint, since } => {
            let filter = Filter::new(kind.as_deref(), checkpoint.as_deref(), since.as_deref(), "--since")?;
            let entries = entries(&store, &filter);
            print(
                args.json,
                || list_text(&entries, store.root()),
                &Listing { folder: store.root(), records: &entries },
            )?;
        }
        What::Show { record } => {
            let selected = select(&store, record)?;
            let record: Value = serde_json::from_slice(&selected.bytes)
                .map_err(|why| usage(format!("{}: {why}", selected.path.display())))?;
            if args.json {
                output::print_json(&Whole { entry: &selected.entry, record: &record })?;
            } else {
                output::print(show_text(&selected)?.as_bytes())?;
            }
            // It is shown all the same, with the reason above it.
            if selected.entry.state == State::Unreadable {
                return Ok(ExitCode::FAILURE);
            }
        }
        What::Export { records, format, out } => export(&args, &store, records, format.as_deref(), out.as_deref())?,
        What::Gc { older_than, yes } => {
            let age = time::span("--older-than", older_than)?.unsigned_abs();
            let mut sweep = gc::plan(&store, age)?;
            if *yes {
                gc::remove(&store, &mut sweep)?;
            }
            print(args.json, || gc::text(&sweep), &sweep)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct Listing<'a> {
    folder: &'a Path,
    records: &'a [Entry],
}

#[derive(Serialize)]
struct Whole<'a> {
    entry: &'a Entry,
    record: &'a Value,
}

#[derive(Serialize)]
struct Exported<'a> {
    id: &'a str,
    format: &'a str,
    text: &'a str,
}

fn export(args: &Args, store: &Store, names: &[String], format: Option<&str>, out: Option<&Path>) -> Result<()> {
    if let Some(format) = format {
        let [name] = names else {
            return Err(usage("--format: expected one record, because stdout has room for one; --out bundles several"));
        };
        let selected = select(store, name)?;
        let text = export::render(&selected, format)?;
        let id = selected.evidence.id();
        return print(args.json, || text.clone(), &Exported { id, format, text: &text });
    }
    let out = out.ok_or_else(|| usage("export: give --format FORMAT or --out FOLDER"))?;
    let place = bundle::Place::claim(out)?;
    let asked = names.iter().map(|name| select(store, name)).collect::<Result<Vec<_>>>()?;
    let bundle = bundle::write(store, asked, place)?;
    for digest in &bundle.missing {
        output::note(format_args!("hourglass: {digest} is referred to and is not in {}", store.root().display()));
    }
    let words = || {
        let rests = bundle.files.iter().filter(|file| file.evidence).count();
        format!(
            "{} records in {} ({rests} because others rest on them); sha256sum --check manifest.sha256 checks them\n",
            bundle.files.len(),
            bundle.out.display()
        )
    };
    print(args.json, words, &bundle)
}

fn print(json: bool, text: impl FnOnce() -> String, value: &impl Serialize) -> Result<()> {
    if json { output::print_json(value) } else { output::print(text().as_bytes()) }
}
