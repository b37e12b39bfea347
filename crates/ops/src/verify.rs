//! Is a program sound? Checked once, before it is planned and bound: shapes agree, nothing is read before it is written, and
//! no output overlaps an input unless the operator works in place. Not here: the rules of each operator's shapes
//! ([`crate::Operator::check`]), and whether kernels exist for it.

use crate::program::{Call, Program, View};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum VerifyError {
    #[error("call {index} ({slot}, operator {operator}): {problem}")]
    Shape { index: usize, slot: &'static str, operator: &'static str, problem: String },
    #[error("call {index} ({slot}): rows {first}..{end} of buffer '{buffer}' lie outside its {rows} rows")]
    OutOfRange { index: usize, slot: &'static str, buffer: &'static str, first: usize, end: usize, rows: usize },
    #[error("call {index} ({slot}): buffer '{buffer}' is read before it is written")]
    ReadBeforeWrite { index: usize, slot: &'static str, buffer: &'static str },
    #[error(
        "call {index} ({slot}): an output overlaps an input in buffer '{buffer}', and {operator} does not work in place there"
    )]
    Overlap { index: usize, slot: &'static str, operator: &'static str, buffer: &'static str },
    #[error("the result, buffer '{buffer}', is never written")]
    NoResult { buffer: &'static str },
}

impl Program {
    /// Checks the whole program.
    ///
    /// # Errors
    /// The first fault, with its call.
    pub fn verify(&self) -> Result<(), VerifyError> {
        let mut written = vec![false; self.buffers.len()];
        for (index, call) in self.calls.iter().enumerate() {
            self.verify_call(index, call, &written)?;
            for view in &call.outputs {
                written[view.buffer.index()] = true;
            }
        }
        if written[self.output.buffer.index()] {
            return Ok(());
        }
        Err(VerifyError::NoResult { buffer: self.buffer(self.output.buffer).name })
    }

    fn verify_call(&self, index: usize, call: &Call, written: &[bool]) -> Result<(), VerifyError> {
        let slot = call.slot;
        for view in call.inputs.iter().chain(&call.outputs) {
            let buffer = self.buffer(view.buffer);
            let (first, end) = (view.first_row, view.first_row + view.rows);
            if end > buffer.rows {
                return Err(VerifyError::OutOfRange {
                    index,
                    slot,
                    buffer: buffer.name,
                    first,
                    end,
                    rows: buffer.rows,
                });
            }
        }
        for view in &call.inputs {
            if !written[view.buffer.index()] {
                return Err(VerifyError::ReadBeforeWrite { index, slot, buffer: self.buffer(view.buffer).name });
            }
        }
        let operator = call.operator.name();
        for (o, output) in call.outputs.iter().enumerate() {
            for (i, input) in call.inputs.iter().enumerate() {
                let allowed = call.operator.in_place().contains(&(o, i)) && output == input;
                if overlap(*output, *input) && !allowed {
                    let buffer = self.buffer(output.buffer).name;
                    return Err(VerifyError::Overlap { index, slot, operator, buffer });
                }
            }
        }
        let shape = self.call_shape(call, &[]);
        call.operator.check(&shape).map_err(|problem| VerifyError::Shape { index, slot, operator, problem })
    }
}

fn overlap(a: View, b: View) -> bool {
    a.buffer == b.buffer && a.first_row < b.first_row + b.rows && b.first_row < a.first_row + a.rows
}
