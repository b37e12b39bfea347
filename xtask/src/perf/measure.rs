//! One row of the table of targets: run what it names, and hold the outcome against each of its bars.
//! Not here: starting the verbs (`verbs.rs`), and printing (`table.rs`).

use anyhow::{Context, Result};
use record::bench::{BenchRecord, EngineFacts, Setting};
use record::statistics::median::median_interval;
use record::{Ceilings, WiringPlan};

use super::rows::{Against, Bar, Request, Row, Work};
use super::table::Unit;
use super::verbs::{Verbs, peak_rates};

/// A median, and where the true one lies (95 %, or the extremes of few samples).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Spread {
    pub(super) fn of(samples: &[f64]) -> Option<Spread> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => return None,
            n if n % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        };
        let (low, high, _) = median_interval(samples).unwrap_or((median, median, 0.0));
        Some(Spread { median, low, high })
    }

    /// `self / other`, each end with the other's worse end.
    fn over(self, other: Spread) -> Spread {
        Spread { median: self.median / other.median, low: self.low / other.high, high: self.high / other.low }
    }

    fn times(self, factor: f64) -> Spread {
        Spread { median: self.median * factor, low: self.low * factor, high: self.high * factor }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Met,
    Missed,
    /// What is demanded lies inside the interval.
    Inconclusive,
    NotMeasurable,
}

/// Meeting or missing a demand takes the whole interval: a median beyond it may be noise.
pub(super) fn verdict(judged: Spread, must: f64, lower_is_better: bool) -> Verdict {
    let (worst, best) = if lower_is_better { (-judged.high, -judged.low) } else { (judged.low, judged.high) };
    let must = if lower_is_better { -must } else { must };
    if worst >= must {
        Verdict::Met
    } else if best < must {
        Verdict::Missed
    } else {
        Verdict::Inconclusive
    }
}

/// One bar of one row, judged.
pub(super) struct Line {
    pub(super) what: &'static str,
    /// Ours, with unit; or why there is none.
    pub(super) ours: String,
    /// What it is held against, with its own figure.
    pub(super) against: String,
    /// What is held against the demand: a ratio on the CPU, the number itself on a GPU.
    pub(super) judged: Option<Spread>,
    /// Of what is judged, and of the demand.
    pub(super) unit: Unit,
    pub(super) must: f64,
    pub(super) aim: f64,
    pub(super) lower_is_better: bool,
    pub(super) verdict: Verdict,
    /// Why it was not measurable, or what else is to be known.
    pub(super) note: String,
}

/// Everything that a row gave.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) lines: Vec<Line>,
    pub(super) engines: Vec<EngineFacts>,
    pub(super) machine: Option<String>,
    /// Which rungs names stood for, in words.
    pub(super) rungs: Vec<String>,
}

/// What a bar came to: the words for what it is held against, and the ratio or why there is none.
type Held = (String, std::result::Result<Spread, String>);

fn line(row: &Row, bar: &Bar, ours: &str, (against, held): Held, note: &str) -> Line {
    let lower = bar.against.lower_is_better();
    let (judged, verdict, note) = match held {
        Ok(ratio) => (Some(ratio), verdict(ratio, bar.must, lower), note.to_owned()),
        Err(why) => (None, Verdict::NotMeasurable, why),
    };
    Line {
        what: row.what,
        ours: ours.to_owned(),
        against,
        judged,
        unit: Unit::Ratio,
        must: bar.must,
        aim: bar.aim,
        lower_is_better: lower,
        verdict,
        note,
    }
}

/// Measures a row. A row that cannot be measured is lines that say why.
pub(super) fn measure(verbs: &Verbs, row: &Row) -> Outcome {
    let measured = match &row.work {
        Work::Request(request) => request_row(verbs, row, request),
        Work::Batch(rows) => batch_row(verbs, row, *rows),
        Work::Memory => memory_row(verbs, row),
        Work::FirstToken => first_token_row(verbs, row),
    };
    measured.unwrap_or_else(|error| {
        let why = format!("{error:#}");
        let lines = row.bars.iter().map(|bar| line(row, bar, "-", (words(bar.against), Err(why.clone())), ""));
        Outcome { lines: lines.collect(), ..Outcome::default() }
    })
}

