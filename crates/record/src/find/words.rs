//! What is said of candidates: the mechanism, the test that could refute it, what to try, the verdict and why it is not surer.
//! Not here: any number that is not in a row already.

use crate::find::candidate::{Candidate, CandidateKind, Experiment};
use crate::find::ranking::Ranking;
use crate::find::request::{RequestSummary, delayed_steps};
use crate::find::rows::{PAUSES, Row, case, whole_request};
use crate::find::rungs::RungOffer;
use crate::find::views::{Seen, Views};
use crate::known::Known;
use crate::replay::GroupRow;
use crate::replay::cases::ReplayRecord;
use crate::replay::floor::Limit;
use crate::workload::{Phase, Workload};
use std::collections::BTreeMap;

/// Below this part of the processors, times are those of a busy machine.
const BUSY: f64 = 0.9;
/// A part of the request that no row explains and that is worth a sentence.
const UNEXPLAINED: f64 = 0.1;
/// Shares of an operator by two views that are farther apart are a disagreement.
const APART: f64 = 0.1;
/// From so much on, a change of the machine's speed between two views is worth a sentence.
const DRIFTED: f64 = 0.1;

/// What was looked at.
pub(super) struct Subject<'a> {
    pub(super) views: &'a Views,
    pub(super) checkpoint: &'a str,
    pub(super) workload: &'a Workload,
}

/// `decode q_proj: linear`; of what belongs to no phase the name alone.
pub(super) fn titled(phase: Phase, name: &str) -> String {
    match phase {
        Phase::Request => name.to_owned(),
        _ => format!("{} {name}", phase.name()),
    }
}

fn command(views: &Views, verb: &str, words: &[&str]) -> Vec<String> {
    let own = ["hourglass", verb].into_iter().chain(words.iter().copied()).map(str::to_owned);
    own.chain(views.flags.iter().cloned()).collect()
}

impl Subject<'_> {
    /// The request's lengths, logits and seed as flags, then those that every command takes.
    fn request_command(&self, verb: &str, words: &[&str]) -> Vec<String> {
        let Workload { context_tokens, output_tokens, logits, seed, .. } = self.workload;
        let lengths = [context_tokens.to_string(), output_tokens.to_string(), seed.to_string()];
        let mut all = words.to_vec();
        all.extend(["--input-len", &lengths[0], "--output-len", &lengths[1]]);
        all.extend(["--prefill-logits", logits.name(), "--seed", &lengths[2]]);
        command(self.views, verb, &all)
    }
}

/// Both rungs clocked in alternation.
pub(super) fn try_rung(views: &Views, checkpoint: &str, rung: &str) -> Experiment {
    let workload = views.clock.as_ref().map(|seen| &seen.record.workload);
    let arms = ["--variant", checkpoint, "--variant", rung];
    let command = match workload {
        Some(workload) => Subject { views, checkpoint, workload }.request_command("bench", &arms),
        None => command(views, "bench", &arms),
    };
    Experiment { command, says: format!("whether '{rung}' makes the request faster, its output checked first") }
}

