//! Fusions around projections, which pay where a call costs more than its arithmetic: rungs of a device's ladder have them, for steps
//! of few rows. Not here: what a rewrite is and those of every ladder (`rewrite.rs`).

use crate::operator::Group;
use crate::operators;
use crate::operators::MOST_PROJECTIONS;
use crate::program::{Call, Program};
use crate::rewrite::{Replacement, Rewrite, TILED_MIN_ROWS, named, stays_inside};

/// `linear` + `add` of its result → `linear_add`, for at most eight rows.
pub const LINEAR_ADD: Rewrite = Rewrite {
    name: "linear-add",
    fuse: |program, at| {
        let [linear, add] = named(program, at, ["linear", "add"])?;
        let product = linear.outputs[0];
        let residual = if add.inputs[0] == product { add.inputs[1] } else { add.inputs[0] };
        let linked = add.inputs.contains(&product) && residual != product && stays_inside(program, at..at + 2, product);
        if program.rows >= TILED_MIN_ROWS || !linked || linear.weights.len() != 1 {
            return None;
        }
        let mut call = linear.clone();
        call.operator = &operators::LINEAR_ADD;
        call.inputs.push(residual);
        call.outputs = add.outputs.clone();
        Replacement::one(call, 2)
    },
};

/// `rms_norm` + the projections that alone read it → `norm_linear`, for at most eight rows.
pub const NORM_LINEAR: Rewrite = Rewrite {
    name: "norm-linear",
    fuse: |program, at| {
        let (norm, projections) = normed_projections(program, at)?;
        let mut call = projections[0].clone();
        call.operator = &operators::NORM_LINEAR;
        call.inputs = norm.inputs.clone();
        call.attributes = norm.attributes;
        call.weights = norm.weights.clone();
        call.weights.extend(projections.iter().flat_map(|projection| &projection.weights));
        call.outputs = projections.iter().flat_map(|projection| projection.outputs.clone()).collect();
        Replacement::one(call, 1 + projections.len())
    },
};

/// `rms_norm` + two projections + `swiglu` of them → `norm_swiglu`, for at most eight rows.
pub const NORM_SWIGLU: Rewrite = Rewrite {
    name: "norm-swiglu",
    fuse: |program, at| {
        let (norm, projections) = normed_projections(program, at)?;
        let [gate, up] = projections[..] else { return None };
        let swiglu = program.calls.get(at + 3)?;
        let inside = [gate, up].iter().all(|call| stays_inside(program, at..at + 4, call.outputs[0]));
        let alike = program.weight(gate.weights[0]).format == program.weight(up.weights[0]).format;
        if swiglu.operator.name() != "swiglu" || swiglu.inputs != [gate.outputs[0], up.outputs[0]] || !inside || !alike
        {
            return None;
        }
        let mut call = swiglu.clone();
        call.operator = &operators::NORM_SWIGLU;
        (call.slot, call.group) = ("gate_up", Group::Projections);
        call.inputs = norm.inputs.clone();
        call.attributes = norm.attributes;
        call.weights = [&norm.weights[..], &gate.weights, &up.weights].concat();
        Replacement::one(call, 4)
    },
};

/// A norm of whole rows at `at`, and the run of projections after it, without biases, that alone read it.
fn normed_projections(program: &Program, at: usize) -> Option<(&Call, Vec<&Call>)> {
    let [norm] = named(program, at, ["rms_norm"])?;
    let normed = norm.outputs[0];
    let width = program.buffer(normed.buffer).width;
    let reads = |call: &&Call| call.operator.name() == "linear" && call.inputs == [normed] && call.weights.len() == 1;
    let projections: Vec<&Call> = program.calls[at + 1..].iter().take_while(reads).collect();
    let alike =
        |call: &&Call| program.weight(call.weights[0]).format == program.weight(projections[0].weights[0]).format;
    let fits = (1..=MOST_PROJECTIONS).contains(&projections.len()) && projections.iter().all(alike);
    let whole = norm.attributes.head_dim == width && program.rows < TILED_MIN_ROWS;
    let inside = stays_inside(program, at..at + 1 + projections.len(), normed);
    (fits && whole && inside).then_some((norm, projections))
}

/// `norm_rope_append` + `attention` of its queries → `placed_attention`, for a single row.
pub const PLACED_ATTENTION: Rewrite = Rewrite {
    name: "placed-attention",
    fuse: |program, at| {
        let [place, attention] = named(program, at, ["norm_rope_append", "attention"])?;
        let query = place.outputs[0];
        let linked = attention.inputs == [query] && stays_inside(program, at..at + 2, query);
        if program.rows != 1 || !linked {
            return None;
        }
        let mut call = place.clone();
        call.operator = &operators::PLACED_ATTENTION;
        (call.slot, call.group) = (attention.slot, attention.group);
        call.attributes.scale = attention.attributes.scale;
        call.outputs = attention.outputs.clone();
        Replacement::one(call, 2)
    },
};
