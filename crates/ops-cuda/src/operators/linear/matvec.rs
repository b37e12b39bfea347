//! Products of one to eight rows: how a launch is cut, and several products of one input in one launch. Not here: their arithmetic
//! (`kernels/linear_matvec.cu` for 4-bit codes, `linear_plain.cu` for bfloat16).

use super::{ahead, bias};
use crate::layout::{DeviceWeight, FRAGMENTS, describe, layout};
use crate::queue::Queue;
use ops::{Invocation, WeightFormat, WeightShape};

/// Products that one launch holds.
const PARTS: usize = 3;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Part {
    w: DeviceWeight,
    bias: u64,
    residual: u64,
    y: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    x: u64,
    norm: u64,
    rows: u32,
    cols: u32,
    parts: u32,
    epsilon: f32,
    split: u32,
    together: u32,
    per_col: f32,
    sharers: u32,
    first: [u32; 4],
    part: [Part; PARTS],
    best: u64,
}

/// What a kernel does around the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Around {
    Nothing,
    Norm,
    Gated,
}

/// Which kernel, and how much a block does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(super) file: &'static str,
    pub(super) kernel: &'static str,
    pub(super) warps: u32,
    /// Outputs per block (gated: of the result).
    pub(super) outputs: u32,
    /// Warps that share an output (plain weights), or teams of warps (codes copied ahead).
    pub(super) split: u32,
    /// Row tiles, or outputs, of a block whose weights are copied ahead.
    pub(super) together: u32,
    /// Blocks of a cluster, which share the columns.
    pub(super) sharers: u32,
    pub(super) shared_bytes: u32,
}

impl Arguments {
    fn new(i: &Invocation<'_>, part: Part) -> Arguments {
        let x = i.input(0);
        Arguments {
            x: x.as_ptr() as u64,
            norm: 0,
            rows: x.rows as u32,
            cols: x.width as u32,
            parts: 0,
            epsilon: i.attributes().epsilon,
            split: 1,
            together: 0,
            per_col: 1.0 / x.width as f32,
            sharers: 1,
            first: [0; 4],
            part: [part; PARTS],
            best: 0,
        }
    }

    /// Adds a product, if it is of the same input and there is room.
    pub(crate) fn join(&mut self, other: &Arguments, part: Part, cut: &Cut) -> bool {
        let parts = self.parts as usize;
        if (self.x, self.rows, self.cols) != (other.x, other.rows, other.cols) || parts == PARTS {
            return false;
        }
        self.part[parts] = part;
        self.first[parts + 1] = self.first[parts] + part.w.rows.div_ceil(cut.outputs);
        self.parts += 1;
        true
    }

    pub(crate) fn launch(&self, queue: &Queue, cut: &Cut) {
        let Cut { split, together, sharers, .. } = *cut;
        let blocks = self.first[self.parts as usize] * sharers;
        let alone = (self.parts == 1).then(|| finds_largest(cut)).flatten();
        let found = alone.and_then(|kernel| Some((kernel, queue.takes_largest(self.part[0].y)?)));
        let (kernel, best) = found.unwrap_or((cut.kernel, 0));
        let whole = |part: &Part| part.w.rows.is_multiple_of(16 * together.max(1)) && part.w.has_bf16_scales();
        let known = self.part[..self.parts as usize].iter().all(whole).then(|| ahead::known(kernel, self.cols, cut));
        let kernel = known.flatten().unwrap_or(kernel);
        let arguments = Arguments { split, together, sharers, best, ..*self };
        let shape = ([blocks, 1, 1], [cut.warps * 32, 1, 1], cut.shared_bytes);
        queue.put_clusters(cut.file, kernel, shape, [sharers, 1, 1], &arguments);
    }
}

/// The kernel that does what a launch's does and finds the largest output, if there is one and it pays: with blocks of four outputs, of
/// which Qwen3-0.6B's head has 38,000, steps were 0.7 % longer than with the search behind it.
fn finds_largest(cut: &Cut) -> Option<&'static str> {
    match cut.kernel {
        "norm_ahead_g128_u2" => Some("head_ahead_g128_u2"),
        "norm_ahead_g64_u2" => Some("head_ahead_g64_u2"),
        "norm_ahead_plain_d2" if cut.outputs > 4 => Some("head_ahead_plain_d2"),
        _ => None,
    }
}

