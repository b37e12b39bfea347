//! Element types of activation buffers. Weight encodings are in `weight.rs`.

/// The element type of an activation buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float: the `reference` checkpoint's activations, scores and tables.
    F32,
    /// bfloat16: every rung's activations, KV cache and logits.
    BF16,
}

impl DType {
    /// Size of one element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::BF16 => 2,
        }
    }
}
