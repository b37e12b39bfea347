//! The command line: which verbs there are, and how an error becomes a message and an exit code. A library, so that a project
//! elsewhere makes the same program with its own kernels: its `main` is one call of [`main`].
//! Not here: what a verb does (one file each), the engine, measurements.

mod bench;
mod capture;
mod ceilings;
mod chat;
mod child;
mod compare;
mod decide;
mod device;
mod doctor;
mod failure;
mod figures;
mod find;
pub mod handbook;
mod input;
mod interrupt;
mod ladder;
mod lines;
mod load;
mod mcp;
mod new;
mod npy;
mod output;
mod progress;
mod prose;
mod pull;
mod quantize;
mod records;
mod reduce;
mod replay;
mod report;
mod request;
mod run;
mod sampling;
mod score;
mod speak;
mod store;
mod timeline;
mod tokenize;
mod trace_package;
mod void;
mod wiring;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Counts heap bytes beside the arenas', so that a peak covers both.
#[global_allocator]
static ALLOCATOR: ops::memory::CountingAllocator = ops::memory::CountingAllocator;

/// Runs Qwen3-class language models and shows where the next bottleneck is.
///
/// Exit codes: 0 done, 1 a check or a run failed, 2 bad usage or input, 130 interrupted by Ctrl-C.
#[derive(Parser)]
#[command(name = "hourglass", version, max_term_width = 100, subcommand_required = true)]
struct CommandLine {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Where the time of one request goes, what of it could be gained, and what to try next: every view in one go
    Find(Box<find::Args>),
    /// Did the request get faster? Several variants clocked in one alternated run, with this machine's noise
    Bench(Box<bench::Args>),
    /// Which group of operators costs the most at a shape, and how far each is from what the machine can do
    Replay(Box<replay::Args>),
    /// What everyone does while one request runs, and what nobody does: workers, main thread, gaps, on one clock
    Timeline(Box<timeline::Args>),
    /// One steady stretch of one step, sampled and counted: the raw material for kernels, counters and source lines
    Capture(Box<capture::Args>),
    /// What a captured trace says: kernels against what the machine can do, counters, lines, instructions
    Reduce(reduce::Args),
    /// What every source line of a captured trace costs; also for pprof, KCachegrind, speedscope
    Lines(lines::Args),
    /// Did a change help? Two sides of one workload, view by view, and which of the possible outcomes it is
    Compare(compare::Args),
    /// Write a decision down before you measure, have it judged by its own rules after, keep both
    Decide(Box<decide::Args>),
    /// One HTML file that shows any set of records, to be looked at offline
    Report(report::Args),
    /// What has been measured and kept: list, show, export, clear away
    Records(records::Args),
    /// The records and analyses as tools for coding agents (Model Context Protocol on stdin and stdout)
    Mcp(mcp::Args),
    /// The checkpoints: parent, change, hypothesis, place in the source
    Ladder(ladder::Args),
    /// What this machine can do at most: bytes and operations per second, barriers, dispatch
    Ceilings(ceilings::Args),
    /// Which kernel every call of a checkpoint's passes gets, from shapes alone; nothing is loaded or run
    Wiring(wiring::Args),
    /// A kernel or a checkpoint of your own, as a stub that works; or a project for them outside the repository
    New(new::Args),
    /// What this machine has, what that means, and how to get what is missing
    Doctor(doctor::Args),
    /// Continue one prompt
    Run(run::Args),
    /// Talk, turn by turn; the cache is kept between turns
    Chat(chat::Args),
    /// How likely a text is: negative log-likelihood per token, perplexity, logits
    Score(score::Args),
    /// Text or a conversation to token ids, or back
    Tokenize(tokenize::Args),
    /// Write a 4-bit copy of a dense checkpoint, in MLX layout
    Quantize(quantize::Args),
    /// Download a model into the local hub cache
    Pull(pull::Args),
}

/// Runs the program's command line. `lab` makes the registry that `--solution lab` means: usually ours and your own
/// ([`ops::Registry::offering`]). Prints what there is to print; the exit code is the process's.
pub fn main(lab: fn() -> ops::Registry) -> ExitCode {
    load::set_lab(lab);
    let line = CommandLine::parse();
    interrupt::install();
    child::end_with_parent();
    let result = match line.verb {
        Verb::Find(args) => find::run(*args),
        Verb::Bench(args) => bench::run(*args),
        Verb::Replay(args) => replay::run(&args),
        Verb::Timeline(args) => timeline::run(*args),
        Verb::Capture(args) => capture::run(*args),
        Verb::Reduce(args) => reduce::run(&args),
        Verb::Lines(args) => lines::run(&args),
        Verb::Compare(args) => compare::run(&args),
        Verb::Decide(args) => decide::run(&args),
        Verb::Report(args) => report::run(args),
        Verb::Records(args) => records::run(args),
        Verb::Mcp(args) => mcp::run(args),
        Verb::Ladder(args) => ladder::run(args),
        Verb::Ceilings(args) => ceilings::run(args),
        Verb::Wiring(args) => wiring::run(args),
        Verb::New(args) => new::run(&args),
        Verb::Doctor(args) => doctor::run(args),
        Verb::Run(args) => run::run(args),
        Verb::Chat(args) => chat::run(args),
        Verb::Score(args) => score::run(args),
        Verb::Tokenize(args) => tokenize::run(args),
        Verb::Quantize(args) => quantize::run(args),
        Verb::Pull(args) => pull::run(args),
    };
    result.unwrap_or_else(|error| failure::report(&error))
}

/// Whether this build has a verb of this name.
fn has_verb(name: &str) -> bool {
    CommandLine::command().find_subcommand(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }
}
