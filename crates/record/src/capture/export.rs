//! Source lines in the forms of other tools: pprof, callgrind, CSV, and (through a trace of samples) speedscope and folded stacks.
//! Not here: any source text, which no form contains; and the record itself, which is JSON.

mod callgrind_out;
mod csv;
mod pprof;

pub use callgrind_out::write_callgrind;
pub use csv::write_csv;
pub use pprof::pprof;

use crate::capture::lines::{LinesRecord, StackFrame};
use crate::trace::{Frame, Lane, LaneKind, Process, Sample, Trace};

/// The samples as a trace that [`crate::trace::write_speedscope`] and [`crate::trace::write_folded`] take: one thread, in
/// which every stack's outermost frame is its place, so that kernels are told apart.
pub fn as_trace(record: &LinesRecord) -> Trace {
    let process = Process { id: record.stretch.process_id, name: "captured passes".to_owned() };
    let lane = Lane {
        kind: LaneKind::Main { thread: 0 },
        name: "all workers".to_owned(),
        slices: Vec::new(),
        instants: Vec::new(),
        dropped: 0,
    };
    let mut trace = Trace { process, lanes: vec![lane], ..Trace::default() };
    let mut at_ns = 0;
    for stack in &record.stacks {
        let place = trace.names.intern(&stack.place.to_string());
        let mut frames = vec![trace.samples.frame(Frame { function: place, file: None, line: None, inlined: false })];
        for id in stack.frames.iter().rev() {
            let Some(frame) = record.frames.get(*id as usize) else { continue };
            let converted = Frame {
                function: trace.names.intern(&frame.function),
                file: has_file(frame).then(|| trace.names.intern(&frame.file)),
                line: Some(frame.line).filter(|line| *line > 0),
                inlined: frame.inlined,
            };
            frames.push(trace.samples.frame(converted));
        }
        at_ns += stack.weight_ns;
        let id = trace.samples.stack(&frames);
        trace.samples.samples.push(Sample { at_ns, thread: 0, stack: id, weight_ns: stack.weight_ns });
    }
    trace.end_ns = at_ns;
    trace
}

/// Names in brackets stand for places without a file.
fn has_file(frame: &StackFrame) -> bool {
    !frame.file.starts_with('[')
}