fn words(against: Against) -> String {
    match against {
        Against::Read => "bytes at the read bandwidth, 4 streams".into(),
        Against::TilesSlow => "AMX rate, slow state".into(),
        Against::TilesFast => "AMX rate, fast state".into(),
        Against::Peers(names) => format!("best of {}", names.join(", ")),
        Against::OneSequence => "one sequence".into(),
        Against::Bytes => "packed weights and cache".into(),
        Against::Seconds => "seconds".into(),
    }
}

fn request_row(verbs: &Verbs, row: &Row, request: &Request) -> Result<Outcome> {
    let threads =
        request.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |count| count.get() as u64));
    let middle = request.input_len + request.output_len / 2;
    let decodes = request.metric == record::bench::Metric::Decode;
    let plan = verbs.wiring(row.id, request, if decodes { middle } else { request.input_len })?;
    let (reads, others): (Vec<&Bar>, Vec<&Bar>) = row.bars.iter().partition(|bar| bar.against == Against::Read);
    let mut outcome = Outcome::default();
    if let [bar] = reads[..] {
        beside_reads(verbs, row, request, threads, &plan, bar, &mut outcome)?;
    }
    if !others.is_empty() {
        beside_peers(verbs, row, request, threads, &plan, &others, &mut outcome)?;
    }
    Ok(outcome)
}

impl Outcome {
    fn add_engines(&mut self, bench: &BenchRecord) {
        self.engines.extend(bench.arms.iter().filter_map(|arm| arm.engine.known().cloned()));
        let host = &bench.host;
        let model = host.cpu_model.known().map_or("unknown processor", String::as_str);
        self.machine = Some(format!("{model}, {} processors; {}", host.processors, bench.created));
    }
}

fn shown(rate: Spread) -> String {
    format!("{} tok/s ±{:.0} %", number(rate.median), 50.0 * (rate.high - rate.low) / rate.median)
}

/// Steps and reads of as many bytes in turn, in several processes: memory that many share is faster in one second than in the
/// next, so each step is held against the reads just before and after it.
fn beside_reads(
    verbs: &Verbs,
    row: &Row,
    request: &Request,
    threads: u64,
    plan: &WiringPlan,
    bar: &Bar,
    outcome: &mut Outcome,
) -> Result<()> {
    let step =
        plan.passes.iter().find(|pass| pass.workload.phase == record::Phase::Decode).context("no decode step")?;
    let turns = verbs.steps(request, threads, step.bytes_read)?;
    let rates: Vec<f64> = turns.iter().map(|(step, _)| 1e3 / step).collect();
    let ratios: Vec<f64> = turns.iter().map(|(step, read)| read / step).collect();
    let reads: Vec<f64> = turns.iter().map(|(_, read)| step.bytes_read as f64 / read / 1e6).collect();
    let (ours, ratio) = Spread::of(&rates).zip(Spread::of(&ratios)).context("no steps")?;
    let read = Spread::of(&reads).context("no reads")?;
    let megabytes = step.bytes_read as f64 / 1e6;
    let against = format!("{megabytes:.1} MB read in turn, {:.1} GB/s", read.median);
    outcome.lines.push(line(row, bar, &shown(ours), (against, Ok(ratio)), ""));
    Ok(())
}

