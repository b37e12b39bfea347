//! The verbs that use the engine, through the binary, on small models.
//! Not here: bad input (`bad_input`), the README's commands (`readme`), the measuring verbs.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;
use support::{byte_ids, hourglass, json, run, stand_in_model, stdout};

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

const TINY: [&str; 4] = ["--model", "synthetic:tiny", "--threads", "2"];

fn on_tiny<'a>(verb: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&[verb], &TINY[..], rest].concat()
}

#[test]
fn run_tells_ids_probabilities_and_what_is_missing() {
    let answer = json(&on_tiny("run", &["--ids", "5,6,7", "--max-tokens", "6", "--json"]));
    let tokens = ids(&answer["token_ids"]);
    assert_eq!(answer["schema"], "run/1");
    assert_eq!(ids(&answer["prompt_ids"]), [5, 6, 7]);
    assert_eq!(tokens.len(), 6);
    assert_eq!(answer["finish"], "length");
    assert_eq!(answer["step_seconds"].as_array().unwrap().len(), 6);
    assert!(numbers(&answer["log_probabilities"]).iter().all(|p| *p <= 0.0 && *p > -20.0), "{answer}");
    assert!(answer["text"]["unavailable"].is_string(), "a synthetic model has no text: {answer}");
    for reading in ["load", "prefill", "prefill_rate", "decode_rate", "peak_allocated", "peak_resident"] {
        assert!(answer[reading]["value"].as_f64().unwrap() > 0.0, "{reading}: {answer}");
    }
    record::read::<record::RunRecord>("stdout", answer.to_string().as_bytes()).unwrap();
    // The same ids, streamed.
    let text = stdout(&on_tiny("run", &["--ids", "5,6,7", "--max-tokens", "6"]));
    assert_eq!(text.trim_end(), tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
}

#[test]
fn a_probability_is_that_of_score() {
    let answer = json(&on_tiny("run", &["--ids", "5,6,7", "--max-tokens", "4", "--checkpoint", "reference", "--json"]));
    let all = [vec![5, 6, 7], ids(&answer["token_ids"])].concat();
    let score = json(&on_tiny("score", &["--ids", &list(&all), "--checkpoint", "reference", "--json"]));
    let losses = numbers(&score["negative_log_likelihood"]);
    for (from_run, from_score) in numbers(&answer["log_probabilities"]).iter().zip(&losses[2..]) {
        assert!((from_run + from_score).abs() < 1e-4, "{from_run} and {from_score}");
    }
    let average = losses.iter().sum::<f64>() / losses.len() as f64;
    assert!((score["average"].as_f64().unwrap() - average).abs() < 1e-12);
    assert!((score["perplexity"].as_f64().unwrap() - average.exp()).abs() < 1e-9);
    // What no model says is no record; a certain token's logarithm is 0 but for rounding.
    let with_first = |logarithm: f64| {
        let mut changed = answer.clone();
        changed["log_probabilities"][0] = logarithm.into();
        record::read::<record::RunRecord>("run.json", changed.to_string().as_bytes()).map_err(|error| error.to_string())
    };
    assert!(with_first(1e-7).is_ok() && with_first(-3.0).is_ok());
    for above in [0.5, 1e-5] {
        let refused = with_first(above).unwrap_err();
        assert!(refused.contains("every token has a probability"), "{above}: {refused}");
    }
    // What a verb writes is shown by another one, and a number that was changed is told.
    let folder = tempfile::tempdir().unwrap();
    for (kind, record, number) in [("run/1", &answer, "decode_rate"), ("score/1", &score, "average")] {
        let file = folder.path().join("record.json");
        let shown = |record: &Value| {
            std::fs::write(&file, record.to_string()).unwrap();
            String::from_utf8(run(&["records", "show", file.to_str().unwrap()]).stdout).unwrap()
        };
        let whole = shown(record);
        assert!(whole.contains(kind) && !whole.contains("NOT VERIFIED"), "{whole}");
        let mut changed = record.clone();
        let place = if changed[number].is_object() { &mut changed[number]["value"] } else { &mut changed[number] };
        *place = (2.0 * place.as_f64().unwrap()).into();
        assert!(shown(&changed).contains("NOT VERIFIED"), "{number}");
    }
}

#[test]
fn sampling_follows_its_seed_and_greedy_does_not() {
    let tokens = |more: &[&str]| {
        let arguments = [&["--ids", "9", "--max-tokens", "12", "--json"], more].concat();
        ids(&json(&on_tiny("run", &arguments))["token_ids"])
    };
    let hot = ["--temp", "5", "--seed"];
    assert_eq!(tokens(&[&hot[..], &["1"]].concat()), tokens(&[&hot[..], &["1"]].concat()));
    assert_ne!(tokens(&[&hot[..], &["1"]].concat()), tokens(&[&hot[..], &["2"]].concat()));
    assert_eq!(tokens(&["--seed", "1"]), tokens(&["--seed", "2"]));
    // One candidate is no choice, however hot.
    assert_eq!(tokens(&[&hot[..], &["3", "--top-k", "1"]].concat()), tokens(&[]));
}

#[test]
fn no_tokens_means_no_rates_and_not_zero() {
    let answer = json(&on_tiny("run", &["--ids", "1", "--max-tokens", "0", "--json"]));
    assert_eq!(answer["token_ids"], serde_json::json!([]));
    for reading in ["prefill", "prefill_rate", "decode_rate"] {
        assert!(answer[reading]["unavailable"].is_string(), "{answer}");
    }
}

#[test]
fn an_answer_ends_where_the_context_does() {
    let dir = tempfile::tempdir().unwrap();
    stand_in_model(dir.path());
    let model = dir.path().to_str().unwrap();
    // Positions 0 to 511 exist: 510 of the prompt, two more are fed, a third token is only given.
    let prompt = list(&vec![7; 510]);
    let answer = json(&["run", "--model", model, "--ids", &prompt, "--temp", "9", "--max-tokens", "64", "--json"]);
    if answer["finish"] != "stop" {
        assert_eq!((ids(&answer["token_ids"]).len(), &answer["finish"]), (3, &Value::from("context")), "{answer}");
    }
}

#[test]
fn the_record_goes_to_its_file_and_the_text_to_stdout() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("answer.json");
    let text = stdout(&on_tiny("run", &["--ids", "5", "--max-tokens", "3", "--json-output", path.to_str().unwrap()]));
    let record: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(text.split_whitespace().count(), ids(&record["token_ids"]).len());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no partial file is left");
}

