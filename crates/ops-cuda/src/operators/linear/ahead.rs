//! Products of one row whose weights are copied into shared memory ahead: which calls gain by it, and how their launches are cut.
//! Not here: their arithmetic (`kernels/linear_ahead.cu`, `linear_ahead_plain.cu`), and arguments (`matvec.rs`).
//!
//! The numbers are those of the quickest whole steps of Qwen3-0.6B and 4B on an H200, at 192 and at 2,064 positions; `docs/gpu.md` has
//! what was tried.

use super::matvec::{self, Around, Cut, Cutter};
use crate::operators::attention::is_deep;
use ops::{CallShape, Invocation, WeightFormat, WeightShape};

/// Shared memory that a block may ask for beside what its kernel always has (227 KiB in all).
const MOST_BYTES: usize = 220 << 10;

pub(super) fn linear(i: &Invocation<'_>) {
    matvec::cut_linear(i, cutter(i));
}

pub(super) fn linear_add(i: &Invocation<'_>) {
    matvec::cut_linear_add(i, cutter(i));
}

pub(super) fn norm_linear(i: &Invocation<'_>) {
    matvec::cut_norm_linear(i, cutter(i));
}

pub(super) fn norm_swiglu(i: &Invocation<'_>) {
    matvec::cut_norm_swiglu(i, cutter(i));
}

/// Whether a call with these matrices gains.
pub(super) fn take(shape: &CallShape, matrices: &[WeightShape], around: Around) -> Result<(), String> {
    let rows = shape.inputs[0].rows;
    if rows != 1 {
        return Err(format!("takes a single row, these are {rows}"));
    }
    match matrices.iter().find(|weight| [false, true].iter().any(|deep| find_cut(weight, around, *deep).is_none())) {
        None => Ok(()),
        Some(weight) => Err(format!(
            "copying weights ahead does not pay, or not fit shared memory, for {} x {} of {}",
            weight.rows, weight.cols, weight.format
        )),
    }
}

/// Far from the first position attention's blocks take room for so long that other shapes fit beside them.
fn cutter(i: &Invocation<'_>) -> Cutter {
    if is_deep(i.step) { cut::<true> } else { cut::<false> }
}

fn cut<const DEEP: bool>(_rows: usize, shape: &WeightShape, around: Around) -> Cut {
    find_cut(shape, around, DEEP).expect("`take` has looked")
}

/// The kernel that does what `kernel` does, compiled for rows of so many columns and this cut, if there is one: it takes whole tiles of
/// codes with bfloat16 scales.
pub(super) fn known(kernel: &str, cols: u32, cut: &Cut) -> Option<&'static str> {
    let of_team = cut.warps / cut.split.max(1);
    match (kernel, cols / 128, (of_team, cut.together, cut.split, cut.sharers)) {
        ("norm_ahead_g128_u1", 8, (8, 1, 1, 1)) => Some("norm_ahead_8"),
        ("ahead_g128_u2", 16, (4, 1, 1, 2)) => Some("ahead_16"),
        ("gated_ahead_g128_u1", 8, (8, 2, 2, 1)) => Some("gated_ahead_8"),
        ("ahead_g128_u2", 24, (12, 1, 1, 1)) => Some("ahead_24"),
        ("head_ahead_g128_u2", 8, (4, 2, 1, 1)) => Some("head_ahead_8"),
        ("norm_ahead_g128_u2", 20, (10, 2, 1, 1)) => Some("norm_ahead_20"),
        ("ahead_g128_u2", 32, (16, 1, 1, 1)) => Some("ahead_32"),
        ("gated_ahead_g128_u1", 20, (20, 2, 1, 1)) => Some("gated_ahead_20"),
        ("head_ahead_g128_u2", 20, (10, 4, 1, 1)) => Some("head_ahead_20"),
        ("norm_ahead_g128_u2", 8, (4, 2, 1, 1)) => Some("norm_deep_8"),
        ("ahead_g128_u1", 16, (8, 1, 1, 2)) => Some("deep_16"),
        ("gated_ahead_g128_u1", 8, (8, 1, 1, 1)) => Some("gated_deep_8"),
        ("ahead_g128_u1", 24, (12, 1, 1, 2)) => Some("deep_24"),
        _ => None,
    }
}

