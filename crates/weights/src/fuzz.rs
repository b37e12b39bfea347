//! Entry points for fuzzing: every parser on bytes in memory, no file touched.
//! Not here: what the parsers must return (their own tests); these only must not panic, loop or allocate without bound.

use std::path::Path;

use crate::{ChatTemplate, Message, RenderOptions, Tokenizer, config_json, directory, gguf, safetensors};

/// A whole safetensors file.
pub fn fuzz_safetensors(bytes: &[u8]) {
    if let Ok(table) = safetensors::parse(bytes, bytes.len() as u64, Path::new("fuzz.safetensors")) {
        for (name, entry) in &table {
            assert!(entry.start + entry.len <= bytes.len() as u64, "{name} lies outside the file");
            drop(entry.matrix(Path::new("fuzz.safetensors"), name));
        }
    }
}

/// config.json, generation_config.json and the shard index, split at the first NUL bytes.
pub fn fuzz_config(bytes: &[u8]) {
    let mut parts = bytes.splitn(3, |b| *b == 0);
    let config = parts.next().unwrap_or_default();
    if let Ok(parsed) = config_json::parse(config, parts.next(), Path::new("config.json")) {
        assert!(parsed.config.heads.is_multiple_of(parsed.config.kv_heads));
        // The tensor list is as long as the config says, so it is made only for plausible sizes.
        if parsed.config.layers <= 64 {
            drop(parsed.config.expected_tensors());
        }
    }
    if let Some(index) = parts.next()
        && let Ok(map) = directory::read_index(index, Path::new("model.safetensors.index.json"))
    {
        assert!(map.values().all(|shard| Path::new(shard).components().count() == 1));
    }
}

/// A whole GGUF file: container, configuration, one row of each tensor, tokenizer.
pub fn fuzz_gguf(bytes: &[u8]) {
    let file = Path::new("fuzz.gguf");
    let Ok(container) = gguf::container::parse(file, bytes) else { return };
    for entry in &container.tensors {
        assert!(entry.start + entry.len <= bytes.len() as u64, "{} lies outside the file", entry.name);
        let cols = entry.dims[0] as usize;
        let row = &bytes[entry.start as usize..][..entry.kind.row_bytes(cols)];
        entry.kind.read_f32(row, &mut vec![0.0; cols]);
    }
    drop(gguf::read_config(file, &container, bytes));
    if let Ok((inner, vocab_size)) = gguf::tokenizer::from_container(file, &container) {
        encode_both(&Tokenizer::new(inner, vocab_size), "Hi <think> 42\u{e9}");
    }
}

/// A tokenizer.json up to the first NUL byte, then a text to encode with it.
pub fn fuzz_tokenizer_json(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |b| *b == 0);
    if let Ok(tokenizer) = Tokenizer::from_json(parts.next().unwrap_or_default()) {
        let text = String::from_utf8_lossy(parts.next().unwrap_or(b"Hi <think> 42"));
        encode_both(&tokenizer, &text[..text.floor_char_boundary(1000)]);
    }
}

fn encode_both(tokenizer: &Tokenizer, text: &str) {
    drop(tokenizer.encode_with_special(text));
    if let Ok(ids) = tokenizer.encode_plain(text) {
        let added = tokenizer.inner().get_added_tokens_decoder();
        assert!(ids.iter().all(|id| !added.contains_key(id)), "plain text gave an added token");
        let mut stream = tokenizer.stream();
        ids.iter().for_each(|id| drop(stream.push(*id)));
        drop(stream.finish());
    }
}

/// A chat template up to the first NUL byte, then the text of a message.
pub fn fuzz_template(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |b| *b == 0);
    let source = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let content = String::from_utf8_lossy(parts.next().unwrap_or(b"Hi")).into_owned();
    if let Ok(template) = ChatTemplate::compile(Path::new("fuzz.jinja"), source, Default::default()) {
        let message = Message { role: "user".into(), content, extra: Default::default() };
        drop(template.render(&[message], &RenderOptions { add_generation_prompt: true, ..Default::default() }));
    }
}
