//! Which arm runs when: orders in which slow drift and the place in the order fall on every arm alike.
//! Not here: running anything, and what is done when a sample is lost (`paired.rs`).
//!
//! A *row* holds every arm once; samples of one row are neighbours in time, and arms are compared within it. Each row is
//! followed by its mirror image, so that a linear drift over the two cancels: two arms run A B B A. Rows are those of a
//! Williams square (E. J. Williams, 1949): over the whole square each arm stands once in each place and follows each other
//! arm equally often. The next square mirrors its pairs the other way round (A B B A, then B A A B), because with A B B A
//! alone B always holds places 2 and 3.

/// The planned order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Arms by index, in the order of execution; one row per repeat.
    pub rows: Vec<Vec<usize>>,
    pub balance: Balance,
    /// The fewest repeats whose multiples balance every place.
    pub complete_at: usize,
}

/// What the order is balanced against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// One arm: nothing is compared.
    Single,
    /// Every row has its mirror image: a linear drift cancels, other effects of the place do not.
    Mirrored,
    /// Besides, every arm stands equally often in every place.
    EveryPlace,
}

/// Why there is no such order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    #[error("there are no arms to put in order; give at least one")]
    NoArms,
    #[error("repeats is 0; every arm needs at least one sample, and a comparison at least two")]
    NoRepeats,
    #[error(
        "repeats is {repeats}, but {arms} arms need an even number: each order of the arms is followed by its mirror \
         image, so that a machine that slowly warms up or cools down favours none of them. Use {} (a multiple of \
         {complete_at} puts every arm in every place equally often)", neighbours(*.repeats)
    )]
    Odd { arms: usize, repeats: usize, complete_at: usize },
    #[error("{arms} arms with {repeats} repeats are more than {MAX_SAMPLES} processes; use fewer")]
    TooMany { arms: usize, repeats: usize },
}

/// The most samples that an order is made for.
pub const MAX_SAMPLES: usize = 100_000;

fn neighbours(odd: usize) -> String {
    if odd == 1 { "2".to_owned() } else { format!("{} or {}", odd - 1, odd.saturating_add(1)) }
}

/// An order for `arms` arms with `repeats` samples each; arm 0 is the control by convention only.
///
/// # Errors
/// No arms or repeats, an odd number of repeats for more than one arm, or more than [`MAX_SAMPLES`] samples.
pub fn schedule(arms: usize, repeats: usize) -> Result<Schedule, OrderError> {
    if arms == 0 {
        return Err(OrderError::NoArms);
    }
    if repeats == 0 {
        return Err(OrderError::NoRepeats);
    }
    if arms.checked_mul(repeats).is_none_or(|samples| samples > MAX_SAMPLES) {
        return Err(OrderError::TooMany { arms, repeats });
    }
    if arms == 1 {
        return Ok(Schedule { rows: vec![vec![0]; repeats], balance: Balance::Single, complete_at: 1 });
    }
    // Two arms: four, so that both A B B A and B A A B occur. An odd square is complete only with its mirror image.
    let complete_at = match arms {
        2 => 4,
        even if even.is_multiple_of(2) => even,
        odd => 2 * odd,
    };
    if repeats % 2 == 1 {
        return Err(OrderError::Odd { arms, repeats, complete_at });
    }
    let square = mirrored_pairs(arms);
    let mut rows = Vec::with_capacity(repeats);
    for pair in 0..repeats / 2 {
        let [first, second] = &square[pair % square.len()];
        let turned = !(pair / square.len()).is_multiple_of(2);
        rows.extend(if turned { [second.clone(), first.clone()] } else { [first.clone(), second.clone()] });
    }
    let balance = if repeats.is_multiple_of(complete_at) { Balance::EveryPlace } else { Balance::Mirrored };
    Ok(Schedule { rows, balance, complete_at })
}

/// The rows of a Williams square, each with its mirror image.
fn mirrored_pairs(arms: usize) -> Vec<[Vec<usize>; 2]> {
    // 0, 1, n-1, 2, n-2, ...: neighbours differ by every amount once, so its shifts have every neighbourhood.
    let zigzag: Vec<usize> = (0..arms)
        .map(|place| if !place.is_multiple_of(2) { place.div_ceil(2) } else { (arms - place / 2) % arms })
        .collect();
    // For an even number of arms, mirror images of shifts are shifts again: half of them make the square.
    let shifts = if arms.is_multiple_of(2) { arms / 2 } else { arms };
    (0..shifts)
        .map(|shift| {
            let row: Vec<usize> = zigzag.iter().map(|arm| (arm + shift) % arms).collect();
            let mirror = row.iter().rev().copied().collect();
            [row, mirror]
        })
        .collect()
}

