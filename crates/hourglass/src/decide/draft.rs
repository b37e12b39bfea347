//! What a decision needs before it is opened: from flags, from a file, or asked for at a terminal.
//! Not here: checking it (`open.rs`).

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use record::gate::Rule;
use serde::Deserialize;

use super::names;
use crate::failure::usage;
use crate::output;

/// A decision's parts, as far as they are known.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Draft {
    pub(super) dominates: Option<String>,
    pub(super) change: Option<String>,
    pub(super) expect: Option<String>,
    pub(super) accept: Vec<String>,
    pub(super) reject: Vec<String>,
    pub(super) workload_of: Vec<PathBuf>,
    pub(super) baseline: Option<String>,
    pub(super) candidate: Option<String>,
    pub(super) target: Option<String>,
    pub(super) evidence: Vec<PathBuf>,
}

impl Draft {
    /// Reads a file: TOML, or JSON if its name ends so.
    ///
    /// # Errors
    /// No file, or one that is not such a draft.
    pub(super) fn read(path: &Path) -> Result<Draft> {
        let failed = |why: String| usage(format!("--file {}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| failed(format!("cannot be read: {error}")))?;
        let json = path.extension().is_some_and(|extension| extension == "json");
        let parsed = if json {
            serde_json::from_str(&text).map_err(|error| error.to_string())
        } else {
            toml::from_str(&text).map_err(|error| error.to_string())
        };
        parsed.map_err(|why| {
            failed(format!(
                "{why}; expected the fields dominates, change, accept, reject, workload_of, baseline and candidate, and perhaps \
                 expect, target and evidence"
            ))
        })
    }

    /// The flags that are still needed.
    pub(super) fn lacks(&self) -> Vec<&'static str> {
        let text = |text: &Option<String>| text.as_deref().is_none_or(|text| text.trim().is_empty());
        let all = [
            ("--dominates", text(&self.dominates)),
            ("--change", text(&self.change)),
            ("--accept", self.accept.is_empty()),
            ("--reject", self.reject.is_empty()),
            ("--workload-of", self.workload_of.is_empty()),
            ("--baseline", text(&self.baseline)),
            ("--candidate", text(&self.candidate)),
        ];
        all.into_iter().filter(|(_, lacks)| *lacks).map(|(flag, _)| flag).collect()
    }

    /// Asks for what is missing, if somebody is there to ask.
    ///
    /// # Errors
    /// Nobody is there, or the answers end.
    pub(super) fn complete(mut self) -> Result<Draft> {
        let lacks = self.lacks();
        if lacks.is_empty() {
            return Ok(self);
        }
        if !std::io::stdin().is_terminal() {
            return Err(usage(format!(
                "decide open: {} missing; give {}, a --file, or run it at a terminal, where it asks",
                if lacks.len() == 1 { "one part is" } else { "parts are" },
                lacks.join(", ")
            )));
        }
        let mut lines = std::io::stdin().lock().lines();
        self.ask(&mut lines)?;
        Ok(self)
    }

    fn ask(&mut self, lines: &mut impl Iterator<Item = std::io::Result<String>>) -> Result<()> {
        let mut ask = |question: &str| -> Result<String> {
            output::note(question);
            let line = lines.next().ok_or_else(|| usage("decide open: the answers ended; nothing was written"))?;
            Ok(line.context("an answer could not be read")?.trim().to_owned())
        };
        let mut text = |have: &mut Option<String>, question: &str| -> Result<()> {
            while have.as_deref().is_none_or(|text| text.trim().is_empty()) {
                *have = Some(ask(question)?);
            }
            Ok(())
        };
        text(&mut self.dominates, "1. What dominates, for this checkpoint and this request shape?")?;
        text(&mut self.change, "2. The one change you will make:")?;
        text(&mut self.baseline, "   The checkpoint (or arm) before it:")?;
        text(&mut self.candidate, "   and after it:")?;
        if self.workload_of.is_empty() {
            let mut path = None;
            text(&mut path, "   A record of the request that it is about (of bench):")?;
            self.workload_of.extend(path.map(PathBuf::from));
        }
        let rules = |have: &mut Vec<String>,
                     flag: &'static str,
                     question: &str,
                     ask: &mut dyn FnMut(&str) -> Result<String>| {
            while have.is_empty() {
                let rule = ask(question)?;
                match Rule::parse(&rule, &names(flag)) {
                    Ok(_) => have.push(rule),
                    Err(error) => output::note(format_args!("   {error}")),
                }
            }
            Ok::<(), anyhow::Error>(())
        };
        let accept = "   The result on the same workload that would support it, e.g. decode.ratio > 1.05:";
        rules(&mut self.accept, "--accept", accept, &mut ask)?;
        let reject = "3. The result that would make you reject it, e.g. request.verdict == slower:";
        rules(&mut self.reject, "--reject", reject, &mut ask)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_three_sentences_are_asked_for_and_rules_until_they_are_some() {
        let answers = [
            "projections dominate decode",
            "",
            "packed weights",
            "capacity-cache",
            "quantized-matvec",
            "bench.json",
            "faster",
            "decode.ratio > 1.05",
            "tokens_equal == no",
        ];
        let mut draft = Draft::default();
        draft.ask(&mut answers.iter().map(|answer| Ok((*answer).to_owned()))).unwrap();
        assert!(draft.lacks().is_empty());
        assert_eq!(
            (draft.change.as_deref(), draft.accept.as_slice()),
            (Some("packed weights"), &["decode.ratio > 1.05".to_owned()][..])
        );
        let mut cut = Draft::default();
        let error = cut.ask(&mut answers[..3].iter().map(|answer| Ok((*answer).to_owned()))).unwrap_err();
        assert!(error.to_string().contains("nothing was written"), "{error}");
    }

    #[test]
    fn a_file_is_toml_or_json_and_unknown_fields_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let toml = dir.path().join("decision.toml");
        std::fs::write(&toml, "dominates = \"x\"\nworkload_of = [\"a.json\"]\naccept = [\"tokens_equal\"]\n").unwrap();
        let draft = Draft::read(&toml).unwrap();
        assert_eq!(draft.lacks(), ["--change", "--reject", "--baseline", "--candidate"]);
        let json = dir.path().join("decision.json");
        std::fs::write(&json, r#"{"change": "y", "acept": []}"#).unwrap();
        let error = Draft::read(&json).unwrap_err().to_string();
        assert!(error.contains("acept") && error.contains("--file"), "{error}");
        assert!(Draft::read(&dir.path().join("none.toml")).is_err());
    }
}
