//! Reading records: ours, older ones, and whatever else somebody passes in. Never a panic, never a guess.
//! What a record holds is in its own file: `bench/`, `find.rs`, `replay/`, ...

use crate::check::Check;
use crate::kinds::KNOWN_SCHEMAS;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The largest record that is read; the largest that is written is far smaller.
pub const MAX_RECORD_BYTES: usize = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{name}: {bytes} bytes is more than a record's largest size of {MAX_RECORD_BYTES}; this is not a record")]
    TooLarge { name: String, bytes: usize },
    #[error("{name}: not JSON: {why}; a record is one JSON object as written by --json-output")]
    NotJson { name: String, why: serde_json::Error },
    #[error(
        "{name}: no \"schema\" field with a text like \"find/2\" was found, so this is no record; give a file \
         written by --json-output"
    )]
    NotARecord { name: String },
    #[error("{name}: schema \"{found}\" is not known to this build, which reads {known}; use the build that wrote it")]
    UnknownSchema { name: String, found: String, known: String },
    #[error("{name}: a {expected} record was expected, and this is a {found} record; give the other file")]
    OtherKind { name: String, found: String, expected: &'static str },
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

/// A kind of record: how it is named, and what of it is computed from the rest and therefore proves that the rest is whole.
pub trait Record: DeserializeOwned + JsonSchema {
    /// `name/version`.
    const SCHEMA: &'static str;

    /// Every stored id beside the one that its contents have.
    fn identities(&self) -> Vec<StoredId<'_>>;

    /// The stored checks.
    fn checks(&self) -> &[Check];

    /// The checks computed from the record's parts.
    fn cross_foot(&self) -> Vec<Check>;

    /// A part that is computed from the rest, and is not what the rest gives.
    fn changed(&self) -> Option<&'static str> {
        None
    }

    /// Whether the record says that nothing in it may be relied on.
    fn void(&self) -> bool;
}

/// An id as stored, and as the contents give it.
pub struct StoredId<'a> {
    /// Where it stands, for messages.
    pub field: &'static str,
    pub stored: &'a str,
    pub computed: String,
}

/// Reads a record of one kind; `name` is what messages call it.
///
/// # Errors
/// Anything that is not one, and a record whose ids or checks do not belong to its contents. A record that is void by its
/// own checks is read: look at [`Record::void`].
pub fn read<R: Record>(name: &str, bytes: &[u8]) -> Result<R, ReadError> {
    let owned = || name.to_owned();
    let schema = schema_in(name, bytes)?;
    if schema != R::SCHEMA {
        let found: String = schema.chars().take(80).collect();
        return Err(if KNOWN_SCHEMAS.contains(&schema.as_str()) {
            ReadError::OtherKind { name: owned(), found, expected: R::SCHEMA }
        } else {
            ReadError::UnknownSchema { name: owned(), found, known: KNOWN_SCHEMAS.join(", ") }
        });
    }
    // From the text again, so that the message has a line and a column.
    let record: R =
        serde_json::from_slice(bytes).map_err(|why| ReadError::Invalid { name: owned(), schema: R::SCHEMA, why })?;
    if let Some(id) = record.identities().into_iter().find(|id| id.stored != id.computed) {
        let found = id.stored.chars().take(80).collect();
        return Err(ReadError::Identity { name: owned(), field: id.field, expected: id.computed, found });
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
    if let Some(part) = record.changed() {
        return Err(ReadError::Checks { name: owned(), check: part.to_owned() });
    }
    Ok(record)
}

/// Whether two values are equal, numbers up to what another machine's logarithms may differ by.
pub(crate) fn alike(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a.abs().max(b.abs()),
            _ => a == b,
        },
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| alike(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| alike(a, b)))
        }
        _ => a == b,
    }
}

/// Which kind of record these bytes say they are, e.g. `find/2`; nothing else in them is checked.
///
/// # Errors
/// Too large, not JSON, or no record.
pub fn schema_in(name: &str, bytes: &[u8]) -> Result<String, ReadError> {
    #[derive(Deserialize)]
    struct Header {
        schema: Option<Value>,
    }
    let owned = || name.to_owned();
    if bytes.len() > MAX_RECORD_BYTES {
        return Err(ReadError::TooLarge { name: owned(), bytes: bytes.len() });
    }
    // Straight from the text: a large record's other fields are checked to be JSON and not kept. An array would do for a
    // struct's fields, so what is no object is only asked whether it is JSON.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(match serde_json::from_slice::<serde::de::IgnoredAny>(bytes) {
            Ok(_) => ReadError::NotARecord { name: owned() },
            Err(why) => ReadError::NotJson { name: owned(), why },
        });
    }
    let header: Header = serde_json::from_slice(bytes).map_err(|why| {
        let name = owned();
        if why.is_data() { ReadError::NotARecord { name } } else { ReadError::NotJson { name, why } }
    })?;
    match header.schema {
        Some(Value::String(schema)) => Ok(schema),
        _ => Err(ReadError::NotARecord { name: owned() }),
    }
}

/// The JSON Schema of a kind of record, as `cargo xtask schema` writes it.
pub fn schema<R: Record>() -> Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    generator.into_root_schema_for::<R>().to_value()
}