/// Milliseconds, for sentences.
pub(super) fn ms(seconds: f64) -> String {
    let ms = seconds * 1e3;
    if ms.abs() >= 100.0 {
        format!("{ms:.0} ms")
    } else if ms.abs() >= 1.0 {
        format!("{ms:.1} ms")
    } else {
        format!("{ms:.3} ms")
    }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

/// Why a row takes as long as it does.
pub(super) fn mechanism(subject: &Subject<'_>, row: &Row) -> String {
    let passes = row.multiplicity.passes;
    let on_gpu = subject.views.on_gpu();
    match row.kind {
        CandidateKind::Operator => operator(row, on_gpu),
        CandidateKind::Dispatch if row.name == PAUSES => {
            format!("no kernel ran for so much of {passes} steps, in a request without the profiler")
        }
        // Of records whose replay was timed by the host.
        CandidateKind::Dispatch if on_gpu => {
            format!(
                "each of {passes} passes is put into the GPU's queue by the host, which waits until it knows of its end"
            )
        }
        CandidateKind::Sampling if on_gpu => {
            format!("after each of {passes} passes the host asks for the column that the GPU found largest")
        }
        CandidateKind::Tokenising if on_gpu => {
            "one thread turns text into tokens and back while no kernel runs".to_owned()
        }
        CandidateKind::Waits => {
            "workers that have done their share of a call wait at its barrier for the slowest one".to_owned()
        }
        CandidateKind::Dispatch => {
            format!(
                "every one of {passes} passes starts the workers and walks the program before the first call computes"
            )
        }
        CandidateKind::Sampling => {
            format!(
                "after each of {passes} passes one thread reads all logits and chooses, and the workers wait for it"
            )
        }
        CandidateKind::Tokenising => "one thread turns text into tokens and back while no worker computes".to_owned(),
        CandidateKind::SetUp => {
            "input and cache are made before the first pass and released after the last, by one thread".to_owned()
        }
        CandidateKind::Idle => match row.name.as_str() {
            "page faults" => {
                "memory is touched for the first time inside the request, and the system brings each page in"
            }
            _ => "no worker computed and no recorded cause covers the time",
        }
        .to_owned(),
        CandidateKind::Machine => {
            "the processors were taken away; a quieter machine gives the time back, a kernel does not".to_owned()
        }
    }
}

/// Whether the rows of a phase are a GPU's own time.
fn by_device(subject: &Subject<'_>, seen: &Option<Seen<ReplayRecord>>, phase: Phase) -> bool {
    case(seen, subject.checkpoint, phase).is_some_and(|case| case.replay.is_by_device())
}

/// Seconds of the request's decode that the replay's groups take more than its operators, if they are its own time and do.
fn turned(subject: &Subject<'_>, ranking: &Ranking) -> Option<f64> {
    let replay = &case(&subject.views.decode, subject.checkpoint, Phase::Decode)?.replay;
    if !replay.is_by_device() {
        return None;
    }
    let sum = |rows: &mut dyn Iterator<Item = &GroupRow>| rows.filter_map(|row| row.timing.median.value()).sum::<f64>();
    let operators = sum(&mut replay.operators.known()?.iter().map(|operator| &operator.row));
    let more = (sum(&mut replay.groups.iter()) - operators) / operators;
    let decode = ranking.phases.iter().find(|phase| phase.phase == Phase::Decode)?;
    Some(more * decode.operators.value()?).filter(|seconds| *seconds > 0.0)
}

fn operator(row: &Row, on_gpu: bool) -> String {
    let mechanism = by_floor(row, on_gpu);
    match row.limiter {
        Some(limiter) => format!("{mechanism}; its captured samples speak for {limiter}"),
        None => mechanism,
    }
}

fn by_floor(row: &Row, on_gpu: bool) -> String {
    let per_pass = row.measured / row.multiplicity.passes.max(1) as f64;
    let calls = format!("{} call{} a pass", row.multiplicity.calls, if row.multiplicity.calls == 1 { "" } else { "s" });
    let reached = row.floor.filter(|_| row.measured > 0.0).map(|floor| percent(floor / row.measured));
    match (row.limit.known(), reached) {
        (Some(Limit::Memory), Some(reached)) => format!(
            "its {calls} move {:.2} MB at {:.1} GB/s, {reached} of what this machine's memory allows for them",
            row.bytes as f64 / 1e6,
            row.bytes as f64 / 1e9 / per_pass.max(1e-12),
        ),
        (Some(Limit::Arithmetic), Some(reached)) => format!(
            "its {calls} compute at {:.1} GFLOP/s, {reached} of what {} does here",
            row.flops as f64 / 1e9 / per_pass.max(1e-12),
            row.instruction_path.as_deref().unwrap_or("the fastest instruction it may use"),
        ),
        (Some(Limit::Dispatch), Some(reached)) if on_gpu => format!(
            "its {calls} are so short that starting {} kernel{}, each after the one before, is the least they take, {reached} of \
             their time",
            row.barriers,
            if row.barriers == 1 { "" } else { "s" }
        ),
        (Some(Limit::Dispatch), Some(reached)) => format!(
            "its {calls} are so short that {} meetings of all workers are the least they take, {reached} of their time",
            row.barriers
        ),
        _ => format!("its {calls} take {} a pass; no ceiling says what they could take", ms(per_pass)),
    }
}

/// The cheapest command that could show that a shorter row would not help.
pub(super) fn falsify(subject: &Subject<'_>, row: &Row) -> Experiment {
    let (input, output) =
        (subject.workload.context_tokens.to_string(), subject.workload.output_tokens.clamp(2, 33).to_string());
    match row.kind {
        // Time is added between calls by the workers that walk them; inside a graph nobody does.
        CandidateKind::Operator if subject.views.on_gpu() => {
            let case = format!("{}:{}:{input}", subject.checkpoint, phase_or_decode(row.phase));
            Experiment {
                command: command(subject.views, "replay", &["--case", &case, "--iterations", "24"]),
                says: format!("wrong if '{}' takes less of more rounds", row.operator),
            }
        }
        CandidateKind::Operator => {
            let case = format!("{}:{}:{input}", subject.checkpoint, row.phase.name());
            let words = ["--case", &case, "--sensitivity", &row.operator, "--output-len", &output];
            let says = format!(
                "wrong if time added to '{}' hardly arrives in the request: then a faster one hardly would either",
                row.operator
            );
            Experiment { command: command(subject.views, "replay", &words), says }
        }
        _ if row.name == PAUSES => again(subject),
        CandidateKind::Waits | CandidateKind::Idle | CandidateKind::Machine | CandidateKind::Tokenising => {
            again(subject)
        }
        CandidateKind::Dispatch | CandidateKind::Sampling => {
            let case = format!("{}:{}:{input}", subject.checkpoint, phase_or_decode(row.phase));
            Experiment {
                command: command(subject.views, "replay", &["--case", &case, "--iterations", "24"]),
                says: "wrong if twice as many rounds show less of it".to_owned(),
            }
        }
        CandidateKind::SetUp => Experiment {
            command: subject.request_command("bench", &["--variant", subject.checkpoint, "--repeats", "2"]),
            says: "wrong if whole request less prefill and decode is shorter in new processes".to_owned(),
        },
    }
}

fn again(subject: &Subject<'_>) -> Experiment {
    Experiment {
        command: subject.request_command("timeline", &["--checkpoint", subject.checkpoint]),
        says: "wrong if a second trace does not show it again".to_owned(),
    }
}

fn phase_or_decode(phase: Phase) -> &'static str {
    if phase == Phase::Prefill { "prefill" } else { "decode" }
}

