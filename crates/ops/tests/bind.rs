//! What binding refuses, and which of a checkpoint's choices it takes: real operators in small programs.
//! Not here: barriers and memory, which are `memory_and_barriers.rs`'s.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{NOTHING, ROWS, resolved};
use ops::operators::{LINEAR, RMS_NORM};
use ops::testing::{Random, RandomWeight};
use ops::*;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const W4: WeightFormat = WeightFormat::Affine4 { group: 32, parameters: ElementType::BF16 };

/// One linear call of `rows` rows with a weight `(16, 64)` named `w`.
fn linear(rows: usize) -> Program {
    let mut b = ProgramBuilder::new(rows, 16, CachePolicy::Bounded, DType::BF16);
    let (x, y) = (b.buffer("x", rows, 64, DType::BF16), b.buffer("y", rows, 16, DType::BF16));
    b.call(&NOTHING, "given", &[], &[], &[x], Attributes::default());
    let w = b.weight("w", 16, 64, W4);
    b.call(&LINEAR, "q_proj", &[x], &[w], &[y], Attributes::default());
    b.finish(y)
}

/// One normalisation over segments of `dim` with a weight named `w`.
fn norm(dim: usize) -> Program {
    let mut b = common::builder();
    let (x, y) = (b.buffer("x", ROWS, dim, DType::BF16), b.buffer("y", ROWS, dim, DType::BF16));
    b.call(&NOTHING, "given", &[], &[], &[x], Attributes::default());
    let w = b.weight("w", 1, dim, WeightFormat::F32);
    let attributes = Attributes { head_dim: dim, epsilon: 1e-6, ..Attributes::default() };
    b.call(&RMS_NORM, "norm", &[x], &[w], &[y], attributes);
    b.finish(y)
}

fn packed(name: &str, rows: usize, cols: usize, format: WeightFormat) -> Arc<Weights> {
    let source = RandomWeight::new(&mut Random::new(1), rows, cols, format);
    let request = WeightRequest { name: name.to_owned(), format, source: &source, may_round: false };
    Arc::new(Weights::pack(&[request], 1, &AtomicBool::new(false)).unwrap())
}

fn choices(operator: &'static str, kernels: &[&'static str]) -> Resolved {
    let choice = |kernel: &&'static str| Choice { operator, rows: 0..=usize::MAX, packed: None, kernel };
    Resolved { kernels: kernels.iter().map(choice).collect(), ..resolved() }
}

/// The label of the kernel of the second call, from [`bind`]; [`choose`] must say the same.
fn bound_kernel(
    program: Program,
    checkpoint: &Resolved,
    registry: &Registry,
    weights: &Arc<Weights>,
    features: Features,
) -> Result<String, BindError> {
    let call = &program.calls[1];
    let shape = program.call_shape(call, &[]);
    let chosen = choose(call, &shape, checkpoint, registry, features).map(Kernel::label);
    match bind(program, checkpoint, registry, weights, features, 1) {
        Ok(bound) => {
            let label = bound.calls()[1].kernel.label();
            assert_eq!(chosen.unwrap(), label);
            Ok(label)
        }
        Err(error) => {
            if let Err(chosen) = chosen {
                assert_eq!(chosen.to_string(), error.to_string());
            }
            Err(error)
        }
    }
}

static SPECIAL: Kernel = kernel! {
    operator: "rms_norm", name: "special", isa: "amx", features: &[Feature::AmxTile, Feature::Avx2],
    nmse: 0.0, because: "never run", run: |_| {},
};

#[test]
fn a_missing_feature_is_named_and_never_yields_to_another_choice() {
    let registry = Registry::with(&[&SPECIAL], &[]);
    let weights = packed("w", 1, 64, WeightFormat::F32);
    let checkpoint = choices("rms_norm", &["special", "two-pass"]);
    let avx2 = Features::of(&[Feature::Avx2]);
    let error = bound_kernel(norm(64), &checkpoint, &registry, &weights, avx2).unwrap_err();
    let BindError::NoKernel { slot: "norm", operator: "rms_norm", kernel, why } = error else { panic!("{error}") };
    assert_eq!((kernel.as_str(), why.as_str()), ("special", "special/amx needs amx-tile"));
    // With the feature it is the first choice.
    let both = Features::of(&[Feature::AmxTile, Feature::Avx2]);
    assert_eq!(bound_kernel(norm(64), &checkpoint, &registry, &weights, both).unwrap(), "special/amx");
}

#[test]
fn a_kernel_that_does_not_take_the_shape_yields_to_the_next_choice() {
    let (registry, features) = (Registry::standard(), Features::NONE);
    let checkpoint = choices("rms_norm", &["register-cached", "two-pass"]);
    let short = packed("w", 1, 64, WeightFormat::F32);
    let found = bound_kernel(norm(64), &checkpoint, &registry, &short, features).unwrap();
    assert_eq!(found, "register-cached/portable");
    let long = packed("w", 1, 5000, WeightFormat::F32);
    let found = bound_kernel(norm(5000), &checkpoint, &registry, &long, features).unwrap();
    assert_eq!(found, "two-pass/portable");
    // Without a next choice the first one's reason is told.
    let alone = choices("rms_norm", &["register-cached"]);
    let error = bound_kernel(norm(5000), &alone, &registry, &long, features).unwrap_err();
    let BindError::NoKernel { why, .. } = error else { panic!("{error}") };
    assert!(
        why.contains("register-cached/portable: keeps segments of up to 4096 elements, this one has 5000"),
        "{why}"
    );
}

