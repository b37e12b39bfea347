//! `records export --format`: one record in a form that another tool reads.
//! Not here: the forms of a bench record (`record::export`), and bundles of records (`bundle.rs`).

use anyhow::Result;
use record::bench::BenchRecord;
use record::export::Format;
use record::{Record, read};
use serde_json::Value;

use super::facts::facts;
use super::select::Selected;
use crate::failure::usage;

/// What `--format` may be.
pub(crate) fn formats() -> String {
    let names: Vec<_> = Format::ALL.iter().map(|format| format.name()).collect();
    format!("json, {}", names.join(", "))
}

/// The record in the form called `format`, with a line end.
///
/// # Errors
/// No such form, or none for this kind of record.
pub(crate) fn render(selected: &Selected, format: &str) -> Result<String> {
    let name = selected.path.display().to_string();
    let schema = selected.evidence.schema.as_str();
    let known = Format::ALL.into_iter().find(|known| known.name() == format);
    if known.is_none() && format != "json" {
        return Err(usage(format!("--format {format}: expected one of {}", formats())));
    }
    let text = || {
        String::from_utf8(selected.bytes.clone())
            .map_err(|_| usage(format!("{name}: not UTF-8, so it is no JSON and no record")))
    };
    match known {
        None => text(),
        Some(known) if schema == BenchRecord::SCHEMA => {
            let record: BenchRecord = read(&name, &selected.bytes).map_err(|why| usage(why.to_string()))?;
            known.render(&record).map_err(|why| usage(format!("{name}: {why}")))
        }
        Some(Format::Csv) => Ok(csv(&parse(&name, &selected.bytes)?)),
        Some(Format::Markdown) => Ok(markdown(selected, &parse(&name, &selected.bytes)?)),
        Some(_) => Err(usage(format!(
            "--format {format}: only bench/1 records have that form, and {name} is a {schema} record; choose json, csv or \
             markdown"
        ))),
    }
}

fn parse(name: &str, bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).map_err(|why| usage(format!("{name}: {why}")))
}

/// `name,value,unit`, quoted as RFC 4180 wants it.
fn csv(record: &Value) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let rows = facts(record)
        .into_iter()
        .map(|fact| format!("{},{},{}\n", quoted(&fact.name), quoted(&fact.value), quoted(&fact.unit)));
    ["name,value,unit\n".to_owned()].into_iter().chain(rows).collect()
}

fn markdown(selected: &Selected, record: &Value) -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace('|', "\\|").replace('\n', " ");
    let title = format!(
        "{} record {}\n\n| what | value | unit |\n|---|---|---|\n",
        selected.evidence.schema,
        selected.evidence.id()
    );
    let rows = facts(record)
        .into_iter()
        .map(|fact| format!("| {} | {} | {} |\n", escaped(&fact.name), escaped(&fact.value), escaped(&fact.unit)));
    [title].into_iter().chain(rows).collect()
}
