//! Measures the cost of a command tool over starting the same program directly: `cargo run --release --example
//! overhead`.

#![allow(clippy::unwrap_used, missing_docs)]

use std::process::{Command as Bare, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use windlass::tool::Schemas;
use windlass::{Effect, ToolSpec, Windlass};
use windlass_tools::command::Command;
use windlass_tools::sandbox::{Launcher, Level, Sandbox, launch_main};

const CALLS: usize = 400;

fn main() -> ExitCode {
    // This program is its own launcher.
    if std::env::args().nth(1).as_deref() == Some("launch") {
        return launch_main();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(measure());
    ExitCode::SUCCESS
}

async fn measure() {
    let folder = std::env::temp_dir().join(format!("windlass-overhead-{}", std::process::id()));
    let launcher = Launcher::this_program(["launch"]).records(&folder);
    let make = |name: &str, sandbox: Sandbox| {
        let command = Command { sandbox, ..Command::new(["/bin/true"], launcher.clone()) };
        command.tool(ToolSpec::new(name.to_owned(), "Does nothing"), Schemas::any()).effect(Effect::Readonly)
    };
    let confined = make("sandboxed", Sandbox { level: Level::BestEffort, ..Sandbox::default() });
    let free = make("unsandboxed", Sandbox::off());
    let windlass = Windlass::in_memory().tool(confined).tool(free).await.unwrap();
    let mut times: [Vec<Duration>; 3] = Default::default();
    // In turn, so that other load on the machine affects all of them alike.
    for _ in 0..CALLS {
        let started = Instant::now();
        let mut bare = Bare::new("/bin/true");
        bare.stdin(Stdio::null()).output().unwrap();
        times[0].push(started.elapsed());
        for (index, name) in [(1, "unsandboxed"), (2, "sandboxed")] {
            let started = Instant::now();
            // Arguments that differ: repeated identical calls are refused as a loop.
            let outcome = windlass.call_json(name, json!({"n": times[index].len()})).await.unwrap();
            times[index].push(started.elapsed());
            assert!(outcome.result.is_ok(), "{:?}", outcome.result);
        }
    }
    for (name, times) in
        ["bare fork and exec", "command tool, no sandbox", "command tool, sandboxed"].iter().zip(&mut times)
    {
        times.sort();
        println!("{name:26} p50 {:?}  p99 {:?}", times[CALLS / 2], times[CALLS * 99 / 100]);
    }
    let _ = std::fs::remove_dir_all(folder);
}
