//! Keys and values of one request, under each cache policy, with the byte counters that tell what keeping them costs.
//! Not here: the writing itself, which the cache operators of a step do.

use crate::error::{Error, Result};
use ops::{Arena, CachePolicy, DType, Device, LayerCache, PreviousCache};
use std::mem;
use std::sync::Arc;

/// What appends have moved over the cache's lifetime; rewinding and resetting leave the counters alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Old keys and values that a concatenation had to carry over (concatenating caches only).
    pub logical_copy_bytes: u64,
    /// The same bytes as really copied between allocations.
    pub physical_growth_copy_bytes: u64,
    /// The total of copies for growth.
    pub growth_copy_bytes: u64,
    /// New keys and values written into place (bounded caches only).
    pub slice_write_bytes: u64,
}

/// The cache of one request over all layers. Made by [`crate::Engine::new_cache`].
///
/// Storage per layer: keys and values `(kv_heads, capacity, head_dim)`. A bounded cache allocates (zeroed) at its first
/// append and never again; a concatenating one at every append; with [`CachePolicy::None`] only the tokens are kept.
pub struct Cache {
    /// Whose memory holds it; None for the host's.
    device: Option<Arc<dyn Device>>,
    policy: CachePolicy,
    shape: Shape,
    capacity: usize,
    offset: usize,
    storage: Option<Arena>,
    layers: Vec<LayerCache>,
    pending: Option<Pending>,
    tokens: Vec<u32>,
    counters: CacheCounters,
}

#[derive(Clone, Copy)]
struct Shape {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    dtype: DType,
}

/// An append that has begun and is neither committed nor abandoned.
struct Pending {
    rows: usize,
    /// What a concatenating cache had before: restored when the step is abandoned.
    replaced: Option<(Option<Arena>, Vec<LayerCache>)>,
}

impl Cache {
    pub(crate) fn new(
        policy: CachePolicy,
        (layers, kv_heads, head_dim): (usize, usize, usize),
        dtype: DType,
        capacity: usize,
    ) -> Cache {
        Cache {
            device: None,
            policy,
            shape: Shape { layers, kv_heads, head_dim, dtype },
            capacity,
            offset: 0,
            storage: None,
            layers: Vec::with_capacity(layers),
            pending: None,
            tokens: Vec::with_capacity(if policy == CachePolicy::None { capacity } else { 0 }),
            counters: CacheCounters::default(),
        }
    }

    /// The same in a device's memory.
    pub(crate) fn on(self, device: Option<&Arc<dyn Device>>) -> Cache {
        Cache { device: device.cloned(), ..self }
    }

    /// Tokens cached (or, without a cache, seen).
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The most tokens it accepts.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes moved by every committed append so far.
    pub fn counters(&self) -> CacheCounters {
        self.counters
    }

    /// Bytes of storage held now.
    pub fn bytes(&self) -> usize {
        self.storage.as_ref().map_or(0, Arena::len)
    }

    /// Forgets the last `n` tokens.
    ///
    /// # Errors
    /// More than are cached; nothing changes then.
    pub fn rewind(&mut self, n: usize) -> Result<()> {
        self.abandon();
        if n > self.offset {
            return Err(Error::Rewind { wanted: n, offset: self.offset });
        }
        self.offset -= n;
        self.tokens.truncate(self.offset);
        if self.offset == 0 && self.policy == CachePolicy::Concatenate {
            self.drop_storage();
        }
        Ok(())
    }

    /// Forgets everything. A bounded cache keeps its storage.
    pub fn reset(&mut self) {
        self.abandon();
        self.offset = 0;
        self.tokens.clear();
        if self.policy == CachePolicy::Concatenate {
            self.drop_storage();
        }
    }

    fn drop_storage(&mut self) {
        self.storage = None;
        self.layers.clear();
    }

    /// Makes room for `tokens`; nothing that was visible changes until [`Cache::commit`]. A step that was begun before and
    /// not committed is abandoned. No tokens, no effect.
    ///
    /// # Errors
    /// More than the capacity, before anything is touched; or no memory.
    pub(crate) fn begin(&mut self, tokens: &[u32]) -> Result<()> {
        self.abandon();
        if tokens.is_empty() {
            return Ok(());
        }
        let end = self.offset + tokens.len();
        if end > self.capacity {
            return Err(Error::CapacityExceeded { capacity: self.capacity, rows: tokens.len(), end });
        }
        let mut pending = Pending { rows: tokens.len(), replaced: None };
        match self.policy {
            CachePolicy::None => self.tokens.extend_from_slice(tokens),
            CachePolicy::Bounded => {
                if self.storage.is_none() {
                    let storage = self.allocate(self.capacity)?;
                    self.point_into(&storage, self.capacity, &[]);
                    self.storage = Some(storage);
                }
            }
            CachePolicy::Concatenate => {
                let storage = self.allocate(end)?;
                let old_layers = mem::replace(&mut self.layers, Vec::with_capacity(self.shape.layers));
                self.point_into(&storage, end, &old_layers);
                pending.replaced = Some((self.storage.replace(storage), old_layers));
            }
        }
        self.pending = Some(pending);
        Ok(())
    }

