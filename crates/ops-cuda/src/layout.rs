//! How a weight lies in the device's memory. Not here: the host's layouts (`ops/src/weight.rs`), of which these take as many bytes.
//!
//! - Float32: as on the host. bfloat16: plain rows.
//! - 4-bit codes with 16-bit scales, where columns divide by 128: fragments. A unit of 16 rows x 128 columns is 1 KiB, in the
//!   order in which the lanes of a warp hand them to `mma.m16n8k16`: lane 4r + t serves rows r and r + 8, and of each 32 columns
//!   the eight from 8t on. A word is one instruction's share of a lane: bits 4i and 16 + 4i are columns 2p and 2p + 1 of its
//!   register i (i = 2p + (row >= 8), p = 0, 1). Units follow each other by columns, then by row tile; all scales lie behind all
//!   units: (row tile, group, row) words of scale << 16 | bias.
//! - Everything else: the host's lines of 16 rows, for the readable kernels.

use ops::{ElementType, WeightFormat, WeightShape};

/// Numbers shared with `prelude.cuh`.
pub(crate) const PLAIN_F32: u32 = 0;
pub(crate) const PLAIN_BF16: u32 = 1;
pub(crate) const FRAGMENTS: u32 = 2;
const LINES_W4: u32 = 3;
const LINES_INT8: u32 = 4;

/// A weight as kernels are given it (`Weight` of `prelude.cuh`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceWeight {
    pub(crate) start: u64,
    pub(crate) scales: u64,
    pub(crate) rows: u32,
    pub(crate) cols: u32,
    pub(crate) layout: u32,
    pub(crate) group: u32,
    pub(crate) header: u32,
    unused: u32,
}

impl DeviceWeight {
    /// No weight.
    pub(crate) const NONE: DeviceWeight =
        DeviceWeight { start: 0, scales: 0, rows: 0, cols: 0, layout: 0, group: 0, header: 0, unused: 0 };
}

impl DeviceWeight {
    /// Whether it is codes whose scales are bfloat16.
    pub(crate) fn has_bf16_scales(&self) -> bool {
        self.layout == FRAGMENTS && self.header == BF16_HEADER
    }
}

/// Twin of `HEADER_BF16`.
const BF16_HEADER: u32 = 2;

fn header(format: WeightFormat) -> u32 {
    match format {
        WeightFormat::Affine4 { parameters: ElementType::BF16, .. } => BF16_HEADER,
        WeightFormat::Affine4 { parameters: ElementType::F16, .. } => 1,
        _ => 0,
    }
}

/// The layout of a weight of this shape.
pub(crate) fn layout(shape: &WeightShape) -> u32 {
    match shape.format {
        WeightFormat::F32 => PLAIN_F32,
        WeightFormat::Bf16 => PLAIN_BF16,
        WeightFormat::Affine4 { parameters, .. } => {
            let fits = parameters != ElementType::F32 && shape.cols.is_multiple_of(128);
            if fits { FRAGMENTS } else { LINES_W4 }
        }
        WeightFormat::Int8 { .. } => LINES_INT8,
    }
}

/// A weight at `start` in the device's layout; or, `as_packed`, still in the host's.
pub(crate) fn describe(start: u64, shape: &WeightShape, as_packed: bool) -> DeviceWeight {
    let layout = match layout(shape) {
        FRAGMENTS if as_packed => LINES_W4,
        layout => layout,
    };
    let codes = shape.rows.div_ceil(16) * (shape.cols / 128) * 1024;
    DeviceWeight {
        start,
        scales: if layout == FRAGMENTS { start + codes as u64 } else { 0 },
        rows: shape.rows as u32,
        cols: shape.cols as u32,
        layout,
        group: shape.format.group() as u32,
        header: header(shape.format),
        unused: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_take_as_many_bytes_as_lines() {
        for parameters in [ElementType::BF16, ElementType::F16] {
            for group in [32, 64, 128] {
                let format = WeightFormat::Affine4 { group, parameters };
                let shape = WeightShape { rows: 37, cols: 384, format };
                let weight = describe(0, &shape, false);
                assert_eq!(weight.layout, FRAGMENTS);
                let scales = 48 * (384 / group as u64) * 4;
                assert_eq!(weight.scales + scales, format.packed_bytes(37, 384) as u64);
            }
        }
    }

    #[test]
    fn what_the_tensor_cores_cannot_take_stays_in_lines() {
        let w4 = |parameters| WeightFormat::Affine4 { group: 32, parameters };
        let of = |format, cols| layout(&WeightShape { rows: 16, cols, format });
        assert_eq!((of(w4(ElementType::BF16), 96), of(w4(ElementType::F32), 128)), (LINES_W4, LINES_W4));
        assert_eq!((of(WeightFormat::Int8 { group: 32 }, 128), of(WeightFormat::Bf16, 33)), (LINES_INT8, PLAIN_BF16));
    }
}