/// Rungs and kernels that exist and change this row.
pub(super) fn tries(subject: &Subject<'_>, row: &Row, rungs: &[RungOffer]) -> Known<Vec<Experiment>> {
    let title = titled(row.phase, &row.name);
    let mut found: Vec<Experiment> = rungs
        .iter()
        .filter(|rung| rung.addresses.contains(&title))
        .map(|rung| Experiment {
            says: format!("'{}' changes it: {}", rung.checkpoint, rung.change),
            command: rung.try_command.command.clone(),
        })
        .collect();
    found.extend(kernels(subject, row));
    if found.is_empty() {
        return Known::unavailable(
            "no rung that follows changes it, and no kernel of this operator is unused here",
            "begin one with `hourglass new kernel` and a rung that calls it with `hourglass new checkpoint`; docs/lab.md goes on",
        );
    }
    Known::Is(found)
}

/// Kernels of the row's operator that run on this machine's shapes and that no checkpoint of the plan reaches.
fn kernels(subject: &Subject<'_>, row: &Row) -> Option<Experiment> {
    use crate::wiring_plan::Unreached;
    let plan = &subject.views.wiring.as_ref()?.record;
    let clock = subject.views.clock.as_ref()?;
    let other = plan
        .unreached
        .iter()
        .find(|kernel| kernel.operator == row.operator && kernel.reason == Unreached::NoCheckpoint)?;
    let own = row.kernels.first()?.split(": ").last()?;
    let pair = format!("{}:{own},{}:{}", row.operator, row.operator, other.kernel);
    let words = ["--shapes", &clock.evidence.file, "--compare", &pair];
    let command = command(subject.views, "replay", &words);
    Some(Experiment { command, says: format!("whether {} is faster at this request's shapes", other.kernel) })
}

