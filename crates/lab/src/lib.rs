//! Your own kernels and checkpoints: the one file to edit. `--solution lab` uses what is listed at its end.
//! Not here: the kernels and rungs that come with the engine (crate `ops`); they stay available beside yours.
//!
//! # A kernel
//! One function and one `static`, and its name in `KERNELS`. The operator's name says what it computes; the table in
//! `crates/ops/src/operators/README.md` lists operands and attributes. The tests below hold it to the operator's reference
//! on all of the operator's cases, and `hourglass find --solution lab` shows it in the wiring and the replay. A kernel named
//! like one that a checkpoint chooses takes that one's place; an operator that no checkpoint names uses the last one listed.
//!
//! # A checkpoint
//! One constant made by struct update from its parent, and its name in `CHECKPOINTS`. The last of them is then what
//! `--checkpoint fast` (the default) means with `--solution lab`:
//!
//! ```
//! use ops::{Checkpoint, Choice, Invocation, Kernel, Registry, Tolerance, bf16_to_f32, kernel, ladder};
//!
//! /// Like the example, but a row is never split.
//! fn add_whole_rows(call: &Invocation<'_>) {
//!     let (a, b, sum) = (call.input(0), call.input(1), call.output(0));
//!     for row in call.share(sum.rows) {
//!         let (a, b) = (a.bf16(row), b.bf16(row));
//!         for column in 0..sum.width {
//!             sum.set(row, column, bf16_to_f32(a[column]) + bf16_to_f32(b[column]));
//!         }
//!     }
//! }
//!
//! static WHOLE_ROWS: Kernel = kernel! {
//!     operator: "add", name: "whole-rows", isa: "portable", features: &[], supports: bfloat16_only,
//!     nmse: 1.6e-5, because: "one bfloat16 rounding: at most 1/256 of an element", run: add_whole_rows,
//! };
//!
//! static MINE: Checkpoint = Checkpoint {
//!     name: "mine",
//!     parent: Some(&ladder::SELECTED),
//!     change: "one worker adds a whole row",
//!     hypothesis: "a row is 2 KB: to split it costs more than to add it",
//!     kernels: &[
//!         Choice { operator: "add", rows: 0..=usize::MAX, packed: None, kernel: "whole-rows" },
//!         Choice { operator: "linear", rows: 0..=ladder::MATVEC_MAX_ROWS, packed: Some(true), kernel: "matvec" },
//!         Choice { operator: "linear", rows: 0..=usize::MAX, packed: Some(true), kernel: "matmul" },
//!         Choice { operator: "rms_norm", rows: 0..=usize::MAX, packed: None, kernel: "register-cached" },
//!         Choice { operator: "rms_norm", rows: 0..=usize::MAX, packed: None, kernel: "two-pass" },
//!     ],
//!     tolerance: Tolerance { nmse: 1e-12, reason: "the same arithmetic in the same order" },
//!     file: file!(),
//!     line: line!(),
//!     ..ladder::SELECTED
//! };
//!
//! // And in the two lists at the end; the last kernel of an operator is also that of checkpoints that name none for it.
//! static KERNELS: &[&Kernel] = &[&WHOLE_ROWS, &ADD];
//! static CHECKPOINTS: &[&Checkpoint] = &[&MINE];
//! # static ADD: Kernel = kernel! {
//! #     operator: "add", name: "lab-example", isa: "portable", features: &[], supports: bfloat16_only,
//! #     nmse: 1.6e-5, because: "as above", run: add_whole_rows,
//! # };
//! # fn bfloat16_only(_: &ops::CallShape) -> Result<(), String> { Ok(()) }
//! # let registry = Registry::with(KERNELS, CHECKPOINTS);
//! # assert_eq!(registry.checkpoint("mine").unwrap().lineage().last().map(|rung| rung.name), Some("mine"));
//! ```
//! `docs/first-decision.md` takes exactly this from an idea to a written decision.

use ops::{Checkpoint, Invocation, Kernel, Registry, bf16_to_f32, kernel};

/// A worked example: the sum of two bfloat16 matrices, in safe code. Rungs up to `placed-heads` call it (`hourglass find
/// --solution lab --checkpoint selected`); in later ones a coarser call does this too. Every worker does its share of the rows, or of the
/// columns where there are fewer rows than workers.
fn add(call: &Invocation<'_>) {
    let (a, b, sum) = (call.input(0), call.input(1), call.output(0));
    let by_rows = sum.rows >= call.workers;
    let rows = if by_rows { call.share(sum.rows) } else { 0..sum.rows };
    for row in rows {
        let (a, b) = (a.bf16(row), b.bf16(row));
        let columns = if by_rows { 0..sum.width } else { call.share(sum.width) };
        for column in columns {
            sum.set(row, column, bf16_to_f32(a[column]) + bf16_to_f32(b[column]));
        }
    }
}

static ADD: Kernel = kernel! {
    operator: "add", name: "lab-example", isa: "portable", features: &[], supports: bfloat16_only,
    nmse: 1.6e-5, because: "one bfloat16 rounding: at most 1/256 of an element", run: add,
};

fn bfloat16_only(shape: &ops::CallShape) -> Result<(), String> {
    match shape.inputs.iter().chain(&shape.outputs).find(|view| view.dtype != ops::DType::BF16) {
        None => Ok(()),
        Some(view) => Err(format!("it adds bfloat16 buffers, not {:?}", view.dtype)),
    }
}

/// Your kernels: add yours here.
static KERNELS: &[&Kernel] = &[&ADD];

/// Your checkpoints: add yours here.
static CHECKPOINTS: &[&Checkpoint] = &[];

/// The engine's kernels and checkpoints, and those above.
pub fn registry() -> Registry {
    Registry::with(KERNELS, CHECKPOINTS)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ops::testing::{Outcome, check};

    /// Every kernel listed above, on every case of its operator, against the operator's reference.
    #[test]
    fn every_kernel_agrees_with_its_reference() {
        for kernel in KERNELS {
            let all = registry().operators();
            let operator = *all.iter().find(|operator| operator.name() == kernel.operator).expect("a known operator");
            let mut passed = 0;
            for case in operator.cases() {
                for seed in 0..3 {
                    match check(operator, kernel, &case, seed).unwrap() {
                        Outcome::Passed { .. } => passed += 1,
                        Outcome::Skipped(missing) => println!("skipped {}: it needs {missing}", kernel.label()),
                        Outcome::Unsupported(why) => println!("{} does not take {}: {why}", kernel.label(), case.label),
                    }
                }
            }
            assert!(
                passed > 0 || !kernel.features.missing_from(ops::Features::detect()).is_empty(),
                "{}",
                kernel.label()
            );
        }
    }

    #[test]
    fn checkpoints_have_names_of_their_own_and_a_parent() {
        let registry = registry();
        for checkpoint in CHECKPOINTS {
            assert_eq!(registry.checkpoints().filter(|other| other.name == checkpoint.name).count(), 1);
            assert_ne!(checkpoint.name, ops::ladder::FAST, "an alias: it stands for your last checkpoint already");
            assert!(checkpoint.parent.is_some(), "{}", checkpoint.name);
        }
    }
}