fn find_cut(shape: &WeightShape, around: Around, deep: bool) -> Option<Cut> {
    match shape.format {
        WeightFormat::Affine4 { group, .. } => codes(shape, group, around, deep),
        _ => plain(shape, around),
    }
}

/// How the warps of a launch share a row.
struct Sharing {
    /// Blocks of a cluster.
    sharers: usize,
    /// Columns of a block, in what a warp takes one of, and its warps (of a team).
    share: usize,
    warps: usize,
}

/// `columns` shared by at most so many blocks, whose warps, at most `most`, take `at_once` of them at a time; none if a normalised row
/// would take them more than one round.
fn sharing(columns: usize, at_once: usize, most: usize, mut sharers: usize, around: Around) -> Option<Sharing> {
    // Every block has some.
    while (sharers - 1) * columns.div_ceil(sharers) >= columns {
        sharers -= 1;
    }
    let share = columns.div_ceil(sharers);
    let warps = share.div_ceil(at_once).min(most);
    (around == Around::Nothing || warps * at_once >= share).then_some(Sharing { sharers, share, warps })
}

/// Sums lie in whole vectors of four.
fn wide(warps: usize) -> usize {
    warps.next_multiple_of(4)
}

fn codes(shape: &WeightShape, group: usize, around: Around, deep: bool) -> Option<Cut> {
    let units = shape.cols / 128;
    let many = shape.rows >= 1 << 16;
    // Units that a warp takes at a time, most warps of a team, row tiles of a block (gated: of each part), teams of warps that share
    // these, blocks of a cluster.
    let (at_once, most, together, teams, sharers) = match (around, units) {
        (_, ..=8) if many => (2, 16, 2, 1, 1),
        _ if many => (2, 16, 4, 1, 1),
        (Around::Gated, ..=8) if deep => (1, 20, 1, 1, 1),
        (Around::Gated, ..=8) => (1, 20, 2, 2, 1),
        (Around::Gated, ..=20) => (1, 20, 2, 1, 1),
        (Around::Gated, _) => (2, 16, 1, 1, 1),
        (Around::Norm, ..=8) if deep => (2, 16, 2, 1, 1),
        (Around::Norm, ..=8) => (1, 20, 1, 1, 1),
        (Around::Norm, ..=20) => (2, 16, 2, 1, 1),
        (Around::Norm, _) => (2, 16, 1, 1, 1),
        (Around::Nothing, ..=24) if deep => (1, 20, 1, 1, 2),
        (Around::Nothing, ..=16) => (2, 16, 1, 1, 2),
        (Around::Nothing, ..=32) => (2, 16, 1, 1, 1),
        (Around::Nothing, _) => (2, 10, 3, 1, 4),
    };
    let kernel = match (around, group, at_once) {
        (Around::Nothing, 128, 1) => "ahead_g128_u1",
        (Around::Nothing, 128, _) => "ahead_g128_u2",
        (Around::Nothing, 64, 1) => "ahead_g64_u1",
        (Around::Nothing, 64, _) => "ahead_g64_u2",
        (Around::Norm, 128, 1) => "norm_ahead_g128_u1",
        (Around::Norm, 128, _) => "norm_ahead_g128_u2",
        (Around::Norm, 64, 1) => "norm_ahead_g64_u1",
        (Around::Norm, 64, _) => "norm_ahead_g64_u2",
        (Around::Gated, 128, 1) => "gated_ahead_g128_u1",
        (Around::Gated, 128, _) => "gated_ahead_g128_u2",
        (Around::Gated, 64, 1) => "gated_ahead_g64_u1",
        (Around::Gated, 64, _) => "gated_ahead_g64_u2",
        _ => return None,
    };
    let Sharing { sharers, share, warps } = sharing(units, at_once, most, sharers, around)?;
    let parts = if around == Around::Gated { 2 } else { 1 };
    // Codes and scales, sums of every warp, what other blocks found, and every warp's part of x in pieces.
    let bytes = |together: usize| {
        let tiles = parts * together;
        tiles * share * (1024 + 128 / group * 64)
            + tiles * 16 * wide(warps) * 4
            + (sharers - 1) * together * 64
            + teams * warps * at_once * 768
    };
    let together = (1..=together).rev().find(|together| bytes(*together) <= MOST_BYTES)?;
    Some(Cut {
        file: "linear_ahead.cu",
        kernel,
        warps: (teams * warps) as u32,
        outputs: together as u32 * 16,
        split: teams as u32,
        together: together as u32,
        sharers: sharers as u32,
        shared_bytes: bytes(together) as u32,
    })
}

