//! The difference of two checkpoints' programs: which calls one has and the other has not, and which are bound otherwise.
//! Nothing is loaded or run: programs are lowered from the model's shapes alone.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use model::{LoadOptions, lower, weight_formats};
use ops::{Checkpoint, Feature, Features, MechanismControls, Program, Registry, Resolved};
use record::Phase;
use serde::Serialize;
use weights::ModelFiles;

use crate::failure::usage;
use crate::prose::paragraph;

/// The shapes that are compared where nobody asks for others: a prompt of so many rows, and one row after it.
pub(crate) const ROWS: usize = 128;

/// How a rung's programs differ from its parent's.
#[derive(Serialize)]
pub(crate) struct Difference {
    checkpoint: &'static str,
    parent: &'static str,
    model: String,
    change: &'static str,
    /// How workers walk, before and now, where that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pace: Option<[String; 2]>,
    phases: Vec<PhaseDifference>,
}

#[derive(Serialize)]
struct PhaseDifference {
    phase: Phase,
    /// Rows that the parent's pass and the rung's pass run.
    parent_rows: usize,
    rows: usize,
    changes: Vec<Change>,
}

/// One operator in one slot: how its calls were bound before, and how they are now. One side may be empty.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Change {
    slot: &'static str,
    operator: &'static str,
    before: Vec<Calls>,
    after: Vec<Calls>,
}

/// So many calls bound alike.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Calls {
    calls: usize,
    #[serde(flatten)]
    binding: Binding,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Binding {
    kernel: &'static str,
    weights: Vec<String>,
    /// Element types of inputs, then of outputs.
    operands: Vec<String>,
    /// Attention reads the cache, or the step's own keys.
    reads_cache: bool,
}

/// Lowers both checkpoints for the shapes of `files`, a prompt of `prompt` rows and one row after it, and compares the programs.
///
/// # Errors
/// A tensor that cannot be opened, a width that the group does not divide, or a call that no kernel takes.
pub(crate) fn compare(
    parent: &Checkpoint,
    rung: &'static Checkpoint,
    files: &ModelFiles,
    w4_group: usize,
    registry: &Registry,
    prompt: usize,
) -> Result<Difference> {
    let inherit = MechanismControls::default();
    let before = parent.resolve(inherit).map_err(usage)?;
    let after = rung.resolve(inherit).map_err(usage)?;
    // No value is read, so none needs rounding.
    let options = LoadOptions { convert: true, w4_group, ..LoadOptions::new(rung) };
    let (old_formats, new_formats) =
        (weight_formats(files, &before, &options)?, weight_formats(files, &after, &options)?);
    let phase = |phase: Phase| -> Result<PhaseDifference> {
        let (old_rows, new_rows) = (rows(phase, &before, prompt), rows(phase, &after, prompt));
        let context = if phase == Phase::Decode { prompt + 1 } else { prompt };
        let config = files.config();
        let old = lower(config, &before, &old_formats, old_rows, 1, context);
        let new = lower(config, &after, &new_formats, new_rows, 1, context);
        let changes = changes(&calls(&old, &before, registry)?, &calls(&new, &after, registry)?);
        Ok(PhaseDifference { phase, parent_rows: old_rows, rows: new_rows, changes })
    };
    Ok(Difference {
        checkpoint: rung.name,
        parent: parent.name,
        model: files.label().to_owned(),
        change: if rung.parent.is_some_and(|own| own.name == parent.name) {
            rung.change
        } else {
            "those of every rung between the two"
        },
        pace: (before.pace != after.pace).then(|| [before.pace, after.pace].map(|pace| pace.to_string())),
        phases: vec![phase(Phase::Prefill)?, phase(Phase::Decode)?],
    })
}

/// Without a cache, a decode step runs the whole prefix.
fn rows(phase: Phase, checkpoint: &Resolved, prompt: usize) -> usize {
    match phase {
        Phase::Decode if checkpoint.cache == ops::CachePolicy::None => prompt + 1,
        Phase::Decode => 1,
        Phase::Prefill | Phase::Request => prompt,
    }
}

/// Calls of each (slot, operator) by binding, in program order of their first call.
type Bindings = Vec<((&'static str, &'static str), BTreeMap<Binding, usize>)>;

