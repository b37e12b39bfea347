//! Records with the same numbers each time, of kinds that take long to measure; typed, closed and valid.
//! Not here: records that are measured in a second, which the tests let the binary make.

#![allow(clippy::unwrap_used, reason = "tests")]

use record::capture::{Ended, Provenance, Source, Stretch};
use record::ledger::{Body, Entry, NO_ENTRY};
use record::timeline::{SamplingRung, SamplingUse};
use record::{CaptureRecord, ClimbRecord, FindRecord, Known, LinesRecord, Reading, Unit};
use serde_json::{Value, json};

/// A text that is no HTML, whatever it looks like.
pub const HOSTILE: &str =
    "</script><script>alert(1)</script><img src=x onerror=alert(2)><!-- {{data}} \u{2028} `code` **b**";

fn missing(why: &str) -> Value {
    json!({"unavailable": why, "how_to_get": "measure it"})
}

fn seconds(value: f64) -> Value {
    json!({"value": value, "unit": "s", "n": 4})
}

fn evidence(schema: &str) -> Value {
    json!({"schema": schema, "file": "x.json", "sha256": "cd".repeat(32)})
}

fn workload(phase: &str) -> Value {
    let (rows, output) = match phase {
        "request" => (128, 129),
        "prefill" => (128, 0),
        _ => (1, 0),
    };
    json!({
        "model": "synthetic:qwen3-0.6b@0", "weights_hash": "ab".repeat(32), "phase": phase, "context_tokens": 128,
        "new_rows": rows, "capacity": 257, "output_tokens": output, "logits": "last", "sampling": "greedy", "seed": 0,
        "prompt_rule": "uniform", "token_trace_hash": "00".repeat(32),
    })
}

fn binary() -> Value {
    json!({"version": "0.1.0", "build_id": "be".repeat(32), "commit": "12".repeat(20), "dirty": false})
}

fn host() -> Value {
    json!({
        "device": "cpu", "cpu_model": "A processor", "processors": 2, "memory_bytes": 8_u64 << 30,
        "operating_system": "Linux", "kernel_release": "6.1", "huge_pages": "madvise",
        "driver": missing("the kernels ran on the CPU, which has no driver"),
    })
}

fn conditions() -> Value {
    json!({"binary": binary(), "host": host(), "threads": 2, "pinned": false, "features": ["avx2", "fma"], "kernels": []})
}

fn subject() -> Value {
    json!({
        "solution": "hourglass", "checkpoint": "selected",
        "mechanisms": {"capacity_cache": true, "register_cached_rmsnorm": true, "tiled_prefill": true},
        "engine": "hourglass", "version": "0.1.0", "weights_form": "W4 g128 (synthetic)", "conversions": [],
    })
}

/// A climb of two rungs: one confirmed, one refuted.
pub fn climb() -> ClimbRecord {
    let row = |from: &str, to: &str, before: f64, ratio: f64, verdict: &str, finding: &str| {
        json!({
            "start_from": from, "checkpoint": to, "hypothesis": "Decode reads every projection weight once per token.",
            "change": "Keep the weights packed.", "dominates": "decode projections", "addresses": ["decode projections"],
            "hits_the_first": true, "predicted": {"at_most": seconds(before * 0.65), "by_bytes": missing("as many bytes")},
            "output": {"passed": "equal"}, "before": seconds(before), "after": seconds(before * ratio),
            "ratio": {"value": ratio, "unit": "x", "n": 4}, "interval": {"low": ratio * 0.96, "high": ratio * 1.05},
            "verdict": verdict, "gained": seconds(before * (1.0 - ratio)), "finding": finding,
            "sentence": format!("{finding}: {ratio} times the time"), "decision": "keep", "decision_id": "0123456789",
            "find": evidence("find/2"), "bench": evidence("bench/1"),
        })
    };
    let mut record: ClimbRecord = serde_json::from_value(json!({
        "schema": "climb/1", "created": "2026-01-01T00:00:00Z", "workload": workload("request"), "workload_id": "",
        "binary": binary(), "host": host(), "solution": "hourglass", "from": "kv-cache", "to": "quantized-matvec", "flags": [],
        "rows": [
            row("kv-cache", "capacity-cache", 4.0, 1.08, "worse", "refuted"),
            row("capacity-cache", "quantized-matvec", 4.3, 0.4, "better", "confirmed"),
        ],
        "coverage": {"complete": true}, "checks": [], "void": false,
    }))
    .unwrap();
    record.close();
    record
}

