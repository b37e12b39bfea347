//! Writing the layouts of packed weights: rows of a source into their block's bytes. The only unsafe code of `weight`.
//! Not here: the layouts themselves and reading them, which are `weight.rs`'s, and the threads that share the blocks out.

#![allow(unsafe_code, reason = "disjoint parts of one arena are written by several threads; bytes seen as f32")]

use super::*;

/// These bytes of the arena, which are one row block's.
#[expect(clippy::mut_from_ref, reason = "each block of the arena is written by one work item, once")]
pub(super) fn block_bytes(arena: &Arena, bytes: Range<usize>) -> &mut [u8] {
    assert!(bytes.end <= arena.len(), "blocks lie within the arena");
    // SAFETY: within the arena (asserted); each block of each weight is one work item's alone, so no two slices overlap,
    // and nobody reads the arena before packing ends.
    unsafe { std::slice::from_raw_parts_mut(arena.as_mut_ptr().add(bytes.start), bytes.len()) }
}

pub(super) fn f32_slice(bytes: &[u8]) -> &[f32] {
    // SAFETY: every bit pattern is a valid f32; align_to checks alignment.
    let (head, numbers, tail) = unsafe { bytes.align_to::<f32>() };
    assert!(head.is_empty() && tail.is_empty(), "packed weights are aligned and whole");
    numbers
}

/// Reused row buffers of one packing thread.
#[derive(Default)]
pub(super) struct Rows {
    values: Vec<f32>,
    codes: Vec<u8>,
    scales: Vec<f32>,
    biases: Vec<f32>,
}

impl Rows {
    pub(super) fn pack(&mut self, request: &WeightRequest<'_>, block: usize, out: &mut [u8]) -> Result<(), PackError> {
        let rows = block * LANES..request.source.rows().min((block + 1) * LANES);
        match request.format {
            WeightFormat::F32 => self.pack_plain(request, rows, |lane, col, cols, value| {
                out[(lane * cols + col) * 4..][..4].copy_from_slice(&value.to_le_bytes());
            }),
            WeightFormat::Bf16 => self.pack_plain(request, rows, |lane, col, _, value| {
                let at = col / 2 * LINE + lane * 4 + col % 2 * 2;
                out[at..at + 2].copy_from_slice(&f32_to_bf16(value).to_le_bytes());
            }),
            WeightFormat::Affine4 { group, parameters } => self.pack_affine4(request, rows, group, parameters, out),
            WeightFormat::Int8 { group } => self.pack_int8(request, rows, group, out),
        }
    }

    fn pack_plain(
        &mut self,
        request: &WeightRequest<'_>,
        rows: std::ops::Range<usize>,
        mut store: impl FnMut(usize, usize, usize, f32),
    ) -> Result<(), PackError> {
        let cols = request.source.cols();
        self.values.resize(cols, 0.0);
        for (lane, row) in rows.enumerate() {
            request.source.read_f32(row, &mut self.values);
            let rounds = request.format == WeightFormat::Bf16 && !request.may_round;
            for (col, value) in self.values.iter().copied().enumerate() {
                check_finite(request, row, col, value)?;
                if rounds && value.to_bits() & 0xffff != 0 {
                    return Err(inexact(request, row, col, value));
                }
                store(lane, col, cols, value);
            }
        }
        Ok(())
    }

    fn pack_affine4(
        &mut self,
        request: &WeightRequest<'_>,
        rows: std::ops::Range<usize>,
        group: usize,
        parameters: ElementType,
        out: &mut [u8],
    ) -> Result<(), PackError> {
        let (header, half) = (request.format.header_lines(), group / 2);
        let block_bytes = request.format.block_lines() * LINE;
        for (lane, row) in rows.enumerate() {
            self.read_codes(request, row, group)?;
            for (index, codes) in self.codes.chunks_exact(group).enumerate() {
                let block = &mut out[index * block_bytes..(index + 1) * block_bytes];
                let (scale, bias) = (self.scales[index], self.biases[index]);
                let at = lane * 4;
                if parameters == ElementType::F32 {
                    block[at..at + 4].copy_from_slice(&scale.to_le_bytes());
                    block[LINE + at..LINE + at + 4].copy_from_slice(&bias.to_le_bytes());
                } else {
                    let narrow = |value: f32| {
                        narrow(parameters, value).ok_or_else(|| inexact(request, row, index * group, value))
                    };
                    let word = u32::from(narrow(scale)?) << 16 | u32::from(narrow(bias)?);
                    block[at..at + 4].copy_from_slice(&word.to_le_bytes());
                }
                let (low, high) = codes.split_at(half);
                for line in 0..half / 4 {
                    let at = (header + line) * LINE + lane * 4;
                    for b in 0..4 {
                        block[at + b] = (low[line * 4 + b] & 15) | high[line * 4 + b] << 4;
                    }
                }
            }
        }
        Ok(())
    }

    fn pack_int8(
        &mut self,
        request: &WeightRequest<'_>,
        rows: std::ops::Range<usize>,
        group: usize,
        out: &mut [u8],
    ) -> Result<(), PackError> {
        let block_bytes = request.format.block_lines() * LINE;
        for (lane, row) in rows.enumerate() {
            self.read_codes(request, row, group)?;
            for (index, codes) in self.codes.chunks_exact(group).enumerate() {
                let block = &mut out[index * block_bytes..(index + 1) * block_bytes];
                block[lane * 4..lane * 4 + 4].copy_from_slice(&self.scales[index].to_le_bytes());
                for (line, four) in codes.chunks_exact(4).enumerate() {
                    let at = (1 + line) * LINE + lane * 4;
                    block[at..at + 4].copy_from_slice(four);
                }
            }
        }
        Ok(())
    }

    fn read_codes(&mut self, request: &WeightRequest<'_>, row: usize, group: usize) -> Result<(), PackError> {
        let cols = request.source.cols();
        self.codes.resize(cols, 0);
        self.scales.resize(cols / group, 0.0);
        self.biases.resize(cols / group, 0.0);
        request.source.read_codes(row, &mut self.codes, &mut self.scales, &mut self.biases);
        for (index, value) in self.scales.iter().chain(&self.biases).copied().enumerate() {
            check_finite(request, row, index % (cols / group) * group, value)?;
        }
        Ok(())
    }
}

fn check_finite(request: &WeightRequest<'_>, row: usize, col: usize, value: f32) -> Result<(), PackError> {
    if value.is_finite() {
        return Ok(());
    }
    Err(PackError::NotFinite { tensor: request.name.clone(), row, col, value })
}

fn inexact(request: &WeightRequest<'_>, row: usize, col: usize, value: f32) -> PackError {
    PackError::Inexact { tensor: request.name.clone(), row, col, value, format: request.format.to_string() }
}

/// The bits of `value` in a 16-bit type, if it holds it exactly.
fn narrow(element: ElementType, value: f32) -> Option<u16> {
    let bits = match element {
        ElementType::BF16 => f32_to_bf16(value),
        _ => half::f16::from_f32(value).to_bits(),
    };
    (half_to_f32(element, bits).to_bits() == value.to_bits()).then_some(bits)
}
