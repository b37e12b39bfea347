//! `run/1`: one answer of a model: what it was asked, what it said, and what the clock saw meanwhile.
//! Not here: comparisons of speed, which take repeats (`bench`), and generating.

use crate::check::Check;
use crate::conditions::Conditions;
use crate::known::Known;
use crate::quantity::Reading;
use crate::read::{Record, StoredId};
use crate::subject::Subject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `run/1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRecord {
    pub schema: String,
    /// UTC, RFC 3339.
    pub created: String,
    pub model: String,
    pub model_fingerprint: String,
    pub subject: Subject,
    pub conditions: Conditions,
    pub conditions_id: String,
    pub sampling: Drawing,
    pub prompt_ids: Vec<u32>,
    /// Generated, a final stop token included.
    pub token_ids: Vec<u32>,
    pub text: Known<String>,
    pub finish: Finish,
    /// Natural logarithms, one per generated token, of the model's own distribution: none above 0 but by rounding.
    pub log_probabilities: Vec<f32>,
    pub load: Reading,
    /// The first step: the whole prompt to the first token.
    pub prefill: Reading,
    pub prefill_rate: Reading,
    pub decode_rate: Reading,
    /// Seconds of the step that produced each token, the prefill first.
    pub step_seconds: Vec<f64>,
    /// Most bytes allocated at once during the request, weights included.
    pub peak_allocated: Reading,
    /// Largest resident size of the process, loading included.
    pub peak_resident: Reading,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

/// The logarithm of a certain token's probability may be above 0 by the rounding of a sum of exponentials.
const ROUNDING: f32 = 1e-6;

/// How tokens were drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Drawing {
    /// 0: the most likely token always.
    pub temp: f32,
    /// 0: all.
    pub top_k: usize,
    /// 1: all.
    pub top_p: f32,
    /// 0: all.
    pub min_p: f32,
    /// 1: none.
    pub repetition_penalty: f32,
    pub seed: u64,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// The model gave one of its stop tokens.
    Stop,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// Ctrl-C.
    Interrupted,
}

impl RunRecord {
    /// Fills in the id, the checks and whether one of them voids the record.
    pub fn close(&mut self) {
        self.conditions_id = self.conditions.id();
        self.checks = self.cross_foot();
        self.void = self.checks.iter().any(|check| !check.passed);
    }
}

impl Record for RunRecord {
    const SCHEMA: &'static str = "run/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        vec![StoredId { field: "conditions_id", stored: &self.conditions_id, computed: self.conditions.id() }]
    }

    /// Every token has a step and a probability of at most 1, the prefill is the first step, and the rates are tokens over steps.
    fn cross_foot(&self) -> Vec<Check> {
        let tokens = self.token_ids.len() as u64;
        let given = self.log_probabilities.len() as u64;
        let possible = self.log_probabilities.iter().filter(|one| **one <= ROUNDING).count() as u64;
        let mut checks = vec![
            Check::counts("every token has a step", tokens, self.step_seconds.len() as u64),
            Check::counts("every token has a probability", tokens, if given == tokens { possible } else { given }),
        ];
        let Some((first, rest)) = self.step_seconds.split_first() else { return checks };
        let prompt = self.prompt_ids.len() as f64;
        let mut sums = |name: &str, expected: f64, found: &Reading| {
            checks.extend(found.value().map(|found| Check::sums(name, expected, found)));
        };
        sums("the prefill is the first step", *first, &self.prefill);
        sums("the prefill's rate is the prompt over it", prompt / first, &self.prefill_rate);
        sums(
            "the decode's rate is its tokens over its steps",
            rest.len() as f64 / rest.iter().sum::<f64>(),
            &self.decode_rate,
        );
        checks
    }

    fn checks(&self) -> &[Check] {
        &self.checks
    }

    fn void(&self) -> bool {
        self.void
    }
}