fn part(i: &Invocation<'_>, weight: usize, output: usize) -> Part {
    let (start, shape) = i.weight_at(weight);
    Part { w: describe(start as u64, &shape, false), bias: 0, residual: 0, y: i.output(output).as_ptr() as u64 }
}

/// How a launch is cut for so many rows of x and a weight.
pub(super) type Cutter = fn(usize, &WeightShape, Around) -> Cut;

pub(super) fn linear(i: &Invocation<'_>) {
    cut_linear(i, cut);
}

pub(super) fn linear_add(i: &Invocation<'_>) {
    cut_linear_add(i, cut);
}

pub(super) fn norm_linear(i: &Invocation<'_>) {
    cut_norm_linear(i, cut);
}

pub(super) fn norm_swiglu(i: &Invocation<'_>) {
    cut_norm_swiglu(i, cut);
}

pub(super) fn cut_linear(i: &Invocation<'_>, cut: Cutter) {
    let part = Part { bias: bias(i), ..part(i, 0, 0) };
    let queue: &Queue = i.queue();
    queue.matvec(cut(i.input(0).rows, &i.weight_at(0).1, Around::Nothing), &Arguments::new(i, part), part);
}

pub(super) fn cut_linear_add(i: &Invocation<'_>, cut: Cutter) {
    let part = Part { residual: i.input(1).as_ptr() as u64, ..part(i, 0, 0) };
    let queue: &Queue = i.queue();
    queue.matvec(cut(i.input(0).rows, &i.weight_at(0).1, Around::Nothing), &Arguments::new(i, part), part);
}

pub(super) fn cut_norm_linear(i: &Invocation<'_>, cut: Cutter) {
    let cut = cut(i.input(0).rows, &i.weight_at(1).1, Around::Norm);
    let first = Arguments { norm: i.weight_at(0).0 as u64, ..Arguments::new(i, part(i, 1, 0)) };
    let mut all = first;
    for index in 1..i.weights() {
        all.join(&first, part(i, index, index - 1), &cut);
    }
    let queue: &Queue = i.queue();
    queue.flush();
    all.launch(queue, &cut);
}

pub(super) fn cut_norm_swiglu(i: &Invocation<'_>, cut: Cutter) {
    let cut = cut(i.input(0).rows, &i.weight_at(1).1, Around::Gated);
    let mut all = Arguments { norm: i.weight_at(0).0 as u64, ..Arguments::new(i, part(i, 1, 0)) };
    all.part[1] = part(i, 2, 0);
    // Every block has both parts.
    all.parts = 1;
    all.first[1] = all.part[0].w.rows.div_ceil(cut.outputs);
    let queue: &Queue = i.queue();
    queue.flush();
    all.launch(queue, &cut);
}

fn cut(rows: usize, shape: &WeightShape, around: Around) -> Cut {
    if layout(shape) == FRAGMENTS { fragments(shape, around) } else { plain(rows, shape, around) }
}

/// bfloat16 rows: four warps of one or two outputs each, or so many on one output that each asks for its share at once.
fn plain(rows: usize, shape: &WeightShape, around: Around) -> Cut {
    // Loads of 16 bytes that a lane makes of a row.
    let loads = shape.cols.div_ceil(8 * 32);
    // Gated blocks keep the whole input's norm, which pays for many outputs only: theirs stay whole.
    let whole = rows > 1 || around == Around::Gated;
    let split = if whole { 1 } else { loads.div_ceil(10).next_power_of_two().min(4) };
    let each = loads.div_ceil(split);
    let (kernel, outputs) = match (around, rows, each) {
        (Around::Nothing, 1, ..=4) => ("matvec_plain_r1o2d4", 2),
        (Around::Nothing, 1, ..=8) => ("matvec_plain_r1o1d8", 1),
        (Around::Nothing, 1, _) => ("matvec_plain_r1o1d10", 1),
        (Around::Nothing, ..) => ("matvec_plain_r8o1d4", 1),
        (Around::Norm, 1, ..=4) => ("norm_plain_r1o2d4", 2),
        (Around::Norm, 1, ..=8) => ("norm_plain_r1o1d8", 1),
        (Around::Norm, 1, _) => ("norm_plain_r1o1d10", 1),
        (Around::Norm, ..) => ("norm_plain_r8o1d4", 1),
        (Around::Gated, 1, _) => ("gated_plain_r1d4", 1),
        (Around::Gated, ..) => ("gated_plain_r8d2", 1),
    };
    let shared_bytes = if around == Around::Nothing { 0 } else { shape.cols as u32 * 4 };
    let split = split as u32;
    Cut {
        file: "linear_plain.cu",
        kernel,
        warps: 4,
        outputs: 4 / split * outputs,
        split,
        together: 0,
        sharers: 1,
        shared_bytes,
    }
}

