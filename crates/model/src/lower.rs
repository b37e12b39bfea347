//! One decoder architecture (Qwen3, Llama and Qwen2 differ by options) lowered to a program: the readable form, which a
//! checkpoint's rewrites then fuse.
//! Not here: which kernels run, and running them.

use ops::operators as op;
use ops::{
    Attributes, CachePolicy, DType, Group, Keys, Program, ProgramBuilder, Resolved, View, WeightFormat, WeightId,
};
use std::collections::HashMap;
use weights::{Config, RopeLayout};

/// The packed format of every weight, by name.
pub type WeightFormats = HashMap<String, WeightFormat>;

pub(crate) const INVERSE_FREQUENCIES: &str = "rope.inverse_frequencies";
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
pub(crate) const HEAD: &str = "lm_head.weight";
pub(crate) const FINAL_NORM: &str = "model.norm.weight";

/// Lowers a step of `rows` new tokens whose cached length afterwards is at most `context`; the last `keep` rows get logits.
///
/// Buffers are `(rows, width)`. The result is `(keep, vocabulary)`.
pub fn lower(
    config: &Config,
    checkpoint: &Resolved,
    formats: &WeightFormats,
    rows: usize,
    keep: usize,
    context: usize,
) -> Program {
    let builder = ProgramBuilder::new(rows, context, checkpoint.cache, checkpoint.activations);
    let mut lowering =
        Lowering { builder, config, formats, rows, context, dtype: checkpoint.activations, cache: checkpoint.cache };
    lowering.program(keep).rewritten(&checkpoint.rewrites)
}

struct Lowering<'a> {
    builder: ProgramBuilder,
    config: &'a Config,
    formats: &'a WeightFormats,
    rows: usize,
    context: usize,
    dtype: DType,
    cache: CachePolicy,
}

