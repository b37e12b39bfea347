//! NumPy's array file, version 1.0: a float32 matrix, row-major, written row by row.
//! Not here: reading one.

use std::io::{self, Write};

/// Writes the header of a (rows, cols) float32 array.
pub(crate) fn write_header(out: &mut impl Write, rows: usize, cols: usize) -> io::Result<()> {
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {cols}), }}");
    // Magic, version and length field take 10 bytes; the data starts at a multiple of 64 and the header ends in a newline.
    let padding = 63 - (10 + text.len()) % 64;
    text.extend(std::iter::repeat_n(' ', padding));
    text.push('\n');
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&(text.len() as u16).to_le_bytes())?;
    out.write_all(text.as_bytes())
}

pub(crate) fn write_row(out: &mut impl Write, row: &[f32]) -> io::Result<()> {
    let mut bytes = [0u8; 4096];
    for values in row.chunks(bytes.len() / 4) {
        for (value, place) in values.iter().zip(bytes.chunks_exact_mut(4)) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        out.write_all(&bytes[..values.len() * 4])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn the_header_is_aligned_and_the_rows_follow() {
        for (rows, cols) in [(1, 1), (1500, 49152), (7, 151936)] {
            let mut bytes = Vec::new();
            write_header(&mut bytes, rows, cols).unwrap();
            assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
            assert_eq!(bytes.len() % 64, 0, "{rows} x {cols}");
            assert_eq!(u16::from_le_bytes([bytes[8], bytes[9]]) as usize, bytes.len() - 10);
            assert_eq!(bytes.last(), Some(&b'\n'));
            let text = std::str::from_utf8(&bytes[10..]).unwrap();
            assert!(text.contains(&format!("'shape': ({rows}, {cols})")), "{text}");
        }
        let row: Vec<f32> = (0..1500).map(|i| i as f32 - 0.5).collect();
        let mut bytes = Vec::new();
        write_row(&mut bytes, &row).unwrap();
        let back: Vec<f32> = bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(back, row);
    }
}
