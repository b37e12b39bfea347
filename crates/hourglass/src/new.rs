//! `hourglass new`: a stub of a kernel or a checkpoint, written into your file where it is registered and tested at once; or a
//! project of your own that makes the same program. A file is changed whole or not at all, and only at its marker lines.
//! Not here: what kernels and checkpoints are (`ops`), the texts (`stub`), the lines (`edit`).

mod edit;
mod project;
mod stub;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use model::{LoadOptions, lower, weight_formats};
use ops::{MechanismControls, Operator, Registry};
use serde::Serialize;
use weights::{ModelSource, OpenOptions};

use crate::failure::usage;
use crate::ladder::diff::ROWS;
use crate::load::{DEFAULT_MODEL, Solution};
use crate::output;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// A kernel that begins as the operator's own reference: right, and slow
    Kernel {
        /// What it computes; crates/ops/src/operators/README.md lists the operators
        operator: String,
        /// Its name: lower-case words with hyphens
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// A checkpoint: a rung that differs from its parent by what you say
    Checkpoint {
        /// Its name: lower-case words with hyphens
        name: String,
        /// The rung that it is made from; `fast` is the newest
        #[arg(long, value_name = "PARENT")]
        from: String,
        /// A kernel that it prefers to its parent's choice, as OPERATOR:KERNEL; may be given several times
        #[arg(long, value_name = "OPERATOR:KERNEL")]
        with: Vec<String>,
        #[command(flatten)]
        place: Place,
    },
    /// A directory with a crate of your own, outside the repository
    Project {
        /// The directory to make; its name is the program's
        directory: PathBuf,
        /// The repository that it builds on [default: the one that this program was built from]
        #[arg(long, value_name = "DIRECTORY")]
        checkout: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args)]
