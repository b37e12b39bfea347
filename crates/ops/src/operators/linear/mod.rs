//! Linear layer: `y[t, o] = Σ_k x[t, k] * W[o, k] (+ bias[o])`. Every projection of a layer and the vocabulary projection.
//! Here: the operator, its list of kernels and its cases. Not here: the kernels, one file per family.
//!
//! Ladder:
//! - `reference`: plain f64 sums over any element types and formats.
//! - `dense`: bfloat16 weights; streamed once for few rows, a blocked matrix product for many.
//! - `vanilla`: packed weights, one output per vector lane, every weight dequantized again for every row of x.
//! - `matmul`: packed weights, a panel of W is dequantized once and serves every row: prefill.
//! - `matmul-8bit`: the same with activations of eight bits: half the products, and less exact (beside the ladder).
//! - `matvec`: packed weights and at most eight rows; the codes are multiplied as integers in one pass over W, scales are
//!   applied once per group: decode, limited by the bytes of W.
//!
//! Versions differ in how they multiply: `portable`, `avx2` and `avx512f` share one f32 body (`lanes.rs`); `avx512-bf16`
//! multiplies bfloat16 pairs (`tiles.rs`); `avx512-vnni` and `avx2-maddubs` multiply codes with 16-bit fixed-point
//! activations in two byte planes, exactly (`streams.rs`, `maddubs.rs`, `maddubs_tiles.rs`; `planes.rs`), and `avx512-vnni-pairs` with 16-bit words of
//! them and fewer products (`pairs.rs`; `words.rs`); `amx-bf16` multiplies tiles of bfloat16
//! (`amx/`, `tile_walk.rs`), whose emulation in plain memory (`emulated-tiles`) is held to the same cases on machines without tiles.
//!
//! All kernels share out blocks of 16 outputs in contiguous ranges, so no result depends on the number of workers.

mod ahead;
mod dense;
mod eight_bit;
pub(super) mod gated;
mod lanes;
mod matmul;
mod matvec;
mod reference;
mod unrolled;
mod vanilla;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod eight_bit_vnni;
#[cfg(target_arch = "x86_64")]
mod maddubs;
#[cfg(target_arch = "x86_64")]
mod maddubs_tiles;
#[cfg(target_arch = "x86_64")]
mod pairs;
#[cfg(target_arch = "x86_64")]
mod planes;
#[cfg(target_arch = "x86_64")]
mod streams;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod vector;
#[cfg(target_arch = "x86_64")]
mod words;

use super::shapes::all_bf16;
use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::testing::{Case, Draw, Fill, WeightFill, bf16, f32, out, weight};
use crate::weight::{ElementType, LANES, Packed, WeightFormat};
use crate::{DType, Invocation, Matrix, MatrixMut};

/// Input x `(rows, in)`; weights W `(out, in)` and optionally bias f32 `(1, out)`; output y `(rows, out)`.
pub struct Linear;
pub static LINEAR: Linear = Linear;

impl Operator for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn group(&self) -> Group {
        Group::Projections
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        let found = (shape.inputs.len(), shape.weights.len(), shape.outputs.len());
        if !matches!(found, (1, 1 | 2, 1)) {
            return Err(format!("expected 1 input, 1 or 2 weights and 1 output, found {found:?}"));
        }
        let (x, w, y) = (shape.inputs[0], shape.weights[0], shape.outputs[0]);
        if x.width != w.cols || y.width != w.rows || x.rows != y.rows {
            let (x, w, y) = ((x.rows, x.width), (w.rows, w.cols), (y.rows, y.width));
            return Err(format!("expected x (rows, in), W (out, in) and y (rows, out), found {x:?}, {w:?} and {y:?}"));
        }
        if let Some(bias) = shape.weights.get(1)
            && (bias.rows, bias.cols, bias.format) != (1, w.rows, WeightFormat::F32)
        {
            let found = (bias.rows, bias.cols);
            return Err(format!("expected an f32 bias (1, {}), found {} {found:?}", w.rows, bias.format));
        }
        Ok(())
    }

    fn cost(&self, shape: &CallShape) -> Cost {
        let weights: u64 = shape.weights.iter().map(|weight| weight.bytes()).sum();
        let (x, w) = (shape.inputs[0], shape.weights[0]);
        Cost {
            bytes_read: weights + x.bytes(),
            bytes_written: shape.outputs[0].bytes(),
            flops: 2 * (x.rows * w.rows * w.cols) as u64,
        }
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        cases()
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        let (format, cols) = draw.format();
        let rows = draw.rows();
        case(rows, draw.count(3 * LANES) + draw.count(LANES), cols, format, draw.flip())
    }
}