#[test]
fn a_prompt_goes_through_the_template_and_raw_text_does_not() {
    let dir = tempfile::tempdir().unwrap();
    stand_in_model(dir.path());
    let model = dir.path().to_str().unwrap();
    let prompt = |more: &[&str]| {
        let arguments = [&["run", "--model", model, "--max-tokens", "1", "--json"], more].concat();
        ids(&json(&arguments)["prompt_ids"])
    };
    let turn = |text: &str| [vec![265], byte_ids(text), vec![266]].concat();
    let opening = [vec![265], byte_ids("assistant\n")].concat();
    assert_eq!(prompt(&["--prompt", "hi"]), [turn("user\nhi"), opening.clone()].concat());
    let both = [turn("system\nbe brief"), turn("user\nhi"), opening.clone()].concat();
    assert_eq!(prompt(&["--prompt", "hi", "--system", "be brief"]), both);
    // What a user writes is text, even where it looks like markup.
    assert_eq!(prompt(&["--prompt", "<|eos|>"]), [turn("user\n<|eos|>"), opening].concat());
    assert_eq!(prompt(&["--raw", "--prompt", "hi<|eos|>"]), [byte_ids("hi"), vec![266]].concat());
    let file = dir.path().join("prompt.txt");
    std::fs::write(&file, "from a file").unwrap();
    assert_eq!(prompt(&["--raw", "--prompt-file", file.to_str().unwrap()]), byte_ids("from a file"));
}

