//! A checkpoint as data: how a step is lowered, which calls are fused, which kernel each call is bound to, and why.
//! The rungs themselves are in `ladder.rs`; old ones are never edited once a record refers to them.

use crate::rewrite::{self, Rewrite};
use crate::{DType, Tolerance};
use std::ops::RangeInclusive;

/// How keys and values are kept between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CachePolicy {
    /// Not at all: every step runs the whole prefix.
    None,
    /// Concatenated: every append allocates the new length and copies the old contents.
    Concatenate,
    /// One allocation per layer from the request's bound; an append writes its slice.
    Bounded,
}

/// What matrices are held as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightPolicy {
    /// 32-bit floats, exactly the file's values.
    Float32,
    /// bfloat16; packed files are dequantized at load.
    Dense,
    /// The file's own packed 4- or 8-bit form; a bfloat16 file is quantized at load by mlx's rule.
    Packed,
}

pub type RowRange = RangeInclusive<usize>;

/// Which kernel variant calls of an operator are bound to, by their row count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub operator: &'static str,
    /// Rows of the call's first input (or output, if it has none).
    pub rows: RowRange,
    /// Only calls whose first weight is of a packed format (true) or dense (false); None for either.
    pub packed: Option<bool>,
    /// [`crate::Kernel::name`]; the last version in the registry that this machine runs is bound.
    pub kernel: &'static str,
}

/// One rung of the ladder (or the oracle): its parent, its one change, and the hypothesis that could fail.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub name: &'static str,
    pub parent: Option<&'static Checkpoint>,
    /// The one change from the parent, in a sentence.
    pub change: &'static str,
    /// What a profile of the parent should show if the change is to pay; it may turn out false.
    pub hypothesis: &'static str,
    pub cache: CachePolicy,
    pub weights: WeightPolicy,
    pub activations: DType,
    /// Applied in order to the lowered program.
    pub rewrites: &'static [Rewrite],
    /// The first that fits and whose kernel takes the call's shape; an operator that no choice names is bound to its last
    /// kernel that runs here.
    pub kernels: &'static [Choice],
    /// Largest relative L2 distance of its logits from its parent's on one prompt, squared, and why.
    pub tolerance: Tolerance,
    pub file: &'static str,
    pub line: u32,
}

/// The three switches over a checkpoint's mechanisms; `None` inherits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MechanismControls {
    pub capacity_cache: Option<bool>,
    pub register_cached_rmsnorm: Option<bool>,
    pub tiled_prefill: Option<bool>,
}

/// A checkpoint with its switches applied: what lowering and binding read.
#[derive(Clone, Debug)]
pub struct Resolved {
    pub name: &'static str,
    pub cache: CachePolicy,
    pub weights: WeightPolicy,
    pub activations: DType,
    pub rewrites: Vec<Rewrite>,
    pub kernels: Vec<Choice>,
    /// The switches' state after resolution, each `Some`.
    pub controls: MechanismControls,
}

/// Kernel names of the fused RMSNorm that the `register_cached_rmsnorm` switch chooses between.
pub(crate) const REGISTER_CACHED: &str = "register-cached";
pub(crate) const TWO_PASS: &str = "two-pass";

impl Checkpoint {
    /// Applies the switches.
    ///
    /// # Errors
    /// A switch that asks for a mechanism this checkpoint cannot have (its parents lack what it needs), named.
    pub fn resolve(&self, controls: MechanismControls) -> Result<Resolved, String> {
        let impossible = |switch: &str, needs: &str| {
            Err(format!(
                "checkpoint '{}' cannot switch on {switch}: it needs {needs}; use a later checkpoint",
                self.name
            ))
        };
        let mut cache = self.cache;
        match (controls.capacity_cache, cache) {
            (Some(true), CachePolicy::None) => return impossible("capacity-cache", "a cache (kv-cache or later)"),
            (Some(true), _) => cache = CachePolicy::Bounded,
            (Some(false), CachePolicy::Bounded) => cache = CachePolicy::Concatenate,
            _ => {}
        }
        let fused_norm = self.rewrites.contains(&rewrite::RMS_NORM);
        let mut kernels = self.kernels.to_vec();
        match controls.register_cached_rmsnorm {
            Some(true) if !fused_norm => {
                return impossible("register-cached-rmsnorm", "fused RMSNorm (rmsnorm or later)");
            }
            Some(on) if fused_norm => {
                kernels.retain(|choice| choice.operator != "rms_norm");
                let names = [REGISTER_CACHED, TWO_PASS];
                for kernel in &names[usize::from(!on)..] {
                    kernels.push(Choice { operator: "rms_norm", rows: 0..=usize::MAX, packed: None, kernel });
                }
            }
            _ => {}
        }
        let mut rewrites = self.rewrites.to_vec();
        match controls.tiled_prefill {
            Some(true) if !rewrites.contains(&rewrite::TILED_ATTENTION) => {
                if self.cache == CachePolicy::None {
                    return impossible("tiled-prefill", "a cache (kv-cache or later)");
                }
                rewrites.push(rewrite::TILED_ATTENTION);
            }
            Some(false) => rewrites.retain(|rewrite| *rewrite != rewrite::TILED_ATTENTION),
            _ => {}
        }
        let register_cached =
            fused_norm && kernels.iter().any(|c| c.operator == "rms_norm" && c.kernel == REGISTER_CACHED);
        let controls = MechanismControls {
            capacity_cache: Some(cache == CachePolicy::Bounded),
            register_cached_rmsnorm: Some(register_cached),
            tiled_prefill: Some(rewrites.contains(&rewrite::TILED_ATTENTION)),
        };
        let Checkpoint { name, weights, activations, .. } = *self;
        Ok(Resolved { name, cache, weights, activations, rewrites, kernels, controls })
    }

    /// The line from the first rung to this one.
    pub fn lineage(&'static self) -> Vec<&'static Checkpoint> {
        let mut line: Vec<_> = std::iter::successors(Some(self), |rung| rung.parent).collect();
        line.reverse();
        line
    }
}
