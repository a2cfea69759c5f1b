//! What the `windlass` binary is made of.

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

/// The whole program.
pub fn main() -> ExitCode {
    // On its way to becoming a sandboxed command: nothing else may happen before that.
    if std::env::args_os().nth(1).is_some_and(|first| first == LAUNCH) {
        return windlass_tools::sandbox::launch_main();
    }
    let cli = match args::read(std::env::args_os().collect()) {
        Ok(cli) => cli,
        Err(error) => {
            // Where help cannot be shown, nothing else can.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    let json = cli.global.json;
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return told(&Failure::new(Exit::Unreachable, format!("no threads can be started: {error}")), json);
        }
    };
    let done = runtime.block_on(command::run(cli));
    // Somebody may still be asked something on the keyboard: that does not keep the program from ending.
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => told(&failure, json),
    }
}

/// The hidden command by which command tools start this program anew.
pub(crate) const LAUNCH: &str = "sandbox-launch";

fn told(failure: &Failure, json: bool) -> ExitCode {
    if !failure.sentence.is_empty() {
        if json {
            let exit = failure.exit as u8;
            let error = serde_json::json!({ "exit": exit, "problem": failure.problem, "message": failure.sentence });
            eprintln!("{}", serde_json::json!({ "error": error }));
        } else {
            eprintln!("error: {}", failure.sentence);
        }
    }
    failure.exit.into()
}
