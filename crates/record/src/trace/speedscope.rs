//! CPU samples as a speedscope file: one sampled profile per thread.
//! Not here: spans; they are in the Perfetto and Chrome formats.

use crate::trace::json::{Text, column, list};
use crate::trace::{Frame, Sample, Trace, WriteError, verify};
use std::io::{self, Write};

/// Writes the samples of every thread that has some; weights are nanoseconds. An inlined frame ends in `[inlined]`.
///
/// # Errors
/// A trace that breaks its rules, before anything is written; what `out` reports, which is given many small pieces: let it buffer.
pub fn write_speedscope(trace: &Trace, out: &mut impl Write) -> Result<(), WriteError> {
    verify(trace)?;
    let name = Text(&trace.process.name);
    write!(out, "{{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\"exporter\":\"hourglass\",")?;
    write!(out, "\"name\":{name},\"activeProfileIndex\":0,\"shared\":{{")?;
    column(out, "frames", trace.samples.frames().iter().map(|frame| frame_object(trace, frame)))?;
    out.write_all(b"},\"profiles\":[")?;
    let mut first = true;
    for (thread, name) in trace.threads() {
        let samples = || trace.samples.samples.iter().filter(move |sample| sample.thread == thread);
        if samples().next().is_none() {
            continue;
        }
        if !first {
            out.write_all(b",")?;
        }
        first = false;
        profile(trace, &name, samples, out)?;
    }
    out.write_all(b"]}\n")?;
    Ok(())
}

fn profile<'a, I: Iterator<Item = &'a Sample>>(
    trace: &Trace,
    name: &str,
    samples: impl Fn() -> I,
    out: &mut impl Write,
) -> io::Result<()> {
    let total = samples().fold(0u64, |sum, sample| sum.saturating_add(sample.weight_ns));
    write!(out, "\n{{\"type\":\"sampled\",\"name\":{},\"unit\":\"nanoseconds\",", Text(name))?;
    write!(out, "\"startValue\":0,\"endValue\":{total},\"samples\":[")?;
    for (index, sample) in samples().enumerate() {
        out.write_all(if index > 0 { b",[" } else { b"[" })?;
        let stack = trace.samples.stacks().get(sample.stack.0 as usize);
        list(out, stack.into_iter().flatten().map(|frame| frame.0))?;
        out.write_all(b"]")?;
    }
    out.write_all(b"],")?;
    column(out, "weights", samples().map(|sample| sample.weight_ns))?;
    out.write_all(b"}")
}

fn frame_object(trace: &Trace, frame: &Frame) -> String {
    let function = trace.names.text(frame.function);
    let shown = if frame.inlined { format!("{function} [inlined]") } else { function.to_owned() };
    let file = frame.file.map_or(String::new(), |file| format!(",\"file\":{}", Text(trace.names.text(file))));
    let line = frame.line.map_or(String::new(), |line| format!(",\"line\":{line}"));
    format!("{{\"name\":{}{file}{line}}}", Text(&shown))
}
