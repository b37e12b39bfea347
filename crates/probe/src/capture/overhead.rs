//! What capturing costs: blocks of captured passes against blocks of plain ones, in alternation.
//! Not here: running them.

use super::stretch::{self, Limit, Setup};
use model::Prepared;
use record::{Known, Reading, Samples, Unit};

/// A block is about so long, so that it has samples in it.
const BLOCK_S: f64 = 0.1;
const MOST_PASSES: usize = 2_000;

/// A captured pass over a plain one, medians, less 1; why it was not measured. A round is four blocks: plain, captured, captured, plain, so that a drift
/// weighs on both sides alike.
pub(super) fn measure(
    step: &mut Prepared<'_, '_>,
    setup: &Setup<'_>,
    rounds: usize,
    progress: &dyn Fn(usize),
) -> Known<Reading> {
    if rounds == 0 {
        return Known::unavailable("not measured", "leave out `--overhead-rounds 0`");
    }
    let first = stretch::plain(step, setup, 3);
    let fastest = first.into_iter().fold(f64::INFINITY, f64::min);
    let passes = ((BLOCK_S / fastest).ceil() as usize).clamp(3, MOST_PASSES);
    let mut seconds = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        progress(round);
        for captured in [false, true, true, false] {
            if captured {
                let block = stretch::captured(step, setup, Limit { steps: passes, time: None });
                seconds[1].extend(block.steps.iter().map(|step| (step.end_ns - step.start_ns) as f64 / 1e9));
            } else {
                seconds[0].extend(stretch::plain(step, setup, passes));
            }
            if setup.is_cancelled() {
                return Known::unavailable("interrupted before it was measured", "capture again");
            }
        }
    }
    share(&seconds[0], &seconds[1])
}

fn share(plain: &[f64], captured: &[f64]) -> Known<Reading> {
    match (Samples::new(plain), Samples::new(captured)) {
        (Ok(plain), Ok(captured)) => {
            let n = (plain.count() + captured.count()) as u64;
            Known::Is(Reading::measured(captured.median() / plain.median() - 1.0, Unit::Share, n))
        }
        (Err(error), _) | (_, Err(error)) => Known::unavailable(error.to_string(), "capture again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_cost_is_its_share() {
        let found = share(&[1.0, 2.0, 90.0], &[2.0, 2.1, 2.2]);
        assert!(found.known().and_then(Reading::value).is_some_and(|share| (share - 0.05).abs() < 1e-12), "{found:?}");
        assert!(share(&[], &[1.0]).known().is_none());
    }
}
