//! The commands of a walk: which views, in which order, and how often each repeats so that the walk ends in its time.
//! Not here: running them (`walk.rs`).

use std::path::Path;

use anyhow::Result;
use record::find::FindProtocol;
use record::find::RungText;

use super::shape::Shape;
use crate::device::DeviceChoice;
use crate::failure::usage;
use crate::load::{MachineArgs, ModelArgs};

/// Rounds of decode steps in a turn of the replay, and the longest request, in seconds, that has turns there too.
const MOST_DECODE_ROUNDS: f64 = 16.0;
const LONGEST_BETWEEN: f64 = 20.0;

/// What a walk is planned from.
pub(super) struct Plan<'a> {
    pub(super) protocol: &'a FindProtocol,
    pub(super) shape: &'a Shape,
    pub(super) directory: &'a Path,
    /// The value of --ceilings.
    pub(super) ceilings: Option<&'a Path>,
    /// The rungs that follow.
    pub(super) rungs: Vec<RungText>,
    /// Prompt and generated tokens.
    pub(super) parts: (u64, u64),
}

/// How long things take here, in seconds, as the first look showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    /// From start of a process to its first request.
    pub(super) load: f64,
    pub(super) request: f64,
    pub(super) prefill: f64,
    /// One decode step.
    pub(super) step: f64,
}

/// One command to come.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Planned {
    pub(super) name: String,
    /// The words after the program's name; a file of the walk is written `@/NAME`.
    pub(super) words: Vec<String>,
    /// Its record's file; the step is done if it is there and the process ended well.
    pub(super) record: String,
    /// About how long it will take.
    pub(super) seconds: f64,
    /// In place of running it: why not.
    pub(super) left_out: Option<String>,
}

/// The flags that every command takes.
///
/// # Errors
/// A model's path that is not UTF-8.
pub(super) fn flags(model: &ModelArgs, machine: &MachineArgs) -> Result<Vec<String>> {
    let mut flags: Vec<String> = Vec::new();
    if let Some(model) = &model.model {
        // A capture's folder or another directory must not change what the name means.
        let path = Path::new(model);
        let whole = if path.exists() { path.canonicalize().ok() } else { None };
        let text = match &whole {
            Some(path) => path.to_str().map(str::to_owned).ok_or_else(|| usage("--model: expected a path in UTF-8"))?,
            None => model.clone(),
        };
        flags.extend(["--model".to_owned(), text]);
    }
    // What `auto` found is what all of them use.
    let device = match (machine.device.is_gpu()?, machine.device) {
        (true, DeviceChoice::Auto) => DeviceChoice::Cuda(0),
        (true, named) => named,
        (false, _) => DeviceChoice::Cpu,
    };
    for (flag, value) in machine_flags(machine, device) {
        flags.push(flag);
        flags.extend(value);
    }
    if model.offline {
        flags.push("--offline".to_owned());
    }
    Ok(flags)
}

/// Those of the engine that are not as they are unless given, with their values.
fn machine_flags(machine: &MachineArgs, device: DeviceChoice) -> Vec<(String, Option<String>)> {
    let solution = machine.solution.name();
    let valued = [
        ("--device", (device != DeviceChoice::Cpu).then(|| device.to_string())),
        ("--solution", (solution != "hourglass").then(|| solution.to_owned())),
        ("--threads", machine.threads.map(|threads| threads.to_string())),
        ("--w4-group", (machine.w4_group != 128).then(|| machine.w4_group.to_string())),
        ("--features-without", machine.features_without.clone()),
    ];
    let switches = [("--pin", machine.pin), ("--convert", machine.convert)];
    let valued = valued.into_iter().filter_map(|(flag, value)| Some((flag.to_owned(), Some(value?))));
    let switches = switches.into_iter().filter(|(_, is)| *is).map(|(flag, _)| (flag.to_owned(), None));
    valued.chain(switches).collect()
}

