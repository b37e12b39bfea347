//! `--device` where no GPU can be used: what is said, how often, with which exit code, and what needs no GPU.
//! Not here: running on one (`examples/check_device.rs`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::{json, refusal, run, stdout};

/// Whether this machine has a driver: then nothing here can be seen.
fn has_gpu() -> bool {
    let found = run(&["run", "--model", "synthetic:tiny", "--device", "cuda", "--ids", "1", "--max-tokens", "1"]);
    let there = found.status.success();
    if there {
        println!("skipped: this machine has a GPU");
    }
    there
}

/// The same command will fail again: bad usage, in every verb that takes the flag, and nothing is left behind.
#[test]
fn a_gpu_that_is_not_there_is_bad_usage_everywhere() {
    if has_gpu() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (trace, out) = (at("trace"), at("out"));
    let model = ["--model", "synthetic:tiny", "--device", "cuda"];
    let verbs: [&[&str]; 10] = [
        &["run", "--ids", "1"],
        &["score", "--ids", "1,2"],
        &["bench", "--variant", "fast"],
        &["replay", "--case", "fast:decode:8"],
        &["timeline", "--input-len", "8", "--output-len", "2"],
        &["capture", "--tokens", "8", "--trace", &trace],
        &["wiring", "fast"],
        &["find", "--out", &out],
        &["find", "--climb", "--out", &out],
        &["ladder", "--diff", "fast"],
    ];
    for verb in verbs {
        let message = refusal(&[verb, &model].concat(), 2);
        assert!(message.contains("--device cuda:0: no NVIDIA driver"), "{verb:?}: {message}");
        assert!(message.contains("hourglass doctor"), "{verb:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{verb:?}: {message}");
    }
    let message = refusal(&["ceilings", "--device", "cuda:3"], 2);
    assert!(message.contains("--device cuda:3"), "{message}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn auto_says_once_that_it_takes_the_cpu_and_does_not_advise_what_it_does() {
    if has_gpu() {
        return;
    }
    let output = run(&["wiring", "fast", "--model", "synthetic:tiny", "--device", "auto"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert_eq!(told.matches("--device auto: the CPU, because").count(), 1, "{told}");
    assert!(!told.contains("--device cpu") && !told.contains("leave --device out"), "{told}");
}

/// Neither message sends to the other.
#[test]
fn a_rung_of_gpus_is_told_so_with_and_without_the_flag() {
    if has_gpu() {
        return;
    }
    let model = ["--model", "synthetic:tiny", "--ids", "1", "--checkpoint", "placed-attention"];
    let on_cpu = refusal(&[&["run"], &model[..]].concat(), 2);
    assert!(on_cpu.contains("needs a GPU (`hourglass doctor`") && on_cpu.contains("on the CPU take"), "{on_cpu}");
    let on_gpu = refusal(&[&["run", "--device", "cuda"], &model[..]].concat(), 2);
    assert!(
        on_gpu.contains("no NVIDIA driver") && on_gpu.contains("'placed-attention' runs on a GPU alone"),
        "{on_gpu}"
    );
    assert!(!on_gpu.contains("leave --device out"), "{on_gpu}");
}

#[test]
fn the_ladder_names_the_rungs_of_gpus_and_lists_them_without_one() {
    let text = stdout(&["ladder"]);
    assert!(text.contains("On a GPU alone: added-residuals, normed-projections"), "{text}");
    let listed = |words: &[&str]| -> Vec<String> {
        let names = json(words)["checkpoints"].as_array().unwrap().clone();
        names.iter().map(|rung| rung["name"].as_str().unwrap().to_owned()).collect()
    };
    let (cpu, gpu) = (listed(&["ladder", "--json"]), listed(&["ladder", "--device", "cuda", "--json"]));
    assert!(!cpu.contains(&"placed-attention".to_owned()) && gpu.contains(&"placed-attention".to_owned()), "{gpu:?}");
    let on_gpu = json(&["ladder", "--device", "cuda", "--json"]);
    assert_eq!(on_gpu["aliases"][0]["checkpoint"], "placed-attention");
    assert!(on_gpu.get("on_a_gpu_alone").is_none(), "{on_gpu}");
}

/// Why, and not only that.
#[test]
fn a_sensitivity_on_a_gpu_is_refused_with_its_reason() {
    let message = refusal(&["replay", "--sensitivity", "all", "--device", "cuda"], 2);
    assert!(message.contains("runs on the CPU alone") && message.contains("a kernel that waits"), "{message}");
}

#[test]
fn more_pinned_workers_than_processors_are_refused() {
    let processors = std::thread::available_parallelism().unwrap().get();
    let threads = (processors + 1).to_string();
    let words = ["run", "--model", "synthetic:tiny", "--ids", "1", "--pin", "--threads", &threads];
    let message = refusal(&words, 2);
    assert!(message.contains(&format!("--pin with {threads} threads")), "{message}");
    assert!(message.contains(&format!("--threads {processors}")), "{message}");
}
