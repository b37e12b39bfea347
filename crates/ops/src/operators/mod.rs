//! The operators, one file each; the list below is both the module declarations and the registry.
//! Not here: what an operator is (`operator.rs`), and tables for readers (`README.md`).

use crate::operator::Operator;

pub mod isa;
mod maths;
mod prefetch;
mod sequences;
mod shapes;
#[cfg(target_arch = "x86_64")]
mod tile_walk;

pub use norm_linear::MOST_PROJECTIONS;

/// What the references are written with, for kernels that start from one.
pub mod parts {
    pub use super::attention_parts::part_of;
    pub use super::norm_linear::{normed, projected};
    pub use super::placed_attention::placed;
    pub use super::rope_table::position;
    pub use super::rotate_half::columns;
    pub use super::sequences::sequence_of;
    pub use crate::weight::LANES;
}

/// Declares each operator's module, re-exports its static, and lists it.
macro_rules! ops {
    ($($module:ident :: $name:ident),+ $(,)?) => {
        $(mod $module; pub use $module::$name;)+
        /// Every operator.
        pub static ALL: &[&dyn Operator] = &[$(&$name),+];
    };
}

ops! {
    embed::EMBED,
    rope_table::ROPE_TABLE,
    rms_scale::RMS_SCALE,
    mul_weight::MUL_WEIGHT,
    rms_norm::RMS_NORM,
    rotate_half::ROTATE_HALF,
    rope_combine::ROPE_COMBINE,
    rope::ROPE,
    norm_rope_append::NORM_ROPE_APPEND,
    cache_grow::CACHE_GROW,
    cache_append::CACHE_APPEND,
    attention_scores::ATTENTION_SCORES,
    softmax::SOFTMAX,
    attention_mix::ATTENTION_MIX,
    attention::ATTENTION,
    attention_parts::ATTENTION_PARTS,
    attention_join::ATTENTION_JOIN,
    add::ADD,
    add_rms_norm::ADD_RMS_NORM,
    linear::LINEAR,
    gated_linear::GATED_LINEAR,
    linear_add::LINEAR_ADD,
    norm_linear::NORM_LINEAR,
    norm_swiglu::NORM_SWIGLU,
    placed_attention::PLACED_ATTENTION,
    mul::MUL,
    silu::SILU,
    swiglu::SWIGLU,
}