    /// The step succeeded: its tokens are part of the cache from now on.
    pub(crate) fn commit(&mut self) {
        let Some(Pending { rows, replaced }) = self.pending.take() else { return };
        let row_bytes = self.row_bytes();
        match self.policy {
            CachePolicy::None => {}
            CachePolicy::Bounded => self.counters.slice_write_bytes += (rows * row_bytes) as u64,
            CachePolicy::Concatenate => {
                let copied = (self.offset * row_bytes) as u64;
                self.counters.logical_copy_bytes += copied;
                self.counters.physical_growth_copy_bytes += copied;
                self.counters.growth_copy_bytes += copied;
                drop(replaced);
                for layer in &mut self.layers {
                    layer.previous = None;
                }
            }
        }
        self.offset += rows;
    }

    /// The step is given up: the cache is as it was before [`Cache::begin`].
    fn abandon(&mut self) {
        let Some(Pending { replaced, .. }) = self.pending.take() else { return };
        self.tokens.truncate(self.offset);
        if let Some((storage, layers)) = replaced {
            self.storage = storage;
            self.layers = layers;
        }
    }

    pub(crate) fn layers(&self) -> &[LayerCache] {
        &self.layers
    }

    /// Every token so far, for the policy that keeps only them.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(crate) fn policy(&self) -> CachePolicy {
        self.policy
    }

    /// Keys and values of one token over all layers, in bytes.
    fn row_bytes(&self) -> usize {
        let Shape { layers, kv_heads, head_dim, dtype } = self.shape;
        2 * layers * kv_heads * head_dim * dtype.bytes()
    }

    fn allocate(&self, positions: usize) -> Result<Arena> {
        let bytes = positions * self.row_bytes();
        Arena::on(self.device.as_ref(), bytes).map_err(|source| Error::CacheMemory { bytes, source })
    }

    fn point_into(&mut self, storage: &Arena, capacity: usize, old: &[LayerCache]) {
        let Shape { layers, kv_heads, head_dim, dtype } = self.shape;
        let block = kv_heads * capacity * head_dim * dtype.bytes();
        self.layers.clear();
        for layer in 0..layers {
            let previous = old.get(layer).map(|old| PreviousCache {
                keys: old.keys.cast_const(),
                values: old.values.cast_const(),
                capacity: old.capacity,
            });
            let keys = storage.as_mut_ptr().wrapping_add(2 * layer * block);
            self.layers.push(LayerCache { keys, values: keys.wrapping_add(block), capacity, previous });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::{Engine, Keep, LoadOptions};

    const POLICIES: [CachePolicy; 3] = [CachePolicy::None, CachePolicy::Concatenate, CachePolicy::Bounded];

    #[test]
    fn a_step_of_no_tokens_changes_nothing() {
        for policy in POLICIES {
            let mut cache = Cache::new(policy, (2, 1, 4), DType::BF16, 5);
            for appended in [&[][..], &[7, 8, 9]] {
                cache.begin(appended).unwrap();
                cache.commit();
                let (counters, offset, tokens) = (cache.counters(), cache.offset(), cache.tokens().to_vec());
                let place = |cache: &Cache| cache.storage.as_ref().map(|arena| (arena.as_ptr(), arena.len()));
                let storage = place(&cache);
                assert_eq!(storage.is_some(), !appended.is_empty() && policy != CachePolicy::None);
                cache.begin(&[]).unwrap();
                cache.commit();
                assert_eq!((cache.counters(), cache.offset(), cache.tokens()), (counters, offset, &tokens[..]));
                assert_eq!(place(&cache), storage, "{policy:?}");
            }
        }
    }

    #[test]
    fn the_unused_tail_of_a_bounded_cache_is_zero() {
        let source = weights::ModelSource::parse("synthetic:tiny").unwrap();
        let files = weights::open(&source, &weights::OpenOptions::default()).unwrap();
        let mut options = LoadOptions::new(ops::Registry::standard().checkpoint("selected").unwrap());
        options.threads = 2;
        let mut engine = Engine::load(&files, options).unwrap();
        let mut cache = engine.new_cache(5);
        engine.forward(&mut cache, &[1, 2, 3], Keep::Last).unwrap();
        let row = cache.shape.head_dim * cache.shape.dtype.bytes();
        let storage = cache.storage.as_ref().unwrap().as_slice();
        assert_eq!(storage.len(), 5 * cache.row_bytes());
        for (index, row) in storage.chunks_exact(row).enumerate() {
            let zero = row.iter().all(|byte| *byte == 0);
            assert_eq!(zero, index % 5 >= 3, "position {} of block {}", index % 5, index / 5);
        }
    }
}