/// A ranking of two candidates and their waits, with `words` wherever words stand.
pub fn find(words: &str) -> FindRecord {
    let experiment = json!({"command": ["hourglass", "bench", words], "says": words});
    let candidate = |rank: u64, kind: &str, name: &str, [measured, waits, floor, gain]: [f64; 4]| {
        json!({
            "rank": rank, "kind": kind, "name": name, "phase": "decode",
            "multiplicity": {"passes": 128, "calls": 28, "context_tokens": 192},
            "measured": seconds(measured), "waits": seconds(waits), "floor": seconds(floor), "recoverable": seconds(gain),
            "interval": {"low": gain * 0.9, "high": gain * 1.1, "confidence": 0.95},
            "share": {"value": gain / 2.0, "unit": "share", "n": 4}, "remaining": seconds(2.0 - gain), "in_request": true,
            "limit": "memory", "mechanism": words, "falsify": experiment, "tries": missing(words),
            "evidence": [evidence("replay/1")],
        })
    };
    let phase = |name: &str, clocked: f64| {
        json!({"phase": name, "clocked": seconds(clocked), "operators": seconds(clocked), "dispatch": seconds(0.0),
            "sampling": seconds(0.0), "unexplained": seconds(0.0)})
    };
    let mut record: FindRecord = serde_json::from_value(json!({
        "schema": "find/2", "created": "2026-01-01T00:00:00Z", "workload": workload("request"), "workload_id": "",
        "subject": subject(), "conditions": conditions(), "conditions_id": "",
        "protocol": {"checkpoint": "selected", "quick": true, "budget_s": 60.0, "flags": []},
        "steps": [
            {"name": "clock", "command": ["hourglass", "bench"], "outcome": "done", "record": evidence("bench/1"), "seconds": 3.0},
            {"name": "capture", "command": ["hourglass", "capture"], "outcome": {"left_out": words},
                "record": missing("left out"), "seconds": missing("left out")},
        ],
        "request": {
            "whole_request": seconds(2.0), "spread": seconds(0.01), "interval": {"low": 1.9, "high": 2.1, "confidence": 0.9},
            "prefill": seconds(0.4), "decode": seconds(1.5), "set_up": seconds(0.1),
            "peak_allocation": {"value": 4e8, "unit": "B", "n": 4}, "peak_rss": missing(words),
            "processor_share": {"value": 0.98, "unit": "share", "n": 4}, "detectable_percent": 3.0,
            "samples_s": [2.0, 1.9, 2.1, 2.0],
        },
        "wiring": [{"phase": "decode", "layers": 28, "layers_as_planned": 28, "passes": 128, "calls_per_pass": 3,
            "planned": 384, "dispatched": 384, "deviations": []}],
        "ranking": {
            "verdict": words, "doubts": [words], "next": [experiment], "request": seconds(2.0), "floor": seconds(1.0),
            "recoverable": seconds(0.75), "unexplained": seconds(0.25),
            "phases": [phase("prefill", 0.4), phase("decode", 1.5)],
            "candidates": [
                candidate(1, "operator", words, [1.375, 0.125, 0.75, 0.5]),
                candidate(2, "operator", "head: linear", [0.375, 0.0, 0.25, 0.125]),
                candidate(2, "waits", "waits at barriers", [0.125, 0.0, 0.0, 0.125]),
            ],
            "memory": [
                {"rank": 1, "name": "weights and scratch", "bytes": {"value": 3.7e8, "unit": "B", "n": 1}, "mechanism": words, "evidence": []},
                {"rank": 2, "name": "keys and values", "bytes": {"value": 3e7, "unit": "B", "n": 1}, "mechanism": words, "evidence": []},
            ],
            "rungs": [],
        },
        "coverage": {"complete": true}, "checks": [], "void": false,
    }))
    .unwrap();
    // Waits are counted in their own row alone, so that the others' sum to it.
    record.close();
    record
}

