//! The clock and the replay on a tiny synthetic model: what they measure is what a program plans, on every kind of rung.

#![allow(clippy::unwrap_used, reason = "tests")]

use model::{Engine, LoadOptions};
use ops::Registry;
use probe::{Case, PROMPT_RULE, Request, Shapes, bound_kernels, clock, prompt, replay, shapes};
use record::{LogitsMode, Phase, Reading, Replay, Workload, token_trace_hash};
use std::sync::atomic::Ordering::Relaxed;
use weights::{ModelFiles, ModelSource, OpenOptions};

fn files() -> ModelFiles {
    weights::open(&ModelSource::parse("synthetic:tiny").unwrap(), &OpenOptions::default()).unwrap()
}

fn engine(checkpoint: &str) -> Engine {
    let mut options = LoadOptions::new(Registry::standard().checkpoint(checkpoint).unwrap());
    options.threads = 2;
    options.prefill_chunk = 16;
    Engine::load(&files(), options).unwrap()
}

fn request(prompt: &[u32]) -> Request<'_> {
    Request { prompt, output_tokens: 6, logits: LogitsMode::Last, warmup: 1 }
}

fn ids(engine: &Engine, length: usize) -> Vec<u32> {
    prompt(length, engine.config().vocab_size, &engine.config().eos_tokens, 3)
}

fn workload(phase: Phase, tokens: &[u32], capacity: usize) -> Workload {
    Workload {
        model: "synthetic:tiny@0".into(),
        weights_hash: files().fingerprint().unwrap(),
        phase,
        context_tokens: tokens.len() as u64,
        new_rows: if phase == Phase::Decode { 1 } else { tokens.len() as u64 },
        capacity: capacity as u64,
        output_tokens: 0,
        logits: LogitsMode::Last,
        sampling: "greedy".into(),
        seed: 3,
        prompt_rule: PROMPT_RULE.into(),
        token_trace_hash: token_trace_hash(tokens),
    }
}

fn replayed(engine: &mut Engine, phase: Phase, length: usize, capacity: usize) -> Replay {
    replayed_by(engine, phase, length, capacity, false)
}

fn replayed_by(engine: &mut Engine, phase: Phase, length: usize, capacity: usize, operators: bool) -> Replay {
    let tokens = ids(engine, length);
    let case = Case {
        workload: workload(phase, &tokens, capacity),
        tokens: &tokens,
        warmup: 1,
        iterations: 4,
        operators,
        ceilings: None,
    };
    replay(engine, &case, &|_, _, _| {}).unwrap()
}

fn value(reading: &Reading) -> f64 {
    reading.value().unwrap()
}

#[test]
fn a_request_dispatches_what_was_planned_on_every_rung() {
    // 40 is more than two chunks of 16, 10 is less than one.
    for (checkpoint, length) in [("week1", 10), ("kv-cache", 10), ("kv-cache", 40), ("selected", 10), ("selected", 40)]
    {
        let mut engine = engine(checkpoint);
        let layers = engine.config().layers as u64;
        let prompt = ids(&engine, length);
        let clocked = clock(&mut engine, &request(&prompt), &|_, _, _| {}).unwrap();
        let phases: Vec<_> = clocked.wiring.iter().map(|wiring| wiring.phase).collect();
        assert_eq!(phases, [Phase::Prefill, Phase::Decode], "{checkpoint}");
        for wiring in &clocked.wiring {
            assert_eq!(wiring.layers, layers);
            assert_eq!(wiring.layers_as_planned, layers, "{checkpoint} {length}: {:?}", wiring.deviations);
            assert_eq!(wiring.planned, wiring.dispatched, "{checkpoint} {length}: {:?}", wiring.deviations);
        }
        let chunks = if checkpoint == "week1" { 1 } else { length.div_ceil(16) as u64 };
        assert_eq!((clocked.wiring[0].passes, clocked.wiring[1].passes), (chunks, 5), "{checkpoint} {length}");
    }
}

