//! The table of targets: what is measured, against what it is held, and what is asked for.
//! Not here: how a row is measured (`measure.rs`).

use record::bench::Metric;

/// One row of the table.
pub(super) struct Row {
    /// What `--only` names.
    pub(super) id: &'static str,
    pub(super) what: &'static str,
    pub(super) work: Work,
    pub(super) bars: &'static [Bar],
}

/// What runs.
pub(super) enum Work {
    /// Requests through `bench`, in alternation with the peers that the bars name.
    Request(Request),
    /// So many sequences decoded in one pass over the weights, in alternation with one.
    Batch(u64),
    /// The largest resident size of `run`.
    Memory,
    /// `run` on a file in the page cache, from the start of its process to the first byte of its answer.
    FirstToken,
}

pub(super) struct Request {
    pub(super) model: &'static str,
    pub(super) checkpoint: &'static str,
    pub(super) input_len: usize,
    pub(super) output_len: usize,
    /// Whole requests before the measured one; none where a prefill alone takes many seconds.
    pub(super) warmup: usize,
    pub(super) metric: Metric,
    /// None: every processor.
    pub(super) threads: Option<u64>,
    /// Features that our engine does without.
    pub(super) without: Option<&'static str>,
}

/// One demand on a row.
pub(super) struct Bar {
    pub(super) against: Against,
    pub(super) must: f64,
    pub(super) aim: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Against {
    /// A fraction of: the step's bytes at the read bandwidth of four streams, read in turn with decode steps.
    Read,
    /// A fraction of the AMX rate (two by two tiles, with loads), measured before and after, where tiles are slow.
    TilesSlow,
    /// The same where they are fast: one machine has both states.
    TilesFast,
    /// Times the best of these.
    Peers(&'static [&'static str]),
    /// Times the rate of one sequence.
    OneSequence,
    /// At most so many times packed weights and cache.
    Bytes,
    /// At most so many seconds.
    Seconds,
}

impl Against {
    pub(super) fn lower_is_better(self) -> bool {
        matches!(self, Against::Bytes | Against::Seconds)
    }
}

const SMALL: &str = "synthetic:qwen3-0.6b";
const NO_AVX512: &str =
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx512vbmi,amx-tile,amx-int8,amx-bf16";

const DECODE: Request = Request {
    model: SMALL,
    checkpoint: "fast",
    input_len: 128,
    output_len: 129,
    warmup: 1,
    metric: Metric::Decode,
    threads: None,
    without: None,
};
const PREFILL: Request = Request { output_len: 2, metric: Metric::Prefill, ..DECODE };

const fn bar(against: Against, must: f64, aim: f64) -> Bar {
    Bar { against, must, aim }
}

const LLAMA: Against = Against::Peers(&["llama.cpp"]);
const LLAMA_AVX2: Against = Against::Peers(&["llama.cpp-avx2"]);
const DECODE_BARS: &[Bar] = &[bar(Against::Read, 0.90, 1.05), bar(LLAMA, 1.4, 1.6)];
const PREFILL_BARS: &[Bar] = &[
    bar(Against::TilesSlow, 0.60, 0.75),
    bar(Against::TilesFast, 0.38, 0.47),
    bar(Against::Peers(&["llama.cpp", "openvino"]), 1.6, 2.5),
];

pub(super) const ROWS: &[Row] = &[
    Row { id: "decode", what: "decode, W4 g128, 128 after 128", work: Work::Request(DECODE), bars: DECODE_BARS },
    Row {
        id: "decode-bf16",
        what: "decode, BF16 weights",
        work: Work::Request(Request { checkpoint: "bf16-weights", ..DECODE }),
        bars: &[bar(Against::Read, 0.90, 1.05)],
    },
    Row {
        id: "decode-4b",
        what: "decode, 4B W4, 32 after 128",
        work: Work::Request(Request { model: "synthetic:qwen3-4b", output_len: 33, warmup: 0, ..DECODE }),
        bars: &[bar(Against::Read, 0.92, 1.05)],
    },
    Row {
        id: "decode-2048",
        what: "decode at depth 2,048",
        work: Work::Request(Request { input_len: 2048, output_len: 65, warmup: 0, ..DECODE }),
        bars: &[bar(Against::Read, 0.85, 1.0)],
    },
    Row {
        id: "decode-8192",
        what: "decode at depth 8,192",
        work: Work::Request(Request { input_len: 8192, output_len: 33, warmup: 0, ..DECODE }),
        bars: &[bar(Against::Read, 0.85, 1.0)],
    },
    Row { id: "prefill-128", what: "prefill 128, W4", work: Work::Request(PREFILL), bars: PREFILL_BARS },
    Row {
        id: "prefill-512",
        what: "prefill 512, W4",
        work: Work::Request(Request { input_len: 512, ..PREFILL }),
        bars: PREFILL_BARS,
    },
    Row {
        id: "prefill-2048",
        what: "prefill 2,048, W4",
        work: Work::Request(Request { input_len: 2048, warmup: 0, ..PREFILL }),
        bars: PREFILL_BARS,
    },
    Row {
        id: "prefill-bf16",
        what: "prefill 128, BF16 weights",
        work: Work::Request(Request { checkpoint: "bf16-weights", ..PREFILL }),
        bars: &[bar(Against::Peers(&["transformers-bf16"]), 1.8, 2.5)],
    },
    Row {
        id: "batch-8",
        what: "8 sequences decoded together",
        work: Work::Batch(8),
        bars: &[bar(Against::OneSequence, 4.0, 5.0)],
    },
    Row { id: "memory", what: "peak resident size, W4", work: Work::Memory, bars: &[bar(Against::Bytes, 1.2, 1.1)] },
    Row {
        id: "first-token",
        what: "first token of `run`, SmolLM2 GGUF, 30 tokens in",
        work: Work::FirstToken,
        bars: &[bar(Against::Seconds, 0.35, 0.2)],
    },
    Row {
        id: "decode-1-thread",
        what: "decode, W4, one thread",
        work: Work::Request(Request { threads: Some(1), ..DECODE }),
        bars: DECODE_BARS,
    },
    Row {
        id: "prefill-1-thread",
        what: "prefill 128, W4, one thread",
        work: Work::Request(Request { threads: Some(1), ..PREFILL }),
        bars: PREFILL_BARS,
    },
    Row {
        id: "decode-avx2",
        what: "decode, W4, AVX2 only",
        work: Work::Request(Request { without: Some(NO_AVX512), ..DECODE }),
        bars: &[bar(LLAMA_AVX2, 1.0, 1.2)],
    },
    Row {
        id: "prefill-avx2",
        what: "prefill 128, W4, AVX2 only",
        work: Work::Request(Request { without: Some(NO_AVX512), ..PREFILL }),
        bars: &[bar(LLAMA_AVX2, 1.0, 1.2)],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own_and_asks_for_something_its_aim_surpasses() {
        for (index, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..index].iter().all(|other| other.id != row.id), "{}", row.id);
            assert!(!row.bars.is_empty(), "{}", row.id);
            for bar in row.bars {
                assert_eq!(bar.aim < bar.must, bar.against.lower_is_better(), "{}", row.id);
            }
        }
    }
}
