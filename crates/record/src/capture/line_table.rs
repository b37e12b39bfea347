//! From placed samples and resolved addresses to what every source line costs, and to stacks.
//! Not here: resolving addresses, which is `probe`'s, and the record around it (`lines.rs`).

use crate::capture::attribute::{Placed, Tally};
use crate::capture::lines::{ExecutableUse, LineRow, PlaceLines, SourceFile, StackCost, StackFrame};
use crate::capture::load::RawTrace;
use crate::capture::place::Cost;
use crate::capture::raw::RawAddress;
use crate::capture::share::{Share, Whole, ranks};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What the addresses of a trace are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resolution {
    pub frames: Vec<StackFrame>,
    /// By the address as the trace writes it: its frames, innermost first, at least one.
    pub addresses: HashMap<String, Vec<u32>>,
    pub executables: Vec<ExecutableUse>,
    /// By path.
    pub files: Vec<SourceFile>,
}

/// Where samples go whose stack has no line of the repository.
pub const OUTSIDE: &str = "[outside the repository]";
/// Where samples without any address go.
const NOWHERE: &str = "[no address]";

/// Lines and stacks of all places that have samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineTable {
    pub places: Vec<PlaceLines>,
    pub frames: Vec<StackFrame>,
    pub stacks: Vec<StackCost>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Location<'a> {
    file: &'a str,
    line: u32,
}

#[derive(Default)]
struct Row {
    functions: BTreeSet<String>,
    in_repository: bool,
    innermost: Tally,
    repository: Tally,
    inclusive: Tally,
}

impl LineTable {
    /// Adds up. Each sample counts once in each of the two self columns of its place: at its innermost line, and at its
    /// innermost line in the repository, looking outwards through the inline chain and then through the callers.
    pub fn new(trace: &RawTrace, placed: &Placed, resolution: &Resolution) -> LineTable {
        let mut frames = resolution.frames.clone();
        let nowhere = frames.len() as u32;
        let plain = |file: &str| StackFrame {
            function: file.to_owned(),
            file: file.to_owned(),
            line: 0,
            inlined: false,
            in_repository: false,
        };
        frames.push(plain(NOWHERE));
        let verified: BTreeSet<&str> = resolution
            .files
            .iter()
            .filter(|file| file.verification.is_verified())
            .map(|file| file.file.as_str())
            .collect();
        let stack_of = |addresses: &[RawAddress]| -> Vec<u32> {
            let known = addresses.iter().filter_map(|address| resolution.addresses.get(&address.0));
            let stack: Vec<u32> = known.flatten().copied().collect();
            if stack.is_empty() { vec![nowhere] } else { stack }
        };
        let mut table = LineTable { frames: frames.clone(), ..LineTable::default() };
        for (index, place) in placed.places.iter().enumerate() {
            let own = || placed.samples.iter().filter(move |sample| sample.place == index);
            let mut whole = Whole::new(trace.steps.len());
            let mut total = Tally::default();
            let mut rows: BTreeMap<Location<'_>, Row> = BTreeMap::new();
            let mut stacks: BTreeMap<Vec<u32>, (u64, u64)> = BTreeMap::new();
            let (mut line_zero, mut outside) = (0, 0);
            for placed in own() {
                let sample = &trace.samples[placed.sample];
                let (step, weight) = (placed.step, sample.weight_ns);
                let stack = stack_of(&sample.stack);
                whole.add(step, weight);
                total.add(step, weight);
                let frame = |id: u32| &frames[id as usize];
                let innermost = frame(stack[0]);
                line_zero += u64::from(innermost.line == 0);
                row_of(&mut rows, Some(innermost)).innermost.add(step, weight);
                let ours = stack.iter().map(|id| frame(*id)).find(|frame| frame.in_repository && frame.line > 0);
                outside += u64::from(ours.is_none());
                row_of(&mut rows, ours).repository.add(step, weight);
                let mut seen = BTreeSet::new();
                for id in &stack {
                    let frame = frame(*id);
                    if seen.insert((&frame.file, frame.line)) {
                        row_of(&mut rows, Some(frame)).inclusive.add(step, weight);
                    }
                }
                if ours.is_none() {
                    row_of(&mut rows, None).inclusive.add(step, weight);
                }
                let sum = stacks.entry(stack).or_default();
                *sum = (sum.0 + 1, sum.1 + weight);
            }
            let Some(cost) = total.cost(&placed.whole) else { continue };
            if cost.samples == 0 {
                continue;
            }
            table.places.push(PlaceLines {
                place: place.clone(),
                cost,
                line_zero_samples: line_zero,
                outside_repository_samples: outside,
                rows: finished(rows, &whole, &verified),
            });
            table.stacks.extend(stacks.into_iter().map(|(frames, (samples, weight_ns))| StackCost {
                place: place.clone(),
                frames,
                samples,
                weight_ns,
            }));
        }
        table.places.sort_by_key(|place| std::cmp::Reverse(place.cost.weight_ns));
        table.stacks.sort_by_key(|stack| std::cmp::Reverse(stack.weight_ns));
        table.drop_unused_frames();
        table
    }

