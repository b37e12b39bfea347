//! One arm of a comparison: what was run, whether its output and wiring let its time count, and its summary.
//! Not here: its samples (`sample.rs`), and how it compares with the control (`record.rs`).

use crate::bench::child::Setting;
use crate::bench::metric::Metric;
use crate::conditions::Conditions;
use crate::known::Known;
use crate::quantity::Reading;
use crate::subject::Subject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One arm. The first arm of a record is the control.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// As tables show it; no two arms share it. An alias is resolved.
    pub name: String,
    /// As it was asked for, e.g. `week2-selected` or `fast`.
    pub given: String,
    pub kind: ArmKind,
    /// Of our own engine.
    pub subject: Known<Subject>,
    /// Who ran it, as its first child said.
    pub engine: Known<EngineFacts>,
    pub conditions: Known<Conditions>,
    pub conditions_id: Known<String>,
    pub output_check: OutputCheck,
    pub wiring_check: Verified,
    /// Whether its times may be compared: its output and its wiring are as they should be, and it has samples.
    pub counts: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Median over the samples that count, per metric, in [`Metric::ALL`]'s order.
    pub summary: Vec<MetricSummary>,
}

/// What kind of thing an arm is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ArmKind {
    /// A rung of a ladder of ours.
    Checkpoint,
    /// The control once more.
    SameAgain,
    /// Another engine through its adapter.
    Peer,
    /// A server.
    Endpoint,
}

/// Who an arm's children are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineFacts {
    pub engine: String,
    pub version: String,
    pub settings: BTreeMap<String, Setting>,
    pub weights_form: String,
    pub conversions: Vec<String>,
}

/// How an arm's output is held to the control's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputCheck {
    pub tolerance: Tolerance,
    pub result: Verified,
}

/// What may differ between an arm's greedy tokens and the control's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tolerance {
    /// Nothing.
    Equal,
    /// At the first difference, the control's chosen logit was at most so far above its next best: weights that are
    /// rounded or summed in another way may decide a near tie otherwise, and a kernel that computes something else differs
    /// where there is none. What follows a difference is another text, and is not compared.
    NearTie { margin: f64 },
}

/// What a check came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verified {
    /// It holds; how far it was looked at.
    Passed(String),
    Failed(String),
    /// There was nothing to look at: why.
    NotChecked(String),
}

/// A metric over an arm's samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricSummary {
    pub metric: Metric,
    /// Over the samples that count; of a peak, too: every sample holds the largest of its process.
    pub median: Reading,
    /// Median absolute deviation.
    pub spread: Reading,
    pub smallest: Reading,
    pub largest: Reading,
}

impl Verified {
    pub fn failed(&self) -> Option<&str> {
        match self {
            Verified::Failed(why) => Some(why),
            _ => None,
        }
    }
}

impl Arm {
    /// The median of a metric; missing for an arm without samples.
    pub fn median(&self, metric: Metric) -> Reading {
        self.summary.iter().find(|row| row.metric == metric).map_or_else(
            || Reading::unavailable("no sample of this arm counts", "run again; the record says what was lost"),
            |row| row.median.clone(),
        )
    }
}
