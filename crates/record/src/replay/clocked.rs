//! The times of a clocked request, out of whichever record holds them, for a replay to be held against.
//! Not here: the clock (`request.rs`), and what is made of the times (`compare.rs`).

use crate::bench::{BenchRecord, Sample};
use crate::find::FindRecord;
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::request::RequestClock;
use crate::samples::Samples;
use crate::workload::Workload;

/// Times of one arm's requests, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct ClockedRequest {
    /// What to call it, e.g. a file name.
    pub name: String,
    pub workload: Workload,
    pub prefill: Reading,
    /// All steps together.
    pub decode: Reading,
    pub whole_request: Reading,
}

impl ClockedRequest {
    /// Medians of a `find` record's clock, if it was of `checkpoint`.
    ///
    /// # Errors
    /// A sentence that says what the record has instead.
    pub fn of_find(name: &str, record: &FindRecord, checkpoint: &str) -> Result<ClockedRequest, String> {
        let found = &record.protocol.checkpoint;
        if found != checkpoint {
            return Err(format!("its request ran at checkpoint '{found}', the replay at '{checkpoint}'"));
        }
        match &record.request {
            Known::Is(clock) => Ok(ClockedRequest {
                name: name.to_owned(),
                workload: record.workload.clone(),
                prefill: clock.prefill.clone(),
                decode: clock.decode.clone(),
                whole_request: clock.whole_request.clone(),
            }),
            Known::Unavailable(missing) => {
                Err(format!("it holds no clocked request: {}; {}", missing.unavailable, missing.how_to_get))
            }
        }
    }

    /// Medians over the counting samples of a `bench` record's arm at `checkpoint`.
    ///
    /// # Errors
    /// A sentence: no such arm, or one whose time does not count.
    pub fn of_bench(name: &str, record: &BenchRecord, checkpoint: &str) -> Result<ClockedRequest, String> {
        let Some(index) = record.arm_named(checkpoint) else {
            let known: Vec<&str> = record.arms.iter().map(|arm| arm.name.as_str()).collect();
            return Err(format!("it has no arm '{checkpoint}'; its arms are {}", known.join(", ")));
        };
        let arm = &record.arms[index];
        if !arm.counts {
            return Err(format!(
                "the time of its arm '{checkpoint}' does not count: {}",
                arm.reason.as_deref().unwrap_or("no reason given")
            ));
        }
        let clocks: Vec<&RequestClock> =
            record.samples_of(index).filter_map(Sample::counting).map(|measured| &measured.clock).collect();
        let median = |pick: fn(&RequestClock) -> &Reading| {
            let values: Vec<f64> = clocks.iter().filter_map(|clock| pick(clock).value()).collect();
            match Samples::new(&values) {
                Ok(samples) => Reading::measured(samples.median(), Unit::Seconds, samples.count() as u64),
                Err(_) => Known::unavailable("no sample of this arm has it", "clock complete requests"),
            }
        };
        Ok(ClockedRequest {
            name: name.to_owned(),
            workload: record.workload.clone(),
            prefill: median(|clock| &clock.prefill),
            decode: median(|clock| &clock.decode),
            whole_request: median(|clock| &clock.whole_request),
        })
    }
}
