//! Whether a measurement covers what it set out to, and if not, why: an incomplete one has no total.
//! Single missing values are in `known.rs`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Complete, or the reason why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Raw")]
pub struct Coverage {
    complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Raw {
    complete: bool,
    reason: Option<String>,
}

impl Coverage {
    pub fn complete() -> Coverage {
        Coverage { complete: true, reason: None }
    }

    pub fn incomplete(reason: impl Into<String>) -> Coverage {
        Coverage { complete: false, reason: Some(reason.into()) }
    }

    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Why it is incomplete.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}

impl TryFrom<Raw> for Coverage {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Coverage, String> {
        match (raw.complete, raw.reason) {
            (true, Some(reason)) => Err(format!("coverage is complete and yet gives a reason: '{reason}'")),
            (false, None) => Err("coverage is incomplete without a reason".to_owned()),
            (complete, reason) => Ok(Coverage { complete, reason }),
        }
    }
}
