//! `hourglass pull`: a model from the hub into the local hub cache, where every other verb finds it.
//! Not here: how a download is resumed and checked (`weights`).

use std::process::ExitCode;

use anyhow::Result;
use weights::ModelSource;

use crate::failure::usage;
use crate::load::ModelArgs;
use crate::output;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A known name (qwen3-0.6b, -1.7b, -4b, -8b) or owner/name
    #[arg(value_name = "MODEL")]
    model: String,
    /// Only check that the model is in the local hub cache
    #[arg(long)]
    offline: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Pulled {
    schema: &'static str,
    model: String,
    encoding: String,
    fingerprint: String,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    if !matches!(ModelSource::parse(&args.model)?, ModelSource::Hub { .. }) {
        return Err(usage(format!(
            "pull {}: this is not a hub repository, so there is nothing to download; use it with --model as it is",
            args.model
        )));
    }
    let files = ModelArgs { model: Some(args.model), offline: args.offline }.open(None)?;
    let pulled = Pulled {
        schema: "pull/1",
        model: files.label().to_owned(),
        encoding: files.describe_encoding(),
        fingerprint: files.fingerprint()?,
    };
    if args.json {
        output::print_json(&pulled)?;
    } else {
        output::print(format!("{} ({}) is in the local hub cache\n", pulled.model, pulled.encoding).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}
