//! Every kind of record in one table, so that a file can be judged without knowing beforehand what it is.
//! Not here: reading one kind into its type (`read.rs`), and what a kind holds.

use crate::bench::BenchRecord;
use crate::capture::CaptureMetadata;
use crate::capture::lines::LinesRecord;
use crate::capture::reduced::CaptureRecord;
use crate::ceilings::Ceilings;
use crate::check::Check;
use crate::climb::ClimbRecord;
use crate::decision::DecisionRecord;
use crate::find::FindRecord;
use crate::read::{KNOWN_SCHEMAS, ReadError, Record, read, schema_in};
use crate::replay::cases::ReplayRecord;
use crate::replay::compare::ReplayComparison;
use crate::sensitivity::SensitivityRecord;
use crate::shapes::ShapeStudy;
use crate::timeline::TimelineRecord;
use crate::wiring_plan::WiringPlan;

struct Kind {
    schema: &'static str,
    verify: fn(&str, &[u8]) -> Result<Verified, ReadError>,
}

const fn kind<R: Record>() -> Kind {
    Kind { schema: R::SCHEMA, verify: verify_one::<R> }
}

const KINDS: &[Kind] = &[
    kind::<BenchRecord>(),
    kind::<CaptureMetadata>(),
    kind::<CaptureRecord>(),
    kind::<Ceilings>(),
    kind::<ClimbRecord>(),
    kind::<DecisionRecord>(),
    kind::<FindRecord>(),
    kind::<LinesRecord>(),
    kind::<ReplayComparison>(),
    kind::<ReplayRecord>(),
    kind::<SensitivityRecord>(),
    kind::<ShapeStudy>(),
    kind::<TimelineRecord>(),
    kind::<WiringPlan>(),
];

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
    fn every_kind_that_is_read_can_be_judged() {
        let kinds: Vec<_> = KINDS.iter().map(|kind| kind.schema).collect();
        assert_eq!(kinds, KNOWN_SCHEMAS, "read.rs names the kinds that are read, kinds.rs those that are judged");
    }

    #[test]
    fn what_is_not_known_says_so() {
        let error = verify("x.json", br#"{"schema": "find/99"}"#).unwrap_err();
        assert!(matches!(error, ReadError::UnknownSchema { .. }), "{error}");
        let error = verify("x.json", br#"{"schema": "wiring/1"}"#).unwrap_err();
        assert!(matches!(error, ReadError::Invalid { .. }), "{error}");
    }
}
