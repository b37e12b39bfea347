//! Times of one kind of pass, call by call and worker by worker; what follows from them for a delay, in simulated time.
//! Not here: taking them, and the clock of a request (`sensitivity.rs`).

use record::Samples;

/// Nanoseconds that each worker's share of each call took, over the passes of a traced request.
pub struct StepTimes {
    workers: usize,
    /// Whether the workers meet before each call.
    barriers: Vec<bool>,
    /// `(calls, workers)` row-major.
    shares: Vec<Vec<f64>>,
}

impl StepTimes {
    /// For `workers` workers and a program whose calls have these barriers before them.
    pub fn new(workers: usize, barriers: Vec<bool>) -> StepTimes {
        let shares = vec![Vec::new(); barriers.len() * workers];
        StepTimes { workers, barriers, shares }
    }

    pub fn workers(&self) -> usize {
        self.workers
    }

    pub fn calls(&self) -> usize {
        self.barriers.len()
    }

    /// Worker `worker`'s share of call `call` took so long in one pass.
    pub fn note(&mut self, call: usize, worker: usize, nanoseconds: f64) {
        self.shares[call * self.workers + worker].push(nanoseconds);
    }

    /// The median of one share; 0 if it was never seen. One pass in which a worker lost its processor does not count.
    fn share(&self, call: usize, worker: usize) -> f64 {
        Samples::new(&self.shares[call * self.workers + worker]).map_or(0.0, |samples| samples.median())
    }

    fn row(&self, call: usize) -> Vec<f64> {
        (0..self.workers).map(|worker| self.share(call, worker)).collect()
    }

    /// Nanoseconds of the chosen calls in one pass: of each its slowest worker's.
    pub fn own(&self, chosen: &[bool]) -> f64 {
        let calls = chosen.iter().enumerate().filter(|(_, chosen)| **chosen);
        calls.map(|(call, _)| self.row(call).into_iter().fold(0.0, f64::max)).sum()
    }

    /// What to hold each worker back at each call, `(calls, workers)` row-major, so that the chosen calls become `nanoseconds`
    /// longer: the slowest worker by all of it, the others in proportion to their own work.
    pub fn added(&self, chosen: &[bool], nanoseconds: u64) -> Vec<u64> {
        let mut added = vec![0; self.shares.len()];
        for call in (0..self.calls()).filter(|call| chosen.get(*call) == Some(&true)) {
            let row = self.row(call);
            let longest = row.iter().copied().fold(0.0, f64::max);
            for (worker, share) in row.into_iter().enumerate() {
                // A call that was too short to be timed is as long on every worker.
                let part = if longest > 0.0 { share / longest } else { 1.0 };
                added[call * self.workers + worker] = (part * nanoseconds as f64) as u64;
            }
        }
        added
    }

    /// When the slowest worker comes to the end of a pass, if nothing but barriers makes workers wait.
    fn pass(&self, added: &[u64]) -> f64 {
        let mut clocks = vec![0.0_f64; self.workers];
        for call in 0..self.calls() {
            if self.barriers[call] {
                let latest = clocks.iter().copied().fold(0.0, f64::max);
                clocks.fill(latest);
            }
            for (worker, clock) in clocks.iter_mut().enumerate() {
                *clock += self.share(call, worker) + added[call * self.workers + worker] as f64;
            }
        }
        clocks.into_iter().fold(0.0, f64::max)
    }
}

/// Request time per added time in simulated time: each pass with the calls that are chosen in it, made `nanoseconds` longer.
/// None if no call is chosen.
pub fn expected_slope(passes: &[(&StepTimes, &[bool])], nanoseconds: u64) -> Option<f64> {
    // Passes of one kind are alike: each kind is simulated once.
    let mut known: Vec<(*const StepTimes, f64, f64)> = Vec::new();
    let (mut longer, mut total) = (0.0, 0.0);
    for (times, chosen) in passes {
        let found = known.iter().find(|(of, ..)| std::ptr::eq(*of, *times)).copied();
        let (_, by, added) = found.unwrap_or_else(|| {
            let delays = times.added(chosen, nanoseconds);
            let nothing = vec![0; delays.len()];
            let added: u64 = delays.chunks(times.workers).map(|row| row.iter().copied().max().unwrap_or(0)).sum();
            let one = (std::ptr::from_ref(*times), times.pass(&delays) - times.pass(&nothing), added as f64);
            known.push(one);
            one
        });
        longer += by;
        total += added;
    }
    (total > 0.0).then(|| longer / total)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two workers; per call whether they meet before it, and both shares.
    fn times(calls: &[(bool, f64, f64)]) -> StepTimes {
        let mut times = StepTimes::new(2, calls.iter().map(|(barrier, ..)| *barrier).collect());
        for (call, (_, a, b)) in calls.iter().enumerate() {
            times.note(call, 0, *a);
            times.note(call, 1, *b);
        }
        times
    }

    fn slope(times: &StepTimes, call: usize, nanoseconds: u64) -> f64 {
        let chosen: Vec<bool> = (0..times.calls()).map(|other| other == call).collect();
        expected_slope(&[(times, &chosen)], nanoseconds).unwrap_or(f64::NAN)
    }

    #[test]
    fn a_call_that_all_wait_for_arrives_whole() {
        let times = times(&[(false, 100.0, 100.0), (true, 50.0, 50.0), (true, 100.0, 0.0)]);
        assert_eq!([0, 1, 2].map(|call| slope(&times, call, 40)), [1.0, 1.0, 1.0]);
    }

    /// The first call keeps worker 0 busy for 300, the second, which needs no barrier, worker 1 for 100: up to 200 more there
    /// are hidden, and of 400 only half arrive. Held back alike, worker 0 would have made all of it visible.
    #[test]
    fn a_call_beside_a_longer_one_is_hidden_as_far_as_the_slack_goes() {
        let times = times(&[(false, 300.0, 0.0), (false, 0.0, 100.0), (true, 10.0, 10.0)]);
        assert_eq!(slope(&times, 0, 200), 1.0);
        assert_eq!(slope(&times, 1, 200), 0.0);
        assert_eq!(slope(&times, 1, 400), 0.5);
        assert_eq!(times.added(&[false, true, false], 200), [0, 0, 0, 200, 0, 0]);
    }

    #[test]
    fn workers_are_held_back_in_proportion_to_their_work_and_odd_passes_do_not_count() {
        let mut times = times(&[(false, 100.0, 50.0)]);
        for _ in 0..2 {
            times.note(0, 0, 100.0);
            times.note(0, 1, 50.0);
        }
        times.note(0, 1, 1e9);
        assert_eq!(times.added(&[true], 30), [30, 15]);
        assert_eq!(times.own(&[true]), 100.0);
        assert_eq!(times.own(&[false]), 0.0);
        assert_eq!(expected_slope(&[(&times, &[false])], 30), None);
    }
}
