//! Each rewrite fuses exactly its pattern, keeps the operands, and leaves alone what others still read.

mod common;

use common::NOTHING;
use ops::ladder::beside::{GATED_PROJECTIONS, SPLIT_ATTENTION_CHECKPOINT};
use ops::ladder::{ADDED_NORM, ONE_CALL_ATTENTION, SELECTED};
use ops::operators::*;
use ops::*;

const HEADS: usize = 4;
const WIDTH: usize = HEADS * 128;

/// What a test program ends with besides its pattern.
#[derive(Clone, Copy, PartialEq)]
enum Reader {
    None,
    /// Another call reads the first intermediate buffer.
    Call,
    /// The program's result is the first intermediate buffer.
    Caller,
}

struct Pattern {
    builder: ProgramBuilder,
    reader: Reader,
    first_intermediate: Option<View>,
}

fn given(builder: &mut ProgramBuilder, rows: usize, width: usize, dtype: DType) -> View {
    let view = builder.buffer("given", rows, width, dtype);
    builder.call(&NOTHING, "given", &[], &[], &[view], Attributes::default());
    view
}

impl Pattern {
    fn new(rows: usize, reader: Reader) -> Pattern {
        let mut builder = ProgramBuilder::new(rows, 32, CachePolicy::Bounded, DType::BF16);
        builder.layer(Some(3));
        Pattern { builder, reader, first_intermediate: None }
    }

    fn intermediate(&mut self, rows: usize, width: usize, dtype: DType) -> View {
        let view = self.builder.buffer("intermediate", rows, width, dtype);
        self.first_intermediate.get_or_insert(view);
        view
    }

    fn finish(mut self, result: View) -> Program {
        let intermediate = self.first_intermediate.expect("patterns have one");
        let end = match self.reader {
            Reader::None => result,
            Reader::Caller => intermediate,
            Reader::Call => {
                let end = self.builder.buffer("end", 1, 1, DType::F32);
                self.builder.call(&NOTHING, "also reads", &[intermediate, result], &[], &[end], Attributes::default());
                end
            }
        };
        self.builder.finish(end)
    }
}

fn norm(rows: usize, reader: Reader) -> Program {
    let mut p = Pattern::new(rows, reader);
    let x = given(&mut p.builder, rows, WIDTH, DType::BF16);
    let scaled = p.intermediate(rows, WIDTH, DType::BF16);
    let w = p.builder.weight("w", 1, 128, WeightFormat::F32);
    let y = p.builder.buffer("y", rows, WIDTH, DType::BF16);
    let attributes = Attributes { head_dim: 128, epsilon: 1e-6, ..Attributes::default() };
    p.builder.call(&RMS_SCALE, "norm", &[x], &[], &[scaled], attributes);
    p.builder.call(&MUL_WEIGHT, "norm", &[scaled], &[w], &[y], attributes);
    p.finish(y)
}

fn rope(rows: usize, reader: Reader) -> Program {
    let mut p = Pattern::new(rows, reader);
    let x = given(&mut p.builder, rows, WIDTH, DType::BF16);
    let table = given(&mut p.builder, rows, 128, DType::F32);
    let rotated = p.intermediate(rows, WIDTH, DType::BF16);
    let y = p.builder.buffer("y", rows, WIDTH, DType::BF16);
    let attributes = Attributes { head_dim: 128, ..Attributes::default() };
    p.builder.call(&ROTATE_HALF, "rope", &[x], &[], &[rotated], attributes);
    p.builder.call(&ROPE_COMBINE, "rope", &[x, rotated, table], &[], &[y], attributes);
    p.finish(y)
}

fn swiglu(rows: usize, reader: Reader) -> Program {
    let mut p = Pattern::new(rows, reader);
    let gate = given(&mut p.builder, rows, 33, DType::BF16);
    let up = given(&mut p.builder, rows, 33, DType::BF16);
    let activated = p.intermediate(rows, 33, DType::BF16);
    let y = p.builder.buffer("y", rows, 33, DType::BF16);
    p.builder.call(&SILU, "act", &[gate], &[], &[activated], Attributes::default());
    p.builder.call(&MUL, "act", &[activated, up], &[], &[y], Attributes::default());
    p.finish(y)
}