fn plain(shape: &WeightShape, around: Around) -> Option<Cut> {
    let many = shape.rows >= 1 << 16;
    // Times eight columns that a lane takes at a time, most warps, outputs of a block (gated: of each part), blocks of a cluster.
    let (at_once, most, together, sharers) = match (around, shape.cols) {
        (Around::Gated, ..=1024) => (2, 20, 8, 1),
        (Around::Gated, _) => (2, 20, 4, 1),
        (_, ..=1024) if many => (2, 20, 4, 1),
        (Around::Norm, _) if many => (2, 20, 12, 1),
        (Around::Norm, ..=1024) => (2, 20, 16, 1),
        (Around::Norm, ..=2560) => (4, 12, 4, 1),
        (Around::Norm, _) => (2, 20, 4, 1),
        (Around::Nothing, ..=2048) => (1, 20, 4, 1),
        (Around::Nothing, ..=3072) => (4, 12, 4, 2),
        (Around::Nothing, ..=9728) => (4, 12, 4, 1),
        (Around::Nothing, _) => (2, 20, 8, 1),
    };
    let kernel = match (around, at_once) {
        (Around::Nothing, 1) => "ahead_plain_d1",
        (Around::Nothing, 2) => "ahead_plain_d2",
        (Around::Nothing, _) => "ahead_plain_d4",
        (Around::Norm, 2) => "norm_ahead_plain_d2",
        (Around::Norm, _) => "norm_ahead_plain_d4",
        (Around::Gated, _) => "gated_ahead_plain_d2",
    };
    let eights = shape.cols.div_ceil(8);
    let Sharing { sharers, warps, .. } = sharing(eights.div_ceil(32), at_once, most, sharers, around)?;
    let share = eights.div_ceil(sharers) * 8;
    let parts = if around == Around::Gated { 2 } else { 1 };
    // Weights, sums of every warp, and what other blocks found.
    let bytes = |together: usize| {
        let lines = parts * together;
        lines * (share * 2 + wide(warps) * 4) + (sharers - 1) * together * 4
    };
    // In fours, as they are copied.
    let together = (1..=together / 4).rev().map(|fours| fours * 4).find(|together| bytes(*together) <= MOST_BYTES)?;
    Some(Cut {
        file: "linear_ahead_plain.cu",
        kernel,
        warps: warps as u32,
        outputs: together as u32,
        split: 1,
        together: together as u32,
        sharers: sharers as u32,
        shared_bytes: bytes(together) as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ops::ElementType;
    use std::collections::{HashMap, HashSet};

    /// The warps that a kernel's registers are cut to, from its file.
    fn most_warps(cut: &Cut) -> u32 {
        let source = crate::sources::ALL.iter().find(|source| source.name == cut.file).expect("a file");
        let text = source.text();
        let line = text.lines().find(|line| line.starts_with(&format!("AHEAD_KERNEL({}, ", cut.kernel)));
        let arguments: Vec<&str> = line.unwrap_or_else(|| panic!("no {}", cut.kernel)).split(", ").collect();
        let at = if cut.file == "linear_ahead.cu" { 4 } else { 3 };
        arguments[at].trim_end_matches(')').parse().expect("a number of warps")
    }

    #[test]
    fn a_cut_covers_a_normed_row_in_one_round_gives_every_block_columns_and_fits() {
        let w4 = |group| WeightFormat::Affine4 { group, parameters: ElementType::BF16 };
        let mut found = 0;
        for format in [w4(128), w4(64), w4(32), WeightFormat::Bf16] {
            for cols in [128, 384, 640, 1024, 2048, 2560, 3072, 4096, 9728, 12288, 25600] {
                for (around, cut) in [1024, 151_936]
                    .into_iter()
                    .flat_map(|rows| [Around::Nothing, Around::Norm, Around::Gated].map(|around| (rows, around)))
                    .flat_map(|(rows, around)| [false, true].map(|deep| (rows, around, deep)))
                    .filter(|(_, around, _)| *around == Around::Nothing || cols <= 4096)
                    .map(|(rows, around, deep)| (around, find_cut(&WeightShape { rows, cols, format }, around, deep)))
                {
                    let Some(cut) = cut else { continue };
                    found += 1;
                    assert!(cut.warps <= most_warps(&cut), "{cols} {format} {cut:?}");
                    assert!(cut.shared_bytes <= 220 << 10 && cut.outputs <= cut.warps * 32, "{cols} {format} {cut:?}");
                    let all = if around == Around::Gated { 2 * cut.together } else { cut.together };
                    let at_once: u32 = cut.kernel[cut.kernel.len() - 1..].parse().expect("ends in a digit");
                    let codes = cut.file == "linear_ahead.cu";
                    assert!(
                        all <= if codes { 16 } else { 64 } && (codes || cut.together % 4 == 0),
                        "{cols} {format} {cut:?}"
                    );
                    let covered = cut.warps / cut.split * at_once * if codes { 128 } else { 256 };
                    assert!(around == Around::Nothing || covered as usize >= cols, "{cols} {format} {cut:?}");
                    let (columns, sharers) = (cols as u32 / if codes { 128 } else { 8 }, cut.sharers);
                    assert!((sharers - 1) * columns.div_ceil(sharers) < columns, "{cols} {format} {cut:?}");
                    assert!(around == Around::Nothing || sharers == 1, "{cols} {format} {cut:?}");
                }
            }
        }
        assert!(found > 120, "only {found} shapes gain");
    }

    #[test]
    fn a_kernel_of_one_cut_is_compiled_for_that_cut_and_none_is_without_use() {
        let source = crate::sources::ALL.iter().find(|source| source.name == "linear_ahead.cu").expect("a file");
        let text = source.text();
        // Name, group, units, kind, all units, warps, tiles, teams, sharers, blocks.
        let compiled: HashMap<&str, Vec<&str>> = text
            .lines()
            .filter_map(|line| line.strip_prefix("KNOWN_KERNEL("))
            .map(|line| line.trim_end_matches(')').split(", ").collect::<Vec<_>>())
            .map(|fields| (fields[0], fields[1..].to_vec()))
            .collect();
        let format = WeightFormat::Affine4 { group: 128, parameters: ElementType::BF16 };
        let mut used = HashSet::new();
        for (cols, rows, around) in [
            (1024, 2048, Around::Norm),
            (2048, 1024, Around::Nothing),
            (1024, 3072, Around::Gated),
            (3072, 1024, Around::Nothing),
            (1024, 151_936, Around::Norm),
            (2560, 4096, Around::Norm),
            (4096, 2560, Around::Nothing),
            (2560, 9728, Around::Gated),
            (2560, 151_936, Around::Norm),
        ] {
            for deep in [false, true] {
                let cut = find_cut(&WeightShape { rows, cols, format }, around, deep).expect("a cut");
                let kernel = if rows > 100_000 { cut.kernel.replace("norm", "head") } else { cut.kernel.to_owned() };
                let name = known(&kernel, cols as u32, &cut).unwrap_or_else(|| panic!("{cols} {deep} {cut:?}"));
                let kind = match kernel.split('_').next() {
                    Some("norm") => "NORMED",
                    Some("gated") => "GATED",
                    Some("head") => "HEAD",
                    _ => "PLAIN",
                };
                let Cut { split, together, sharers, warps, .. } = cut;
                let (units, of_team) = (cols as u32 / 128, warps / split);
                let numbers = [units, of_team, together, split, sharers].map(|number| number.to_string());
                let fields = &compiled[name];
                let at_once = &kernel[kernel.len() - 1..];
                assert_eq!(
                    (&fields[..3], &fields[3..8]),
                    (&["128", at_once, kind][..], &numbers.each_ref().map(String::as_str)[..]),
                    "{name}"
                );
                assert!((rows as u32).is_multiple_of(16 * together), "{name} has whole tiles alone");
                used.insert(name);
            }
        }
        assert_eq!(used.len(), compiled.len(), "{used:?}");
    }
}
