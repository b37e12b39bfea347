//! The safetensors container: header bytes to a checked tensor table, and dense rows out of a mapped file.
//! Not here: which files make up a model (`directory`), packed triples (`mlx`).
//!
//! A file is an 8-byte little-endian header length, a JSON header, and one buffer in which the tensors lie side by side
//! without holes. Everything the header claims is checked against the file's true size before it is used.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use half::f16;
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};

use crate::mapping::Span;
use crate::tensor::RowSource;
use crate::{DenseType, Error, Result};

/// The largest header read: a table of a hundred thousand tensors needs about a tenth of it.
const HEADER_LIMIT: u64 = 100_000_000;

/// Element types of the format, with those that models use told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    Dense(DenseType),
    /// Packed 4-bit codes.
    U32,
    /// Any other type of the format: its size is checked, its values are never read.
    Other {
        bytes: u64,
    },
}

impl Dtype {
    fn parse(name: &str) -> Option<Dtype> {
        Some(match name {
            "F32" => Dtype::Dense(DenseType::F32),
            "F16" => Dtype::Dense(DenseType::F16),
            "BF16" => Dtype::Dense(DenseType::BF16),
            "U32" => Dtype::U32,
            "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => Dtype::Other { bytes: 1 },
            "U16" | "I16" => Dtype::Other { bytes: 2 },
            "I32" => Dtype::Other { bytes: 4 },
            "U64" | "I64" | "F64" | "C64" => Dtype::Other { bytes: 8 },
            _ => return None,
        })
    }

    fn bytes(self) -> u64 {
        match self {
            Dtype::Dense(DenseType::F32) | Dtype::U32 => 4,
            Dtype::Dense(_) => 2,
            Dtype::Other { bytes } => bytes,
        }
    }
}

/// One row of the table; `start` and `len` are bytes from the beginning of the file and lie inside it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) dtype: Dtype,
    pub(crate) dtype_name: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl Entry {
    /// `(rows, cols)` of a vector or matrix; other ranks are refused.
    pub(crate) fn matrix(&self, file: &Path, name: &str) -> Result<(usize, usize)> {
        match self.shape[..] {
            // `parse` has checked that the product fits the file, and so usize.
            [cols] if cols > 0 => Ok((1, cols as usize)),
            [rows, cols] if rows > 0 && cols > 0 => Ok((rows as usize, cols as usize)),
            _ => malformed(
                file,
                &format!("tensor {name}"),
                "a vector or matrix that is not empty",
                &format!("{:?}", self.shape),
            ),
        }
    }
}

pub(crate) type Table = BTreeMap<String, Entry>;

/// Reads the table from the beginning of a file.
/// `head`: at least the length prefix and the header (the whole map will do); `file_len`: the true size in bytes.
/// Errors: a header that is too long, not JSON, or names a tensor twice; a tensor whose bytes do not match its shape,
/// lie outside the file, overlap or leave a hole. Alignment is not demanded: mlx pads no header, so its files start
/// tensors at any byte, and every row is read byte by byte.
pub(crate) fn parse(head: &[u8], file_len: u64, file: &Path) -> Result<Table> {
    let Some(prefix) = head.first_chunk::<8>() else {
        return malformed(file, "header", "a length of 8 bytes", &format!("a file of {} bytes", head.len()));
    };
    let header_len = u64::from_le_bytes(*prefix);
    let room = file_len.saturating_sub(8).min(head.len() as u64 - 8);
    if header_len > HEADER_LIMIT || header_len > room {
        return malformed(
            file,
            "header length",
            &format!("at most {}", room.min(HEADER_LIMIT)),
            &format!("{header_len} (the file has {file_len} bytes)"),
        );
    }
    let text = &head[8..8 + header_len as usize];
    let header: Header = serde_json::from_slice(text).map_err(|source| Error::Json { file: file.into(), source })?;
    let data_start = 8 + header_len;
    let data_len = file_len - data_start;

    let mut table = Table::new();
    for (name, raw) in header.tensors {
        let part = format!("tensor {name}");
        let Some(dtype) = Dtype::parse(&raw.dtype) else {
            return malformed(file, &part, "an element type of the safetensors format", &raw.dtype);
        };
        let size = raw.shape.iter().try_fold(dtype.bytes(), |size, dim| size.checked_mul(*dim));
        let [begin, end] = raw.data_offsets;
        let Some(len) = end.checked_sub(begin) else {
            return malformed(file, &part, "offsets in ascending order", &format!("{begin}..{end}"));
        };
        if end > data_len {
            return malformed(file, &part, &format!("bytes within {data_len}"), &format!("{begin}..{end}"));
        }
        if size != Some(len) {
            let expected = match size {
                Some(size) => format!("{size} bytes for {} {:?}", raw.dtype, raw.shape),
                None => format!("a shape that fits memory, not {:?}", raw.shape),
            };
            return malformed(file, &part, &expected, &format!("{len} bytes"));
        }
        let start = data_start + begin;
        let entry = Entry { dtype, dtype_name: raw.dtype, shape: raw.shape, start, len };
        if table.insert(name, entry).is_some() {
            return malformed(file, &part, "one entry", "two of this name");
        }
    }
    check_cover(&table, data_start, file_len, file)?;
    Ok(table)
}