fn attention(rows: usize, head_dim: usize, keys: Keys, reader: Reader) -> Program {
    let mut p = Pattern::new(rows, reader);
    let q = given(&mut p.builder, rows, HEADS * head_dim, DType::BF16);
    let k = given(&mut p.builder, rows, 2 * head_dim, DType::BF16);
    let v = given(&mut p.builder, rows, 2 * head_dim, DType::BF16);
    let scores = p.intermediate(rows * HEADS, 32, DType::F32);
    let y = p.builder.buffer("y", rows, HEADS * head_dim, DType::BF16);
    let attributes = Attributes { heads: HEADS, kv_heads: 2, head_dim, scale: 0.1, keys, ..Attributes::default() };
    let (with_keys, with_values): (&[View], &[View]) =
        if keys == Keys::Step { (&[q, k], &[scores, v]) } else { (&[q], &[scores]) };
    p.builder.call(&ATTENTION_SCORES, "attention", with_keys, &[], &[scores], attributes);
    p.builder.call(&SOFTMAX, "attention", &[scores], &[], &[scores], attributes);
    p.builder.call(&ATTENTION_MIX, "attention", with_values, &[], &[y], attributes);
    p.finish(y)
}

/// Names of the calls, without the ones that only stand for givers and readers.
fn names(program: &Program) -> Vec<&'static str> {
    program.calls.iter().map(|call| call.operator.name()).filter(|name| *name != "any").collect()
}

fn rewritten(program: &Program) -> Program {
    program.verify().expect("the readable program is sound");
    let rewritten = program.clone().rewritten(SELECTED.rewrites);
    rewritten.verify().expect("so is the fused one");
    rewritten
}

#[test]
fn each_pattern_becomes_one_call_with_the_same_operands() {
    for (program, name) in [
        (norm(3, Reader::None), "rms_norm"),
        (rope(3, Reader::None), "rope"),
        (swiglu(3, Reader::None), "swiglu"),
        (attention(9, 128, Keys::Cache, Reader::None), "attention"),
        (attention(9, 128, Keys::Step, Reader::None), "attention"),
    ] {
        let fused = rewritten(&program);
        assert_eq!(names(&fused), [name]);
        let (before, call) = (&program.calls, fused.calls.last().expect("one"));
        let last = before.last().expect("a pattern");
        assert_eq!((call.layer, call.group, call.weights.clone()), (Some(3), last.group, last.weights.clone()));
        // The result's buffer and every given one are still there; the intermediate is gone.
        assert_eq!(fused.buffers.len(), program.buffers.len() - 1);
        assert!(fused.buffers.iter().all(|buffer| buffer.name != "intermediate"));
        assert_eq!(fused.view_shape(fused.output), program.view_shape(program.output));
        let scale = before.iter().find(|call| call.operator.name() == "attention_scores");
        assert_eq!(call.attributes, scale.unwrap_or(last).attributes);
    }
}

#[test]
fn keys_and_values_of_the_step_stay_in_order() {
    let fused = rewritten(&attention(12, 128, Keys::Step, Reader::None));
    let call = fused.calls.last().expect("one");
    let given: Vec<View> = fused.calls[..3].iter().map(|call| call.outputs[0]).collect();
    assert_eq!(call.inputs, given, "queries, keys, values");
}

#[test]
fn what_others_read_is_not_fused() {
    for reader in [Reader::Call, Reader::Caller] {
        for (program, want) in [
            (norm(3, reader), &["rms_scale", "mul_weight"][..]),
            (rope(3, reader), &["rotate_half", "rope_combine"]),
            (swiglu(3, reader), &["silu", "mul"]),
            (attention(9, 128, Keys::Cache, reader), &["attention_scores", "softmax", "attention_mix"]),
        ] {
            let kept = rewritten(&program);
            assert_eq!(names(&kept), want);
            assert_eq!(kept.buffers, program.buffers);
        }
    }
}

