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
fn where_runs_exactly_the_calls_that_the_predicate_picks() {
    static FIRST_KERNEL: Kernel = kernel! {
        operator: "any", name: "first", isa: "portable", features: &[], nmse: 0.0, because: "does nothing", run: |_| {},
    };
    static FIRST: Any = Any { group: Group::Attention, kernels: &[&FIRST_KERNEL], cache: CacheUse::None };
    let workers = Workers::new(2, false).unwrap();
    let mut bound = bound(chain([&NOTHING, &FIRST, &NOTHING, &FIRST, &NOTHING]), 2);
    for (name, want) in [("first", [0u64, 1, 0, 1, 0]), ("none of these", [0; 5])] {
        bound.reset_dispatches();
        run_once(&mut bound, &workers, &Where(|call: &BoundCall| call.kernel.name == name));
        let dispatched: Vec<u64> = bound.dispatches().map(|(_, count)| count).collect();
        assert_eq!(dispatched, want, "{name}");
    }
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
fn delay_holds_back_the_workers_and_calls_that_it_names_and_counts_it() {
    let workers = Workers::new(2, false).unwrap();
    let mut bound = bound(chain([&NOTHING; 5]), 2);
    // Call 1 on both workers, call 3 on the second alone.
    let delay = Delay::new(2, vec![0, 0, 1_000_000, 500_000, 0, 0, 0, 2_000_000, 0, 0]);
    let start = Instant::now();
    run_once(&mut bound, &workers, &delay);
    run_once(&mut bound, &workers, &delay);
    // The slower of call 1's workers and the one of call 3, twice; a lower bound, whatever else runs here.
    assert!(delay.injected() >= 6_000_000, "{}", delay.injected());
    assert!(start.elapsed() >= Duration::from_nanos(delay.injected()), "every call waits for the one before");
    assert!(bound.dispatches().all(|(_, count)| count == 2));
    delay.reset();
    assert_eq!(delay.injected(), 0);
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
        // A call is reached when the one before it ended; another walk begins later, whatever its first call is.
        for pair in spans.windows(2) {
            let same = pair[0].call + 1 == pair[1].call;
            assert!(if same { pair[0].end_ns == pair[1].arrive_ns } else { pair[0].end_ns <= pair[1].arrive_ns });
        }
        let waits = |span: &Span| bound.calls()[span.call as usize].barrier_before;
        assert!(spans.iter().all(|span| waits(span) || span.start_ns == span.arrive_ns), "no clock is read in between");
    }
    // A call behind a barrier starts on no worker before the other has come to it.
    for (a, b) in spans[0].iter().zip(&spans[1]) {
        if bound.calls()[a.call as usize].barrier_before {
            assert!(a.start_ns >= b.arrive_ns && b.start_ns >= a.arrive_ns);
        }
    }
}

#[test]
fn a_call_is_not_reached_at_the_end_of_another_walk() {
    let workers = Workers::new(1, false).unwrap();
    let mut bound = bound(chain([&POINTWISE, &ATTENTION, &HEAD, &POINTWISE, &POINTWISE]), 1);
    let mut traced = Traced::new(1, 2);
    run_once(&mut bound, &workers, &Both(&Only(Some(Group::Attention)), &traced));
    std::thread::sleep(Duration::from_millis(2));
    run_once(&mut bound, &workers, &Both(&Only(Some(Group::Head)), &traced));
    let (spans, _) = traced.spans(0);
    assert_eq!((spans[0].call, spans[1].call), (1, 2));
    assert!(spans[1].arrive_ns >= spans[0].end_ns + 2_000_000, "{spans:?}");
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
