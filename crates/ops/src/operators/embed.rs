//! Embedding: row t of the output is row `tokens[t]` of the table, decoded from whatever format the table is packed in.
//! Not here: the output projection over the same table, which is a `linear`. Unsafe code is in `rows` alone.
//!
//! Ladder: reference → rows. The table is also the output projection of tied models, so it is packed in blocks of 16 rows
//! and a gather reads one lane of each line: 16 times the bytes that it uses, for a few rows per step.

use crate::bits::f32_to_bf16;
use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::testing::{Case, Draw, out, weight};
use crate::weight::{ElementType, LANES, LINE, Packed, WeightFormat, half_to_f32};
use crate::{DType, Invocation, kernel};

use super::shapes::{ONE_ROUNDING, ONE_ROUNDING_REASON, expect};

/// Weight: table `(vocabulary, width)` in any format; output `(rows, width)`. Token ids come from the step and are below the
/// vocabulary (checked by whoever made the step).
pub struct Embed;
pub static EMBED: Embed = Embed;

impl Operator for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn group(&self) -> Group {
        Group::Embedding
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 0, 1, 1)?;
        let (table, width) = (shape.weights[0].cols, shape.outputs[0].width);
        if table == width { Ok(()) } else { Err(format!("the table is {table} wide, the output {width}")) }
    }

    /// One row's share of the packed table per token. Flops: a product (and a sum, for codes with a bias) per decoded element.
    fn cost(&self, shape: &CallShape) -> Cost {
        let (table, output) = (&shape.weights[0], &shape.outputs[0]);
        let per_element = match table.format {
            WeightFormat::F32 | WeightFormat::Bf16 => 0,
            WeightFormat::Affine4 { .. } => 2,
            WeightFormat::Int8 { .. } => 1,
        };
        Cost {
            bytes_read: (output.rows * (table.format.row_block_bytes(table.cols) / LANES)) as u64,
            bytes_written: output.bytes(),
            flops: (output.rows * output.width) as u64 * per_element,
        }
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = vec![
            case(1, 40, 33, WeightFormat::F32),
            case(5, 40, 33, WeightFormat::Bf16),
            case(7, 50, 128, WeightFormat::Bf16),
            case(9, 37, 96, WeightFormat::Int8 { group: 16 }),
            case(9, 37, 96, WeightFormat::Int8 { group: 32 }),
        ];
        for (group, parameters) in [(32, ElementType::F16), (64, ElementType::BF16), (128, ElementType::F32)] {
            cases.push(case(6, 35, 3 * group, WeightFormat::Affine4 { group, parameters }));
        }
        cases
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        let ((format, width), rows) = (draw.format(), draw.rows());
        case(rows, draw.count(40), width, format)
    }
}

fn case(rows: usize, vocabulary: usize, width: usize, format: WeightFormat) -> Case {
    let label = format!("{rows} of {vocabulary}x{width} {format:?}");
    let mut case = Case::new(label, vec![], vec![out(rows, width, DType::BF16)]);
    case.weights = vec![weight(vocabulary, width, format)];
    case.vocabulary = vocabulary;
    case
}

fn reference(i: &Invocation<'_>) {
    let (table, y) = (i.weight(0), i.output(0));
    for row in i.share(y.rows) {
        for col in 0..y.width {
            y.set(row, col, table.value(i.step.tokens[row] as usize, col));
        }
    }
}

/// Whole rows per worker.
fn rows(i: &Invocation<'_>) {
    #![allow(unsafe_code, reason = "an exclusive row of the output")]
    let (table, y) = (i.weight(0), i.output(0));
    for row in i.share(y.rows) {
        let token = i.step.tokens[row] as usize;
        debug_assert!(token < table.rows, "token {token} of a vocabulary of {}", table.rows);
        // SAFETY: rows are shared out, so no other worker has this one.
        decode(&table, token, unsafe { y.bf16_mut(row) });
    }
}

/// Row `row` of the table, rounded to bfloat16.
fn decode(table: &Packed<'_>, row: usize, y: &mut [u16]) {
    if table.format == WeightFormat::F32 {
        let row = &table.as_f32()[row * table.cols..][..table.cols];
        return y.iter_mut().zip(row).for_each(|(y, x)| *y = f32_to_bf16(*x));
    }
    let bytes = table.format.row_block_bytes(table.cols);
    let block = &table.bytes[row / LANES * bytes..][..bytes];
    let lane = row % LANES * 4;
    let word = |line: usize| {
        let at = line * LINE + lane;
        [block[at], block[at + 1], block[at + 2], block[at + 3]]
    };
    let (group, lines, header) = (table.format.group(), table.format.block_lines(), table.format.header_lines());
    match table.format {
        WeightFormat::F32 => unreachable!("returned above"),
        WeightFormat::Bf16 => {
            for (line, y) in y.chunks_mut(2).enumerate() {
                let pair = word(line);
                let both = [u16::from_le_bytes([pair[0], pair[1]]), u16::from_le_bytes([pair[2], pair[3]])];
                y.copy_from_slice(&both[..y.len()]);
            }
        }
        WeightFormat::Affine4 { parameters, .. } => {
            for (index, y) in y.chunks_exact_mut(group).enumerate() {
                let first = index * lines;
                let (scale, bias) = if parameters == ElementType::F32 {
                    (f32::from_le_bytes(word(first)), f32::from_le_bytes(word(first + 1)))
                } else {
                    let [b0, b1, s0, s1] = word(first);
                    let half = |low, high| half_to_f32(parameters, u16::from_le_bytes([low, high]));
                    (half(s0, s1), half(b0, b1))
                };
                let (low, high) = y.split_at_mut(group / 2);
                for (line, (low, high)) in low.chunks_exact_mut(4).zip(high.chunks_exact_mut(4)).enumerate() {
                    let codes = word(first + header + line);
                    for b in 0..4 {
                        low[b] = f32_to_bf16(f32::from(codes[b] & 15) * scale + bias);
                        high[b] = f32_to_bf16(f32::from(codes[b] >> 4) * scale + bias);
                    }
                }
            }
        }
        WeightFormat::Int8 { .. } => {
            for (index, y) in y.chunks_exact_mut(group).enumerate() {
                let first = index * lines;
                let scale = f32::from_le_bytes(word(first));
                for (line, y) in y.chunks_exact_mut(4).enumerate() {
                    let codes = word(first + header + line);
                    for b in 0..4 {
                        y[b] = f32_to_bf16(f32::from(codes[b] as i8) * scale);
                    }
                }
            }
        }
    }
}

fn writes_bf16(shape: &CallShape) -> Result<(), String> {
    if shape.outputs[0].dtype == DType::BF16 { Ok(()) } else { Err("needs a bfloat16 output".to_owned()) }
}

pub static REFERENCE: Kernel = kernel! {
    operator: "embed", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// Rows shared among the workers, decoded group by group.
pub static PORTABLE: Kernel = kernel! {
    operator: "embed", name: "rows", isa: "portable", features: &[], supports: writes_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE];
