//! Rewrites: a run of calls replaced by one coarser call, or a call by finer ones. Such a rung is its parent's program, rewritten; no
//! second forward pass is written anywhere. Not here: which checkpoint applies which (`ladder.rs`).

use crate::DType;
use crate::ladder::MATVEC_MAX_ROWS;
use crate::operator::Group;
use crate::operators;
use crate::program::{Attributes, BufferId, BufferSpec, Call, Program, View};
use std::ops::Range;

/// A rewrite, as data: where it applies and what stands there afterwards.
#[derive(Clone, Copy)]
pub struct Rewrite {
    pub name: &'static str,
    /// The replacement of the calls that begin at this index.
    pub fuse: fn(&Program, usize) -> Option<Replacement>,
}

/// What stands in place of some calls.
pub struct Replacement {
    pub calls: Vec<Call>,
    /// How many calls it replaces.
    pub replaced: usize,
    /// Buffers that only these calls use: their numbers follow those of the program's.
    pub buffers: Vec<BufferSpec>,
}

impl Replacement {
    /// One call over buffers that the program has.
    pub(crate) fn one(call: Call, replaced: usize) -> Option<Replacement> {
        Some(Replacement { calls: vec![call], replaced, buffers: Vec::new() })
    }
}

impl PartialEq for Rewrite {
    fn eq(&self, other: &Rewrite) -> bool {
        self.name == other.name
    }
}

impl std::fmt::Debug for Rewrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// `rms_scale` + `mul_weight` → `rms_norm`.
pub const RMS_NORM: Rewrite = Rewrite {
    name: "rms-norm",
    fuse: |program, at| {
        let [scale, multiply] = chain(program, at, ["rms_scale", "mul_weight"])?;
        let mut call = scale.clone();
        call.operator = &operators::RMS_NORM;
        call.weights = multiply.weights.clone();
        call.outputs = multiply.outputs.clone();
        Replacement::one(call, 2)
    },
};

/// `rotate_half` + `rope_combine` → `rope`.
pub const ROPE: Rewrite = Rewrite {
    name: "rope",
    fuse: |program, at| {
        let [rotate, combine] = chain(program, at, ["rotate_half", "rope_combine"])?;
        let mut call = combine.clone();
        call.operator = &operators::ROPE;
        call.inputs = vec![rotate.inputs[0], combine.inputs[2]];
        Replacement::one(call, 2)
    },
};

/// `silu` + `mul` → `swiglu`.
pub const SWIGLU: Rewrite = Rewrite {
    name: "swiglu",
    fuse: |program, at| {
        let [silu, multiply] = chain(program, at, ["silu", "mul"])?;
        let mut call = multiply.clone();
        call.operator = &operators::SWIGLU;
        call.inputs = vec![silu.inputs[0], multiply.inputs[1]];
        Replacement::one(call, 2)
    },
};

/// Fewest new rows for which the tiled prefill attention is used.
pub const TILED_MIN_ROWS: usize = 9;
/// The one head size that the tiled prefill attention handles.
pub const TILED_HEAD_DIM: usize = 128;

/// `attention_scores` + `softmax` + `attention_mix` → `attention`, for at least nine new rows of head size 128.
pub const TILED_ATTENTION: Rewrite = Rewrite {
    name: "tiled-attention",
    fuse: |program, at| attention(program, at, program.rows >= TILED_MIN_ROWS, &[TILED_HEAD_DIM]),
};

/// Head sizes that the decode attention handles.
pub const DECODE_HEAD_DIMS: [usize; 2] = [64, 128];

/// The same for at most eight new rows, of head size 64 or 128.
pub const DECODE_ATTENTION: Rewrite = Rewrite {
    name: "decode-attention",
    fuse: |program, at| attention(program, at, program.rows < TILED_MIN_ROWS, &DECODE_HEAD_DIMS),
};

fn attention(program: &Program, at: usize, rows_fit: bool, head_dims: &[usize]) -> Option<Replacement> {
    let [scores, _, mix] = chain(program, at, ["attention_scores", "softmax", "attention_mix"])?;
    if !rows_fit || !head_dims.contains(&scores.attributes.head_dim) {
        return None;
    }
    let mut call = scores.clone();
    call.operator = &operators::ATTENTION;
    call.inputs.extend(mix.inputs.iter().skip(1));
    call.outputs = mix.outputs.clone();
    Replacement::one(call, 3)
}