    /// Frames of addresses that no counted sample is at, such as the other threads'.
    fn drop_unused_frames(&mut self) {
        let mut new_number: Vec<Option<u32>> = vec![None; self.frames.len()];
        let mut kept = Vec::new();
        for stack in &mut self.stacks {
            for id in &mut stack.frames {
                let old = *id as usize;
                *id = *new_number[old].get_or_insert_with(|| {
                    kept.push(self.frames[old].clone());
                    kept.len() as u32 - 1
                });
            }
        }
        self.frames = kept;
    }
}

/// The row of a frame's line; of none that of everything outside the repository.
fn row_of<'a, 'b>(rows: &'b mut BTreeMap<Location<'a>, Row>, frame: Option<&'a StackFrame>) -> &'b mut Row {
    let Some(frame) = frame else { return rows.entry(Location { file: OUTSIDE, line: 0 }).or_default() };
    let row = rows.entry(Location { file: &frame.file, line: frame.line }).or_default();
    row.in_repository |= frame.in_repository;
    if !row.functions.contains(&frame.function) {
        row.functions.insert(frame.function.clone());
    }
    row
}

fn finished(rows: BTreeMap<Location<'_>, Row>, whole: &Whole, verified: &BTreeSet<&str>) -> Vec<LineRow> {
    let cost = |tally: &Tally| -> Cost {
        let empty = Share { value: 0.0, low: 0.0, high: 1.0, effective_samples: 1.0 };
        tally.cost(whole).unwrap_or(Cost { samples: tally.samples, weight_ns: tally.weight_ns, share: empty })
    };
    let mut finished: Vec<LineRow> = rows
        .into_iter()
        .map(|(location, row)| {
            let mut functions: Vec<String> = row.functions.into_iter().collect();
            functions.sort_by_key(|name| name.len());
            LineRow {
                rank: None,
                file: location.file.to_owned(),
                line: location.line,
                functions,
                in_repository: row.in_repository,
                verified: row.in_repository && verified.contains(location.file),
                self_innermost: cost(&row.innermost),
                self_in_repository: cost(&row.repository),
                inclusive_not_summable: cost(&row.inclusive),
            }
        })
        .collect();
    finished.sort_by_key(|row| {
        std::cmp::Reverse((
            row.self_in_repository.weight_ns,
            row.self_innermost.weight_ns,
            row.inclusive_not_summable.weight_ns,
        ))
    });
    let ranked = finished.iter().take_while(|row| row.self_in_repository.samples > 0);
    let shares: Vec<Share> = ranked.map(|row| row.self_in_repository.share).collect();
    for (row, rank) in finished.iter_mut().zip(ranks(&shares)) {
        row.rank = Some(rank);
    }
    finished
}