#[test]
fn rows_and_formats_decide_among_choices() {
    let (registry, weights) = (Registry::standard(), packed("w", 16, 64, W4));
    let choice = |rows, kernel| Choice { operator: "linear", rows, packed: Some(true), kernel };
    let dense = Choice { operator: "linear", rows: 0..=usize::MAX, packed: Some(false), kernel: "dense" };
    let kernels = vec![dense, choice(0..=8, "matvec"), choice(0..=usize::MAX, "vanilla")];
    let checkpoint = Resolved { kernels, ..resolved() };
    for (rows, expected) in [(1, "matvec/portable"), (8, "matvec/portable"), (9, "vanilla/portable")] {
        let found = bound_kernel(linear(rows), &checkpoint, &registry, &weights, Features::NONE).unwrap();
        assert_eq!(found, expected, "{rows} rows");
    }
}

/// What binding chooses, whatever this machine has: nothing of it is run here.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_features_that_are_left_decide_the_version() {
    use Feature::{Avx2, Avx512bf16, Avx512bw, Avx512dq, Avx512f, Avx512vl, Avx512vnni, Fma, SideAdds};
    let (registry, weights) = (Registry::standard(), packed("w", 16, 64, W4));
    let bound = |rows, kernel, features| {
        bound_kernel(linear(rows), &choices("linear", &[kernel]), &registry, &weights, features).unwrap()
    };
    let avx2 = Features::of(&[Avx2, Fma]);
    let foundation = avx2.with(Features::of(&[Avx512f]));
    let bf16 = foundation.with(Features::of(&[Avx512bw, Avx512vl, Avx512dq, Avx512bf16]));
    let vnni = bf16.with(Features::of(&[Avx512vnni]));
    let amd = vnni.with(Features::of(&[SideAdds]));
    let expected = [
        (Features::NONE, ["matvec/portable", "matvec/portable", "matmul/portable"]),
        (avx2, ["matvec/avx2-maddubs", "matvec/avx2-maddubs", "matmul/avx2-maddubs"]),
        (foundation, ["matvec/avx512f", "matvec/avx512f", "matmul/avx512f"]),
        (bf16, ["matvec/avx512f", "matvec/avx512f", "matmul/avx512-bf16"]),
        (vnni, ["matvec/avx512-vnni", "matvec/avx512-vnni", "matmul/avx512-vnni"]),
        (amd, ["matvec/avx512-vnni", "matvec/avx512-vnni-pairs", "matmul/avx512-vnni"]),
        (amd.without(Features::of(&[Avx512vnni])), ["matvec/avx512f", "matvec/avx512f", "matmul/avx512-bf16"]),
    ];
    for (features, [one, eight, nine]) in expected {
        let found = [bound(1, "matvec", features), bound(8, "matvec", features), bound(9, "matmul", features)];
        assert_eq!(found, [one, eight, nine], "{features}");
    }
}

#[test]
fn a_kernel_that_does_not_exist() {
    let (registry, weights) = (Registry::standard(), packed("w", 16, 64, W4));
    let checkpoint = choices("linear", &["matvek"]);
    let error = bound_kernel(linear(2), &checkpoint, &registry, &weights, Features::NONE).unwrap_err();
    let BindError::UnknownKernel { slot: "q_proj", operator: "linear", kernel, known } = error else {
        panic!("{error}")
    };
    assert_eq!(kernel, "matvek");
    assert!(known.contains("matvec/portable") && known.contains("reference/portable"), "{known}");
}

#[test]
fn a_weight_that_was_not_packed() {
    let (registry, weights) = (Registry::standard(), packed("v", 16, 64, W4));
    let checkpoint = choices("linear", &["matvec"]);
    let error = bound_kernel(linear(2), &checkpoint, &registry, &weights, Features::NONE).unwrap_err();
    let BindError::MissingWeight { slot: "q_proj", operator: "linear", weight } = error else { panic!("{error}") };
    assert_eq!(weight, "w");
}

#[test]
fn a_weight_of_another_shape_or_format() {
    let (registry, checkpoint) = (Registry::standard(), choices("linear", &["matvec"]));
    let wider = WeightFormat::Affine4 { group: 64, parameters: ElementType::BF16 };
    let same_bytes = WeightFormat::Affine4 { group: 32, parameters: ElementType::F16 };
    for (rows, cols, format) in [(17, 64, W4), (16, 128, W4), (16, 64, wider), (16, 64, same_bytes)] {
        let weights = packed("w", rows, cols, format);
        let error = bound_kernel(linear(2), &checkpoint, &registry, &weights, Features::NONE).unwrap_err();
        let BindError::WeightMismatch { slot: "q_proj", weight, rows: 16, cols: 64, format: W4, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(weight, "w");
    }
}