#[test]
fn tokenize_there_and_back() {
    let dir = tempfile::tempdir().unwrap();
    stand_in_model(dir.path());
    let tokenize = |more: &[&str]| {
        stdout(&[&["tokenize", "--model", dir.path().to_str().unwrap()], more].concat()).trim_end().to_owned()
    };
    assert_eq!(tokenize(&["--text", "xaby<|eos|>"]), "120,256,121,266");
    assert_eq!(tokenize(&["--plain", "--text", "<|eos|>"]), list(&byte_ids("<|eos|>")));
    assert_eq!(tokenize(&["--decode", "120,256,121,266"]), "xaby<|eos|>");
    let detail: Value = serde_json::from_str(&tokenize(&["--text", "aba é", "--json"])).unwrap();
    assert_eq!(ids(&detail["ids"]), [256, 97, 32, 0xc3, 0xa9]);
    assert_eq!((&detail["tokens"][0], &detail["text"]), (&Value::from("ab"), &Value::from("aba é")));
    let conversation = dir.path().join("conversation.json");
    std::fs::write(&conversation, r#"[{"role":"user","content":"q"},{"role":"assistant","content":"<|eos|>"}]"#)
        .unwrap();
    let expected = [vec![265], byte_ids("user\nq"), vec![266, 265], byte_ids("assistant\n<|eos|>"), vec![266]].concat();
    assert_eq!(tokenize(&["--conversation", conversation.to_str().unwrap()]), list(&expected));
}

/// Reads what NumPy would: (rows, cols, values).
fn read_npy(path: &std::path::Path) -> (usize, usize, Vec<f32>) {
    let bytes = std::fs::read(path).unwrap();
    let length = u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    let header = std::str::from_utf8(&bytes[10..10 + length]).unwrap();
    let shape = header.split_once("'shape': (").unwrap().1.split_once(')').unwrap().0;
    let (rows, cols) = shape.split_once(", ").unwrap();
    let values = bytes[10 + length..].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    (rows.parse().unwrap(), cols.parse().unwrap(), values)
}

#[test]
fn the_written_logits_give_the_reported_losses() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let tokens: Vec<u32> = (0..23).map(|i| (i * 37 + 5) % 512).collect();
    let given = list(&tokens);
    let all = path("all.npy");
    let score = json(&on_tiny("score", &["--ids", &given, "--logits-out", &all, "--json"]));
    let (rows, cols, logits) = read_npy(all.as_ref());
    assert_eq!((rows, cols, logits.len()), (23, 512, 23 * 512));
    for (row, loss) in numbers(&score["negative_log_likelihood"]).iter().enumerate() {
        let row_logits = &logits[row * cols..][..cols];
        let sum: f64 = row_logits.iter().map(|x| f64::from(*x).exp()).sum();
        let expected = sum.ln() - f64::from(row_logits[tokens[row + 1] as usize]);
        assert!((loss - expected).abs() < 1e-9, "row {row}: {loss}, expected {expected}");
    }
    let last = path("last.npy");
    stdout(&on_tiny("score", &["--ids", &given, "--logits-out", &last, "--positions", "last"]));
    assert_eq!(read_npy(last.as_ref()), (1, cols, logits[22 * cols..].to_vec()));
}

#[test]
fn one_token_has_no_perplexity() {
    let score = json(&on_tiny("score", &["--ids", "3", "--json"]));
    assert!(score["perplexity"]["unavailable"].is_string() && score["average"]["unavailable"].is_string(), "{score}");
}