#[test]
fn tiled_attention_needs_nine_rows_of_heads_of_128() {
    for (rows, head_dim, fuses) in [(8, 128, false), (9, 128, true), (9, 64, false), (32, 128, true)] {
        let names = names(&rewritten(&attention(rows, head_dim, Keys::Cache, Reader::None)));
        assert_eq!(names == ["attention"], fuses, "{rows} rows of {head_dim}");
    }
}

#[test]
fn decode_attention_takes_what_the_tiled_one_leaves() {
    for (rows, head_dim, fuses) in
        [(1, 64, true), (1, 128, true), (8, 128, true), (9, 128, true), (9, 64, false), (1, 96, false)]
    {
        for keys in [Keys::Cache, Keys::Step] {
            let program = attention(rows, head_dim, keys, Reader::None);
            let names = names(&program.rewritten(ONE_CALL_ATTENTION.rewrites));
            assert_eq!(names == ["attention"], fuses, "{rows} rows of {head_dim}, {keys:?}");
        }
        let read = attention(rows, head_dim, Keys::Cache, Reader::Call).rewritten(ONE_CALL_ATTENTION.rewrites);
        assert_eq!(names(&read).len(), 3, "{rows} rows of {head_dim} whose scores are read by others");
    }
}

#[test]
fn attention_of_few_rows_is_split_into_parts_and_a_join() {
    for keys in [Keys::Cache, Keys::Step] {
        let program = attention(3, 128, keys, Reader::None);
        let split = program.clone().rewritten(SPLIT_ATTENTION_CHECKPOINT.rewrites);
        split.verify().expect("sound, with its new buffers");
        assert_eq!(names(&split), ["attention_parts", "attention_join"]);
        let whole = program.rewritten(ONE_CALL_ATTENTION.rewrites);
        let [.., attention] = &whole.calls[..] else { unreachable!("it has calls") };
        let [.., parts, join] = &split.calls[..] else { unreachable!("two more") };
        let read = |program: &Program, call: &Call| {
            call.inputs.iter().map(|v| program.buffer(v.buffer).name).collect::<Vec<_>>()
        };
        assert_eq!(read(&split, parts), read(&whole, attention));
        assert_eq!((&join.inputs, join.outputs[0]), (&parts.outputs, split.output));
        assert_eq!((parts.attributes, join.attributes), (attention.attributes, attention.attributes));
        assert_eq!((parts.layer, join.layer), (Some(3), Some(3)));
        let state = join.inputs.iter().map(|view| split.view_shape(*view));
        let view = |width| ViewShape { rows: 3 * HEADS * 8, width, dtype: DType::F32 };
        assert_eq!(state.collect::<Vec<_>>(), [view(128), view(2)]);
    }
    let many = attention(9, 128, Keys::Cache, Reader::None).rewritten(SPLIT_ATTENTION_CHECKPOINT.rewrites);
    assert_eq!(names(&many), ["attention"]);
}