/// One alternated run with the peers, the machine's ceilings before and after it.
fn beside_peers(
    verbs: &Verbs,
    row: &Row,
    request: &Request,
    threads: u64,
    plan: &WiringPlan,
    bars: &[&Bar],
    outcome: &mut Outcome,
) -> Result<()> {
    let peers: Vec<&str> = bars
        .iter()
        .filter_map(|bar| if let Against::Peers(names) = bar.against { Some(names) } else { None })
        .flatten()
        .copied()
        .collect();
    let before = verbs.ceilings(&format!("{}.before", row.id), threads, 5)?;
    let bench = verbs.bench(row.id, request, &peers, verbs.repeats())?;
    let ceilings = [before, verbs.ceilings(&format!("{}.after", row.id), threads, 5)?];
    let ours = Spread::of(&bench.values(0, request.metric)).context("none of our own samples counts")?;
    let floor = floor(&ceilings, threads, plan, request, ours);
    for bar in bars {
        let held = match bar.against {
            Against::Peers(names) => against_peers(&bench, names, request, ours),
            against => against_tiles(&ceilings, threads, plan, request, ours, against == Against::TilesFast),
        };
        outcome.lines.push(line(row, bar, &shown(ours), held, &floor));
    }
    outcome.add_engines(&bench);
    Ok(())
}

/// Operations of the projections of a prefill, per token.
fn operations(plan: &WiringPlan, request: &Request) -> Option<f64> {
    let pass = plan.passes.iter().find(|pass| pass.workload.phase == record::Phase::Prefill)?;
    let flops: u64 = pass.calls.iter().filter(|call| call.group == "projections").map(|call| call.flops).sum();
    (flops > 0).then(|| flops as f64 / request.input_len as f64)
}

fn against_tiles(
    ceilings: &[Ceilings],
    threads: u64,
    plan: &WiringPlan,
    request: &Request,
    ours: Spread,
    fast: bool,
) -> Held {
    let against = if fast { Against::TilesFast } else { Against::TilesSlow };
    let rates = match peak_rates(ceilings, threads, "amx-bf16") {
        Ok(rates) => rates,
        Err(why) => return (words(against), Err(why)),
    };
    let Some((rate, per_token)) = Spread::of(&rates).zip(operations(plan, request)) else {
        return (words(against), Err("the prefill has no projections".into()));
    };
    // Per thread: 2,100 to 2,300 GFLOP/s fast, 550 to 620 slow, and nothing between was seen to last.
    let state = rate.median / threads as f64;
    let held = format!("AMX at {:.0} GFLOP/s", rate.median);
    match (fast, state) {
        (true, ..=1700.0) => (held, Err("tiles were not in their fast state".into())),
        (false, 900.0..) => (held, Err("tiles were not in their slow state".into())),
        _ => (held, Ok(ours.times(per_token / 1e9).over(rate))),
    }
}

/// What a prefill's projections take at the fastest multiplication that this machine has, in words; empty for decode.
fn floor(ceilings: &[Ceilings], threads: u64, plan: &WiringPlan, request: &Request, ours: Spread) -> String {
    if request.metric != record::bench::Metric::Prefill {
        return String::new();
    }
    let Some(per_token) = operations(plan, request) else { return String::new() };
    // Codes times activations in two byte planes: two products for each weight.
    let paths = [("amx-bf16", 1.0), ("vdpbf16ps", 1.0), ("vpdpbusd", 2.0), ("fp32-avx512", 1.0), ("fp32-avx2", 1.0)];
    let allowed = |path: &str| request.without.is_none() || path == "fp32-avx2";
    let mut best: Option<(&str, f64)> = None;
    for (path, products) in paths.into_iter().filter(|(path, _)| allowed(path)) {
        let rate = peak_rates(ceilings, threads, path).ok().and_then(|samples| Spread::of(&samples));
        if let Some(rate) = rate.map(|rate| rate.median / products).filter(|rate| best.is_none_or(|(_, b)| *rate > b)) {
            best = Some((path, rate));
        }
    }
    best.map_or_else(String::new, |(path, rate)| {
        let planes = if path == "vpdpbusd" { " in two planes" } else { "" };
        let part = ours.median * per_token / 1e9 / rate;
        format!("floor: projections at {path}{planes}, {rate:.0} GFLOP/s; {part:.2} of it, all else included")
    })
}