#[test]
fn the_request_clock_adds_up() {
    let mut engine = engine("selected");
    let prompt = ids(&engine, 24);
    let clocked = clock(&mut engine, &request(&prompt), &|_, _, _| {}).unwrap();
    let clock = clocked.clock.known().unwrap();
    assert!(clock.coverage.is_complete());
    assert_eq!(clock.token_seconds.len(), 6);
    assert_eq!(value(&clock.prefill), clock.token_seconds[0]);
    let decode: f64 = clock.token_seconds[1..].iter().sum();
    assert_eq!(value(&clock.decode), decode);
    assert!((value(&clock.decode_rate) - 5.0 / decode).abs() < 1e-6);
    assert!((value(&clock.prefill_rate) - 24.0 / value(&clock.prefill)).abs() < 1e-6);
    assert!(value(&clock.time_to_first_token) >= value(&clock.prefill));
    assert!(value(&clock.whole_request) >= value(&clock.prefill) + decode);
    assert!(value(&clock.peak_allocation) >= engine.weight_bytes() as f64);
}

#[test]
fn the_output_is_the_same_with_and_without_the_clock_between() {
    let mut engine = engine("selected");
    let prompt = ids(&engine, 24);
    let first = clock(&mut engine, &request(&prompt), &|_, _, _| {}).unwrap().clock;
    let _ = replayed(&mut engine, Phase::Decode, 24, 24);
    let second = clock(&mut engine, &request(&prompt), &|_, _, _| {}).unwrap().clock;
    assert_eq!(first.known().unwrap().output_hash, second.known().unwrap().output_hash);
}

#[test]
fn an_interrupted_request_keeps_what_it_has_and_has_no_total() {
    let mut engine = engine("selected");
    let prompt = ids(&engine, 10);
    let cancelled = std::sync::Arc::clone(&engine.options().cancelled);
    // Before anything.
    let clocked = clock(&mut engine, &request(&prompt), &|_, _, _| cancelled.store(true, Relaxed)).unwrap();
    assert!(clocked.clock.missing().unwrap().unavailable.contains("interrupted"));
    let tokens = ids(&engine, 10);
    let case = Case {
        workload: workload(Phase::Prefill, &tokens, 10),
        tokens: &tokens,
        warmup: 0,
        iterations: 2,
        operators: false,
        ceilings: None,
    };
    let replay = replay(&mut engine, &case, &|_, _, _| {}).unwrap();
    assert!(!replay.coverage.is_complete() && replay.coverage.reason().unwrap().contains("interrupted"));
    assert!(replay.replay_total_us.known().is_none());
}

#[test]
fn a_replay_adds_up_and_names_every_group_once() {
    let mut engine = engine("selected");
    for (phase, length) in [(Phase::Prefill, 24), (Phase::Decode, 24)] {
        let replay = replayed(&mut engine, phase, length, length);
        assert!(replay.coverage.is_complete(), "{:?}", replay.coverage);
        let names: Vec<_> = replay.groups.iter().map(|row| row.group.as_str()).collect();
        let expected: Vec<_> = ops::Group::ALL.iter().map(|group| group.name()).collect();
        assert_eq!(names, expected);
        assert!(replay.checks().iter().all(|check| check.passed), "{:?}", replay.checks());
        assert_eq!(replay.round_order.len(), 4);
        for (row, rest) in replay.round_order.iter().zip(&replay.round_order[1..]) {
            assert_eq!(row[1..], rest[..rest.len() - 1], "each round starts one later");
        }
        // Bytes and calls are those of the program that a request binds.
        let calls: u64 = replay.groups.iter().map(|row| row.calls).sum();
        let rows = if phase == Phase::Decode { 1 } else { length };
        let bound = engine.kernels(rows, model::Keep::Last, length).unwrap();
        assert_eq!(calls, bound.calls().len() as u64);
        let kernels: u64 = bound_kernels(phase, bound).iter().map(|kernel| kernel.calls).sum();
        assert_eq!(calls, kernels);
    }
}

