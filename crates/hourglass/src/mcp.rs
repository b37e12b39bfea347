//! `hourglass mcp`: the records and analyses as tools for coding agents, over the Model Context Protocol on stdin and stdout.
//! Not here: the tools (`mcp/reading.rs`, `mcp/running.rs`), and the protocol itself (crate rmcp).

mod child;
mod explain;
mod page;
mod place;
mod reading;
mod running;
mod server;
mod tool;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rmcp::ServiceExt;
use rmcp::service::{QuitReason, ServerInitializeError};
use rmcp::transport::stdio;

use crate::failure::{INTERRUPTED, usage};
use crate::{interrupt, output};
use place::Place;
use server::Server;
use tool::Workplace;

/// How long the end waits for work that was told to stop: longer than a child is given to end by itself.
const LAST_WORK: Duration = Duration::from_secs(15);
/// How often a signal is looked for.
const LOOK: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of records [default: .hourglass at the repository's root, or here without one]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Also offer the tools that measure: they take the machine for a while and write records into the folder
    #[arg(long)]
    allow_run: bool,
    /// The longest that a measurement may take
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    time_limit_seconds: u64,
    /// Print the tools as JSON and end
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    if !(1..=86_400).contains(&args.time_limit_seconds) {
        return Err(usage(format!("--time-limit-seconds {}: expected 1 to 86400", args.time_limit_seconds)));
    }
    let place = Place::new(args.dir.as_deref())?;
    let work = Arc::new(Workplace::new(place, args.allow_run, Duration::from_secs(args.time_limit_seconds)));
    let server = Server::new(Arc::clone(&work));
    if args.json {
        output::print_json(&server.described())?;
        return Ok(ExitCode::SUCCESS);
    }
    if std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        output::note(
            "hourglass: mcp speaks a protocol on stdin and stdout; a client starts it (docs/mcp.md). Ctrl-C ends it.",
        );
    }
    // One thread: what takes time runs on threads for it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the protocol's event loop could not be started")?;
    let result = runtime.block_on(serve(server));
    // Whoever was measuring stops; nobody is there to read the answer.
    work.close();
    let asked = Instant::now();
    while work.is_busy() && asked.elapsed() < LAST_WORK {
        std::thread::sleep(LOOK);
    }
    // A thread may still wait for stdin, which nothing ends.
    runtime.shutdown_background();
    result
}

/// Serves until stdin ends or a signal comes.
async fn serve(server: Server) -> Result<ExitCode> {
    let begun = tokio::select! {
        begun = server.serve(stdio()) => begun,
        () = interrupted() => return Ok(ExitCode::from(INTERRUPTED)),
    };
    let running = match begun {
        Ok(running) => running,
        // A client that went away before it said anything wanted nothing.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(ExitCode::SUCCESS),
        Err(error) => return Err(error).context("the client did not begin as the protocol wants it"),
    };
    let stop = running.cancellation_token();
    tokio::select! {
        quit = running.waiting() => match quit.context("the protocol's event loop failed")? {
            QuitReason::JoinError(error) => Err(error).context("the protocol's event loop failed"),
            _ => Ok(ExitCode::SUCCESS),
        },
        () = interrupted() => {
            stop.cancel();
            Ok(ExitCode::from(INTERRUPTED))
        }
    }
}

async fn interrupted() {
    while !interrupt::requested() {
        tokio::time::sleep(LOOK).await;
    }
}
