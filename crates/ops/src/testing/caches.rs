//! The caches of a test case's sequences: random contents, the memory that holds them, and what must not have been written.
//! Not here: the other operands (`concrete.rs`).

use super::guarded::{Edge, Guarded, POISON};
use super::{CaseCache, Fill, Random};
use crate::DType;
use crate::bits::f32_to_bf16;
use crate::step::{LayerCache, PreviousCache, SequenceShape};
use crate::weight::{ElementType, half_to_f32};

/// What one sequence's cache holds.
pub(super) struct CaseStorage {
    shape: CaseCache,
    capacity: usize,
    valid: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// Memory that holds it.
pub(super) struct Storage {
    shape: CaseCache,
    capacity: usize,
    filled: usize,
    keys: Guarded,
    values: Guarded,
    old_keys: Guarded,
    old_values: Guarded,
}

impl CaseStorage {
    pub(super) fn new(shape: CaseCache, sequence: SequenceShape, random: &mut Random) -> CaseStorage {
        let valid = sequence.offset + sequence.rows;
        // The whole valid range is random: operators that read the cache find it filled, those that append overwrite it.
        let mut fill = || random.values(shape.kv_heads * valid * shape.head_dim, Fill::Normal(1.0), shape.dtype);
        let (keys, values) = (fill(), fill());
        CaseStorage { shape, capacity: valid + shape.spare, valid, keys, values }
    }

    pub(super) fn allocate(&self, edge: Edge) -> Storage {
        let bytes = |positions: usize| self.shape.kv_heads * positions * self.shape.head_dim * self.shape.dtype.bytes();
        let place = |name, bytes| Guarded::new(name, bytes, edge, self.shape.dtype.bytes());
        let mut storage = Storage {
            shape: self.shape,
            capacity: self.capacity,
            filled: self.valid,
            keys: place("the cached keys", bytes(self.capacity)),
            values: place("the cached values", bytes(self.capacity)),
            // The previous storage has another capacity than the current one, as it has in a model.
            old_keys: place("the previous keys", bytes(self.valid)),
            old_values: place("the previous values", bytes(self.valid)),
        };
        self.fill(&mut storage);
        storage.old_keys.seal();
        storage.old_values.seal();
        storage
    }

    /// The contents as before the call.
    pub(super) fn refill(&self, storage: &mut Storage) {
        storage.keys.bytes_mut().fill(POISON);
        storage.values.bytes_mut().fill(POISON);
        if !self.shape.grows {
            self.fill(storage);
        }
    }

    fn fill(&self, storage: &mut Storage) {
        let capacity = if self.shape.grows { self.valid } else { self.capacity };
        for (numbers, current, previous) in [
            (&self.keys, &mut storage.keys, &mut storage.old_keys),
            (&self.values, &mut storage.values, &mut storage.old_values),
        ] {
            let bytes = if self.shape.grows { previous } else { current }.bytes_mut();
            for (index, number) in numbers.iter().enumerate() {
                let (row, d) = (index / self.shape.head_dim, index % self.shape.head_dim);
                let (head, position) = (row / self.valid, row % self.valid);
                store(bytes, self.shape.dtype, (head * capacity + position) * self.shape.head_dim + d, *number);
            }
        }
    }
}

/// Writes element `element`, rounded to `dtype`.
pub(super) fn store(bytes: &mut [u8], dtype: DType, element: usize, value: f32) {
    match dtype {
        DType::F32 => bytes[element * 4..][..4].copy_from_slice(&value.to_le_bytes()),
        DType::BF16 => bytes[element * 2..][..2].copy_from_slice(&f32_to_bf16(value).to_le_bytes()),
    }
}

/// Element `element`.
pub(super) fn fetch(bytes: &[u8], dtype: DType, element: usize) -> f32 {
    let at = element * dtype.bytes();
    match dtype {
        DType::F32 => f32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")),
        DType::BF16 => half_to_f32(ElementType::BF16, u16::from_le_bytes([bytes[at], bytes[at + 1]])),
    }
}

impl Storage {
    pub(super) fn layer_cache(&self) -> LayerCache {
        let previous = self.shape.grows.then(|| PreviousCache {
            keys: self.old_keys.start(),
            values: self.old_values.start(),
            capacity: self.filled,
        });
        LayerCache { keys: self.keys.start(), values: self.values.start(), capacity: self.capacity, previous }
    }

    /// Keys, values, and what they were in a growing cache's former storage.
    pub(super) fn memories(&mut self) -> [&mut Guarded; 4] {
        [&mut self.keys, &mut self.values, &mut self.old_keys, &mut self.old_values]
    }

    /// What a call may write: keys, then values, with their element type.
    pub(super) fn writable(&self) -> [(&'static str, &Guarded, DType); 2] {
        let dtype = self.shape.dtype;
        [("the cached keys", &self.keys, dtype), ("the cached values", &self.values, dtype)]
    }

    /// The filled positions, (kv_heads, filled, head_dim); what a growing cache has not copied yet reads as -1.
    pub(super) fn valid(&self, values: bool) -> Vec<f32> {
        let bytes = if values { &self.values } else { &self.keys }.bytes();
        let CaseCache { kv_heads, head_dim, dtype, .. } = self.shape;
        let mut numbers = Vec::with_capacity(kv_heads * self.filled * head_dim);
        for head in 0..kv_heads {
            for index in 0..self.filled * head_dim {
                let number = fetch(bytes, dtype, head * self.capacity * head_dim + index);
                numbers.push(if self.shape.grows && number.is_nan() { -1.0 } else { number });
            }
        }
        numbers
    }

    /// Nothing was touched outside the storage, nor written into its unfilled tail.
    pub(super) fn intact(&self) -> Result<(), String> {
        let CaseCache { kv_heads, head_dim, dtype, .. } = self.shape;
        let head_bytes = self.capacity * head_dim * dtype.bytes();
        let filled_bytes = self.filled * head_dim * dtype.bytes();
        for storage in [&self.keys, &self.values, &self.old_keys, &self.old_values] {
            storage.intact()?;
        }
        for (name, storage) in [("keys", &self.keys), ("values", &self.values)] {
            for head in 0..kv_heads {
                let tail = &storage.bytes()[head * head_bytes..][filled_bytes..head_bytes];
                if let Some(at) = tail.iter().position(|byte| *byte != POISON) {
                    let position = self.filled + at / (head_dim * dtype.bytes());
                    return Err(format!(
                        "it writes position {position} of the cached {name} of head {head}, of which {} are filled",
                        self.filled
                    ));
                }
            }
        }
        Ok(())
    }
}