impl Schedule {
    /// `(row, arm)` of every process in the order of execution.
    pub fn slots(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.rows.iter().enumerate().flat_map(|(row, arms)| arms.iter().map(move |arm| (row, *arm)))
    }

    /// What the order does and does not cancel, for records and tables.
    pub fn words(&self) -> String {
        match self.balance {
            Balance::Single => "one arm: nothing is compared".to_owned(),
            Balance::Mirrored => format!(
                "each order is followed by its mirror image: linear drift cancels; places are not balanced (a multiple \
                 of {} repeats balances them)",
                self.complete_at
            ),
            Balance::EveryPlace => {
                "each order is followed by its mirror image, and every arm stands in every place equally often"
                    .to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::collections::BTreeMap;

    fn letters(schedule: &Schedule) -> String {
        schedule.slots().map(|(_, arm)| char::from(b'A' + arm as u8)).collect()
    }

    #[test]
    fn two_arms_run_abba_then_baab() {
        assert_eq!(letters(&schedule(2, 4).unwrap()), "ABBABAAB");
        assert_eq!(letters(&schedule(2, 8).unwrap()), "ABBABAABABBABAAB");
        assert_eq!(schedule(2, 4).unwrap().balance, Balance::EveryPlace);
        assert_eq!(schedule(2, 6).unwrap().balance, Balance::Mirrored);
        assert_eq!(letters(&schedule(1, 3).unwrap()), "AAA");
    }

    #[test]
    fn rows_hold_every_arm_once_and_are_followed_by_their_mirror_image() {
        for arms in 2..=13 {
            for repeats in (2..=30).step_by(2) {
                let schedule = schedule(arms, repeats).unwrap();
                assert_eq!(schedule.rows.len(), repeats);
                for pair in schedule.rows.chunks(2) {
                    let mut sorted = pair[0].clone();
                    sorted.sort_unstable();
                    assert_eq!(sorted, (0..arms).collect::<Vec<_>>());
                    assert!(pair[0].iter().eq(pair[1].iter().rev()), "{arms} arms: {pair:?}");
                }
            }
        }
    }

    #[test]
    fn a_complete_order_has_every_arm_in_every_place_and_every_neighbourhood_equally_often() {
        for arms in 2..=13 {
            let complete_at = schedule(arms, 2).unwrap().complete_at;
            let schedule = schedule(arms, complete_at).unwrap();
            assert_eq!(schedule.balance, Balance::EveryPlace);
            let mut places: BTreeMap<(usize, usize), usize> = BTreeMap::new();
            let mut neighbours: BTreeMap<(usize, usize), usize> = BTreeMap::new();
            for row in &schedule.rows {
                for (place, arm) in row.iter().enumerate() {
                    *places.entry((place, *arm)).or_default() += 1;
                }
                for pair in row.windows(2) {
                    *neighbours.entry((pair[0], pair[1])).or_default() += 1;
                }
            }
            assert_eq!(places.len(), arms * arms, "{arms} arms");
            assert!(places.values().all(|count| *count == complete_at / arms), "{arms} arms: {places:?}");
            assert_eq!(neighbours.len(), arms * (arms - 1), "{arms} arms");
            let first = neighbours.values().next().unwrap();
            assert!(neighbours.values().all(|count| count == first), "{arms} arms: {neighbours:?}");
        }
    }

    /// The trap of A B B A alone: B holds places 2 and 3 of every four.
    #[test]
    fn two_arms_share_all_four_places_of_a_block() {
        let order = schedule(2, 8).unwrap();
        let mut counts = [[0usize; 2]; 4];
        for (index, (_, arm)) in order.slots().enumerate() {
            counts[index % 4][arm] += 1;
        }
        assert_eq!(counts, [[2, 2]; 4]);
    }

    #[test]
    fn a_linear_drift_favours_no_arm() {
        for (arms, repeats) in [(2, 2), (2, 6), (3, 4), (5, 2), (11, 4)] {
            let mut sums = vec![0usize; arms];
            for (time, (_, arm)) in schedule(arms, repeats).unwrap().slots().enumerate() {
                sums[arm] += time;
            }
            assert!(sums.iter().all(|sum| *sum == sums[0]), "{arms} arms, {repeats} repeats: {sums:?}");
        }
    }

    #[test]
    fn an_odd_number_is_refused_with_what_to_use() {
        let message = schedule(3, 5).unwrap_err().to_string();
        for part in ["repeats is 5", "3 arms", "even", "4 or 6", "multiple of 6"] {
            assert!(message.contains(part), "{message}");
        }
        assert!(schedule(2, 1).unwrap_err().to_string().contains("Use 2 "));
        assert_eq!(schedule(0, 2), Err(OrderError::NoArms));
        assert_eq!(schedule(2, 0), Err(OrderError::NoRepeats));
        assert!(matches!(schedule(usize::MAX, 2), Err(OrderError::TooMany { .. })));
    }
}
