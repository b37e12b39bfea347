//! Which call every sample fell into, each once, and from spans and samples together what every kernel costs.
//! Not here: source lines (`line_table.rs`).

use crate::capture::limiter::{self, Hints, Roofs};
use crate::capture::load::RawTrace;
use crate::capture::place::{Cost, Place};
use crate::capture::raw::RawSpans;
use crate::capture::reduced::kernels::{KernelRow, KernelTree, PauseRow, Uncounted};
use crate::capture::share::{SHARE_METHOD, Share, Whole, ranks};
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::samples::Samples;
use std::collections::HashMap;

/// Every worker's sample inside a pass, with where it fell.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// Kernels in the order of their first calls, then barrier wait, then dispatch.
    pub places: Vec<Place>,
    /// Place of each call, by call number.
    pub of_call: Vec<usize>,
    /// By time.
    pub samples: Vec<PlacedSample>,
    pub uncounted: Uncounted,
    /// The weight that all shares are of.
    pub whole: Whole,
}

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedSample {
    /// Index into the trace's samples.
    pub sample: usize,
    /// Index into [`Placed::places`].
    pub place: usize,
    /// Index into the trace's steps.
    pub step: usize,
}

/// Attributes samples by their thread and time: from a call's start to its end its kernel, from arriving to its start barrier
/// wait, anywhere else in a pass dispatch. Samples outside the passes and of other threads are counted as such.
pub fn placed(trace: &RawTrace) -> Placed {
    let mut places: Vec<Place> = Vec::new();
    let mut of_call = Vec::with_capacity(trace.calls.len());
    for call in &trace.calls {
        let place = Place::Kernel { operator: call.operator.clone(), kernel: call.kernel.clone() };
        let known = places.iter().position(|known| *known == place);
        of_call.push(known.unwrap_or_else(|| {
            places.push(place);
            places.len() - 1
        }));
    }
    let (barrier, dispatch) = (places.len(), places.len() + 1);
    places.extend([Place::BarrierWait, Place::Dispatch]);

    let workers: HashMap<u32, u32> =
        trace.threads.iter().filter_map(|thread| Some((thread.thread, thread.worker?))).collect();
    let spans: HashMap<(u64, u32), &[[u64; 4]]> =
        trace.spans.iter().map(|row| ((row.step, row.worker), row.spans.as_slice())).collect();
    let mut uncounted = Uncounted { outside_passes: 0, other_threads: 0 };
    let mut whole = Whole::new(trace.steps.len());
    let mut samples = Vec::new();
    for (index, sample) in trace.samples.iter().enumerate() {
        let Some(worker) = workers.get(&sample.thread) else {
            uncounted.other_threads += 1;
            continue;
        };
        let begun = trace.steps.partition_point(|step| step.start_ns <= sample.at_ns);
        let Some(step) = begun.checked_sub(1).filter(|step| sample.at_ns < trace.steps[*step].end_ns) else {
            uncounted.outside_passes += 1;
            continue;
        };
        let own = spans.get(&(step as u64, *worker)).copied().unwrap_or(&[]);
        let reached = own.partition_point(|[_, arrive, ..]| *arrive <= sample.at_ns);
        let place = match reached.checked_sub(1).map(|last| own[last]) {
            Some([_, _, start, _]) if sample.at_ns < start => barrier,
            Some([call, _, _, end]) if sample.at_ns < end => of_call[call as usize],
            _ => dispatch,
        };
        whole.add(step, sample.weight_ns);
        samples.push(PlacedSample { sample: index, place, step });
    }
    Placed { places, of_call, samples, uncounted, whole }
}

/// Sums per part, kept by pass: what a [`Share`] is made of. Add samples by time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub samples: u64,
    pub weight_ns: u64,
    by_step: Vec<(usize, f64)>,
}

impl Tally {
    pub fn add(&mut self, step: usize, weight_ns: u64) {
        self.samples += 1;
        self.weight_ns += weight_ns;
        match self.by_step.last_mut().filter(|(last, _)| *last == step) {
            Some((_, weight)) => *weight += weight_ns as f64,
            None => self.by_step.push((step, weight_ns as f64)),
        }
    }