fn calls(program: &Program, checkpoint: &Resolved, registry: &Registry) -> Result<Bindings> {
    let mut bindings: Bindings = Vec::new();
    for call in &program.calls {
        let shape = program.call_shape(call, &[]);
        let operator = call.operator.name();
        // By name only: which version of it a machine runs is no part of the rung.
        let kernel = ops::choose(call, &shape, checkpoint, registry, Features::of(&Feature::ALL))?.name;
        let binding = Binding {
            kernel,
            weights: shape.weights.iter().map(|weight| weight.format.to_string()).collect(),
            operands: shape.inputs.iter().chain(&shape.outputs).map(|view| format!("{:?}", view.dtype)).collect(),
            reads_cache: call.operator.touches_cache(&call.attributes) == ops::CacheUse::Read,
        };
        let key = (call.slot, operator);
        let index = bindings.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            bindings.push((key, BTreeMap::new()));
            bindings.len() - 1
        });
        *bindings[index].1.entry(binding).or_insert(0) += 1;
    }
    Ok(bindings)
}

fn changes(before: &Bindings, after: &Bindings) -> Vec<Change> {
    let of =
        |bindings: &Bindings, key| bindings.iter().find(|(known, _)| *known == key).map(|(_, calls)| calls.clone());
    let listed = |calls: BTreeMap<Binding, usize>| {
        calls.into_iter().map(|(binding, calls)| Calls { calls, binding }).collect::<Vec<_>>()
    };
    let gone = before.iter().map(|(key, _)| *key);
    let new = after.iter().map(|(key, _)| *key).filter(|key| of(before, *key).is_none());
    gone.chain(new)
        .filter_map(|key| {
            let (old, new) = (of(before, key).unwrap_or_default(), of(after, key).unwrap_or_default());
            (old != new).then(|| Change { slot: key.0, operator: key.1, before: listed(old), after: listed(new) })
        })
        .collect()
}

impl Difference {
    /// For a person.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("'{}' after '{}', lowered for {}\n", self.checkpoint, self.parent, self.model);
        text += &paragraph("change: ", self.change, "  ");
        if let Some([before, now]) = &self.pace {
            text += &paragraph("pace: ", &format!("{before} -> {now}"), "  ");
        }
        for phase in &self.phases {
            let name = if phase.phase == Phase::Decode { "decode step" } else { "prefill pass" };
            let rows = if phase.rows == phase.parent_rows {
                format!("{} row{}", phase.rows, if phase.rows == 1 { "" } else { "s" })
            } else {
                format!("{} rows before, {} now", phase.parent_rows, phase.rows)
            };
            let _ = writeln!(text, "\n{name} ({rows})");
            if phase.changes.is_empty() {
                let _ = writeln!(text, "  the same calls, bound alike");
            }
            for change in &phase.changes {
                change.line(&mut text);
            }
        }
        text
    }
}

impl Change {
    fn line(&self, text: &mut String) {
        let side = |calls: &[Calls]| {
            calls
                .iter()
                .map(|calls| format!("{} x {}", calls.calls, calls.binding.show()))
                .collect::<Vec<_>>()
                .join(" + ")
        };
        let name = format!("{:<20}{:<18}", self.slot, self.operator);
        let _ = match (self.before.is_empty(), self.after.is_empty()) {
            (true, _) => writeln!(text, "  + {name}{}", side(&self.after)),
            (_, true) => writeln!(text, "  - {name}{}", side(&self.before)),
            _ => writeln!(text, "  ~ {name}{} -> {}", side(&self.before), side(&self.after)),
        };
    }
}