fn cost(samples: u64, of: u64) -> Value {
    let share = samples as f64 / of as f64;
    let (low, high) = ((share - 0.06).max(0.0), (share + 0.06).min(1.0));
    json!({"samples": samples, "weight_ns": samples * 1_000_000, "share":
        {"value": share, "low": low, "high": high, "effective_samples": of as f64}})
}

fn provenance(tree_sha256: &str) -> Provenance {
    Provenance {
        metadata_sha256: Known::Is("aa".repeat(32)),
        trace: Known::unavailable("not kept", "capture again"),
        profile_sha256: Known::unavailable("none was given", "give one"),
        source: Source {
            commit: Known::Is("12".repeat(20)),
            dirty: Known::Is(false),
            tree_sha256: Known::Is(tree_sha256.to_owned()),
            files: Known::Is(1),
        },
        reduced_by: serde_json::from_value(binary()).unwrap(),
    }
}

fn stretch() -> Stretch {
    Stretch {
        process_id: 1,
        warmup: 3,
        steps: 100,
        ended: Ended::AsAsked,
        wall_ns: 400_000_000,
        precision: Known::Is(0.06),
        sampling: SamplingUse {
            rung: SamplingRung::CpuClock,
            why: "hardware cycles: no such device".to_owned(),
            frequency_hz: Known::Is(997),
            samples: 400,
            lost: Known::Is(0),
        },
        overhead: Known::Is(Reading::measured(0.01, Unit::Share, 10)),
    }
}

fn place() -> Value {
    json!({"kernel": {"operator": "linear", "kernel": "matvec/avx2"}})
}

/// Lines of the file `file`: 3 takes 60 %, 4 takes 20 %, and the rest is elsewhere.
pub fn lines(file: &str, tree_sha256: &str) -> LinesRecord {
    let row = |file: &str, line: u32, own: [u64; 3], rank: Option<u64>, inside: bool| {
        let mut row = json!({"file": file, "line": line, "functions": ["matvec"], "in_repository": inside, "verified": inside,
            "self_innermost": cost(own[0], 300), "self_in_repository": cost(own[1], 300),
            "inclusive_not_summable": cost(own[2], 300)});
        if let Some(rank) = rank {
            row["rank"] = rank.into();
        }
        row
    };
    let mut record: LinesRecord = serde_json::from_value(json!({
        "schema": "lines/1", "created": "2026-01-01T00:00:00Z", "workload": workload("decode"), "workload_id": "",
        "conditions": conditions(), "conditions_id": "", "subject": subject(), "provenance": provenance(tree_sha256),
        "stretch": stretch(), "method": "by hand", "samples": 300, "executables": [],
        "files": [{"file": file, "verification": "verified"}],
        "places": [{
            "place": place(), "cost": cost(300, 300), "line_zero_samples": 0, "outside_repository_samples": 60,
            "rows": [
                row(file, 3, [120, 180, 300], Some(1), true),
                row(file, 4, [60, 60, 60], Some(2), true),
                row("[library]", 0, [120, 60, 120], Some(2), false),
            ],
        }],
        "frames": [{"function": "matvec", "file": file, "line": 3, "inlined": false, "in_repository": true}],
        "stacks": [{"place": place(), "frames": [0], "samples": 300, "weight_ns": 300_000_000_u64}],
        "checks": [], "void": false,
    }))
    .unwrap();
    record.close();
    record
}

