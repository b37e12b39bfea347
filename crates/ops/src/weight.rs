//! Packed weights: one layout per format, one copy in memory, shared by every kernel that accepts the format.
//! Not here: reading files, and arithmetic on packed weights. Unsafe code is in `packing.rs`, which writes the bytes, and in `near.rs`, which places them.
//!
//! Layouts (`lane` n is row n of a block of 16 rows; a line is 64 bytes, 16 lanes of 4 bytes; rows are padded to 16):
//! - [`WeightFormat::F32`]: row-major, no padding. Vectors, and every matrix of `reference`.
//! - [`WeightFormat::Bf16`]: per block, one line per two columns; lane = bf16 of column 2p (low half) and 2p + 1 (high).
//! - [`WeightFormat::Affine4`]: per block and group, a header (bf16 or f16: one line, lane = scale << 16 | bias; f32: a line
//!   of scales, then one of biases) and `group / 8` lines; byte b of a lane in line i holds column 4i + b of the group in
//!   its low nibble and column group / 2 + 4i + b in its high nibble. `w = q * scale + bias`.
//! - [`WeightFormat::Int8`]: per block and group, a line of f32 scales and `group / 4` lines; byte b of a lane in line i is
//!   column 4i + b, signed. `w = q * scale`.
//!
//! Blocks of a row block follow each other by column group, row blocks by row: a row block is one stream.

mod near;
mod packing;

use crate::arena::Arena;
use crate::bits::{bf16_to_f32, f32_to_bf16};
use crate::device::Device;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Rows per block of every packed matrix format: the lanes of a 512-bit vector of 32-bit elements.
pub const LANES: usize = 16;
/// Bytes of a line: one cache line, one 512-bit vector.
pub const LINE: usize = 64;

/// A 16- or 32-bit float type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    F32,
    F16,
    BF16,
}

/// How a weight's source stores it, which is what it can be packed from exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    Dense(ElementType),
    /// `q * scale + bias`, unsigned 4-bit codes; `parameters` is the narrowest type that holds every scale and bias.
    Affine4 {
        group: usize,
        parameters: ElementType,
    },
    /// `q * scale`, signed 8-bit codes, f32 scales.
    Int8 {
        group: usize,
    },
}

/// How a weight is held in memory; see the module's text for the layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    F32,
    Bf16,
    Affine4 { group: usize, parameters: ElementType },
    Int8 { group: usize },
}

impl WeightFormat {
    /// Whether the format keeps codes (as opposed to plain numbers).
    pub const fn is_packed(self) -> bool {
        matches!(self, WeightFormat::Affine4 { .. } | WeightFormat::Int8 { .. })
    }

    /// Columns per scale; 1 for plain numbers. `cols` must divide by it.
    pub const fn group(self) -> usize {
        match self {
            WeightFormat::F32 | WeightFormat::Bf16 => 1,
            WeightFormat::Affine4 { group, .. } | WeightFormat::Int8 { group } => group,
        }
    }

    /// Lines of a block's header.
    pub const fn header_lines(self) -> usize {
        match self {
            WeightFormat::F32 | WeightFormat::Bf16 => 0,
            WeightFormat::Affine4 { parameters: ElementType::F32, .. } => 2,
            WeightFormat::Affine4 { .. } | WeightFormat::Int8 { .. } => 1,
        }
    }

    /// Lines per block of 16 rows and one group, header included. Not for [`WeightFormat::F32`].
    pub const fn block_lines(self) -> usize {
        match self {
            WeightFormat::F32 | WeightFormat::Bf16 => 1,
            WeightFormat::Affine4 { group, .. } => self.header_lines() + group / 8,
            WeightFormat::Int8 { group } => self.header_lines() + group / 4,
        }
    }

    /// Bytes that one block of 16 rows takes over all `cols`. Not for [`WeightFormat::F32`].
    pub const fn row_block_bytes(self, cols: usize) -> usize {
        match self {
            WeightFormat::F32 => LANES * cols * 4,
            WeightFormat::Bf16 => cols.div_ceil(2) * LINE,
            _ => cols / self.group() * self.block_lines() * LINE,
        }
    }

    /// Bytes of a packed `(rows, cols)` weight, padding included.
    pub const fn packed_bytes(self, rows: usize, cols: usize) -> usize {
        match self {
            WeightFormat::F32 => rows * cols * 4,
            _ => rows.div_ceil(LANES) * self.row_block_bytes(cols),
        }
    }
}