/// One sentence: what to change and what that could bring.
pub(super) fn verdict(subject: &Subject<'_>, ranking: &Ranking, request: &RequestSummary) -> String {
    let Some(first) = ranking.first() else {
        return "Nothing can be said of where the request's time goes: no view of it beside its clock is there."
            .to_owned();
    };
    let value = |candidate: &Candidate| candidate.recoverable.value().unwrap_or(0.0);
    let name = |candidate: &Candidate| titled(candidate.phase, &candidate.name);
    let whole = ranking.request.value().unwrap_or(0.0);
    let gain = value(first);
    let part = if whole > 0.0 { gain / whole } else { 0.0 };
    let same = |other: &&Candidate| other.rank == first.rank && *other != first && other.kind != CandidateKind::Machine;
    let alike: Vec<String> = ranking.candidates.iter().filter(same).map(name).collect();
    let tie = match alike.as_slice() {
        [] => String::new(),
        [one] => format!(" It and {one} cannot be told apart."),
        [one, rest @ ..] => format!(" It, {one} and {} more cannot be told apart.", rest.len()),
    };
    let visible = request.detectable_percent.known().is_none_or(|percent| part * 100.0 >= *percent);
    let seen = if visible { "" } else { " That is less than a clock with as many repeats sees on this machine today." };
    let limit = match (first.kind, first.limit.known()) {
        (CandidateKind::Operator, Some(limit)) => format!(", whose floor is set by {}", limit.name()),
        _ => String::new(),
    };
    format!(
        "At '{}', {}{limit}, has most to give: at most {} of the request's {} ({}).{tie}{seen}",
        subject.checkpoint,
        name(first),
        ms(gain),
        ms(whole),
        percent(part),
    )
}

