//! Fusions: a run of calls replaced by one coarser call. A fused rung is its parent's program, rewritten; no second forward
//! pass is written anywhere. Not here: which checkpoint applies which (`ladder.rs`).

use crate::operators;
use crate::program::{Call, Program};

/// A fusion, as data: where it applies and what stands there afterwards.
#[derive(Clone, Copy)]
pub struct Rewrite {
    pub name: &'static str,
    /// The replacement of the calls that begin at this index, and how many it replaces.
    pub fuse: fn(&Program, usize) -> Option<(Call, usize)>,
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
        Some((call, 2))
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
        Some((call, 2))
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
        Some((call, 2))
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

fn attention(program: &Program, at: usize, rows_fit: bool, head_dims: &[usize]) -> Option<(Call, usize)> {
    let [scores, _, mix] = chain(program, at, ["attention_scores", "softmax", "attention_mix"])?;
    if !rows_fit || !head_dims.contains(&scores.attributes.head_dim) {
        return None;
    }
    let mut call = scores.clone();
    call.operator = &operators::ATTENTION;
    call.inputs.extend(mix.inputs.iter().skip(1));
    call.outputs = mix.outputs.clone();
    Some((call, 3))
}

/// The `N` calls from `at` on, if they are these operators, each one's whole output is read by the next, and nothing but
/// these calls reads it (not even the caller).
fn chain<'a, const N: usize>(program: &'a Program, at: usize, names: [&str; N]) -> Option<[&'a Call; N]> {
    let calls: [&Call; N] = program.calls.get(at..at + N)?.iter().collect::<Vec<_>>().try_into().ok()?;
    if calls.iter().zip(names).any(|(call, name)| call.operator.name() != name) {
        return None;
    }
    for pair in calls.windows(2) {
        let intermediate = pair[0].outputs[0];
        let reads = |call: &Call| call.inputs.iter().any(|view| view.buffer == intermediate.buffer);
        let (before, after) = (&program.calls[..at], &program.calls[at + N..]);
        let read_elsewhere = before.iter().chain(after).any(reads) || program.output.buffer == intermediate.buffer;
        if read_elsewhere || !pair[1].inputs.contains(&intermediate) {
            return None;
        }
    }
    Some(calls)
}

impl Program {
    /// Applies the rewrites in order, each wherever it fits, and drops buffers that nothing uses any more.
    pub fn rewritten(mut self, rewrites: &[Rewrite]) -> Program {
        for rewrite in rewrites {
            let mut calls = Vec::with_capacity(self.calls.len());
            let mut at = 0;
            while at < self.calls.len() {
                match (rewrite.fuse)(&self, at) {
                    Some((call, replaced)) => {
                        calls.push(call);
                        at += replaced;
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