/// The list.
pub static CPU: &[&Kernel] = &[
    &reference::REFERENCE,
    #[cfg(target_arch = "x86_64")]
    &amx::MATMUL_EMULATED,
    #[cfg(target_arch = "x86_64")]
    &amx::DENSE_EMULATED,
    &dense::PORTABLE,
    #[cfg(target_arch = "x86_64")]
    &dense::AVX2,
    #[cfg(target_arch = "x86_64")]
    &dense::AVX512F,
    #[cfg(target_arch = "x86_64")]
    &dense::AVX512_BF16,
    #[cfg(target_arch = "x86_64")]
    &amx::DENSE,
    &vanilla::PORTABLE,
    #[cfg(target_arch = "x86_64")]
    &vanilla::AVX2,
    #[cfg(target_arch = "x86_64")]
    &vanilla::AVX512F,
    &matmul::PORTABLE,
    #[cfg(target_arch = "x86_64")]
    &matmul::AVX2,
    #[cfg(target_arch = "x86_64")]
    &maddubs_tiles::MATMUL_AVX2,
    #[cfg(target_arch = "x86_64")]
    &matmul::AVX512F,
    #[cfg(target_arch = "x86_64")]
    &matmul::AVX512_BF16,
    #[cfg(target_arch = "x86_64")]
    &matmul::AVX512_VNNI,
    #[cfg(target_arch = "x86_64")]
    &amx::MATMUL,
    &eight_bit::PORTABLE,
    #[cfg(target_arch = "x86_64")]
    &eight_bit::AVX2,
    #[cfg(target_arch = "x86_64")]
    &eight_bit::AVX512F,
    #[cfg(target_arch = "x86_64")]
    &eight_bit::AVX512_VNNI,
    &matvec::PORTABLE,
    #[cfg(target_arch = "x86_64")]
    &matvec::AVX2,
    #[cfg(target_arch = "x86_64")]
    &maddubs::MATVEC_AVX2,
    #[cfg(target_arch = "x86_64")]
    &matvec::AVX512F,
    #[cfg(target_arch = "x86_64")]
    &matvec::AVX512_VNNI,
    #[cfg(target_arch = "x86_64")]
    &pairs::MATVEC,
];

/// The operands of a call, checked against each other: what the vector kernels' addresses rely on.
#[derive(Clone, Copy)]
struct Operands<'a> {
    /// (rows, in)
    x: Matrix<'a>,
    /// (out, in)
    w: Packed<'a>,
    /// (out)
    bias: Option<&'a [f32]>,
    /// (rows, out)
    y: MatrixMut<'a>,
}