/// Why the verdict is not more certain.
pub(super) fn doubts(subject: &Subject<'_>, ranking: &Ranking, request: &RequestSummary, rows: &[Row]) -> Vec<String> {
    let views = subject.views;
    let mut doubts = Vec::new();
    let not_replayed = |seen, phase| case(seen, subject.checkpoint, phase).is_none();
    let missing = [
        (not_replayed(&views.prefill, Phase::Prefill), "prefill was not replayed: its operators are in no row"),
        (not_replayed(&views.decode, Phase::Decode), "decode was not replayed: its operators are in no row"),
        (
            whole_request(&views.timeline).is_none(),
            "there is no timeline: waits are inside the operators' rows, and idle stretches are in no row",
        ),
        (views.wiring.is_none(), "there is no plan of calls: rungs and kernels to try are not known"),
    ];
    doubts.extend(missing.into_iter().filter(|(is, _)| *is).map(|(_, text)| format!("{text}.")));
    let without: usize = rows.iter().filter(|row| row.kind == CandidateKind::Operator && row.floor.is_none()).count();
    if without > 0 {
        doubts.push(format!(
            "{without} operator rows have no floor, as no ceiling was measured: all of their time counts as recoverable."
        ));
    }
    let above: Vec<&str> = rows.iter().filter(|row| row.floor_too_high).map(|row| row.name.as_str()).collect();
    if let Some(name) = above.first() {
        doubts.push(format!(
            "{} ({name}) ran faster than the floor: a ceiling is too low or a cost is wrong; `hourglass ceilings --refresh`.",
            if above.len() == 1 { "one row".to_owned() } else { format!("{} rows", above.len()) },
        ));
    }
    let whole = ranking.request.value().unwrap_or(0.0);
    if let Some(unexplained) = ranking.unexplained.value().filter(|part| part.abs() > UNEXPLAINED * whole) {
        doubts.push(if unexplained > 0.0 {
            let delayed = views.clock.as_ref().and_then(|seen| delayed_steps(&seen.record)).filter(|part| *part > 0.0);
            let delayed = delayed.map_or_else(String::new, |part| {
                format!(
                    " Decode steps that took longer than the median one account for {}: a request is a sum, and the rows are \
                     medians.",
                    ms(part)
                )
            });
            // A part of what is missed that is worth a sentence.
            let turned = turned(subject, ranking).filter(|seconds| *seconds > UNEXPLAINED * unexplained);
            let turned = turned.map_or_else(String::new, |seconds| {
                format!(
                    " A GPU runs calls of one kind behind each other faster than in turn with others: replayed by groups, decode takes \
                     {} more than by operators, which the rows are.",
                    ms(seconds)
                )
            });
            format!(
                "{} of the request ({}) are in no row.{delayed}{turned}",
                ms(unexplained),
                percent(unexplained / whole)
            )
        } else {
            let own = |seen, phase| by_device(subject, seen, phase);
            let why = if own(&views.prefill, Phase::Prefill) || own(&views.decode, Phase::Decode) {
                "in a real pass a kernel's weights are on their way while the one before it, of another row, still runs"
            } else {
                "calls timed alone lack what the call before leaves in the caches, or the machine was busier while they were \
                 replayed"
            };
            let (more, part) = (ms(-unexplained), percent(-unexplained / whole));
            format!("the replayed rows sum to {more} more than the request takes ({part}): {why}.")
        });
    }
    let taken = rows.iter().filter(|row| row.kind == CandidateKind::Machine).map(|row| row.measured).sum::<f64>();
    if taken > UNEXPLAINED * whole {
        doubts.push(format!(
            "{} of the request ({}) nobody computed because the processors were taken away.",
            ms(taken),
            percent(taken / whole)
        ));
    }
    if let Some(share) = request.processor_share.value().filter(|share| *share < BUSY) {
        doubts.push(format!(
            "the clocked {} had {} {} of the time: other processes ran, and every time is too long.",
            if views.on_gpu() { "process" } else { "workers" },
            if views.on_gpu() { "its processor" } else { "their processors" },
            percent(share)
        ));
    }
    for (seen, phase) in [(&views.prefill, Phase::Prefill), (&views.decode, Phase::Decode)] {
        let case = case(seen, subject.checkpoint, phase).filter(|case| !case.replay.is_by_device());
        if let Some(share) = case.and_then(|case| case.replay.processor_share.value()).filter(|share| *share < BUSY) {
            doubts.push(format!("the {} replay had its processors {} of the time.", phase.name(), percent(share)));
        }
    }
    for phase in &ranking.phases {
        if let Some(drift) = phase.drift.value().filter(|drift| drift.ln().abs() > DRIFTED) {
            let (how, by) = if drift > 1.0 { ("longer", drift - 1.0) } else { ("shorter", 1.0 - drift) };
            doubts.push(format!(
                "the machine's speed changed: the clocked {} took {} {how} than in the requests between the replay's rounds. Its \
                 rows are taken as the parts that they were of these.",
                phase.phase.name(),
                percent(by)
            ));
        }
    }
    if let Known::Unavailable(missing) = &request.detectable_percent {
        doubts.push(format!("today's noise is not known: {}.", missing.unavailable));
    }
    doubts.extend(by_timeline(views, rows));
    doubts.extend(by_capture(views, rows));
    doubts
}

/// Sums of two views by name: by the replay, and by the other.
type Sums<'a> = BTreeMap<&'a str, (f64, f64)>;

