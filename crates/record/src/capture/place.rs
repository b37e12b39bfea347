//! Where a worker is in the walk: in a kernel, at a barrier, or between two calls; and what a sample or line costs there.
//! Not here: finding out (`attribute.rs`).

use crate::capture::share::Share;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a worker was doing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Computing its part of a call.
    Kernel {
        operator: String,
        /// `name/isa`.
        kernel: String,
    },
    /// Between arriving at a call and starting it.
    BarrierWait,
    /// Inside a pass and in no call.
    Dispatch,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Kernel { operator, kernel } => write!(f, "{operator}: {kernel}"),
            Place::BarrierWait => f.write_str("[barrier wait]"),
            Place::Dispatch => f.write_str("[dispatch]"),
        }
    }
}

/// Samples with the time that they stand for, and what part of a whole that is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    pub samples: u64,
    pub weight_ns: u64,
    pub share: Share,
}