    /// None where the whole has no weight.
    pub fn cost(&self, whole: &Whole) -> Option<Cost> {
        let share = Share::of(whole, &self.by_step)?;
        Some(Cost { samples: self.samples, weight_ns: self.weight_ns, share })
    }
}

/// The clocked side of one place.
#[derive(Clone, Debug, Default)]
struct Clocked {
    /// All workers' time, over all passes.
    ns: u64,
    /// Per pass: sum over calls of the slowest worker's and of the mean worker's time.
    slowest_ns: Vec<f64>,
    mean_ns: Vec<f64>,
}

/// What every kernel costs; unavailable if no sample fell into a pass.
///
/// `roofs.footprint` is filled in from the calls.
pub fn kernel_tree(trace: &RawTrace, placed: &Placed, roofs: Roofs<'_>, hints: &Hints) -> Known<KernelTree> {
    let mut tallies = vec![Tally::default(); placed.places.len()];
    for sample in &placed.samples {
        tallies[sample.place].add(sample.step, trace.samples[sample.sample].weight_ns);
    }
    let costs: Option<Vec<Cost>> = tallies.iter().map(|tally| tally.cost(&placed.whole)).collect();
    let Some(costs) = costs else {
        return Known::unavailable(
            format!("no sample of a worker fell into the {} captured passes", trace.steps.len()),
            "capture longer, or at a higher --frequency; `hourglass doctor` says which sampler works here",
        );
    };
    let workers = trace.workers() as u64;
    let clocked = clocked(trace, placed);
    let wall: u64 = trace.steps.iter().map(|step| step.end_ns - step.start_ns).sum();
    let passes = trace.steps.len() as u64;
    let clocked_share = |ns: u64| Reading::ratio(ns as f64, (wall * workers) as f64, Unit::Share, passes);
    let footprint = trace.calls.iter().filter(|call| limiter::is_cold(call)).map(|call| call.bytes_read).sum::<u64>();
    let roofs = Roofs { footprint, ..roofs };
    let mut rows = Vec::new();
    for (index, place) in placed.places.iter().enumerate() {
        let Place::Kernel { operator, kernel } = place else { continue };
        let own = trace.calls.iter().filter(|call| placed.of_call[call.call as usize] == index);
        let calls: Vec<_> = own.collect();
        let clock = &clocked[index];
        let (per_pass, per_pass_spread) = median_us(&clock.slowest_ns);
        let n = calls.len() as f64;
        let idle: Vec<f64> = clock
            .slowest_ns
            .iter()
            .zip(&clock.mean_ns)
            .filter(|(slowest, _)| **slowest > 0.0)
            .map(|(slowest, mean)| 1.0 - mean / slowest)
            .collect();
        let imbalance = match Samples::new(&idle) {
            Ok(samples) => Reading::measured(samples.median(), Unit::Share, idle.len() as u64),
            Err(_) => Known::unavailable("the kernel took no time that the clock shows", "use a larger shape"),
        };
        let bytes: u64 = calls.iter().map(|call| call.bytes_read + call.bytes_written).sum();
        let flops: u64 = calls.iter().map(|call| call.flops).sum();
        let measured = limiter::Measured {
            calls,
            per_pass: per_pass.clone(),
            imbalance: imbalance.clone(),
            share: costs[index].share.value,
        };
        let judged = limiter::judge(&(operator.clone(), kernel.clone()), &measured, roofs, hints);
        let rate = |amount: u64, unit| match &per_pass {
            Known::Is(time) => Reading::ratio(amount as f64 / 1e3, time.value(), unit, time.n()),
            Known::Unavailable(missing) => Known::Unavailable(missing.clone()),
        };
        rows.push(KernelRow {
            rank: 0,
            operator: operator.clone(),
            kernel: kernel.clone(),
            source: measured.calls[0].source.clone(),
            cost: costs[index],
            clocked_share: clocked_share(clock.ns),
            calls: measured.calls.len() as u64,
            dispatches: clock.slowest_ns.len() as u64 * measured.calls.len() as u64,
            per_dispatch: match &per_pass {
                Known::Is(time) => Reading::ratio(time.value(), n, Unit::Microseconds, time.n()),
                Known::Unavailable(missing) => Known::Unavailable(missing.clone()),
            },
            bandwidth: rate(bytes, Unit::GigabytesPerSecond),
            arithmetic_rate: rate(flops, Unit::GigaflopsPerSecond),
            per_pass,
            per_pass_spread,
            bytes_per_dispatch: bytes as f64 / n,
            flops_per_dispatch: flops as f64 / n,
            bandwidth_fraction: judged.bandwidth_fraction,
            arithmetic_fraction: judged.arithmetic_fraction,
            imbalance,
            limiter: judged.limiter,
        });
    }
    let shares: Vec<Share> = rows.iter().map(|row| row.cost.share).collect();
    for (row, rank) in rows.iter_mut().zip(ranks(&shares)) {
        row.rank = rank;
    }
    rows.sort_by(|a, b| b.cost.share.value.total_cmp(&a.cost.share.value));
    let (barrier, dispatch) = (placed.places.len() - 2, placed.places.len() - 1);
    let inside: u64 = clocked.iter().map(|clock| clock.ns).sum();
    let pause = |index: usize, ns| PauseRow { cost: costs[index], clocked_share: clocked_share(ns) };
    Known::Is(KernelTree {
        samples: placed.samples.len() as u64,
        weight_ns: placed.samples.iter().map(|placed| trace.samples[placed.sample].weight_ns).sum(),
        method: SHARE_METHOD.to_owned(),
        rows,
        barrier_wait: pause(barrier, clocked[barrier].ns),
        dispatch: pause(dispatch, (wall * workers).saturating_sub(inside)),
        uncounted: placed.uncounted,
        program_calls: trace.calls.len() as u64,
        workers,
        spans: trace.spans.iter().map(|row| row.spans.len() as u64).sum(),
        dropped: trace.spans.iter().map(|row| row.dropped).sum(),
    })
}

