//! Holds every kernel of the GPU to its operator's reference on the CPU: all cases of the registry, and random shapes.
//! Run on a machine with a GPU: `check_kernels [OPERATOR]`. Exit 1 if anything differs.

use ops::testing::{Draw, Outcome, check_on};
use ops::{Device, Registry};
use std::process::ExitCode;
use std::sync::Arc;

/// Random shapes tried per kernel.
const DRAWS: u64 = 24;

fn main() -> ExitCode {
    let only = std::env::args().nth(1);
    let device: Arc<dyn Device> = match ops_cuda::open(0) {
        Ok(gpu) => Arc::new(gpu),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    println!("{}, driver {}", device.label(), device.driver());
    let mut failed = 0;
    for kernel in device.kernels() {
        if only.as_deref().is_some_and(|only| only != kernel.operator) {
            continue;
        }
        let registry = Registry::standard();
        let Some(operator) = registry.operators().iter().find(|operator| operator.name() == kernel.operator) else {
            println!("FAIL {}: no such operator", kernel.operator);
            failed += 1;
            continue;
        };
        let random = (0..DRAWS).map(|seed| operator.random_case(&mut Draw::new(seed, Draw::SIZE)));
        let (mut passed, mut refused, mut worst, mut problems) = (0, 0, 0.0f64, Vec::new());
        for (seed, case) in operator.cases().into_iter().chain(random).enumerate() {
            match check_on(&device, *operator, kernel, &case, seed as u64) {
                Ok(Outcome::Passed { nmse }) => (passed, worst) = (passed + 1, worst.max(nmse)),
                Ok(_) => refused += 1,
                Err(problem) => problems.push(format!("     {}: {problem}", case.label)),
            }
        }
        let mark = if problems.is_empty() && passed > 0 { "ok  " } else { "FAIL" };
        let label = kernel.label();
        println!(
            "{mark} {:<18} {label:<22} {passed} passed, {refused} refused, worst NMSE {worst:.1e}",
            kernel.operator
        );
        failed += usize::from(mark == "FAIL");
        problems.iter().take(4).for_each(|problem| println!("{problem}"));
        if problems.len() > 4 {
            println!("     and {} more", problems.len() - 4);
        }
    }
    println!("{failed} kernels failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
