//! Models made from a seed: exactly the tensors of a known model, in MLX's 4-bit layout, with no file behind them.
//! Not here: how a row is generated (`synthetic_rows`).
//!
//! Speed does not depend on weight values, but a check of the output does: greedy tokens must be the same on every
//! machine and for every correct kernel, and different when positions, cache or attention are wrong. Random weights give
//! neither, since their best two logits are often closer than rounding. So the weights are random except for one circuit:
//!
//! - Embedding rows come in orbits: token `x + 1` is token `x` with its columns moved on by 16 (cyclic within an orbit).
//!   A few columns, the anchor, are the same in every row.
//! - In layer 0, queries and keys answer mainly to the anchor, and the keys are turned by [`DELAY`] positions, so every
//!   head looks [`DELAY`] tokens back, by rotation alone.
//! - In layer 0, the output projection is the transpose of the value projection, its rows moved on by 16: what arrives is
//!   the successor of the token looked at, three times as strong as the current token itself.
//! - All other layers add random contributions, together about a quarter of the final stream's variance.
//!
//! So the likeliest token after position i is the successor of token `i - DELAY`: on the real shapes by more than six
//! standard deviations of the logits, on `tiny` (whose values are half as wide as its stream) by at least half a logit.
//! Every layer and every logit still depends on all the arithmetic.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::{Architecture, Config, RopeLayout, RopeScaling};
use crate::files::{Identity, Parts, TextFiles};
use crate::synthetic_rows::{Circuit, CodeRows, GROUP, NormRows, Pattern, ScaleRule};
use crate::{DenseType, Encoding, Error, Result, Tensor};