/// Parts that [`SPLIT_ATTENTION`] makes of what a row sees: eight key/value heads are then shares for 64 workers. A constant, so
/// that no result depends on the number of workers.
pub const ATTENTION_PARTS: usize = 8;

/// `attention` of at most eight rows → `attention_parts` + `attention_join`.
pub const SPLIT_ATTENTION: Rewrite = Rewrite {
    name: "split-attention",
    fuse: |program, at| {
        let [attention] = named(program, at, ["attention"])?;
        if program.rows >= TILED_MIN_ROWS {
            return None;
        }
        let Attributes { heads, head_dim, .. } = attention.attributes;
        let rows = attention.inputs[0].rows * heads * ATTENTION_PARTS;
        let buffers = [("attention_sums", head_dim), ("attention_peaks", 2)];
        let buffers = buffers.map(|(name, width)| BufferSpec { name, rows, width, dtype: DType::F32 }).to_vec();
        let first = program.buffers.len() as u32;
        let state = [0, 1].map(|n| View { buffer: BufferId(first + n), first_row: 0, rows }).to_vec();
        let mut parts = attention.clone();
        parts.operator = &operators::ATTENTION_PARTS;
        parts.outputs = state.clone();
        let mut join = attention.clone();
        (join.operator, join.slot) = (&operators::ATTENTION_JOIN, "attention_join");
        join.inputs = state;
        Some(Replacement { calls: vec![parts, join], replaced: 1, buffers })
    },
};

/// Longest head that `norm_rope_append` keeps widened.
pub const HELD_HEAD: usize = 256;

/// `rms_norm` of queries and of keys (where there are norms) + `rope` of both + `cache_append` → `norm_rope_append`.
pub const NORM_ROPE_APPEND: Rewrite = Rewrite {
    name: "norm-rope-append",
    fuse: |program, at| {
        let norms = named(program, at, ["rms_norm", "rms_norm"]);
        let count = if norms.is_some() { 5 } else { 3 };
        let [q_rope, k_rope, append] = named(program, at + count - 3, ["rope", "rope", "cache_append"])?;
        let mut call = append.clone();
        let mut links = vec![(k_rope, append)];
        let (mut q, mut k) = (q_rope.inputs[0], k_rope.inputs[0]);
        if let Some([q_norm, k_norm]) = norms {
            links.extend([(q_norm, q_rope), (k_norm, k_rope)]);
            (q, k) = (q_norm.inputs[0], k_norm.inputs[0]);
            call.weights = vec![q_norm.weights[0], k_norm.weights[0]];
            call.attributes.epsilon = q_norm.attributes.epsilon;
            if q_norm.attributes != k_norm.attributes || q_norm.attributes.head_dim != append.attributes.head_dim {
                return None;
            }
        }
        let linked = links.iter().all(|(from, to)| {
            to.inputs[0] == from.outputs[0] && stays_inside(program, at..at + count, from.outputs[0])
        });
        let alike = q_rope.attributes == k_rope.attributes && q_rope.inputs[1] == k_rope.inputs[1];
        let head_dim = append.attributes.head_dim;
        if !linked || !alike || q_rope.attributes.head_dim != head_dim || head_dim > HELD_HEAD {
            return None;
        }
        call.operator = &operators::NORM_ROPE_APPEND;
        (call.slot, call.group) = ("norm_rope_append", Group::Pointwise);
        call.inputs = vec![q, k, append.inputs[1], q_rope.inputs[1]];
        call.outputs = q_rope.outputs.clone();
        call.attributes.interleaved = q_rope.attributes.interleaved;
        Replacement::one(call, count)
    },
};

/// `add` + `rms_norm` of the sum → `add_rms_norm`. The sum stays: it is the next residual.
pub const ADD_RMS_NORM: Rewrite = Rewrite {
    name: "add-rms-norm",
    fuse: |program, at| {
        let [add, norm] = named(program, at, ["add", "rms_norm"])?;
        let width = program.buffer(add.outputs[0].buffer).width;
        if norm.inputs[0] != add.outputs[0] || norm.attributes.head_dim != width {
            return None;
        }
        let mut call = norm.clone();
        call.operator = &operators::ADD_RMS_NORM;
        call.inputs = add.inputs.clone();
        call.outputs = vec![add.outputs[0], norm.outputs[0]];
        Replacement::one(call, 2)
    },
};