impl Binding {
    fn show(&self) -> String {
        let mut parts = vec![self.kernel.to_owned()];
        parts.extend(self.weights.iter().cloned());
        if self.reads_cache {
            parts.push("from the cache".to_owned());
        }
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ops::ladder as rungs;
    use weights::{ModelSource, OpenOptions};

    const LAYERS: usize = 28;

    /// `+ slot operator`, `- slot operator` or `~ slot operator kernel>kernel weight>weight` of each change.
    fn summary(rung: &'static Checkpoint, phase: Phase) -> Vec<String> {
        let source = ModelSource::parse("synthetic:qwen3-0.6b").unwrap();
        let files = weights::open(&source, &OpenOptions::default()).unwrap();
        let difference = compare(rung.parent.unwrap(), rung, &files, 128, &Registry::standard(), ROWS).unwrap();
        let phase = difference.phases.into_iter().find(|known| known.phase == phase).unwrap();
        let one = |calls: &[Calls]| {
            assert_eq!(calls.len(), 1, "one model, one binding per slot: {calls:?}");
            assert!([1, LAYERS - 1, LAYERS].contains(&calls[0].calls), "{calls:?}");
            calls[0].binding.clone()
        };
        let describe = |change: &Change| match (change.before.as_slice(), change.after.as_slice()) {
            ([], after) => format!("+ {} {}", change.slot, kernelled(change.operator, &one(after))),
            (before, []) => format!("- {} {}", change.slot, kernelled(change.operator, &one(before))),
            (before, after) => {
                let mut text = format!("~ {} {}", change.slot, change.operator);
                if before[0].calls != after[0].calls {
                    text += &format!(" {}>{} calls", before[0].calls, after[0].calls);
                }
                let (before, after) = (one(before), one(after));
                if before.kernel != after.kernel {
                    text += &format!(" {}>{}", before.kernel, after.kernel);
                }
                if before.weights != after.weights {
                    text += &format!(" {}>{}", before.weights[0], after.weights[0]);
                }
                if before.reads_cache != after.reads_cache {
                    text += " cached";
                }
                text
            }
        };
        phase.changes.iter().map(describe).collect()
    }

    /// Most operators have one kernel besides the reference, called `rows`.
    fn kernelled(operator: &str, binding: &Binding) -> String {
        if binding.kernel == "rows" { operator.to_owned() } else { format!("{operator}:{}", binding.kernel) }
    }

    fn both(rung: &'static Checkpoint, prefill: &[&str], decode: &[&str]) {
        for (phase, expected) in [(Phase::Prefill, prefill), (Phase::Decode, decode)] {
            let mut found = summary(rung, phase);
            let mut expected: Vec<String> = expected.iter().map(|line| (*line).to_owned()).collect();
            found.sort();
            expected.sort();
            assert_eq!(found, expected, "{} {}", rung.name, phase.name());
        }
    }

    const PROJECTIONS: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

    fn projections(change: &str) -> Vec<String> {
        PROJECTIONS.iter().map(|slot| format!("~ {slot} linear {change}")).collect()
    }

    fn strs(lines: &[String]) -> Vec<&str> {
        lines.iter().map(String::as_str).collect()
    }

    /// Every rung changes what its `change` says, and nothing else: the lists are complete.
    #[test]
    fn each_rung_changes_what_it_claims_and_nothing_else() {
        let cached = [
            "+ cache_grow cache_grow:runs",
            "+ cache_append cache_append",
            "~ attention attention_scores cached",
            "~ attention attention_mix cached",
        ];
        both(&rungs::KV_CACHE, &cached, &cached);
        both(&rungs::CAPACITY_CACHE, &["- cache_grow cache_grow:runs"], &["- cache_grow cache_grow:runs"]);

        let tables = ["~ embed embed bf16>w4-g128", "~ lm_head linear dense>matvec bf16>w4-g128"];
        let many = [projections("dense>vanilla bf16>w4-g128"), tables.map(str::to_owned).to_vec()].concat();
        let one = [projections("dense>matvec bf16>w4-g128"), tables.map(str::to_owned).to_vec()].concat();
        both(&rungs::QUANTIZED_MATVEC, &strs(&many), &strs(&one));
        both(&rungs::SIMD_MATMUL, &strs(&projections("vanilla>matmul")), &[]);

        let norms = ["input_norm", "q_norm", "k_norm", "post_norm", "final_norm"].map(|slot| {
            [
                format!("- {slot} rms_scale"),
                format!("- {slot} mul_weight"),
                format!("+ {slot} rms_norm:register-cached"),
            ]
        });
        let norms = norms.concat();
        both(&rungs::RMSNORM, &strs(&norms), &strs(&norms));
        let rope = ["q_rope", "k_rope"]
            .map(|slot| [format!("- {slot} rotate_half"), format!("- {slot} rope_combine"), format!("+ {slot} rope")]);
        let rope = rope.concat();
        both(&rungs::ROPE_RUNG, &strs(&rope), &strs(&rope));
        let swiglu = ["- swiglu silu", "- swiglu mul", "+ swiglu swiglu"];
        both(&rungs::SWIGLU_RUNG, &swiglu, &swiglu);
        let tiled = [
            "- attention attention_scores",
            "- attention softmax",
            "- attention attention_mix",
            "+ attention attention:tiled",
        ];
        both(&rungs::TILED_PREFILL, &tiled, &[]);
        both(&rungs::SELECTED, &[], &[]);

        let decode = [&tiled[..3], &["+ attention attention:decode"]].concat();
        both(&rungs::ONE_CALL_ATTENTION, &[], &decode);
        let placed = [
            "- q_norm rms_norm:register-cached",
            "- k_norm rms_norm:register-cached",
            "- q_rope rope",
            "- k_rope rope",
            "- cache_append cache_append",
            "+ norm_rope_append norm_rope_append:heads",
        ];
        both(&rungs::PLACED_HEADS, &placed, &placed);
        // The first norm follows no addition; the last one of a prompt wants fewer rows than the addition before it makes.
        let added = [
            "~ input_norm rms_norm 28>1 calls",
            "- attention_residual add",
            "- post_norm rms_norm:register-cached",
            "+ post_norm add_rms_norm",
            "+ input_norm add_rms_norm",
        ];
        let ends = ["- mlp_residual add", "- final_norm rms_norm:register-cached", "+ final_norm add_rms_norm"];
        let prompt = [&added[..], &["~ mlp_residual add 28>1 calls"]].concat();
        both(&rungs::ADDED_NORM, &prompt, &[&added[..], &ends].concat());
        // These walk the same programs in another way.
        both(&rungs::beside::EARLY_WEIGHTS, &[], &[]);
        both(&rungs::beside::GUIDED_SHARES, &[], &[]);
        let gated = [
            "- gate_proj linear:matvec",
            "- up_proj linear:matvec",
            "- swiglu swiglu",
            "+ gated_proj gated_linear:matvec",
        ];
        both(&rungs::beside::GATED_PROJECTIONS, &[], &gated);
        let split = [
            "- attention attention:decode",
            "+ attention attention_parts:decode",
            "+ attention_join attention_join:heads",
        ];
        both(&rungs::beside::SPLIT_ATTENTION_CHECKPOINT, &[], &split);
    }

    #[test]
    fn a_rung_that_changes_the_pace_says_so() {
        let source = ModelSource::parse("synthetic:tiny").unwrap();
        let files = weights::open(&source, &OpenOptions::default()).unwrap();
        let pace = |rung: &'static Checkpoint| {
            compare(rung.parent.unwrap(), rung, &files, 128, &Registry::standard(), ROWS).unwrap().pace
        };
        assert_eq!(pace(&rungs::ADDED_NORM), None);
        let [before, now] = pace(&rungs::beside::EARLY_WEIGHTS).unwrap();
        assert!(before == "plain" && now.contains("while waiting"), "{before} -> {now}");
    }

