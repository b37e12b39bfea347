//! What a kernel is given: its worker's number, its operands with their shapes, and the step.
//! Not here: arithmetic, and the addresses themselves, which `bind` resolved.
//!
//! Operand accessors check bounds; that two workers do not write the same row is each kernel's duty (take rows or columns
//! from [`Invocation::share`]), and that calls do not race is `bind`'s (barriers).

#![allow(unsafe_code, reason = "typed views of arena memory that several workers share")]

use crate::DType;
use crate::bind::{BoundCall, WeightOperand};
use crate::bits::{bf16_to_f32, f32_to_bf16};
use crate::operator::WeightShape;
use crate::program::{Attributes, Keys};
use crate::step::{LayerCache, Sequence, Step};
use crate::weight::Packed;
use std::any::Any;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// One worker's view of one call.
pub struct Invocation<'a> {
    pub worker: usize,
    pub workers: usize,
    pub step: &'a Step<'a>,
    pub(crate) call: &'a BoundCall,
    /// Private to this worker, as many bytes as the kernel's `scratch` asked for, 64-byte aligned, contents undefined.
    pub(crate) scratch: *mut u8,
    pub(crate) scratch_bytes: usize,
    /// Where a device's kernel puts its work.
    pub(crate) queue: Option<&'a dyn Any>,
}

/// What is `worker`'s of `items` that all workers share evenly.
pub(crate) fn portion(items: usize, worker: usize, workers: usize) -> Range<usize> {
    let start = |worker: usize| (items as u128 * worker as u128 / workers as u128) as usize;
    start(worker)..start(worker + 1)
}

/// See [`Invocation::portions`].
pub struct Portions<'a> {
    own: Option<Range<usize>>,
    /// Those that belong to no worker beforehand.
    items: Range<usize>,
    workers: usize,
    least: usize,
    taken: Option<&'a AtomicUsize>,
}

impl Portions<'_> {
    /// These items and no others.
    pub fn fixed(own: Range<usize>) -> Self {
        Portions { own: Some(own), items: 0..0, workers: 1, least: 1, taken: None }
    }

    /// The part that is the worker's beforehand, unless it was already handed out.
    pub fn own(&self) -> Range<usize> {
        self.own.clone().unwrap_or(self.items.start..self.items.start)
    }
}

impl Iterator for Portions<'_> {
    type Item = Range<usize>;

    #[inline]
    fn next(&mut self) -> Option<Range<usize>> {
        if let Some(own) = self.own.take() {
            return Some(own);
        }
        let taken = self.taken?;
        let mut before = taken.load(Relaxed);
        loop {
            let left = self.items.len() - before;
            if left == 0 {
                return None;
            }
            let part = (left / (2 * self.workers)).max(self.least).min(left);
            // Only the count is agreed on; what the workers compute is ordered by the barriers.
            match taken.compare_exchange_weak(before, before + part, Relaxed, Relaxed) {
                Ok(_) => {
                    let start = self.items.start + before;
                    return Some(start..start + part);
                }
                Err(now) => before = now,
            }
        }
    }
}

/// A readable operand `(rows, width)`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    pub(crate) start: *const u8,
    pub rows: usize,
    pub width: usize,
    pub dtype: DType,
    pub(crate) lifetime: PhantomData<&'a u8>,
}

/// A writable operand `(rows, width)`.
#[derive(Clone, Copy, Debug)]
pub struct MatrixMut<'a> {
    pub(crate) start: *mut u8,
    pub rows: usize,
    pub width: usize,
    pub dtype: DType,
    pub(crate) lifetime: PhantomData<&'a u8>,
}

/// Keys or values of one sequence: element (head, position, d), whether in a cache or in the step's buffer.
#[derive(Clone, Copy, Debug)]
pub struct KvView<'a> {
    start: *const u8,
    /// Elements from one head to the next and from one position to the next.
    pub head_stride: usize,
    pub position_stride: usize,
    pub heads: usize,
    /// Valid positions.
    pub positions: usize,
    pub head_dim: usize,
    pub dtype: DType,
    lifetime: PhantomData<&'a u8>,
}

/// A cache that may be written: element (head, position, d) for every position of its capacity.
#[derive(Clone, Copy, Debug)]
pub struct KvViewMut<'a> {
    start: *mut u8,
    pub capacity: usize,
    pub heads: usize,
    pub head_dim: usize,
    pub dtype: DType,
    lifetime: PhantomData<&'a u8>,
}

