//! From ncu's pages to what the views of a capture are made of: spans and samples as of one worker, the lines behind addresses, and
//! what the counters say of each kernel. Not here: reading the pages (`ncu.rs`).

use super::{
    DRAM_READ, DRAM_SHARE, DRAM_WRITTEN, INSTRUCTIONS, L2_HITS, LaunchCode, LaunchRow, Lines, NcuError, OCCUPANCY,
    REGISTERS, SAMPLES, SASS_PAGE, SM_SHARE, TENSOR_SHARE, TIME, agree, raw_page, sass_page, source_page,
};
use crate::capture::raw::{RawAddress, RawCall, RawLaunch, RawProfile, RawSample, RawSpans, RawStep, RawThread};
use crate::capture::reduced::device::{DeviceKernel, DeviceTree, StallRow};
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;

/// A profiled pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    pub steps: Vec<RawStep>,
    pub threads: Vec<RawThread>,
    pub spans: Vec<RawSpans>,
    pub samples: Vec<RawSample>,
    /// By the address as samples have it: function, and (file as ncu names it, line) innermost first.
    pub chains: HashMap<String, (String, Vec<(String, u32)>)>,
    pub tree: DeviceTree,
}

/// More than any pass has; each becomes an entry in memory.
const MOST_SAMPLES: u64 = 20_000_000;
/// A pass is over long before: a day.
const LONGEST_NS: f64 = 1e14;
/// The thread that stands for the GPU.
const STREAM: u32 = 1;
/// Addresses of different functions do not meet.
const FUNCTION_BITS: u32 = 40;

/// Puts the pages together. Times are ncu's, of kernels that ran one by one, put end to end: no latencies. A launch that stands for others
/// lends them its time, and its samples' weights: no sample is counted for what was not profiled.
///
/// # Errors
/// Pages that cannot be read, or that are of other launches than `profile` lists.
pub fn import(
    calls: &[RawCall],
    profile: &RawProfile,
    (raw, sass, source): (impl BufRead, impl BufRead, impl BufRead),
) -> Result<Imported, NcuError> {
    let rows = raw_page(raw)?;
    agree::same_launches(&profile.launches, &rows)?;
    agree::calls_served(calls, &profile.launches)?;
    let code = sass_page(sass, &rows)?;
    let samples = code.iter().flat_map(|launch| launch.instructions.values()).map(|instruction| instruction.samples);
    let samples: u64 = samples.sum();
    if samples > MOST_SAMPLES {
        let why = format!("{samples} samples, more than {MOST_SAMPLES}");
        return Err(NcuError::Page { page: SASS_PAGE, why });
    }
    if let Some(row) = rows.iter().find(|row| row.values.get(TIME).is_none_or(|time| *time <= 0.0)) {
        let why = format!("{TIME} of a launch of {} is missing or not above 0", row.kernel);
        return Err(NcuError::Page { page: super::RAW_PAGE, why });
    }
    let time: f64 = rows.iter().filter_map(|row| row.values.get(TIME)).sum();
    let stood_for = profile.launches.iter().map(|launch| launch.stands_for).max().unwrap_or(1);
    if time > LONGEST_NS / stood_for as f64 {
        let why = format!("the launches take {time} ns together");
        return Err(NcuError::Page { page: super::RAW_PAGE, why });
    }
    let lines = source_page(source)?;
    agree::same_code(&code, &lines)?;
    let launches = &profile.launches[..rows.len()];
    let mut imported = laid_out(calls, launches, &rows, &code, &lines);
    imported.tree.launches_expected = profile.launches.len() as u64;
    Ok(imported)
}

