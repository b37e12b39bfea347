//! Products of one row whose weights are copied into shared memory ahead: which calls gain by it, and how their launches are cut.
//! Not here: their arithmetic (`kernels/linear_ahead.cu`, `linear_ahead_plain.cu`), and arguments (`matvec.rs`).
//!
//! The numbers are those of the quickest whole steps of Qwen3-0.6B and 4B on an H200; `docs/gpu.md` has what was tried.

use super::matvec::{self, Around, Cut};
use ops::{CallShape, Invocation, WeightFormat, WeightShape};

/// Shared memory that a block may ask for beside what its kernel always has (227 KiB in all).
const MOST_BYTES: usize = 220 << 10;
/// Warps of a block at most, of which there are always a multiple of four.
const MOST_WARPS: usize = 20;

pub(super) fn linear(i: &Invocation<'_>) {
    matvec::cut_linear(i, cut);
}

pub(super) fn linear_add(i: &Invocation<'_>) {
    matvec::cut_linear_add(i, cut);
}

pub(super) fn norm_linear(i: &Invocation<'_>) {
    matvec::cut_norm_linear(i, cut);
}

pub(super) fn norm_swiglu(i: &Invocation<'_>) {
    matvec::cut_norm_swiglu(i, cut);
}

/// Whether a call with these matrices gains.
pub(super) fn take(shape: &CallShape, matrices: &[WeightShape], around: Around) -> Result<(), String> {
    let rows = shape.inputs[0].rows;
    if rows != 1 {
        return Err(format!("takes a single row, these are {rows}"));
    }
    match matrices.iter().find(|weight| find_cut(weight, around).is_none()) {
        None => Ok(()),
        Some(weight) => Err(format!(
            "copying weights ahead does not pay, or not fit shared memory, for {} x {} of {}",
            weight.rows, weight.cols, weight.format
        )),
    }
}

fn cut(_rows: usize, shape: &WeightShape, around: Around) -> Cut {
    find_cut(shape, around).expect("`take` has looked")
}

fn find_cut(shape: &WeightShape, around: Around) -> Option<Cut> {
    match shape.format {
        WeightFormat::Affine4 { group, .. } => codes(shape, group, around),
        _ => plain(shape, around),
    }
}

fn codes(shape: &WeightShape, group: usize, around: Around) -> Option<Cut> {
    let units = shape.cols / 128;
    let many = shape.rows >= 1 << 16;
    // Units of 128 columns that a warp takes at a time, row tiles of a block, teams of warps that share these, most warps of a team.
    let (at_once, tiles, teams, most) = match (around, units) {
        (_, _) if many => (2, 4, 1, MOST_WARPS),
        // Two tiles of a gated block one after the other would take longer than loads into registers do.
        (Around::Gated, ..=8) => (1, 1, 2, 8),
        (Around::Gated, _) => (2, 2, 1, MOST_WARPS),
        (Around::Norm, ..=8) => (1, 1, 1, MOST_WARPS),
        (Around::Norm, ..=20) => (1, 3, 1, MOST_WARPS),
        (Around::Norm, _) => (2, 2, 1, MOST_WARPS),
        (Around::Nothing, ..=16) => (1, 1, 1, MOST_WARPS),
        // Twelve warps that hold two units each in registers are quicker.
        (Around::Nothing, 17..=24) => return None,
        (Around::Nothing, 25..=40) => (2, 2, 1, MOST_WARPS),
        (Around::Nothing, _) => (2, 1, 1, 12),
    };
    let kernel = match (group, at_once) {
        (128, 1) => "ahead_g128_u1",
        (128, 2) => "ahead_g128_u2",
        (128, _) => "ahead_g128_u4",
        (64, 1) => "ahead_g64_u1",
        (64, 2) => "ahead_g64_u2",
        (64, _) => "ahead_g64_u4",
        _ => return None,
    };
    let warps = units.div_ceil(at_once).next_multiple_of(4).min(most);
    if around != Around::Nothing && warps * at_once < units {
        return None;
    }
    let all = if around == Around::Gated { 2 * tiles } else { tiles };
    // Codes and scales, sums of every warp, and its part of x.
    let bytes = |all: usize| all * units * (1024 + 128 / group * 64) + warps * all * 64 + teams * warps * at_once * 256;
    let (tiles, all) = if bytes(all) > MOST_BYTES { (1, all / tiles) } else { (tiles, all) };
    let shared_bytes = Some(bytes(all)).filter(|bytes| *bytes <= MOST_BYTES)? as u32;
    let (warps, outputs, together) = ((teams * warps) as u32, tiles as u32 * 16, tiles as u32);
    Some(Cut { file: "linear_ahead.cu", kernel, warps, outputs, split: teams as u32, together, shared_bytes })
}

