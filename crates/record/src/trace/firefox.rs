//! A trace as a processed profile of the Firefox Profiler (version 55 of the format): CPU samples with lines and inlined
//! frames, and slices as markers. Written here because the crate for it stores neither lines nor inlining. Not here: counters.

use crate::trace::json::{Text, column, millis, or_null};
use crate::trace::{Frame, Lane, LaneKind, LossKind, Lost, Sample, Slice, Trace, WriteError, verify};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

/// The version of the format that is written; the Firefox Profiler upgrades older ones when it loads them.
const VERSION: u32 = 55;

/// Writes the samples and slices of every thread; streams are threads of their own. Times count from the start of the window.
///
/// # Errors
/// A trace that breaks its rules, before anything is written; what `out` reports, which is given many small pieces: let it buffer.
pub fn write_firefox(trace: &Trace, out: &mut impl Write) -> Result<(), WriteError> {
    verify(trace)?;
    let interval_ns = trace.samples.samples.first().map_or(1_000_000, |sample| sample.weight_ns);
    write!(
        out,
        "{{\"meta\":{{\"version\":24,\"preprocessedProfileVersion\":{VERSION},\"interval\":{},",
        millis(interval_ns)
    )?;
    // Without these two the window would begin at the first sample, and markers before it would not be shown.
    write!(out, "\"profilingStartTime\":0,\"profilingEndTime\":{},", millis(trace.wall_ns()))?;
    write!(out, "\"startTime\":0,\"product\":{},\"processType\":0,\"debug\":false,", Text(&trace.process.name))?;
    out.write_all(
        concat!(
            r#""symbolicated":true,"usesOnlyOneStackType":true,"sourceCodeIsNotOnSearchfox":true,"pausedRanges":[],"#,
            r#""extensions":{"length":0,"baseURL":[],"id":[],"name":[]},"#,
            r#""sampleUnits":{"time":"ms","eventDelay":"ms","threadCPUDelta":"ns"},"#,
            r#""categories":[{"name":"Other","color":"grey","subcategories":["Other"]}],"#,
            r#""markerSchema":[{"name":"slice","display":["marker-chart","marker-table","timeline-overview"],"#,
            r#""fields":[{"key":"category","label":"Category","format":"string"}]}]},"#,
            r#""libs":[],"pages":[],"profilerOverhead":[],"counters":[],"threads":["#,
        )
        .as_bytes(),
    )?;
    for (index, thread) in threads(trace).iter().enumerate() {
        out.write_all(if index > 0 { b",\n" } else { b"\n" })?;
        thread.write(trace, out)?;
    }
    out.write_all(b"]}\n")?;
    Ok(())
}

/// What one thread of the profile is made of.
struct Thread<'a> {
    number: u32,
    name: String,
    lanes: Vec<&'a Lane>,
    samples: Vec<&'a Sample>,
    lost: Vec<Lost>,
}

fn threads(trace: &Trace) -> Vec<Thread<'_>> {
    let mut threads: Vec<Thread<'_>> = trace
        .threads()
        .into_iter()
        .map(|(number, name)| Thread {
            number,
            name,
            lanes: trace.lanes.iter().filter(|lane| lane.kind.thread() == Some(number)).collect(),
            samples: trace.samples.samples.iter().filter(|sample| sample.thread == number).collect(),
            lost: trace.lost_by(number),
        })
        .collect();
    // A stream has no thread: its number is one that no thread has.
    let free = threads.iter().map(|thread| thread.number).max().map_or(1, |last| last.saturating_add(1));
    let streams = trace.lanes.iter().filter(|lane| matches!(lane.kind, LaneKind::Stream { .. }));
    threads.extend(streams.zip(free..).map(|(lane, number)| Thread {
        number,
        name: lane.name.clone(),
        lanes: vec![lane],
        samples: Vec::new(),
        lost: Vec::new(),
    }));
    threads
}

/// The tree of stacks: nodes with the node before them, and the node of each stack of the trace.
#[derive(Default)]
struct Tree {
    /// (prefix, frame).
    nodes: Vec<(Option<usize>, u32)>,
    numbers: HashMap<(Option<usize>, u32), usize>,
}

impl Tree {
    fn node(&mut self, stack: &[crate::trace::FrameId]) -> Option<usize> {
        let mut prefix = None;
        for frame in stack {
            let next = self.nodes.len();
            let number = *self.numbers.entry((prefix, frame.0)).or_insert(next);
            if number == next {
                self.nodes.push((prefix, frame.0));
            }
            prefix = Some(number);
        }
        prefix
    }
}

