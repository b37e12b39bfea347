//! `hourglass quantize`: a dense checkpoint rewritten as a 4-bit one in MLX's layout.
//! Not here: the rule and the files (`weights`).

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use weights::{DenseType, Encoding, ModelFiles, OpenOptions};

use crate::failure::usage;
use crate::load::ModelArgs;
use crate::progress::Progress;
use crate::{interrupt, output};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The directory to make: config.json, model.safetensors, tokenizer files
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Columns that share a scale and a bias: 32, 64 or 128
    #[arg(long, value_name = "N", default_value_t = 128)]
    group: usize,
    /// Allow F16 and F32 weights to be rounded to BF16 first
    #[arg(long)]
    convert: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Quantized {
    schema: &'static str,
    model: String,
    out: String,
    group: usize,
    /// Tensors that were F16 or F32 and were rounded to BF16 first.
    converted: usize,
    /// Of the weights file.
    bytes: u64,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    // Before anything is downloaded.
    if args.out.symlink_metadata().is_ok() {
        return Err(weights::Error::Exists { path: args.out }.into());
    }
    if !weights::GROUPS.contains(&args.group) {
        return Err(usage(format!("--group {}: expected 32, 64 or 128", args.group)));
    }
    let files = args.model.open(None)?;
    let progress = Progress::new("quantize");
    let show = |done: u64, total: Option<u64>, file: &str| progress.bytes(done, total, file);
    let cancelled = interrupt::flag();
    let options = OpenOptions { offline: args.model.offline, progress: Some(&show), cancelled: Some(&cancelled) };
    weights::quantize_checkpoint(&files, &args.out, args.group, args.convert, &options)?;
    drop(progress);
    let written = args
        .out
        .join("model.safetensors")
        .metadata()
        .map_err(|error| anyhow::anyhow!("{}: was written and cannot be read: {error}", args.out.display()))?;
    let quantized = Quantized {
        schema: "quantize/1",
        model: files.label().to_owned(),
        out: args.out.display().to_string(),
        group: args.group,
        converted: not_bf16(&files)?,
        bytes: written.len(),
    };
    if args.json {
        output::print_json(&quantized)?;
    } else {
        let mib = quantized.bytes as f64 / (1 << 20) as f64;
        let converted = match quantized.converted {
            0 => String::new(),
            1 => "; 1 tensor was rounded to BF16 first".to_owned(),
            count => format!("; {count} F16 or F32 tensors were rounded to BF16 first"),
        };
        let line = format!(
            "{} in groups of {}: {} ({mib:.1} MiB of weights){converted}\n",
            quantized.model, args.group, quantized.out
        );
        output::print(line.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// How many tensors hold F16 or F32.
fn not_bf16(files: &ModelFiles) -> Result<usize> {
    let mut count = 0;
    for name in files.tensor_names() {
        if matches!(files.tensor(name)?.encoding(), Encoding::Dense(DenseType::F16 | DenseType::F32)) {
            count += 1;
        }
    }
    Ok(count)
}
