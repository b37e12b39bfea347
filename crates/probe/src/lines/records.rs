//! The records `lines/1` and `capture/1` put together from their parts.
//! Not here: the parts.

use super::Resolved;
use record::capture::callgrind::Simulated;
use record::capture::line_table::LineTable;
use record::capture::lines::{LineTree, LinesRecord};
use record::capture::load::RawTrace;
use record::capture::reduced::CaptureRecord;
use record::capture::reduced::counters::{CounterRow, CounterTree, ProfileUse, SimulatedTree};
use record::capture::reduced::device::DeviceTree;
use record::capture::share::SHARE_METHOD;
use record::capture::{
    CaptureMetadata, Dearest, Hints, Placed, Provenance, Roofs, Source, Stretch, TracePackage, kernel_tree, placed,
};
use record::{Ceilings, CeilingsUsed, InstructionPath, Known, Record};

/// What a record is made from besides the raw files.
pub struct Given<'a> {
    pub metadata: &'a CaptureMetadata,
    pub metadata_sha256: Known<String>,
    /// The verified trace.
    pub trace: Known<TracePackage>,
    /// SHA-256 of `sources.sha256` in it.
    pub tree_sha256: Known<String>,
    pub profile_sha256: Known<String>,
}

impl Given<'_> {
    fn provenance(&self, trace: Option<&RawTrace>) -> Provenance {
        let binary = &self.metadata.conditions.binary;
        Provenance {
            metadata_sha256: self.metadata_sha256.clone(),
            trace: self.trace.clone(),
            profile_sha256: self.profile_sha256.clone(),
            source: Source {
                commit: binary.commit.clone(),
                dirty: binary.dirty.clone(),
                tree_sha256: self.tree_sha256.clone(),
                files: match trace {
                    Some(trace) => Known::Is(trace.sources.len() as u64),
                    None => Known::unavailable("no trace was given", "--trace DIR"),
                },
            },
            reduced_by: crate::binary(),
        }
    }
}

/// Every line of every place of a trace.
pub fn lines_record(given: &Given<'_>, trace: &RawTrace, placed: &Placed, resolved: &Resolved) -> LinesRecord {
    let metadata = given.metadata;
    let LineTable { places, frames, stacks } = LineTable::new(trace, placed, &resolved.resolution);
    let mut record = LinesRecord {
        schema: LinesRecord::SCHEMA.to_owned(),
        created: metadata.created.clone(),
        workload: metadata.workload.clone(),
        workload_id: String::new(),
        conditions: metadata.conditions.clone(),
        conditions_id: String::new(),
        subject: metadata.subject.clone(),
        provenance: given.provenance(Some(trace)),
        stretch: Stretch::of(metadata),
        method: SHARE_METHOD.to_owned(),
        samples: placed.samples.len() as u64,
        executables: resolved.resolution.executables.clone(),
        files: resolved.resolution.files.clone(),
        places,
        frames,
        stacks,
        checks: Vec::new(),
        void: false,
    };
    record.close();
    record
}

/// Counters that come with or beside a trace.
pub struct Counted {
    /// Of `perf stat -j`.
    pub profile: Known<(Vec<CounterRow>, ProfileUse)>,
    /// Of the trace's `callgrind.out`.
    pub simulated: Known<Simulated>,
}

/// The reduced capture. Without a trace there are the profile's counters alone; `device` is what a GPU's counters say.
pub fn capture_record(
    given: &Given<'_>,
    trace: Known<(&RawTrace, &Resolved)>,
    counted: Counted,
    ceilings: &Known<Ceilings>,
    device: Known<DeviceTree>,
) -> CaptureRecord {
    let metadata = given.metadata;
    let simulated = match counted.simulated {
        Known::Is(found) => Known::Is(SimulatedTree {
            simulation: metadata.simulation.clone(),
            event: found.event,
            total: found.total,
            functions: found.functions,
            others: found.others,
        }),
        Known::Unavailable(missing) => Known::Unavailable(missing),
    };
    let counters =
        CounterTree::new(trace.known().map_or(&[], |(trace, _)| &trace.counters), counted.profile, simulated);
    fn without<T>(trace: &Known<(&RawTrace, &Resolved)>) -> Known<T> {
        match trace {
            Known::Unavailable(missing) => Known::Unavailable(missing.clone()),
            Known::Is(_) => Known::unavailable("nothing was computed of it", "reduce the trace again"),
        }
    }
    let (mut kernels, mut lines, mut instructions) = (without(&trace), without(&trace), without(&trace));
    if let Known::Is((raw, resolved)) = trace {
        let placed = placed(raw);
        instructions = resolved.instructions(raw, &placed, metadata.sampling.rung);
        let mut hints = Hints { instructions_per_cycle: counters.instructions_per_cycle(), ..Hints::default() };
        for kernel in instructions.known().iter().flat_map(|tree| &tree.kernels) {
            let key = (kernel.operator.clone(), kernel.kernel.clone());
            let named = |path: &InstructionPath| kernel.multiplies_with.known().is_some_and(|name| path.name() == name);
            if let Some(path) = InstructionPath::ALL.into_iter().find(named) {
                hints.paths.insert(key.clone(), path);
            }
            if let Known::Is(hot) = &kernel.hot_loop {
                let multiply =
                    hot.classes.iter().filter(|row| row.class.multiplies()).map(|row| row.instructions).sum();
                if let Known::Is(instruction) = &hot.dearest {
                    let dearest = Dearest {
                        instruction: instruction.clone(),
                        of_instructions: hot.instructions,
                        kernel_samples: hot.kernel_samples,
                    };
                    hints.dearest.insert(key.clone(), dearest);
                }
                hints.mixes.insert(key, (multiply, hot.instructions));
            }
        }
        let roofs = Roofs { ceilings: ceilings.known(), threads: metadata.conditions.threads, footprint: 0 };
        kernels = kernel_tree(raw, &placed, roofs, &hints);
        if let (Known::Is(tree), Known::Is(device)) = (&mut kernels, &device) {
            device.judge(tree);
        }
        lines = match (resolved.program_without_lines(), kernels.missing()) {
            (Some(missing), _) | (None, Some(missing)) => Known::Unavailable(missing.clone()),
            (None, None) => Known::Is(LineTree::of(&lines_record(given, raw, &placed, resolved))),
        };
    }
    let mut record = CaptureRecord {
        schema: CaptureRecord::SCHEMA.to_owned(),
        created: metadata.created.clone(),
        workload: metadata.workload.clone(),
        workload_id: String::new(),
        conditions: metadata.conditions.clone(),
        conditions_id: String::new(),
        subject: metadata.subject.clone(),
        provenance: given.provenance(trace.known().map(|(trace, _)| *trace)),
        stretch: Stretch::of(metadata),
        ceilings: match ceilings {
            Known::Is(ceilings) => Known::Is(CeilingsUsed::of(ceilings)),
            Known::Unavailable(missing) => Known::Unavailable(missing.clone()),
        },
        kernels,
        counters: Known::Is(counters),
        lines,
        instructions,
        device,
        checks: Vec::new(),
        void: false,
    };
    record.close();
    record
}
