//! The request that is looked at: from flags, a workload file, or the workload of any record.
//! Not here: the model's files, and whether the request fits them.

use anyhow::Result;
use record::LogitsMode;
use serde::Deserialize;
use serde_json::Value;

use super::Args;
use crate::failure::usage;
use crate::replay::files;
use crate::request::{self, PrefillLogits, check_counts};

/// A request's shape, and the model it is asked of if one was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) model: Option<String>,
    pub(crate) input_len: usize,
    pub(crate) output_len: usize,
    pub(crate) logits: PrefillLogits,
    pub(crate) seed: u64,
}

/// What a workload file may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    model: Option<String>,
    input_len: Option<usize>,
    output_len: Option<usize>,
    logits: Option<LogitsMode>,
    seed: Option<u64>,
}

impl Shape {
    /// # Errors
    /// A file that is neither, and lengths that are no request's.
    pub(super) fn of(args: &Args) -> Result<Shape> {
        let given = match &args.workload {
            Some(path) => Given::parse(&path.display().to_string(), &files::bytes("--workload", path)?)?,
            None => Given::default(),
        };
        let logits = given.logits.map(|mode| match mode {
            LogitsMode::Last => PrefillLogits::Last,
            LogitsMode::All => PrefillLogits::All,
        });
        let shape = Shape {
            model: args.model.model.clone().or(given.model),
            input_len: args.input_len.or(given.input_len).unwrap_or(128),
            output_len: args.output_len.or(given.output_len).unwrap_or(129),
            logits: args.prefill_logits.or(logits).unwrap_or(PrefillLogits::Last),
            seed: args.seed.or(given.seed).unwrap_or(0),
        };
        check_counts(request::lengths(shape.input_len, shape.output_len))?;
        Ok(shape)
    }
}

impl Given {
    fn parse(name: &str, bytes: &[u8]) -> Result<Given> {
        let expected =
            "expected {\"input_len\", \"output_len\", \"seed\", \"logits\", \"model\"}, each optional, or a record";
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| usage(format!("--workload {name}: {expected}; found no JSON: {error}")))?;
        if value.get("schema").is_none() {
            return serde_json::from_value(value)
                .map_err(|error| usage(format!("--workload {name}: {expected}: {error}")));
        }
        // Of a record whatever its kind; replays have one in each case.
        let workload = value.get("workload").or_else(|| value.pointer("/cases/0/replay/workload"));
        let workload: record::Workload = workload
            .and_then(|workload| serde_json::from_value(workload.clone()).ok())
            .ok_or_else(|| usage(format!("--workload {name}: this record has no workload of a request; {expected}")))?;
        let generated = workload.output_tokens as usize;
        Ok(Given {
            model: Some(workload.model),
            input_len: Some(workload.context_tokens as usize),
            // A replayed pass generates nothing, and says nothing of how much a request would.
            output_len: (generated > 0).then_some(generated),
            logits: Some(workload.logits),
            seed: Some(workload.seed),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_file_may_say_part_and_nothing_else() {
        let given = Given::parse("w", br#"{"input_len": 64, "logits": "all"}"#).unwrap();
        assert_eq!((given.input_len, given.output_len, given.logits), (Some(64), None, Some(LogitsMode::All)));
        for (text, word) in
            [("{\"inputs\": 3}", "inputs"), ("[", "no JSON"), ("{\"schema\": \"bench/1\"}", "no workload")]
        {
            let error = Given::parse("w", text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("--workload w") && error.contains(word), "{error}");
        }
    }
}