impl std::fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WeightFormat::F32 => f.write_str("f32"),
            WeightFormat::Bf16 => f.write_str("bf16"),
            WeightFormat::Affine4 { group, .. } => write!(f, "w4-g{group}"),
            WeightFormat::Int8 { group } => write!(f, "int8-g{group}"),
        }
    }
}

impl std::fmt::Display for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Encoding::Dense(ElementType::F32) => f.write_str("f32"),
            Encoding::Dense(ElementType::F16) => f.write_str("f16"),
            Encoding::Dense(ElementType::BF16) => f.write_str("bf16"),
            Encoding::Affine4 { group, .. } => write!(f, "w4-g{group}"),
            Encoding::Int8 { group } => write!(f, "int8-g{group}"),
        }
    }
}

/// Gives the rows of a weight to the packer, from several threads.
pub trait RowSource: Sync {
    fn rows(&self) -> usize;
    fn cols(&self) -> usize;
    fn encoding(&self) -> Encoding;
    /// Row `row` as f32, `out.len() == cols`; any encoding.
    fn read_f32(&self, row: usize, out: &mut [f32]);
    /// Row `row` as codes (one per byte; Int8: its bits), scales and biases (`cols / group` each; Int8 leaves biases).
    /// Called only for `Affine4` and `Int8`.
    fn read_codes(&self, row: usize, codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]);
    /// Every row has been read and none will be again.
    fn finished(&self) {}
}

/// One weight to pack.
pub struct WeightRequest<'a> {
    pub name: String,
    pub format: WeightFormat,
    pub source: &'a dyn RowSource,
    /// Whether values that the format cannot hold may be rounded; otherwise they are an error.
    pub may_round: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error(
        "tensor {tensor}: value {value} at row {row}, column {col} is not finite; the file is damaged or the checkpoint diverged"
    )]
    NotFinite { tensor: String, row: usize, col: usize, value: f32 },
    #[error(
        "tensor {tensor}: value {value:e} at row {row}, column {col} cannot be held exactly as {format}; pass --convert to round it"
    )]
    Inexact { tensor: String, row: usize, col: usize, value: f32, format: String },
    #[error("tensor {tensor}: {cols} columns do not divide into groups of {group}")]
    Group { tensor: String, cols: usize, group: usize },
    #[error(
        "tensor {tensor}: stored as {encoding}, which cannot be packed as {format}; use another checkpoint of `hourglass ladder`"
    )]
    Encoding { tensor: String, encoding: Encoding, format: String },
    // The cause is the error's source: whoever prints the chain prints it once.
    #[error("cannot reserve {bytes} bytes for the packed weights; use a smaller model, or free memory")]
    Memory { bytes: usize, source: std::io::Error },
    #[error("cannot start packing threads: the system refused one of {threads}; ask for fewer with --threads")]
    Threads { threads: usize, source: std::io::Error },
    #[error("interrupted while packing weights")]
    Cancelled,
}

/// All packed weights of a model, in one arena of huge pages.
pub struct Weights {
    arena: Arena,
    entries: Vec<Entry>,
    by_name: HashMap<String, usize>,
}

#[derive(Clone, Copy)]
struct Entry {
    format: WeightFormat,
    rows: usize,
    cols: usize,
    start: usize,
}

impl Entry {
    /// The bytes of the arena that hold these row blocks.
    fn bytes_of(&self, blocks: Range<usize>) -> Range<usize> {
        let byte = |block: usize| match self.format {
            WeightFormat::F32 => self.start + self.rows.min(block * LANES) * self.cols * 4,
            _ => self.start + block * self.format.row_block_bytes(self.cols),
        };
        byte(blocks.start)..byte(blocks.end)
    }
}

/// Address and shape of a packed weight, wherever it lies.
pub(crate) struct Located {
    pub(crate) start: *const u8,
    pub(crate) bytes: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) format: WeightFormat,
}

/// One packed weight.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    pub format: WeightFormat,
    pub rows: usize,
    pub cols: usize,
    /// 64-byte aligned.
    pub bytes: &'a [u8],
}

