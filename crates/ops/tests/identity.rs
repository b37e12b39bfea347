//! The identity through every packed kernel reads back W, dequantized: each kernel's view of the layout, column by column.
//! Not here: random operands against the reference, which are `kernels.rs`'s.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{NOTHING, resolved};
use ops::operators::LINEAR;
use ops::testing::{Random, RandomWeight};
use ops::*;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const SIZE: usize = 128;

/// `y = x Wᵀ` with a weight `(128, 128)` named `w`; x and y.
fn program(rows: usize, format: WeightFormat) -> (Program, View, View) {
    let mut b = ProgramBuilder::new(rows, rows, CachePolicy::None, DType::BF16);
    let (x, y) = (b.buffer("x", rows, SIZE, DType::BF16), b.buffer("y", rows, SIZE, DType::BF16));
    b.call(&NOTHING, "given", &[], &[], &[x], Attributes::default());
    let w = b.weight("w", SIZE, SIZE, format);
    b.call(&LINEAR, "tested", &[x], &[w], &[y], Attributes::default());
    (b.finish(y), x, y)
}

/// Column `k` of W is row `k` of the result, off by no more than the output's rounding and that of `q * scale + bias`.
fn check(kernel: &'static Kernel, rows: usize, format: WeightFormat, weights: &Arc<Weights>) {
    let choice = Choice { operator: "linear", rows: 0..=usize::MAX, packed: None, kernel: kernel.name };
    let checkpoint = Resolved { kernels: vec![choice], ..resolved() };
    // A kernel that is added to the registry is the last of its name.
    let registry = Registry::with(&[kernel], &[]);
    let packed = weights.get("w").unwrap();
    let workers = Workers::new(2, false).unwrap();
    for first in (0..SIZE).step_by(rows) {
        let (program, x, y) = program(rows, format);
        let mut bound = bind(program, &checkpoint, &registry, weights, Features::detect(), 2).unwrap();
        assert!(std::ptr::eq(bound.calls()[1].kernel, kernel));
        let matrix = bound.view(x);
        for (row, col) in (0..rows).flat_map(|row| (0..SIZE).map(move |col| (row, col))) {
            matrix.set(row, col, f32::from(first + row == col));
        }
        let sequences = [Sequence { first_row: 0, rows, offset: 0, caches: &[] }];
        run(&mut bound, &workers, &Step { tokens: &vec![0; rows], sequences: &sequences }, &Plain);
        let matrix = bound.view(y);
        for (row, out) in (0..rows).flat_map(|row| (0..SIZE).map(move |out| (row, out))) {
            let (got, want) = (matrix.get(row, out), packed.value(out, first + row));
            let close = (got - want).abs() <= want.abs() / 256.0 + 1e-6;
            assert!(close, "{} {format:?}: W[{out}, {}] is {want}, read back as {got}", kernel.label(), first + row);
        }
    }
}

#[test]
fn the_identity_reads_back_the_dequantized_columns() {
    let mut checked = Vec::new();
    for format in [
        WeightFormat::Affine4 { group: 128, parameters: ElementType::BF16 },
        WeightFormat::Affine4 { group: 64, parameters: ElementType::F32 },
        WeightFormat::Affine4 { group: 32, parameters: ElementType::F16 },
        WeightFormat::Int8 { group: 32 },
        WeightFormat::Int8 { group: 16 },
    ] {
        let source = RandomWeight::new(&mut Random::new(11), SIZE, SIZE, format);
        let request = WeightRequest { name: "w".to_owned(), format, source: &source, may_round: false };
        let weights = Arc::new(Weights::pack(&[request], 1, &AtomicBool::new(false)).unwrap());
        for kernel in LINEAR.kernels().iter().filter(|kernel| ["matvec", "vanilla", "matmul"].contains(&kernel.name)) {
            let missing = kernel.features.missing_from(Features::detect());
            if !missing.is_empty() {
                println!("skipped: {} needs {missing}", kernel.label());
                continue;
            }
            for rows in [8, SIZE] {
                let (program, ..) = program(rows, format);
                if (kernel.supports)(&program.call_shape(&program.calls[1], &[])).is_ok() {
                    check(kernel, rows, format, &weights);
                    checked.push((kernel.name, rows));
                }
            }
        }
    }
    for expected in [("matvec", 8), ("vanilla", 8), ("vanilla", SIZE), ("matmul", 8), ("matmul", SIZE)] {
        assert!(checked.contains(&expected), "{expected:?} was not checked");
    }
}
