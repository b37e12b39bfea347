//! What a person can get wrong, through the binary: one clear message, the right exit code, nothing written.
//! Not here: damaged bytes inside files (crate `weights` tests and fuzzes those).

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::{hourglass, refusal, root, run, stand_in_model};

/// The message must hold every one of these words.
#[track_caller]
fn says(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "expected '{word}' in: {message}");
    }
}

#[test]
fn unknown_verbs_and_flags() {
    says(&refusal(&["frobnicate"], 2), &["frobnicate", "Usage"]);
    says(&refusal(&["run", "--model", "synthetic:tiny", "--ids", "1", "--frobnicate"], 2), &["--frobnicate"]);
    says(&refusal(&["run", "--model", "synthetic:tiny"], 2), &["--prompt", "--ids"]);
    says(&refusal(&["run", "--model", "synthetic:tiny", "--ids", "1", "--prompt", "x"], 2), &["cannot be used with"]);
    says(&refusal(&["score", "--model", "synthetic:tiny", "--ids", "1", "--positions", "some"], 2), &["--positions"]);
    says(&refusal(&[], 2), &["Usage"]);
}

#[test]
fn no_model_and_unknown_models() {
    says(&refusal(&["run", "--prompt", "x"], 2), &["--model", "synthetic:"]);
    let model = |name| refusal(&["run", "--model", name, "--ids", "1"], 2);
    says(&model("qwen9"), &["qwen9", "synthetic:NAME"]);
    says(&model("synthetic:huge"), &["synthetic:huge", "tiny"]);
    says(&model("./no/such/directory"), &["./no/such/directory", "no such file"]);
    says(&model("no-such.gguf"), &["no-such.gguf", "no such file"]);
    let dir = tempfile::tempdir().unwrap();
    says(&model(dir.path().to_str().unwrap()), &["config.json"]);
}

#[test]
fn unknown_and_retired_checkpoints() {
    let checkpoint = |name| refusal(&["run", "--model", "synthetic:tiny", "--ids", "1", "--checkpoint", name], 2);
    says(&checkpoint("fastest"), &["--checkpoint", "fastest", "week1", "selected"]);
    for retired in ["decode-attention", "split-k"] {
        says(&checkpoint(retired), &[retired, "retired", ":"]);
    }
}

#[test]
fn engine_flags_out_of_range() {
    let engine = |more: &[&str]| refusal(&[&["run", "--model", "synthetic:tiny", "--ids", "1"], more].concat(), 2);
    says(&engine(&["--threads", "0"]), &["--threads 0", "at least 1"]);
    says(&engine(&["--threads", "many"]), &["--threads"]);
    says(&engine(&["--w4-group", "48"]), &["--w4-group 48", "64"]);
    says(&engine(&["--features-without", "avx2,sse9"]), &["--features-without", "sse9", "avx512f"]);
    says(&engine(&["--checkpoint", "week1", "--capacity-cache", "on"]), &["week1", "capacity-cache", "kv-cache"]);
    says(&engine(&["--tiled-prefill", "perhaps"]), &["--tiled-prefill"]);
}

#[test]
fn sampling_flags_out_of_range() {
    let sampling = |flag, value| refusal(&["run", "--model", "synthetic:tiny", "--ids", "1", flag, value], 2);
    for (flag, value) in [
        ("--temp", "-1"),
        ("--temp", "NaN"),
        ("--top-p", "0"),
        ("--top-p", "1.5"),
        ("--min-p", "2"),
        ("--repetition-penalty", "0"),
        ("--top-k", "-3"),
        ("--seed", "x"),
    ] {
        says(&sampling(flag, value), &[flag]);
    }
}

#[test]
fn prompts_that_are_empty_too_long_or_not_of_the_vocabulary() {
    let dir = tempfile::tempdir().unwrap();
    stand_in_model(dir.path());
    let model = dir.path().to_str().unwrap();
    says(&refusal(&["run", "--model", model, "--prompt", ""], 2), &["empty"]);
    says(&refusal(&["run", "--model", model, "--ids", ","], 2), &["empty"]);
    says(&refusal(&["score", "--model", model, "--text", ""], 2), &["empty"]);
    // The context is 512 tokens.
    let long = "x ".repeat(400);
    says(&refusal(&["run", "--model", model, "--raw", "--prompt", &long], 2), &["800 tokens", "512"]);
    says(&refusal(&["score", "--model", model, "--text", &long], 2), &["800 tokens", "512"]);
    says(&refusal(&["run", "--model", model, "--ids", "1,267"], 2), &["--ids", "267", "vocabulary"]);
    says(&refusal(&["run", "--model", model, "--ids", "1;2"], 2), &["--ids", "1;2"]);
    says(&refusal(&["tokenize", "--model", model, "--decode", "4000000000"], 2), &["--decode", "4000000000"]);
}

