//! From the profiler's records to the launches that this process made: each kernel is told by its order, its name, and its graph.
//! Not here: getting the records (`cupti.rs`), and what the launches are of a program (`probe`).

use crate::cupti::{ClockPair, Delivered, KernelRecord};
use ops::recording::{Launch, LaunchSpan, Recording, Run};
use std::sync::Arc;

/// A run as it was handed to the driver.
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    pub(crate) list: Arc<Vec<Launch>>,
    pub(crate) program: bool,
    pub(crate) graph: bool,
}

/// Both clocks when recording began and when it ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    pub(crate) start: ClockPair,
    pub(crate) stop: ClockPair,
}

/// Times shorter than this do not tell how fast one clock runs by the other's.
const SHORTEST_NS: u64 = 10_000_000;

impl Clocks {
    /// A time of the profiler's clock on the monotonic one: on the line through the two readings.
    pub(crate) fn monotonic(&self, profiler_ns: u64) -> u64 {
        let since = i128::from(profiler_ns) - i128::from(self.start.profiler_ns);
        let profiler = i128::from(self.stop.profiler_ns) - i128::from(self.start.profiler_ns);
        let monotonic = i128::from(self.stop.monotonic_ns) - i128::from(self.start.monotonic_ns);
        let moved = if profiler < i128::from(SHORTEST_NS) { since } else { since * monotonic / profiler };
        u64::try_from(i128::from(self.start.monotonic_ns) + moved).unwrap_or(0)
    }

    /// How far the profiler's clock ran ahead of the monotonic one between the two readings.
    fn drift_ns(&self) -> i64 {
        let passed = |from: u64, to: u64| i128::from(to) - i128::from(from);
        let drift = passed(self.start.profiler_ns, self.stop.profiler_ns)
            - passed(self.start.monotonic_ns, self.stop.monotonic_ns);
        i64::try_from(drift).unwrap_or(i64::MAX)
    }
}

/// Tells every kernel which launch it is.
///
/// All launches go into one stream, in which a kernel starts after the one before it has started and ends after it has ended: in
/// the order of their starts kernels are the launches in their order. That this is so is checked by their names; by their graphs'
/// nodes, whose numbers rise as they were captured; and by the numbers of launches outside of graphs, which rise too. From the first
/// kernel on that is not what was launched, nothing more is told.
pub(crate) fn recording(
    runs: &[Noted],
    Delivered { mut kernels, dropped, .. }: Delivered,
    clocks: &Clocks,
    profiler: String,
) -> Recording {
    let mut recording = Recording {
        kernels: kernels.len() as u64,
        dropped,
        profiler,
        clock_error_ns: clocks.start.error_ns + clocks.stop.error_ns,
        clock_drift_ns: clocks.drift_ns(),
        ..Recording::default()
    };
    let mut known: Vec<&Arc<Vec<Launch>>> = Vec::new();
    for noted in runs {
        let list = known.iter().position(|list| Arc::ptr_eq(list, &noted.list) || *list == &noted.list);
        let list = list.unwrap_or_else(|| {
            known.push(&noted.list);
            known.len() - 1
        });
        recording.runs.push(Run { list, program: noted.program, graph: noted.graph });
    }
    recording.lists = known.into_iter().map(|list| list.as_ref().clone()).collect();
    // A kernel whose start was not collected has 0 there.
    kernels.retain(|kernel| kernel.start > 0 && kernel.end >= kernel.start);
    kernels.sort_by_key(|kernel| kernel.start);
    let mut rest = kernels.as_slice();
    for (number, run) in recording.runs.iter().enumerate() {
        let list = &recording.lists[run.list];
        let own = &rest[..list.len().min(rest.len())];
        if let Some(problem) = different(run, list, own) {
            recording.problem = Some(format!("run {number}: {problem}"));
            return recording;
        }
        rest = &rest[own.len()..];
        recording.spans.extend(own.iter().enumerate().map(|(launch, kernel)| LaunchSpan {
            run: number,
            launch,
            device: kernel.device,
            stream: kernel.stream,
            start_ns: clocks.monotonic(kernel.start),
            end_ns: clocks.monotonic(kernel.end),
        }));
    }
    if let Some(more) = rest.first() {
        recording.problem = Some(format!(
            "{} kernels more than were launched, the first of them '{}'; nothing else may use the GPU from this process",
            rest.len(),
            more.name
        ));
    }
    recording
}

