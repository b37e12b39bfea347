//! The program of a step and everything that runs it on the CPU.
//!
//! Here: the [`Program`] (calls over buffers and weights), its verification, memory plan and binding; the operators with
//! their references and kernels; packed weights; the workers; the observers; checkpoints as data. The only home of SIMD.
//! Not here: model architectures, files, sampling, records, tools.

#[cfg(target_arch = "x86_64")]
mod amx;
mod arena;
mod bind;
mod bits;
pub mod ceilings;
mod checkpoint;
mod delay;
mod device;
mod dtype;
mod features;
mod fusions;
mod invocation;
pub mod ladder;
pub mod memory;
mod operator;
pub mod operators;
mod pace;
mod plan;
mod program;
mod random;
pub mod recording;
mod registry;
mod rewrite;
mod step;
pub mod testing;
mod verify;
mod walk;
mod weight;
mod workers;

pub use arena::Arena;
pub use bind::{BindError, Bound, BoundCall, bind, choose};
pub use bits::{bf16_to_f32, f32_to_bf16};
pub use checkpoint::{CachePolicy, Checkpoint, Choice, MechanismControls, Resolved, RowRange, WeightPolicy};
pub use delay::Delay;
pub use device::{Device, DeviceCeilings};
pub use dtype::DType;
pub use features::{Feature, Features};
pub use invocation::{Invocation, KvView, KvViewMut, Matrix, MatrixMut, Portions};
pub use operator::{
    AheadFn, CacheUse, CallShape, Cost, Group, Kernel, KernelFn, Operator, Tolerance, ViewShape, WeightShape,
};
pub use pace::Pace;
pub use plan::MemoryPlan;
pub use program::{Attributes, BufferId, BufferSpec, Call, Keys, Program, ProgramBuilder, View, WeightId, WeightSpec};
pub use registry::Registry;
pub use rewrite::{Replacement, Rewrite};
pub use step::{LayerCache, PreviousCache, Sequence, SequenceShape, Step};
pub use verify::VerifyError;
pub use walk::{Both, Observer, Only, Plain, Span, Traced, Until, Where, run};
pub use weight::{ElementType, Encoding, PackError, Packed, RowSource, WeightFormat, WeightRequest, Weights};
pub use workers::{Workers, processors};
