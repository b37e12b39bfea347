//! Programs for tests: an operator that does nothing of its own and takes any operands, and how to bind and feed a program.

#![allow(dead_code, reason = "each test file uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "tests")]

use ops::testing::{Case, Draw};
use ops::*;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// An operator of any operands in one group, with the given kernel.
pub struct Any {
    pub group: Group,
    pub kernels: &'static [&'static Kernel],
    pub cache: CacheUse,
}

impl Operator for Any {
    fn name(&self) -> &'static str {
        "any"
    }
    fn group(&self) -> Group {
        self.group
    }
    fn check(&self, shape: &CallShape) -> Result<(), String> {
        if shape.inputs.len() > 8 { Err("at most eight inputs".to_owned()) } else { Ok(()) }
    }
    fn cost(&self, _: &CallShape) -> Cost {
        Cost::default()
    }
    fn touches_cache(&self, _: &Attributes) -> CacheUse {
        self.cache
    }
    fn kernels(&self) -> &'static [&'static Kernel] {
        self.kernels
    }
    fn cases(&self) -> Vec<Case> {
        Vec::new()
    }
    fn random_case(&self, _: &mut Draw) -> Case {
        unreachable!("it has no kernel of its own to test")
    }
}

static NOTHING_KERNEL: Kernel = kernel! {
    operator: "any", name: "nothing", isa: "portable", features: &[],
    nmse: 0.0, because: "does nothing", run: |_| {},
};

/// Takes and gives anything, does nothing.
pub static NOTHING: Any = Any { group: Group::Pointwise, kernels: &[&NOTHING_KERNEL], cache: CacheUse::None };
pub static READS_CACHE: Any = Any { cache: CacheUse::Read, group: Group::Attention, ..NOTHING };
pub static WRITES_CACHE: Any = Any { cache: CacheUse::Write, group: Group::CacheUpdate, ..NOTHING };

pub const ROWS: usize = 2;

pub fn builder() -> ProgramBuilder {
    let mut builder = ProgramBuilder::new(ROWS, 16, CachePolicy::Bounded, DType::BF16);
    builder.layer(Some(0));
    builder
}

/// A checkpoint that chooses nothing.
pub fn resolved() -> Resolved {
    Resolved {
        name: "test",
        cache: CachePolicy::Bounded,
        weights: WeightPolicy::Packed,
        activations: DType::BF16,
        rewrites: Vec::new(),
        kernels: Vec::new(),
        pace: Pace::PLAIN,
        controls: MechanismControls::default(),
    }
}

pub fn bound(program: Program, workers: usize) -> Bound {
    let weights = Arc::new(Weights::pack(&[], 1, &AtomicBool::new(false)).unwrap());
    bind(program, &resolved(), &Registry::standard(), &weights, Features::NONE, workers).unwrap()
}

/// Runs a program of [`ROWS`] rows that uses no cache storage.
pub fn run_once<O: Observer>(bound: &mut Bound, workers: &Workers, observer: &O) {
    let sequences = [Sequence { first_row: 0, rows: ROWS, offset: 0, caches: &[] }];
    run(bound, workers, &Step { tokens: &[0; ROWS], sequences: &sequences }, observer);
}
