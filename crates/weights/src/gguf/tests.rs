//! GGUF files that are wrong in one way each, and files of random damage.
//! Not here: right files of other writers (`tests/`, `text_tests`), the parts' own unit tests.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use proptest::prelude::*;

use super::blocks::BlockType;
use super::{container, read_config, tokenizer};
use crate::{Config, Error, RopeScaling, fuzz};

/// A file in parts. Values are their stored bytes behind their type number.
#[derive(Clone)]
struct Draft {
    version: u32,
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Name, dimensions, type, offset in the data.
    tensors: Vec<(Vec<u8>, Vec<u64>, u32, u64)>,
    data: usize,
    /// Written instead of the true counts.
    counts: Option<(u64, u64)>,
}

fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let mut out = (text.as_ref().len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(text.as_ref());
    out
}

fn value(kind: u32, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    [&kind.to_le_bytes(), bytes.as_ref()].concat()
}

fn u32_value(v: u32) -> Vec<u8> {
    value(4, v.to_le_bytes())
}

fn text_value(text: &str) -> Vec<u8> {
    value(8, string(text))
}

fn texts_value(texts: &[&str]) -> Vec<u8> {
    let items: Vec<u8> = texts.iter().flat_map(string).collect();
    value(9, [&8u32.to_le_bytes()[..], &(texts.len() as u64).to_le_bytes(), &items].concat())
}

fn kinds_value(kinds: &[i32]) -> Vec<u8> {
    let items: Vec<u8> = kinds.iter().flat_map(|k| k.to_le_bytes()).collect();
    value(9, [&5u32.to_le_bytes()[..], &(kinds.len() as u64).to_le_bytes(), &items].concat())
}

impl Draft {
    /// A llama of one layer, width 32, one head, three tokens, as f32.
    fn llama() -> Draft {
        let mut draft = Draft { version: 3, pairs: Vec::new(), tensors: Vec::new(), data: 0, counts: None };
        draft.set("general.architecture", text_value("llama"));
        for (key, size) in [
            ("block_count", 1),
            ("context_length", 64),
            ("embedding_length", 32),
            ("feed_forward_length", 32),
            ("attention.head_count", 1),
        ] {
            draft.set(&format!("llama.{key}"), u32_value(size));
        }
        draft.set("llama.attention.layer_norm_rms_epsilon", value(6, 1e-5f32.to_le_bytes()));
        draft.set("tokenizer.ggml.model", text_value("gpt2"));
        draft.set("tokenizer.ggml.pre", text_value("qwen2"));
        draft.set("tokenizer.ggml.tokens", texts_value(&["a", "b", "ab", "<|im_end|>"]));
        draft.set("tokenizer.ggml.token_type", kinds_value(&[1, 1, 1, 3]));
        draft.set("tokenizer.ggml.merges", texts_value(&["a b"]));
        draft.add("token_embd.weight", &[32, 4], 0);
        for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
            draft.add(&format!("{name}.weight"), &[32], 0);
        }
        for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
            draft.add(&format!("blk.0.{name}.weight"), &[32, 32], 0);
        }
        draft
    }

    fn set(&mut self, key: &str, value: Vec<u8>) {
        self.pairs.retain(|(k, _)| k != key.as_bytes());
        self.pairs.push((key.into(), value));
    }

    /// Appends a tensor; f32 unless the type says otherwise, offsets rounded up to 32.
    fn add(&mut self, name: &str, dims: &[u64], kind: u32) {
        let bytes = dims.iter().product::<u64>() as usize * 4;
        self.tensors.push((name.into(), dims.to_vec(), kind, self.data as u64));
        self.data = (self.data + bytes).next_multiple_of(32);
    }

    fn tensor(&mut self, name: &str) -> &mut (Vec<u8>, Vec<u64>, u32, u64) {
        self.tensors.iter_mut().find(|t| t.0 == name.as_bytes()).unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        let (tensors, pairs) = self.counts.unwrap_or((self.tensors.len() as u64, self.pairs.len() as u64));
        out.extend(tensors.to_le_bytes());
        out.extend(pairs.to_le_bytes());
        for (key, value) in &self.pairs {
            out.extend(string(key));
            out.extend(value);
        }
        for (name, dims, kind, offset) in &self.tensors {
            out.extend(string(name));
            out.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32) + self.data, 0);
        out
    }

    /// Everything that opening and tokenizing checks, in memory.
    fn check(&self) -> Result<Config, Error> {
        check(&self.bytes())
    }
}