    #[test]
    fn every_rung_with_a_parent_is_in_the_test_above() {
        let tested = [
            &rungs::KV_CACHE,
            &rungs::CAPACITY_CACHE,
            &rungs::QUANTIZED_MATVEC,
            &rungs::SIMD_MATMUL,
            &rungs::RMSNORM,
            &rungs::ROPE_RUNG,
            &rungs::SWIGLU_RUNG,
            &rungs::TILED_PREFILL,
            &rungs::SELECTED,
            &rungs::ONE_CALL_ATTENTION,
            &rungs::PLACED_HEADS,
            &rungs::ADDED_NORM,
        ];
        let tested: Vec<&str> = tested.iter().map(|rung| rung.name).collect();
        let all: Vec<&str> = rungs::ALL.iter().filter(|rung| rung.parent.is_some()).map(|rung| rung.name).collect();
        assert_eq!(tested, all, "add the new rung's changes to the test above");
    }

    #[test]
    fn without_a_cache_a_decode_step_runs_the_whole_prefix() {
        let source = ModelSource::parse("synthetic:tiny").unwrap();
        let files = weights::open(&source, &OpenOptions::default()).unwrap();
        let difference = compare(&rungs::WEEK1, &rungs::KV_CACHE, &files, 128, &Registry::standard(), ROWS).unwrap();
        let decode = &difference.phases[1];
        assert_eq!((decode.parent_rows, decode.rows), (ROWS + 1, 1));
        let text = difference.text();
        assert!(text.contains("129 rows before, 1 now") && text.contains("+ cache_append"), "{text}");
    }
}
