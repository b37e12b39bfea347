//! The request's memory, an axis of its own: bytes are not traded against milliseconds here.
//! Not here: time.

use crate::find::candidate::MemoryRow;
use crate::find::request::RequestSummary;
use crate::find::views::Views;
use crate::quantity::{Reading, Unit};

/// Parts of the memory at its peak, largest first.
pub(super) fn memory(views: &Views, request: &RequestSummary) -> Vec<MemoryRow> {
    let Some(clock) = &views.clock else { return Vec::new() };
    let timeline = views.timeline.as_ref();
    let peak = request.peak_allocation.value();
    let kv = timeline.and_then(|seen| seen.record.kv_allocation.value());
    let rss = request.peak_rss.value();
    let mut rows = Vec::new();
    let mut row = |name: &str, bytes: f64, mechanism: &str, with_timeline: bool| {
        let mut evidence = vec![clock.evidence.clone()];
        evidence.extend(timeline.filter(|_| with_timeline).map(|seen| seen.evidence.clone()));
        let (name, mechanism) = (name.to_owned(), mechanism.to_owned());
        rows.push(MemoryRow { rank: 0, name, bytes: Reading::measured(bytes, Unit::Bytes, 1), mechanism, evidence });
    };
    match (peak, kv) {
        (Some(peak), Some(kv)) => {
            row("keys and values", kv, "grows with the positions that the cache is made for, by layer and head", true);
            let rest = "weights stay resident and are read whole in every pass; scratch grows with the rows of a pass";
            row("weights and scratch", (peak - kv).max(0.0), rest, true);
        }
        (Some(peak), None) => row("everything allocated", peak, "weights, keys and values, scratch", false),
        (None, _) => {}
    }
    if let (Some(rss), Some(peak)) = (rss, peak)
        && rss > peak
    {
        let more =
            "pages beyond the allocations: the program itself, files read at load, stacks, freed and not returned";
        row("resident beyond the allocations", rss - peak, more, false);
    }
    rows.sort_by(|a, b| b.bytes.value().unwrap_or(0.0).total_cmp(&a.bytes.value().unwrap_or(0.0)));
    for (index, row) in rows.iter_mut().enumerate() {
        row.rank = index as u64 + 1;
    }
    rows
}