fn check(bytes: &[u8]) -> Result<Config, Error> {
    let file = Path::new("some.gguf");
    let container = container::parse(file, bytes)?;
    let config = read_config(file, &container, bytes)?;
    config.check_sizes(file)?;
    for entry in &container.tensors {
        if entry.name != super::ROPE_FACTORS {
            super::matrix(file, entry)?;
        }
    }
    tokenizer::from_container(file, &container)?;
    Ok(config)
}

#[test]
fn the_draft_is_a_right_file_in_both_versions() {
    for version in [2, 3] {
        let draft = Draft { version, ..Draft::llama() };
        let config = draft.check().unwrap();
        assert_eq!((config.hidden_size, config.head_dim, config.kv_heads, config.vocab_size), (32, 32, 1, 4));
        assert_eq!((config.norm_eps, config.rope_theta, config.tied_embeddings), (1e-5, 10_000.0, true));
        assert_eq!((config.eos_tokens.as_slice(), config.add_bos, config.qkv_bias), (&[3][..], false, false));
        assert_eq!(config.rope_scaling, RopeScaling::None);
    }
}

/// Name of the case, the change, and what the message must say.
type Case = (&'static str, fn(&mut Draft), &'static [&'static str]);

#[test]
fn each_wrong_file_is_refused_with_its_reason() {
    let cases: &[Case] = &[
        ("version 1", |d| d.version = 1, &["version", "1", "2 and 3"]),
        ("big-endian", |d| d.version = 3u32.swap_bytes(), &["big-endian"]),
        ("2^60 tensors", |d| d.counts = Some((1 << 60, 1)), &["tensor count", "1152921504606846976"]),
        ("2^60 pairs", |d| d.counts = Some((1, 1 << 60)), &["metadata count"]),
        (
            "a tensor too many",
            |d| d.counts = Some((d.tensors.len() as u64 + 1, d.pairs.len() as u64)),
            &["tensor \"\""],
        ),
        ("key twice", |d| d.pairs.push(d.pairs[0].clone()), &["general.architecture", "twice"]),
        ("tensor twice", |d| d.tensors.push(d.tensors[0].clone()), &["token_embd.weight", "twice"]),
        ("key not UTF-8", |d| d.pairs.push((b"k\xff".to_vec(), u32_value(1))), &["UTF-8"]),
        ("text not UTF-8", |d| d.set("k", value(8, string(b"\xc3"))), &["\"k\"", "UTF-8"]),
        ("long text", |d| d.set("k", value(8, u64::MAX.to_le_bytes())), &["\"k\"", "18446744073709551615 bytes"]),
        (
            "long array",
            |d| d.set("k", value(9, [&0u32.to_le_bytes()[..], &[0xff; 8]].concat())),
            &["\"k\"", "end of the file"],
        ),
        (
            "nested array",
            |d| d.set("k", value(9, [&9u32.to_le_bytes()[..], &[1; 8]].concat())),
            &["\"k\"", "array of arrays"],
        ),
        ("unknown value type", |d| d.set("k", value(13, [0; 8])), &["\"k\"", "13"]),
        ("a boolean of 2", |d| d.set("k", value(7, [2])), &["\"k\"", "boolean"]),
        ("alignment 0", |d| d.set("general.alignment", u32_value(0)), &["general.alignment", "power of two"]),
        ("alignment 48", |d| d.set("general.alignment", u32_value(48)), &["general.alignment", "48"]),
        ("alignment text", |d| d.set("general.alignment", text_value("32")), &["general.alignment"]),
        ("alignment larger than the file", |d| d.set("general.alignment", u32_value(1 << 31)), &["inside the file"]),
        ("misaligned", |d| d.tensor("output_norm.weight").3 += 4, &["output_norm.weight", "divisible by 32"]),
        ("overlapping", |d| d.tensor("output_norm.weight").3 -= 32, &["output_norm.weight", "token_embd.weight"]),
        ("outside", |d| d.tensor("output_norm.weight").3 = 1 << 40, &["output_norm.weight", "inside the file"]),
        ("offset overflow", |d| d.tensor("output_norm.weight").3 = u64::MAX - 31, &["output_norm.weight"]),
        ("2^60 elements", |d| d.tensor("output_norm.weight").1 = vec![1 << 60], &["output_norm.weight"]),
        ("2^80 elements", |d| d.tensor("output_norm.weight").1 = vec![1 << 40, 1 << 40], &["below 2^63"]),
        ("no elements", |d| d.tensor("output_norm.weight").1 = vec![0], &["output_norm.weight", "above 0"]),
        ("no dimensions", |d| d.tensor("output_norm.weight").1 = vec![], &["one to four"]),
        ("five dimensions", |d| d.tensor("output_norm.weight").1 = vec![1; 5], &["one to four"]),
        ("a cube", |d| d.tensor("blk.0.attn_q.weight").1 = vec![32, 4, 8], &["attn_q", "vectors and matrices"]),
        (
            "part of a block",
            |d| *d.tensor("output_norm.weight") = (b"output_norm.weight".to_vec(), vec![33], 8, 512),
            &["divisible by 32", "Q8_0"],
        ),
        ("Q5_K", |d| d.tensor("output_norm.weight").2 = 13, &["output_norm.weight", "Q5_K", "Q4_K and Q6_K"]),
        ("a type of the future", |d| d.tensor("output_norm.weight").2 = 99, &["output_norm.weight", "99"]),
        ("unknown tensor", |d| d.add("blk.0.ffn_gate_inp.weight", &[32], 0), &["ffn_gate_inp"]),
        ("no architecture", |d| d.pairs.retain(|p| p.0 != b"general.architecture"), &["general.architecture"]),
        ("gemma", |d| d.set("general.architecture", text_value("gemma3")), &["gemma3", "qwen3, llama and qwen2"]),
        ("an adapter", |d| d.set("general.type", text_value("adapter")), &["general.type", "adapter"]),
        ("a part", |d| d.set("split.count", value(2, 2u16.to_le_bytes())), &["split.count", "merge"]),
        ("experts", |d| d.set("llama.expert_count", u32_value(8)), &["llama.expert_count", "8"]),
        ("a window", |d| d.set("llama.attention.sliding_window", u32_value(4096)), &["sliding_window", "4096"]),
        ("yarn", |d| d.set("llama.rope.scaling.type", text_value("yarn")), &["rope.scaling.type", "yarn"]),
        ("logit scale", |d| d.set("llama.logit_scale", value(6, 0.5f32.to_le_bytes())), &["llama.logit_scale", "0.5"]),
        (
            "half a head rotated",
            |d| d.set("llama.rope.dimension_count", u32_value(16)),
            &["dimension_count", "16", "32"],
        ),
        ("unequal heads", |d| d.set("llama.attention.value_length", u32_value(16)), &["value_length"]),
        ("no width", |d| d.pairs.retain(|p| p.0 != b"llama.embedding_length"), &["llama.embedding_length"]),
        ("no heads", |d| d.set("llama.attention.head_count", u32_value(0)), &["head_count"]),
        ("width as text", |d| d.set("llama.embedding_length", text_value("32")), &["llama.embedding_length"]),
        (
            "epsilon of NaN",
            |d| d.set("llama.attention.layer_norm_rms_epsilon", value(6, f32::NAN.to_le_bytes())),
            &["epsilon", "NaN"],
        ),
        ("strange frequencies", |d| d.add("rope_freqs.weight", &[16], 0), &["rope_freqs.weight", "llama3"]),
        ("frequencies as F16", |d| d.add("rope_freqs.weight", &[16], 1), &["rope_freqs.weight", "F16"]),
        (
            "an end outside the vocabulary",
            |d| d.set("tokenizer.ggml.eos_token_id", u32_value(4)),
            &["vocabulary size, 4"],
        ),
        (
            "another vocabulary",
            |d| d.set("tokenizer.ggml.model", text_value("llama")),
            &["tokenizer.ggml.model", "gpt2"],
        ),
        (
            "another pre-tokenizer",
            |d| d.set("tokenizer.ggml.pre", text_value("tekken")),
            &["tekken", "qwen2, smollm and llama-bpe"],
        ),
        ("no pre-tokenizer", |d| d.pairs.retain(|p| p.0 != b"tokenizer.ggml.pre"), &["tokenizer.ggml.pre"]),
        (
            "token twice",
            |d| d.set("tokenizer.ggml.tokens", texts_value(&["a", "b", "ab", "a"])),
            &["\"a\" at 0 and at 3"],
        ),
        ("kinds missing", |d| d.set("tokenizer.ggml.token_type", kinds_value(&[1, 1])), &["token_type", "4"]),
        ("merge of one", |d| d.set("tokenizer.ggml.merges", texts_value(&["ab"])), &["merges", "\"ab\""]),
        ("merge of strangers", |d| d.set("tokenizer.ggml.merges", texts_value(&["a c"])), &["not a usable tokenizer"]),
    ];
    for (name, change, expected) in cases {
        let mut draft = Draft::llama();
        change(&mut draft);
        let message = match draft.check() {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{name}: accepted"),
        };
        for part in *expected {
            assert!(message.contains(part), "{name}: {message:?} does not say {part:?}");
        }
        assert!(message.contains("some.gguf"), "{name}: {message}");
    }
}

#[test]
fn values_that_say_not_used_are_accepted() {
    let mut draft = Draft::llama();
    draft.set("llama.expert_count", u32_value(0));
    draft.set("llama.attention.causal", value(7, [1]));
    draft.set("llama.rope.scaling.type", text_value("none"));
    draft.set("llama.rope.dimension_count", u32_value(32));
    draft.set("general.some_new_note", text_value("x"));
    draft.set("general.alignment", u32_value(32));
    draft.add("rope_freqs.weight", &[16], 0);
    let mut bytes = draft.bytes();
    let end = bytes.len();
    for factor in bytes[end - 64..].chunks_exact_mut(4) {
        factor.copy_from_slice(&1f32.to_le_bytes());
    }
    assert_eq!(check(&bytes).unwrap().rope_scaling, RopeScaling::None);
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = Draft::llama().bytes();
    for end in 0..bytes.len() {
        // The padding behind the last tensor may be missing; here there is none.
        assert!(check(&bytes[..end]).is_err(), "cut at {end} of {}", bytes.len());
    }
}

#[test]
fn blocks_decode_bit_for_bit_as_the_reference_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf_blocks.safetensors");
    let file = std::fs::read(path).unwrap();
    let header_len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + header_len]).unwrap();
    let tensor = |name: String| {
        let offset = |i: usize| 8 + header_len + header[&name]["data_offsets"][i].as_u64().unwrap() as usize;
        &file[offset(0)..offset(1)]
    };
    let types = [
        ("f16", BlockType::F16),
        ("bf16", BlockType::BF16),
        ("q8_0", BlockType::Q8_0),
        ("q4_0", BlockType::Q4_0),
        ("q4_1", BlockType::Q4_1),
        ("q4_k", BlockType::Q4K),
        ("q6_k", BlockType::Q6K),
    ];
    for (name, kind) in types {
        let blocks = tensor(format!("{name}.blocks"));
        let expected = tensor(format!("{name}.values")).chunks_exact(4);
        let expected: Vec<u32> = expected.map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(kind.row_bytes(expected.len()), blocks.len());
        let mut values = vec![0.0; expected.len()];
        kind.read_f32(blocks, &mut values);
        for (i, (value, bits)) in values.iter().zip(&expected).enumerate() {
            assert_eq!(value.to_bits(), *bits, "{name} value {i}: {value} and {}", f32::from_bits(*bits));
        }
        let group = match kind.encoding() {
            crate::Encoding::Dense(_) => continue,
            crate::Encoding::Affine4 { group } | crate::Encoding::Int8 { group } => group,
        };
        let affine = matches!(kind.encoding(), crate::Encoding::Affine4 { .. });
        let mut codes = vec![0; values.len()];
        let (mut scales, mut biases) = (vec![0.0; values.len() / group], vec![0.0; values.len() / group]);
        kind.read_codes(blocks, &mut codes, &mut scales, &mut biases);
        for (i, value) in values.iter().enumerate() {
            let (scale, bias) = (scales[i / group], biases[i / group]);
            let again = if affine { f32::from(codes[i]) * scale + bias } else { f32::from(codes[i] as i8) * scale };
            assert_eq!(again, *value, "{name} value {i} from its code");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The entry point of the fuzzer, on right files with a few bytes changed.
    #[test]
    fn damaged_files_never_panic(changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6), cut in any::<proptest::sample::Index>(), whole in any::<bool>()) {
        let mut bytes = Draft::llama().bytes();
        // Most of the file is weights, whose bytes cannot be wrong: damage the header.
        let header = bytes.len() - Draft::llama().data;
        for (at, byte) in changes {
            bytes[at.index(header)] = byte;
        }
        let end = if whole { bytes.len() } else { cut.index(bytes.len()) };
        fuzz::fuzz_gguf(&bytes[..end]);
    }

    #[test]
    fn damaged_templates_never_panic(text in "(\\{[%{] ?(for|if|endif|endfor|set|x|in|messages|m|not|else|tojson|'[a-z]*'|[0-9]|[\\[\\]()|.+*~-]| ){0,7} ?[%}]\\}|[a-z\n ]){0,6}") {
        fuzz::fuzz_template(text.as_bytes());
    }

    #[test]
    fn damaged_tokenizers_never_panic(changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4), text in "\\PC{0,10}") {
        let mut bytes = br#"{"added_tokens":[{"id":3,"content":"ab","single_word":false,"lstrip":true,"rstrip":false,"normalized":false,"special":true}],"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":true},"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"ab":3},"merges":[["a","b"]],"ignore_merges":true}}"#.to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.push(0);
        bytes.extend_from_slice(text.as_bytes());
        fuzz::fuzz_tokenizer_json(&bytes);
    }
}