#[test]
fn a_second_turn_reuses_the_first_and_answers_as_if_it_had_not() {
    let dir = tempfile::tempdir().unwrap();
    stand_in_model(dir.path());
    let model = dir.path().to_str().unwrap();
    // Float32 buffers: where rows are computed together or apart must not decide a token.
    let engine = ["--model", model, "--checkpoint", "reference", "--max-tokens", "8"];
    let mut chat = hourglass(&[&["chat", "--json"], &engine[..]].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    chat.stdin.take().unwrap().write_all(b"hello\n\nand then?\n/reset\nhello\n/exit\nnever read\n").unwrap();
    let output = chat.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let turns: Vec<Value> = output
        .stdout
        .split(|b| *b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect();
    assert_eq!(turns.len(), 3);
    assert_eq!(turns[0]["reused_tokens"], 0);
    // Everything of the first prompt is kept; how much of the answer depends on how its text turns into tokens again.
    assert!(turns[1]["reused_tokens"].as_u64() >= turns[0]["prompt_tokens"].as_u64(), "{turns:?}");
    // /reset forgets.
    assert_eq!(turns[2]["reused_tokens"], 0);
    assert_eq!(turns[2]["token_ids"], turns[0]["token_ids"]);

    let conversation = dir.path().join("conversation.json");
    let messages = serde_json::json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": turns[0]["text"]},
        {"role": "user", "content": "and then?"},
    ]);
    std::fs::write(&conversation, messages.to_string()).unwrap();
    let conversation = conversation.to_str().unwrap();
    let whole = stdout(&["tokenize", "--model", model, "--conversation", conversation, "--generation-prompt"]);
    let fresh = json(&[&["run", "--json", "--ids", whole.trim_end()], &engine[..]].concat());
    assert_eq!(turns[1]["prompt_tokens"].as_u64().unwrap() as usize, ids(&fresh["prompt_ids"]).len());
    assert_eq!(turns[1]["token_ids"], fresh["token_ids"]);
}

#[test]
fn a_quantized_copy_runs_as_quantizing_at_load_does() {
    let dir = tempfile::tempdir().unwrap();
    let dense = dir.path().join("dense");
    stand_in_model(&dense);
    let packed = dir.path().join("packed");
    let (dense, packed) = (dense.to_str().unwrap(), packed.to_str().unwrap());
    stdout(&["quantize", "--model", dense, "--out", packed]);
    let text = ["score", "--text", "some text to compare the two by", "--json"];
    let from_dense = run(&[&text[..], &["--model", dense]].concat());
    assert!(String::from_utf8_lossy(&from_dense.stderr).contains("quantized at load"), "said in the first line");
    let from_dense: Value = serde_json::from_slice(&from_dense.stdout).unwrap();
    let from_packed = json(&[&text[..], &["--model", packed]].concat());
    assert_eq!(from_dense["negative_log_likelihood"], from_packed["negative_log_likelihood"]);
    assert_ne!(from_dense["model_fingerprint"], from_packed["model_fingerprint"]);
}

/// Prompts of the real model become exactly the ids that transformers makes, and the text begins as its float32 run does
/// until a step where the two best tokens are close.
#[test]
fn the_real_model_answers_as_transformers_does() {
    let Some(model) = support::download("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let fixture = support::root().join("crates/model/tests/fixtures/smollm2.json");
    let fixture: Value = serde_json::from_str(&std::fs::read_to_string(fixture).unwrap()).unwrap();
    for kind in ["raw", "chat"] {
        let generations = fixture["generations"].as_array().unwrap();
        let expected = generations.iter().find(|generation| generation["kind"] == kind).unwrap();
        let mut arguments = vec!["run", "--model", model.to_str().unwrap(), "--max-tokens", "12", "--json", "--prompt"];
        arguments.push(expected["prompt"].as_str().unwrap());
        if kind == "raw" {
            arguments.push("--raw");
        }
        let answer = json(&arguments);
        assert_eq!(answer["prompt_ids"], expected["prompt_ids"], "{kind}");
        let margins = numbers(&expected["margins"]);
        let same = ids(&answer["token_ids"]).iter().zip(ids(&expected["ids"])).take_while(|(a, b)| **a == *b).count();
        assert!(same == 12 || margins[same] < 0.4, "{kind}: differs at step {same}, margin {}", margins[same]);
    }
}