impl<'a> Invocation<'a> {
    pub fn attributes(&self) -> &'a Attributes {
        &self.call.attributes
    }

    pub fn input(&self, index: usize) -> Matrix<'a> {
        let operand = &self.call.inputs[index];
        let (start, lifetime) = (operand.start.cast_const(), PhantomData);
        Matrix { start, rows: operand.rows, width: operand.width, dtype: operand.dtype, lifetime }
    }

    pub fn output(&self, index: usize) -> MatrixMut<'a> {
        let operand = &self.call.outputs[index];
        let lifetime = PhantomData;
        MatrixMut { start: operand.start, rows: operand.rows, width: operand.width, dtype: operand.dtype, lifetime }
    }

    pub fn weight(&self, index: usize) -> Packed<'a> {
        let weight = &self.call.weights[index];
        // SAFETY: `bind` took the pointer and length from the packed weights, which the bound program keeps alive.
        let bytes = unsafe { std::slice::from_raw_parts(weight.start, weight.bytes) };
        Packed { format: weight.format, rows: weight.rows, cols: weight.cols, bytes }
    }

    /// Address, shape and format of a weight, wherever it lies: for kernels of a device, which pass the address on.
    pub fn weight_at(&self, index: usize) -> (*const u8, WeightShape) {
        let WeightOperand { start, rows, cols, format, .. } = self.call.weights[index];
        (start, WeightShape { rows, cols, format })
    }

    /// The scratch's address and bytes, for kernels of a device.
    pub fn scratch_at(&self) -> (*mut u8, usize) {
        (self.scratch, self.scratch_bytes)
    }

    /// Where a device's kernel puts its work.
    ///
    /// # Panics
    /// If the device that walks gave another type: a kernel of one device bound for another.
    pub fn queue<T: 'static>(&self) -> &'a T {
        self.queue.and_then(|queue| queue.downcast_ref()).expect("a device's kernel runs in that device's queue")
    }

    /// Which layer's cache the call uses.
    pub fn layer(&self) -> Option<usize> {
        self.call.layer
    }

    /// Element type of keys and values.
    pub fn cache_dtype(&self) -> DType {
        self.call.cache_dtype
    }

    pub fn inputs(&self) -> usize {
        self.call.inputs.len()
    }

    pub fn weights(&self) -> usize {
        self.call.weights.len()
    }

    /// This worker's part of `items`, as a contiguous range; parts differ by at most one item.
    pub fn share(&self, items: usize) -> Range<usize> {
        portion(items, self.worker, self.workers)
    }

    /// This worker's parts of `items`, one after another: its [`share`](Invocation::share), or, where the pace is guided, its
    /// share of three quarters, and then what it takes of the rest: a part of what is left each time, at least `least` items
    /// (fewer at the end). Who gets an item differs from run to run, so nothing that is computed for one may depend on the part.
    pub fn portions(&self, items: usize, least: usize) -> Portions<'a> {
        let taken = self.call.taken.as_ref().filter(|_| self.workers > 1);
        let open = if taken.is_some() { items / 4 } else { 0 };
        Portions {
            own: Some(self.share(items - open)),
            items: items - open..items,
            workers: self.workers,
            least,
            taken,
        }
    }

    /// Whether workers that wait ask for weights that they will need.
    pub fn fetches_ahead(&self) -> bool {
        self.call.ahead.is_some()
    }

    /// The worker's scratch, as bytes.
    ///
    /// # Safety
    /// - At most one slice of it may be alive at a time.
    #[expect(clippy::mut_from_ref, reason = "scratch is private to the worker; the contract forbids two slices")]
    pub unsafe fn scratch(&self) -> &mut [u8] {
        // SAFETY: `bind` reserved this many bytes for this worker alone; uniqueness is the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.scratch, self.scratch_bytes) }
    }

    /// This call's cache of one sequence.
    pub fn cache(&self, sequence: &Sequence<'a>) -> &'a LayerCache {
        &sequence.caches[self.call.layer.expect("cache operators belong to a layer")]
    }

    /// The keys (`value == false`) or values (`true`) of one sequence's cache, for operators that fill it.
    pub fn cache_mut(&self, sequence: &Sequence<'a>, value: bool) -> KvViewMut<'a> {
        let Attributes { kv_heads: heads, head_dim, .. } = *self.attributes();
        let cache = self.cache(sequence);
        let (start, lifetime) = (if value { cache.values } else { cache.keys }, PhantomData);
        KvViewMut { start, capacity: cache.capacity, heads, head_dim, dtype: self.call.cache_dtype, lifetime }
    }

    /// What the storage held that this step's replaces, if any: positions `0..offset`.
    pub fn previous(&self, sequence: &Sequence<'a>, value: bool) -> Option<KvView<'a>> {
        let Attributes { kv_heads: heads, head_dim, .. } = *self.attributes();
        let previous = self.cache(sequence).previous?;
        assert!(sequence.offset <= previous.capacity, "the storage held what was cached");
        Some(KvView {
            start: if value { previous.values } else { previous.keys },
            head_stride: previous.capacity * head_dim,
            position_stride: head_dim,
            heads,
            positions: sequence.offset,
            head_dim,
            dtype: self.call.cache_dtype,
            lifetime: PhantomData,
        })
    }

    /// The keys (`value == false`) or values (`true`) that the rows of `sequence` attend to.
    ///
    /// From the cache (positions up to and including this step's) or, with [`Keys::Step`], from inputs 1 and 2.
    pub fn kv(&self, sequence: &Sequence<'a>, value: bool) -> KvView<'a> {
        let Attributes { kv_heads, head_dim, keys, .. } = *self.attributes();
        let lifetime = PhantomData;
        match keys {
            Keys::Cache => {
                let cache = self.cache(sequence);
                let start = if value { cache.values } else { cache.keys }.cast_const();
                let positions = sequence.offset + sequence.rows;
                assert!(positions <= cache.capacity, "the cache was prepared for this step");
                let (head_stride, position_stride) = (cache.capacity * head_dim, head_dim);
                let (heads, dtype) = (kv_heads, self.call.cache_dtype);
                KvView { start, head_stride, position_stride, heads, positions, head_dim, dtype, lifetime }
            }
            Keys::Step => {
                let input = self.input(self.call.inputs.len() - 1 - usize::from(!value && self.call.inputs.len() > 2));
                let offset = sequence.first_row * input.width * input.dtype.bytes();
                assert!(sequence.first_row + sequence.rows <= input.rows, "sequences lie within the step");
                let start = input.start.wrapping_add(offset);
                let (positions, dtype) = (sequence.rows, input.dtype);
                KvView {
                    start,
                    head_stride: head_dim,
                    position_stride: input.width,
                    heads: kv_heads,
                    positions,
                    head_dim,
                    dtype,
                    lifetime,
                }
            }
        }
    }
}

macro_rules! shared_accessors {
    ($name:ident) => {
        impl<'a> $name<'a> {
            /// Bytes from one row to the next.
            pub fn row_bytes(&self) -> usize {
                self.width * self.dtype.bytes()
            }

            /// Element (row, col) as f32.
            pub fn get(&self, row: usize, col: usize) -> f32 {
                assert!(row < self.rows && col < self.width, "({row}, {col}) of ({}, {})", self.rows, self.width);
                let index = row * self.width + col;
                match self.dtype {
                    // SAFETY: inside the operand (asserted), whose arena `bind` sized; the arena is initialised and aligned.
                    DType::F32 => unsafe { *self.start.cast::<f32>().add(index) },
                    // SAFETY: as above.
                    DType::BF16 => bf16_to_f32(unsafe { *self.start.cast::<u16>().add(index) }),
                }
            }

            /// Row `row` as bf16 bits.
            pub fn bf16(&self, row: usize) -> &'a [u16] {
                assert!(row < self.rows && self.dtype == DType::BF16, "row {row} of {} bf16 rows", self.rows);
                // SAFETY: inside the operand (asserted); no worker writes these rows while this call reads them (barriers).
                unsafe { std::slice::from_raw_parts(self.start.cast::<u16>().add(row * self.width), self.width) }
            }

            /// Row `row` as f32.
            pub fn f32(&self, row: usize) -> &'a [f32] {
                assert!(row < self.rows && self.dtype == DType::F32, "row {row} of {} f32 rows", self.rows);
                // SAFETY: as for `bf16`.
                unsafe { std::slice::from_raw_parts(self.start.cast::<f32>().add(row * self.width), self.width) }
            }

            /// First byte of the operand.
            pub fn as_ptr(&self) -> *const u8 {
                self.start as *const u8
            }
        }
    };
}
shared_accessors!(Matrix);
shared_accessors!(MatrixMut);

impl<'a> MatrixMut<'a> {
    /// Stores `value` at (row, col), rounded to the operand's type.
    pub fn set(&self, row: usize, col: usize, value: f32) {
        assert!(row < self.rows && col < self.width, "({row}, {col}) of ({}, {})", self.rows, self.width);
        let index = row * self.width + col;
        match self.dtype {
            // SAFETY: inside the operand (asserted); this worker alone writes the element (the kernel's share).
            DType::F32 => unsafe { *self.start.cast::<f32>().add(index) = value },
            // SAFETY: as above.
            DType::BF16 => unsafe { *self.start.cast::<u16>().add(index) = f32_to_bf16(value) },
        }
    }

    /// Stores these bf16 bits at (row, col) and the columns after it.
    pub fn set_bf16(&self, row: usize, col: usize, values: &[u16]) {
        assert!(
            row < self.rows && col + values.len() <= self.width && self.dtype == DType::BF16,
            "({row}, {col}..+{}) of ({}, {}) bf16",
            values.len(),
            self.rows,
            self.width
        );
        let start = self.start.cast::<u16>().wrapping_add(row * self.width + col);
        // SAFETY: inside the operand (asserted); this worker alone writes the elements (the kernel's share), and a slice that
        // somebody holds is not part of an operand that this call writes.
        unsafe { std::ptr::copy(values.as_ptr(), start, values.len()) }
    }

    /// Row `row` as bf16 bits, writable.
    ///
    /// # Safety
    /// - No other worker, and no other slice, touches the row while this one lives.
    pub unsafe fn bf16_mut(&self, row: usize) -> &'a mut [u16] {
        assert!(row < self.rows && self.dtype == DType::BF16, "row {row} of {} bf16 rows", self.rows);
        // SAFETY: inside the operand (asserted); exclusivity is the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast::<u16>().add(row * self.width), self.width) }
    }

    /// Row `row` as f32, writable.
    ///
    /// # Safety
    /// - No other worker, and no other slice, touches the row while this one lives.
    pub unsafe fn f32_mut(&self, row: usize) -> &'a mut [f32] {
        assert!(row < self.rows && self.dtype == DType::F32, "row {row} of {} f32 rows", self.rows);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast::<f32>().add(row * self.width), self.width) }
    }

    /// First byte of the operand, writable.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.start
    }
}