/// The tensors must tile the buffer: no overlap, no hole, nothing after the last.
fn check_cover(table: &Table, data_start: u64, file_len: u64, file: &Path) -> Result<()> {
    let mut order: Vec<(&String, &Entry)> = table.iter().collect();
    order.sort_by_key(|(_, entry)| (entry.start, entry.len));
    let mut at = data_start;
    let mut previous = "the header";
    for (name, entry) in order {
        if entry.start != at {
            let found = if entry.start < at { "an overlap" } else { "a hole" };
            return malformed(
                file,
                &format!("tensor {name}"),
                &format!("to start at byte {at}, where {previous} ends"),
                &format!("byte {} ({found})", entry.start),
            );
        }
        at = entry.start + entry.len;
        previous = name;
    }
    if at != file_len {
        return malformed(file, "size", &format!("{at} bytes, where {previous} ends"), &format!("{file_len} bytes"));
    }
    Ok(())
}

fn malformed<T>(file: &Path, part: &str, expected: &str, found: &str) -> Result<T> {
    Err(Error::Malformed { file: file.into(), part: part.into(), expected: expected.into(), found: found.into() })
}

struct Header {
    tensors: Vec<(String, RawEntry)>,
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// A JSON map would silently keep the last of two equal names, so the entries are collected as they come.
impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Header, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Header, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<serde::de::IgnoredAny>()?;
                    } else {
                        tensors.push((name, map.next_value()?));
                    }
                }
                Ok(Header { tensors })
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Rows of plain numbers in a mapped file.
pub(crate) struct DenseRows {
    pub(crate) span: Span,
    pub(crate) kind: DenseType,
    pub(crate) cols: usize,
}

impl DenseRows {
    fn row(&self, row: usize) -> &[u8] {
        let stride = self.cols * if self.kind == DenseType::F32 { 4 } else { 2 };
        &self.span.bytes()[row * stride..][..stride]
    }
}

impl RowSource for DenseRows {
    fn read_f32(&self, row: usize, out: &mut [f32]) {
        read_dense(self.kind, self.row(row), out);
    }

    fn read_raw16(&self, row: usize, out: &mut [u16]) {
        read_u16(self.row(row), out);
    }

    fn non_finite_at(&self, row: usize, _cols: usize) -> Option<usize> {
        let bytes = self.row(row);
        match self.kind {
            DenseType::F32 => {
                let (words, _) = bytes.as_chunks::<4>();
                words.iter().position(|b| !f32::from_le_bytes(*b).is_finite())
            }
            kind => {
                // All exponent bits set: infinite or not a number.
                let exponent = if kind == DenseType::BF16 { 0x7f80 } else { 0x7c00 };
                let (words, _) = bytes.as_chunks::<2>();
                words.iter().position(|b| u16::from_le_bytes(*b) & exponent == exponent)
            }
        }
    }

    fn release_pages(&self) {
        self.span.release();
    }
}

/// Decodes little-endian numbers: `bytes` holds exactly `out.len()` of them.
pub(crate) fn read_dense(kind: DenseType, bytes: &[u8], out: &mut [f32]) {
    match kind {
        DenseType::F32 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*raw);
            }
        }
        DenseType::F16 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f16::from_le_bytes(*raw).to_f32();
            }
        }
        DenseType::BF16 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f32::from_bits(u32::from(u16::from_le_bytes(*raw)) << 16);
            }
        }
    }
}

