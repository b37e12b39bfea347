//! The wiring for a person: layers that are alike once, or every call; then the kernels that nothing reaches.
//! Not here: what is in the list (`probe`).

use std::fmt::Write;

use record::{Phase, PlannedCall, PlannedPass, Shape, Unreached, WiringPlan};

use crate::figures::thousands;
use crate::prose::paragraph;

pub(crate) fn text(record: &WiringPlan, all: bool) -> String {
    let mut text = String::new();
    for pass in &record.passes {
        head(&mut text, record, pass);
        for section in sections(&pass.calls, all) {
            section.show(&mut text);
        }
        let _ = writeln!(
            text,
            "{} calls, {} MB read, {} MB written, {} MFLOP",
            thousands(pass.calls.len() as f64),
            thousands(pass.bytes_read as f64 / 1e6),
            thousands(pass.bytes_written as f64 / 1e6),
            thousands(pass.flops as f64 / 1e6)
        );
        text.push('\n');
    }
    unreached(&mut text, record);
    if record.void {
        text += "VOID: a check of the record failed; see its \"checks\".\n";
    }
    text
}

fn head(text: &mut String, record: &WiringPlan, pass: &PlannedPass) {
    let workload = &pass.workload;
    let what = match workload.phase {
        Phase::Decode => format!("decode step that reaches a context of {}", workload.context_tokens),
        Phase::Prefill | Phase::Request => format!("prefill of {} rows", workload.new_rows),
    };
    let words = format!("{what}, {} at checkpoint '{}'", workload.model, record.subject.checkpoint);
    *text += &paragraph("", &words, "  ");
    let _ = writeln!(text, "  {:<19}{:<35}{:<25}{:>9}{:>9}", "slot", "operator: kernel", "shape", "kB", "MFLOP");
}

/// Calls that stand together: of layers that are alike, those of one of them.
struct Section<'a> {
    layers: Vec<u64>,
    calls: Vec<&'a PlannedCall>,
}

/// Runs of calls of one layer (or of none), in program order; layers that call alike are folded into the first of them.
fn sections(calls: &[PlannedCall], all: bool) -> Vec<Section<'_>> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    for run in calls.chunk_by(|a, b| a.layer == b.layer) {
        let calls: Vec<&PlannedCall> = run.iter().collect();
        let layers: Vec<u64> = run[0].layer.into_iter().collect();
        let alike = |known: &&mut Section<'_>| {
            !known.layers.is_empty()
                && !layers.is_empty()
                && known.calls.len() == calls.len()
                && known.calls.iter().zip(&calls).all(|(a, b)| same(a, b))
        };
        match sections.iter_mut().find(alike) {
            Some(known) if !all => known.layers.extend(layers),
            _ => sections.push(Section { layers, calls }),
        }
    }
    sections
}

/// Whether two calls differ in their layers alone.
fn same(a: &PlannedCall, b: &PlannedCall) -> bool {
    *a == PlannedCall { layer: a.layer, ..b.clone() }
}

impl Section<'_> {
    fn show(&self, text: &mut String) {
        let _ = match self.layers.as_slice() {
            [] => Ok(()),
            [layer] => writeln!(text, "layer {layer}"),
            [first, .., last] if (last - first + 1) as usize == self.layers.len() => {
                writeln!(text, "layers {first} to {last}, {} alike; each:", self.layers.len())
            }
            some => writeln!(text, "{} layers alike ({}, ...); each:", some.len(), some[0]),
        };
        for call in &self.calls {
            let kernel = format!("{}: {}", call.operator, call.kernel);
            let _ = writeln!(
                text,
                "  {:<19}{:<35}{:<25}{:>9}{:>9}",
                call.slot,
                kernel,
                shape(call),
                thousands((call.bytes_read + call.bytes_written) as f64 / 1e3),
                thousands(call.flops as f64 / 1e6)
            );
        }
    }
}

/// `128x1024>2048 w4-g128`: the first input (or output), the width of the first output, the first weight's format.
fn shape(call: &PlannedCall) -> String {
    let size = |shape: &Shape| format!("{}x{}", shape.rows, shape.cols);
    let output = call.outputs.first();
    let mut text = match (call.inputs.first(), output) {
        (Some(input), Some(output)) if input.cols != output.cols => format!("{}>{}", size(input), output.cols),
        (Some(shape), _) | (None, Some(shape)) => size(shape),
        (None, None) => String::new(),
    };
    if let Some(weight) = call.weights.first() {
        let _ = write!(text, " {}", weight.form);
    }
    text
}

fn unreached(text: &mut String, record: &WiringPlan) {
    let of = |reason: Unreached| record.unreached.iter().filter(move |kernel| kernel.reason == reason);
    let dead: Vec<_> = of(Unreached::NoCheckpoint).collect();
    if dead.is_empty() {
        text.push_str("Every kernel that could run here is reached by some checkpoint's passes over this model.\n");
    } else {
        text.push_str("Kernels that could run here and that no checkpoint's passes over this model reach:\n");
        for kernel in dead {
            let _ = writeln!(text, "  {:<46} {}", format!("{}: {}", kernel.operator, kernel.kernel), kernel.source);
        }
    }
    for (reason, words) in [
        (Unreached::Reference, "References, for tests and for checkpoint 'reference'"),
        (Unreached::Emulation, "They play an instruction in plain memory, for tests"),
        (Unreached::OtherVersion, "Another version is preferred here"),
        (Unreached::NoShape, "No call of this model has their shape or format"),
        (Unreached::NoFeature, "This machine lacks an instruction"),
    ] {
        let names: Vec<_> = of(reason).map(|kernel| format!("{} {}", kernel.operator, kernel.kernel)).collect();
        if !names.is_empty() {
            *text += &paragraph(&format!("{words}: "), &names.join(", "), "  ");
        }
    }
}
