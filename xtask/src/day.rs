//! `cargo xtask day N`: the tests of a day of crates/lab/days, then whether the model calls what was written, then the clock
//! against the parent, for a short request. The clock is read only if all before it held.
//! Not here: the tests, which are in crates/lab/days.

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{cargo, finish};

const DAYS: [&str; 8] = ["1", "2", "3", "4", "5", "6", "7", "8"];

/// The request that is clocked: a short one, because a first solution, and the parents of the first days, take a second or more for a
/// token. The bench says how many more repeats would decide, and the last line how the whole request is clocked.
const CLOCK: [&str; 4] = ["--output-len", "17", "--warmup", "1"];

pub(crate) fn run(number: &str) -> Result<()> {
    if !DAYS.contains(&number) {
        bail!("day {number}: expected one of {}", DAYS.join(", "));
    }
    let checkpoint = format!("day-{number}");
    let tests = format!("tests::day_{number}");
    finish(
        &format!("the tests of day {number}"),
        cargo().args(["test", "--quiet", "--release", "-p", "hourglass-days", "--lib", "--"]).args([
            "--ignored",
            "--exact",
            &tests,
        ]),
    )?;
    let wiring = days(&["wiring", &checkpoint, "--solution", "lab", "--json"])
        .output()
        .context("the wiring: cargo cannot be started")?;
    if !wiring.status.success() {
        bail!("the wiring failed:\n{}", String::from_utf8_lossy(&wiring.stderr));
    }
    let wiring: Value = serde_json::from_slice(&wiring.stdout).context("the wiring: not JSON")?;
    let calls = calls_of(&wiring, &checkpoint).context("the wiring: not of the expected form")?;
    if calls == 0 {
        bail!("the model never calls a kernel named '{checkpoint}': does its `supports` refuse the model's shapes?");
    }
    println!("day {number}: the tests hold, and the model calls it at {calls} places; now the clock");
    let ladder =
        days(&["ladder", "--solution", "lab", "--json"]).output().context("the ladder: cargo cannot be started")?;
    let ladder: Value = serde_json::from_slice(&ladder.stdout).context("the ladder: not JSON")?;
    let parent = parent_of(&ladder, &checkpoint).context("the ladder: not of the expected form")?;
    let bench = ["bench", "--solution", "lab", "--variant", &parent, "--variant", &checkpoint];
    finish("the clock", days(&bench).args(CLOCK))?;
    println!(
        "\nThat was a short request. The usual one:\n  cargo run --release -p hourglass-days -- {}",
        bench.join(" ")
    );
    Ok(())
}

/// The days' program.
fn days(arguments: &[&str]) -> Command {
    let mut command = cargo();
    command.args(["run", "--quiet", "--release", "-p", "hourglass-days", "--"]).args(arguments);
    command
}

/// How many calls of the listed passes are bound to a kernel of this name, in any version.
fn calls_of(wiring: &Value, kernel: &str) -> Option<usize> {
    let named = |call: &Value| call["kernel"].as_str().is_some_and(|label| label.split('/').next() == Some(kernel));
    let passes = wiring["passes"].as_array()?;
    passes.iter().map(|pass| Some(pass["calls"].as_array()?.iter().filter(|call| named(call)).count())).sum()
}

fn parent_of(ladder: &Value, checkpoint: &str) -> Option<String> {
    let rung = ladder["checkpoints"].as_array()?.iter().find(|rung| rung["name"] == checkpoint)?;
    Some(rung["parent"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use serde_json::json;

    #[test]
    fn a_kernels_calls_are_counted_over_all_passes() {
        let calls =
            |kernels: &[&str]| json!({"calls": kernels.iter().map(|k| json!({"kernel": k})).collect::<Vec<_>>()});
        let wiring =
            json!({"passes": [calls(&["day-1/portable", "rows/avx2"]), calls(&["day-1/portable", "day-10/portable"])]});
        assert_eq!(calls_of(&wiring, "day-1"), Some(2));
        assert_eq!(calls_of(&wiring, "day-2"), Some(0));
        assert_eq!(calls_of(&json!({}), "day-2"), None);
    }

    #[test]
    fn only_the_eight_days_exist() {
        assert!(run("9").unwrap_err().to_string().contains("expected one of 1, 2, 3, 4, 5, 6, 7, 8"));
    }
}