struct Place {
    /// The file to write into [default: crates/lab/src/lib.rs of the repository around the working directory, or src/lib.rs of a
    /// project of your own]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What was written, and what to do next.
#[derive(Serialize)]
struct Written {
    what: &'static str,
    name: String,
    file: PathBuf,
    /// Where the stub begins, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    next: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let registry = Solution::Lab.registry();
    let (written, json) = match &args.what {
        What::Kernel { operator, name, place } => (kernel(&registry, operator, name, place)?, place.json),
        What::Checkpoint { name, from, with, place } => (checkpoint(&registry, name, from, with, place)?, place.json),
        What::Project { directory, checkout, json } => (project::write(directory, checkout.as_deref())?, *json),
    };
    if json {
        output::print_json(&written)?;
    } else {
        let line = written.line.map_or_else(String::new, |line| format!(":{line}"));
        let mut text = format!("{} '{}' is in {}{line}\nNext:\n", written.what, written.name, written.file.display());
        for command in &written.next {
            text += &format!("  {command}\n");
        }
        output::print(text.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn kernel(registry: &Registry, operator: &str, name: &str, place: &Place) -> Result<Written> {
    let operators = registry.operators();
    let Some(operator) = operators.iter().find(|known| known.name() == operator) else {
        let known: Vec<_> = operators.iter().map(|operator| operator.name()).collect();
        return Err(usage(format!("no operator is called '{operator}'; known ones are {}", known.join(", "))));
    };
    check_name(name)?;
    if registry.kernels(*operator).any(|known| known.name == name) {
        return Err(usage(format!(
            "{} has a kernel '{name}' already; choose another name (`hourglass wiring` shows what is in use)",
            operator.name()
        )));
    }
    let target = Target::find(place)?;
    let reference = reference_text(*operator, &target)?;
    let stub = stub::kernel(operator.name(), name, &reference);
    let line = edit::insert(&target.file, &[edit::Insertion::code(&stub), edit::Insertion::kernel(&stub)])?;
    let (program, rung, operator) = (target.program(), caller_of(operator.name())?, operator.name());
    let next = vec![
        target.tests(),
        format!("{program} new checkpoint {name}-rung --from {rung} --with {operator}:{name}"),
        format!("{program} wiring {name}-rung --diff --solution lab"),
    ];
    Ok(Written { what: "kernel", name: name.to_owned(), file: target.file, line: Some(line), next })
}

/// The newest of our rungs that calls this operator in every layer of the default model; the newest of all if none does.
fn caller_of(operator: &str) -> Result<&'static str> {
    let source = ModelSource::parse(DEFAULT_MODEL)?;
    // Only shapes are read.
    let files = weights::open(&source, &OpenOptions { offline: true, ..OpenOptions::default() })?;
    let config = files.config();
    for rung in ops::ladder::ALL.iter().rev() {
        let resolved = rung.resolve(MechanismControls::default()).map_err(usage)?;
        let options = LoadOptions { convert: true, ..LoadOptions::new(rung) };
        let formats = weight_formats(&files, &resolved, &options)?;
        let calls = |rows: usize| {
            let program = lower(config, &resolved, &formats, rows, 1, ROWS + 1);
            program.calls.iter().filter(|call| call.operator.name() == operator).count()
        };
        if calls(1).max(calls(ROWS)) >= config.layers {
            return Ok(rung.name);
        }
    }
    Ok(ops::ladder::FAST)
}

fn checkpoint(registry: &Registry, name: &str, from: &str, with: &[String], place: &Place) -> Result<Written> {
    check_name(name)?;
    if registry.checkpoint(name).is_ok() || ops::ladder::RETIRED.iter().any(|(retired, _)| *retired == name) {
        return Err(usage(format!("'{name}' is taken; `hourglass ladder --solution lab` lists the names in use")));
    }
    let parent = registry.checkpoint(from).map_err(|why| {
        usage(format!("--from: {why}; one that was added to the file is known once the program is built again"))
    })?;
    let mut prefers = Vec::new();
    for given in with {
        let Some((operator, kernel)) = given.split_once(':') else {
            return Err(usage(format!("--with {given}: expected OPERATOR:KERNEL, such as rms_norm:two-pass")));
        };
        if !registry.operators().iter().any(|known| known.name() == operator) {
            return Err(usage(format!("--with {given}: no operator is called '{operator}'")));
        }
        check_name(kernel)?;
        prefers.push((operator, kernel));
    }
    let target = Target::find(place)?;
    for (operator, kernel) in &prefers {
        // One that was just added is in the file, and in no program yet.
        let written =
            || std::fs::read_to_string(&target.file).is_ok_and(|text| text.contains(&format!("\"{kernel}\"")));
        let operators = registry.operators().iter().filter(|known| known.name() == *operator);
        let known = operators.flat_map(|own| registry.kernels(*own)).any(|own| own.name == *kernel);
        if !known && !written() {
            return Err(usage(format!(
                "--with {operator}:{kernel}: {operator} has no kernel of this name, here or in {}; `hourglass wiring {from}` lists \
                 them, `hourglass new kernel {operator} {kernel}` begins one",
                target.file.display()
            )));
        }
    }
    let text = target.source_of(parent.file)?;
    let path = stub::constant_before(&text, parent.line as usize).ok_or_else(|| {
        usage(format!(
            "--from {from}: no constant was found at {}:{}; was the file changed since the program was built?",
            parent.file, parent.line
        ))
    })?;
    // The ladder's constants are in its module, yours are in the file itself.
    let own = target.is_own(parent.file);
    let path = if own { path.to_owned() } else { format!("ladder::{path}") };
    let stub = stub::checkpoint(name, &path, &prefers);
    let line = edit::insert(&target.file, &[edit::Insertion::code(&stub), edit::Insertion::checkpoint(&stub)])?;
    let (program, parent) = (target.program(), parent.name);
    let next = vec![
        target.tests(),
        format!("{program} replay --solution lab --case {parent}:decode:128 --case {name}:decode:128"),
        format!("{program} bench --solution lab --variant {parent} --variant {name}"),
    ];
    Ok(Written { what: "checkpoint", name: name.to_owned(), file: target.file, line: Some(line), next })
}

/// Words of Rust, which no function may be called.
const KEYWORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn", "else",
    "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro", "match", "mod",
    "move", "mut", "override", "priv", "pub", "ref", "return", "self", "static", "struct", "super", "trait", "true",
    "try", "type", "typeof", "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];
/// Tables have room for so many letters.
const LONGEST_NAME: usize = 40;

fn check_name(name: &str) -> Result<()> {
    if KEYWORDS.contains(&name) {
        return Err(usage(format!("the name '{name}': is a word of Rust; add another, such as {name}-rows")));
    }
    if name.len() > LONGEST_NAME {
        let length = name.len();
        return Err(usage(format!(
            "the name '{name:.20}...': expected at most {LONGEST_NAME} letters, found {length}"
        )));
    }
    let word =
        |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if name.split('-').all(word) && name.starts_with(|first: char| first.is_ascii_lowercase()) {
        return Ok(());
    }
    Err(usage(format!("the name '{name}': expected lower-case words with hyphens, such as wide-sums")))
}

/// The text of an operator's reference, from the source that the program was built from.
fn reference_text(operator: &dyn Operator, target: &Target) -> Result<String> {
    let kernel = operator.kernels()[0];
    let text = target.source_of(kernel.file)?;
    stub::function(&text, "reference").ok_or_else(|| {
        usage(format!(
            "no function `reference` was found in {}; was it changed since the program was built?",
            kernel.file
        ))
    })
}

/// The file to write into.
struct Target {
    file: PathBuf,
    /// The repository's root, or the project's.
    root: PathBuf,
    in_repository: bool,
}

/// Where the user's file is in the repository.
const LAB: &str = "crates/lab/src/lib.rs";

impl Target {
    fn find(place: &Place) -> Result<Target> {
        if let Some(file) = &place.file {
            let file = file.canonicalize().map_err(|error| {
                usage(format!(
                    "--file {}: cannot be read ({error}); name an existing Rust file with the marker lines",
                    file.display()
                ))
            })?;
            let in_repository = file.ends_with(LAB);
            let above = file.ancestors().nth(if in_repository { 4 } else { 2 });
            let root = above.unwrap_or(Path::new("/")).to_path_buf();
            return Ok(Target { root, in_repository, file });
        }
        let here = std::env::current_dir()
            .map_err(|error| usage(format!("the working directory cannot be read ({error}); give --file FILE")))?;
        for root in here.ancestors() {
            for (file, in_repository) in [(LAB, true), ("src/lib.rs", false)] {
                let file = root.join(file);
                if std::fs::read_to_string(&file).is_ok_and(|text| edit::has_a_marker(&text)) {
                    return Ok(Target { file, root: root.to_path_buf(), in_repository });
                }
            }
        }
        Err(usage(format!(
            "no file for it was found from {} upwards: expected {LAB} in the repository, or src/lib.rs in a project of \
             `hourglass new project`, with its marker lines; change there or give --file FILE",
            here.display()
        )))
    }

    /// The text of a source file of this program, as `file!()` named it: relative to the workspace it was built in.
    fn source_of(&self, file: &str) -> Result<String> {
        let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/"));
        let places = [self.root.join(file), built_in.join(file)];
        places.iter().find_map(|place| std::fs::read_to_string(place).ok()).ok_or_else(|| {
            usage(format!(
                "{file} was not found in {} or {}, and the stub begins with a part of it; run in the repository that this \
                 program was built from",
                self.root.display(),
                built_in.display()
            ))
        })
    }

    /// Whether `file!()` said this of the file itself.
    fn is_own(&self, file: &str) -> bool {
        let path = self.root.join(file);
        path.canonicalize().is_ok_and(|path| self.file.canonicalize().is_ok_and(|own| own == path))
    }

    fn tests(&self) -> String {
        let package = if self.in_repository { " -p hourglass-lab" } else { "" };
        format!("cargo test --release{package}")
    }

    /// How the program is built and started.
    fn program(&self) -> &'static str {
        "cargo run --release --"
    }
}
