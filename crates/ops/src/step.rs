//! What changes from one run of a program to the next: tokens, positions and the caches. The program itself stays.
//! Not here: where tokens come from, and who owns the caches.

#![allow(unsafe_code, reason = "raw cache pointers cross to the workers")]

/// One layer's key and value storage of one sequence, as kernels see it.
///
/// Both are `(kv_heads, capacity, head_dim)` row-major in the program's activation type; positions `0..offset` are filled.
#[derive(Clone, Copy, Debug)]
pub struct LayerCache {
    pub keys: *mut u8,
    pub values: *mut u8,
    /// Positions that each head's storage holds.
    pub capacity: usize,
    /// Storage that this step replaces (a cache that grows by concatenation): `cache_grow` copies it over.
    pub previous: Option<PreviousCache>,
}

/// The storage that a growing cache had before this step: `(kv_heads, capacity, head_dim)`.
#[derive(Clone, Copy, Debug)]
pub struct PreviousCache {
    pub keys: *const u8,
    pub values: *const u8,
    pub capacity: usize,
}

/// Consecutive rows of a step that belong to one request.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// Its first row in the step's buffers.
    pub first_row: usize,
    /// New tokens in this step.
    pub rows: usize,
    /// Tokens already cached, which is the position of the first new one.
    pub offset: usize,
    /// One per layer; empty when the program keeps no cache.
    pub caches: &'a [LayerCache],
}

/// The data of one run of a program. Kernels read it; nobody writes it during the run.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// One token id per row.
    pub tokens: &'a [u32],
    /// In row order, covering every row once.
    pub sequences: &'a [Sequence<'a>],
}

// SAFETY: the pointers of `LayerCache` are dereferenced only by kernels of one walk, whose barriers order conflicting
// accesses (`bind` computes them); the owner of the storage is borrowed by whoever runs the walk.
unsafe impl Sync for LayerCache {}
// SAFETY: as above; moving the pointers to another thread moves no storage.
unsafe impl Send for LayerCache {}

/// Rows and offset of a sequence, for shapes and costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceShape {
    pub rows: usize,
    pub offset: usize,
}

impl Step<'_> {
    pub fn shape(&self) -> Vec<SequenceShape> {
        self.sequences.iter().map(|s| SequenceShape { rows: s.rows, offset: s.offset }).collect()
    }
}