impl<'a> Operands<'a> {
    fn of(i: &Invocation<'a>) -> Operands<'a> {
        let bias = (i.weights() > 1).then(|| i.weight(1).as_f32());
        Operands::checked(i, i.weight(0), bias)
    }

    /// Those of the gate and of what it gates (`gated_linear`): weights 0 and 1, which have one shape and format.
    fn gated(i: &Invocation<'a>) -> [Operands<'a>; 2] {
        let both = [0, 1].map(|n| Operands::checked(i, i.weight(n), None));
        assert_eq!(both[0].w.format, both[1].w.format, "`supports` admits one format");
        both
    }

    fn checked(i: &Invocation<'a>, w: Packed<'a>, bias: Option<&'a [f32]>) -> Operands<'a> {
        let (x, y) = (i.input(0), i.output(0));
        assert!(x.width == w.cols && y.width == w.rows && x.rows == y.rows, "linear's shapes were checked");
        assert_eq!(w.bytes.len(), w.format.packed_bytes(w.rows, w.cols), "a packed weight is whole");
        assert_eq!(w.cols % w.format.group(), 0, "groups divide the columns");
        assert!(bias.is_none_or(|bias| bias.len() == w.rows), "one bias per output");
        Operands { x, w, bias, y }
    }
}

/// What the kernels of packed weights need.
fn packed(shape: &CallShape) -> Result<(), String> {
    all_bf16(shape)?;
    let format = shape.weights[0].format;
    if format.is_packed() { Ok(()) } else { Err(format!("needs packed weights, found {format}")) }
}

/// What the kernels of dense weights need.
fn dense(shape: &CallShape) -> Result<(), String> {
    all_bf16(shape)?;
    let format = shape.weights[0].format;
    if format == WeightFormat::Bf16 { Ok(()) } else { Err(format!("needs bf16 weights, found {format}")) }
}

fn case(rows: usize, out_width: usize, cols: usize, format: WeightFormat, biased: bool) -> Case {
    let label = format!("{rows}x{cols}->{out_width} {format:?}{}", if biased { " bias" } else { "" });
    let mut case = Case::new(label, vec![bf16(rows, cols)], vec![out(rows, out_width, DType::BF16)]);
    case.weights.push(weight(out_width, cols, format));
    if biased {
        case.weights.push(weight(1, out_width, WeightFormat::F32));
    }
    case
}

/// Every format, row count and odd edge appears; the rest of the product is left out.
fn cases() -> Vec<Case> {
    use ElementType::{BF16, F16, F32};
    use WeightFormat::{Affine4, Bf16, Int8};
    let w4 = |group, parameters| Affine4 { group, parameters };
    let g128 = w4(128, BF16);
    let mut cases = vec![case(3, 65, 33, WeightFormat::F32, true)];
    cases[0].inputs[0] = f32(3, 33);
    // Row counts around the kernels' borders, with odd numbers of outputs.
    for (rows, outs) in [(1, 200), (2, 97), (3, 65), (4, 96), (5, 97), (6, 64), (7, 65), (8, 65), (9, 97)] {
        cases.push(case(rows, outs, 256, g128, rows % 2 == 0));
    }
    for (rows, outs) in [(10, 65), (17, 97), (33, 16), (130, 64)] {
        cases.push(case(rows, outs, 256, g128, rows % 2 == 1));
    }
    // More rows than are packed at a time.
    cases.push(case(260, 17, 128, g128, false));
    cases.push(case(260, 17, 128, w4(32, F16), false));
    cases.push(case(260, 17, 128, Bf16, true));
    // Every format, few rows and many, no multiple of 16 outputs.
    let formats = [
        w4(128, F16),
        w4(128, F32),
        w4(64, BF16),
        w4(64, F16),
        w4(64, F32),
        w4(32, BF16),
        w4(32, F16),
        w4(32, F32),
        Int8 { group: 32 },
        Int8 { group: 16 },
        Bf16,
    ];
    for (index, format) in formats.into_iter().enumerate() {
        let rows = 1 + index % 8;
        cases.push(case(rows, 97, 384, format, index % 2 == 0));
        cases.push(case(10 + 3 * index, 65, 384, format, index % 2 == 1));
    }
    // Shapes of real models: widths that 128 does not divide, long sums, one output, fewer outputs than workers.
    cases.push(case(8, 5, 128, g128, false));
    cases.push(case(8, 1, 1024, g128, false));
    cases.push(case(1, 96, 2560, g128, false));
    cases.push(case(2, 200, 576, w4(64, BF16), true));
    cases.push(case(17, 96, 576, w4(64, BF16), false));
    cases.push(case(3, 96, 576, Int8 { group: 32 }, false));
    cases.push(case(1, 65, 1024, Int8 { group: 16 }, false));
    cases.push(case(11, 96, 576, Int8 { group: 32 }, false));
    // Dense: any number of columns, odd ones too.
    for (rows, outs, cols) in [(1, 200, 1024), (2, 65, 127), (8, 5, 1), (9, 97, 3), (13, 64, 575), (33, 16, 576)] {
        cases.push(case(rows, outs, cols, Bf16, rows % 2 == 0));
    }
    cases.push(case(1, 5, 256, g128, false));
    cases.push(case(10, 96, 256, g128, false));
    cases.push(case(10, 97, 256, g128, true));
    cases.push(case(128, 96, 256, g128, false));
    cases.push(case(1, 1024, 2560, g128, false));
    // Large values among small ones: what coarse activations would not survive.
    for (rows, format) in [(1, g128), (4, w4(32, F16)), (8, Int8 { group: 32 }), (17, g128), (17, Bf16)] {
        let mut outliers = case(rows, 97, 1024, format, false);
        outliers.label.push_str(" outliers");
        outliers.inputs[0].fill = Fill::Outliers;
        cases.push(outliers);
    }
    // Codes and activations at their limits, all of one sign: the largest integer sums, where they would saturate or wrap.
    // 127.5 has the largest significand of bfloat16.
    let fills = [Fill::Uniform(100.0, 127.0), Fill::Uniform(-127.5, -127.5), Fill::Uniform(127.5, 127.5)];
    for (index, (format, code)) in [
        (g128, 0),
        (g128, 15),
        (w4(32, F16), 0),
        (w4(32, F16), 15),
        (Int8 { group: 32 }, 0x80),
        (Int8 { group: 32 }, 0x7f),
        (Int8 { group: 16 }, 0x80),
    ]
    .into_iter()
    .enumerate()
    {
        for fill in fills {
            for rows in [1 + index, 9 + index] {
                let mut extreme = case(rows, 33, 512, format, false);
                extreme.label.push_str(&format!(" codes {code:#x}, x {fill:?}"));
                extreme.weights[0].fill = WeightFill::Codes(code);
                extreme.inputs[0].fill = fill;
                cases.push(extreme);
            }
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::{ViewShape, WeightShape};

    fn shape(x: (usize, usize), w: (usize, usize), y: (usize, usize), bias: Option<usize>) -> CallShape {
        let format = WeightFormat::Affine4 { group: 128, parameters: ElementType::BF16 };
        let view = |(rows, width): (usize, usize)| ViewShape { rows, width, dtype: DType::BF16 };
        let mut weights = vec![WeightShape { rows: w.0, cols: w.1, format }];
        weights.extend(bias.map(|cols| WeightShape { rows: 1, cols, format: WeightFormat::F32 }));
        let (inputs, outputs) = (vec![view(x)], vec![view(y)]);
        CallShape {
            inputs,
            outputs,
            weights,
            attributes: crate::Attributes::default(),
            sequences: Vec::new(),
            cache_dtype: DType::BF16,
        }
    }

    #[test]
    fn cost_counts_each_byte_once() {
        // Qwen3-0.6B's gate projection for one token: 192 row blocks of 8 groups of 17 lines.
        let cost = LINEAR.cost(&shape((1, 1024), (3072, 1024), (1, 3072), None));
        assert_eq!(cost.bytes_read, 192 * 8 * 17 * 64 + 2048);
        assert_eq!((cost.bytes_written, cost.flops), (6144, 2 * 3072 * 1024));
    }

    #[test]
    fn every_matvec_refuses_more_than_eight_rows() {
        let matvecs: Vec<_> = CPU.iter().filter(|kernel| kernel.name == "matvec").collect();
        assert!(!matvecs.is_empty());
        for kernel in matvecs {
            let takes = |rows| (kernel.supports)(&shape((rows, 128), (5, 128), (rows, 5), None));
            assert_eq!(takes(8), Ok(()), "{}", kernel.label());
            assert_eq!(takes(9), Err("takes at most 8 rows, found 9".to_owned()), "{}", kernel.label());
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        assert!(LINEAR.check(&shape((3, 128), (5, 128), (3, 5), Some(5))).is_ok());
        assert!(LINEAR.check(&shape((3, 256), (5, 128), (3, 5), None)).is_err());
        assert!(LINEAR.check(&shape((3, 128), (5, 128), (3, 6), None)).is_err());
        assert!(LINEAR.check(&shape((3, 128), (5, 128), (4, 5), None)).is_err());
        assert!(LINEAR.check(&shape((3, 128), (5, 128), (3, 5), Some(6))).is_err());
    }
}