fn laid_out(
    calls: &[RawCall],
    launches: &[RawLaunch],
    rows: &[LaunchRow],
    code: &[LaunchCode],
    lines: &Lines,
) -> Imported {
    let mut spans: Vec<[u64; 4]> = Vec::with_capacity(calls.len());
    let mut samples = Vec::new();
    let mut chains = HashMap::new();
    let mut functions: BTreeMap<&str, u64> = BTreeMap::new();
    let mut cursor = 0;
    for ((launch, row), code) in launches.iter().zip(rows).zip(code) {
        let start = cursor;
        // `import` has refused a launch without one.
        let end = start + (row.values.get(TIME).copied().unwrap_or_default() as u64).max(1);
        cursor = end;
        credit(&mut spans, &launch.calls, (start, end));
        let next = functions.len() as u64 + 1;
        let function = *functions.entry(&code.kernel).or_insert(next);
        let base = code.instructions.keys().next().copied().unwrap_or(0);
        let all: u64 = code.instructions.values().map(|instruction| instruction.samples).sum();
        let mut number = 0;
        for (&address, instruction) in &code.instructions {
            if instruction.samples == 0 {
                continue;
            }
            let text = format!("{:x}", function << FUNCTION_BITS | (address - base));
            for _ in 0..instruction.samples {
                let mut taken = sample(&text, (start, end), (number, all));
                taken.weight_ns = taken.weight_ns.saturating_mul(launch.stands_for);
                samples.push(taken);
                number += 1;
            }
            chains.entry(text).or_insert_with(|| {
                let under = lines.get(&(code.kernel.clone(), address)).cloned().unwrap_or_default();
                (code.kernel.clone(), under)
            });
        }
    }
    // Every call has a span: one that was not profiled takes as long as the last one of its kind that was; one that launched
    // nothing takes no time.
    let profiled: Vec<(&RawCall, u64)> =
        spans.iter().filter_map(|span| Some((calls.get(span[0] as usize)?, span[3] - span[2]))).collect();
    for call in calls {
        if spans.iter().any(|span| span[0] == u64::from(call.call)) {
            continue;
        }
        let like = |known: &&(&RawCall, u64)| {
            known.0.layer.is_some()
                && (&known.0.slot, &known.0.operator, &known.0.kernel) == (&call.slot, &call.operator, &call.kernel)
        };
        let wall = profiled.iter().rev().find(like).map_or(0, |known| known.1);
        spans.push([u64::from(call.call), cursor, cursor, cursor + wall]);
        cursor += wall;
    }
    Imported {
        steps: vec![RawStep { start_ns: 0, end_ns: cursor.max(1) }],
        threads: vec![RawThread { thread: STREAM, name: "GPU stream".to_owned(), worker: Some(0) }],
        spans: vec![RawSpans { step: 0, worker: 0, spans, dropped: 0 }],
        samples,
        chains,
        tree: tree(calls, launches, rows, code),
    }
}

/// Gives a launch's time to the call whose last launch it follows, else to the first of its calls that has no span; the others
/// begin and end behind it.
fn credit(spans: &mut Vec<[u64; 4]>, calls: &[u32], (start, end): (u64, u64)) {
    let known = |spans: &[[u64; 4]], call: u32| spans.iter().position(|span| span[0] == u64::from(call));
    let goes_on = calls.iter().filter_map(|call| known(spans, *call)).find(|&at| {
        let behind = spans[at + 1..].iter().all(|span| span[2] == start && span[3] == start);
        spans[at][3] == start && behind
    });
    if let Some(at) = goes_on {
        spans[at][3] = end;
        for span in &mut spans[at + 1..] {
            *span = [span[0], end, end, end];
        }
    }
    let mut from = if goes_on.is_some() { end } else { start };
    for call in calls {
        if known(spans, *call).is_none() {
            spans.push([u64::from(*call), from, from, end]);
            from = end;
        }
    }
}

/// Sample `number` of `all` of a launch: each stands for its part of the launch's time.
fn sample(address: &str, (start, end): (u64, u64), (number, all): (u64, u64)) -> RawSample {
    let wall = u128::from(end - start);
    let inside = wall * (2 * u128::from(number) + 1) / (2 * u128::from(all));
    RawSample {
        at_ns: start + inside as u64,
        thread: STREAM,
        weight_ns: (end - start) / all + u64::from(number < (end - start) % all),
        stack: vec![RawAddress(address.to_owned())],
    }
}