impl<'a> KvView<'a> {
    /// Element (head, position, d) as f32.
    pub fn get(&self, head: usize, position: usize, d: usize) -> f32 {
        assert!(head < self.heads && position < self.positions && d < self.head_dim, "inside the view");
        let index = head * self.head_stride + position * self.position_stride + d;
        match self.dtype {
            // SAFETY: inside the view (asserted), whose strides describe live storage.
            DType::F32 => unsafe { *self.start.cast::<f32>().add(index) },
            // SAFETY: as above.
            DType::BF16 => bf16_to_f32(unsafe { *self.start.cast::<u16>().add(index) }),
        }
    }

    /// The `head_dim` bf16 values at (head, position).
    pub fn bf16(&self, head: usize, position: usize) -> &'a [u16] {
        assert!(head < self.heads && position < self.positions && self.dtype == DType::BF16, "inside the view");
        let index = head * self.head_stride + position * self.position_stride;
        // SAFETY: inside the view (asserted); written before this call began (barriers).
        unsafe { std::slice::from_raw_parts(self.start.cast::<u16>().add(index), self.head_dim) }
    }

    /// The bf16 values of `count` positions from (head, position) on, where positions follow each other without gaps.
    pub fn bf16_run(&self, head: usize, position: usize, count: usize) -> &'a [u16] {
        assert!(
            head < self.heads && position + count <= self.positions,
            "({head}, {position}..+{count}) inside the view"
        );
        assert!(self.dtype == DType::BF16 && self.position_stride == self.head_dim, "gapless bfloat16");
        let index = head * self.head_stride + position * self.position_stride;
        // SAFETY: inside the view (asserted); written before this call began (barriers).
        unsafe { std::slice::from_raw_parts(self.start.cast::<u16>().add(index), count * self.head_dim) }
    }

    /// The address of (head, position 0), for kernels that stride themselves.
    pub fn head_ptr(&self, head: usize) -> *const u8 {
        assert!(head < self.heads, "head {head} of {}", self.heads);
        self.start.wrapping_add(head * self.head_stride * self.dtype.bytes())
    }
}