pub(crate) fn read_u16(bytes: &[u8], out: &mut [u16]) {
    for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *value = u16::from_le_bytes(*raw);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;

    /// A whole file from a header text and a buffer, with the header padded so that the buffer starts at 8.
    pub(crate) fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut header = header.to_string();
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        bytes.extend(data);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Table> {
        parse(bytes, bytes.len() as u64, Path::new("m.safetensors"))
    }

    fn message(header: &str, data: usize) -> String {
        read(&file(header, &vec![0; data])).unwrap_err().to_string()
    }

    const GOOD: &str = r#"{"__metadata__":{"format":"pt"},
        "b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},
        "a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#;

    #[test]
    fn a_good_table() {
        let bytes = file(GOOD, &[0; 20]);
        let table = read(&bytes).unwrap();
        assert_eq!(table.len(), 2);
        let (a, b) = (&table["a"], &table["b"]);
        assert_eq!(a.matrix(Path::new(""), "a").unwrap(), (2, 3));
        assert_eq!(b.matrix(Path::new(""), "b").unwrap(), (1, 2));
        assert_eq!((b.start + b.len) as usize, bytes.len());
        assert_eq!(a.dtype, Dtype::Dense(DenseType::BF16));
    }

    #[test]
    fn every_lie_is_named() {
        let entry = |name: &str, dtype: &str, shape: &str, begin: u64, end: u64| {
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
        };
        let one = |e: String| format!("{{{e}}}");
        let two = |a: String, b: String| format!("{{{a},{b}}}");
        let cases = [
            (one(entry("t", "BF16", "[4]", 0, 8)), 4, "bytes within 4"),
            (one(entry("t", "BF16", "[4]", 0, 8)), 12, "where t ends"),
            (one(entry("t", "BF16", "[5]", 0, 8)), 8, "10 bytes for BF16 [5]"),
            (one(entry("t", "BF16", "[1152921504606846976]", 0, 8)), 8, "bytes for BF16"),
            (one(entry("t", "F32", "[1152921504606846976,16]", 0, 8)), 8, "fits memory"),
            (one(entry("t", "BF16", "[4]", 8, 0)), 8, "ascending"),
            (one(entry("t", "Q9", "[4]", 0, 8)), 8, "Q9"),
            (two(entry("t", "U8", "[8]", 0, 8), entry("u", "U8", "[8]", 4, 12)), 12, "overlap"),
            (two(entry("t", "U8", "[4]", 0, 4), entry("u", "U8", "[4]", 8, 12)), 12, "hole"),
            (two(entry("t", "U8", "[4]", 0, 4), entry("t", "U8", "[4]", 4, 8)), 8, "two of this name"),
        ];
        for (header, data, expected) in cases {
            let text = message(&header, data);
            assert!(text.contains(expected) && text.contains("m.safetensors"), "{header}: {text}");
        }
    }

    #[test]
    fn headers_that_cannot_be() {
        for len in [1u64 << 60, u64::MAX, 1_000_000, HEADER_LIMIT + 1] {
            let mut bytes = len.to_le_bytes().to_vec();
            bytes.extend([b' '; 100]);
            let text = read(&bytes).unwrap_err().to_string();
            assert!(text.contains("header length") && text.contains(&len.to_string()), "{text}");
        }
        assert!(read(&[1, 2, 3]).unwrap_err().to_string().contains("3 bytes"));
        assert!(read(&[]).is_err());
        for json in [
            "[]",
            "{",
            "{\"a\":1}",
            "{\"a\":{\"dtype\":\"F32\"}}",
            "nul",
            "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}",
        ] {
            assert!(matches!(read(&file(json, &[])), Err(Error::Json { .. })), "{json}");
        }
    }

    #[test]
    fn tensors_may_start_at_any_byte() {
        let header = r#"{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"u":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}"#;
        let mut data = vec![9];
        data.extend(1.5f32.to_le_bytes());
        let bytes = file(header, &data);
        let entry = &read(&bytes).unwrap()["u"];
        let mut out = [0.0];
        read_dense(DenseType::F32, &bytes[entry.start as usize..][..entry.len as usize], &mut out);
        assert_eq!(out, [1.5]);
    }

    #[test]
    fn truncation_anywhere_is_an_error() {
        let bytes = file(GOOD, &[0; 20]);
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn dense_decoding_against_the_bit_patterns() {
        let mut out = [0.0; 2];
        read_dense(DenseType::BF16, &[0x80, 0x3f, 0x00, 0xc0], &mut out);
        assert_eq!(out, [1.0, -2.0]);
        read_dense(DenseType::F16, &[0x00, 0x3c, 0x00, 0x04], &mut out);
        assert_eq!(out, [1.0, 2f32.powi(-14)]);
        read_dense(DenseType::F32, &[0, 0, 0x80, 0x3f, 0, 0, 0, 0x80], &mut out);
        assert_eq!(out, [1.0, -0.0]);
    }

    proptest! {
        #[test]
        fn changed_bytes_never_panic(changes in prop::collection::vec((0usize..300, any::<u8>()), 1..8), cut in 0usize..300) {
            let mut bytes = file(GOOD, &[0; 20]);
            for (at, value) in changes {
                let len = bytes.len();
                bytes[at % len] = value;
            }
            bytes.truncate(bytes.len().max(cut));
            if let Ok(table) = read(&bytes) {
                for entry in table.values() {
                    prop_assert!(entry.start + entry.len <= bytes.len() as u64);
                }
            }
        }

        #[test]
        fn any_offsets_stay_inside(begin in any::<u64>(), end in any::<u64>(), dim in any::<u64>()) {
            let header = format!(r#"{{"t":{{"dtype":"F16","shape":[{dim}],"data_offsets":[{begin},{end}]}}}}"#);
            prop_assert!(read(&file(&header, &[0; 64])).is_err() || (begin == 0 && end == 64 && dim == 32));
        }
    }
}