/// Two `linear` of one input + `swiglu` of their results → `gated_linear`, for packed weights of one shape and format without
/// biases, and as many rows as the matrix-vector kernels take.
pub const GATED_LINEAR: Rewrite = Rewrite {
    name: "gated-linear",
    fuse: |program, at| {
        let [gate, up, swiglu] = named(program, at, ["linear", "linear", "swiglu"])?;
        let spec = |call: &Call| {
            let weight = program.weight(call.weights[0]);
            (call.weights.len(), weight.rows, weight.cols, weight.format)
        };
        let (count, _, _, format) = spec(gate);
        let alike = spec(gate) == spec(up) && gate.inputs == up.inputs && count == 1 && format.is_packed();
        let linked = swiglu.inputs == [gate.outputs[0], up.outputs[0]]
            && [gate, up].iter().all(|call| stays_inside(program, at..at + 3, call.outputs[0]));
        if !alike || !linked || gate.inputs[0].rows > MATVEC_MAX_ROWS {
            return None;
        }
        let mut call = gate.clone();
        call.operator = &operators::GATED_LINEAR;
        call.slot = "gated_proj";
        call.weights = vec![gate.weights[0], up.weights[0]];
        call.outputs = swiglu.outputs.clone();
        Replacement::one(call, 3)
    },
};

/// The `N` calls from `at` on, if they are these operators.
pub(crate) fn named<'a, const N: usize>(program: &'a Program, at: usize, names: [&str; N]) -> Option<[&'a Call; N]> {
    let calls: [&Call; N] = program.calls.get(at..at + N)?.iter().collect::<Vec<_>>().try_into().ok()?;
    calls.iter().zip(names).all(|(call, name)| call.operator.name() == name).then_some(calls)
}

/// Nothing but these calls reads the view's buffer (not even the caller).
pub(crate) fn stays_inside(program: &Program, calls: Range<usize>, view: View) -> bool {
    let reads = |call: &Call| call.inputs.iter().any(|input| input.buffer == view.buffer);
    let (before, after) = (&program.calls[..calls.start], &program.calls[calls.end..]);
    !before.iter().chain(after).any(reads) && program.output.buffer != view.buffer
}

/// The `N` calls from `at` on, if they are these operators, each one's whole output is read by the next, and nothing but
/// these calls reads it (not even the caller).
fn chain<'a, const N: usize>(program: &'a Program, at: usize, names: [&str; N]) -> Option<[&'a Call; N]> {
    let calls = named(program, at, names)?;
    let linked = calls.windows(2).all(|pair| {
        pair[1].inputs.contains(&pair[0].outputs[0]) && stays_inside(program, at..at + N, pair[0].outputs[0])
    });
    linked.then_some(calls)
}

impl Program {
    /// Applies the rewrites in order, each wherever it fits, and drops buffers that nothing uses any more.
    pub fn rewritten(mut self, rewrites: &[Rewrite]) -> Program {
        for rewrite in rewrites {
            let mut calls = Vec::with_capacity(self.calls.len());
            let mut at = 0;
            while at < self.calls.len() {
                match (rewrite.fuse)(&self, at) {
                    Some(replacement) => {
                        calls.extend(replacement.calls);
                        self.buffers.extend(replacement.buffers);
                        at += replacement.replaced;
                    }
                    None => {
                        calls.push(self.calls[at].clone());
                        at += 1;
                    }
                }
            }
            self.calls = calls;
        }
        self.drop_unused_buffers();
        self
    }

    fn drop_unused_buffers(&mut self) {
        let mut used = vec![false; self.buffers.len()];
        used[self.output.buffer.index()] = true;
        for view in self.calls.iter().flat_map(|call| call.inputs.iter().chain(&call.outputs)) {
            used[view.buffer.index()] = true;
        }
        let mut new_index = vec![0u32; used.len()];
        let mut kept = Vec::new();
        for (index, buffer) in self.buffers.drain(..).enumerate() {
            if used[index] {
                new_index[index] = kept.len() as u32;
                kept.push(buffer);
            }
        }
        self.buffers = kept;
        let renumber = |view: &mut crate::View| view.buffer.0 = new_index[view.buffer.index()];
        renumber(&mut self.output);
        for call in &mut self.calls {
            call.inputs.iter_mut().chain(&mut call.outputs).for_each(renumber);
        }
    }
}
