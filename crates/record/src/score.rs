//! `score/1`: how likely a model finds a text, token by token.
//! Not here: computing it.

use crate::check::Check;
use crate::conditions::Conditions;
use crate::known::Known;
use crate::quantity::Reading;
use crate::read::{Record, StoredId};
use crate::subject::Subject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `score/1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScoreRecord {
    pub schema: String,
    /// UTC, RFC 3339.
    pub created: String,
    pub model: String,
    pub model_fingerprint: String,
    pub subject: Subject,
    pub conditions: Conditions,
    pub conditions_id: String,
    pub ids: Vec<u32>,
    /// In nats, of each token after the first, given all before it.
    pub negative_log_likelihood: Vec<f64>,
    /// In nats per token.
    pub average: Known<f64>,
    pub perplexity: Known<f64>,
    /// Of the forward passes alone.
    pub seconds: Reading,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

impl ScoreRecord {
    /// Fills in the id, the checks and whether one of them voids the record.
    pub fn close(&mut self) {
        self.conditions_id = self.conditions.id();
        self.checks = self.cross_foot();
        self.void = self.checks.iter().any(|check| !check.passed);
    }
}

impl Record for ScoreRecord {
    const SCHEMA: &'static str = "score/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        vec![StoredId { field: "conditions_id", stored: &self.conditions_id, computed: self.conditions.id() }]
    }

    /// Every token after the first is scored, and the two means are theirs.
    fn cross_foot(&self) -> Vec<Check> {
        let losses = &self.negative_log_likelihood;
        let scored = self.ids.len().saturating_sub(1) as u64;
        let mut checks = vec![Check::counts("every token after the first is scored", scored, losses.len() as u64)];
        let average = losses.iter().sum::<f64>() / losses.len() as f64;
        if let Known::Is(found) = self.average {
            checks.push(Check::sums("the average is the tokens'", average, found));
        }
        if let Known::Is(found) = self.perplexity {
            checks.push(Check::sums("the perplexity is the average's", average.exp(), found));
        }
        checks
    }

    fn checks(&self) -> &[Check] {
        &self.checks
    }

    fn void(&self) -> bool {
        self.void
    }
}