/// How `kernels` are not the launches of `list`.
fn different(run: &Run, list: &[Launch], kernels: &[KernelRecord]) -> Option<String> {
    for (index, (launch, kernel)) in list.iter().zip(kernels).enumerate() {
        if launch.kernel != kernel.name {
            return Some(format!("launch {index} was '{}', recorded was '{}'", launch.kernel, kernel.name));
        }
        if (kernel.graph != 0) != run.graph {
            let how = if run.graph { "in a graph, recorded outside of one" } else { "alone, recorded in a graph" };
            return Some(format!("launch {index} ('{}') was made {how}", launch.kernel));
        }
        let Some(before) = index.checked_sub(1).map(|before| &kernels[before]) else { continue };
        let follows = match run.graph {
            true => {
                kernel.correlation == before.correlation && kernel.graph == before.graph && kernel.node > before.node
            }
            false => kernel.correlation > before.correlation,
        };
        if !follows {
            return Some(format!("launch {index} ('{}') ran before the one before it", launch.kernel));
        }
    }
    (kernels.len() < list.len())
        .then(|| format!("{} kernels were launched, and {} of them were recorded", list.len(), kernels.len()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::cupti::{kernel_record, layout};

    /// What an H200 recorded of a request (CUPTI 13.0): a pass launched one by one, then passes replayed as graphs; a line is
    /// `correlation graph node stream start end name`, and `#` begins a run.
    const RECORDED: &str = include_str!("../fixtures/cupti-h200.txt");
    /// A kernel as a line of these, and the beginning of its record as CUPTI gave it, in hexadecimal.
    const RECORD: &str = include_str!("../fixtures/cupti-record.txt");

    struct Fixture {
        runs: Vec<Noted>,
        kernels: Vec<KernelRecord>,
        clocks: Clocks,
    }

    fn kernel(line: &str) -> KernelRecord {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        KernelRecord {
            correlation: number(0) as u32,
            graph: number(1) as u32,
            node: number(2),
            device: 0,
            stream: number(3) as u32,
            start: number(4),
            end: number(5),
            name: words[6].to_owned(),
        }
    }

    fn fixture() -> Fixture {
        let (mut runs, mut kernels): (Vec<Noted>, Vec<KernelRecord>) = (Vec::new(), Vec::new());
        let mut clocks = Vec::new();
        for line in RECORDED.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            match words[0] {
                "clocks" => {
                    clocks.push(ClockPair { monotonic_ns: number(1), profiler_ns: number(2), error_ns: number(3) })
                }
                "#" => runs.push(Noted { list: Arc::default(), program: true, graph: words[1] == "graph" }),
                _ => {
                    kernels.push(kernel(line));
                    let calls = vec![kernels.len() as u32];
                    let list = Arc::make_mut(&mut runs.last_mut().unwrap().list);
                    list.push(Launch { kernel: words[6].to_owned(), calls });
                }
            }
        }
        Fixture { runs, kernels, clocks: Clocks { start: clocks[0], stop: clocks[1] } }
    }

    fn told(fixture: &Fixture, kernels: Vec<KernelRecord>) -> Recording {
        let delivered = Delivered { kernels, ..Delivered::default() };
        recording(&fixture.runs, delivered, &fixture.clocks, "CUPTI".to_owned())
    }

    #[test]
    fn a_record_is_read_at_the_published_places() {
        let (line, hexadecimal) = RECORD.trim_end().split_once('\n').unwrap();
        let byte = |at: usize| u8::from_str_radix(&hexadecimal[2 * at..2 * at + 2], 16).unwrap();
        let bytes: [u8; layout::BYTES] = std::array::from_fn(byte);
        let expected = kernel(line);
        assert_eq!(kernel_record(&bytes, expected.name.clone()), expected);
    }

    #[test]
    fn every_kernel_of_a_recorded_request_is_told_and_lies_within_it() {
        let fixture = fixture();
        // However they were delivered.
        let mut shuffled = fixture.kernels.clone();
        shuffled.reverse();
        let recording = told(&fixture, shuffled);
        assert_eq!((&recording.problem, recording.spans.len() as u64), (&None, recording.launched()));
        assert!(recording.runs.iter().any(|run| run.graph) && recording.runs.iter().any(|run| !run.graph));
        for (index, span) in recording.spans.iter().enumerate() {
            let launch = &recording.lists[recording.runs[span.run].list][span.launch];
            assert_eq!(launch.kernel, fixture.kernels[index].name);
            let window = fixture.clocks.start.monotonic_ns..fixture.clocks.stop.monotonic_ns;
            assert!(window.contains(&span.start_ns) && window.contains(&span.end_ns) && span.start_ns <= span.end_ns);
        }
        // What the order rests on: a kernel starts and ends after the one before it, and some begin before that has ended.
        let pairs = || recording.spans.windows(2).filter(|pair| pair[0].run == pair[1].run);
        assert!(pairs().all(|pair| pair[0].start_ns < pair[1].start_ns && pair[0].end_ns <= pair[1].end_ns));
        assert!(pairs().filter(|pair| pair[1].start_ns < pair[0].end_ns).count() > 100);
    }

    #[test]
    fn a_kernel_that_is_missing_renamed_or_of_another_graph_ends_what_is_told() {
        let fixture = fixture();
        let all = fixture.kernels.len();
        for victim in [0, 3, all / 2, all - 1] {
            let mut kernels = fixture.kernels.clone();
            kernels.remove(victim);
            let recording = told(&fixture, kernels);
            assert!(recording.problem.is_some() && recording.spans.len() <= victim, "without {victim}");
            assert_eq!((recording.kernels + 1, recording.launched()), (all as u64, all as u64));

            let mut kernels = fixture.kernels.clone();
            kernels[victim].name = "another".to_owned();
            assert!(told(&fixture, kernels).problem.unwrap().contains("recorded was 'another'"));

            let mut kernels = fixture.kernels.clone();
            kernels[victim].graph = if kernels[victim].graph == 0 { 7 } else { 0 };
            assert!(told(&fixture, kernels).problem.is_some());

            let mut kernels = fixture.kernels.clone();
            kernels[victim].start = 0;
            assert!(told(&fixture, kernels).spans.len() <= victim, "a start that was not collected");
        }
        let mut kernels = fixture.kernels.clone();
        kernels.push(KernelRecord { start: u64::MAX - 1, end: u64::MAX, name: "more".into(), ..kernels[0].clone() });
        assert!(told(&fixture, kernels).problem.unwrap().contains("1 kernels more than were launched"));
        assert!(told(&fixture, Vec::new()).problem.unwrap().contains("were launched, and 0"));
    }

    #[test]
    fn times_lie_on_the_line_through_both_readings() {
        let pair = |monotonic_ns, profiler_ns| ClockPair { monotonic_ns, profiler_ns, error_ns: 20 };
        // The profiler's clock runs 100 parts in a million faster, as a clock does that is being set.
        let clocks = Clocks { start: pair(5_000, 1_000_000_000_000), stop: pair(1_000_005_000, 1_001_000_100_000) };
        assert_eq!(clocks.monotonic(1_000_000_000_000), 5_000);
        assert_eq!(clocks.monotonic(1_000_500_050_000), 500_005_000);
        assert_eq!((clocks.monotonic(1_001_000_100_000), clocks.drift_ns()), (1_000_005_000, 100_000));
        let short = Clocks { start: pair(5_000, 100), stop: pair(6_000, 1_300) };
        assert_eq!(short.monotonic(600), 5_500, "a millionth of a second says nothing about a clock's rate");
        assert_eq!(short.monotonic(0), 4_900);
    }
}