fn against_peers(bench: &BenchRecord, names: &[&str], request: &Request, ours: Spread) -> Held {
    let mut best: Option<(&str, Spread, Spread)> = None;
    let mut missing = Vec::new();
    for &name in names {
        let Some(index) = bench.arm_named(name) else { continue };
        let arm = &bench.arms[index];
        let samples = bench.values(index, request.metric);
        let (Some(rate), true) = (Spread::of(&samples), arm.counts) else {
            let why = arm.engine.missing().map(|missing| missing.unavailable.clone());
            let why = why.or_else(|| arm.reason.clone()).unwrap_or_else(|| "no sample counts".into());
            missing.push(format!("{name}: {why}"));
            continue;
        };
        // The paired ratio is the peer's to ours.
        let paired = bench.comparison(index, request.metric).and_then(|comparison| {
            let (ratio, interval) = (comparison.ratio.value()?, comparison.interval.known());
            let (low, high) = interval.map_or((ratio, ratio), |interval| (interval.low, interval.high));
            Some(Spread { median: 1.0 / ratio, low: 1.0 / high, high: 1.0 / low })
        });
        if best.is_none_or(|(_, known, _)| rate.median > known.median) {
            best = Some((name, rate, paired.unwrap_or_else(|| ours.over(rate))));
        }
    }
    match best {
        Some((name, rate, ratio)) => {
            let absent = if missing.is_empty() { String::new() } else { format!(" (without {})", missing.join("; ")) };
            (format!("{name}, {} tok/s{absent}", number(rate.median)), Ok(ratio))
        }
        None => (words(Against::Peers(&[])) + &names.join(", "), Err(missing.join("; "))),
    }
}

fn batch_row(verbs: &Verbs, row: &Row, rows: u64) -> Result<Outcome> {
    let (one, together): (Vec<f64>, Vec<f64>) = verbs.batch(rows)?.into_iter().unzip();
    let ratios: Vec<f64> = together.iter().zip(&one).map(|(together, one)| together / one).collect();
    let (one, together) = Spread::of(&one).zip(Spread::of(&together)).context("no rates")?;
    let ratio = Spread::of(&ratios).context("no ratios")?;
    let lines = row.bars.iter().map(|bar| {
        let against = format!("one sequence, {} tok/s", number(one.median));
        line(row, bar, &format!("{} tok/s", number(together.median)), (against, Ok(ratio)), "")
    });
    Ok(Outcome { lines: lines.collect(), ..Outcome::default() })
}

fn memory_row(verbs: &Verbs, row: &Row) -> Result<Outcome> {
    const TOKENS: usize = 128;
    let request = Request {
        model: "synthetic:qwen3-0.6b",
        checkpoint: "fast",
        input_len: TOKENS,
        output_len: TOKENS,
        warmup: 0,
        metric: record::bench::Metric::PeakRss,
        threads: None,
        without: None,
    };
    let plan = verbs.wiring(row.id, &request, 2 * TOKENS)?;
    let step =
        plan.passes.iter().find(|pass| pass.workload.phase == record::Phase::Decode).context("no decode step")?;
    let ids: Vec<String> = (1..=TOKENS).map(|id| id.to_string()).collect();
    let (ids, tokens) = (ids.join(","), TOKENS.to_string());
    let answer = verbs.run(&["--model", request.model, "--ids", &ids, "--max-tokens", &tokens])?;
    let resident = answer["peak_resident"]["value"].as_f64().context("the resident size is not known here")?;
    // A step at the full context reads each packed weight and each cached key and value once.
    let (bytes, mib) = (step.bytes_read as f64, f64::from(1 << 20));
    let ratio = resident / bytes;
    let lines = row.bars.iter().map(|bar| {
        let against = format!("{:.0} MiB", bytes / mib);
        let ratio = Spread { median: ratio, low: ratio, high: ratio };
        line(row, bar, &format!("{:.0} MiB", resident / mib), (against, Ok(ratio)), "")
    });
    Ok(Outcome { lines: lines.collect(), ..Outcome::default() })
}

