//! One named weight, whatever file it came from, read a row at a time.
//! Not here: how a format stores its rows (each format implements [`RowSource`]), and packing for a kernel.
//!
//! A tensor is row-major `(rows, cols)`; a vector has `rows == 1`. Rows are decoded on demand, so nothing is held twice:
//! the packer of a kernel pulls rows (from several threads) and the file's pages are released behind it.

use std::sync::Arc;

/// How the values of a tensor are stored, which is also what can be read from it exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Plain numbers.
    Dense(DenseType),
    /// `w = q * scale + bias`, q an unsigned 4-bit code, one f32-exact scale and bias per `group` columns
    /// (MLX W4: 64 or 128; GGUF Q4_0, Q4_1, Q4_K: 32). The scale is signed.
    Affine4 { group: usize },
    /// `w = q * scale`, q a signed 8-bit code, one f32-exact scale per `group` columns (GGUF Q8_0: 32; Q6_K: 16).
    Int8 { group: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseType {
    F32,
    F16,
    BF16,
}

/// How one format decodes its rows. [`Tensor`] has already checked the row, the slice lengths and the encoding, so an
/// implementation writes only the methods that its encoding allows.
pub(crate) trait RowSource: Send + Sync {
    /// Decodes a row exactly: `out` has `cols` elements.
    fn read_f32(&self, row: usize, out: &mut [f32]);

    /// The 16-bit patterns of a BF16 or F16 row.
    fn read_raw16(&self, _row: usize, _out: &mut [u16]) {
        unreachable!("only 16-bit dense sources are asked for raw bits")
    }

    /// One code per byte, and the scale (and bias) of each group.
    fn read_codes(&self, _row: usize, _codes: &mut [u8], _scales: &mut [f32], _biases: &mut [f32]) {
        unreachable!("only coded sources are asked for codes")
    }

    /// The first column whose value is NaN or infinite. `cols` and `group` say how long a row is.
    fn non_finite_at(&self, row: usize, cols: usize) -> Option<usize> {
        let mut values = vec![0.0; cols];
        self.read_f32(row, &mut values);
        values.iter().position(|v| !v.is_finite())
    }

    /// The narrowest type that holds every scale and bias of a coded source exactly.
    fn parameter_type(&self) -> DenseType {
        DenseType::F32
    }

    /// The pages behind this tensor are not needed now.
    fn release_pages(&self) {}
}

/// A named `(rows, cols)` weight: cheap to clone, readable from several threads at once.
#[derive(Clone)]
pub struct Tensor {
    name: Arc<str>,
    rows: usize,
    cols: usize,
    encoding: Encoding,
    source: Arc<dyn RowSource>,
}

impl Tensor {
    pub(crate) fn new(name: &str, rows: usize, cols: usize, encoding: Encoding, source: Arc<dyn RowSource>) -> Tensor {
        Tensor { name: name.into(), rows, cols, encoding, source }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// 1 for a vector.
    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Decodes one row exactly into f32; works for every encoding (`q * scale + bias` in f32).
    /// `out` must have `cols` elements; anything else is a mistake of the caller and panics.
    pub fn read_f32(&self, row: usize, out: &mut [f32]) {
        self.check(row, out.len());
        self.source.read_f32(row, out);
    }

    /// The stored bits of one row of a `Dense(BF16)` or `Dense(F16)` tensor.
    /// `out` must have `cols` elements and the encoding must be one of these two; anything else panics.
    pub fn read_raw16(&self, row: usize, out: &mut [u16]) {
        self.check(row, out.len());
        let fits = matches!(self.encoding, Encoding::Dense(DenseType::BF16 | DenseType::F16));
        assert!(fits, "tensor {} is {:?}: it has no 16-bit patterns", self.name, self.encoding);
        self.source.read_raw16(row, out);
    }

    /// One row of codes, one per byte (`Affine4`: 0..=15; `Int8`: the bits of an i8), and per group of columns the scale
    /// and, for `Affine4`, the bias (`Int8` leaves `biases` untouched; it may be empty).
    /// Lengths: codes `cols`, scales `cols / group`, biases `cols / group`; anything else, or a dense tensor, panics.
    pub fn read_codes(&self, row: usize, codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
        self.check(row, codes.len());
        let (group, has_bias) = match self.encoding {
            Encoding::Affine4 { group } => (group, true),
            Encoding::Int8 { group } => (group, false),
            Encoding::Dense(_) => panic!("tensor {} is {:?}: it has no codes", self.name, self.encoding),
        };
        assert_eq!(scales.len(), self.cols / group, "tensor {}: one scale per {group} columns", self.name);
        assert!(!has_bias || biases.len() == self.cols / group, "tensor {}: one bias per {group} columns", self.name);
        self.source.read_codes(row, codes, scales, biases);
    }

    /// The narrowest type that holds every scale and bias of an `Affine4` tensor exactly, so that a packer can keep them so.
    pub fn parameter_type(&self) -> DenseType {
        self.source.parameter_type()
    }

    /// The first column of a row whose value is NaN or infinite; a loader reports it as [`crate::Error::NotFinite`].
    pub fn non_finite_at(&self, row: usize) -> Option<usize> {
        self.check(row, self.cols);
        self.source.non_finite_at(row, self.cols)
    }

    /// Gives the mapped pages back to the kernel: the weights are packed and the file is no longer needed in memory.
    /// Reading again is allowed and reads the file again.
    pub fn release_pages(&self) {
        self.source.release_pages();
    }

    fn check(&self, row: usize, len: usize) {
        assert!(row < self.rows, "tensor {} has {} rows, row {row} was asked for", self.name, self.rows);
        assert_eq!(len, self.cols, "tensor {} has {} columns", self.name, self.cols);
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}, {}) {:?}", self.name, self.rows, self.cols, self.encoding)
    }
}