/// Codes: a block's warps share the units of 128 columns of a row tile (gated: of one of each part).
fn fragments(shape: &WeightShape, around: Around) -> Cut {
    let WeightFormat::Affine4 { group, .. } = shape.format else { unreachable!("only codes lie in fragments") };
    let units = shape.cols.div_ceil(128);
    let (tiles, at_once) = match (around, group, units) {
        (Around::Gated, 32, _) | (Around::Gated, _, ..=8) => (2, 1),
        (Around::Gated, ..) => (2, 2),
        (_, 32, _) => (1, 1),
        (_, _, ..=8) if shape.rows < 1 << 16 => (1, 1),
        (_, _, ..=32) | (Around::Norm, ..) => (1, 2),
        _ => (1, 4),
    };
    // Small blocks where there are many tiles, so that one's loads run while another computes; larger ones where there are few.
    let most_warps = match around {
        Around::Nothing => 12,
        _ if units <= 8 => 8,
        _ => 5,
    };
    let rounds = units.div_ceil(at_once * most_warps);
    let warps = units.div_ceil(at_once * rounds).max(1) as u32;
    let kernel = match (around, group, tiles, at_once) {
        (Around::Nothing, 128, 1, 1) => "matvec_g128_t1u1",
        (Around::Nothing, 128, 1, 2) => "matvec_g128_t1u2",
        (Around::Nothing, 128, ..) => "matvec_g128_t1u4",
        (Around::Nothing, 64, 1, 1) => "matvec_g64_t1u1",
        (Around::Nothing, 64, 1, 2) => "matvec_g64_t1u2",
        (Around::Nothing, 64, ..) => "matvec_g64_t1u4",
        (Around::Nothing, ..) => "matvec_g32_t1u1",
        (Around::Norm, 128, 1, 1) => "norm_g128_t1u1",
        (Around::Norm, 128, ..) => "norm_g128_t1u2",
        (Around::Norm, 64, 1, 1) => "norm_g64_t1u1",
        (Around::Norm, 64, ..) => "norm_g64_t1u2",
        (Around::Norm, ..) => "norm_g32_t1u1",
        (Around::Gated, 128, _, 1) => "gated_g128_u1",
        (Around::Gated, 128, ..) => "gated_g128_u2",
        (Around::Gated, 64, _, 1) => "gated_g64_u1",
        (Around::Gated, 64, ..) => "gated_g64_u2",
        (Around::Gated, ..) => "gated_g32_u1",
    };
    let norm_bytes = if around == Around::Nothing { 0 } else { shape.cols as u32 * 4 };
    Cut {
        file: "linear_matvec.cu",
        kernel,
        warps,
        outputs: 16,
        split: 1,
        together: 0,
        sharers: 1,
        // Sums of every warp's tiles, its sums of squares, and the norm.
        shared_bytes: warps * (tiles as u32 * 512 + 32) + norm_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ops::ElementType;

    const AROUND: [Around; 3] = [Around::Nothing, Around::Norm, Around::Gated];

    #[test]
    fn a_cut_covers_all_columns_no_warp_is_idle_and_shared_memory_suffices() {
        for cols in [128, 384, 1024, 2048, 2560, 3072, 4096, 9728, 12288, 25600] {
            for (rows, group) in [(1024, 128), (151_936, 128), (1024, 64), (64, 32)] {
                let format = WeightFormat::Affine4 { group, parameters: ElementType::BF16 };
                for around in AROUND.into_iter().filter(|around| *around == Around::Nothing || cols <= 4096) {
                    let cut = fragments(&WeightShape { rows, cols, format }, around);
                    assert!((1..=16).contains(&cut.warps) && cut.warps as usize <= cols / 128, "{cols}: {cut:?}");
                    assert!(cut.shared_bytes <= 48 << 10, "{cols}: {cut:?}");
                }
            }
        }
    }

    #[test]
    fn every_kernel_of_a_cut_is_in_its_file() {
        let parameters = [ElementType::BF16, ElementType::F16];
        let packed = [32, 64, 128]
            .into_iter()
            .flat_map(|group| parameters.map(|p| WeightFormat::Affine4 { group, parameters: p }));
        for format in packed.chain([WeightFormat::Bf16]) {
            for (cols, outs) in [(1024, 1024), (2560, 1024), (4096, 1 << 17), (9728, 1024)] {
                for (around, rows) in AROUND.into_iter().flat_map(|around| [(around, 1), (around, 5)]) {
                    let cut = cut(rows, &WeightShape { rows: outs, cols, format }, around);
                    let source = crate::sources::ALL.iter().find(|source| source.name == cut.file);
                    let text = source.map(crate::sources::Source::text).unwrap_or_default();
                    assert!(text.contains(&format!("({}, ", cut.kernel)), "{cut:?}");
                }
            }
        }
    }

    #[test]
    fn a_head_that_finds_the_largest_is_the_same_kernel_but_for_that() {
        for (file, kernel, outputs) in [
            ("linear_ahead.cu", "norm_ahead_g128_u2", 32),
            ("linear_ahead.cu", "norm_ahead_g64_u2", 32),
            ("linear_ahead_plain.cu", "norm_ahead_plain_d2", 12),
        ] {
            let cut = Cut { file, kernel, outputs, ..plain(1, &SHAPE, Around::Norm) };
            let head = finds_largest(&cut).unwrap_or_else(|| panic!("{kernel} finds none"));
            let source = crate::sources::ALL.iter().find(|source| source.name == file);
            let text = source.map(crate::sources::Source::text).unwrap_or_default();
            // Name, what it is cut for, and warps.
            let line = |name: &str| text.lines().find(|line| line.starts_with(&format!("AHEAD_KERNEL({name}, ")));
            let (of, with) = (line(kernel).unwrap_or_default(), line(head).unwrap_or_default());
            assert_eq!(of.replace(kernel, head).replace("NORMED", "HEAD"), with, "{kernel}");
        }
        let small = Cut { kernel: "norm_ahead_plain_d2", outputs: 4, ..plain(1, &SHAPE, Around::Norm) };
        assert!(finds_largest(&small).is_none(), "its blocks are many and small");
        assert!(finds_largest(&plain(1, &SHAPE, Around::Nothing)).is_none());
    }

    const SHAPE: WeightShape = WeightShape { rows: 100, cols: 256, format: WeightFormat::Bf16 };

    #[test]
    fn products_of_one_input_join_and_others_do_not() {
        let part = Part { w: describe(0, &SHAPE, false), bias: 0, residual: 0, y: 64 };
        let of = |x| Arguments {
            x,
            norm: 0,
            rows: 1,
            cols: 256,
            parts: 0,
            epsilon: 0.0,
            split: 1,
            together: 0,
            per_col: 1.0 / 256.0,
            sharers: 1,
            first: [0; 4],
            part: [part; PARTS],
            best: 0,
        };
        let (cut, mut all) = (plain(1, &SHAPE, Around::Nothing), of(4096));
        for _ in 0..PARTS {
            assert!(all.join(&of(4096), part, &cut));
        }
        assert!(!all.join(&of(4096), part, &cut), "no room");
        assert_eq!(all.first, [0, 13, 26, 39]);
        let mut one = of(4096);
        assert!(one.join(&of(4096), part, &cut) && !one.join(&of(8192), part, &cut), "another input");
    }
}
