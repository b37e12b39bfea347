//! The GGUF container: header, metadata and tensor table out of a byte slice, every field checked before it is used.
//! Not here: opening files, what a key means, how a block is decoded.
//!
//! Nothing is allocated by a count that the file states: strings and arrays stay borrowed slices of the input, and
//! what is allocated grows with entries that were really read.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::blocks::BlockType;
use crate::{Error, Result};

const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_DIMENSIONS: u32 = 4;

/// A parsed file: values and names borrow from its bytes.
pub(crate) struct Container<'a> {
    pub metadata: BTreeMap<&'a str, Value<'a>>,
    /// In file order; names are unique, data ranges are aligned, inside the file and do not overlap.
    pub tensors: Vec<TensorEntry<'a>>,
}

/// One row of the tensor table. GGUF lists the contiguous dimension first, so `dims[0]` is the number of columns.
pub(crate) struct TensorEntry<'a> {
    pub name: &'a str,
    /// One to four dimensions, none of them zero, their product below 2^63.
    pub dims: Vec<u64>,
    pub kind: BlockType,
    /// From the start of the file.
    pub start: u64,
    /// Bytes.
    pub len: u64,
}

/// One metadata value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(&'a str),
    Array(Array<'a>),
}

/// A one-dimensional array whose elements were all checked when it was read; decoded again on each walk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Array<'a> {
    kind: Kind,
    len: u64,
    bytes: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    fn from_id(id: u32) -> Option<Kind> {
        use Kind::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64].get(id as usize).copied()
    }
}

impl<'a> Array<'a> {
    /// The elements in order. Numbers come widened, as in [`Value`].
    pub(crate) fn iter(self) -> impl Iterator<Item = Value<'a>> {
        let mut reader = Reader { file: Path::new(""), bytes: self.bytes, at: 0 };
        (0..self.len).map_while(move |_| reader.value(self.kind, "array").ok())
    }
}

impl Value<'_> {
    /// What to call it in a message.
    pub(crate) fn describe(&self) -> String {
        match self {
            Value::Unsigned(v) => v.to_string(),
            Value::Signed(v) => v.to_string(),
            Value::F32(v) => v.to_string(),
            Value::F64(v) => v.to_string(),
            Value::Bool(v) => v.to_string(),
            Value::String(v) => format!("{:?}", v.chars().take(80).collect::<String>()),
            Value::Array(v) => format!("an array of {} values", v.len),
        }
    }
}

/// Reads the whole header. `bytes` is the complete file (its length bounds every tensor); `file` only names it in
/// errors.
///
/// Errors: not GGUF, version other than 2 and 3, big-endian, truncated anywhere, a count or size that the file cannot
/// hold, a duplicate key or tensor, text that is not UTF-8, nested arrays, a bad alignment, a tensor type this
/// program cannot decode, a tensor that is misaligned, outside the file or overlapping another.
pub(crate) fn parse<'a>(file: &Path, bytes: &'a [u8]) -> Result<Container<'a>> {
    let mut r = Reader { file, bytes, at: 0 };
    let magic = r.take(4, "header")?;
    if magic != b"GGUF" {
        return Err(r.malformed("header", "the four bytes \"GGUF\"", format!("{magic:02x?}")));
    }
    let version = r.u32("header")?;
    if version == 2u32.swap_bytes() || version == 3u32.swap_bytes() {
        return Err(Error::Unsupported {
            file: file.into(),
            field: "byte order".into(),
            found: "big-endian".into(),
            supported: "little-endian files are read".into(),
        });
    }
    if !(2..=3).contains(&version) {
        return Err(Error::Unsupported {
            file: file.into(),
            field: "GGUF version".into(),
            found: version.to_string(),
            supported: "versions 2 and 3 are read".into(),
        });
    }
    let tensor_count = r.u64("header")?;
    let pair_count = r.u64("header")?;
    // The smallest pair is an empty key with one byte (13 bytes); the smallest tensor entry has one dimension (32).
    r.check_count("tensor count in the header", tensor_count, 32)?;
    r.check_count("metadata count in the header", pair_count, 13)?;

    let mut metadata = BTreeMap::new();
    for i in 0..pair_count {
        let key = r.string(&format!("metadata key {i}"))?;
        let part = format!("metadata {key:?}");
        let kind = r.kind(&part)?;
        let value = r.value(kind, &part)?;
        if metadata.insert(key, value).is_some() {
            return Err(r.malformed(&part, "each key once", "the key twice".into()));
        }
    }

    let alignment = alignment(&r, metadata.get("general.alignment"))?;
    let mut tensors = Vec::new();
    let mut seen = HashMap::new();
    for i in 0..tensor_count {
        let entry = r.tensor(i)?;
        if seen.insert(entry.name, ()).is_some() {
            return Err(r.malformed(&format!("tensor {:?}", entry.name), "each name once", "the name twice".into()));
        }
        tensors.push(entry);
    }
    place(&r, alignment, &mut tensors)?;
    Ok(Container { metadata, tensors })
}

