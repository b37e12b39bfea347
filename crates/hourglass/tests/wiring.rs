//! `hourglass wiring` through the binary: the dry list against what a clocked request really dispatched, folding, differences.
//! Not here: what a rung changes call by call (`ladder`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::BTreeMap;

use record::bench::BenchRecord;
use record::{Phase, ReplayRecord, Unreached, WiringPlan, read};
use support::{json, refusal, stdout};

const TINY: [&str; 2] = ["--model", "synthetic:tiny"];

fn plan(checkpoint: &str, rest: &[&str]) -> WiringPlan {
    let text = stdout(&[&["wiring", checkpoint, "--json"], &TINY[..], rest].concat());
    read("stdout", text.as_bytes()).unwrap()
}

/// The list is made without loading anything; `bench` and `replay` bind and run. All must agree, on the kinds of rung that differ most.
#[test]
fn the_dry_list_is_what_a_request_binds_and_what_a_replay_counts() {
    for checkpoint in ["week1", "kv-cache", "quantized-matvec", "selected"] {
        let plan = plan(checkpoint, &["--input-len", "24"]);
        let ran = [
            &["bench", "--variant", checkpoint, "--input-len", "24", "--output-len", "3", "--json"],
            &["--repeats", "1", "--warmup", "0", "--threads", "1"][..],
            &TINY,
        ];
        let ran: BenchRecord = read("bench", stdout(&ran.concat()).as_bytes()).unwrap();
        assert_eq!(plan.conditions.kernels, ran.arms[0].conditions.known().unwrap().kernels, "{checkpoint}");
        let cases = ["prefill", "decode"].map(|phase| format!("{checkpoint}:{phase}:24"));
        let replayed = [
            &["replay", "--case", &cases[0], "--case", &cases[1], "--ceilings", "none", "--json"],
            &["--iterations", "1", "--warmup", "0", "--threads", "1"][..],
            &TINY,
        ];
        let replayed: ReplayRecord = read("replay", stdout(&replayed.concat()).as_bytes()).unwrap();
        for (pass, case) in plan.passes.iter().zip(&replayed.cases) {
            let replay = &case.replay;
            assert_eq!(pass.workload, replay.workload, "{checkpoint}: what is planned is what is replayed");
            let mut by_group: BTreeMap<&str, (u64, u64, u64, u64)> = BTreeMap::new();
            for call in &pass.calls {
                let sums = by_group.entry(&call.group).or_default();
                sums.0 += 1;
                sums.1 += call.bytes_read;
                sums.2 += call.bytes_written;
                sums.3 += call.flops;
            }
            let replayed: BTreeMap<&str, (u64, u64, u64, u64)> = replay
                .groups
                .iter()
                .map(|row| (row.group.as_str(), (row.calls, row.bytes_read, row.bytes_written, row.flops)))
                .collect();
            assert_eq!(by_group, replayed, "{checkpoint} {:?}", pass.workload.phase);
        }
    }
}