/// By place; dispatch stays empty: it is what is left.
fn clocked(trace: &RawTrace, placed: &Placed) -> Vec<Clocked> {
    let (steps, workers) = (trace.steps.len(), trace.workers() as f64);
    let empty = Clocked { ns: 0, slowest_ns: vec![0.0; steps], mean_ns: vec![0.0; steps] };
    let mut all = vec![empty; placed.places.len()];
    let barrier = placed.places.len() - 2;
    let mut by_step: Vec<Vec<&RawSpans>> = vec![Vec::new(); steps];
    for row in &trace.spans {
        by_step[row.step as usize].push(row);
    }
    for (step, rows) in by_step.iter().enumerate() {
        // (slowest, sum) of each call.
        let mut calls = vec![(0, 0); trace.calls.len()];
        for &[call, arrive, start, end] in rows.iter().flat_map(|row| &row.spans) {
            all[barrier].ns += start - arrive;
            all[placed.of_call[call as usize]].ns += end - start;
            let (slowest, sum): &mut (u64, u64) = &mut calls[call as usize];
            *slowest = (*slowest).max(end - start);
            *sum += end - start;
        }
        for (call, (slowest, sum)) in calls.iter().enumerate() {
            let clock = &mut all[placed.of_call[call]];
            clock.slowest_ns[step] += *slowest as f64;
            clock.mean_ns[step] += *sum as f64 / workers;
        }
    }
    all
}

/// Median and median absolute deviation in microseconds.
fn median_us(ns: &[f64]) -> (Reading, Reading) {
    let us: Vec<f64> = ns.iter().map(|ns| ns / 1e3).collect();
    let n = us.len() as u64;
    match Samples::new(&us) {
        Ok(samples) => (
            Reading::measured(samples.median(), Unit::Microseconds, n),
            Reading::measured(samples.median_absolute_deviation(), Unit::Microseconds, n),
        ),
        Err(error) => {
            let missing = || Known::unavailable(error.to_string(), "capture again");
            (missing(), missing())
        }
    }
}