/// `general.alignment`: a power of two and a multiple of 8, as the format demands; 32 when absent.
fn alignment(r: &Reader, value: Option<&Value>) -> Result<u64> {
    match value {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::Unsigned(v)) if v.is_power_of_two() && *v >= 8 && *v <= u64::from(u32::MAX) => Ok(*v),
        Some(other) => {
            Err(r.malformed("metadata \"general.alignment\"", "a power of two from 8 on, as uint32", other.describe()))
        }
    }
}

/// Turns offsets into positions in the file and checks that no two tensors share a byte.
fn place(r: &Reader, alignment: u64, tensors: &mut [TensorEntry]) -> Result<()> {
    if tensors.is_empty() {
        return Ok(());
    }
    let total = r.bytes.len() as u64;
    // `at` is at most the file size and the alignment at most 2^32: no overflow.
    let data = (r.at as u64).div_ceil(alignment) * alignment;
    for t in tensors.iter_mut() {
        let part = format!("tensor {:?}", t.name);
        if t.start % alignment != 0 {
            return Err(r.malformed(&part, &format!("an offset divisible by {alignment}"), t.start.to_string()));
        }
        let start = data.checked_add(t.start);
        match start.and_then(|s| Some((s, s.checked_add(t.len)?))) {
            Some((start, end)) if end <= total => t.start = start,
            _ => {
                let expected = format!("{} bytes at offset {} of the data inside the file", t.len, t.start);
                return Err(r.malformed(&part, &expected, format!("a file of {total} bytes, data from {data} on")));
            }
        }
    }
    let mut order: Vec<&TensorEntry> = tensors.iter().collect();
    order.sort_by_key(|t| t.start);
    for pair in order.windows(2) {
        if pair[0].start + pair[0].len > pair[1].start {
            let found = format!("bytes shared with tensor {:?}", pair[0].name);
            return Err(r.malformed(&format!("tensor {:?}", pair[1].name), "bytes of its own", found));
        }
    }
    Ok(())
}

/// A cursor that never reads past the end.
struct Reader<'f, 'a> {
    file: &'f Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'_, 'a> {
    fn malformed(&self, part: &str, expected: &str, found: String) -> Error {
        Error::Malformed { file: self.file.into(), part: part.into(), expected: expected.into(), found }
    }

    fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn check_count(&self, part: &str, count: u64, least_bytes: u64) -> Result<()> {
        let most = self.remaining() / least_bytes;
        if count > most {
            return Err(self.malformed(
                part,
                &format!("at most {most}, all that this file can hold"),
                count.to_string(),
            ));
        }
        Ok(())
    }

