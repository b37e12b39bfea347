//! How each variant's child is started: this binary for rungs and servers, an adapter in peers/ for other engines.
//! Not here: what the names mean (`variants.rs`), and running a child (`process.rs`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use record::Unavailable;
use weights::{DenseCheckpoint, ModelFiles, OpenOptions};

use super::Args;
use super::process::{self, ChildCommand, ChildResult, Task};
use super::variants::{Peer, Variant, What};
use crate::child::own_program;
use crate::device::DeviceChoice;
use crate::failure::{Interrupted, usage};
use crate::interrupt;
use crate::progress::Progress;

/// The file by which a folder of adapters is known.
const MARK: &str = "protocol.py";

/// A child's command, or why there is none.
pub(crate) type Startable = std::result::Result<ChildCommand, Unavailable>;

/// The commands of all variants, in their order; converts the model for other engines, once per machine.
///
/// # Errors
/// Interrupted; `--peers` names no folder of adapters. An engine that is not here is no error.
pub(crate) fn all(args: &Args, variants: &[Variant], files: &ModelFiles, ids: &Path) -> Result<Vec<Startable>> {
    let own = own_program();
    let control = match &variants[0].what {
        What::SameAgain => unreachable!("the control is never the control again"),
        what => what.clone(),
    };
    let mut dense = None;
    let mut prepared: Vec<(Peer, Startable)> = Vec::new();
    let mut commands = Vec::with_capacity(variants.len());
    for variant in variants {
        let what = if variant.what == What::SameAgain { &control } else { &variant.what };
        commands.push(match what {
            What::Checkpoint(name) => Ok(ChildCommand { program: own.clone(), arguments: rung(args, name, ids) }),
            What::Endpoint(url) => Ok(ChildCommand { program: own.clone(), arguments: endpoint(args, url, ids) }),
            What::Peer(peer) => match prepared.iter().find(|(known, _)| known == peer) {
                Some((_, command)) => command.clone(),
                None => {
                    let command = adapter(args, *peer, files, ids, &mut dense)?;
                    prepared.push((*peer, command.clone()));
                    command
                }
            },
            What::SameAgain => unreachable!("replaced by the control above"),
        });
    }
    Ok(commands)
}

/// `--flag value` pairs that every child of ours takes.
fn common(args: &Args, ids: &Path) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["bench".into(), "child".into(), "--ids-file".into(), ids.into()];
    for (flag, value) in [
        ("--output-len", args.output_len.to_string()),
        ("--warmup", args.warmup.to_string()),
        ("--prefill-logits", args.prefill_logits.mode().name().to_owned()),
    ] {
        words.extend([flag.into(), value.into()]);
    }
    words
}

fn rung(args: &Args, checkpoint: &str, ids: &Path) -> Vec<OsString> {
    let mut words = common(args, ids);
    let engine = &args.machine;
    // What was downloaded is there by now; a child that goes to the network would be timed with it.
    words.extend(["--model".into(), args.model_name().into(), "--offline".into()]);
    for (flag, value) in [
        ("--solution", Some(engine.solution.name().to_owned())),
        ("--checkpoint", Some(checkpoint.to_owned())),
        ("--device", (engine.device != DeviceChoice::Cpu).then(|| engine.device.to_string())),
        ("--threads", engine.threads.map(|threads| threads.to_string())),
        ("--w4-group", Some(engine.w4_group.to_string())),
        ("--features-without", engine.features_without.clone()),
    ] {
        if let Some(value) = value {
            words.extend([flag.into(), value.into()]);
        }
    }
    words.extend(
        [(engine.pin, "--pin"), (engine.convert, "--convert")].iter().filter(|(on, _)| *on).map(|(_, f)| (*f).into()),
    );
    words
}

fn endpoint(args: &Args, url: &str, ids: &Path) -> Vec<OsString> {
    let mut words = common(args, ids);
    words.extend(["--time-limit-seconds".into(), args.time_limit_seconds.to_string().into()]);
    words.extend(["--endpoint".into(), url.into(), "--model".into(), args.model_name().into(), "--offline".into()]);
    words
}

