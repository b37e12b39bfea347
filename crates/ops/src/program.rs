//! A step as data: a flat list of calls over named buffers and weights. Lowering builds one; nothing here executes.

use crate::operator::{CacheUse, CallShape, Group, Operator, ViewShape, WeightShape};
use crate::step::SequenceShape;
use crate::weight::WeightFormat;
use crate::{CachePolicy, DType};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub(crate) u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightId(pub(crate) u32);

impl BufferId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl WeightId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An activation buffer: `(rows, width)` row-major, rows 64-byte aligned when `width * dtype.bytes()` divides by 64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferSpec {
    pub name: &'static str,
    pub rows: usize,
    pub width: usize,
    pub dtype: DType,
}

/// A weight the program reads. `rows == 1` for vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    pub name: String,
    pub rows: usize,
    pub cols: usize,
    pub format: WeightFormat,
}

/// Consecutive rows of a buffer, as an operand of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    pub buffer: BufferId,
    pub first_row: usize,
    pub rows: usize,
}

/// Where an attention call finds keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keys {
    /// In the layer's cache: positions `0..offset + rows`.
    #[default]
    Cache,
    /// In the step's own buffers `(rows, kv_heads * head_dim)`, given as inputs (no cache).
    Step,
}

/// Numbers that a call carries besides its operands. An operator documents which it reads; the rest stay at their default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attributes {
    /// Query heads, or the heads of the operand at hand.
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub epsilon: f32,
    /// Factor on attention scores.
    pub scale: f32,
    /// Rotary pairs are `(2i, 2i + 1)` instead of `(i, i + head_dim / 2)`.
    pub interleaved: bool,
    pub keys: Keys,
}

/// One operator applied to operands.
#[derive(Clone)]
pub struct Call {
    pub operator: &'static dyn Operator,
    /// What this call is for within its layer, e.g. `q_proj`; dispatch counters and the wiring are per slot.
    pub slot: &'static str,
    pub layer: Option<usize>,
    pub group: Group,
    pub inputs: Vec<View>,
    pub outputs: Vec<View>,
    pub weights: Vec<WeightId>,
    pub attributes: Attributes,
}

/// A lowered step: everything that is known before it runs.
#[derive(Clone)]
pub struct Program {
    /// Rows (new tokens) that it handles.
    pub rows: usize,
    /// Largest cached length after the step that its buffers allow for.
    pub context: usize,
    pub cache: CachePolicy,
    /// Element type of keys and values.
    pub cache_dtype: DType,
    pub buffers: Vec<BufferSpec>,
    pub weights: Vec<WeightSpec>,
    pub calls: Vec<Call>,
    /// The operand that the caller reads afterwards: `(logits rows, vocabulary)`.
    pub output: View,
}

impl Program {
    pub fn buffer(&self, id: BufferId) -> &BufferSpec {
        &self.buffers[id.index()]
    }

    pub fn weight(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id.index()]
    }

    /// The first calls that read nothing but weights, and the token and position of a single row: a device may make them of the next step
    /// as soon as it has its token. What they write shares its place with nothing.
    pub fn openings(&self) -> &[Call] {
        let opens = |call: &&Call| {
            let one_row = call.outputs.iter().all(|view| view.rows == 1 && self.buffer(view.buffer).rows == 1);
            one_row && call.inputs.is_empty() && call.operator.touches_cache(&call.attributes) == CacheUse::None
        };
        &self.calls[..self.calls.iter().take_while(opens).count()]
    }

    pub fn view_shape(&self, view: View) -> ViewShape {
        let buffer = self.buffer(view.buffer);
        ViewShape { rows: view.rows, width: buffer.width, dtype: buffer.dtype }
    }

    /// The shapes of one call for a step of the given sequences.
    pub fn call_shape(&self, call: &Call, sequences: &[SequenceShape]) -> CallShape {
        CallShape {
            inputs: call.inputs.iter().map(|view| self.view_shape(*view)).collect(),
            outputs: call.outputs.iter().map(|view| self.view_shape(*view)).collect(),
            weights: call
                .weights
                .iter()
                .map(|id| {
                    let spec = self.weight(*id);
                    WeightShape { rows: spec.rows, cols: spec.cols, format: spec.format }
                })
                .collect(),
            attributes: call.attributes,
            cache_dtype: self.cache_dtype,
            sequences: sequences.to_vec(),
        }
    }
}

/// Builds a [`Program`] call by call.
pub struct ProgramBuilder {
    program: Program,
    layer: Option<usize>,
}

impl ProgramBuilder {
    /// A program over `rows` new tokens whose cached length after the step is at most `context`.
    pub fn new(rows: usize, context: usize, cache: CachePolicy, cache_dtype: DType) -> ProgramBuilder {
        let nothing = View { buffer: BufferId(0), first_row: 0, rows: 0 };
        let program = Program {
            rows,
            context,
            cache,
            cache_dtype,
            buffers: Vec::new(),
            weights: Vec::new(),
            calls: Vec::new(),
            output: nothing,
        };
        ProgramBuilder { program, layer: None }
    }

    /// Following calls belong to this layer (or to none).
    pub fn layer(&mut self, layer: Option<usize>) {
        self.layer = layer;
    }

    /// A new buffer `(rows, width)`, as a view of all of it.
    pub fn buffer(&mut self, name: &'static str, rows: usize, width: usize, dtype: DType) -> View {
        let id = BufferId(self.program.buffers.len() as u32);
        self.program.buffers.push(BufferSpec { name, rows, width, dtype });
        View { buffer: id, first_row: 0, rows }
    }

    /// Width of the buffer that a view is of.
    pub fn width(&self, view: View) -> usize {
        self.program.buffer(view.buffer).width
    }

    /// The weight of this name, declared once however often it is asked for.
    pub fn weight(&mut self, name: &str, rows: usize, cols: usize, format: WeightFormat) -> WeightId {
        let spec = WeightSpec { name: name.to_owned(), rows, cols, format };
        if let Some(index) = self.program.weights.iter().position(|known| known.name == name) {
            debug_assert_eq!(self.program.weights[index], spec, "one weight, one shape and format");
            return WeightId(index as u32);
        }
        self.program.weights.push(spec);
        WeightId(self.program.weights.len() as u32 - 1)
    }

    /// Appends a call in the operator's own group.
    pub fn call(
        &mut self,
        operator: &'static dyn Operator,
        slot: &'static str,
        inputs: &[View],
        weights: &[WeightId],
        outputs: &[View],
        attributes: Attributes,
    ) {
        self.call_in(operator.group(), operator, slot, inputs, weights, outputs, attributes);
    }

    /// Appends a call in another group than the operator's own (the vocabulary projection is a linear in group `Head`).
    pub fn call_in(
        &mut self,
        group: Group,
        operator: &'static dyn Operator,
        slot: &'static str,
        inputs: &[View],
        weights: &[WeightId],
        outputs: &[View],
        attributes: Attributes,
    ) {
        self.program.calls.push(Call {
            operator,
            slot,
            layer: self.layer,
            group,
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
            weights: weights.to_vec(),
            attributes,
        });
    }

    /// The finished program, whose result is `output`.
    pub fn finish(mut self, output: View) -> Program {
        self.program.output = output;
        self.program
    }
}
