//! What a measurement is: readings with units, the workload and conditions they belong to, statistics, the records' schemas.
//! Not here: anything that measures, and any engine; a record from another machine or an older build is read without one.

pub mod bench;
mod check;
mod conditions;
mod coverage;
pub mod export;
mod find;
pub mod gate;
mod identity;
mod known;
mod quantity;
mod read;
mod replay;
mod request;
mod samples;
pub mod statistics;
mod subject;
pub mod timeline;
pub mod trace;
mod wiring;
mod workload;

pub use check::Check;
pub use conditions::{Binary, BoundKernel, Conditions, Host};
pub use coverage::Coverage;
pub use find::{FindRecord, NextStep, Protocol};
pub use identity::{canonical_json, identity};
pub use known::{Known, Unavailable};
pub use quantity::{Quantity, QuantityError, Reading, Unit};
pub use read::{KNOWN_SCHEMAS, MAX_RECORD_BYTES, ReadError, Record, StoredId, read, read_find, schema, schema_in};
pub use replay::{CacheBlock, CacheCounters, GroupRow, Replay, Timing};
pub use request::{RequestClock, RequestTimes};
pub use samples::{Samples, SamplesError};
pub use subject::{Mechanisms, Subject};
pub use timeline::TimelineRecord;
pub use wiring::Wiring;
pub use workload::{LogitsMode, Phase, Workload, token_trace_hash};