impl<'a> KvViewMut<'a> {
    /// Stores `value` at (head, position, d), rounded to the cache's type.
    pub fn set(&self, head: usize, position: usize, d: usize, value: f32) {
        assert!(head < self.heads && position < self.capacity && d < self.head_dim, "inside the cache");
        let index = (head * self.capacity + position) * self.head_dim;
        match self.dtype {
            // SAFETY: inside the storage (asserted); this worker alone writes the element (the kernel's share).
            DType::F32 => unsafe { *self.start.cast::<f32>().add(index + d) = value },
            // SAFETY: as above.
            DType::BF16 => unsafe { *self.start.cast::<u16>().add(index + d) = f32_to_bf16(value) },
        }
    }

    /// The `count * head_dim` bf16 values from (head, position) on, writable.
    ///
    /// # Safety
    /// - No other worker, and no other slice, touches them while this one lives.
    pub unsafe fn bf16_mut(&self, head: usize, position: usize, count: usize) -> &'a mut [u16] {
        assert!(
            head < self.heads && position + count <= self.capacity,
            "({head}, {position}..+{count}) inside the cache"
        );
        assert!(self.dtype == DType::BF16, "a bfloat16 cache");
        let (index, length) = ((head * self.capacity + position) * self.head_dim, count * self.head_dim);
        // SAFETY: inside the storage (asserted); exclusivity is the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast::<u16>().add(index), length) }
    }
}