/// The name whose share differs most between the two, if that is much.
fn disagreement(sums: &Sums<'_>, what: &str, other: &str) -> Option<String> {
    let (replayed, seen) = sums.values().fold((0.0, 0.0), |all, own| (all.0 + own.0, all.1 + own.1));
    if replayed <= 0.0 || seen <= 0.0 {
        return None;
    }
    let apart = |own: &(f64, f64)| (own.0 / replayed - own.1 / seen).abs();
    let (name, own) = sums.iter().max_by(|a, b| apart(a.1).total_cmp(&apart(b.1)))?;
    (apart(own) > APART).then(|| {
        let (first, second) = (percent(own.0 / replayed), percent(own.1 / seen));
        format!("the views disagree on '{name}': {first} of {what} by the replay, {second} by {other}.")
    })
}

/// Shares of an operator in the computing of one phase, by the replay and by captured samples.
fn by_capture(views: &Views, rows: &[Row]) -> Vec<String> {
    let of = |seen: &crate::find::Seen<crate::CaptureRecord>| {
        let (phase, tree) = (seen.record.workload.phase, seen.record.kernels.known()?);
        let mut sums = Sums::new();
        for row in rows.iter().filter(|row| row.phase == phase && row.kind == CandidateKind::Operator) {
            sums.entry(&row.operator).or_default().0 += row.measured;
        }
        for row in &tree.rows {
            // By time: a profiled layer's samples stand for those of layers that were not profiled.
            sums.entry(&row.operator).or_default().1 += row.cost.weight_ns as f64;
        }
        disagreement(&sums, &format!("the computing of a {} pass", phase.name()), "captured samples")
    };
    views.captures.iter().filter_map(of).collect()
}

/// Shares of an operator in the request's computing, by the replay and by the timeline.
fn by_timeline(views: &Views, rows: &[Row]) -> Option<String> {
    let timeline = &whole_request(&views.timeline)?.record.summary;
    if views.prefill.is_none() || views.decode.is_none() {
        return None;
    }
    let mut sums = Sums::new();
    let launches = launched_together(timeline.operators.iter().map(|row| row.operator.as_str()));
    for row in rows.iter().filter(|row| row.kind == CandidateKind::Operator) {
        sums.entry(launches.get(row.traced.as_str()).unwrap_or(&row.traced.as_str())).or_default().0 += row.measured;
    }
    for row in &timeline.operators {
        let slowest = row.wall_ns.iter().copied().max().unwrap_or(0);
        let own = row.operator.split(TOGETHER).next().and_then(|first| launches.get(first));
        sums.entry(own.unwrap_or(&row.operator.as_str())).or_default().1 += slowest as f64;
    }
    disagreement(&sums, "the computing", "the timeline")
}

/// Between the names of calls that one launch of a GPU serves.
const TOGETHER: &str = " + ";

/// Of every call in a timeline's names the longest of the names that it, or one that shares a launch with it in any pass, is in.
fn launched_together<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, &'a str> {
    let mut launches = BTreeMap::new();
    for name in names {
        let shared: Vec<&str> = name.split(TOGETHER).filter_map(|call| launches.get(call).copied()).collect();
        let longest = shared.iter().copied().chain([name]).max_by_key(|name| name.len()).unwrap_or(name);
        launches.values_mut().filter(|known| shared.contains(known)).for_each(|known| *known = longest);
        launches.extend(name.split(TOGETHER).map(|call| (call, longest)));
    }
    launches
}

/// What to run next: what exists already and could gain most, then the test of the first candidate.
pub(super) fn next(subject: &Subject<'_>, ranking: &Ranking) -> Vec<Experiment> {
    let mut next: Vec<Experiment> = Vec::new();
    if let Some(first) = ranking.first() {
        next.push(first.falsify.clone());
        next.extend(first.tries.known().into_iter().flatten().cloned());
    }
    next.extend(ranking.rungs.iter().map(|rung| rung.try_command.clone()));
    let without_ceilings = subject.views.ceilings.is_none();
    if without_ceilings {
        let says = "what this machine can do at most, so that there are floors".to_owned();
        next.push(Experiment { command: vec!["hourglass".to_owned(), "ceilings".to_owned()], says });
    }
    let mut once: Vec<Experiment> = Vec::new();
    for experiment in next {
        if !once.iter().any(|known| known.command == experiment.command) {
            once.push(experiment);
        }
    }
    once
}
