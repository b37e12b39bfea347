//! Where the numbers of a reduced capture come from: which trace, which source, which stretch.
//! Not here: the check that the trace is whole (`manifest.rs`).

use crate::capture::{CaptureMetadata, Ended, TracePackage};
use crate::conditions::Binary;
use crate::known::Known;
use crate::quantity::Reading;
use crate::timeline::SamplingUse;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The files that a record was computed from, and what the captured program was made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// SHA-256 of the metadata file.
    pub metadata_sha256: Known<String>,
    /// The raw files, every one of which had the manifest's hash when it was read.
    pub trace: Known<TracePackage>,
    /// SHA-256 of the counters' file of another tool, if one was given.
    pub profile_sha256: Known<String>,
    pub source: Source,
    /// The program that computed, which need not be the one that was captured.
    pub reduced_by: Binary,
}

/// What the captured program was compiled from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub commit: Known<String>,
    pub dirty: Known<bool>,
    /// SHA-256 of the list of source files with their hashes (`sources.sha256`).
    pub tree_sha256: Known<String>,
    /// Files in that list.
    pub files: Known<u64>,
}

/// The captured stretch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stretch {
    pub process_id: u32,
    pub warmup: u64,
    pub steps: u64,
    pub ended: Ended,
    pub wall_ns: u64,
    pub precision: Known<f64>,
    pub sampling: SamplingUse,
    pub overhead: Known<Reading>,
}

impl Stretch {
    pub fn of(metadata: &CaptureMetadata) -> Stretch {
        Stretch {
            process_id: metadata.process_id,
            warmup: metadata.warmup,
            steps: metadata.steps,
            ended: metadata.ended,
            wall_ns: metadata.wall_ns,
            precision: metadata.precision.clone(),
            sampling: metadata.sampling.clone(),
            overhead: metadata.overhead.clone(),
        }
    }
}
