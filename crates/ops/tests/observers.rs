//! Walking: which calls run under each observer, what is noted around them, and what a kernel's panic does.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Any, NOTHING, ROWS, bound, builder, run_once};
use ops::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How often calls ran, eight bits per call number (`heads`), all workers together.
static RAN: AtomicU64 = AtomicU64::new(0);
static COUNTING_KERNEL: Kernel = kernel! {
    operator: "any", name: "counting", isa: "portable", features: &[], nmse: 0.0, because: "counts",
    run: |i| {
        RAN.fetch_add(1 << (8 * i.attributes().heads), SeqCst);
    },
};
const COUNTING: Any = Any { group: Group::Pointwise, kernels: &[&COUNTING_KERNEL], cache: CacheUse::None };
static POINTWISE: Any = COUNTING;
static ATTENTION: Any = Any { group: Group::Attention, ..COUNTING };
static HEAD: Any = Any { group: Group::Head, ..COUNTING };

/// Calls 0 to 4 (pointwise, attention, pointwise, head, attention), each reading the one before.
fn chain(operators: [&'static Any; 5]) -> Program {
    let mut b = builder();
    let mut last: Option<View> = None;
    for (heads, operator) in operators.into_iter().enumerate() {
        let next = b.buffer("buffer", ROWS, 64, DType::F32);
        let inputs: Vec<View> = last.into_iter().collect();
        b.call(operator, "call", &inputs, &[], &[next], Attributes { heads, ..Attributes::default() });
        last = Some(next);
    }
    b.finish(last.unwrap())
}

#[test]
fn only_runs_exactly_the_calls_of_its_group() {
    let workers = Workers::new(3, false).unwrap();
    let mut bound = bound(chain([&POINTWISE, &ATTENTION, &POINTWISE, &HEAD, &ATTENTION]), 3);
    for (group, want) in [
        (Some(Group::Attention), [0u8, 3, 0, 0, 3]),
        (Some(Group::Pointwise), [3, 0, 3, 0, 0]),
        (Some(Group::Head), [0, 0, 0, 3, 0]),
        (Some(Group::Embedding), [0; 5]),
        (None, [0; 5]),
    ] {
        RAN.store(0, SeqCst);
        bound.reset_dispatches();
        run_once(&mut bound, &workers, &Only(group));
        assert_eq!(RAN.load(SeqCst).to_le_bytes()[..5], want, "{group:?}, three workers each");
        let dispatched: Vec<u8> = bound.dispatches().map(|(_, count)| 3 * count as u8).collect();
        assert_eq!(dispatched, want, "{group:?}");
    }
    RAN.store(0, SeqCst);
    run_once(&mut bound, &workers, &Plain);
    assert_eq!(RAN.load(SeqCst).to_le_bytes()[..5], [3; 5]);
    // Two at once: one picks, the other notes what was picked, in either order.
    let mut traced = Traced::new(3, 4);
    run_once(&mut bound, &workers, &Both(&Only(Some(Group::Attention)), &traced));
    run_once(&mut bound, &workers, &Both(&traced, &Only(Some(Group::Head))));
    let (spans, dropped) = traced.spans(2);
    assert_eq!((spans.iter().map(|span| span.call).collect::<Vec<_>>(), dropped), (vec![1, 4, 3], 0));
}

#[test]
fn a_walk_that_is_given_up_computes_nothing_more_and_ends() {
    static STOP: AtomicBool = AtomicBool::new(false);
    static STOPS_KERNEL: Kernel = kernel! {
        operator: "any", name: "stops", isa: "portable", features: &[], nmse: 0.0, because: "raises the flag",
        run: |_| STOP.store(true, SeqCst),
    };
    static STOPS: Any = Any { group: Group::Head, kernels: &[&STOPS_KERNEL], cache: CacheUse::None };
    for count in 1..=5 {
        let workers = Workers::new(count, false).unwrap();
        let mut bound = bound(chain([&NOTHING, &STOPS, &NOTHING, &NOTHING, &NOTHING]), count);
        STOP.store(false, SeqCst);
        run_once(&mut bound, &workers, &Until(&STOP));
        let dispatched: Vec<u64> = bound.dispatches().map(|(_, count)| count).collect();
        // Each call waits for the one before, so worker 0 has seen the flag by the third at the latest.
        assert_eq!((dispatched[0], &dispatched[2..]), (1, &[0, 0, 0][..]), "{count} workers: {dispatched:?}");
    }
}

#[test]
fn delay_lengthens_the_walk_by_at_least_what_it_says() {
    let workers = Workers::new(2, false).unwrap();
    static IDLE_ATTENTION: Any = Any { group: Group::Attention, ..NOTHING };
    let mut bound = bound(chain([&NOTHING, &IDLE_ATTENTION, &NOTHING, &NOTHING, &IDLE_ATTENTION]), 2);
    let start = Instant::now();
    run_once(&mut bound, &workers, &Delay { group: Group::Attention, nanoseconds: 3_000_000 });
    assert!(start.elapsed() >= Duration::from_millis(6), "two calls of three milliseconds");
    assert!(bound.dispatches().all(|(_, count)| count == 1));
}

#[test]
fn spans_follow_each_other_and_a_full_ring_drops_and_counts() {
    let workers = Workers::new(2, false).unwrap();
    let mut bound = bound(chain([&NOTHING; 5]), 2);
    let mut traced = Traced::new(2, 8);
    run_once(&mut bound, &workers, &traced);
    run_once(&mut bound, &workers, &traced);
    let (spans, dropped): (Vec<Vec<Span>>, Vec<u64>) = (0..2)
        .map(|worker| {
            let (spans, dropped) = traced.spans(worker);
            (spans.to_vec(), dropped)
        })
        .unzip();
    assert_eq!(dropped, [2, 2], "ten calls, room for eight");
    for spans in &spans {
        assert_eq!(spans.iter().map(|span| span.call).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 0, 1, 2]);
        assert!(spans.iter().all(|span| span.arrive_ns <= span.start_ns && span.start_ns <= span.end_ns));
        assert!(spans.windows(2).all(|pair| pair[0].end_ns <= pair[1].arrive_ns));
    }
    // A call behind a barrier starts on no worker before the other has come to it.
    for (a, b) in spans[0].iter().zip(&spans[1]) {
        if bound.calls()[a.call as usize].barrier_before {
            assert!(a.start_ns >= b.arrive_ns && b.start_ns >= a.arrive_ns);
        }
    }
}

static PANICKING_KERNEL: Kernel = kernel! {
    operator: "any", name: "panicking", isa: "portable", features: &[], nmse: 0.0, because: "panics",
    run: |i| assert!(i.worker != 1 || i.step.tokens[0] != 0, "worker one gives up"),
};
static PANICKING: Any = Any { kernels: &[&PANICKING_KERNEL], ..NOTHING };

#[test]
fn a_panic_in_a_kernel_reaches_the_caller_and_the_workers_go_on() {
    let workers = Workers::new(3, false).unwrap();
    let mut failing = bound(chain([&NOTHING, &PANICKING, &NOTHING, &NOTHING, &NOTHING]), 3);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run_once(&mut failing, &workers, &Plain)));
    let message = caught.unwrap_err();
    let message = message.downcast_ref::<&str>().copied().map(str::to_owned);
    assert_eq!(message.as_deref(), Some("worker one gives up"));
    let mut sound = bound(chain([&NOTHING; 5]), 3);
    run_once(&mut sound, &workers, &Plain);
    assert!(sound.dispatches().all(|(_, count)| count == 1));
}
