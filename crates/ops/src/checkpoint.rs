//! A checkpoint as data: how a step is lowered, which calls are fused, which kernel each call is bound to, and why.
//! The rungs themselves are in `ladder.rs`; old ones are never edited once a record refers to them.

use crate::bind::REFERENCE;
use crate::rewrite::{self, Rewrite};
use crate::{DType, Pace, Tolerance};
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
    /// Choices that come before `kernels`: what a rung adds to its parent's.
    pub prefers: &'static [Choice],
    /// The first that fits and whose kernel takes the call's shape; an operator that no choice names is bound to its last
    /// kernel that runs here.
    pub kernels: &'static [Choice],
    pub pace: Pace,
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
    pub pace: Pace,
    /// The switches' state after resolution, each `Some`.
    pub controls: MechanismControls,
}

/// Kernel names of the fused RMSNorm that the `register_cached_rmsnorm` switch chooses between.
pub(crate) const REGISTER_CACHED: &str = "register-cached";
pub(crate) const TWO_PASS: &str = "two-pass";

impl Resolved {
    /// The same, but calls whose shape a kernel of this operator and name takes are bound to it before any other choice.
    pub fn preferring(&self, operator: &'static str, kernel: &'static str) -> Resolved {
        let mut resolved = self.clone();
        resolved.kernels.insert(0, Choice { operator, rows: 0..=usize::MAX, packed: None, kernel });
        resolved
    }
}

impl Checkpoint {
    /// Applies the switches.
    ///
    /// # Errors
    /// A switch that asks for a mechanism this checkpoint cannot have (its parents lack what it needs, or it is an oracle),
    /// named.
    pub fn resolve(&self, controls: MechanismControls) -> Result<Resolved, String> {
        if self.is_oracle() {
            let changed = [
                ("capacity-cache", "off", controls.capacity_cache == Some(false)),
                ("register-cached-rmsnorm", "on", controls.register_cached_rmsnorm == Some(true)),
                ("tiled-prefill", "on", controls.tiled_prefill == Some(true)),
            ];
            if let Some((switch, state, _)) = changed.iter().find(|(_, _, asked)| *asked) {
                return Err(format!(
                    "checkpoint '{}' cannot switch {state} {switch}: it is the oracle, which has reference kernels and no \
                     other mechanisms; leave the switch out, or use a rung of the ladder",
                    self.name
                ));
            }
        }
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
        let mut kernels = [self.prefers, self.kernels].concat();
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
        let Checkpoint { name, weights, activations, pace, .. } = *self;
        Ok(Resolved { name, cache, weights, activations, rewrites, kernels, pace, controls })
    }

    /// Whether every choice is of a reference kernel.
    fn is_oracle(&self) -> bool {
        !self.kernels.is_empty() && self.kernels.iter().all(|choice| choice.kernel == REFERENCE)
    }