impl Plan<'_> {
    fn planned(&self, name: &str, verb: &str, own: &[&str], seconds: f64) -> Planned {
        let record = format!("{name}.json");
        let mut words: Vec<String> = std::iter::once(verb).chain(own.iter().copied()).map(str::to_owned).collect();
        words.extend(self.protocol.flags.iter().cloned());
        words.extend(["--json-output".to_owned(), format!("@/{record}")]);
        Planned { name: name.to_owned(), words, record, seconds, left_out: None }
    }

    fn lengths(&self) -> [String; 6] {
        let Shape { input_len, output_len, .. } = self.shape;
        [
            "--input-len".to_owned(),
            input_len.to_string(),
            "--output-len".to_owned(),
            output_len.to_string(),
            "--prefill-logits".to_owned(),
            self.shape.logits.mode().name().to_owned(),
        ]
    }

    /// The request's flags behind `own`.
    fn request<'a>(&'a self, own: &[&'a str], lengths: &'a [String], seed: &'a str) -> Vec<&'a str> {
        let mut words = own.to_vec();
        words.extend(lengths.iter().map(String::as_str));
        words.extend(["--seed", seed]);
        words
    }

    /// What runs before anything is known of the machine's pace.
    pub(super) fn first(&self) -> Vec<Planned> {
        let (lengths, seed) = (self.lengths(), self.shape.seed.to_string());
        let checkpoint = self.protocol.checkpoint.as_str();
        let capacity = self.capacity();
        let mut steps = vec![self.ceilings()];
        let mut wiring = |name: &str, rung: &str| {
            let words = [rung, "--input-len", &lengths[1], "--capacity", &capacity, "--prefill-logits", &lengths[5]];
            steps.push(self.planned(name, "wiring", &words, 0.3));
        };
        wiring("wiring", checkpoint);
        for rung in &self.rungs {
            wiring(&format!("wiring-{}", rung.name), &rung.name);
        }
        let words = ["--variant", checkpoint, "--repeats", "1", "--warmup", "0"];
        steps.push(self.planned("first-look", "bench", &self.request(&words, &lengths, &seed), 8.0));
        steps
    }

    fn ceilings(&self) -> Planned {
        let mut words = Vec::new();
        // The one flag of the machine that ceilings know: a GPU has no threads.
        let known = if self.on_device() { "--device" } else { "--threads" };
        if let Some(at) = self.protocol.flags.iter().position(|flag| flag == known) {
            words.extend(self.protocol.flags[at..at + 2].iter().cloned());
        }
        let mut step = Planned {
            name: "ceilings".to_owned(),
            words: std::iter::once("ceilings".to_owned()).chain(words).collect(),
            record: "ceilings.json".to_owned(),
            seconds: 15.0,
            left_out: None,
        };
        step.words.extend(["--json-output".to_owned(), "@/ceilings.json".to_owned()]);
        step.left_out = self.ceilings.map(|path| match path.to_str() {
            Some("none") => "--ceilings none was given".to_owned(),
            _ => "they were given by --ceilings and copied".to_owned(),
        });
        step
    }

    fn on_device(&self) -> bool {
        self.protocol.flags.iter().any(|flag| flag == "--device")
    }

    fn capacity(&self) -> String {
        (self.parts.0 + self.parts.1).to_string()
    }

    /// What runs after the first look, planned to end `left` seconds from now.
    pub(super) fn rest(&self, pace: Pace, left: f64) -> Vec<Planned> {
        let (lengths, seed) = (self.lengths(), self.shape.seed.to_string());
        let (quick, checkpoint) = (self.protocol.quick, self.protocol.checkpoint.as_str());
        // The clock's part, then the others' by what they are worth; each has a least below which it says nothing.
        let process = pace.load + 2.0 * pace.request;
        let most = if quick { 2.0 } else { 6.0 };
        let repeats = even((0.45 * left / (2.0 * process)).min(most));
        let clocked = 2.0 * repeats as f64 * process;
        let repeats = repeats.to_string();
        let words = ["--variant", checkpoint, "--variant", "A/A", "--repeats", &repeats, "--warmup", "1"];
        let mut steps = vec![self.planned("clock", "bench", &self.request(&words, &lengths, &seed), clocked)];
        steps.push(self.replay(pace, if quick { (0.3 * left, 8.0) } else { (0.25 * left, 16.0) }, &lengths[5], &seed));
        let rounds = if quick { 0 } else { ((0.2 * left / (4.0 * pace.request)) as usize).min(3) };
        let seconds = pace.load + (2.0 + 4.0 * rounds as f64) * pace.request;
        let rounds = rounds.to_string();
        let words = ["--checkpoint", checkpoint, "--overhead-rounds", &rounds, "--out", "@/timeline.perfetto-trace"];
        steps.push(self.planned("timeline", "timeline", &self.request(&words, &lengths, &seed), seconds));
        for (phase, tokens) in [("prefill", self.parts.0), ("decode", self.middle())] {
            steps.extend(self.capture(phase, tokens, pace.load));
        }
        steps
    }

    /// The value of --ceilings for those that hold times against them.
    fn floors_at(&self) -> &'static str {
        let none = self.ceilings.is_some_and(|path| path == Path::new("none"));
        if none { "none" } else { "@/ceilings.json" }
    }

    /// Tokens of context of the decode step in the middle of the request's: their mean, rounded.
    fn middle(&self) -> u64 {
        let (prompt, generated) = self.parts;
        prompt + generated / 2
    }

    /// Both phases and whole requests in turn: so many turns as fit into the seconds wanted, at most so many.
    fn replay(&self, pace: Pace, (wanted, most): (f64, f64), logits: &str, seed: &str) -> Planned {
        let checkpoint = &self.protocol.checkpoint;
        let cases =
            [format!("{checkpoint}:prefill:{}", self.parts.0), format!("{checkpoint}:decode:{}", self.middle())];
        // A round runs every group once, the whole pass, and every operator once: three passes. A turn of decode steps may take
        // half as long as one of the prefill.
        let rounds = (0.5 * pace.prefill / pace.step).clamp(1.0, MOST_DECODE_ROUNDS).floor();
        // A request that takes minutes says how fast the machine is by its steps, which the rounds hold.
        let with_requests = pace.request <= LONGEST_BETWEEN;
        let request = if with_requests { pace.request } else { 0.0 };
        let passes = 3.0 * (pace.prefill + rounds * pace.step);
        // One turn of the cases to warm up, without a request.
        let (before, turn) = (pace.load + pace.prefill + passes, passes + request);
        let least = if self.protocol.quick && with_requests { 2.0 } else { 3.0 };
        let turns = ((wanted - before) / turn).clamp(least, most).floor();
        let (capacity, output) = (self.capacity(), self.shape.output_len.to_string());
        let (turns_text, rounds_text) = (turns.to_string(), rounds.to_string());
        let mut words = vec!["--case", &cases[0], "--case", &cases[1], "--capacity", &capacity];
        words.extend(["--warmup", "1", "--iterations", &turns_text, "--decode-rounds", &rounds_text]);
        if with_requests {
            words.extend(["--request-output-len", &output]);
        }
        words.extend(["--prefill-logits", logits, "--seed", seed, "--ceilings", self.floors_at()]);
        self.planned("replay", "replay", &words, before + turn * turns)
    }

    /// Captured and reduced; in a quick walk neither.
    fn capture(&self, phase: &str, tokens: u64, load: f64) -> Vec<Planned> {
        let (tokens, capacity) = (tokens.to_string(), self.capacity());
        let (trace, manifest) = (format!("@/capture-{phase}"), format!("@/capture-{phase}.manifest.sha256"));
        let metadata = format!("capture-{phase}.metadata.json");
        let at = format!("@/{metadata}");
        let own =
            ["--checkpoint", &self.protocol.checkpoint, "--phase", phase, "--tokens", &tokens, "--capacity", &capacity];
        let seed = self.shape.seed.to_string();
        let logits = self.shape.logits.mode().name();
        let outputs = ["--prefill-logits", logits, "--seed", &seed, "--trace", &trace];
        // A pass on a GPU is profiled once, kernel by kernel.
        let (length, seconds): (&[&str], f64) = if self.on_device() { (&[], 60.0) } else { (&["--seconds", "5"], 8.0) };
        let mut capture = self.planned("", "capture", &[&own[..], length, &outputs].concat(), load + seconds);
        let record_flag = capture.words.len() - 2;
        capture.words.truncate(record_flag);
        capture.words.extend(["--metadata".to_owned(), at.clone(), "--manifest".to_owned(), manifest.clone()]);
        (capture.name, capture.record) = (format!("capture-{phase}"), metadata);
        let record = format!("capture-{phase}.json");
        let words = ["reduce", "--capture-metadata", &at, "--manifest", &manifest, "--trace", &trace];
        let mut words: Vec<String> = words.map(str::to_owned).to_vec();
        words.extend([
            "--ceilings".to_owned(),
            self.floors_at().to_owned(),
            "--output".to_owned(),
            format!("@/{record}"),
        ]);
        let reduce = Planned { name: format!("reduce-{phase}"), words, record, seconds: 3.0, left_out: None };
        let quick = self.protocol.quick.then(|| "--quick captures nothing".to_owned());
        [capture, reduce].map(|step| Planned { left_out: quick.clone(), ..step }).to_vec()
    }
}

