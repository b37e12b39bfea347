//! Whether what is known of a profiled pass is of one pass: the list of its launches, the program's calls, and ncu's pages.
//! Not here: reading the pages (`ncu.rs`), and what they come to (`import.rs`).

use super::{LaunchCode, LaunchRow, Lines, NcuError, RAW_PAGE, SASS_PAGE, SOURCE_PAGE};
use crate::capture::raw::{PROFILE, RawCall, RawLaunch};
use std::collections::{BTreeMap, BTreeSet};

fn page(page: &'static str, why: String) -> NcuError {
    NcuError::Page { page, why }
}

/// The raw page has the launches that were made, in their order; it may have fewer, which a check of the record then says.
///
/// # Errors
/// The first launch that is another one.
pub(super) fn same_launches(launches: &[RawLaunch], rows: &[LaunchRow]) -> Result<(), NcuError> {
    let same = launches.iter().zip(rows).take_while(|(launch, row)| launch.kernel == row.kernel).count();
    if same == rows.len() {
        return Ok(());
    }
    let expected = launches.get(same).map_or("no further launch", |launch| &launch.kernel);
    Err(page(RAW_PAGE, format!("launch {same} is '{}', expected {expected}", rows[same].kernel)))
}

/// What each launch is said to serve can be so: launches follow the program's order, a launch stands for no more layers than there
/// are, and for itself where it serves none, and what one layer launches for a call every layer launches for the same call.
///
/// # Errors
/// `profile.json` credits a launch to calls that it cannot have served.
pub(super) fn calls_served(calls: &[RawCall], launches: &[RawLaunch]) -> Result<(), NcuError> {
    let fail = |index: usize, why: String| {
        let kernel = &launches[index].kernel;
        Err(page(PROFILE, format!("launch {index} ('{kernel}') {why}")))
    };
    // Counted, as the file chooses its layers' numbers.
    let layers = calls.iter().filter_map(|call| call.layer).collect::<BTreeSet<u64>>().len() as u64;
    let of_a_layer = |call: &u32| calls.get(*call as usize).is_some_and(|call| call.layer.is_some());
    let mut before = 0;
    for (index, launch) in launches.iter().enumerate() {
        if launch.calls.windows(2).any(|pair| pair[0] >= pair[1]) {
            return fail(index, format!("serves the calls {}, expected rising numbers", numbers(&launch.calls)));
        }
        let most = if launch.calls.iter().any(of_a_layer) { layers } else { 1 };
        if !(1..=most).contains(&launch.stands_for) {
            return fail(index, format!("stands for {} launches, expected 1 to {most}", launch.stands_for));
        }
        let Some(&first) = launch.calls.first() else { continue };
        if first < before {
            return fail(
                index,
                format!("serves call {first} behind one of call {before}, expected the program's order"),
            );
        }
        before = first;
    }
    // By what makes calls of different layers the same, the kernels that the first of them launched.
    let mut launched: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    for launch in launches {
        for &call in &launch.calls {
            launched.entry(call).or_default().push(&launch.kernel);
        }
    }
    let mut alike: Vec<(&RawCall, &[&str])> = Vec::new();
    for (number, kernels) in &launched {
        let Some(call) = calls.get(*number as usize).filter(|call| call.layer.is_some()) else { continue };
        let Some((known, expected)) = alike.iter().find(|(known, _)| same_call(known, call)) else {
            alike.push((call, kernels));
            continue;
        };
        if *expected != kernels.as_slice() {
            let why = format!(
                "call {number} ({}: {}) launched {}, and call {} of another layer {}: launches are credited to other calls",
                call.operator,
                call.kernel,
                kernels.join(", "),
                known.call,
                expected.join(", ")
            );
            return Err(page(PROFILE, why));
        }
    }
    Ok(())
}

/// Calls of two layers that one kernel serves alike; weights of one model can be in different forms.
fn same_call(a: &RawCall, b: &RawCall) -> bool {
    (&a.slot, &a.operator, &a.kernel) == (&b.slot, &b.operator, &b.kernel)
        && (&a.inputs, &a.outputs, &a.weights) == (&b.inputs, &b.outputs, &b.weights)
}

fn numbers(calls: &[u32]) -> String {
    calls.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// The pages of instructions and of source lines are of the same code, and what was sampled has lines.
///
/// # Errors
/// One of them was cut: an instruction of one that the other lacks.
pub(super) fn same_code(code: &[LaunchCode], lines: &Lines) -> Result<(), NcuError> {
    if code.iter().any(|launch| !launch.instructions.is_empty()) && lines.is_empty() {
        return Err(page(SOURCE_PAGE, "has no instruction under any line".to_owned()));
    }
    let sampled = code.iter().flat_map(|launch| {
        let own = launch.instructions.iter().filter(|(_, instruction)| instruction.samples > 0);
        own.map(|(at, _)| (launch.kernel.clone(), *at))
    });
    for key in sampled {
        if !lines.contains_key(&key) {
            let why = format!("has no line for the instruction at {:#x} of '{}', which has samples", key.1, key.0);
            return Err(page(SOURCE_PAGE, why));
        }
    }
    // Every launch of a function has all of its instructions.
    for (function, at) in lines.keys() {
        let own = code.iter().filter(|launch| launch.kernel == *function);
        let (having, lacking): (Vec<_>, Vec<_>) = own.partition(|launch| launch.instructions.contains_key(at));
        if having.is_empty() || !lacking.is_empty() {
            let why = format!("a launch lacks the instruction at {at:#x} of '{function}', which has a source line");
            return Err(page(SASS_PAGE, why));
        }
    }
    Ok(())
}
