//! Rates of the `linear` kernels on all projections of Qwen3-0.6B, against what this machine reads and multiplies beside
//! them: `cargo run --release -p hourglass-ops --example linear_rates -- [ROWS [KERNEL [ROUNDS [THREADS]]]]`.
//! KERNEL is what all labels must contain, word by word. Kernels are walked in turn, round by round, so that a slow minute falls
//! on all of them; medians are printed.

use ops::ceilings::{Operands, Peak, peaks};
use ops::operators::LINEAR;
use ops::testing::{Case, Draw, Random};
use ops::*;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

const LAYERS: usize = 28;
const HIDDEN: usize = 1024;
const VOCABULARY: usize = 151_936;
/// (slot, input buffer, output buffer, outputs, inputs)
const PROJECTIONS: [(&str, usize, usize, usize, usize); 7] = [
    ("q_proj", 0, 1, 2048, HIDDEN),
    ("k_proj", 0, 2, 1024, HIDDEN),
    ("v_proj", 0, 3, 1024, HIDDEN),
    ("o_proj", 1, 4, HIDDEN, 2048),
    ("gate_proj", 4, 5, 3072, HIDDEN),
    ("up_proj", 4, 6, 3072, HIDDEN),
    ("down_proj", 5, 0, HIDDEN, 3072),
];
const WIDTHS: [usize; 7] = [HIDDEN, 2048, 1024, 1024, HIDDEN, 3072, 3072];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize, default: usize| arguments.get(n).map_or(Ok(default), |text| text.parse());
    let rows = number(0, 1)?;
    let filter = arguments.get(1).cloned().unwrap_or_default();
    let rounds = number(2, 9)?.max(1);
    let threads = number(3, 2)?.max(1);
    let workers = Workers::new(threads, true)?;
    let mut arms = Vec::new();
    for format in [
        WeightFormat::Affine4 { group: 128, parameters: ElementType::BF16 },
        WeightFormat::Affine4 { group: 64, parameters: ElementType::BF16 },
        WeightFormat::Affine4 { group: 32, parameters: ElementType::F16 },
        WeightFormat::Int8 { group: 32 },
        WeightFormat::Int8 { group: 16 },
        WeightFormat::Bf16,
    ] {
        let mut weights = None;
        for kernel in LINEAR.kernels().iter().skip(1) {
            let label = format!("{} {format}", kernel.label());
            let program = program(rows, format);
            let runs = kernel.features.missing_from(Features::detect()).is_empty()
                && program.calls.iter().skip(1).all(|call| (kernel.supports)(&program.call_shape(call, &[])).is_ok());
            if runs && filter.split_whitespace().all(|part| label.contains(part)) {
                let weights = weights.get_or_insert_with(|| pack(&program, threads));
                arms.push(Arm::new(label, kernel, program, weights, threads)?);
            }
        }
    }
    for round in 0..=rounds {
        for arm in &mut arms {
            arm.round(&workers, rows, round > 0);
        }
    }
    println!(
        "{rows} rows, {threads} threads, {rounds} rounds; all layers{}",
        if rows == 1 { " and the head" } else { "" }
    );
    println!(
        "{:<26} {:>9} {:>9} {:>8} {:>7} {:>9} {:>9} {:>7}",
        "kernel", "ms", "tokens/s", "GB/s", "of read", "GFLOP/s", "peak", "of peak"
    );
    for arm in &mut arms {
        let seconds = median(&mut arm.seconds);
        println!(
            "{:<26} {:>9.2} {:>9.1} {:>8.1} {:>7.2} {:>9.1} {:>9.1} {:>7.2}",
            arm.label,
            seconds * 1e3,
            rows as f64 / seconds,
            arm.bytes / seconds / 1e9,
            median(&mut arm.of_read),
            arm.flops / seconds / 1e9,
            median(&mut arm.peak) / 1e9,
            median(&mut arm.of_peak),
        );
    }
    Ok(())
}

/// One kernel bound to the whole program.
struct Arm {
    label: String,
    bound: Bound,
    weights: Arc<Weights>,
    bytes: f64,
    flops: f64,
    seconds: Vec<f64>,
    /// Bytes per second over those of a plain read of the same weights just before.
    of_read: Vec<f64>,
    /// The rate of [`multiplying`] just before and after, and what part of it the flops reached.
    peak: Vec<f64>,
    of_peak: Vec<f64>,
}