/// Two kernels, waits and dispatch; no counters, no lines.
pub fn capture() -> CaptureRecord {
    let row = |rank: u64, operator: &str, samples: u64, calls: u64| {
        json!({
            "rank": rank, "operator": operator, "kernel": "matvec/avx2", "source": "crates/ops/src/x.rs:1",
            "cost": cost(samples, 400), "clocked_share": {"value": 0.5, "unit": "share", "n": 100}, "calls": calls,
            "dispatches": calls * 100, "per_pass": {"value": 3000.0, "unit": "us", "n": 100},
            "per_pass_spread": {"value": 20.0, "unit": "us", "n": 100}, "per_dispatch": {"value": 15.0, "unit": "us", "n": 100},
            "bytes_per_dispatch": 1e6, "flops_per_dispatch": 4e6, "bandwidth": {"value": 24.0, "unit": "GB/s", "n": 100},
            "arithmetic_rate": {"value": 96.0, "unit": "GFLOP/s", "n": 100},
            "bandwidth_fraction": {"value": 0.9, "unit": "share", "n": 100}, "arithmetic_fraction": missing("no ceiling"),
            "imbalance": {"value": 0.02, "unit": "share", "n": 100},
            "limiter": {"verdict": "memory", "sure": "strong", "how": "24 of 26.7 GB/s", "parts": []},
        })
    };
    let pause =
        |samples: u64| json!({"cost": cost(samples, 400), "clocked_share": {"value": 0.1, "unit": "share", "n": 100}});
    let mut record: CaptureRecord = serde_json::from_value(json!({
        "schema": "capture/1", "created": "2026-01-01T00:00:00Z", "workload": workload("decode"), "workload_id": "",
        "conditions": conditions(), "conditions_id": "", "subject": subject(), "provenance": provenance(&"00".repeat(32)),
        "stretch": stretch(), "ceilings": missing("none were given"),
        "kernels": {
            "samples": 400, "weight_ns": 400_000_000_u64, "method": "by hand",
            "rows": [row(1, "linear", 300, 197), row(2, "attention", 40, 28)],
            "barrier_wait": pause(50), "dispatch": pause(10), "uncounted": {"outside_passes": 3, "other_threads": 5},
            "program_calls": 225, "workers": 2, "spans": 45_000, "dropped": 0,
        },
        "counters": missing("no PMU in this VM"), "lines": missing("the binary has no lines"),
        "instructions": missing("no hot loop"), "checks": [], "void": false,
    }))
    .unwrap();
    record.close();
    record
}

/// A ledger of two decisions: one opened and kept, one still open; `words` wherever words stand.
pub fn ledger(words: &str) -> String {
    let body = |value: Value| -> Body { serde_json::from_value(value).unwrap() };
    let opening = |change: &str| {
        body(json!({
            "kind": "open", "dominates": words, "change": change, "accept": ["decode > +20 %"], "reject": ["request > +2 %"],
            "workloads": [], "baseline": "capacity-cache", "candidate": "quantized-matvec", "target": "projections",
            "evidence": [evidence("replay/1")],
        }))
    };
    let answer = |rule: &str, answer: &str| {
        json!({"rule": rule, "answer": answer, "sentence": words, "used": [
            {"name": "decode", "value": {"value": 2.4, "unit": "x", "n": 4}, "interval": {"low": 2.3, "high": 2.5}}]})
    };
    let opened = Entry::new("2026-01-01T00:00:00Z", NO_ENTRY, opening("Keep the weights packed."));
    let closing = body(json!({
        "kind": "close", "opened": opened.id, "verdict": "keep", "sentence": "Kept: decode is 2.4 times as fast.",
        "shapes": [{
            "workload_id": "ab".repeat(32), "shape": "128 prompt tokens, 129 generated", "verdict": "keep",
            "accept": [answer("decode > +20 %", "holds")], "reject": [answer("request > +2 %", "fails")],
            "outcome": "target_fell_request_faster", "outcome_sentence": words,
            "arrived": {"value": 0.9, "unit": "x", "n": 1}, "memory": missing("not measured"), "tokens_equal": true,
        }],
        "evidence": [],
    }));
    let closed = Entry::new("2026-01-02T00:00:00Z", &opened.hash, closing);
    let open = Entry::new("2026-01-03T00:00:00Z", &closed.hash, opening("Fuse the add into the norm."));
    [&opened, &closed, &open].map(|entry| entry.line() + "\n").concat()
}