#[test]
fn text_for_a_model_that_has_no_words() {
    says(&refusal(&["run", "--model", "synthetic:tiny", "--prompt", "hello"], 2), &["synthetic:tiny", "--ids"]);
    for verb in [&["chat"][..], &["tokenize", "--decode", "1"]] {
        let message = refusal(&[verb, &["--model", "synthetic:tiny"]].concat(), 2);
        says(&message, &["synthetic:tiny", "tokenizer.json"]);
        assert!(!message.contains("--ids"), "{verb:?} has no such flag: {message}");
    }
}

#[test]
fn a_base_model_has_no_chat() {
    let dir = tempfile::tempdir().unwrap();
    stand_in_model(dir.path());
    std::fs::remove_file(dir.path().join("tokenizer_config.json")).unwrap();
    let model = dir.path().to_str().unwrap();
    says(&refusal(&["run", "--model", model, "--prompt", "x"], 2), &["chat template", "--raw"]);
    says(&refusal(&["chat", "--model", model], 2), &["chat template", "hourglass run --raw"]);
}

#[test]
fn a_template_that_fails_is_answered_with_what_the_verb_has() {
    let dir = tempfile::tempdir().unwrap();
    stand_in_model(dir.path());
    let model = dir.path().to_str().unwrap();
    let talk = dir.path().join("talk.json");
    std::fs::write(&talk, r#"[{"role":"user","content":"q"}]"#).unwrap();
    for template in ["{{ raise_exception('no users') }}", "{% if %}"] {
        let config = serde_json::json!({"chat_template": template});
        std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        says(&refusal(&["run", "--model", model, "--prompt", "q"], 2), &["chat template", "--raw"]);
        says(&refusal(&["chat", "--model", model], 2), &["chat template", "hourglass run --raw"]);
        let message = refusal(&["tokenize", "--model", model, "--conversation", talk.to_str().unwrap()], 2);
        says(&message, &["chat template", "--text"]);
        assert!(!message.contains("--raw"), "{message}");
    }
}

#[test]
fn a_tokenizer_of_another_model() {
    let dir = tempfile::tempdir().unwrap();
    stand_in_model(dir.path());
    let path = dir.path().join("tokenizer.json");
    let mut tokenizer: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    tokenizer["model"]["vocab"]["x"] = 300.into();
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let model = dir.path().to_str().unwrap();
    for verb in [&["score", "--text", "x"][..], &["run", "--prompt", "x"], &["run", "--raw", "--prompt", "x"]] {
        let message = refusal(&[verb, &["--model", model]].concat(), 2);
        says(&message, &["tokenizer", "token id 300", "267 (0 to 266)"]);
        assert!(!message.contains("--ids"), "{message}");
    }
}

#[test]
fn files_that_are_missing_or_of_another_kind() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let on_tiny = |flag, path: &str| refusal(&["run", "--model", "synthetic:tiny", flag, path], 2);
    says(&on_tiny("--prompt-file", &path("none.txt")), &["--prompt-file", "none.txt"]);
    std::fs::write(path("latin1.txt"), b"caf\xe9").unwrap();
    says(&on_tiny("--prompt-file", &path("latin1.txt")), &["latin1.txt", "UTF-8"]);
    says(&on_tiny("--prompt-file", dir.path().to_str().unwrap()), &["--prompt-file", "directory"]);
    // Nobody writes to it: opening it would wait forever.
    assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    says(&on_tiny("--prompt-file", &path("pipe")), &["--prompt-file", "pipe", "regular file", "stdin"]);
    std::fs::File::create(path("large.txt")).unwrap().set_len((256 << 20) + 1).unwrap();
    says(&on_tiny("--prompt-file", &path("large.txt")), &["--prompt-file", "large.txt", "256 MiB"]);
    std::fs::write(path("talk.json"), "{\"role\": \"user\"}").unwrap();
    let conversation = refusal(&["tokenize", "--model", "synthetic:tiny", "--conversation", &path("talk.json")], 2);
    says(&conversation, &["--conversation", "talk.json", "JSON array"]);
}

