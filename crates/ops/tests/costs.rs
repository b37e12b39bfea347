//! Costs are exact: compared with numbers worked out by hand, some of them known from elsewhere.

use ops::operators::*;
use ops::*;

const BF16: DType = DType::BF16;
const F32: DType = DType::F32;

/// Qwen3-0.6B's heads.
const HEADS: Attributes = Attributes {
    heads: 16,
    kv_heads: 8,
    head_dim: 128,
    epsilon: 1e-6,
    scale: 0.088,
    interleaved: false,
    keys: Keys::Cache,
};

fn shape(
    inputs: &[(usize, usize, DType)],
    outputs: &[(usize, usize, DType)],
    sequences: &[(usize, usize)],
) -> CallShape {
    let view = |&(rows, width, dtype): &(usize, usize, DType)| ViewShape { rows, width, dtype };
    CallShape {
        inputs: inputs.iter().map(view).collect(),
        outputs: outputs.iter().map(view).collect(),
        weights: Vec::new(),
        attributes: HEADS,
        cache_dtype: BF16,
        sequences: sequences.iter().map(|&(rows, offset)| SequenceShape { rows, offset }).collect(),
    }
}

fn cost(read: u64, written: u64, flops: u64) -> Cost {
    Cost { bytes_read: read, bytes_written: written, flops }
}

#[test]
fn a_cached_token_is_114_688_bytes_over_28_layers() {
    let append = shape(&[(1, 1024, BF16), (1, 1024, BF16)], &[], &[(1, 300)]);
    assert_eq!(CACHE_APPEND.cost(&append), cost(114_688 / 28, 114_688 / 28, 0));
    // Growing copies what was cached, not what comes.
    let grow = shape(&[], &[], &[(1, 300), (4, 0)]);
    assert_eq!(CACHE_GROW.cost(&grow), cost(300 * 114_688 / 28, 300 * 114_688 / 28, 0));
    // The oracle's cache is twice as wide.
    assert_eq!(CACHE_GROW.cost(&CallShape { cache_dtype: F32, ..grow }).bytes_read, 2 * 300 * 4096);
}

#[test]
fn attention_counts_what_each_row_sees() {
    // Two rows after three positions see 4 and 5; a fresh sequence of one row sees 1: 10 (row, position) pairs.
    let sequences = [(2, 3), (1, 0)];
    let (q, scores) = ((3, 2048, BF16), (48, 5, F32));
    let kv = (5 + 1) * 8 * 128 * 2;
    let q_bytes = 3 * 2048 * 2;
    let pairs = 10 * 16;
    let readable = [
        ATTENTION_SCORES.cost(&shape(&[q], &[scores], &sequences)),
        SOFTMAX.cost(&shape(&[scores], &[scores], &sequences)),
        ATTENTION_MIX.cost(&shape(&[scores], &[q], &sequences)),
    ];
    assert_eq!(readable[0], cost(q_bytes + kv, pairs * 4, pairs * 256));
    assert_eq!(readable[1], cost(pairs * 4, pairs * 4, pairs * 4));
    assert_eq!(readable[2], cost(pairs * 4 + kv, q_bytes, pairs * 256));
    let fused = ATTENTION.cost(&shape(&[q], &[q], &sequences));
    assert_eq!(fused, cost(q_bytes + 2 * kv, q_bytes, readable.iter().map(|c| c.flops).sum()));
}

#[test]
fn attention_in_parts_counts_those_that_have_positions() {
    // Rows that see 64, 65 and 66 positions fill 1, 2 and 2 of four parts, one that sees 500 all four: 9 of 16.
    let sequences = [(3, 63), (1, 499)];
    let (q, sums, peaks) = ((4, 2048, BF16), (4 * 16 * 4, 128, F32), (4 * 16 * 4, 2, F32));
    let (whole, state) = (ATTENTION.cost(&shape(&[q], &[q], &sequences)), 9 * 16 * 130 * 4);
    let parts = ATTENTION_PARTS.cost(&shape(&[q], &[sums, peaks], &sequences));
    assert_eq!(parts, cost(whole.bytes_read, state, whole.flops));
    let join = ATTENTION_JOIN.cost(&shape(&[sums, peaks], &[q], &sequences));
    assert_eq!(join, cost(state, whole.bytes_written, 16 * (9 * (2 * 128 + 3) + 4 * 129)));
}

#[test]
fn keys_of_the_step_are_counted_once() {
    let attributes = Attributes { keys: Keys::Step, ..HEADS };
    let (q, kv) = ((4, 2048, BF16), (4, 1024, BF16));
    let step = CallShape { attributes, ..shape(&[q, kv, kv], &[q], &[(4, 0)]) };
    assert_eq!(ATTENTION.cost(&step).bytes_read, 4 * (2048 + 2 * 1024) * 2);
}

#[test]
fn an_embedded_token_is_17_32nds_of_a_byte_per_packed_weight() {
    let format = WeightFormat::Affine4 { group: 128, parameters: ElementType::BF16 };
    let mut embed = shape(&[], &[(3, 1024, BF16)], &[]);
    embed.weights = vec![WeightShape { rows: 151_936, cols: 1024, format }];
    assert_eq!(EMBED.cost(&embed), cost(3 * 1024 * 17 / 32, 3 * 2048, 3 * 2048));
}

#[test]
fn pointwise_operators_move_each_operand_once() {
    let x = (7, 1024, BF16);
    let pair = shape(&[x, x], &[x], &[]);
    let bytes = 7 * 1024 * 2;
    assert_eq!(ADD.cost(&pair), cost(2 * bytes, bytes, 7 * 1024));
    assert_eq!(SWIGLU.cost(&pair), cost(2 * bytes, bytes, 4 * 7 * 1024));
    let mut norm = shape(&[x], &[x], &[]);
    norm.weights = vec![WeightShape { rows: 1, cols: 128, format: WeightFormat::F32 }];
    assert_eq!(RMS_NORM.cost(&norm), cost(bytes + 512, bytes, 4 * 7 * 1024 + 3 * 7 * 8));
    let rope = shape(&[x, (7, 128, F32)], &[x], &[]);
    assert_eq!(ROPE.cost(&rope), cost(bytes + 7 * 512, bytes, 3 * 7 * 1024));
}

#[test]
fn fused_calls_cost_what_their_parts_compute_and_less_traffic() {
    let (x, half, table) = ((7, 2048, BF16), (7, 1024, BF16), (7, 128, F32));
    let mut placed = shape(&[x, half, half, table], &[x], &[(7, 5)]);
    let written = 7 * 2 * (2048 + 1024 + 1024);
    let read = written + 7 * 512;
    assert_eq!(NORM_ROPE_APPEND.cost(&placed), cost(read, written, 3 * 7 * 3072));
    placed.weights = vec![WeightShape { rows: 1, cols: 128, format: WeightFormat::F32 }; 2];
    assert_eq!(NORM_ROPE_APPEND.cost(&placed), cost(read + 1024, written, 7 * 7 * 3072 + 3 * 7 * 24));
    let mut added = shape(&[half, half], &[half, half], &[]);
    added.attributes.head_dim = 1024;
    added.weights = vec![WeightShape { rows: 1, cols: 1024, format: WeightFormat::F32 }];
    let bytes = 7 * 2048;
    assert_eq!(ADD_RMS_NORM.cost(&added), cost(2 * bytes + 4096, 2 * bytes, 5 * 7 * 1024 + 3 * 7));
}
