//! Random programs: no value is overwritten while somebody still needs it, and every conflict between calls has a barrier.

mod common;

use common::{NOTHING, READS_CACHE, ROWS, WRITES_CACHE, bound, builder};
use ops::*;
use proptest::prelude::*;

/// Per call: which of the buffers written before it reads, and the widths of the one or two new ones that it writes.
type Calls = Vec<(Vec<prop::sample::Index>, Vec<usize>)>;

fn calls() -> impl Strategy<Value = Calls> {
    let call = (prop::collection::vec(any::<prop::sample::Index>(), 0..4), prop::collection::vec(1usize..90, 1..3));
    prop::collection::vec(call, 1..20)
}

fn program(calls: &Calls) -> Program {
    let mut b = builder();
    let mut written: Vec<View> = Vec::new();
    for (inputs, outputs) in calls {
        let inputs: Vec<View> =
            if written.is_empty() { Vec::new() } else { inputs.iter().map(|i| *i.get(&written)).collect() };
        let outputs: Vec<View> = outputs.iter().map(|width| b.buffer("buffer", ROWS, *width, DType::BF16)).collect();
        b.call(&NOTHING, "call", &inputs, &[], &outputs, Attributes::default());
        written.extend(outputs);
    }
    let result = *written.last().expect("at least one call");
    b.finish(result)
}

fn bytes(program: &Program, plan: &MemoryPlan, view: View) -> std::ops::Range<usize> {
    let start = plan.offsets[view.buffer.index()];
    start..start + program.view_shape(view).bytes() as usize
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Plays the program on memory whose bytes remember which buffer was written last.
    #[test]
    fn what_a_call_reads_is_what_was_written(calls in calls()) {
        let program = program(&calls);
        let plan = MemoryPlan::new(&program);
        let mut owner = vec![usize::MAX; plan.bytes];
        for call in &program.calls {
            for input in &call.inputs {
                prop_assert!(owner[bytes(&program, &plan, *input)].iter().all(|o| *o == input.buffer.index()));
            }
            for output in &call.outputs {
                owner[bytes(&program, &plan, *output)].fill(output.buffer.index());
            }
            // While the call runs, all its operands are in memory at once.
            for operand in call.inputs.iter().chain(&call.outputs) {
                prop_assert!(owner[bytes(&program, &plan, *operand)].iter().all(|o| *o == operand.buffer.index()));
            }
        }
        prop_assert!(owner[bytes(&program, &plan, program.output)].iter().all(|o| *o == program.output.buffer.index()));
        prop_assert!(plan.offsets.iter().all(|offset| offset % 64 == 0));
    }

    /// Between two calls of which one writes bytes that the other reads or writes, there is a barrier.
    #[test]
    fn every_conflict_has_a_barrier(calls in calls()) {
        let program = program(&calls);
        let plan = MemoryPlan::new(&program);
        let bound = bound(program.clone(), 2);
        let ranges = |views: &[View]| -> Vec<_> { views.iter().map(|view| bytes(&program, &plan, *view)).collect() };
        let meet = |a: &[View], b: &[View]| {
            ranges(a).iter().any(|a| ranges(b).iter().any(|b| a.start < b.end && b.start < a.end))
        };
        for (second, call) in program.calls.iter().enumerate() {
            for (first, earlier) in program.calls[..second].iter().enumerate() {
                let conflict = meet(&earlier.outputs, &call.inputs)
                    || meet(&earlier.outputs, &call.outputs)
                    || meet(&earlier.inputs, &call.outputs);
                let barrier = bound.calls()[first + 1..=second].iter().any(|call| call.barrier_before);
                prop_assert!(barrier || !conflict, "calls {first} and {second} conflict without a barrier");
            }
        }
    }
}

#[test]
fn what_may_be_made_of_the_next_step_shares_its_place_with_nothing() {
    for rows in [1, 2] {
        let mut b = builder();
        let [token, angles, between, result] =
            [64, 32, 64, 640].map(|width| b.buffer("buffer", rows, width, DType::BF16));
        let mut call =
            |inputs: &[View], outputs: &[View]| b.call(&NOTHING, "c", inputs, &[], outputs, Attributes::default());
        call(&[], &[token]);
        call(&[], &[angles]);
        call(&[token, angles], &[between]);
        call(&[between], &[result]);
        let program = b.finish(result);
        let plan = MemoryPlan::new(&program);
        let meet = |one: View, other: View| {
            let (one, other) = (bytes(&program, &plan, one), bytes(&program, &plan, other));
            one.start < other.end && other.start < one.end
        };
        assert_eq!(program.openings().len(), if rows == 1 { 2 } else { 0 });
        // The result is made when both have been read, and would lie there otherwise.
        assert_eq!(meet(token, result) || meet(angles, result), rows == 2);
        assert!(!meet(token, between) && !meet(angles, between) && !meet(token, angles));
    }
}

fn barriers(program: Program) -> Vec<bool> {
    bound(program, 2).calls().iter().map(|call| call.barrier_before).collect()
}

#[test]
fn independent_calls_have_no_barrier_and_a_reader_has_one() {
    let mut b = builder();
    let views: Vec<View> = (0..5).map(|_| b.buffer("buffer", ROWS, 64, DType::F32)).collect();
    let mut call =
        |inputs: &[View], outputs: &[View]| b.call(&NOTHING, "c", inputs, &[], outputs, Attributes::default());
    call(&[], &[views[0]]);
    call(&[views[0]], &[views[1]]);
    call(&[views[0]], &[views[2]]);
    call(&[views[1], views[2]], &[views[3]]);
    call(&[views[0], views[3]], &[views[4]]);
    assert_eq!(barriers(b.finish(views[4])), [false, true, false, true, true]);
}

#[test]
fn separate_rows_of_one_buffer_are_independent() {
    let mut b = builder();
    let x = b.buffer("x", 2, 64, DType::F32);
    let rows = [View { rows: 1, ..x }, View { first_row: 1, rows: 1, ..x }];
    let y = b.buffer("y", 1, 64, DType::F32);
    b.call(&NOTHING, "first", &[], &[], &[rows[0]], Attributes::default());
    b.call(&NOTHING, "second", &[], &[], &[rows[1]], Attributes::default());
    b.call(&NOTHING, "reads", &[rows[0]], &[], &[y], Attributes::default());
    assert_eq!(barriers(b.finish(y)), [false, false, true]);
}

#[test]
fn caches_of_one_layer_conflict_and_of_two_do_not() {
    let mut b = builder();
    let views: Vec<View> = (0..4).map(|_| b.buffer("buffer", ROWS, 64, DType::F32)).collect();
    let none = Attributes::default();
    b.call(&WRITES_CACHE, "append", &[], &[], &[views[0]], none);
    b.call(&READS_CACHE, "attend", &[], &[], &[views[1]], none);
    b.call(&READS_CACHE, "attend", &[], &[], &[views[2]], none);
    b.layer(Some(1));
    b.call(&WRITES_CACHE, "append", &[], &[], &[views[3]], none);
    b.layer(Some(0));
    b.call(&WRITES_CACHE, "append", &[], &[], &[], none);
    let end = b.buffer("end", ROWS, 64, DType::F32);
    b.call(&NOTHING, "keep", &views, &[], &[end], none);
    assert_eq!(barriers(b.finish(end)), [false, true, false, false, true, false]);
}
