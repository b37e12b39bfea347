//! The clock of several arms on one workload: what a child process says, and the record of a whole run.
//! Not here: running anything, statistics (`statistics/`), other forms of the record (`export/`).

mod arm;
mod child;
mod comparison;
mod conclude;
mod metric;
mod record;
mod sample;

pub use arm::{Arm, ArmKind, EngineFacts, MetricSummary, OutputCheck, Tolerance, Verified};
pub use child::{
    CHILD_PROTOCOL, ChildError, ChildHeader, ChildLine, ChildRequest, EndpointTimes, MAX_LINE_BYTES, Reason, Setting,
    UNAVAILABLE_EXIT, child_schema,
};
pub use comparison::{Interval, Method, MetricComparison, Noise, Verdict};
pub use conclude::EXCLUSION_RULE;
pub use metric::{Better, Metric};
pub use record::{BenchProtocol, BenchRecord};
pub use sample::{Measured, Outcome, Sample, Slot, Surroundings};