impl Arm {
    fn new(
        label: String,
        kernel: &'static Kernel,
        program: Program,
        weights: &Arc<Weights>,
        threads: usize,
    ) -> Result<Arm, BindError> {
        let checkpoint = Resolved {
            name: "rates",
            cache: CachePolicy::None,
            weights: WeightPolicy::Packed,
            activations: DType::BF16,
            rewrites: Vec::new(),
            kernels: vec![Choice { operator: "linear", rows: 0..=usize::MAX, packed: None, kernel: kernel.name }],
            pace: Pace::PLAIN,
            controls: MechanismControls::default(),
        };
        // A kernel added to the registry is preferred among those of its name.
        let registry = Registry::with(&[kernel], &[]);
        let mut bound = bind(program, &checkpoint, &registry, weights, Features::detect(), threads)?;
        let mut random = Random::new(1);
        let input = bound.program().calls[0].outputs[0];
        let x = bound.view(input);
        for index in 0..x.rows * x.width {
            x.set(index / x.width, index % x.width, random.normal());
        }
        let mut cost = Cost::default();
        for call in 1..bound.calls().len() {
            cost += bound.cost(call, &[]);
        }
        let (bytes, flops) = ((cost.bytes_read + cost.bytes_written) as f64, cost.flops as f64);
        let weights = Arc::clone(weights);
        let (seconds, of_read, peak, of_peak) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Ok(Arm { label, bound, weights, bytes, flops, seconds, of_read, peak, of_peak })
    }

