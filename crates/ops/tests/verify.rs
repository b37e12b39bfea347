//! Every fault that verification knows is found, named with its call; a sound program passes.

mod common;

use common::{NOTHING, ROWS, builder};
use ops::operators::{ADD, SOFTMAX};
use ops::*;

fn given(builder: &mut ProgramBuilder, name: &'static str, width: usize) -> View {
    let view = builder.buffer(name, ROWS, width, DType::F32);
    builder.call(&NOTHING, "given", &[], &[], &[view], Attributes::default());
    view
}

#[test]
fn a_sound_program_passes() {
    let mut b = builder();
    let (x, y) = (given(&mut b, "x", 8), given(&mut b, "y", 8));
    let sum = b.buffer("sum", ROWS, 8, DType::F32);
    b.call(&ADD, "add", &[x, y], &[], &[sum], Attributes::default());
    b.call(&SOFTMAX, "softmax", &[sum], &[], &[sum], Attributes { heads: 1, ..Attributes::default() });
    assert_eq!(b.finish(sum).verify(), Ok(()));
}

#[test]
fn shapes_that_the_operator_refuses() {
    let mut b = builder();
    let (x, y) = (given(&mut b, "x", 8), given(&mut b, "y", 9));
    let sum = b.buffer("sum", ROWS, 8, DType::F32);
    b.call(&ADD, "add", &[x, y], &[], &[sum], Attributes::default());
    let Err(VerifyError::Shape { index: 2, slot: "add", operator: "add", problem }) = b.finish(sum).verify() else {
        panic!("a shape fault of call 2")
    };
    assert_eq!(problem, "input 1 is (2, 9), the output (2, 8)");
}

#[test]
fn views_beyond_their_buffer() {
    let mut b = builder();
    let x = given(&mut b, "x", 8);
    let y = b.buffer("y", ROWS, 8, DType::F32);
    b.call(&NOTHING, "use", &[View { first_row: 1, ..x }], &[], &[y], Attributes::default());
    let fault = VerifyError::OutOfRange { index: 1, slot: "use", buffer: "x", first: 1, end: 3, rows: 2 };
    assert_eq!(b.finish(y).verify(), Err(fault));
}

#[test]
fn reading_what_nobody_wrote() {
    let mut b = builder();
    let (x, y) = (b.buffer("x", ROWS, 8, DType::F32), b.buffer("y", ROWS, 8, DType::F32));
    b.call(&NOTHING, "use", &[x], &[], &[y], Attributes::default());
    assert_eq!(b.finish(y).verify(), Err(VerifyError::ReadBeforeWrite { index: 0, slot: "use", buffer: "x" }));
}

#[test]
fn outputs_over_inputs() {
    let mut b = builder();
    let x = given(&mut b, "x", 8);
    b.call(&NOTHING, "use", &[x], &[], &[x], Attributes::default());
    let fault = VerifyError::Overlap { index: 1, slot: "use", operator: "any", buffer: "x" };
    assert_eq!(b.finish(x).verify(), Err(fault));

    // In place means the very same rows: a shifted overlap is a fault even for an operator that works in place.
    let mut b = builder();
    let x = b.buffer("x", 3, 8, DType::F32);
    b.call(&NOTHING, "given", &[], &[], &[x], Attributes::default());
    let (input, output) = (View { rows: 2, ..x }, View { first_row: 1, rows: 2, ..x });
    b.call(&SOFTMAX, "softmax", &[input], &[], &[output], Attributes { heads: 1, ..Attributes::default() });
    let fault = VerifyError::Overlap { index: 1, slot: "softmax", operator: "softmax", buffer: "x" };
    assert_eq!(b.finish(x).verify(), Err(fault));
}

#[test]
fn a_result_that_is_never_written() {
    let mut b = builder();
    given(&mut b, "x", 8);
    let y = b.buffer("y", ROWS, 8, DType::F32);
    assert_eq!(b.finish(y).verify(), Err(VerifyError::NoResult { buffer: "y" }));
}

#[test]
fn every_fault_names_its_place() {
    let fault = VerifyError::ReadBeforeWrite { index: 7, slot: "q_proj", buffer: "x" };
    assert_eq!(fault.to_string(), "call 7 (q_proj): buffer 'x' is read before it is written");
}
