//! What differs between two sides besides their numbers: what was meant to, what was not, and whether the change reached a call.
//! Not here: workloads, which must be equal (`build.rs`).

use super::sides::{Replayed, Side};
use crate::check::Check;
use crate::conditions::{BoundKernel, Conditions};
use crate::known::Known;
use crate::subject::Subject;
use crate::workload::Phase;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One thing that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConditionDifference {
    pub what: String,
    pub before: String,
    pub after: String,
    pub kind: DifferenceKind,
}

/// Whether a difference is what comparisons are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// Checkpoint, solution, build.
    Intended,
    /// Anything else: it may be what made the difference.
    Suspicious,
}

/// Which kernels both sides bound, and whether that shows the change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WiringView {
    /// Operators whose kernels or numbers of calls differ.
    pub changed: Vec<KernelChange>,
    /// The two sides are said to be different: other checkpoint, solution, switches or weights.
    pub differ_by_name: bool,
    /// Both were measured by one executable file, so that equal kernels are equal code.
    pub same_build: Known<bool>,
    /// The change reaches a call. False: both sides say to be different and did exactly the same calls with the same kernels
    /// of the same build, so that whatever was measured is noise.
    pub reached: bool,
}

/// One operator's kernels in one phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelChange {
    pub phase: Phase,
    pub operator: String,
    /// `name/isa x calls per pass`; empty if the side has none.
    pub before: Vec<String>,
    pub after: Vec<String>,
}

impl WiringView {
    pub(super) fn check(&self) -> Check {
        Check::counts("the change reaches a call", 1, u64::from(self.reached))
    }

    /// None where a side does not say what it bound.
    pub(super) fn of(before: &Side<'_>, after: &Side<'_>) -> Option<WiringView> {
        let (a, b) = (before.conditions()?, after.conditions()?);
        if a.kernels.is_empty() || b.kernels.is_empty() {
            return None;
        }
        let changed = changed_kernels(&a.kernels, &b.kernels);
        let differ_by_name = match (before.subject(), after.subject()) {
            (Some(a), Some(b)) => named(a) != named(b),
            _ => false,
        };
        // What a kernel's name does not show: how the cache grows, how weights are stored.
        let inside = match (before.subject(), after.subject()) {
            (Some(a), Some(b)) => {
                a.mechanisms.capacity_cache != b.mechanisms.capacity_cache
                    || a.weights_form != b.weights_form
                    || a.conversions != b.conversions
            }
            _ => true,
        };
        let same_build = match (&a.binary.build_id, &b.binary.build_id) {
            (Known::Is(a), Known::Is(b)) => Known::Is(a == b),
            (Known::Unavailable(missing), _) | (_, Known::Unavailable(missing)) => Known::Unavailable(missing.clone()),
        };
        let unreached = differ_by_name && changed.is_empty() && !inside && same_build == Known::Is(true);
        Some(WiringView { changed, differ_by_name, same_build, reached: !unreached })
    }
}

fn named(subject: &Subject) -> (&str, &str, crate::subject::Mechanisms) {
    (&subject.solution, &subject.checkpoint, subject.mechanisms)
}

fn changed_kernels(before: &[BoundKernel], after: &[BoundKernel]) -> Vec<KernelChange> {
    let mut operators: Vec<(Phase, &str)> =
        before.iter().chain(after).map(|kernel| (kernel.phase, kernel.operator.as_str())).collect();
    let mut seen = Vec::new();
    operators.retain(|operator| {
        !seen.contains(operator) && {
            seen.push(*operator);
            true
        }
    });
    let of = |kernels: &[BoundKernel], (phase, operator): (Phase, &str)| {
        let own = kernels.iter().filter(|kernel| kernel.phase == phase && kernel.operator == operator);
        let mut names: Vec<String> = own.map(|kernel| format!("{} x {}", kernel.kernel, kernel.calls)).collect();
        names.sort();
        names
    };
    let changes = operators.into_iter().map(|operator| KernelChange {
        phase: operator.0,
        operator: operator.1.to_owned(),
        before: of(before, operator),
        after: of(after, operator),
    });
    changes.filter(|change| change.before != change.after).collect()
}

/// Everything besides workload and kernels that differs.
pub(super) fn differences(before: &Side<'_>, after: &Side<'_>) -> Vec<ConditionDifference> {
    let mut found = Vec::new();
    if let (Some(a), Some(b)) = (before.subject(), after.subject()) {
        let pairs = [
            ("solution", a.solution.clone(), b.solution.clone()),
            ("checkpoint", a.checkpoint.clone(), b.checkpoint.clone()),
            ("mechanisms", a.mechanisms.to_string(), b.mechanisms.to_string()),
            ("engine", format!("{} {}", a.engine, a.version), format!("{} {}", b.engine, b.version)),
        ];
        push(&mut found, DifferenceKind::Intended, pairs);
        // A build of another version is told by its binary.
        push(
            &mut found,
            DifferenceKind::Suspicious,
            [("weights in the file", a.weights_form.clone(), b.weights_form.clone())],
        );
    }
    if let (Some(a), Some(b)) = (before.conditions(), after.conditions()) {
        push(&mut found, DifferenceKind::Intended, [("build", build(a), build(b))]);
        push(
            &mut found,
            DifferenceKind::Suspicious,
            machine(a).into_iter().zip(machine(b)).map(|((what, a), (_, b))| (what, a, b)),
        );
    }
    found
}

/// Replays that one side timed by the host and the other by the GPU itself, as builds of before and after do: rows of the first hold the
/// start of a pass.
pub(super) fn clocks(replays: &[(&Replayed<'_>, &Replayed<'_>)]) -> Vec<ConditionDifference> {
    let mut found = Vec::new();
    let clocks = replays.iter().map(|(a, b)| (a.replay.clock().to_owned(), b.replay.clock().to_owned()));
    let what = "the clock of replayed rows";
    let different = clocks.filter(|(before, after)| before != after).map(|(before, after)| (what, before, after));
    push(&mut found, DifferenceKind::Suspicious, different.take(1));
    found
}

fn push(
    found: &mut Vec<ConditionDifference>,
    kind: DifferenceKind,
    pairs: impl IntoIterator<Item = (&'static str, String, String)>,
) {
    found.extend(
        pairs
            .into_iter()
            .filter(|(_, before, after)| before != after)
            .map(|(what, before, after)| ConditionDifference { what: what.to_owned(), before, after, kind }),
    );
}

fn known<T: ToString>(value: &Known<T>) -> String {
    value.known().map_or_else(|| "unknown".to_owned(), ToString::to_string)
}

/// A build in a few words.
fn build(conditions: &Conditions) -> String {
    let short = |text: String| text.chars().take(12).collect::<String>();
    let binary = &conditions.binary;
    let dirty = if binary.dirty.known() == Some(&true) { " (changed)" } else { "" };
    format!("commit {}{dirty}, build {}", short(known(&binary.commit)), short(known(&binary.build_id)))
}

/// What a change to a program does not move.
fn machine(conditions: &Conditions) -> [(&'static str, String); 10] {
    let host = &conditions.host;
    [
        ("threads", conditions.threads.to_string()),
        ("pinned", conditions.pinned.to_string()),
        ("features", conditions.features.join(" ")),
        ("device", host.device.clone()),
        ("processor", known(&host.cpu_model)),
        ("processors", host.processors.to_string()),
        ("memory", known(&host.memory_bytes)),
        ("kernel release", known(&host.kernel_release)),
        ("huge pages", known(&host.huge_pages)),
        ("driver", known(&host.driver)),
    ]
}