/// Queries and keys from their projections to attention, with norms or without; one of the two norms' epsilons may differ.
fn placed(normed: bool, same_epsilon: bool, reader: Reader) -> Program {
    let mut p = Pattern::new(3, reader);
    let [mut q, mut k, v] = [WIDTH, WIDTH / 2, WIDTH / 2].map(|width| given(&mut p.builder, 3, width, DType::BF16));
    let table = given(&mut p.builder, 3, 128, DType::F32);
    let attributes = Attributes { heads: HEADS, kv_heads: 2, head_dim: 128, scale: 0.1, ..Attributes::default() };
    if normed {
        for (index, x) in [&mut q, &mut k].into_iter().enumerate() {
            let width = p.builder.width(*x);
            let w = p.builder.weight(["q norm", "k norm"][index], 1, 128, WeightFormat::F32);
            let y = p.intermediate(3, width, DType::BF16);
            let epsilon = if index == 1 && !same_epsilon { 1e-5 } else { 1e-6 };
            let norm = Attributes { head_dim: 128, epsilon, ..Attributes::default() };
            p.builder.call(&RMS_NORM, "norm", &[*x], &[w], &[y], norm);
            *x = y;
        }
    }
    let turn = Attributes { head_dim: 128, interleaved: true, ..Attributes::default() };
    let turned = p.builder.buffer("turned", 3, WIDTH, DType::BF16);
    let keys = p.intermediate(3, WIDTH / 2, DType::BF16);
    p.builder.call(&ROPE, "q_rope", &[q, table], &[], &[turned], turn);
    p.builder.call(&ROPE, "k_rope", &[k, table], &[], &[keys], turn);
    p.builder.call(&CACHE_APPEND, "cache_append", &[keys, v], &[], &[], attributes);
    p.finish(turned)
}

#[test]
fn heads_are_placed_in_one_call() {
    for normed in [false, true] {
        let program = placed(normed, true, Reader::None);
        program.verify().expect("the unfused program is sound");
        let fused = program.clone().rewritten(ADDED_NORM.rewrites);
        fused.verify().expect("so is the fused one");
        assert_eq!(names(&fused), ["norm_rope_append"]);
        let call = fused.calls.last().expect("one");
        let given: Vec<View> = fused.calls[..4].iter().map(|call| call.outputs[0]).collect();
        assert_eq!(call.inputs, given, "queries, keys, values, table");
        assert_eq!(call.weights.len(), if normed { 2 } else { 0 });
        assert!(call.attributes.interleaved && (call.attributes.heads, call.attributes.kv_heads) == (HEADS, 2));
        assert_eq!(call.attributes.epsilon, if normed { 1e-6 } else { 0.0 });
        assert_eq!((call.layer, fused.output), (Some(3), call.outputs[0]));
        // The first intermediate is the queries' norm, or the turned keys.
        let read = placed(normed, true, Reader::Call).rewritten(ADDED_NORM.rewrites);
        let without_norms = ["rms_norm", "rms_norm", "norm_rope_append"];
        assert_eq!(names(&read), if normed { without_norms } else { ["rope", "rope", "cache_append"] });
    }
    let apart = placed(true, false, Reader::None).rewritten(ADDED_NORM.rewrites);
    assert_eq!(names(&apart), ["rms_norm", "rms_norm", "norm_rope_append"], "one call has one epsilon");
}

#[test]
fn a_residual_and_its_norm_are_one_call_and_the_sum_stays() {
    let program = |part: bool| {
        let mut p = Pattern::new(3, Reader::None);
        let (a, b) = (given(&mut p.builder, 3, 64, DType::BF16), given(&mut p.builder, 3, 64, DType::BF16));
        let sum = p.intermediate(3, 64, DType::BF16);
        let w = p.builder.weight("w", 1, 64, WeightFormat::F32);
        let rows = if part { 1 } else { 3 };
        let y = p.builder.buffer("y", rows, 64, DType::BF16);
        let attributes = Attributes { head_dim: 64, epsilon: 1e-6, ..Attributes::default() };
        p.builder.call(&ADD, "residual", &[a, b], &[], &[sum], Attributes::default());
        let read = View { first_row: 3 - rows, rows, ..sum };
        p.builder.call(&RMS_NORM, "norm", &[read], &[w], &[y], attributes);
        p.reader = Reader::Call;
        p.finish(y)
    };
    let fused = program(false).rewritten(ADDED_NORM.rewrites);
    fused.verify().expect("sound");
    assert_eq!(names(&fused), ["add_rms_norm"]);
    let call = &fused.calls[2];
    assert_eq!(fused.calls[3].inputs, call.outputs, "the sum and the normed row are read as before");
    // The last norm of a prompt wants its last row only.
    assert_eq!(names(&program(true).rewritten(ADDED_NORM.rewrites)), ["add", "rms_norm"]);
}

