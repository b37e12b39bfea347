//! Under what a measurement was made: the binary, the machine, the threads, and the kernels that really ran.
//! Reading them off a machine is `probe`'s.

use crate::identity::identity;
use crate::known::Known;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Everything besides the workload and the subject that may move a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    pub binary: Binary,
    pub host: Host,
    /// Workers that walk the program, the calling thread among them.
    pub threads: u64,
    /// Whether each worker stays on one processor.
    pub pinned: bool,
    /// Instruction-set features that kernels were allowed to use.
    pub features: Vec<String>,
    /// What was bound, per phase and operator.
    pub kernels: Vec<BoundKernel>,
}

/// Which program measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Binary {
    pub version: String,
    /// SHA-256 of the executable file.
    pub build_id: Known<String>,
    pub commit: Known<String>,
    /// Whether tracked files differed from the commit when it was built.
    pub dirty: Known<bool>,
}

/// On what machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// What the kernels ran on: `cpu`.
    pub device: String,
    pub cpu_model: Known<String>,
    /// Processors that this process may use.
    pub processors: u64,
    pub memory_bytes: Known<u64>,
    pub operating_system: Known<String>,
    /// The operating system kernel's release.
    pub kernel_release: Known<String>,
    /// Mode of transparent huge pages: `always`, `madvise` or `never`.
    pub huge_pages: Known<String>,
    /// The device's driver.
    pub driver: Known<String>,
}

/// One kernel as bound in one phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BoundKernel {
    pub phase: crate::Phase,
    pub operator: String,
    /// `name/isa`.
    pub kernel: String,
    /// Calls per pass that it is bound to.
    pub calls: u64,
    /// Where its source is: `file:line`.
    pub source: String,
}

impl Conditions {
    /// SHA-256 of the conditions' canonical JSON.
    pub fn id(&self) -> String {
        identity(self)
    }
}
