//! A trace as Chrome's JSON with the words of PyTorch's profiler (Kineto), so that Holistic Trace Analysis reads it.
//! For small windows: viewers load all of it. CPU samples are not in it; `firefox.rs` and `speedscope.rs` have them.

use crate::trace::json::{Text, micros};
use crate::trace::{Category, Lane, LaneKind, Name, SliceRef, Trace, Value, WriteError, verify};
use std::collections::HashMap;
use std::io::{self, Write};

/// Events beyond which nothing is written: about 100 MB, which viewers still open.
pub const MAX_CHROME_EVENTS: usize = 500_000;

/// Writes the whole trace.
///
/// A device lane is a stream of a device, as Kineto has it: a worker is stream number *worker* of a device after the last that
/// streams name. `kernel` is an operator's slice, `cuda_runtime` a dispatch (whatever the device), `user_annotation` a request,
/// phase or step, and `cpu_op` the rest of the main thread's work. Times count from the start of the window.
///
/// # Errors
/// A trace that breaks its rules or has more than [`MAX_CHROME_EVENTS`] events, before anything is written; what `out` reports, which is given many small pieces: let it buffer.
pub fn write_chrome(trace: &Trace, out: &mut impl Write) -> Result<(), WriteError> {
    verify(trace)?;
    let slices: usize = trace.lanes.iter().map(|lane| lane.slices.len() + lane.instants.len()).sum();
    let points: usize = trace.counters.iter().map(|counter| counter.points.len()).sum();
    let events = slices + points + 2 * trace.flows.len();
    if events > MAX_CHROME_EVENTS {
        return Err(WriteError::TooLarge { events, limit: MAX_CHROME_EVENTS });
    }
    let writer = Writer { trace, worker_device: worker_device(trace) };
    writer.head(out)?;
    writer.flows(out)?;
    let mut linked: HashMap<SliceRef, u64> = HashMap::new();
    for flow in &trace.flows {
        // Kineto has one link per event: the first.
        linked.entry(flow.from).or_insert(flow.id);
        linked.entry(flow.to).or_insert(flow.id);
    }
    for (index, lane) in trace.lanes.iter().enumerate() {
        writer.lane(index, lane, &linked, out)?;
    }
    writer.counters(out)?;
    out.write_all(b"\n]}\n")?;
    Ok(())
}

struct Writer<'a> {
    trace: &'a Trace,
    worker_device: u32,
}

/// The number of the device that stands for the CPU workers.
fn worker_device(trace: &Trace) -> u32 {
    let devices = trace.lanes.iter().filter_map(|lane| match lane.kind {
        LaneKind::Stream { device, .. } => Some(device),
        _ => None,
    });
    devices.max().map_or(0, |last| last.saturating_add(1))
}

fn kineto(category: Category) -> &'static str {
    match category {
        Category::Operator => "kernel",
        Category::Barrier => "barrier",
        Category::Dispatch => "cuda_runtime",
        Category::Request | Category::Phase | Category::Step => "user_annotation",
        Category::Sampling | Category::Tokenising | Category::Setup | Category::Allocation | Category::PageFault => {
            "cpu_op"
        }
    }
}