#[test]
fn groups_without_calls_say_where_their_work_is() {
    for (checkpoint, expected) in
        [("week1", Some("keeps no cache")), ("selected", None), ("fast", Some("norm_rope_append"))]
    {
        let mut engine = engine(checkpoint);
        let replay = replayed(&mut engine, Phase::Decode, 24, 24);
        let found: Vec<_> = replay.absent.iter().map(|absent| (absent.group.as_str(), absent.why.as_str())).collect();
        match (expected, &found[..]) {
            (None, []) => {}
            (Some(words), [("cache update", why)]) => assert!(why.contains(words), "{why}"),
            _ => panic!("{checkpoint}: {found:?}"),
        }
        let groups = replay.groups.iter().map(|row| row.group.as_str());
        let mut all: Vec<&str> = groups.chain(found.iter().map(|(group, _)| *group)).collect();
        all.sort_unstable();
        let mut expected: Vec<_> = ops::Group::ALL.iter().map(|group| group.name()).collect();
        expected.sort_unstable();
        assert_eq!(all, expected, "{checkpoint}: every group once");
    }
}

/// An observer that asks for the end in the middle of a pass, as Ctrl-C does.
struct AsksForTheEnd<'a> {
    after: usize,
    flag: &'a std::sync::atomic::AtomicBool,
    ended: std::sync::atomic::AtomicUsize,
}

impl ops::Observer for AsksForTheEnd<'_> {
    fn ends(&self, _worker: usize, index: usize, _call: &ops::BoundCall) {
        self.ended.fetch_add(1, Relaxed);
        if index == self.after {
            self.flag.store(true, Relaxed);
        }
    }
}

#[test]
fn a_pass_is_given_up_in_its_middle() {
    let mut engine = engine("selected");
    let prompt = ids(&engine, 10);
    let mut cache = engine.new_cache(10);
    let workers = engine.options().threads;
    let mut step = engine.prepare(&mut cache, &prompt, model::Keep::Last).unwrap();
    let calls = step.bound().calls().len();
    let flag = std::sync::atomic::AtomicBool::new(false);
    let observer = AsksForTheEnd { after: 3, flag: &flag, ended: 0.into() };
    step.run(&ops::Both(&ops::Until(&flag), &observer)).unwrap();
    let ended = observer.ended.load(Relaxed);
    assert!(ended >= 4 && ended < calls * workers, "{ended} of {calls} calls on {workers} workers");
}

#[test]
fn the_cache_block_says_what_a_pass_moves() {
    let per_token = |engine: &Engine| {
        let config = engine.config();
        (2 * config.layers * config.kv_heads * config.head_dim * 2) as u64
    };
    let mut bounded = engine("selected");
    let cache = replayed(&mut bounded, Phase::Decode, 24, 30).cache.known().unwrap().clone();
    assert_eq!((cache.offset_before, cache.offset_after, cache.capacity), (23, 24, 30));
    assert_eq!(cache.seeding.slice_write_bytes, 23 * per_token(&bounded));
    assert_eq!(cache.per_pass.slice_write_bytes, per_token(&bounded));
    assert_eq!(cache.per_pass.growth_copy_bytes, 0);
    let mut growing = engine("kv-cache");
    let cache = replayed(&mut growing, Phase::Decode, 24, 24).cache.known().unwrap().clone();
    assert_eq!(cache.per_pass.slice_write_bytes, 0);
    assert_eq!(cache.per_pass.growth_copy_bytes, 23 * per_token(&growing));
}

#[test]
fn a_case_that_cannot_run_is_incomplete_with_the_reason() {
    let mut engine = engine("selected");
    let replay = replayed(&mut engine, Phase::Prefill, 24, 20);
    assert!(replay.coverage.reason().unwrap().contains("capacity 20"), "{:?}", replay.coverage);
    assert!(replay.replay_total_us.known().is_none() && replay.groups.is_empty());
}

#[test]
fn a_weight_read_once_per_pass_is_counted_once() {
    let mut engine = engine("selected");
    let decode = replayed(&mut engine, Phase::Decode, 24, 24);
    let bytes = |name: &str| decode.groups.iter().find(|row| row.group == name).unwrap().bytes_read as usize;
    // Every packed matrix is read by one pass; the embedding reads one row of a table that the tied head reads whole.
    let matrices = bytes("projections") + bytes("head");
    assert!(matrices > engine.weight_bytes() * 9 / 10, "{matrices} of {}", engine.weight_bytes());
    assert!(matrices < engine.weight_bytes() * 12 / 10, "{matrices} of {}", engine.weight_bytes());
}

