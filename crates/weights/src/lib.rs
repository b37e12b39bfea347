//! Files to named tensors, text to tokens.
//!
//! Here: where a model comes from ([`ModelSource`]), what its files hold ([`ModelFiles`]: a [`Config`], named
//! [`Tensor`]s, a [`Tokenizer`], a [`ChatTemplate`]), and writing MLX and
//! dense checkpoints.
//! Not here: packing for a kernel, running anything. This crate knows no operator and no instruction set.

mod config;
mod config_json;
mod dense_checkpoint;
mod directory;
mod error;
mod escape;
mod files;
#[doc(hidden)]
pub mod fuzz;
mod gguf;
mod hub;
mod hub_download;
mod mapping;
mod mlx;
mod partial_directory;
mod python;
mod quantize;
mod quantize_checkpoint;
mod safetensors;
#[cfg(test)]
mod scratch_model;
mod small_file;
mod source;
mod stream;
mod synthetic;
mod synthetic_rows;
mod template;
mod tensor;
#[cfg(test)]
mod text_tests;
mod tokenizer;

pub use config::{Architecture, Config, RopeLayout, RopeScaling};
pub use dense_checkpoint::{DenseCheckpoint, dense_in_cache, export_dense, peers_cache};
pub use error::{Error, Result};
pub use files::{ModelFiles, OpenOptions, Progress, open};
pub use hub::pull;
pub use quantize::{GROUPS, quantize_group, quantize_row};
pub use quantize_checkpoint::quantize_checkpoint;
pub use source::ModelSource;
pub use stream::DecodeStream;
pub use template::{ChatTemplate, Message, RenderOptions};
pub use tensor::{DenseType, Encoding, Tensor};
pub use tokenizer::Tokenizer;

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}
