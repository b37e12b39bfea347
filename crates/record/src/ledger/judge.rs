//! From a decision's rules and the records measured since to its verdict, with every number used.
//! Not here: the comparison (`compare/`), the rules' answers (`gate/rule.rs`), and writing the entry.

use super::{Closing, Decided, Entry, OpenedWorkload, Opening, ShapeVerdict};
use crate::compare::{Asked, Collection, CompareError, ComparisonRecord, Outcome, Side, SideError, compare};
use crate::evidence::EvidenceRef;
use crate::gate::{Answer, GateError, Namespace, Rule, RuleAnswer};
use crate::known::Known;
use crate::quantity::Reading;
use crate::workload::{Phase, Workload};

/// A request shape, its comparison, and its verdict.
#[derive(Clone, Debug)]
pub struct Shape {
    pub comparison: ComparisonRecord,
    pub verdict: ShapeVerdict,
}

/// Why records do not close a decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JudgeError {
    #[error(
        "{file} was there when the decision was opened, and is no test of '{candidate}'; measure both again, and close with that"
    )]
    Known { file: String, candidate: String },
    #[error(
        "{file} was measured at {created}, before the decision was opened at {opened}: rules that were made with the result \
         in view prove nothing; measure again"
    )]
    Earlier { file: String, created: String, opened: String },
    #[error(
        "{file} is of another workload than the decision: {fields}; measure on the decision's, or open another decision"
    )]
    Workload { file: String, fields: String },
    #[error("the decision is about {shape} too, which these records do not measure on both sides: {why}")]
    Shape { shape: String, why: String },
    #[error(
        "baseline and candidate are both '{name}', so two builds tell them apart, and these records (with the evidence that the \
         decision was opened with) are of {builds}; measure once with the build before the change and once with the one after"
    )]
    Builds { name: String, builds: usize },
    #[error(transparent)]
    Side(#[from] SideError),
    #[error(transparent)]
    Compare(#[from] CompareError),
    #[error("a rule of the decision cannot be read by this build: {0}")]
    Rule(#[from] GateError),
}

/// The workloads that a decision about these records is about: those of requests, or of replays where there is no request.
pub fn opening_workloads(collection: &Collection) -> Vec<OpenedWorkload> {
    let all = collection.all();
    let workloads = all.workloads();
    let requests: Vec<&Workload> =
        workloads.iter().copied().filter(|workload| workload.phase == Phase::Request).collect();
    let chosen = if requests.is_empty() { workloads } else { requests };
    chosen
        .into_iter()
        .map(|workload| OpenedWorkload { workload: workload.clone(), workload_id: workload.id() })
        .collect()
}

/// Judges the decision that `entry` opened by `records`. `created` is now. The reason is left to be added.
///
/// # Errors
/// Records of another workload or made before the decision was opened, records that lack a side or a shape, rules that this
/// build cannot read.
pub fn judge(
    entry: &Entry,
    opening: &Opening,
    records: &Collection,
    names: &Namespace,
    created: &str,
) -> Result<(Closing, Vec<Shape>), JudgeError> {
    let parse = |rules: &[String]| -> Result<Vec<Rule>, GateError> {
        rules.iter().map(|rule| Rule::parse(rule, names)).collect()
    };
    let (accept, reject) = (parse(&opening.accept)?, parse(&opening.reject)?);
    times(entry, opening, records)?;
    workloads(opening, records)?;
    let (before, after) = sides(opening, records)?;
    let of_requests = |opened: &&OpenedWorkload| opened.workload.phase == Phase::Request;
    let mut wanted: Vec<Option<&OpenedWorkload>> = opening.workloads.iter().filter(of_requests).map(Some).collect();
    if wanted.is_empty() {
        wanted.push(None);
    }
    let void: Vec<String> =
        records.void().into_iter().map(|(evidence, check)| format!("{} is void: {check}", evidence.file)).collect();
    let mut shapes = Vec::new();
    for opened in wanted {
        let asked = Asked {
            created,
            target: opening.target.as_deref(),
            phase: None,
            workload_id: opened.map(|opened| opened.workload_id.as_str()),
            void: void.clone(),
            gates: &[],
        };
        let several = opening.workloads.len() > 1;
        let lacks =
            |opened: &OpenedWorkload, why: String| JudgeError::Shape { shape: shape_words(&opened.workload), why };
        let comparison = match (compare(&before, &after, &asked), opened) {
            (Err(why @ CompareError::NoView { .. }), Some(opened)) if several => {
                return Err(lacks(opened, why.to_string()));
            }
            (compared, _) => compared?,
        };
        if let (Some(opened), Known::Unavailable(missing)) = (opened, &comparison.request)
            && several
        {
            return Err(lacks(opened, missing.unavailable.clone()));
        }
        let workload = opened.map_or(&comparison.workload, |opened| &opened.workload);
        let verdict = shape_verdict(&comparison, workload, &accept, &reject);
        shapes.push(Shape { comparison, verdict });
    }
    let mut evidence = Vec::new();
    for side in [&before, &after] {
        for own in side.evidence() {
            if !evidence.contains(&own) {
                evidence.push(own);
            }
        }
    }
    let verdicts: Vec<ShapeVerdict> = shapes.iter().map(|shape| shape.verdict.clone()).collect();
    let verdict = together(&verdicts);
    let closing = Closing {
        opened: entry.id.clone(),
        verdict,
        sentence: sentence(verdict, &verdicts),
        shapes: verdicts,
        reason: None,
        evidence,
    };
    Ok((closing, shapes))
}

/// What the decision was opened with may be older than it, and nothing else.
fn times(entry: &Entry, opening: &Opening, records: &Collection) -> Result<(), JudgeError> {
    for (evidence, created) in records.records() {
        let known = opening.evidence.iter().any(|known| known.sha256() == evidence.sha256());
        if !known && created < entry.created.as_str() {
            return Err(JudgeError::Earlier {
                file: evidence.file.clone(),
                created: created.to_owned(),
                opened: entry.created.clone(),
            });
        }
    }
    Ok(())
}

fn workloads(opening: &Opening, records: &Collection) -> Result<(), JudgeError> {
    let all = records.all();
    let requests = all.requests.iter().map(|clocked| (clocked.evidence, clocked.workload));
    let timelines = all.timelines.iter().map(|(evidence, record)| (*evidence, &record.workload));
    let replays = all.replays.iter().map(|replayed| (replayed.evidence, &replayed.replay.workload));
    for (evidence, workload) in requests.chain(timelines).chain(replays) {
        let of_this_phase = |opened: &&OpenedWorkload| opened.workload.phase == workload.phase;
        let same_phase: Vec<&OpenedWorkload> = opening.workloads.iter().filter(of_this_phase).collect();
        // A replay's shape is its own; of a decision about requests it must be the same model's.
        let fits = if same_phase.is_empty() {
            opening.workloads.iter().any(|opened| {
                opened.workload.model == workload.model && opened.workload.weights_hash == workload.weights_hash
            })
        } else {
            same_phase.iter().any(|opened| opened.workload == *workload)
        };
        if !fits {
            let nearest = same_phase.first().copied().or(opening.workloads.first());
            let fields = nearest.map_or_else(
                || "the decision names none".to_owned(),
                |opened| {
                    let mut fields = opened.workload.differences(workload);
                    if same_phase.is_empty() {
                        fields.retain(|field| field == "model" || field == "weights_hash");
                    }
                    format!("they differ in {}", fields.join(", "))
                },
            );
            return Err(JudgeError::Workload { file: evidence.file.clone(), fields });
        }
    }
    Ok(())
}

fn sides<'a>(opening: &Opening, records: &'a Collection) -> Result<(Side<'a>, Side<'a>), JudgeError> {
    let mut before = records.side(&opening.baseline, Some(&opening.baseline))?;
    let mut after = records.side(&opening.candidate, Some(&opening.candidate))?;
    if opening.baseline == opening.candidate {
        // The build that was measured first is the one before the change.
        let mut builds: Vec<(&str, &str)> = Vec::new();
        let all = before.requests.iter().map(|clocked| (clocked.created, clocked.conditions));
        let replays = before.replays.iter().map(|replayed| (replayed.created, replayed.conditions));
        for (created, conditions) in all.chain(replays) {
            let Some(build) = conditions.and_then(|conditions| conditions.binary.build_id.known()) else { continue };
            match builds.iter_mut().find(|(known, _)| *known == build.as_str()) {
                Some((_, first)) => *first = (*first).min(created),
                None => builds.push((build, created)),
            }
        }
        builds.sort_by_key(|(_, first)| *first);
        let [(first, _), (second, _)] = builds[..] else {
            return Err(JudgeError::Builds { name: opening.baseline.clone(), builds: builds.len() });
        };
        before.keep_build(|build| build == Some(first));
        after.keep_build(|build| build == Some(second));
    }
    // What the decision was opened with is known to whoever opened it: it is no test of the candidate.
    let known = |evidence: &EvidenceRef| opening.evidence.iter().any(|own| own.sha256() == evidence.sha256());
    let of_after =
        after.requests.iter().map(|clocked| clocked.evidence).chain(after.replays.iter().map(|own| own.evidence));
    let one = of_after.into_iter().find(|evidence| known(evidence)).map(|evidence| evidence.file.clone());
    after.requests.retain(|clocked| !known(clocked.evidence));
    after.replays.retain(|replayed| !known(replayed.evidence));
    after.timelines.retain(|(evidence, _)| !known(evidence));
    after.captures.retain(|(evidence, _)| !known(evidence));
    let left = after.requests.len() + after.replays.len() + after.timelines.len() + after.captures.len();
    match one {
        Some(file) if left == 0 => Err(JudgeError::Known { file, candidate: opening.candidate.clone() }),
        _ => Ok((before, after)),
    }
}

fn shape_verdict(comparison: &ComparisonRecord, workload: &Workload, accept: &[Rule], reject: &[Rule]) -> ShapeVerdict {
    let ask = |rules: &[Rule]| rules.iter().map(|rule| rule.ask(comparison)).collect::<Vec<RuleAnswer>>();
    let (accept, reject) = (ask(accept), ask(reject));
    let all = |answers: &[RuleAnswer], wanted: Answer| answers.iter().all(|answer| answer.answer == wanted);
    let verdict = if comparison.outcome.outcome == Outcome::Void {
        Decided::Inconclusive
    } else if reject.iter().any(|answer| answer.answer == Answer::Holds) {
        Decided::Reject
    } else if all(&accept, Answer::Holds) && all(&reject, Answer::Fails) {
        Decided::Keep
    } else {
        Decided::Inconclusive
    };
    let arrived = match &comparison.target {
        Known::Is(target) => target.arrived.clone(),
        Known::Unavailable(missing) => Known::Unavailable(missing.clone()),
    };
    ShapeVerdict {
        workload_id: workload.id(),
        shape: shape_words(workload),
        verdict,
        accept,
        reject,
        outcome: comparison.outcome.outcome,
        outcome_sentence: comparison.outcome.sentence.clone(),
        arrived,
        memory: comparison.row("peak").map_or_else(
            || Reading::unavailable("no request was clocked on both sides", "hourglass bench"),
            |row| row.ratio.clone(),
        ),
        tokens_equal: comparison.tokens_equal(),
    }
}

fn shape_words(workload: &Workload) -> String {
    match workload.phase {
        Phase::Request => {
            format!("{} prompt tokens, {} generated", workload.context_tokens, workload.output_tokens)
        }
        phase => format!("one {} pass at {} tokens", phase.name(), workload.context_tokens),
    }
}

fn together(shapes: &[ShapeVerdict]) -> Decided {
    let any = |wanted: Decided| shapes.iter().any(|shape| shape.verdict == wanted);
    match (any(Decided::Keep), any(Decided::Reject), any(Decided::Inconclusive)) {
        (true, false, false) => Decided::Keep,
        (true, ..) => Decided::Conditional,
        (false, true, _) => Decided::Reject,
        (false, false, _) => Decided::Inconclusive,
    }
}

fn sentence(verdict: Decided, shapes: &[ShapeVerdict]) -> String {
    let one = |shape: &ShapeVerdict| match shape.verdict {
        _ if shape.outcome == Outcome::Void => shape.outcome_sentence.clone(),
        Decided::Keep => "every accept rule holds and no reject rule does".to_owned(),
        Decided::Reject => {
            let held = shape.reject.iter().filter(|answer| answer.answer == Answer::Holds);
            format!("a reject rule holds: {}", held.map(|answer| answer.rule.as_str()).collect::<Vec<_>>().join("; "))
        }
        _ => {
            let open = |answer: &&RuleAnswer| matches!(answer.answer, Answer::Undecided | Answer::Missing);
            let open: Vec<String> = shape
                .accept
                .iter()
                .chain(&shape.reject)
                .filter(open)
                .map(|answer| format!("'{}' is {}", answer.rule, answer.answer.name()))
                .collect();
            if open.is_empty() {
                let failed = shape.accept.iter().filter(|answer| answer.answer == Answer::Fails);
                let failed: Vec<&str> = failed.map(|answer| answer.rule.as_str()).collect();
                format!("the result lies between the rules: '{}' fails, and no reject rule holds", failed.join("', '"))
            } else {
                open.join("; ")
            }
        }
    };
    match shapes {
        [only] => format!("{}: {}", verdict.name(), one(only)),
        _ => {
            let each: Vec<String> = shapes
                .iter()
                .map(|shape| format!("at {}: {}: {}", shape.shape, shape.verdict.name(), one(shape)))
                .collect();
            format!("{}: {}", verdict.name(), each.join("; "))
        }
    }
}