    fn take(&mut self, len: u64, part: &str) -> Result<&'a [u8]> {
        if len > self.remaining() {
            let found = format!("only {} bytes until the end of the file", self.remaining());
            return Err(self.malformed(part, &format!("{len} bytes at byte {}", self.at), found));
        }
        let slice = &self.bytes[self.at..self.at + len as usize];
        self.at += len as usize;
        Ok(slice)
    }

    fn array<const N: usize>(&mut self, part: &str) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, part)?);
        Ok(out)
    }

    fn u32(&mut self, part: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(part)?))
    }

    fn u64(&mut self, part: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(part)?))
    }

    fn string(&mut self, part: &str) -> Result<&'a str> {
        let len = self.u64(part)?;
        let start = self.at;
        let bytes = self.take(len, part)?;
        std::str::from_utf8(bytes).map_err(|e| {
            self.malformed(part, "text in UTF-8", format!("an invalid byte at byte {}", start + e.valid_up_to()))
        })
    }

    fn kind(&mut self, part: &str) -> Result<Kind> {
        let id = self.u32(part)?;
        Kind::from_id(id).ok_or_else(|| self.malformed(part, "a value type from 0 to 12", id.to_string()))
    }

    fn value(&mut self, kind: Kind, part: &str) -> Result<Value<'a>> {
        Ok(match kind {
            Kind::U8 => Value::Unsigned(self.array::<1>(part)?[0].into()),
            Kind::I8 => Value::Signed(i8::from_le_bytes(self.array(part)?).into()),
            Kind::U16 => Value::Unsigned(u16::from_le_bytes(self.array(part)?).into()),
            Kind::I16 => Value::Signed(i16::from_le_bytes(self.array(part)?).into()),
            Kind::U32 => Value::Unsigned(self.u32(part)?.into()),
            Kind::I32 => Value::Signed(i32::from_le_bytes(self.array(part)?).into()),
            Kind::F32 => Value::F32(f32::from_le_bytes(self.array(part)?)),
            Kind::U64 => Value::Unsigned(self.u64(part)?),
            Kind::I64 => Value::Signed(i64::from_le_bytes(self.array(part)?)),
            Kind::F64 => Value::F64(f64::from_le_bytes(self.array(part)?)),
            Kind::String => Value::String(self.string(part)?),
            Kind::Bool => match self.array::<1>(part)?[0] {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                other => return Err(self.malformed(part, "a boolean, 0 or 1", other.to_string())),
            },
            Kind::Array => Value::Array(self.array_value(part)?),
        })
    }

    fn array_value(&mut self, part: &str) -> Result<Array<'a>> {
        let kind = self.kind(part)?;
        let len = self.u64(part)?;
        if kind == Kind::Array {
            return Err(self.malformed(part, "an array of plain values", "an array of arrays".into()));
        }
        // Every element takes at least one byte, so the loop below ends with the file at the latest.
        let start = self.at;
        for _ in 0..len {
            self.value(kind, part)?;
        }
        Ok(Array { kind, len, bytes: &self.bytes[start..self.at] })
    }

    /// `start` of the result is still the offset into the data section; `place` turns it into a position in the file.
    fn tensor(&mut self, index: u64) -> Result<TensorEntry<'a>> {
        let name = self.string(&format!("name of tensor {index}"))?;
        let part = format!("tensor {name:?}");
        let rank = self.u32(&part)?;
        if !(1..=MAX_DIMENSIONS).contains(&rank) {
            return Err(self.malformed(&part, "one to four dimensions", rank.to_string()));
        }
        let mut dims = Vec::new();
        let mut elements = 1u64;
        for _ in 0..rank {
            let dim = self.u64(&part)?;
            elements = match elements.checked_mul(dim) {
                Some(product) if product > 0 && product <= i64::MAX as u64 => product,
                _ => {
                    return Err(self.malformed(&part, "dimensions above 0, their product below 2^63", dim.to_string()));
                }
            };
            dims.push(dim);
        }
        let id = self.u32(&part)?;
        let kind = BlockType::from_id(id).map_err(|found| Error::Unsupported {
            file: self.file.into(),
            field: format!("type of tensor {name:?}"),
            found,
            supported: format!("supported are {}", BlockType::NAMES),
        })?;
        let start = self.u64(&part)?;
        let columns = dims[0];
        if !columns.is_multiple_of(kind.block_len() as u64) {
            let expected = format!("columns divisible by {}, the block of {}", kind.block_len(), kind.name());
            return Err(self.malformed(&part, &expected, columns.to_string()));
        }
        let len = (elements / kind.block_len() as u64)
            .checked_mul(kind.block_bytes() as u64)
            .ok_or_else(|| self.malformed(&part, "a size below 2^64 bytes", format!("{elements} elements")))?;
        Ok(TensorEntry { name, dims, kind, start, len })
    }
}
