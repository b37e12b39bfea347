//! Every kind of record in one table, so that a file can be judged without knowing beforehand what it is.
//! Not here: reading one kind into its type (`read.rs`), and what a kind holds.

use crate::answer::RunRecord;
use crate::bench::BenchRecord;
use crate::capture::CaptureMetadata;
use crate::capture::lines::LinesRecord;
use crate::capture::reduced::CaptureRecord;
use crate::ceilings::Ceilings;
use crate::check::Check;
use crate::climb::ClimbRecord;
use crate::compare::ComparisonRecord;
use crate::decision::DecisionRecord;
use crate::find::FindRecord;
use crate::read::{ReadError, Record, read, schema, schema_in};
use crate::replay::cases::ReplayRecord;
use crate::replay::compare::ReplayComparison;
use crate::score::ScoreRecord;
use crate::sensitivity::SensitivityRecord;
use crate::shapes::ShapeStudy;
use crate::timeline::TimelineRecord;
use crate::wiring_plan::WiringPlan;
use serde_json::Value;

/// A kind of record that this build reads.
pub struct Kind {
    /// `name/version`.
    pub schema: &'static str,
    /// The JSON Schema of it, as `cargo xtask schema` writes it.
    pub json_schema: fn() -> Value,
    verify: fn(&str, &[u8]) -> Result<Verified, ReadError>,
}

const fn kind<R: Record>() -> Kind {
    Kind { schema: R::SCHEMA, json_schema: schema::<R>, verify: verify_one::<R> }
}

/// A new kind of record is one line here.
pub const KINDS: &[Kind] = &[
    kind::<BenchRecord>(),
    kind::<CaptureMetadata>(),
    kind::<CaptureRecord>(),
    kind::<Ceilings>(),
    kind::<ClimbRecord>(),
    kind::<ComparisonRecord>(),
    kind::<DecisionRecord>(),
    kind::<FindRecord>(),
    kind::<LinesRecord>(),
    kind::<ReplayComparison>(),
    kind::<ReplayRecord>(),
    kind::<RunRecord>(),
    kind::<ScoreRecord>(),
    kind::<SensitivityRecord>(),
    kind::<ShapeStudy>(),
    kind::<TimelineRecord>(),
    kind::<WiringPlan>(),
];

/// Their schemas.
pub const KNOWN_SCHEMAS: [&str; KINDS.len()] = {
    let mut schemas = [""; KINDS.len()];
    let mut index = 0;
    while index < KINDS.len() {
        schemas[index] = KINDS[index].schema;
        index += 1;
    }
    schemas
};

/// A record that is what it says it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// `name/version`.
    pub schema: &'static str,
    /// The checks computed from its parts, which are those that it stores.
    pub checks: Vec<Check>,
    /// Nothing in it may be relied on.
    pub void: bool,
}

/// Reads a record of whichever kind it says it is and makes all of its checks; `name` is what messages call it.
///
/// # Errors
/// As [`read`]: what is no record, of no known kind, or changed after it was written.
pub fn verify(name: &str, bytes: &[u8]) -> Result<Verified, ReadError> {
    let schema = schema_in(name, bytes)?;
    match KINDS.iter().find(|kind| kind.schema == schema) {
        Some(kind) => (kind.verify)(name, bytes),
        None => Err(ReadError::UnknownSchema {
            name: name.to_owned(),
            found: schema.chars().take(80).collect(),
            known: KNOWN_SCHEMAS.join(", "),
        }),
    }
}

fn verify_one<R: Record>(name: &str, bytes: &[u8]) -> Result<Verified, ReadError> {
    let record: R = read(name, bytes)?;
    Ok(Verified { schema: R::SCHEMA, checks: record.checks().to_vec(), void: record.void() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn no_two_kinds_have_one_schema() {
        let schemas: std::collections::BTreeSet<_> = KNOWN_SCHEMAS.into_iter().collect();
        assert_eq!(schemas.len(), KINDS.len());
        assert!(schemas.iter().all(|schema| schema.split_once('/').is_some_and(|(name, _)| !name.is_empty())));
    }

    #[test]
    fn what_is_not_known_says_so() {
        let error = verify("x.json", br#"{"schema": "find/99"}"#).unwrap_err();
        assert!(matches!(error, ReadError::UnknownSchema { .. }), "{error}");
        let error = verify("x.json", br#"{"schema": "wiring/1"}"#).unwrap_err();
        assert!(matches!(error, ReadError::Invalid { .. }), "{error}");
    }
}
