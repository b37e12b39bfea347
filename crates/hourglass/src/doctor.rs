//! `hourglass doctor`: what this machine has, what that means here, and how to get what is missing.
//! Not here: the conditions that go into a record (`probe`); speed, which is measured and not looked up.

mod findings;

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::output;
use crate::prose::paragraph;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One thing looked for.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    area: &'static str,
    name: String,
    present: bool,
    /// What was found.
    found: String,
    /// What it means for this program.
    means: String,
    /// How to get what is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    how_to_get: Option<String>,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let findings = findings::all();
    if args.json {
        #[derive(Serialize)]
        struct Report {
            schema: &'static str,
            findings: Vec<Finding>,
        }
        output::print_json(&Report { schema: "doctor/1", findings })?;
    } else {
        output::print(text(&findings).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    let mut area = "";
    for finding in findings {
        if finding.area != area {
            let _ = writeln!(text, "{}{}", if area.is_empty() { "" } else { "\n" }, finding.area);
            area = finding.area;
        }
        let mark = if finding.present { "yes" } else { "no " };
        let indent = "        ";
        text += &paragraph(&format!("  {mark} {:<14}", finding.name), &finding.found, indent);
        text += &paragraph(indent, &finding.means, indent);
        if let Some(how) = &finding.how_to_get {
            text += &paragraph("        to get it: ", how, indent);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_means_something_and_what_is_missing_says_how_to_get_it() {
        let findings = findings::all();
        for finding in &findings {
            assert!(!finding.found.is_empty() && !finding.means.is_empty(), "{finding:?}");
            assert!(finding.present || finding.how_to_get.is_some(), "{finding:?}");
        }
        for area in ["processor", "instructions", "memory", "profiling", "models", "gpu"] {
            assert!(findings.iter().any(|finding| finding.area == area), "{area}");
        }
        assert!(text(&findings).lines().all(|line| line.chars().count() <= 100));
    }
}