impl Writer<'_> {
    /// (process, thread) of a lane's events.
    fn place(&self, kind: LaneKind) -> (u32, u32) {
        match kind {
            LaneKind::Main { thread } => (self.trace.process.id, thread),
            LaneKind::Worker { worker, .. } => (self.worker_device, worker),
            LaneKind::Stream { device, stream } => (device, stream),
        }
    }

    /// Time since the start of the window.
    fn at(&self, at_ns: u64) -> impl std::fmt::Display {
        micros(at_ns - self.trace.start_ns)
    }

    fn head(&self, out: &mut impl Write) -> io::Result<()> {
        let trace = self.trace;
        let mut devices: Vec<u32> =
            trace.lanes.iter().filter(|lane| lane.kind.is_device()).map(|lane| self.place(lane.kind).0).collect();
        devices.sort_unstable();
        devices.dedup();
        write!(
            out,
            "{{\"schemaVersion\":1,\"distributedInfo\":{{\"rank\": 0,\"world_size\":1}},\"deviceProperties\":["
        )?;
        for (index, &device) in devices.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(out, "{comma}{{\"id\":{device},\"name\":{}}}", Text(self.device_name(device)))?;
        }
        let (start, dropped) = (trace.start_ns, trace.dropped());
        write!(
            out,
            "],\"displayTimeUnit\":\"ns\",\"otherData\":{{\"clock\":\"CLOCK_MONOTONIC\",\"start_ns\":{start},"
        )?;
        write!(out, "\"dropped_slices\":{dropped}}},\"traceEvents\":[")?;
        // The one event that needs no comma before it.
        let name = Text(&trace.process.name);
        let id = trace.process.id;
        write!(
            out,
            "\n{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{id},\"tid\":0,\"args\":{{\"name\":{name}}}}}"
        )?;
        for device in devices {
            let name = Text(self.device_name(device));
            write!(
                out,
                ",\n{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{device},\"tid\":0,\"args\":{{\"name\":{name}}}}}"
            )?;
        }
        for (index, lane) in trace.lanes.iter().enumerate() {
            let (pid, tid) = self.place(lane.kind);
            let name = Text(&lane.name);
            write!(
                out,
                ",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{pid},\"tid\":{tid},\"args\":{{\"name\":{name}}}}}"
            )?;
            write!(
                out,
                ",\n{{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":{pid},\"tid\":{tid},\
                 \"args\":{{\"sort_index\":{index}}}}}"
            )?;
        }
        Ok(())
    }

    fn device_name(&self, device: u32) -> &'static str {
        if device == self.worker_device { "CPU workers" } else { "device" }
    }

    fn flows(&self, out: &mut impl Write) -> io::Result<()> {
        for flow in &self.trace.flows {
            for (phase, place, bind) in [("s", flow.from, ""), ("f", flow.to, ",\"bp\":\"e\"")] {
                let lane = &self.trace.lanes[place.lane];
                let (pid, tid) = self.place(lane.kind);
                let at = self.at(lane.slices[place.slice].start_ns);
                write!(
                    out,
                    ",\n{{\"ph\":\"{phase}\",\"id\":{},\"cat\":\"ac2g\",\"name\":\"ac2g\",\"pid\":{pid},\"tid\":{tid},\
                     \"ts\":{at}{bind}}}",
                    flow.id
                )?;
            }
        }
        Ok(())
    }

    fn lane(&self, index: usize, lane: &Lane, linked: &HashMap<SliceRef, u64>, out: &mut impl Write) -> io::Result<()> {
        let names = &self.trace.names;
        let (pid, tid) = self.place(lane.kind);
        for (number, slice) in lane.slices.iter().enumerate() {
            write!(
                out,
                ",\n{{\"ph\":\"X\",\"cat\":\"{}\",\"name\":{},\"pid\":{pid},\"tid\":{tid},\"ts\":{},\"dur\":{},\
                 \"args\":{{\"category\":\"{}\"",
                kineto(slice.category),
                Text(names.text(slice.name)),
                self.at(slice.start_ns),
                micros(slice.duration_ns()),
                slice.category.name(),
            )?;
            // A wait is not work: without these it does not count as the device being busy.
            if slice.category == Category::Operator {
                write!(out, ",\"device\":{pid},\"stream\":{tid}")?;
            }
            if let Some(id) = linked.get(&SliceRef { lane: index, slice: number }) {
                write!(out, ",\"correlation\":{id}")?;
            }
            self.arguments(&slice.args, out)?;
            out.write_all(b"}}")?;
        }
        for instant in &lane.instants {
            write!(
                out,
                ",\n{{\"ph\":\"i\",\"s\":\"t\",\"cat\":\"{}\",\"name\":{},\"pid\":{pid},\"tid\":{tid},\"ts\":{},\
                 \"args\":{{\"category\":\"{}\"",
                kineto(instant.category),
                Text(names.text(instant.name)),
                self.at(instant.at_ns),
                instant.category.name(),
            )?;
            self.arguments(&instant.args, out)?;
            out.write_all(b"}}")?;
        }
        Ok(())
    }

    fn arguments(&self, args: &[(Name, Value)], out: &mut impl Write) -> io::Result<()> {
        let names = &self.trace.names;
        for (name, value) in args {
            write!(out, ",{}:", Text(names.text(*name)))?;
            match *value {
                Value::Integer(value) => write!(out, "{value}")?,
                Value::Number(value) => write!(out, "{value:?}")?,
                Value::Text(text) => write!(out, "{}", Text(names.text(text)))?,
            }
        }
        Ok(())
    }

    fn counters(&self, out: &mut impl Write) -> io::Result<()> {
        let pid = self.trace.process.id;
        for counter in &self.trace.counters {
            let (name, unit) = (Text(&counter.name), Text(counter.unit.name()));
            for &(at_ns, value) in &counter.points {
                let at = self.at(at_ns);
                write!(
                    out,
                    ",\n{{\"ph\":\"C\",\"name\":{name},\"pid\":{pid},\"ts\":{at},\"args\":{{{unit}:{value:?}}}}}"
                )?;
            }
        }
        Ok(())
    }
}