impl Lowering<'_> {
    fn program(&mut self, keep: usize) -> Program {
        let Config { hidden_size, vocab_size, head_dim, layers, tied_embeddings, .. } = *self.config;
        let hidden = self.buffer("hidden", hidden_size);
        let table = self.matrix(EMBEDDING, vocab_size, hidden_size);
        self.builder.call(&op::EMBED, "embed", &[], &[table], &[hidden], Attributes::default());
        let angles = self.builder.buffer("rope table", self.rows, head_dim, DType::F32);
        let frequencies = self.vector(INVERSE_FREQUENCIES, head_dim / 2);
        let attributes = Attributes { head_dim, ..Attributes::default() };
        self.builder.call(&op::ROPE_TABLE, "rope_table", &[], &[frequencies], &[angles], attributes);
        let mut residual = hidden;
        for layer in 0..layers {
            self.builder.layer(Some(layer));
            residual = self.attention_block(layer, residual, angles);
            residual = self.mlp_block(layer, residual);
        }
        self.builder.layer(None);
        let last = View { first_row: residual.first_row + self.rows - keep, rows: keep, ..residual };
        let normed = self.norm("final_norm", FINAL_NORM, last, hidden_size);
        let head = if tied_embeddings { EMBEDDING } else { HEAD };
        let head = self.matrix(head, vocab_size, hidden_size);
        let logits = self.builder.buffer("logits", keep, vocab_size, self.dtype);
        let nothing = Attributes::default();
        self.builder.call_in(Group::Head, &op::LINEAR, "lm_head", &[normed], &[head], &[logits], nothing);
        let empty = ProgramBuilder::new(0, 0, self.cache, self.dtype);
        std::mem::replace(&mut self.builder, empty).finish(logits)
    }

    fn attention_block(&mut self, layer: usize, residual: View, angles: View) -> View {
        let Config { hidden_size, heads, kv_heads, head_dim, qk_norm, rope_layout, .. } = *self.config;
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let normed = self.norm("input_norm", &name("input_layernorm.weight"), residual, hidden_size);
        let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        let mut q = self.linear("q_proj", &name("self_attn.q_proj"), normed, q_width);
        let mut k = self.linear("k_proj", &name("self_attn.k_proj"), normed, kv_width);
        let v = self.linear("v_proj", &name("self_attn.v_proj"), normed, kv_width);
        if qk_norm {
            q = self.norm("q_norm", &name("self_attn.q_norm.weight"), q, head_dim);
            k = self.norm("k_norm", &name("self_attn.k_norm.weight"), k, head_dim);
        }
        let interleaved = rope_layout == RopeLayout::Interleaved;
        q = self.rope("q_rope", q, angles, interleaved);
        k = self.rope("k_rope", k, angles, interleaved);
        let mut attributes = Attributes {
            heads,
            kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            keys: Keys::Step,
            ..Attributes::default()
        };
        let (mut score_inputs, mut mix_inputs) = (vec![q], vec![]);
        if self.cache == CachePolicy::None {
            score_inputs.push(k);
            mix_inputs.push(v);
        } else {
            attributes.keys = Keys::Cache;
            if self.cache == CachePolicy::Concatenate {
                self.builder.call(&op::CACHE_GROW, "cache_grow", &[], &[], &[], attributes);
            }
            self.builder.call(&op::CACHE_APPEND, "cache_append", &[k, v], &[], &[], attributes);
        }
        let scores = self.builder.buffer("scores", self.rows * heads, self.context, DType::F32);
        self.builder.call(&op::ATTENTION_SCORES, "attention", &score_inputs, &[], &[scores], attributes);
        self.builder.call(&op::SOFTMAX, "attention", &[scores], &[], &[scores], attributes);
        mix_inputs.insert(0, scores);
        let mixed = self.buffer("attended", q_width);
        self.builder.call(&op::ATTENTION_MIX, "attention", &mix_inputs, &[], &[mixed], attributes);
        let projected = self.linear("o_proj", &name("self_attn.o_proj"), mixed, hidden_size);
        self.add("attention_residual", residual, projected)
    }

    fn mlp_block(&mut self, layer: usize, residual: View) -> View {
        let Config { hidden_size, mlp_width, .. } = *self.config;
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let normed = self.norm("post_norm", &name("post_attention_layernorm.weight"), residual, hidden_size);
        let gate = self.linear("gate_proj", &name("mlp.gate_proj"), normed, mlp_width);
        let up = self.linear("up_proj", &name("mlp.up_proj"), normed, mlp_width);
        let (activated, product) = (self.buffer("activated", mlp_width), self.buffer("gated", mlp_width));
        let nothing = Attributes::default();
        self.builder.call(&op::SILU, "swiglu", &[gate], &[], &[activated], nothing);
        self.builder.call(&op::MUL, "swiglu", &[activated, up], &[], &[product], nothing);
        let projected = self.linear("down_proj", &name("mlp.down_proj"), product, hidden_size);
        self.add("mlp_residual", residual, projected)
    }

    /// RMSNorm over segments of `length`, in the readable two calls.
    fn norm(&mut self, slot: &'static str, weight: &str, x: View, length: usize) -> View {
        let width = self.width(x);
        let (scaled, normed) = (
            self.builder.buffer("scaled", x.rows, width, self.dtype),
            self.builder.buffer("normed", x.rows, width, self.dtype),
        );
        let attributes = Attributes { head_dim: length, epsilon: self.config.norm_eps as f32, ..Attributes::default() };
        let weight = self.vector(weight, length);
        self.builder.call(&op::RMS_SCALE, slot, &[x], &[], &[scaled], attributes);
        self.builder.call(&op::MUL_WEIGHT, slot, &[scaled], &[weight], &[normed], attributes);
        normed
    }

    /// Rotary position, in the readable two calls.
    fn rope(&mut self, slot: &'static str, x: View, angles: View, interleaved: bool) -> View {
        let width = self.width(x);
        let (turned, rotated) = (self.buffer("turned", width), self.buffer("rotated", width));
        let attributes = Attributes { head_dim: self.config.head_dim, interleaved, ..Attributes::default() };
        self.builder.call(&op::ROTATE_HALF, slot, &[x], &[], &[turned], attributes);
        self.builder.call(&op::ROPE_COMBINE, slot, &[x, turned, angles], &[], &[rotated], attributes);
        rotated
    }

    /// `x Wᵀ`, plus the bias where the files have one.
    fn linear(&mut self, slot: &'static str, module: &str, x: View, width: usize) -> View {
        let cols = self.width(x);
        let y = self.buffer(slot, width);
        let mut weights = vec![self.matrix(&format!("{module}.weight"), width, cols)];
        let bias = format!("{module}.bias");
        if self.formats.contains_key(&bias) {
            weights.push(self.vector(&bias, width));
        }
        self.builder.call(&op::LINEAR, slot, &[x], &weights, &[y], Attributes::default());
        y
    }

    fn add(&mut self, slot: &'static str, a: View, b: View) -> View {
        let sum = self.buffer("residual", self.config.hidden_size);
        self.builder.call(&op::ADD, slot, &[a, b], &[], &[sum], Attributes::default());
        sum
    }

    fn buffer(&mut self, name: &'static str, width: usize) -> View {
        self.builder.buffer(name, self.rows, width, self.dtype)
    }

    fn width(&self, view: View) -> usize {
        self.builder.width(view)
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> WeightId {
        let format = self.formats.get(name).copied().expect("load gave every matrix a format");
        self.builder.weight(name, rows, cols, format)
    }

    fn vector(&mut self, name: &str, length: usize) -> WeightId {
        self.builder.weight(name, 1, length, WeightFormat::F32)
    }
}
