//! A pace decides who computes what and when memory is asked, never what comes out: every pace gives the same bits as the plain one,
//! for every number of workers, step after step. Not here: whether a pace pays.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{NOTHING, resolved};
use ops::operators::LINEAR;
use ops::testing::{Random, RandomWeight};
use ops::*;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// (inputs, outputs) of two layers, one after the other: many row blocks, and fewer than workers.
const LAYERS: [(usize, usize); 2] = [(64, 1024), (1024, 33)];

fn program(rows: usize, format: WeightFormat) -> (Program, View) {
    let mut builder = ProgramBuilder::new(rows, 16, CachePolicy::Bounded, DType::BF16);
    let given = builder.buffer("x", rows, LAYERS[0].0, DType::BF16);
    builder.call(&NOTHING, "given", &[], &[], &[given], Attributes::default());
    let mut x = given;
    for (name, (inputs, outputs)) in ["first", "second"].into_iter().zip(LAYERS) {
        let y = builder.buffer("y", rows, outputs, DType::BF16);
        let w = builder.weight(name, outputs, inputs, format);
        builder.call(&LINEAR, name, &[x], &[w], &[y], Attributes::default());
        x = y;
    }
    (builder.finish(x), given)
}

fn pack(program: &Program) -> Arc<Weights> {
    let mut random = Random::new(5);
    let sources: Vec<RandomWeight> =
        program.weights.iter().map(|spec| RandomWeight::new(&mut random, spec.rows, spec.cols, spec.format)).collect();
    let requests: Vec<WeightRequest<'_>> = program
        .weights
        .iter()
        .zip(&sources)
        .map(|(spec, source)| WeightRequest { name: spec.name.clone(), format: spec.format, source, may_round: true })
        .collect();
    Arc::new(Weights::pack(&requests, 1, &AtomicBool::new(false)).unwrap())
}

/// The result's bits after each of three steps.
fn run_steps(kernel: &'static Kernel, pace: Pace, rows: usize, format: WeightFormat, workers: usize) -> Vec<Vec<u16>> {
    let (program, given) = program(rows, format);
    let weights = pack(&program);
    let choice = Choice { operator: "linear", rows: 0..=usize::MAX, packed: None, kernel: kernel.name };
    let checkpoint = Resolved { kernels: vec![choice], pace, ..resolved() };
    let registry = Registry::with(&[kernel], &[]);
    let mut bound = bind(program, &checkpoint, &registry, &weights, Features::detect(), workers).unwrap();
    let threads = Workers::new(workers, false).unwrap();
    let mut random = Random::new(9);
    let tokens = vec![0; rows];
    let mut results = Vec::new();
    for _ in 0..3 {
        let x = bound.view(given);
        (0..rows * x.width).for_each(|at| x.set(at / x.width, at % x.width, random.normal()));
        let sequences = [Sequence { first_row: 0, rows, offset: 0, caches: &[] }];
        run(&mut bound, &threads, &Step { tokens: &tokens, sequences: &sequences }, &Plain);
        let y = bound.output();
        results.push((0..rows).flat_map(|row| y.bf16(row).to_vec()).collect());
    }
    results
}

#[test]
fn no_pace_changes_a_bit() {
    let w4 = WeightFormat::Affine4 { group: 32, parameters: ElementType::F16 };
    let mut tried = 0;
    for kernel in LINEAR.kernels().iter().filter(|kernel| kernel.ahead.is_some()) {
        for (rows, format) in
            [(1, w4), (2, WeightFormat::Int8 { group: 32 }), (3, w4), (8, w4), (1, WeightFormat::Bf16)]
        {
            let (program, _) = program(rows, format);
            let supports = |call: &Call| (kernel.supports)(&program.call_shape(call, &[])).is_ok();
            if !kernel.features.missing_from(Features::detect()).is_empty() || !program.calls[1..].iter().all(supports)
            {
                continue;
            }
            for workers in [1, 2, 3, 7] {
                let want = run_steps(kernel, Pace::PLAIN, rows, format, workers);
                for (fetch_ahead, guided) in [(true, false), (false, true), (true, true)] {
                    let got = run_steps(kernel, Pace { fetch_ahead, guided }, rows, format, workers);
                    assert_eq!(
                        got,
                        want,
                        "{} {format}, {rows} rows, {workers} workers, {fetch_ahead} {guided}",
                        kernel.label()
                    );
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 0, "the portable matvec runs everywhere");
}

static TAKEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static TAKES: Kernel = kernel! {
    operator: "linear", name: "takes", isa: "portable", features: &[], nmse: 0.0, because: "counts", run: |i| {
        for part in i.portions(i.output(0).width, 3) {
            TAKEN.lock().unwrap().extend(part);
        }
    },
};

#[test]
fn portions_cover_every_item_once() {
    for guided in [false, true] {
        for workers in 1..=5 {
            TAKEN.lock().unwrap().clear();
            let pace = Pace { fetch_ahead: false, guided };
            run_steps(&TAKES, pace, 1, WeightFormat::Bf16, workers);
            let taken = TAKEN.lock().unwrap();
            // Three steps of two calls, all of which the kernel was chosen for.
            assert_eq!(taken.len(), 3 * (LAYERS[0].1 + LAYERS[1].1), "{workers} workers, guided {guided}");
            assert_eq!(taken.iter().collect::<HashSet<_>>().len(), LAYERS[0].1);
        }
    }
}