pub(crate) const NAMES: [&str; 5] = ["tiny", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b"];

/// Part of the fingerprint: changes whenever a generated value changes.
pub(crate) const GENERATOR_VERSION: u32 = 1;

/// How far back layer 0 looks.
const DELAY: u32 = 3;

/// The self-logit of a lone token; sets the width of the embedding.
const LOGIT: f64 = 32.0;

/// How much stronger the looked-at token's successor is than the current token.
const GAIN: f64 = 3.0;

/// Variance of all random contributions together, relative to that of the circuit.
const NOISE: f64 = 0.3;

fn shape(name: &str) -> Option<Config> {
    // (hidden, layers, mlp, heads, kv heads, head size, vocabulary, tied)
    let (hidden_size, layers, mlp_width, heads, kv_heads, head_dim, vocab_size, tied_embeddings) = match name {
        "tiny" => (256, 2, 512, 4, 2, 64, 512, true),
        "qwen3-0.6b" => (1024, 28, 3072, 16, 8, 128, 151_936, true),
        "qwen3-1.7b" => (2048, 28, 6144, 16, 8, 128, 151_936, true),
        "qwen3-4b" => (2560, 36, 9728, 32, 8, 128, 151_936, true),
        "qwen3-8b" => (4096, 36, 12_288, 32, 8, 128, 151_936, false),
        _ => return None,
    };
    Some(Config {
        architecture: Architecture::Qwen3,
        hidden_size,
        layers,
        mlp_width,
        heads,
        kv_heads,
        head_dim,
        vocab_size,
        norm_eps: 1e-6,
        rope_theta: 1e6,
        rope_scaling: RopeScaling::None,
        rope_layout: RopeLayout::HalfSplit,
        max_positions: 40_960,
        tied_embeddings,
        qk_norm: true,
        qkv_bias: false,
        // No token ends a generation: a benchmark always gets the length it asked for.
        eos_tokens: Vec::new(),
        bos_token: None,
        add_bos: false,
    })
}

/// Names every tensor of the model; nothing is generated yet.
pub(crate) fn open(name: &str, seed: u64) -> Result<Parts> {
    let Some(config) = shape(name) else {
        return Err(Error::UnknownSource {
            text: format!("synthetic:{name}"),
            reason: format!("synthetic models are {}", NAMES.join(", ")),
        });
    };
    let circuit = Arc::new(Circuit::new(&config, seed, DELAY));
    let widths = Widths::new(&config);
    let mut tensors = BTreeMap::new();
    for (tensor, rows, cols, _) in config.expected_tensors() {
        let made = if rows == 1 {
            // Four times as steep in layer 0, so that one position outweighs its neighbours.
            let double = matches!(
                tensor.as_str(),
                "model.layers.0.self_attn.q_norm.weight" | "model.layers.0.self_attn.k_norm.weight"
            );
            let source = NormRows { key: key(seed, &tensor), double };
            Tensor::new(&tensor, 1, cols, Encoding::Dense(DenseType::BF16), Arc::new(source))
        } else {
            let (pattern, rule) = plan(&tensor, &widths);
            // The head of an untied model reads tokens as the embedding writes them.
            let stem = if tensor == "lm_head.weight" { "model.embed_tokens.weight" } else { &tensor };
            let source = CodeRows { key: key(seed, stem), cols, rule, pattern, circuit: circuit.clone() };
            Tensor::new(&tensor, rows, cols, Encoding::Affine4 { group: GROUP }, Arc::new(source))
        };
        tensors.insert(tensor, made);
    }
    Ok(Parts { config, tensors, text: TextFiles::None, identity: Identity::Synthetic { name: name.into(), seed } })
}

/// Standard deviations of the weight families.
struct Widths {
    /// Embedding.
    embed: f64,
    /// Projections that read the normalized stream: unit variance out.
    read_hidden: f64,
    /// Layer 0's output projection.
    circuit_out: f64,
    /// Every other output projection.
    attention_out: f64,
    mlp_out: f64,
}

impl Widths {
    fn new(config: &Config) -> Widths {
        let [hidden, layers, mlp] = [config.hidden_size, config.layers, config.mlp_width].map(|v| v as f64);
        let q_rows = (config.heads * config.head_dim) as f64;
        let kv_rows = (config.kv_heads * config.head_dim) as f64;
        let embed = LOGIT / hidden;
        // Stream variance after layer 0's attention: the token, the successor, and what the projection of `hidden`
        // columns through `kv_rows` values smears over the others.
        let stream = embed * embed * (1.0 + GAIN * GAIN * (1.0 + hidden / kv_rows));
        let share = (stream * NOISE / (2.0 * layers)).sqrt();
        Widths {
            embed,
            read_hidden: 1.0 / hidden.sqrt(),
            circuit_out: GAIN * embed * hidden.sqrt() / q_rows,
            attention_out: share / q_rows.sqrt(),
            // silu(gate) * up of unit normals has a standard deviation of about 0.6.
            mlp_out: share / (0.6 * mlp.sqrt()),
        }
    }
}

fn plan(tensor: &str, widths: &Widths) -> (Pattern, ScaleRule) {
    let circuit = tensor.starts_with("model.layers.0.");
    let ends = |suffix: &str| tensor.ends_with(suffix);
    match tensor {
        "model.embed_tokens.weight" | "lm_head.weight" => (Pattern::Tokens, ScaleRule::fixed(widths.embed)),
        _ if circuit && ends("q_proj.weight") => (Pattern::Query, ScaleRule::varied(widths.read_hidden * 0.3)),
        _ if circuit && ends("k_proj.weight") => (Pattern::Key, ScaleRule::varied(widths.read_hidden * 0.3)),
        _ if circuit && ends("v_proj.weight") => (Pattern::Random, ScaleRule::fixed(widths.read_hidden)),
        _ if circuit && ends("o_proj.weight") => (Pattern::Successor, ScaleRule::fixed(widths.circuit_out)),
        _ if ends("o_proj.weight") => (Pattern::Random, ScaleRule::varied(widths.attention_out)),
        _ if ends("down_proj.weight") => (Pattern::Random, ScaleRule::varied(widths.mlp_out)),
        _ => (Pattern::Random, ScaleRule::varied(widths.read_hidden)),
    }
}

/// A tensor's own stream of the generator (FNV-1a over its name, then mixed with the seed).
pub(crate) fn key(seed: u64, tensor: &str) -> u64 {
    let name = tensor.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    crate::synthetic_rows::mix(name ^ crate::synthetic_rows::mix(seed))
}
