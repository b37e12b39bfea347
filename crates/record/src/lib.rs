//! What a measurement is: readings with units, the workload and conditions they belong to, statistics, the records' schemas.
//! Not here: anything that measures, and any engine; a record from another machine or an older build is read without one.

mod answer;
pub mod bench;
pub mod capture;
mod ceilings;
mod check;
mod climb;
pub mod compare;
mod conditions;
mod coverage;
mod decision;
mod evidence;
pub mod export;
pub mod find;
pub mod gate;
mod identity;
mod kinds;
mod known;
pub mod ledger;
mod letters;
mod protocol;
mod quantity;
mod read;
mod replay;
mod request;
mod samples;
mod score;
mod sensitivity;
mod shapes;
pub mod statistics;
mod subject;
pub mod timeline;
pub mod trace;
mod wiring;
mod wiring_plan;
mod workload;

pub use answer::{Drawing, Finish, RunRecord};
pub use capture::CaptureMetadata;
pub use capture::lines::LinesRecord;
pub use capture::reduced::CaptureRecord;
pub use ceilings::{
    BandwidthRow, Ceilings, CeilingsWorkload, InstructionPath, Level, Measured, Operands, PeakRow, ThreadCeilings,
    Traffic,
};
pub use check::Check;
pub use climb::{ClimbRecord, ClimbRow, Finding, Prediction, climb_row};
pub use compare::ComparisonRecord;
pub use conditions::{Binary, BoundKernel, Conditions, Host};
pub use coverage::Coverage;
pub use decision::{DecisionError, DecisionRecord, Evidence, Outcome, Words, decide};
pub use evidence::{EVIDENCE_ID_DIGITS, EvidenceRef, NoDigest, file_digest};
pub use find::FindRecord;
pub use identity::{canonical_json, identity};
pub use kinds::{KINDS, KNOWN_SCHEMAS, Kind, Verified, verify};
pub use known::{Known, Unavailable};
pub use letters::is_obeyed;
pub use protocol::Protocol;
pub use quantity::{Quantity, QuantityError, Reading, Unit};
pub use read::{MAX_RECORD_BYTES, ReadError, Record, StoredId, read, schema, schema_in};
pub use replay::between::RequestsBetween;
pub use replay::cases::{CeilingsUsed, ReplayCase, ReplayRecord, Turn};
pub use replay::clocked::ClockedRequest;
pub use replay::compare::{Arrival, Change, ComparisonError, ReplayComparison, Side, compare_replays};
pub use replay::floor::{Floor, Limit, Roof, Work};
pub use replay::{AbsentGroup, CacheBlock, CacheCounters, GroupRow, OperatorRow, Replay, Timing};
pub use request::{DeviceState, DeviceUse, RequestClock, RequestTimes};
pub use samples::{Samples, SamplesError};
pub use score::ScoreRecord;
pub use sensitivity::{Clocked, SensitivityRecord, Slope, Target, Verdict};
pub use shapes::{
    FLASHINFER_OPERATORS, FlashInferFile, KernelName, ShapeRow, ShapeStudy, Tensor, flashinfer_files, test_backend_ops,
};
pub use subject::{Mechanisms, Subject};
pub use timeline::TimelineRecord;
pub use wiring::Wiring;
pub use wiring_plan::{PlannedCall, PlannedPass, Shape, Unreached, UnreachedKernel, WiringPlan};
pub use workload::{LogitsMode, Phase, Workload, token_trace_hash};