    /// The line from the first rung to this one.
    pub fn lineage(&'static self) -> Vec<&'static Checkpoint> {
        let mut line: Vec<_> = std::iter::successors(Some(self), |rung| rung.parent).collect();
        line.reverse();
        line
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::ladder::{ALL, KV_CACHE, REFERENCE as ORACLE};

    /// What a checkpoint has by its place on the ladder.
    struct Place {
        oracle: bool,
        cached: bool,
        bounded: bool,
        fused_norm: bool,
        tiled: bool,
    }

    fn places() -> impl Iterator<Item = (&'static Checkpoint, Place)> {
        ALL.iter().enumerate().map(|(index, checkpoint)| {
            let oracle = checkpoint.name == "reference";
            let from = |name: &str| index >= ALL.iter().position(|known| known.name == name).unwrap();
            let place = Place {
                oracle,
                cached: oracle || from("kv-cache"),
                bounded: oracle || from("capacity-cache"),
                fused_norm: !oracle && from("rmsnorm"),
                tiled: !oracle && from("tiled-prefill"),
            };
            (*checkpoint, place)
        })
    }

    fn state(resolved: &Resolved) -> (bool, bool, bool) {
        let MechanismControls { capacity_cache, register_cached_rmsnorm, tiled_prefill } = resolved.controls;
        assert_eq!(capacity_cache, Some(resolved.cache == CachePolicy::Bounded));
        assert_eq!(tiled_prefill, Some(resolved.rewrites.contains(&rewrite::TILED_ATTENTION)));
        (capacity_cache.unwrap(), register_cached_rmsnorm.unwrap(), tiled_prefill.unwrap())
    }

    /// `checkpoint` resolves to `expected`, or, where that is None, refuses and names itself and `switch`.
    fn expect(
        checkpoint: &Checkpoint,
        controls: MechanismControls,
        switch: &str,
        expected: Option<(bool, bool, bool)>,
    ) -> Option<Resolved> {
        match (checkpoint.resolve(controls), expected) {
            (Ok(resolved), Some(expected)) => {
                assert_eq!(state(&resolved), expected, "{} {controls:?}", checkpoint.name);
                Some(resolved)
            }
            (Err(text), None) => {
                assert!(text.contains(checkpoint.name) && text.contains(switch), "{controls:?}: {text}");
                None
            }
            (found, expected) => panic!("{} {controls:?}: {found:?}, expected {expected:?}", checkpoint.name),
        }
    }

    #[test]
    fn without_switches_a_checkpoint_is_what_it_says() {
        for (checkpoint, place) in places() {
            let own = Some((place.bounded, place.fused_norm, place.tiled));
            let resolved = expect(checkpoint, MechanismControls::default(), "", own).unwrap();
            assert_eq!((resolved.cache, resolved.weights), (checkpoint.cache, checkpoint.weights));
            assert_eq!((&resolved.rewrites[..], &resolved.kernels[..]), (checkpoint.rewrites, checkpoint.kernels));
            assert!(checkpoint.prefers.is_empty(), "the engine's own rungs spell out all choices");
        }
    }

    #[test]
    fn what_a_rung_prefers_comes_first() {
        const MINE: &[Choice] = &[crate::ladder::choose("linear", "mine")];
        let mine = Checkpoint { prefers: MINE, ..crate::ladder::SELECTED };
        let resolved = mine.resolve(MechanismControls::default()).unwrap();
        assert_eq!(resolved.kernels[..1], *MINE);
        assert_eq!(resolved.kernels[1..], *crate::ladder::SELECTED.kernels);
    }

    #[test]
    fn capacity_cache_needs_a_cache() {
        for (checkpoint, place) in places() {
            let with = |on| MechanismControls { capacity_cache: Some(on), ..MechanismControls::default() };
            let on = place.cached.then_some((true, place.fused_norm, place.tiled));
            expect(checkpoint, with(true), "capacity-cache", on);
            let off = (!place.oracle).then_some((false, place.fused_norm, place.tiled));
            if let Some(resolved) = expect(checkpoint, with(false), "capacity-cache", off) {
                let cache = if place.cached { CachePolicy::Concatenate } else { CachePolicy::None };
                assert_eq!(resolved.cache, cache, "{}", checkpoint.name);
            }
        }
    }

    #[test]
    fn register_cached_needs_fused_norm() {
        for (checkpoint, place) in places() {
            let with = |on| MechanismControls { register_cached_rmsnorm: Some(on), ..MechanismControls::default() };
            let norms = |resolved: Resolved| -> Vec<&str> {
                let norms = resolved.kernels.iter().filter(|choice| choice.operator == "rms_norm");
                norms.map(|choice| choice.kernel).collect()
            };
            let on = place.fused_norm.then_some((place.bounded, true, place.tiled));
            if let Some(resolved) = expect(checkpoint, with(true), "register-cached-rmsnorm", on) {
                assert_eq!(norms(resolved), [REGISTER_CACHED, TWO_PASS]);
            }
            let off = expect(checkpoint, with(false), "", Some((place.bounded, false, place.tiled))).unwrap();
            assert_eq!(norms(off), if place.fused_norm { vec![TWO_PASS] } else { vec![] });
        }
    }

    #[test]
    fn tiled_prefill_needs_a_cache() {
        for (checkpoint, place) in places() {
            let with = |on| MechanismControls { tiled_prefill: Some(on), ..MechanismControls::default() };
            let on = (place.cached && !place.oracle).then_some((place.bounded, place.fused_norm, true));
            expect(checkpoint, with(true), "tiled-prefill", on);
            expect(checkpoint, with(false), "", Some((place.bounded, place.fused_norm, false)));
        }
    }

    #[test]
    fn kv_cache_with_capacity_is_the_next_rung() {
        let on = MechanismControls { capacity_cache: Some(true), ..MechanismControls::default() };
        let (switched, next) = (KV_CACHE.resolve(on).unwrap(), crate::ladder::CAPACITY_CACHE.resolve(on).unwrap());
        assert_eq!((switched.cache, switched.controls), (next.cache, next.controls));
        assert_eq!((switched.rewrites, switched.kernels), (next.rewrites, next.kernels));
    }

    #[test]
    fn the_oracle_says_why_it_refuses() {
        let on = MechanismControls { tiled_prefill: Some(true), ..MechanismControls::default() };
        let text = ORACLE.resolve(on).unwrap_err();
        assert!(text.contains("cannot switch on tiled-prefill") && text.contains("oracle"), "{text}");
        let off = MechanismControls { capacity_cache: Some(false), ..MechanismControls::default() };
        let text = ORACLE.resolve(off).unwrap_err();
        assert!(text.contains("cannot switch off capacity-cache") && text.contains("oracle"), "{text}");
    }
}