#[test]
fn a_gguf_cut_anywhere_is_refused_by_name() {
    let whole = std::fs::read(root().join("crates/model/tests/fixtures/qwen3-mixed.gguf")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.gguf");
    for length in [0, 3, 20, 1000, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        says(&refusal(&["run", "--model", path.to_str().unwrap(), "--ids", "1"], 2), &["cut.gguf", "expected"]);
    }
}

#[test]
fn an_existing_output_is_refused_before_any_work_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("old");
    std::fs::write(&path, "old").unwrap();
    let old = path.to_str().unwrap();
    // The model does not exist: the refusal of the output comes first.
    for verb in [
        &["run", "--ids", "1", "--json-output", old][..],
        &["score", "--ids", "1", "--json-output", old],
        &["score", "--ids", "1", "--logits-out", old],
        &["quantize", "--out", old],
    ] {
        says(&refusal(&[verb, &["--model", "./none"]].concat(), 2), &["old", "already exists"]);
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
}

#[test]
fn outputs_that_cannot_be_written() {
    let output = |path: &str| refusal(&["run", "--model", "synthetic:tiny", "--ids", "1", "--json-output", path], 2);
    says(&output("/nonexistent/directory/x.json"), &["--json-output", "/nonexistent/directory/x.json"]);
    says(&output("-"), &["--json-output -", "expected a file", "--json prints to stdout"]);
    // Nobody may make files here, root included.
    says(&output("/proc/x.json"), &["--json-output", "/proc/x.json"]);
    // A read-only directory stops only those who are not root.
    let dir = tempfile::tempdir().unwrap();
    let locked = dir.path().join("locked");
    std::fs::create_dir(&locked).unwrap();
    std::fs::set_permissions(&locked, std::os::unix::fs::PermissionsExt::from_mode(0o555)).unwrap();
    if std::fs::write(locked.join("probe"), "").is_err() {
        says(&output(locked.join("x.json").to_str().unwrap()), &["permission"]);
    } else {
        println!("skipped: a directory without write permission stops nobody here (running as root)");
    }
}

#[test]
fn a_full_disk_is_said_so() {
    if !Path::new("/dev/full").exists() {
        println!("skipped: needs /dev/full");
        return;
    }
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output =
        hourglass(&["run", "--model", "synthetic:tiny", "--ids", "1", "--json"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    says(&String::from_utf8_lossy(&output.stderr), &["cannot write to stdout", "space"]);
}

#[test]
fn offline_never_asks_the_network() {
    let message = refusal(&["run", "--model", "qwen3-0.6b", "--offline", "--ids", "1"], 2);
    says(&message, &["Qwen/Qwen3-0.6B-MLX-4bit", "--offline", "/nonexistent/hub"]);
    says(&refusal(&["pull", "qwen3-0.6b", "--offline"], 2), &["Qwen/Qwen3-0.6B-MLX-4bit", "--offline"]);
    says(&refusal(&["pull", "synthetic:tiny"], 2), &["synthetic:tiny", "not a hub repository"]);
}

#[test]
fn a_packed_model_is_not_quantized_again() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let fixture = root().join("crates/model/tests/fixtures/qwen3-mlx-g64");
    let quantize = |group| {
        refusal(
            &["quantize", "--model", fixture.to_str().unwrap(), "--out", out.to_str().unwrap(), "--group", group],
            2,
        )
    };
    says(&quantize("64"), &["cannot be quantized"]);
    says(&quantize("48"), &["--group 48", "expected 32, 64 or 128"]);
    assert!(!out.exists());
}

/// A float32 copy of a model, every tensor zero.
fn zeros_in_float32(directory: &Path) {
    std::fs::create_dir(directory).unwrap();
    let from = root().join("crates/model/tests/fixtures/qwen3-sharded-untied");
    let index = std::fs::read_to_string(from.join("model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    let mut header = serde_json::Map::new();
    let mut end = 0;
    let shards: std::collections::BTreeSet<_> =
        index["weight_map"].as_object().unwrap().values().map(|name| name.as_str().unwrap()).collect();
    for shard in shards {
        let bytes = std::fs::read(from.join(shard)).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let tensors: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        for (name, tensor) in tensors.into_iter().filter(|(name, _)| name != "__metadata__") {
            let count: u64 = tensor["shape"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).product();
            let offsets = [end, end + count * 4];
            end = offsets[1];
            header.insert(name, serde_json::json!({"dtype": "F32", "shape": tensor["shape"], "data_offsets": offsets}));
        }
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.resize(file.len() + end as usize, 0);
    std::fs::write(directory.join("model.safetensors"), file).unwrap();
    std::fs::copy(from.join("config.json"), directory.join("config.json")).unwrap();
}

#[test]
fn float32_is_rounded_only_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let (model, out) = (dir.path().join("model"), dir.path().join("out"));
    zeros_in_float32(&model);
    let quantize = ["quantize", "--model", model.to_str().unwrap(), "--out", out.to_str().unwrap()];
    says(&refusal(&quantize, 2), &["tensor", "F32", "--convert"]);
    assert!(!out.exists());
    let done = run(&[&quantize[..], &["--convert"]].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    says(&String::from_utf8(done.stdout).unwrap(), &["F32 tensors were rounded to BF16 first"]);
}

#[test]
fn a_closed_pipe_is_success_and_silent() {
    let mut child = hourglass(&["run", "--model", "synthetic:tiny", "--ids", "1,2,3", "--max-tokens", "20000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    // The read end is dropped: the next write fails.
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert!(!message.contains("hourglass:") && !message.contains("panicked"), "{message}");
}

#[test]
fn nobody_reading_either_stream_is_success_too() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut run = hourglass(&["run", "--model", "synthetic:tiny", "--ids", "1", "--max-tokens", "3"]);
    let status = run.stdout(writer.try_clone().unwrap()).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(0));
}

/// Waits until the process has its own handler for SIGINT; before, the signal would just kill it.
fn wait_for_handler(child: &Child) {
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        if u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << (2 - 1)) != 0 {
            return;
        }
        std::thread::yield_now();
    }
}

fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[track_caller]
fn ended_by_interrupt(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert_eq!(message.lines().filter(|line| line.contains("interrupted")).count(), 1, "{message}");
    assert!(!message.contains("panicked"), "{message}");
    message
}

#[test]
fn ctrl_c_while_decoding_keeps_what_was_generated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("answer.json");
    let arguments = ["run", "--model", "synthetic:tiny", "--ids", "1,2,3", "--max-tokens", "30000", "--json-output"];
    let mut child = hourglass(&[&arguments[..], &[path.to_str().unwrap()]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = child.stdout.take().unwrap();
    text.read_exact(&mut [0]).unwrap();
    interrupt(&child);
    let mut rest = String::new();
    text.read_to_string(&mut rest).unwrap();
    says(&ended_by_interrupt(child), &["hourglass: interrupted after", "tokens"]);
    let record: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(record["finish"], "interrupted");
    let generated = record["token_ids"].as_array().unwrap().len();
    assert!((1..30000).contains(&generated), "{generated}");
}

#[test]
fn ctrl_c_at_any_earlier_moment_ends_with_the_same_code() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("logits.npy");
    let ids = vec!["5"; 4000].join(",");
    let arguments = ["score", "--model", "synthetic:qwen3-0.6b", "--ids", &ids, "--logits-out", out.to_str().unwrap()];
    let child = hourglass(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_handler(&child);
    interrupt(&child);
    says(&ended_by_interrupt(child), &["hourglass: interrupted"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no partial file is left");
}

#[test]
fn ctrl_c_while_chat_waits_for_a_turn() {
    let dir = tempfile::tempdir().unwrap();
    stand_in_model(dir.path());
    let mut child = hourglass(&["chat", "--model", dir.path().to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stdin = child.stdin.take();
    wait_for_handler(&child);
    interrupt(&child);
    ended_by_interrupt(child);
    drop(stdin);
}

#[test]
fn ctrl_c_while_a_silent_stdin_is_read() {
    for verb in [
        &["run", "--prompt-file", "-"][..],
        &["score", "--text-file", "-"],
        &["tokenize", "--text-file", "-"],
        &["tokenize", "--conversation", "-"],
    ] {
        let mut child = hourglass(&[verb, &["--model", "synthetic:tiny"]].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // Some text has come and more may.
        stdin.write_all(b"a beginning").unwrap();
        wait_for_handler(&child);
        interrupt(&child);
        says(&ended_by_interrupt(child), &["interrupted while reading", verb[1]]);
        drop(stdin);
    }
}

#[test]
fn help_is_not_an_error() {
    for arguments in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}

#[test]
fn a_gpu_that_is_not_there() {
    if ops_cuda::availability().driver.is_ok() {
        println!("skipped: this machine has a GPU");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let trace = trace.to_str().unwrap();
    for words in [
        &["run", "--model", "synthetic:tiny", "--ids", "1"][..],
        &["timeline", "--model", "synthetic:tiny"],
        &["replay", "--model", "synthetic:tiny", "--case", "fast:decode:8"],
        &["find", "--model", "synthetic:tiny"],
        &["wiring", "fast", "--model", "synthetic:tiny"],
        &["ceilings"],
    ] {
        let message = refusal(&[words, &["--device", "cuda"]].concat(), 2);
        says(&message, &["--device cuda:0", "no NVIDIA driver", "doctor"]);
    }
    let capture = ["capture", "--model", "synthetic:tiny", "--trace", trace, "--device", "cuda"];
    says(&refusal(&capture, 2), &["--device cuda:0", "no NVIDIA driver", "doctor"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is written");
    for more in [&["--steps", "7"][..], &["--seconds", "2"], &["--counters", "callgrind"]] {
        says(&refusal(&[&capture[..], more].concat(), 2), &[more[0], "beside --device cuda:0", "captured once"]);
    }
    says(&refusal(&["find", "--climb", "--device", "cuda"], 2), &["--device cuda:0", "no NVIDIA driver"]);
}