impl Thread<'_> {
    fn write(&self, trace: &Trace, out: &mut impl Write) -> io::Result<()> {
        let main = matches!(self.lanes.first().map(|lane| lane.kind), Some(LaneKind::Main { .. }));
        let (name, process) = (Text(&self.name), Text(&trace.process.name));
        write!(
            out,
            "{{\"name\":{name},\"isMainThread\":{main},\"processType\":\"default\",\"processName\":{process},"
        )?;
        write!(
            out,
            "\"processStartupTime\":0,\"processShutdownTime\":null,\"registerTime\":0,\"unregisterTime\":null,"
        )?;
        write!(out, "\"pausedRanges\":[],\"pid\":\"{}\",\"tid\":\"{}\",", trace.process.id, self.number)?;
        write!(out, "\"showMarkersInTimeline\":true,")?;
        let texts = trace.names.texts().iter().map(String::as_str).chain(LossKind::ALL.map(LossKind::name));
        column(out, "stringArray", texts.map(Text))?;
        out.write_all(b",")?;
        self.frames(trace, out)?;
        self.samples(trace, out)?;
        self.markers(trace, out)?;
        out.write_all(
            concat!(
                r#""resourceTable":{"length":0,"lib":[],"name":[],"host":[],"type":[]},"#,
                r#""nativeSymbols":{"length":0,"libIndex":[],"address":[],"name":[],"functionSize":[]}}"#
            )
            .as_bytes(),
        )
    }

    /// Functions and frames: all of the trace's, so that their numbers are the trace's own.
    fn frames(&self, trace: &Trace, out: &mut impl Write) -> io::Result<()> {
        let frames = trace.samples.frames();
        // A function is a name and a file.
        let mut functions: BTreeMap<(usize, Option<usize>), usize> = BTreeMap::new();
        let key = |frame: &Frame| (frame.function.index(), frame.file.map(crate::trace::Name::index));
        for frame in frames {
            functions.entry(key(frame)).or_default();
        }
        functions.values_mut().enumerate().for_each(|(index, number)| *number = index);
        let count = functions.len();
        write!(out, "\"funcTable\":{{\"length\":{count},")?;
        column(out, "name", functions.keys().map(|(name, _)| name))?;
        for (column_name, value) in [
            ("isJS", "false"),
            ("relevantForJS", "false"),
            ("resource", "-1"),
            ("lineNumber", "null"),
            ("columnNumber", "null"),
        ] {
            out.write_all(b",")?;
            column(out, column_name, std::iter::repeat_n(value, count))?;
        }
        out.write_all(b",")?;
        column(out, "fileName", functions.keys().map(|(_, file)| or_null(*file)))?;
        let count = frames.len();
        write!(out, "}},\"frameTable\":{{\"length\":{count},")?;
        column(out, "func", frames.iter().map(|frame| functions[&key(frame)]))?;
        out.write_all(b",")?;
        column(out, "line", frames.iter().map(|frame| or_null(frame.line)))?;
        out.write_all(b",")?;
        column(out, "inlineDepth", frames.iter().map(|frame| u8::from(frame.inlined)))?;
        for (column_name, value) in [
            ("address", "-1"),
            ("category", "0"),
            ("subcategory", "0"),
            ("nativeSymbol", "null"),
            ("innerWindowID", "0"),
            ("column", "null"),
        ] {
            out.write_all(b",")?;
            column(out, column_name, std::iter::repeat_n(value, count))?;
        }
        out.write_all(b"},")
    }

    fn samples(&self, trace: &Trace, out: &mut impl Write) -> io::Result<()> {
        let mut tree = Tree::default();
        let stacks: Vec<Option<usize>> = self
            .samples
            .iter()
            .map(|sample| trace.samples.stacks().get(sample.stack.0 as usize).and_then(|stack| tree.node(stack)))
            .collect();
        write!(out, "\"stackTable\":{{\"length\":{},", tree.nodes.len())?;
        column(out, "prefix", tree.nodes.iter().map(|(prefix, _)| or_null(*prefix)))?;
        out.write_all(b",")?;
        column(out, "frame", tree.nodes.iter().map(|(_, frame)| frame))?;
        write!(out, "}},\"samples\":{{\"length\":{},\"weightType\":\"tracing-ms\",", self.samples.len())?;
        column(out, "stack", stacks.iter().map(|stack| or_null(*stack)))?;
        out.write_all(b",")?;
        column(out, "time", self.samples.iter().map(|sample| millis(sample.at_ns - trace.start_ns)))?;
        out.write_all(b",")?;
        column(out, "weight", self.samples.iter().map(|sample| millis(sample.weight_ns)))?;
        out.write_all(b",")?;
        column(out, "threadCPUDelta", self.samples.iter().map(|sample| sample.weight_ns))?;
        out.write_all(b"},")
    }

    /// The lanes' slices, then what the thread lost.
    fn markers(&self, trace: &Trace, out: &mut impl Write) -> io::Result<()> {
        struct Marker<'a> {
            name: usize,
            start_ns: u64,
            end_ns: u64,
            category: &'a str,
        }
        let (start_ns, names) = (trace.start_ns, trace.names.texts().len());
        let slice = |slice: &Slice| Marker {
            name: slice.name.index(),
            start_ns: slice.start_ns - start_ns,
            end_ns: slice.end_ns - start_ns,
            category: slice.category.name(),
        };
        let lost = |lost: &Lost| Marker {
            name: names + lost.why as usize,
            start_ns: lost.start_ns - start_ns,
            end_ns: lost.end_ns - start_ns,
            category: "lost",
        };
        let markers: Vec<Marker<'_>> =
            self.lanes.iter().flat_map(|lane| &lane.slices).map(slice).chain(self.lost.iter().map(lost)).collect();
        let count = markers.len();
        write!(out, "\"markers\":{{\"length\":{count},")?;
        column(out, "name", markers.iter().map(|marker| marker.name))?;
        out.write_all(b",")?;
        column(out, "startTime", markers.iter().map(|marker| millis(marker.start_ns)))?;
        out.write_all(b",")?;
        column(out, "endTime", markers.iter().map(|marker| millis(marker.end_ns)))?;
        out.write_all(b",")?;
        // 1: an interval.
        column(out, "phase", std::iter::repeat_n(1, count))?;
        out.write_all(b",")?;
        column(out, "category", std::iter::repeat_n(0, count))?;
        out.write_all(b",")?;
        let data = |marker: &Marker<'_>| format!("{{\"type\":\"slice\",\"category\":\"{}\"}}", marker.category);
        column(out, "data", markers.iter().map(data))?;
        out.write_all(b"},")
    }
}