#[test]
fn operators_are_timed_apart_and_account_for_every_call() {
    for checkpoint in ["week1", "kv-cache", "selected"] {
        let mut engine = engine(checkpoint);
        for phase in [Phase::Prefill, Phase::Decode] {
            let replay = replayed_by(&mut engine, phase, 24, 24, true);
            let operators = replay.operators.known().unwrap();
            let checks = replay.checks();
            assert!(checks.len() == 9 && checks.iter().all(|check| check.passed), "{checkpoint}: {checks:?}");
            let mut names: Vec<String> = operators.iter().map(record::OperatorRow::name).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count, "{checkpoint}: each place once");
            let q = operators.iter().find(|operator| operator.slot == "q_proj").unwrap();
            assert_eq!((q.row.calls, q.shapes.len(), q.row.group.as_str()), (2, 1, "projections"));
            assert_eq!(q.row.timing.samples_us.len(), 4);
            // Groups, then operators, each in its own rotation.
            let order = &replay.round_order[0];
            assert_eq!(order.len(), replay.groups.len() + 2 + count);
        }
    }
}

#[test]
fn a_shape_study_times_both_kernels_at_every_shape_of_a_request() {
    let mut engine = engine("selected");
    let tokens = ids(&engine, 40);
    let mut request = workload(Phase::Request, &tokens[..20], 40);
    (request.output_tokens, request.capacity) = (10, 30);
    let kernel = |operator: &str, label: &str| {
        let registry = Registry::standard();
        let operator = registry.operators().iter().copied().find(|known| known.name() == operator).unwrap();
        registry.kernels(operator).find(|kernel| kernel.label() == label).unwrap()
    };
    let before = engine.kernels(1, model::Keep::Last, 30).unwrap().calls()[2].kernel.label();
    let kernels = [kernel("linear", "vanilla/portable"), kernel("linear", "matvec/portable")];
    let study = Shapes { workload: &request, tokens: &tokens, kernels, warmup: 0, iterations: 2 };
    let rows = shapes(&mut engine, &study, &|_, _, _| {}).unwrap();
    // Chunks of 16 and 4 rows, then 9 decode steps, alike for a linear; each has 8 places.
    let passes: Vec<(Phase, u64, u64)> =
        rows.chunks(8).map(|row| (row[0].phase, row[0].pass_rows, row[0].passes)).collect();
    assert_eq!(passes, [(Phase::Prefill, 16, 1), (Phase::Prefill, 4, 1), (Phase::Decode, 1, 9)]);
    for row in &rows {
        assert!(row.timings[0].known().is_some(), "{}: takes any rows", row.slot);
        let few = row.pass_rows <= 8 || row.slot == "lm_head";
        assert_eq!(row.timings[1].known().is_some(), few, "{} of {} rows", row.slot, row.pass_rows);
        assert_eq!(row.calls, if row.slot == "lm_head" { 1 } else { 2 });
    }
    assert!(rows[0].timings[1].missing().unwrap().unavailable.contains("at most 8 rows"));
    // Attention depends on how much is cached: four contexts stand for nine steps.
    let kernels = [kernel("attention_scores", "reference/portable"), kernel("attention_scores", "rows/portable")];
    let study = Shapes { workload: &request, tokens: &tokens, kernels, warmup: 0, iterations: 1 };
    let rows = shapes(&mut engine, &study, &|_, _, _| {}).unwrap();
    let decode: Vec<_> = rows.iter().filter(|row| row.phase == Phase::Decode).collect();
    assert_eq!((decode.len(), decode.iter().map(|row| row.passes).sum::<u64>()), (4, 9));
    assert!(decode.windows(2).all(|pair| pair[0].offset < pair[1].offset && pair[0].bytes < pair[1].bytes));
    let after = engine.kernels(1, model::Keep::Last, 30).unwrap().calls()[2].kernel.label();
    assert_eq!(before, after, "the engine is as it was");
}