/// An even number of repeats, at least two.
fn even(repeats: f64) -> usize {
    (repeats / 2.0).floor().max(1.0) as usize * 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(quick: bool, pace: Pace, left: f64) -> Vec<Planned> {
        let protocol = FindProtocol { checkpoint: "rope".into(), quick, budget_s: left, flags: vec!["--pin".into()] };
        let logits = crate::request::PrefillLogits::Last;
        let shape = Shape { model: None, input_len: 128, output_len: 129, logits, seed: 7 };
        let directory = Path::new("x");
        Plan { protocol: &protocol, shape: &shape, directory, ceilings: None, rungs: Vec::new(), parts: (128, 129) }
            .rest(pace, left)
    }

    fn total(steps: &[Planned]) -> f64 {
        steps.iter().filter(|step| step.left_out.is_none()).map(|step| step.seconds).sum()
    }

    #[derive(clap::Parser)]
    struct Given {
        #[command(flatten)]
        model: ModelArgs,
        #[command(flatten)]
        machine: MachineArgs,
    }

    /// A find on a GPU, and with it every step of a climb there, hands the device on to each command.
    #[test]
    fn every_command_of_a_walk_runs_on_the_device_that_was_asked_for() {
        use clap::Parser;
        let given = Given::parse_from(["x", "--device", "cuda:1", "--convert", "--w4-group", "64"]);
        let found = flags(&given.model, &given.machine).map_err(|error| error.to_string());
        let words = ["--device", "cuda:1", "--w4-group", "64", "--convert"];
        assert_eq!(found, Ok(words.map(str::to_owned).to_vec()));
        let protocol = FindProtocol {
            checkpoint: "fast".into(),
            quick: false,
            budget_s: 9.0,
            flags: words.map(str::to_owned).to_vec(),
        };
        let shape =
            Shape { model: None, input_len: 9, output_len: 9, logits: crate::request::PrefillLogits::Last, seed: 7 };
        let plan = Plan {
            protocol: &protocol,
            shape: &shape,
            directory: Path::new("x"),
            ceilings: None,
            rungs: Vec::new(),
            parts: (9, 9),
        };
        let pace = Pace { load: 1.0, request: 0.1, prefill: 0.01, step: 0.001 };
        let steps = plan.first().into_iter().chain(plan.rest(pace, 9.0));
        for step in steps.filter(|step| !step.name.starts_with("reduce-")) {
            let text = step.words.join(" ");
            assert!(text.contains("--device cuda:1"), "{}: {text}", step.name);
            assert!(!text.contains("--seconds") && !text.contains("--threads"), "{}: {text}", step.name);
        }
    }

    #[test]
    fn walks_end_in_their_time_at_the_pace_of_a_small_model() {
        // About Qwen3-0.6B on two cores.
        let pace = Pace { load: 1.3, request: 2.6, prefill: 0.3, step: 0.018 };
        assert!(total(&of(true, pace, 45.0)) <= 45.0, "{:?}", of(true, pace, 45.0));
        assert!(total(&of(false, pace, 280.0)) <= 280.0);
        let steps = of(true, pace, 45.0);
        let replay =
            steps.iter().find(|step| step.name == "replay").map(|step| step.words.join(" ")).unwrap_or_default();
        assert!(replay.contains("--decode-rounds 8 --request-output-len 129"), "{replay}");
    }

    #[test]
    fn a_slow_request_is_still_clocked_twice_and_replayed_three_times() {
        let slow = Pace { load: 2.0, request: 200.0, prefill: 3.0, step: 1.5 };
        let steps = of(true, slow, 40.0);
        let words = |name: &str| {
            steps.iter().find(|step| step.name == name).map(|step| step.words.join(" ")).unwrap_or_default()
        };
        assert!(words("clock").contains("--repeats 2"), "{}", words("clock"));
        let replay = words("replay");
        assert!(replay.contains("--case rope:prefill:128 --case rope:decode:192 --capacity 257"), "{replay}");
        assert!(replay.contains("--iterations 3") && replay.contains("--pin"), "{replay}");
        assert!(!replay.contains("--request-output-len"), "{replay}");
        assert!(steps.iter().filter(|step| step.left_out.is_some()).count() == 4);
    }
}
