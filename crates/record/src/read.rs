//! Reading records: ours, older ones, and whatever else somebody passes in. Never a panic, never a guess.
//! What each kind of record holds is in its own file.

use crate::ceilings::Ceilings;
use crate::check::Check;
use crate::decision::DecisionRecord;
use crate::find::FindRecord;
use crate::replay::cases::ReplayRecord;
use crate::replay::compare::ReplayComparison;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Schemas that this build reads.
pub const KNOWN_SCHEMAS: &[&str] = &[
    Ceilings::SCHEMA,
    DecisionRecord::SCHEMA,
    FindRecord::SCHEMA,
    ReplayComparison::SCHEMA,
    ReplayRecord::SCHEMA,
];

/// One kind of record: what reading needs to know of it.
pub trait Record: DeserializeOwned + Serialize + JsonSchema {
    /// `name/version`, as in its field `schema`.
    const SCHEMA: &'static str;

    /// Of each id that it stores: the field, the id that its contents have, and the one that is stored.
    fn identities(&self) -> Vec<(&'static str, String, &str)>;

    /// Its checks, computed from its parts.
    fn cross_foot(&self) -> Vec<Check>;

    /// The checks that it stores.
    fn checks(&self) -> &[Check];

    /// Whether it says that one of them failed.
    fn void(&self) -> bool;
}

/// The largest record that is read; the largest that is written is far smaller.
pub const MAX_RECORD_BYTES: usize = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{name}: {bytes} bytes is more than a record's largest size of {MAX_RECORD_BYTES}; this is not a record")]
    TooLarge { name: String, bytes: usize },
    #[error("{name}: not JSON: {why}; a record is one JSON object as written by --json-output")]
    NotJson { name: String, why: serde_json::Error },
    #[error(
        "{name}: no \"schema\" field with a text like \"find/1\" was found, so this is no record; give a file \
         written by --json-output"
    )]
    NotARecord { name: String },
    #[error("{name}: schema \"{found}\" is not known to this build, which reads {known}; use the build that wrote it")]
    UnknownSchema { name: String, found: String, known: String },
    #[error("{name}: not a valid {schema} record: {why}")]
    Invalid { name: String, schema: &'static str, why: serde_json::Error },
    #[error(
        "{name}: {field} is {found}, but its contents have {expected}: the record was changed after it was written"
    )]
    Identity { name: String, field: &'static str, expected: String, found: String },
    #[error(
        "{name}: its stored checks are not those that its numbers give ({check}): the record was changed \
         after it was written"
    )]
    Checks { name: String, check: String },
}

/// Reads a `find` record; see [`read_record`].
///
/// # Errors
/// As there.
pub fn read_find(name: &str, bytes: &[u8]) -> Result<FindRecord, ReadError> {
    read_record(name, bytes)
}

/// Reads a record of one kind; `name` is what messages call it.
///
/// # Errors
/// Anything that is not one, and a record whose ids or checks do not belong to its contents. A record that is void by its
/// own checks is read: look at [`Record::void`].
pub fn read_record<R: Record>(name: &str, bytes: &[u8]) -> Result<R, ReadError> {
    #[derive(Deserialize)]
    struct Header {
        schema: Option<Value>,
    }
    let owned = || name.to_owned();
    if bytes.len() > MAX_RECORD_BYTES {
        return Err(ReadError::TooLarge { name: owned(), bytes: bytes.len() });
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|why| ReadError::NotJson { name: owned(), why })?;
    let header: Header = serde_json::from_value(value).map_err(|_| ReadError::NotARecord { name: owned() })?;
    let Some(Value::String(schema)) = header.schema else {
        return Err(ReadError::NotARecord { name: owned() });
    };
    if schema != R::SCHEMA {
        let found = schema.chars().take(80).collect();
        return Err(ReadError::UnknownSchema { name: owned(), found, known: KNOWN_SCHEMAS.join(", ") });
    }
    // From the text again, so that the message has a line and a column.
    let record: R =
        serde_json::from_slice(bytes).map_err(|why| ReadError::Invalid { name: owned(), schema: R::SCHEMA, why })?;
    for (field, expected, found) in record.identities() {
        if expected != found {
            return Err(ReadError::Identity {
                name: owned(),
                field,
                expected,
                found: found.chars().take(80).collect(),
            });
        }
    }
    let checks = record.cross_foot();
    let stored = record.checks();
    for (index, check) in checks.iter().enumerate() {
        if stored.get(index).is_none_or(|other| other.name != check.name || other.passed != check.passed) {
            return Err(ReadError::Checks { name: owned(), check: check.name.clone() });
        }
    }
    if stored.len() != checks.len() || record.void() != checks.iter().any(|check| !check.passed) {
        return Err(ReadError::Checks { name: owned(), check: "void, or a check too many".to_owned() });
    }
    Ok(record)
}

/// The JSON Schema of a kind of record, as `cargo xtask schema` writes it.
pub fn schema<R: Record>() -> Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    generator.into_root_schema_for::<R>().to_value()
}