#[test]
fn layers_that_are_alike_are_shown_once_and_all_of_them_on_demand() {
    let folded = stdout(&[&["wiring", "selected"], &TINY[..]].concat());
    assert!(folded.contains("layers 0 to 1, 2 alike; each:"), "{folded}");
    assert_eq!(folded.matches("q_proj").count(), 2, "once per phase:\n{folded}");
    let all = stdout(&[&["wiring", "selected", "--all"], &TINY[..]].concat());
    assert_eq!(all.matches("q_proj").count(), 4, "{all}");
    for text in [folded, all] {
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
    let decode = stdout(&[&["wiring", "selected", "--phase", "decode"], &TINY[..]].concat());
    assert!(decode.contains("decode step") && !decode.contains("prefill of"), "{decode}");
}

#[test]
fn kernels_that_nothing_reaches_are_reported_with_the_reason() {
    let ours = plan("selected", &[]);
    let of = |plan: &WiringPlan, reason: Unreached| -> Vec<String> {
        let found = plan.unreached.iter().filter(|kernel| kernel.reason == reason);
        found.map(|kernel| format!("{} {}", kernel.operator, kernel.kernel.split('/').next().unwrap())).collect()
    };
    // The one kernel that a switch alone chooses; whatever a rung chooses is not among them.
    let dead = of(&ours, Unreached::NoCheckpoint);
    assert!(dead.contains(&"rms_norm two-pass".to_owned()), "{dead:?}");
    assert!(!dead.iter().any(|kernel| kernel.contains("matvec") || kernel.contains("vanilla")), "{dead:?}");
    // Of no use to a user: it is never offered as a kernel to try.
    assert!(!dead.iter().any(|kernel| kernel.contains("emulated")), "{dead:?}");
    // A user's kernel runs at the user's checkpoint; at ours it is one that the checkpoint does not name.
    let named =
        |plan: &WiringPlan| plan.conditions.kernels.iter().any(|kernel| kernel.kernel.starts_with("wide-sums/"));
    let lab = plan("wider-norm", &["--solution", "lab"]);
    assert!(named(&lab) && !named(&plan("selected", &["--solution", "lab"])));
    assert!(!of(&lab, Unreached::NoCheckpoint).contains(&"rms_norm wide-sums".to_owned()));
    let without = plan("selected", &["--features-without", "avx512f"]);
    assert!(of(&without, Unreached::NoFeature).len() > of(&ours, Unreached::NoFeature).len());
}

#[test]
fn a_difference_is_the_ladders_and_any_two_checkpoints_can_be_compared() {
    let own = json(&[&["wiring", "simd-matmul", "--diff", "--json"], &TINY[..]].concat());
    let ladder = json(&[&["ladder", "--diff", "simd-matmul", "--json"], &TINY[..]].concat());
    assert_eq!(own, ladder);
    let far = stdout(&[&["wiring", "selected", "--diff", "week1"], &TINY[..]].concat());
    assert!(far.contains("'selected' after 'week1'") && far.contains("every rung between"), "{far}");
    let same = stdout(&[&["wiring", "selected", "--diff", "selected"], &TINY[..]].concat());
    assert_eq!(same.matches("the same calls, bound alike").count(), 2, "{same}");
}

#[test]
fn the_logits_of_a_whole_prompt_are_counted() {
    let calls = |mode: &str| {
        let plan = plan("selected", &["--prefill-logits", mode, "--input-len", "24"]);
        let pass = plan.passes.into_iter().find(|pass| pass.workload.phase == Phase::Prefill).unwrap();
        pass.calls.into_iter().find(|call| call.slot == "lm_head").unwrap()
    };
    let (last, all) = (calls("last"), calls("all"));
    assert_eq!((last.outputs[0].rows, all.outputs[0].rows), (1, 24));
    assert_eq!(all.flops, 24 * last.flops);
}

#[test]
fn bad_input_is_refused_before_any_work() {
    for (arguments, expected) in [
        (&["wiring", "nonsense"][..], "unknown checkpoint"),
        (&["wiring", "--input-len", "0"], "--input-len 0"),
        (&["wiring", "--capacity", "3"], "--capacity 3"),
        (&["wiring", "--input-len", "10000000"], "--input-len"),
        (&["wiring", "week1", "--diff"], "no parent"),
        (&["wiring", "selected", "--diff", "nonsense"], "--diff"),
        (&["wiring", "--json-output", env!("CARGO_MANIFEST_DIR")], "never overwritten"),
    ] {
        let message = refusal(arguments, 2);
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
}

#[test]
fn what_a_difference_does_not_show_is_refused() {
    for rest in [&["--all"][..], &["--phase", "decode"], &["--prefill-logits", "all"], &["--capacity", "200"]] {
        let message = refusal(&[&["wiring", "selected", "--diff", "week1"], rest].concat(), 2);
        assert!(message.contains(rest[0]), "{rest:?}: {message}");
    }
}