/// The adapter's command, after its model has been converted.
fn adapter(
    args: &Args,
    peer: Peer,
    files: &ModelFiles,
    ids: &Path,
    dense: &mut Option<std::result::Result<DenseCheckpoint, Unavailable>>,
) -> Result<Startable> {
    let get = format!("cargo xtask peers {}", peer.package);
    let missing = |why: String, how: &str| Ok(Err(Unavailable { unavailable: why, how_to_get: how.to_owned() }));
    let Some(folder) = folder(args.peers.as_deref())? else {
        return missing(
            "no folder peers/ with the adapters of other engines was found from the working directory or this program \
             upwards"
                .to_owned(),
            "run in a checkout of the repository, or name the folder with --peers",
        );
    };
    let script = folder.join(peer.script);
    if !script.is_file() {
        return missing(format!("there is no adapter {}", script.display()), "use a checkout that has it");
    }
    let python = folder.parent().unwrap_or(Path::new("/")).join(peer.environment).join("bin/python");
    if !python.exists() {
        return missing(format!("the peers' Python {} is not there", python.display()), &get);
    }
    let dense = match dense {
        Some(known) => known,
        None => dense.insert(dense_checkpoint(files)?),
    };
    let dense = match dense {
        Ok(dense) => dense,
        Err(missing) => return Ok(Err(missing.clone())),
    };
    let threads = match args.machine.threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let mut words: Vec<OsString> = vec![script.into()];
    words.extend(["--model".into(), dense.model.clone().into(), "--cache".into(), dense.conversions.clone().into()]);
    words.extend(common(args, ids).into_iter().skip(2));
    words.extend(["--threads".into(), threads.to_string().into()]);
    let command = ChildCommand { program: python, arguments: words };
    let mut prepare = command.clone();
    prepare.arguments.push("--prepare".into());
    let progress = Progress::new("bench");
    let doing = format!("{} converts the model (once per machine)", peer.name);
    let execution = process::run(&prepare, None, Task::Prepare, &mut || progress.steps(0, 1, &doing));
    match execution.result {
        ChildResult::Prepared => Ok(Ok(command)),
        ChildResult::Interrupted => Err(Interrupted(format!("while {doing}; nothing was measured")).into()),
        ChildResult::Unavailable(reason) => missing(reason.why, &reason.how_to_get),
        ChildResult::Lost(why) => missing(why, &get),
        ChildResult::Ran(_) => missing("its adapter measured instead of preparing".to_owned(), &get),
    }
}

/// The model in the form that other engines read.
fn dense_checkpoint(files: &ModelFiles) -> Result<std::result::Result<DenseCheckpoint, Unavailable>> {
    let cancelled = interrupt::flag();
    let progress = Progress::new("bench");
    let show = |done: u64, total: Option<u64>, file: &str| progress.bytes(done, total, file);
    let options = OpenOptions { offline: true, progress: Some(&show), cancelled: Some(&cancelled) };
    match weights::peers_cache().and_then(|cache| weights::dense_in_cache(files, &cache, &options)) {
        Ok(dense) => Ok(Ok(dense)),
        Err(error @ weights::Error::Cancelled { .. }) => Err(error.into()),
        Err(error) => Ok(Err(Unavailable {
            unavailable: format!("other engines need the model as BF16 safetensors: {error}"),
            how_to_get: "name a model that can be written so, with space in the cache directory".to_owned(),
        })),
    }
}

/// The folder of the adapters: the one named, else found upwards from the working directory, else from this program.
fn folder(named: Option<&Path>) -> Result<Option<PathBuf>> {
    if let Some(folder) = named {
        if !folder.join(MARK).is_file() {
            return Err(usage(format!(
                "--peers {}: expected the folder with the adapters of other engines, found no {MARK} in it",
                folder.display()
            )));
        }
        return Ok(Some(folder.canonicalize()?));
    }
    let starts = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    for start in starts.into_iter().flatten() {
        if let Some(found) = start.ancestors().map(|up| up.join("peers")).find(|peers| peers.join(MARK).is_file()) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