/// Gate, up and their gated product; one of the two weights may be of another format, or have a bias.
fn gated(rows: usize, other: WeightFormat, biased: bool, reader: Reader) -> Program {
    let mut p = Pattern::new(rows, reader);
    let x = given(&mut p.builder, rows, 64, DType::BF16);
    let [gate, up] = [0, 1].map(|_| p.intermediate(rows, 96, DType::BF16));
    let w4 = WeightFormat::Affine4 { group: 32, parameters: ElementType::F16 };
    for (y, name, format) in [(gate, "gate", w4), (up, "up", other)] {
        let mut weights = vec![p.builder.weight(name, 96, 64, format)];
        if biased {
            weights.push(p.builder.weight("bias", 1, 96, WeightFormat::F32));
        }
        p.builder.call(&LINEAR, name, &[x], &weights, &[y], Attributes::default());
    }
    let y = p.builder.buffer("y", rows, 96, DType::BF16);
    p.builder.call(&SWIGLU, "swiglu", &[gate, up], &[], &[y], Attributes::default());
    p.finish(y)
}

#[test]
fn gate_and_up_of_few_rows_are_one_call_where_they_are_alike() {
    let w4 = WeightFormat::Affine4 { group: 32, parameters: ElementType::F16 };
    let after = |program: Program| {
        program.verify().expect("the unfused program is sound");
        let fused = program.rewritten(GATED_PROJECTIONS.rewrites);
        fused.verify().expect("so is the fused one");
        fused
    };
    for rows in [1, 8] {
        let fused = after(gated(rows, w4, false, Reader::None));
        assert_eq!(names(&fused), ["gated_linear"]);
        let call = fused.calls.last().expect("one");
        assert_eq!((call.inputs.clone(), call.outputs[0]), (fused.calls[0].outputs.clone(), fused.output));
        let weights: Vec<_> = call.weights.iter().map(|id| fused.weight(*id).name.as_str()).collect();
        assert_eq!((weights, call.layer), (vec!["gate", "up"], Some(3)));
    }
    let kept = ["linear", "linear", "swiglu"];
    for program in [
        gated(9, w4, false, Reader::None),
        gated(1, WeightFormat::Int8 { group: 32 }, false, Reader::None),
        gated(1, WeightFormat::Bf16, false, Reader::None),
        gated(1, w4, true, Reader::None),
        gated(1, w4, false, Reader::Call),
        gated(1, w4, false, Reader::Caller),
    ] {
        assert_eq!(names(&after(program)), kept);
    }
}

#[test]
fn a_part_of_the_intermediate_is_not_the_whole() {
    let mut builder = ProgramBuilder::new(3, 32, CachePolicy::Bounded, DType::BF16);
    let gate = given(&mut builder, 3, 33, DType::BF16);
    let up = given(&mut builder, 1, 33, DType::BF16);
    let activated = builder.buffer("intermediate", 3, 33, DType::BF16);
    let y = builder.buffer("y", 1, 33, DType::BF16);
    builder.call(&SILU, "act", &[gate], &[], &[activated], Attributes::default());
    let last_row = View { first_row: 2, rows: 1, ..activated };
    builder.call(&MUL, "act", &[last_row, up], &[], &[y], Attributes::default());
    assert_eq!(names(&rewritten(&builder.finish(y))), ["silu", "mul"]);
}

#[test]
fn only_the_named_rewrite_is_applied() {
    let program = swiglu(3, Reader::None);
    let others: Vec<Rewrite> = SELECTED.rewrites.iter().copied().filter(|rewrite| rewrite.name != "swiglu").collect();
    assert_eq!(others.len(), SELECTED.rewrites.len() - 1);
    assert_eq!(names(&program.rewritten(&others)), ["silu", "mul"]);
}