/// Times eight columns that a lane takes at a time, and outputs of a block.
fn plain(shape: &WeightShape, around: Around) -> Option<Cut> {
    let cols = shape.cols;
    let (depth, outputs) = match (around, cols) {
        (Around::Gated, ..=1024) => return None,
        (Around::Gated, _) => (1, 4),
        (Around::Norm, ..=1024) => (1, if shape.rows >= 1 << 16 { 8 } else { 16 }),
        (Around::Norm, _) => (1, 8),
        (Around::Nothing, ..=2048) => (2, 4),
        (Around::Nothing, ..=3072) => (2, 8),
        (Around::Nothing, ..=4096) => (4, 8),
        (Around::Nothing, _) => (2, 8),
    };
    let kernel = match depth {
        1 => "ahead_plain_d1",
        2 => "ahead_plain_d2",
        _ => "ahead_plain_d4",
    };
    // The deepest kernel's registers leave room for twelve warps.
    let most = if depth == 4 { 12 } else { MOST_WARPS };
    let warps = cols.div_ceil(256 * depth).next_multiple_of(4).min(most);
    if around != Around::Nothing && warps * depth * 256 < cols {
        return None;
    }
    // Weights, and sums of every warp.
    let bytes = |outputs: usize| {
        let all = if around == Around::Gated { 2 * outputs } else { outputs };
        all * (cols * 2 + warps * 4)
    };
    let outputs = if bytes(outputs) > MOST_BYTES { 4 } else { outputs };
    let shared_bytes = Some(bytes(outputs)).filter(|bytes| *bytes <= MOST_BYTES)? as u32;
    let (warps, outputs) = (warps as u32, outputs as u32);
    Some(Cut { file: "linear_ahead_plain.cu", kernel, warps, outputs, split: 1, together: outputs, shared_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ops::ElementType;

    #[test]
    fn a_cut_has_whole_fours_of_warps_that_cover_a_normed_row_and_fits() {
        let w4 = |group| WeightFormat::Affine4 { group, parameters: ElementType::BF16 };
        let mut found = 0;
        for format in [w4(128), w4(64), w4(32), WeightFormat::Bf16] {
            for cols in [128, 384, 1024, 2048, 2560, 3072, 4096, 9728, 12288, 25600] {
                for (rows, around) in [1024, 151_936]
                    .into_iter()
                    .flat_map(|rows| [Around::Nothing, Around::Norm, Around::Gated].map(|around| (rows, around)))
                    .filter(|(_, around)| *around == Around::Nothing || cols <= 4096)
                {
                    let Some(cut) = find_cut(&WeightShape { rows, cols, format }, around) else { continue };
                    found += 1;
                    let all = if around == Around::Gated { 2 * cut.together } else { cut.together };
                    assert!(cut.warps % 4 == 0 && cut.warps as usize <= MOST_WARPS, "{cols} {format} {cut:?}");
                    assert!(cut.shared_bytes <= 220 << 10 && cut.outputs <= cut.warps * 32, "{cols} {format} {cut:?}");
                    let at_once: u32 = cut.kernel[cut.kernel.len() - 1..].parse().expect("ends in a digit");
                    let codes = cut.file == "linear_ahead.cu";
                    assert!(all <= if codes { 16 } else { 64 }, "{cols} {format} {cut:?}");
                    let covered = cut.warps / cut.split * at_once * if codes { 128 } else { 256 };
                    assert!(around == Around::Nothing || covered as usize >= cols, "{cols} {format} {cut:?}");
                    let source = crate::sources::ALL.iter().find(|source| source.name == cut.file);
                    let text = source.map(crate::sources::Source::text).unwrap_or_default();
                    assert!(text.contains(&format!("({}, ", cut.kernel)), "{cut:?}");
                }
            }
        }
        assert!(found > 60, "only {found} shapes gain");
    }
}
