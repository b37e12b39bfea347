//! What an operator and a kernel are. The operators themselves are in `operators/`, one file each.
//! Not here: what a kernel is given when it runs (`invocation.rs`), and which kernels a build has (`registry.rs`).

use crate::invocation::Invocation;
use crate::program::Attributes;
use crate::step::SequenceShape;
use crate::testing::{Case, Draw};
use crate::weight::WeightFormat;
use crate::{DType, Features};
use std::ops::AddAssign;

/// The group that a call's time is reported under in an operator replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    Embedding,
    Projections,
    Attention,
    /// Normalization, position, activation and residual additions.
    Pointwise,
    CacheUpdate,
    Head,
}

impl Group {
    pub const ALL: [Group; 6] =
        [Group::Embedding, Group::Projections, Group::Attention, Group::Pointwise, Group::CacheUpdate, Group::Head];

    pub const fn name(self) -> &'static str {
        match self {
            Group::Embedding => "embedding",
            Group::Projections => "projections",
            Group::Attention => "attention",
            Group::Pointwise => "normalization, position, and activation",
            Group::CacheUpdate => "cache update",
            Group::Head => "head",
        }
    }
}

/// Shape of a buffer operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewShape {
    pub rows: usize,
    pub width: usize,
    pub dtype: DType,
}

impl ViewShape {
    /// Bytes of the operand, each element once.
    pub const fn bytes(self) -> u64 {
        (self.rows * self.width * self.dtype.bytes()) as u64
    }
}

/// Shape and packed format of a weight operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightShape {
    pub rows: usize,
    pub cols: usize,
    pub format: WeightFormat,
}

impl WeightShape {
    /// Packed bytes, padding included.
    pub fn bytes(self) -> u64 {
        self.format.packed_bytes(self.rows, self.cols) as u64
    }
}

/// Everything about a call that its checks and its cost depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct CallShape {
    pub inputs: Vec<ViewShape>,
    pub outputs: Vec<ViewShape>,
    pub weights: Vec<WeightShape>,
    pub attributes: Attributes,
    /// Element type of the program's keys and values; operators that touch the cache depend on it.
    pub cache_dtype: DType,
    /// Empty while only static shapes are checked.
    pub sequences: Vec<SequenceShape>,
}

/// What a call must do at least: unique bytes moved and floating-point operations (a multiply-add is two).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub flops: u64,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.flops += other.flops;
    }
}

/// Largest normalised mean squared error (Σ(got − want)² ÷ Σ want²) a kernel may show against the reference, and why.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    pub nmse: f64,
    pub reason: &'static str,
}

