//! The ladder, to be built by yourself: eight days, one file each, with signatures, shapes and what must hold, and nothing inside.
//! Days 1 to 5 are the chapter's route, 6 to 8 the fast rungs beyond it.
//! `cargo xtask day N` runs the tests of day N, proves that the model calls what you wrote, and clocks it against its parent.
//! Not here: our own solutions, which are the rungs of the ladder (`hourglass ladder` says where each is).
//!
//! Each day's checkpoint is made from our rung and prefers your kernel, so that the days can be written in any order. What your
//! kernels are given and must keep to is in docs/lab.md; what is tested of them too.

pub mod day1;
pub mod day2;
pub mod day3;
pub mod day4;
pub mod day5;
pub mod day6;
pub mod day7;
pub mod day8;

use ops::*;

/// A day's work.
pub struct Day {
    /// Its file.
    pub file: &'static str,
    pub kernels: &'static [&'static Kernel],
    /// The rung that calls them, `day-N`.
    pub checkpoint: &'static Checkpoint,
}

/// The days, from the first.
pub static DAYS: [Day; 8] = [
    Day { file: "day1.rs", kernels: day1::KERNELS, checkpoint: &day1::CHECKPOINT },
    Day { file: "day2.rs", kernels: day2::KERNELS, checkpoint: &day2::CHECKPOINT },
    Day { file: "day3.rs", kernels: day3::KERNELS, checkpoint: &day3::CHECKPOINT },
    Day { file: "day4.rs", kernels: day4::KERNELS, checkpoint: &day4::CHECKPOINT },
    Day { file: "day5.rs", kernels: day5::KERNELS, checkpoint: &day5::CHECKPOINT },
    Day { file: "day6.rs", kernels: day6::KERNELS, checkpoint: &day6::CHECKPOINT },
    Day { file: "day7.rs", kernels: day7::KERNELS, checkpoint: &day7::CHECKPOINT },
    Day { file: "day8.rs", kernels: day8::KERNELS, checkpoint: &day8::CHECKPOINT },
];

/// The engine's kernels and checkpoints, and the days'. A day's kernel runs only where the day's checkpoint names it.
pub fn registry() -> Registry {
    let kernels: Vec<_> = DAYS.iter().flat_map(|day| day.kernels.iter().copied()).collect();
    let checkpoints: Vec<_> = DAYS.iter().map(|day| day.checkpoint).collect();
    Registry::offering(&kernels, &checkpoints)
}

#[cfg(test)]
#[path = "../solutions/mod.rs"]
mod solutions;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::panic::catch_unwind;

    /// What `cargo xtask day N` runs.
    fn holds(day: &Day, kernels: &[&'static Kernel]) {
        testing::every_kernel_holds(kernels);
        model::testing::agrees_with_its_parent(&Registry::offering(kernels, &[day.checkpoint]), day.checkpoint.name);
    }

    #[test]
    #[ignore = "fails until day 1 is written: cargo xtask day 1"]
    fn day_1() {
        holds(&DAYS[0], DAYS[0].kernels);
    }

    #[test]
    #[ignore = "fails until day 2 is written: cargo xtask day 2"]
    fn day_2() {
        holds(&DAYS[1], DAYS[1].kernels);
    }

    #[test]
    #[ignore = "fails until day 3 is written: cargo xtask day 3"]
    fn day_3() {
        holds(&DAYS[2], DAYS[2].kernels);
    }

    #[test]
    #[ignore = "fails until day 4 is written: cargo xtask day 4"]
    fn day_4() {
        holds(&DAYS[3], DAYS[3].kernels);
    }

    #[test]
    #[ignore = "fails until day 5 is written: cargo xtask day 5"]
    fn day_5() {
        holds(&DAYS[4], DAYS[4].kernels);
    }

    #[test]
    #[ignore = "fails until day 6 is written: cargo xtask day 6"]
    fn day_6() {
        holds(&DAYS[5], DAYS[5].kernels);
    }

    #[test]
    #[ignore = "fails until day 7 is written: cargo xtask day 7"]
    fn day_7() {
        holds(&DAYS[6], DAYS[6].kernels);
    }

    #[test]
    #[ignore = "fails until day 8 is written: cargo xtask day 8"]
    fn day_8() {
        holds(&DAYS[7], DAYS[7].kernels);
    }

    /// A starter's tests fail, and say which file is to be written. A day that somebody has written is left to `xtask day`.
    #[test]
    fn the_starters_fail() {
        for day in &DAYS {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(day.file);
            let text = std::fs::read_to_string(path).unwrap();
            if !text.contains("unimplemented!(") {
                println!("skipped: {} is written here", day.file);
                continue;
            }
            let panic = catch_unwind(|| holds(day, day.kernels)).unwrap_err();
            let message = panic.downcast_ref::<String>().unwrap();
            assert!(message.contains("is to be written in crates/lab/days/src/day"), "{}: {message}", day.file);
            assert!(message.starts_with(&format!("{} failures:", day.kernels.len())), "{}: {message}", day.file);
        }
    }

    #[test]
    fn the_solutions_pass() {
        for (day, solution) in DAYS.iter().zip(solutions::ALL) {
            let operators = |kernels: &[&Kernel]| kernels.iter().map(|kernel| kernel.operator).collect::<Vec<_>>();
            assert_eq!(operators(solution), operators(day.kernels), "{}", day.file);
            holds(day, solution);
        }
    }

    /// What the starters leave unwritten never runs at another checkpoint.
    #[test]
    fn the_days_kernels_run_at_their_own_checkpoints_alone() {
        for checkpoint in Registry::standard().checkpoints().filter(|checkpoint| checkpoint.parent.is_some()) {
            model::testing::agrees_with_its_parent(&registry(), checkpoint.name);
        }
    }
}
