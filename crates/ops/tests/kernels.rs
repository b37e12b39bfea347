//! Every kernel of every operator against the operator's reference, on every case, with random operands; and against
//! everything else that a walk relies on, on random shapes. Not here: kernels that must fail (`wrong_kernels.rs`).

#![allow(clippy::unwrap_used, reason = "tests")]

use ops::testing::{Draw, Outcome, check, hold_on_random_shapes, same_bits};
use ops::{Features, Registry};

// Two tests, so that two cores share them.
#[test]
fn every_kernel_of_linear_agrees_with_its_reference_on_every_case() {
    every_kernel_agrees(|name| name == "linear");
}

#[test]
fn every_other_kernel_agrees_with_its_reference_on_every_case() {
    every_kernel_agrees(|name| name != "linear");
}

fn every_kernel_agrees(of: impl Fn(&str) -> bool) {
    let registry = Registry::standard();
    let mut failures = Vec::new();
    for operator in registry.operators().iter().filter(|operator| of(operator.name())) {
        for kernel in registry.kernels(*operator) {
            let (mut passed, mut worst, mut skipped) = (0, 0.0f64, false);
            // The reference against itself only shows that it does not depend on the number of workers.
            let rounds = if std::ptr::eq(kernel, operator.kernels()[0]) { 1 } else { 3 };
            'cases: for (index, case) in operator.cases().iter().enumerate() {
                for round in 0..rounds {
                    match check(*operator, kernel, case, index as u64 * 1000 + round) {
                        Ok(Outcome::Passed { nmse }) => (passed, worst) = (passed + 1, worst.max(nmse)),
                        Ok(Outcome::Unsupported(_)) => {}
                        Ok(Outcome::Skipped(missing)) => {
                            println!("skipped: {} {} needs {missing}", operator.name(), kernel.label());
                            skipped = true;
                            break 'cases;
                        }
                        Err(problem) => failures.push(problem),
                    }
                }
            }
            if passed == 0 && !skipped {
                failures.push(format!("{} {} takes none of the cases", operator.name(), kernel.label()));
            }
            println!("{:<18} {:<28} {passed:>4} checks, worst NMSE {worst:.1e}", operator.name(), kernel.label());
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_kernel_of_linear_holds_on_random_shapes() {
    every_kernel_holds(|name| name == "linear");
}

#[test]
fn every_other_kernel_holds_on_random_shapes() {
    every_kernel_holds(|name| name != "linear");
}

fn every_kernel_holds(of: impl Fn(&str) -> bool) {
    let registry = Registry::standard();
    let mut failures = Vec::new();
    for operator in registry.operators().iter().filter(|operator| of(operator.name())) {
        for kernel in registry.kernels(*operator) {
            match hold_on_random_shapes(*operator, kernel, 0) {
                Ok(0) if kernel.features.missing_from(Features::detect()).is_empty() => {
                    failures.push(format!("{} {} was tested on nothing", operator.name(), kernel.label()));
                }
                Ok(shapes) => println!("{:<18} {:<28} {shapes:>4} shapes", operator.name(), kernel.label()),
                Err(problem) => failures.push(problem),
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// What `matvec/avx512-vnni-pairs` says of itself: its sums are exact, so they are those of two byte planes.
#[test]
fn products_in_pairs_are_those_of_two_planes_bit_by_bit() {
    let registry = Registry::standard();
    let linear = *registry.operators().iter().find(|operator| operator.name() == "linear").unwrap();
    let named = |label: &str| registry.kernels(linear).find(|kernel| kernel.label() == label).unwrap();
    let kernels = [named("matvec/avx512-vnni"), named("matvec/avx512-vnni-pairs")];
    let drawn = (0..2000).map(|draw| linear.random_case(&mut Draw::new(draw, Draw::SIZE)));
    let (mut compared, mut why) = (0, String::new());
    for (seed, case) in linear.cases().into_iter().chain(drawn).enumerate() {
        match same_bits(linear, kernels, &case, seed as u64).unwrap() {
            Ok(same) => {
                assert!(same, "{}: different bits", case.label);
                compared += 1;
            }
            Err(reason) => why = reason,
        }
    }
    if kernels.iter().all(|kernel| kernel.features.missing_from(Features::detect()).is_empty()) {
        assert!(compared >= 10, "only {compared} cases have eight rows");
    } else {
        println!("skipped: {why}");
    }
}