fn first_token_row(verbs: &Verbs, row: &Row) -> Result<Outcome> {
    const FILE: &str = "downloads/SmolLM2-135M-Instruct.Q4_1.gguf";
    if !verbs.place.join(FILE).exists() {
        anyhow::bail!("{} is not there; `cargo xtask fixtures` fetches it", verbs.place.join(FILE).display());
    }
    let prompt = "Name three rivers that flow through more than one country in Europe, and say where each of them \
                  ends, in one short sentence for every river, please.";
    let words = ["--model", FILE, "--raw", "--prompt", prompt, "--max-tokens", "1"];
    // Untimed: the file is in the page cache afterwards.
    let answer = verbs.run(&words)?;
    let tokens = answer["prompt_ids"].as_array().map_or(0, Vec::len);
    let times = if verbs.quick { 5 } else { 15 };
    let seconds = (0..times).map(|_| verbs.first_byte(&words)).collect::<Result<Vec<_>>>()?;
    let spread = Spread::of(&seconds).context("no times")?;
    let lines = row.bars.iter().map(|bar| {
        let held = (format!("{tokens} tokens in, process start included"), Ok(spread));
        line(row, bar, &format!("{:.3} s", spread.median), held, "")
    });
    Ok(Outcome { lines: lines.collect(), ..Outcome::default() })
}

fn number(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// A setting as an engine reported it.
pub(super) fn setting(setting: &Setting) -> String {
    match setting {
        Setting::Switch(on) => on.to_string(),
        Setting::Whole(number) => number.to_string(),
        Setting::Number(number) => number.to_string(),
        Setting::Text(text) => text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::ROWS;
    use super::*;

    fn exactly(value: f64) -> Spread {
        Spread { median: value, low: value, high: value }
    }

    #[test]
    fn medians_lie_between_their_bounds_and_ratios_keep_the_worse_ends() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[4.0, 1.0, 3.0, 2.0]).map(|spread| spread.median), Some(2.5));
        let (a, b) = (Spread { median: 4.0, low: 3.0, high: 5.0 }, Spread { median: 2.0, low: 1.0, high: 2.5 });
        assert_eq!(a.over(b), Spread { median: 2.0, low: 1.2, high: 5.0 });
    }

    #[test]
    fn a_bar_is_met_missed_inconclusive_or_not_measurable() {
        let judged = |id: &str, held: std::result::Result<Spread, String>| {
            let row = ROWS.iter().find(|row| row.id == id).expect("a row");
            let line = line(row, &row.bars[0], "ours", ("theirs".to_owned(), held), "a note");
            (line.verdict, line.note)
        };
        let verdict = |id: &str, ratio: f64| judged(id, Ok(exactly(ratio))).0;
        assert_eq!((verdict("decode", 0.90), verdict("decode", 0.89)), (Verdict::Met, Verdict::Missed));
        assert_eq!((verdict("memory", 1.2), verdict("memory", 1.21)), (Verdict::Met, Verdict::Missed));
        let wide = Spread { median: 1.5, low: 0.74, high: 3.2 };
        assert_eq!(judged("decode", Ok(wide)).0, Verdict::Inconclusive);
        assert_eq!(judged("memory", Ok(Spread { median: 1.1, low: 1.0, high: 1.3 })).0, Verdict::Inconclusive);
        assert_eq!(judged("memory", Ok(Spread { median: 1.1, low: 1.0, high: 1.2 })).0, Verdict::Met);
        assert_eq!(judged("decode", Err("no clock".into())), (Verdict::NotMeasurable, "no clock".to_owned()));
    }
}