/// What the counters say of each kernel in each operator.
fn tree(calls: &[RawCall], launches: &[RawLaunch], rows: &[LaunchRow], code: &[LaunchCode]) -> DeviceTree {
    let mut kernels: Vec<((String, String), Vec<usize>)> = Vec::new();
    for (index, launch) in launches.iter().enumerate() {
        let call = launch.calls.first().and_then(|call| calls.get(*call as usize));
        let key = match call {
            Some(call) => (call.operator.clone(), call.kernel.clone()),
            None => (DeviceKernel::OWN.to_owned(), launch.kernel.clone()),
        };
        match kernels.iter_mut().find(|(known, _)| *known == key) {
            Some((_, own)) => own.push(index),
            None => kernels.push((key, vec![index])),
        }
    }
    let mut found: Vec<DeviceKernel> = kernels
        .into_iter()
        .map(|((operator, kernel), own)| {
            let functions: std::collections::BTreeSet<&str> =
                own.iter().map(|&index| rows[index].kernel.as_str()).collect();
            let instructions = || own.iter().flat_map(|&index| code[index].instructions.values());
            let mut stalls: BTreeMap<&str, u64> = BTreeMap::new();
            // The raw page has all reasons; the page of instructions lacks columns for some.
            let by_launch = own.iter().all(|&index| !rows[index].stalls.is_empty());
            let of_launches = own.iter().filter(|_| by_launch).flat_map(|&index| &rows[index].stalls);
            let of_instructions = instructions().filter(|_| !by_launch).flat_map(|instruction| &instruction.stalls);
            for (reason, samples) in of_launches.chain(of_instructions).filter(|(_, samples)| **samples > 0) {
                *stalls.entry(reason).or_default() += samples;
            }
            let mut stalls: Vec<StallRow> =
                stalls.into_iter().map(|(reason, samples)| StallRow { reason: reason.to_owned(), samples }).collect();
            stalls.sort_by_key(|row| std::cmp::Reverse(row.samples));
            DeviceKernel {
                operator,
                kernel,
                functions: functions.into_iter().map(str::to_owned).collect(),
                launches: own.len() as u64,
                time: sum(rows, &own, TIME, Unit::Microseconds, 1e-3),
                dram_read: sum(rows, &own, DRAM_READ, Unit::Bytes, 1.0),
                dram_written: sum(rows, &own, DRAM_WRITTEN, Unit::Bytes, 1.0),
                dram_share: mean(rows, &own, DRAM_SHARE),
                sm_share: mean(rows, &own, SM_SHARE),
                tensor_share: mean(rows, &own, TENSOR_SHARE),
                l2_hit_share: mean(rows, &own, L2_HITS),
                occupancy: mean(rows, &own, OCCUPANCY),
                registers: match own
                    .iter()
                    .filter_map(|&index| rows[index].values.get(REGISTERS))
                    .copied()
                    .reduce(f64::max)
                {
                    Some(most) => Known::Is(most as u64),
                    None => not_collected(REGISTERS),
                },
                samples: instructions().map(|instruction| instruction.samples).sum(),
                samples_counted: counted(rows, &own, SAMPLES),
                executed: instructions().map(|instruction| instruction.executed).sum(),
                executed_counted: counted(rows, &own, INSTRUCTIONS),
                stalls,
            }
        })
        .collect();
    let time = |kernel: &DeviceKernel| kernel.time.value().unwrap_or(0.0);
    found.sort_by(|a, b| time(b).total_cmp(&time(a)));
    let dropped = match rows.iter().map(|row| row.dropped).sum::<Option<u64>>() {
        Some(bytes) => Known::Is(bytes),
        None => Known::unavailable("the profiler does not say what it lost", "a version of ncu that counts it"),
    };
    DeviceTree { launches_expected: 0, launches: rows.len() as u64, dropped, kernels: found }
}

fn not_collected<T>(metric: &str) -> Known<T> {
    Known::unavailable(
        format!("ncu did not collect {metric} of every launch"),
        "see what it says of this metric on this GPU",
    )
}

/// All launches' values, or none: part of them would look like the whole.
fn values(rows: &[LaunchRow], own: &[usize], metric: &str) -> Option<Vec<f64>> {
    own.iter().map(|&index| rows[index].values.get(metric).copied()).collect()
}

fn sum(rows: &[LaunchRow], own: &[usize], metric: &str, unit: Unit, scale: f64) -> Reading {
    match values(rows, own, metric) {
        Some(values) => Reading::measured(values.iter().sum::<f64>() * scale, unit, own.len() as u64),
        None => not_collected(metric),
    }
}

fn counted(rows: &[LaunchRow], own: &[usize], metric: &str) -> Known<u64> {
    values(rows, own, metric)
        .map_or_else(|| not_collected(metric), |values| Known::Is(values.iter().sum::<f64>() as u64))
}

/// Of a percentage, weighted by the launches' times.
fn mean(rows: &[LaunchRow], own: &[usize], metric: &str) -> Reading {
    let impossible = own.iter().find_map(|&index| Some((&rows[index].kernel, rows[index].beyond.get(metric)?)));
    if let Some((kernel, percent)) = impossible {
        return Known::unavailable(
            format!("ncu says {percent} % of {metric} of a launch of {kernel}, and no part is more than its whole"),
            "longer launches: ncu counts the two sides of a part in different runs, which differ most for short ones",
        );
    }
    let (Some(values), Some(times)) = (values(rows, own, metric), values(rows, own, TIME)) else {
        return not_collected(metric);
    };
    let weighted: f64 = values.iter().zip(&times).map(|(value, time)| value * time).sum();
    Reading::ratio(weighted / 100.0, times.iter().sum(), Unit::Share, own.len() as u64)
}
