//! The `windlass` binary: its arguments, its commands and its config file.

pub mod api;
pub mod args;
pub mod command;
mod completions;
pub mod config;
mod demo;
pub mod exit;
mod files;
pub mod input;
mod interrupt;
mod log;
mod out;
mod progress;
mod serve;
pub mod style;
pub mod timeline;

use std::process::ExitCode;

use exit::{Exit, Failure};

/// Runs the program.
pub fn main() -> ExitCode {
    // This process is about to become a sandboxed command: it must do nothing else first.
    if std::env::args_os().nth(1).is_some_and(|first| first == LAUNCH) {
        return windlass_tools::sandbox::launch_main();
    }
    let cli = match args::parse(std::env::args_os().collect()) {
        Ok(cli) => cli,
        Err(error) => {
            // If the message cannot be printed, an error about that cannot be printed either.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    let json = cli.global.json;
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return report(&Failure::new(Exit::Unreachable, format!("could not start threads: {error}")), json);
        }
    };
    let done = runtime.block_on(command::run(cli));
    // A task may still block on reading standard input; do not wait for it.
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure, json),
    }
}

/// The hidden command with which command tools start this program again.
pub(crate) const LAUNCH: &str = "sandbox-launch";

/// Prints a failure to standard error, and returns its exit code.
fn report(failure: &Failure, json: bool) -> ExitCode {
    if !failure.message.is_empty() {
        if json {
            let exit = failure.exit as u8;
            let error = serde_json::json!({ "exit": exit, "problem": failure.problem, "message": failure.message });
            eprintln!("{}", serde_json::json!({ "error": error }));
        } else {
            eprintln!("error: {}", failure.message);
        }
    }
    failure.exit.into()
}
