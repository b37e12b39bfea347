//! Kernels that are wrong on purpose: each mistake is found by what every kernel inherits, and the message says what it is.
//! Not here: right kernels (`kernels.rs`). Unsafe code, as mistakes with addresses need it.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(unsafe_code, reason = "what these kernels do wrong is done through addresses")]

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ops::testing::{every_kernel_holds, hold_on_random_shapes};
use ops::*;

const fn wrong(name: &'static str, run: KernelFn) -> Kernel {
    kernel! {
        operator: "add", name: name, isa: "portable", features: &[], supports: bfloat16,
        nmse: 1.6e-5, because: "one bfloat16 rounding", run: run,
    }
}

fn bfloat16(shape: &CallShape) -> Result<(), String> {
    let ok = shape.inputs.iter().chain(&shape.outputs).all(|view| view.dtype == DType::BF16);
    if ok { Ok(()) } else { Err("bfloat16 only".to_owned()) }
}

/// The sum of these elements of all rows seen as one.
fn add(call: &Invocation<'_>, elements: std::ops::Range<usize>) {
    let (a, b, y) = (call.input(0), call.input(1), call.output(0));
    for at in elements {
        let (row, col) = (at / y.width, at % y.width);
        y.set(row, col, a.get(row, col) + b.get(row, col));
    }
}

fn all(call: &Invocation<'_>) -> usize {
    call.output(0).rows * call.output(0).width
}

/// What is wrong with a kernel, as [`hold_on_random_shapes`] tells it.
fn problem(kernel: &'static Kernel) -> String {
    let operator = Registry::standard().operators().iter().find(|o| o.name() == kernel.operator).unwrap();
    let problem = hold_on_random_shapes(*operator, kernel, 0).expect_err("it is wrong");
    println!("{problem}");
    problem
}

/// Reads a whole vector of eight at the last element, and throws away what it read: no result shows it.
static READS_PAST_THE_END: Kernel = wrong("reads-past-the-end", |call| {
    let part = call.share(all(call));
    add(call, part.clone());
    if part.end == all(call) {
        let last = call.input(0).as_ptr().cast::<u16>().wrapping_add(part.end - 1);
        // SAFETY: there is none; that is the mistake. The tests' fences make it harmless.
        std::hint::black_box(unsafe { last.cast::<[u16; 8]>().read_volatile() });
    }
});

/// Leaves out what is no whole vector of eight.
static WRONG_TAIL: Kernel = wrong("wrong-tail", |call| {
    let part = call.share(all(call));
    add(call, part.start..part.start + part.len() / 8 * 8);
});

/// Shares rounded up to eight elements reach into the next worker's: both write them, the same values.
static OVERLAPPING_SHARES: Kernel = wrong("overlapping-shares", |call| {
    let part = call.share(all(call));
    add(call, part.start..part.end.next_multiple_of(8).min(all(call)));
});

/// Looks whether the worker before it is done, and does something else if not.
static READS_OTHERS_RESULTS: Kernel = wrong("reads-others", |call| {
    let part = call.share(all(call));
    add(call, part.clone());
    let y = call.output(0);
    if part.start > 0 && !part.is_empty() {
        let before = (part.start - 1) / y.width;
        let seen = y.get(before, (part.start - 1) % y.width);
        if seen.is_nan() {
            y.set(part.start / y.width, part.start % y.width, 0.0);
        }
    }
});

/// Writes one row more than there is.
static WRITES_PAST_THE_END: Kernel = wrong("writes-past-the-end", |call| {
    add(call, call.share(all(call)));
    let end = call.output(0).as_mut_ptr().cast::<u16>().wrapping_add(all(call));
    // SAFETY: there is none, as above.
    unsafe { end.write_volatile(0) };
});

/// Works in the input's memory.
static WRITES_ITS_INPUT: Kernel = wrong("writes-its-input", |call| {
    add(call, call.share(all(call)));
    // SAFETY: there is none, as above.
    unsafe { call.input(1).as_ptr().cast_mut().write_volatile(0) };
});

/// Another result each time.
static CHANGES_ITS_MIND: Kernel = wrong("changes-its-mind", |call| {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    add(call, call.share(all(call)));
    if call.worker == 0 {
        let flip = 1.0 + (CALLS.fetch_add(1, Relaxed) % 2) as f32 / 128.0;
        call.output(0).set(0, 0, (call.input(0).get(0, 0) + call.input(1).get(0, 0)) * flip);
    }
});

/// Gives up on an odd width.
static PANICS: Kernel = wrong("panics", |call| {
    assert!(call.output(0).width % 2 == 0, "odd widths are beyond me");
    add(call, call.share(all(call)));
});

#[test]
fn a_read_past_the_end_is_found_though_no_result_shows_it() {
    let problem = problem(&READS_PAST_THE_END);
    assert!(problem.contains("it reads past the end of input 0: "), "{problem}");
}

#[test]
fn a_tail_that_is_left_out_is_found_and_shown_on_a_small_shape() {
    let problem = problem(&WRONG_TAIL);
    assert!(problem.contains("differs from the reference") && problem.contains("NaN"), "{problem}");
    assert!((problem.contains("on 1x1 ") || problem.contains("on 1x2 ")) && problem.contains("smallest"), "{problem}");
}

#[test]
fn workers_that_write_the_same_element_are_found_though_they_agree_on_its_value() {
    let problem = problem(&OVERLAPPING_SHARES);
    assert!(problem.contains("workers race: element") && problem.contains("is first written by worker"), "{problem}");
}

#[test]
fn a_share_that_looks_at_another_ones_is_found() {
    let problem = problem(&READS_OTHERS_RESULTS);
    assert!(problem.contains("a share depends on another worker's"), "{problem}");
}

#[test]
fn writes_where_nothing_is_to_be_written_are_found() {
    let past = problem(&WRITES_PAST_THE_END);
    assert!(past.contains("it writes past the end of output 0: 0 bytes after it"), "{past}");
    let input = problem(&WRITES_ITS_INPUT);
    assert!(input.contains("it writes input 1, which is an input: byte 0"), "{input}");
}

#[test]
fn a_result_that_changes_from_call_to_call_is_found() {
    let problem = problem(&CHANGES_ITS_MIND);
    assert!(problem.contains("element 0 of output 0 differs"), "{problem}");
}

#[test]
fn a_panic_is_a_failure_with_its_shape() {
    let problem = problem(&PANICS);
    assert!(
        problem.contains("worker 0 panicked: odd widths are beyond me") && problem.contains("on 1x1 "),
        "{problem}"
    );
}

#[test]
fn a_list_of_kernels_fails_with_the_place_of_each() {
    let panic = std::panic::catch_unwind(|| every_kernel_holds(&[&WRONG_TAIL, &PANICS])).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.starts_with("2 failures:") && text.contains("wrong_kernels.rs:"), "{text}");
    static UNKNOWN: Kernel = Kernel { operator: "rmsnorm", ..wrong("mine", |_| {}) };
    let panic = std::panic::catch_unwind(|| every_kernel_holds(&[&UNKNOWN])).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("no operator is called 'rmsnorm'; known ones are") && text.contains("rms_norm"), "{text}");
}