    fn round(&mut self, workers: &Workers, rows: usize, counts: bool) {
        let read = read_rate(workers, self.bound.program(), &self.weights);
        let before = peak_rate(workers);
        let tokens = vec![0; rows];
        let sequences = [Sequence { first_row: 0, rows, offset: 0, caches: &[] }];
        let step = Step { tokens: &tokens, sequences: &sequences };
        let start = Instant::now();
        run(&mut self.bound, workers, &step, &Plain);
        let seconds = start.elapsed().as_secs_f64();
        let after = peak_rate(workers);
        let peak = 2.0 / (1.0 / before + 1.0 / after);
        if counts {
            self.peak.push(peak);
            self.seconds.push(seconds);
            self.of_read.push(self.bytes / seconds / read);
            self.of_peak.push(self.flops / seconds / peak);
        }
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// All projections of all layers, and for one row the vocabulary projection.
fn program(rows: usize, format: WeightFormat) -> Program {
    let mut builder = ProgramBuilder::new(rows, rows, CachePolicy::None, DType::BF16);
    let buffers = WIDTHS.map(|width| builder.buffer("activation", rows, width, DType::BF16));
    builder.call(&GIVEN, "given", &[], &[], &buffers[..1], Attributes::default());
    for layer in 0..LAYERS {
        builder.layer(Some(layer));
        for (slot, input, output, outs, ins) in PROJECTIONS {
            let weight = builder.weight(&format!("{layer}.{slot}"), outs, ins, format);
            builder.call(&LINEAR, slot, &[buffers[input]], &[weight], &[buffers[output]], Attributes::default());
        }
    }
    if rows > 1 {
        return builder.finish(buffers[0]);
    }
    let logits = builder.buffer("logits", rows, VOCABULARY, DType::BF16);
    let weight = builder.weight("head", VOCABULARY, HIDDEN, format);
    builder.call_in(Group::Head, &LINEAR, "lm_head", &[buffers[0]], &[weight], &[logits], Attributes::default());
    builder.finish(logits)
}

/// Bytes per second at which all workers read all weights once.
fn read_rate(workers: &Workers, program: &Program, weights: &Weights) -> f64 {
    let all: Vec<&[u8]> =
        program.weights.iter().filter_map(|spec| weights.get(&spec.name)).map(|packed| packed.bytes).collect();
    let bytes: usize = all.iter().map(|bytes| bytes.len()).sum();
    let start = Instant::now();
    workers.run(&|worker| {
        for bytes in &all {
            let part = bytes.len() / workers.count();
            let mut sums = [0u64; 8];
            for line in bytes[worker * part..(worker + 1) * part].chunks_exact(64) {
                for (sum, word) in sums.iter_mut().zip(line.chunks_exact(8)) {
                    *sum = sum.wrapping_add(u64::from_le_bytes(word.try_into().expect("eight bytes")));
                }
            }
            std::hint::black_box(sums);
        }
    });
    bytes as f64 / start.elapsed().as_secs_f64()
}

/// Weights whose values do not matter, made as they are packed.
struct Made {
    rows: usize,
    cols: usize,
    format: WeightFormat,
}

impl RowSource for Made {
    fn rows(&self) -> usize {
        self.rows
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn encoding(&self) -> Encoding {
        match self.format {
            WeightFormat::Affine4 { group, parameters } => Encoding::Affine4 { group, parameters },
            WeightFormat::Int8 { group } => Encoding::Int8 { group },
            WeightFormat::Bf16 | WeightFormat::F32 => Encoding::Dense(ElementType::BF16),
        }
    }

    fn read_f32(&self, row: usize, out: &mut [f32]) {
        for (col, value) in out.iter_mut().enumerate() {
            *value = ((row * 7 + col * 13) % 15) as f32 / 128.0 - 7.0 / 128.0;
        }
    }

    fn read_codes(&self, row: usize, codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
        for (col, code) in codes.iter_mut().enumerate() {
            *code = (row * 7 + col * 13) as u8 % 15;
        }
        scales.fill(1.0 / 128.0);
        biases.fill(-7.0 / 128.0);
    }
}

fn pack(program: &Program, threads: usize) -> Arc<Weights> {
    let made = |spec: &WeightSpec| Made { rows: spec.rows, cols: spec.cols, format: spec.format };
    let sources: Vec<Made> = program.weights.iter().map(made).collect();
    let requests: Vec<WeightRequest<'_>> = program
        .weights
        .iter()
        .zip(&sources)
        .map(|(spec, source)| WeightRequest { name: spec.name.clone(), format: spec.format, source, may_round: true })
        .collect();
    Arc::new(Weights::pack(&requests, threads, &AtomicBool::new(false)).expect("made weights can be packed"))
}

/// Stands for whoever wrote the input.
struct Given;
static GIVEN: Given = Given;
static GIVEN_KERNEL: Kernel = kernel! {
    operator: "given", name: "none", isa: "portable", features: &[],
    nmse: 0.0, because: "does nothing", run: |_| {},
};

impl Operator for Given {
    fn name(&self) -> &'static str {
        "given"
    }

    fn group(&self) -> Group {
        Group::Pointwise
    }

    fn check(&self, _: &CallShape) -> Result<(), String> {
        Ok(())
    }

    fn cost(&self, _: &CallShape) -> Cost {
        Cost::default()
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        static KERNELS: &[&Kernel] = &[&GIVEN_KERNEL];
        KERNELS
    }

    fn cases(&self) -> Vec<Case> {
        Vec::new()
    }

    fn random_case(&self, _: &mut Draw) -> Case {
        unreachable!("it has no kernel to test")
    }
}

/// The instruction that products are held against: the tiles' where there are any, fed from the first-level cache as a kernel
/// feeds them, and else that of bfloat16 pairs in registers.
fn multiplying() -> Option<&'static Peak> {
    let runs = |path: &str, operands: Operands| {
        peaks().find(|peak| {
            (peak.path, peak.operands) == (path, operands) && peak.unavailable(Features::detect()).is_none()
        })
    };
    runs("amx-bf16", Operands::Loads).or_else(|| runs("vdpbf16ps", Operands::Registers))
}

/// Its flops per second on all workers, or infinity where the processor has neither.
fn peak_rate(workers: &Workers) -> f64 {
    /// Flops of each worker: milliseconds.
    const FLOPS: u64 = 2_000_000_000;
    let Some(peak) = multiplying() else { return f64::INFINITY };
    let rounds = FLOPS.div_ceil(peak.operations);
    let start = Instant::now();
    workers.run(&|_| peak.run(rounds));
    (peak.operations * rounds) as f64 * workers.count() as f64 / start.elapsed().as_secs_f64()
}
