//! The table of targets on a GPU: what runs, which numbers of it are demanded, and what llama.cpp's CUDA build reached.
//! Not here: how a row is measured (`gpu.rs`).

use record::bench::Metric;

/// One row: what runs together, and every number that is taken from it.
pub(super) struct GpuRow {
    /// What `--only` names.
    pub(super) id: &'static str,
    pub(super) model: &'static str,
    pub(super) work: GpuWork,
    pub(super) bars: &'static [GpuBar],
}

/// What runs.
#[derive(Clone, Copy)]
pub(super) enum GpuWork {
    /// Requests through `bench`, 4-bit and bfloat16 weights in alternation.
    Requests { input_len: usize, output_len: usize },
    /// Decode steps through `timeline`.
    Pauses,
}

/// One demand.
pub(super) struct GpuBar {
    pub(super) what: &'static str,
    pub(super) of: Of,
    pub(super) must: f64,
    pub(super) aim: f64,
    /// llama.cpp's figure of record in tokens per second, in words; it is shown and nothing is demanded of it.
    pub(super) llama: &'static str,
}

/// Which number of what ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Of {
    /// Tokens per second of this variant.
    Rate(&'static str, Metric),
    /// Part of a decode step in which no kernel runs.
    IdleShare,
}

/// The newest rung of the device's ladder, over 4-bit weights.
pub(super) const W4: &str = "fast";
/// The same program over bfloat16 weights.
pub(super) const BF16: &str = "unpacked";

const SMALL: &str = "synthetic:qwen3-0.6b";
const LARGE: &str = "synthetic:qwen3-4b";
/// 128 tokens in and 128 steps behind the first token.
const SHORT: GpuWork = GpuWork::Requests { input_len: 128, output_len: 129 };
/// The last 64 of 2,080 positions are steps: "at depth 2,048".
const LONG: GpuWork = GpuWork::Requests { input_len: 2016, output_len: 65 };

const fn rate(
    what: &'static str,
    variant: &'static str,
    metric: Metric,
    must: f64,
    aim: f64,
    llama: &'static str,
) -> GpuBar {
    GpuBar { what, of: Of::Rate(variant, metric), must, aim, llama }
}

pub(super) const GPU_ROWS: &[GpuRow] = &[
    GpuRow {
        id: "0.6b",
        model: SMALL,
        work: SHORT,
        bars: &[
            rate("0.6B W4, decode, 128 after 128", W4, Metric::Decode, 2_800.0, 3_400.0, "860 (Q4_0)"),
            rate("0.6B bfloat16, decode, 128 after 128", BF16, Metric::Decode, 2_200.0, 2_550.0, "651"),
            rate("0.6B bfloat16, prefill 128", BF16, Metric::Prefill, 60e3, 128e3, "38,200"),
        ],
    },
    GpuRow {
        id: "4b",
        model: LARGE,
        work: SHORT,
        bars: &[
            rate("4B W4, decode, 128 after 128", W4, Metric::Decode, 1_000.0, 1_250.0, "371 (Q4_0)"),
            rate("4B bfloat16, decode, 128 after 128", BF16, Metric::Decode, 470.0, 500.0, "269"),
            rate("4B bfloat16, prefill 128", BF16, Metric::Prefill, 25e3, 45e3, "19,200"),
        ],
    },
    GpuRow {
        id: "0.6b-2048",
        model: SMALL,
        work: LONG,
        bars: &[
            rate("0.6B W4, decode, 64 after 2,016", W4, Metric::Decode, 2_200.0, 2_700.0, "759 (Q4_0, at 2,048)"),
            rate(
                "0.6B bfloat16, prefill 2,016",
                BF16,
                Metric::Prefill,
                140e3,
                270e3,
                "58,700; 74,500 in one batch (of 2,048)",
            ),
        ],
    },
    GpuRow {
        id: "4b-2048",
        model: LARGE,
        work: LONG,
        bars: &[
            rate("4B W4, decode, 64 after 2,016", W4, Metric::Decode, 900.0, 1_100.0, "349 (Q4_0, at 2,048)"),
            rate("4B bfloat16, prefill 2,016", BF16, Metric::Prefill, 58e3, 68e3, "34,200 (of 2,048)"),
            rate("4B W4, prefill 2,016", W4, Metric::Prefill, 35e3, 57e3, "16,800 (Q4_0, of 2,048)"),
        ],
    },
    GpuRow {
        id: "idle",
        model: SMALL,
        work: GpuWork::Pauses,
        bars: &[GpuBar {
            what: "0.6B W4, part of a decode step in which the GPU is idle",
            of: Of::IdleShare,
            must: 0.05,
            aim: 0.02,
            llama: "-",
        }],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_bars_have_names_of_their_own_and_aims_surpass_what_must_be() {
        let mut bars: Vec<&GpuBar> = Vec::new();
        for (index, row) in GPU_ROWS.iter().enumerate() {
            assert!(GPU_ROWS[..index].iter().all(|other| other.id != row.id), "{}", row.id);
            for bar in row.bars {
                assert!(bars.iter().all(|other| other.what != bar.what), "{}", bar.what);
                assert_eq!(bar.aim < bar.must, bar.of == Of::IdleShare, "{}", bar.what);
                assert_eq!(bar.of == Of::IdleShare, matches!(row.work, GpuWork::Pauses), "{}", bar.what);
                assert!(bar.what.starts_with(if row.model == SMALL { "0.6B" } else { "4B" }), "{}", bar.what);
                if let Of::Rate(variant, _) = bar.of {
                    assert_eq!(bar.what.contains("W4"), variant == W4, "{}", bar.what);
                    assert_eq!(bar.llama.contains("Q4_0"), variant == W4, "{}", bar.what);
                }
                bars.push(bar);
            }
        }
    }

    /// The demands are the project's, kept here a second time: model, weights, prompt, then must and aim.
    #[test]
    fn demands_are_those_that_were_set() {
        let set = [
            ("0.6B bfloat16, decode, 128", 2_200.0, 2_550.0),
            ("0.6B W4, decode, 128", 2_800.0, 3_400.0),
            ("4B bfloat16, decode, 128", 470.0, 500.0),
            ("4B W4, decode, 128", 1_000.0, 1_250.0),
            ("0.6B W4, decode, 64 after 2,016", 2_200.0, 2_700.0),
            ("4B W4, decode, 64 after 2,016", 900.0, 1_100.0),
            ("0.6B bfloat16, prefill 128", 60e3, 128e3),
            ("4B bfloat16, prefill 128", 25e3, 45e3),
            ("0.6B bfloat16, prefill 2,016", 140e3, 270e3),
            ("4B bfloat16, prefill 2,016", 58e3, 68e3),
            ("4B W4, prefill 2,016", 35e3, 57e3),
            ("0.6B W4, part of a decode step", 0.05, 0.02),
        ];
        let bars: Vec<&GpuBar> = GPU_ROWS.iter().flat_map(|row| row.bars).collect();
        assert_eq!(bars.len(), set.len());
        for (what, must, aim) in set {
            let bar = bars.iter().find(|bar| bar.what.starts_with(what)).expect(what);
            assert_eq!((bar.must, bar.aim), (must, aim), "{what}");
        }
    }
}