/// Asks memory for the n-th piece of what a worker's share will read besides the step's buffers; false when no more is worth it.
/// Neither the call's inputs nor anything else that the step writes may be looked at.
pub type AheadFn = fn(&Invocation<'_>, usize) -> bool;

/// Does a worker's share of a call.
pub type KernelFn = fn(&Invocation<'_>);

/// One variant of an operator for one set of instructions.
///
/// Make one with [`kernel!`](crate::kernel), which fills in the source location.
pub struct Kernel {
    /// The operator that it implements.
    pub operator: &'static str,
    /// The variant's name, shared by versions of it for different instruction sets; checkpoints choose by it.
    pub name: &'static str,
    /// Which version this is: `portable`, `avx2`, `avx512-vnni`, ...
    pub isa: &'static str,
    /// What it may not run without; `bind` checks.
    pub features: Features,
    /// Shapes, element types and weight formats that it handles, beyond what the operator itself checks; the message says
    /// what it would need.
    pub supports: fn(&CallShape) -> Result<(), String>,
    pub tolerance: Tolerance,
    /// Private scratch bytes per worker.
    pub scratch: fn(&CallShape) -> usize,
    /// What a worker may ask for while it waits for the call's inputs.
    pub ahead: Option<AheadFn>,
    pub run: KernelFn,
    pub file: &'static str,
    pub line: u32,
    /// Integer products that it makes for each multiply-add of the operator: 2 where activations are two planes of bytes.
    pub products: u32,
}

impl Kernel {
    /// The same, which makes so many integer products for each multiply-add of the operator (1 unless told): what its floor is
    /// counted with.
    pub const fn multiplying(self, products: u32) -> Kernel {
        Kernel { products, ..self }
    }

    /// Whether it plays an instruction in plain memory that a machine may lack, so that what surrounds the instruction is
    /// tested everywhere: right and slow, and no checkpoint's.
    pub fn is_emulation(&self) -> bool {
        self.name.starts_with("emulated-")
    }

    /// `name/isa`, the form used in records and tables.
    pub fn label(&self) -> String {
        format!("{}/{}", self.name, self.isa)
    }
}

/// Makes a [`Kernel`] constant with its source location. `supports`, `scratch` and `ahead` may be left out.
#[macro_export]
macro_rules! kernel {
    (
        operator: $operator:expr, name: $name:expr, isa: $isa:expr, features: $features:expr,
        $(supports: $supports:expr,)? $(scratch: $scratch:expr,)? $(ahead: $ahead:expr,)?
        nmse: $nmse:expr, because: $reason:expr, run: $run:expr $(,)?
    ) => {
        $crate::Kernel {
            operator: $operator,
            name: $name,
            isa: $isa,
            features: $crate::Features::of($features),
            supports: { #[allow(unused_mut, unused_assignments, reason = "overwritten where given")]
                const fn pick() -> fn(&$crate::CallShape) -> Result<(), String> {
                    let mut f: fn(&$crate::CallShape) -> Result<(), String> = |_| Ok(());
                    $(f = $supports;)?
                    f
                } pick() },
            scratch: { #[allow(unused_mut, unused_assignments, reason = "overwritten where given")]
                const fn pick() -> fn(&$crate::CallShape) -> usize {
                    let mut f: fn(&$crate::CallShape) -> usize = |_| 0;
                    $(f = $scratch;)?
                    f
                } pick() },
            ahead: { #[allow(unused_mut, unused_assignments, reason = "overwritten where given")]
                const fn pick() -> Option<$crate::AheadFn> {
                    let mut f: Option<$crate::AheadFn> = None;
                    $(f = Some($ahead);)?
                    f
                } pick() },
            tolerance: $crate::Tolerance { nmse: $nmse, reason: $reason },
            run: $run,
            file: file!(),
            line: line!(),
            products: 1,
        }
    };
    ($($other:tt)*) => {
        compile_error!(
            "kernel! { operator: \"...\", name: \"...\", isa: \"portable\", features: &[], supports: function (may be left out), \
             scratch: function (may be left out), ahead: function (may be left out), nmse: 1.6e-5, because: \"...\", run: function }: expected these fields in \
             this order; a field is missing, misspelt or in another place"
        )
    };
}

/// One operator: its shapes, its cost, its reference and its kernels.
pub trait Operator: Sync {
    fn name(&self) -> &'static str;

    fn group(&self) -> Group;

    /// Checks operand counts and shapes.
    ///
    /// # Errors
    /// What was expected and what was found.
    fn check(&self, shape: &CallShape) -> Result<(), String>;

    /// The least that a call of this shape moves and computes; exact, for `shape.sequences`.
    fn cost(&self, shape: &CallShape) -> Cost;

    /// Pairs `(output, input)` that may be the same view: the operator works in place.
    fn in_place(&self) -> &'static [(usize, usize)] {
        &[]
    }

    /// Whether the call reads, writes or grows its layer's cache.
    fn touches_cache(&self, _attributes: &Attributes) -> CacheUse {
        CacheUse::None
    }

    /// The reference first, then the variants, slowest first; later entries of one name are preferred where they run.
    fn kernels(&self) -> &'static [&'static Kernel];

    /// Shapes and inputs on which every kernel is compared with the reference.
    fn cases(&self) -> Vec<Case>;

    /// A case of any shape that the operator takes; small ones, of which many are tried.
    fn random_case(&self, draw: &mut Draw) -> Case;
}

/// How an operator uses its layer's cache; `bind` derives barriers from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheUse {
    None,
    Read,
    Write,
}
