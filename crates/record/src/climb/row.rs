//! One row of the route table out of its two records: what the parent's ranking predicted and what the clock of both saw.
//! Not here: making either record, and the decision, which is the ledger's.

use crate::bench::{Arm, BenchRecord, Interval, Metric, Verdict};
use crate::climb::{ClimbRow, Finding, Prediction};
use crate::find::{Candidate, FindRecord, RungText, Seen};
use crate::known::Known;
use crate::quantity::Reading;
use crate::workload::Phase;

/// The row of `rung` after `start_from`; decision and its id are left to be filled in.
///
/// # Errors
/// A sentence: a record that is not about these two, or not about one request.
pub fn row(
    start_from: &str,
    rung: &RungText,
    find: &Seen<FindRecord>,
    bench: &Seen<BenchRecord>,
) -> Result<ClimbRow, String> {
    let (find_record, clock) = (&find.record, &bench.record);
    if find_record.protocol.checkpoint != start_from {
        return Err(format!("{} is about '{}'", find.evidence.file, find_record.protocol.checkpoint));
    }
    let differing = find_record.workload.differences(&clock.workload);
    if !differing.is_empty() {
        return Err(format!(
            "{} differ between {} and {}",
            differing.join(", "),
            find.evidence.file,
            bench.evidence.file
        ));
    }
    let arm = |name: &str| clock.arm_named(name).ok_or_else(|| format!("{} has no arm '{name}'", bench.evidence.file));
    if arm(start_from)? != 0 {
        return Err(format!("'{start_from}' is not the control of {}", bench.evidence.file));
    }
    let index = arm(&rung.name)?;
    let own = &clock.arms[index];
    let reached = reaches_a_call(&clock.arms[0], own);
    let counts = own.counts && clock.arms[0].counts && !clock.void && reached;
    let comparison = clock.comparison(index, Metric::Request).filter(|_| counts);
    let missing = || {
        let why = match &own.reason {
            Some(reason) => reason.clone(),
            None if !reached => UNREACHED.to_owned(),
            None => "the two were not clocked to the end".to_owned(),
        };
        crate::known::Unavailable { unavailable: why, how_to_get: "see the bench record".to_owned() }
    };
    let verdict = comparison.map_or_else(|| Known::Unavailable(missing()), |row| row.verdict.clone());
    let ratio = comparison.map_or_else(|| Known::Unavailable(missing()), |row| row.ratio.clone());
    let interval = comparison.map_or_else(|| Known::Unavailable(missing()), |row| row.interval.clone());
    let (before, after) = (clock.arms[0].median(Metric::Request), own.median(Metric::Request));
    let gained = ClimbRow::gain(&before, &ratio);
    let ranking = find_record.ranking.known();
    let offer = ranking.and_then(|ranking| ranking.rungs.iter().find(|offer| offer.checkpoint == rung.name));
    let first = ranking.and_then(|ranking| ranking.first());
    let addresses = offer.map(|offer| offer.addresses.clone()).unwrap_or_default();
    let finding = Finding::of(counts, &verdict);
    let predicted = Prediction {
        at_most: offer.map_or_else(no_ranking, |offer| offer.at_most.clone()),
        by_bytes: offer.map_or_else(no_ranking, |offer| offer.by_bytes.clone()),
    };
    let reason = own.reason.as_deref().or((!reached).then_some(UNREACHED));
    let mut row = ClimbRow {
        start_from: start_from.to_owned(),
        checkpoint: rung.name.clone(),
        hypothesis: rung.hypothesis.clone(),
        change: rung.change.clone(),
        dominates: first.map_or_else(no_ranking, |first| Known::Is(titled(first))),
        hits_the_first: match (first, offer) {
            (Some(first), Some(_)) => Known::Is(addresses.contains(&titled(first))),
            _ => no_ranking(),
        },
        addresses,
        predicted,
        output: own.output_check.result.clone(),
        before,
        after,
        ratio,
        interval,
        verdict,
        gained,
        finding,
        sentence: String::new(),
        decision: Known::unavailable("nothing was decided", "`hourglass decide`"),
        decision_id: Known::unavailable("nothing was decided", "`hourglass decide`"),
        find: find.evidence.clone(),
        bench: bench.evidence.clone(),
    };
    row.sentence = sentence(&row, reason);
    Ok(row)
}

const UNREACHED: &str = "the change reaches no call of this request: both bound the same kernels to the same calls, so that \
                         whatever the clocks show is noise";

/// Whether the two did anything differently. Where a side does not say what it bound, it is believed.
fn reaches_a_call(parent: &Arm, rung: &Arm) -> bool {
    let (Some(a), Some(b)) = (parent.conditions.known(), rung.conditions.known()) else { return true };
    let inside = match (parent.subject.known(), rung.subject.known()) {
        (Some(a), Some(b)) => {
            // What a kernel's name does not show: how the cache grows, how weights are stored.
            a.mechanisms.capacity_cache != b.mechanisms.capacity_cache || a.weights_form != b.weights_form
        }
        _ => true,
    };
    a.kernels.is_empty() || a.kernels != b.kernels || inside
}

fn no_ranking<T>() -> Known<T> {
    Known::unavailable("the parent has no ranking, or the rung no plan of calls", "find it again")
}

fn titled(candidate: &Candidate) -> String {
    match candidate.phase {
        Phase::Request => candidate.name.clone(),
        phase => format!("{} {}", phase.name(), candidate.name),
    }
}

fn sentence(row: &ClimbRow, reason: Option<&str>) -> String {
    let ClimbRow { finding, verdict, ratio, interval, gained, predicted, .. } = row;
    if *finding == Finding::Void {
        return format!("void: {}", reason.unwrap_or("the record is void by its own checks"));
    }
    let ms = |reading: &Reading| reading.value().map(|seconds| format!("{:.1} ms", seconds * 1e3));
    let seen = match (ratio.value(), interval.known()) {
        (Some(ratio), Some(Interval { low, high })) => {
            format!("the request takes {ratio:.3} of its time ({low:.3} to {high:.3})")
        }
        (Some(ratio), None) => format!("the request takes {ratio:.3} of its time"),
        (None, _) => "the request was not clocked".to_owned(),
    };
    let what = match verdict.known() {
        Some(Verdict::Better) => "faster",
        Some(Verdict::Worse) => "slower",
        Some(Verdict::NoDifference { .. }) => "no difference that matters",
        Some(Verdict::Inconclusive { .. }) | None => "not decided by so many samples",
    };
    let gain = ms(gained).map(|gain| format!(", {gain} gained")).unwrap_or_default();
    let most = ms(&predicted.at_most).map(|most| format!(" of at most {most} predicted")).unwrap_or_default();
    let bytes = ms(&predicted.by_bytes).map(|by| format!(" ({by} by bytes alone)")).unwrap_or_default();
    let too_small = if *finding == Finding::Inconclusive { too_small(row) } else { None };
    format!("{}: {what}{}; {seen}{gain}{most}{bytes}", finding.name(), too_small.unwrap_or_default())
}

/// Why no clock with so many samples could have decided it, where the profile promised less than the interval is wide.
fn too_small(row: &ClimbRow) -> Option<String> {
    let Interval { low, high } = row.interval.known()?;
    let (promised, seen) = (row.predicted.at_most.value()? / row.before.value()?, (high - low) / 2.0);
    (promised < seen).then(|| {
        format!(
            ", which tell differences from about {:.1} % on, where the profile promised at most {:.1} %",
            100.0 * seen,
            100.0 * promised
        )
    })
}
