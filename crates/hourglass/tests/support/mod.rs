//! What the tests of the binary share: how to start it, a small model with a tokenizer, and the downloaded files.
//! Not here: any check.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(dead_code, reason = "each test file uses its part of these")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The binary under test, with no hub cache and no token of the person who runs the tests.
pub fn hourglass(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hourglass"));
    command.args(arguments).env("HF_HUB_CACHE", "/nonexistent/hub").env_remove("HF_TOKEN").env_remove("HF_HUB_OFFLINE");
    command
}

pub fn run(arguments: &[&str]) -> Output {
    hourglass(arguments).output().unwrap()
}

/// Runs it and returns stdout, which must be the answer of a success.
pub fn stdout(arguments: &[&str]) -> String {
    let output = run(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {}: {error}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

pub fn json(arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&stdout(arguments)).unwrap()
}

/// Runs it and returns stderr, which must be one message beside exit code `code`.
pub fn refusal(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    assert!(output.stdout.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    assert!(!error.contains("panicked"), "{arguments:?}: {error}");
    error
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

/// A file under `downloads/`. None if it is not there: says how to get it, and fails in CI.
pub fn download(name: &str) -> Option<PathBuf> {
    let path = root().join("downloads").join(name);
    if path.exists() {
        return Some(path);
    }
    let message = format!("skipped: needs downloads/{name}; get it with `cargo xtask fixtures`");
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{message}");
    println!("{message}");
    None
}

/// Makes `directory`: random Qwen3 weights of the model crate's fixtures (vocabulary 267, context 512) with a tokenizer of bytes, one
/// merge ("ab" is 256) and three special tokens, and a chat template.
pub fn stand_in_model(directory: &Path) {
    std::fs::create_dir_all(directory).unwrap();
    let from = root().join("crates/model/tests/fixtures/qwen3-sharded-untied");
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), directory.join(entry.file_name())).unwrap();
    }
    let mut vocabulary = serde_json::Map::new();
    for byte in 0..=255u8 {
        vocabulary.insert(byte_token(byte).to_string(), byte.into());
    }
    vocabulary.insert("ab".into(), 256.into());
    // The model's other rows have tokens too, so that whatever it generates can be shown.
    for id in 257..264 {
        vocabulary.insert(format!("row{id}"), id.into());
    }
    let special = |id: u32, content: &str| {
        serde_json::json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false})
    };
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "added_tokens": [special(264, "<|bos|>"), special(265, "<|turn|>"), special(266, "<|eos|>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [["a", "b"]]},
    });
    std::fs::write(directory.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let template = "{% for message in messages %}<|turn|>{{ message.role }}\n{{ message.content }}<|eos|>\
        {% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}";
    let config = serde_json::json!({"chat_template": template, "eos_token": "<|eos|>", "bos_token": "<|bos|>"});
    std::fs::write(directory.join("tokenizer_config.json"), config.to_string()).unwrap();
}

/// The character by which byte-level tokenizers write a byte: printable Latin-1 as itself, the rest from U+0100 on.
fn byte_token(byte: u8) -> char {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(&byte) {
        return byte.into();
    }
    let before = (0..byte).filter(|b| !printable(b)).count() as u32;
    char::from_u32(0x100 + before).unwrap()
}

/// The ids of text under the stand-in's tokenizer, for text without "ab" or special tokens: its bytes.
pub fn byte_ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Words as a shell would split them: spaces outside quotes of either kind.
pub fn quoted_words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in command.chars() {
        match (c, quote) {
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            (' ', None) => words.push(String::new()),
            (c, _) => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