impl Weights {
    /// Packs every request, in order, on at most `threads` threads. Each source row is read once.
    ///
    /// # Errors
    /// The first value that is not finite or not exactly representable, a group that does not divide the columns, memory or
    /// threads that the system refuses, or `cancelled`.
    pub fn pack(requests: &[WeightRequest<'_>], threads: usize, cancelled: &AtomicBool) -> Result<Weights, PackError> {
        let weights = Weights::reserve(requests)?;
        weights.fill(requests, threads, cancelled)?;
        Ok(weights)
    }

    /// The same for as many workers that are pinned: each row block lies in the memory near the one that reads it.
    ///
    /// # Errors
    /// As [`Weights::pack`].
    pub fn pack_near_workers(
        requests: &[WeightRequest<'_>],
        threads: usize,
        cancelled: &AtomicBool,
    ) -> Result<Weights, PackError> {
        let weights = Weights::reserve(requests)?;
        near::touch(&weights.arena, &weights.entries, threads)
            .map_err(|source| PackError::Threads { threads, source })?;
        weights.fill(requests, threads, cancelled)?;
        Ok(weights)
    }

    /// Room for all of them, in order.
    fn reserve(requests: &[WeightRequest<'_>]) -> Result<Weights, PackError> {
        let mut entries = Vec::with_capacity(requests.len());
        let mut by_name = HashMap::with_capacity(requests.len());
        let mut total = 0usize;
        for (index, request) in requests.iter().enumerate() {
            check_encoding(request)?;
            let (rows, cols) = (request.source.rows(), request.source.cols());
            by_name.insert(request.name.clone(), index);
            entries.push(Entry { format: request.format, rows, cols, start: total });
            total += request.format.packed_bytes(rows, cols).next_multiple_of(LINE);
        }
        let arena = Arena::new(total).map_err(|source| PackError::Memory { bytes: total, source })?;
        Ok(Weights { arena, entries, by_name })
    }

    fn fill(&self, requests: &[WeightRequest<'_>], threads: usize, cancelled: &AtomicBool) -> Result<(), PackError> {
        // A work item is a run of row blocks of one weight; items write disjoint bytes.
        const BLOCKS: usize = 8;
        let mut items = Vec::new();
        let mut left: Vec<AtomicUsize> = Vec::new();
        for (index, entry) in self.entries.iter().enumerate() {
            let blocks = entry.rows.div_ceil(LANES);
            items.extend((0..blocks).step_by(BLOCKS).map(|first| (index, first, BLOCKS.min(blocks - first))));
            left.push(AtomicUsize::new(blocks));
        }
        let next = AtomicUsize::new(0);
        let work = || -> Result<(), PackError> {
            let mut rows = packing::Rows::default();
            while let Some(&(index, first, count)) = items.get(next.fetch_add(1, Relaxed)) {
                if cancelled.load(Relaxed) {
                    return Err(PackError::Cancelled);
                }
                let entry = &self.entries[index];
                for block in first..first + count {
                    let out = packing::block_bytes(&self.arena, entry.bytes_of(block..block + 1));
                    rows.pack(&requests[index], block, out)?;
                }
                if left[index].fetch_sub(count, Relaxed) == count {
                    requests[index].source.finished();
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let (mut helpers, mut result) = (Vec::new(), Ok(()));
            let threads = threads.min(items.len());
            for _ in 1..threads {
                match std::thread::Builder::new().spawn_scoped(scope, work) {
                    Ok(helper) => helpers.push(helper),
                    Err(source) => {
                        // No items are left for those that did start.
                        next.store(items.len(), Relaxed);
                        result = Err(PackError::Threads { threads, source });
                        break;
                    }
                }
            }
            result = result.and_then(|()| work());
            for helper in helpers {
                let theirs = helper.join().expect("packing does not panic");
                result = result.and(theirs);
            }
            result
        })
    }

    /// The same on a device, in the device's layouts.
    ///
    /// # Errors
    /// The device's: most likely that it has no memory for them.
    pub fn copied_to(&self, device: &Arc<dyn Device>) -> std::io::Result<Weights> {
        let arena = Arena::on(Some(device), self.arena.len())?;
        for entry in &self.entries {
            device.place(&self.packed(entry), arena.as_mut_ptr().wrapping_add(entry.start))?;
        }
        Ok(Weights { arena, entries: self.entries.clone(), by_name: self.by_name.clone() })
    }

    /// The device that holds them; None for the host.
    pub fn device(&self) -> Option<&Arc<dyn Device>> {
        self.arena.device()
    }

    /// Where the weight of this name lies and what it is.
    pub(crate) fn locate(&self, name: &str) -> Option<Located> {
        let Entry { format, rows, cols, start } = self.entries[*self.by_name.get(name)?];
        let (start, bytes) = (self.arena.as_ptr().wrapping_add(start), format.packed_bytes(rows, cols));
        Some(Located { start, bytes, rows, cols, format })
    }

    /// The packed weight of this name.
    ///
    /// # Panics
    /// If the weights are on a device.
    pub fn get(&self, name: &str) -> Option<Packed<'_>> {
        Some(self.packed(&self.entries[*self.by_name.get(name)?]))
    }

    fn packed(&self, entry: &Entry) -> Packed<'_> {
        let bytes = entry.format.packed_bytes(entry.rows, entry.cols);
        let bytes = &self.arena.as_slice()[entry.start..entry.start + bytes];
        Packed { format: entry.format, rows: entry.rows, cols: entry.cols, bytes }
    }

    /// Bytes that the packed weights take.
    pub fn bytes(&self) -> usize {
        self.arena.len()
    }
}

fn check_encoding(request: &WeightRequest<'_>) -> Result<(), PackError> {
    let cols = request.source.cols();
    let (group, encoding) = (request.format.group(), request.source.encoding());
    if group == 0 || !cols.is_multiple_of(group) {
        return Err(PackError::Group { tensor: request.name.clone(), cols, group });
    }
    let fits = match (request.format, encoding) {
        (WeightFormat::F32 | WeightFormat::Bf16, _) => true,
        (WeightFormat::Affine4 { group, .. }, Encoding::Affine4 { group: stored, .. }) => {
            group == stored && group % 32 == 0
        }
        (WeightFormat::Int8 { group }, Encoding::Int8 { group: stored }) => group == stored && group % 16 == 0,
        _ => false,
    };
    if fits {
        return Ok(());
    }
    Err(PackError::Encoding { tensor: request.name.clone(), encoding, format: request.format.to_string() })
}

impl<'a> Packed<'a> {
    /// The value at (row, col), decoded plainly: what every kernel's reading of the layout is tested against.
    pub fn value(&self, row: usize, col: usize) -> f32 {
        assert!(row < self.rows && col < self.cols, "({row}, {col}) of ({}, {})", self.rows, self.cols);
        let word = |offset: usize| {
            u32::from_le_bytes(self.bytes[offset..offset + 4].try_into().expect("four bytes make a word"))
        };
        if self.format == WeightFormat::F32 {
            return f32::from_bits(word((row * self.cols + col) * 4));
        }
        let lane = row % LANES * 4;
        let row_block = row / LANES * self.format.row_block_bytes(self.cols);
        if self.format == WeightFormat::Bf16 {
            let pair = word(row_block + col / 2 * LINE + lane);
            return bf16_to_f32(if col.is_multiple_of(2) { pair as u16 } else { (pair >> 16) as u16 });
        }
        let group = self.format.group();
        let block = row_block + col / group * self.format.block_lines() * LINE;
        let codes = block + self.format.header_lines() * LINE + lane;
        let k = col % group;
        match self.format {
            WeightFormat::Affine4 { parameters, .. } => {
                let half = group / 2;
                let byte = self.bytes[codes + k % half / 4 * LINE + k % 4];
                let code = if k < half { byte & 15 } else { byte >> 4 };
                let (scale, bias) = if parameters == ElementType::F32 {
                    (f32::from_bits(word(block + lane)), f32::from_bits(word(block + LINE + lane)))
                } else {
                    let header = word(block + lane);
                    (half_to_f32(parameters, (header >> 16) as u16), half_to_f32(parameters, header as u16))
                };
                f32::from(code) * scale + bias
            }
            WeightFormat::Int8 { .. } => {
                let code = self.bytes[codes + k / 4 * LINE + k % 4] as i8;
                f32::from(code) * f32::from_bits(word(block + lane))
            }
            WeightFormat::F32 | WeightFormat::Bf16 => unreachable!("returned above"),
        }
    }

    /// The whole weight as f32 numbers; for F32 vectors and tables.
    pub fn as_f32(&self) -> &'a [f32] {
        assert_eq!(self.format, WeightFormat::F32, "only plain f32 weights are slices of f32");
        packing::f32_slice(self.bytes)
    }
}

/// A 16-bit float of the given type as f32.
pub fn half_to_f32(element: ElementType, bits: u16) -> f32 {
    match element {
        ElementType::BF16 => bf16_to_f32(bits),
        _ => half::f16::from_bits(bits).to_f32(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, RandomWeight};

    #[test]
    fn every_format_reads_back_what_was_packed() {
        let mut random = Random::new(7);
        for (rows, cols) in [(1, 128), (5, 256), (16, 128), (33, 384)] {
            for format in [
                WeightFormat::F32,
                WeightFormat::Bf16,
                WeightFormat::Affine4 { group: 128, parameters: ElementType::BF16 },
                WeightFormat::Affine4 { group: 64, parameters: ElementType::F16 },
                WeightFormat::Affine4 { group: 32, parameters: ElementType::F32 },
                WeightFormat::Int8 { group: 32 },
                WeightFormat::Int8 { group: 16 },
            ] {
                let source = RandomWeight::new(&mut random, rows, cols, format);
                let request = WeightRequest { name: "w".into(), format, source: &source, may_round: false };
                let weights = Weights::pack(&[request], 2, &AtomicBool::new(false)).expect("packs");
                let packed = weights.get("w").expect("present");
                let mut row_values = vec![0.0; cols];
                for row in 0..rows {
                    source.read_f32(row, &mut row_values);
                    for col in 0..cols {
                        let (got, want) = (packed.value(row, col), row_values[col]);
                        assert_eq!(got.to_bits(), want.to_bits(), "{format:?} ({row}, {col})");
                    }
                }
            }
        }
    }

    struct Bad(f32);
    impl RowSource for Bad {
        fn rows(&self) -> usize {
            3
        }
        fn cols(&self) -> usize {
            4
        }
        fn encoding(&self) -> Encoding {
            Encoding::Dense(ElementType::F32)
        }
        fn read_f32(&self, row: usize, out: &mut [f32]) {
            out.fill(1.0);
            if row == 2 {
                out[1] = self.0;
            }
        }
        fn read_codes(&self, _: usize, _: &mut [u8], _: &mut [f32], _: &mut [f32]) {
            unreachable!("dense")
        }
    }

    #[test]
    fn refuses_what_it_cannot_hold_naming_the_place() {
        let pack = |value: f32, format: WeightFormat, may_round: bool| {
            let source = Bad(value);
            let request = WeightRequest { name: "w".into(), format, source: &source, may_round };
            Weights::pack(&[request], 1, &AtomicBool::new(false)).map(|_| ())
        };
        assert!(matches!(pack(f32::NAN, WeightFormat::F32, true), Err(PackError::NotFinite { row: 2, col: 1, .. })));
        assert!(matches!(pack(1.0 + 1e-4, WeightFormat::Bf16, false), Err(PackError::Inexact { row: 2, col: 1, .. })));
        assert!(pack(1.0 + 1e-4, WeightFormat::Bf16, true).is_ok());
        assert!(pack(1.5, WeightFormat::Bf16, false).is_ok());
        let packed = pack(1.0, WeightFormat::Int8 { group: 4 }, false);
        let text = packed.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(text.starts_with("tensor w: stored as f32, which cannot be packed as int8-g4; use "), "{text}");
        assert!(matches!(pack(1.0, WeightFormat::Int8 { group: 16 }, false), Err(PackError::Group { .. })));
    }

    #[test]
    fn a_refused_thread_is_named_once_with_what_to_do() {
        use std::error::Error;
        let error = PackError::Threads { threads: 9, source: std::io::Error::other("no more") };
        let text = error.to_string();
        assert!(text.contains("one of 9") && text.contains("--threads") && !text.contains("no more"), "{text}");
        assert_eq!(error.source().expect("the cause").to_string(), "no more");
    }

    #[test]
    fn more_threads_than_work_pack_the_same() {
        let source = RandomWeight::new(&mut Random::new(3), 20, 32, WeightFormat::F32);
        let pack = |threads| {
            let request =
                WeightRequest { name: "w".into(), format: WeightFormat::F32, source: &source, may_round: false };
            // A million threads would be refused anywhere; two work items need no more than two.
            let weights = Weights::pack(&[request], threads, &AtomicBool::new(false)).expect("packs");
            weights.get("w").expect("present").bytes.to_vec()
        };
        assert_eq!(pack(1_000_000), pack(0));
        let request = WeightRequest { name: "w".into(), format: WeightFormat::F32, source: &source, may_round: false };
        let near = Weights::pack_near_workers(&[request], 3, &AtomicBool::new(false)).expect("packs");
        assert_eq!(pack(1), near.get("w").expect("present").bytes);
    }
}
