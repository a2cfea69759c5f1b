//! A command that could not be started has done nothing, and is retried.

use std::fs::File;
use std::time::Instant;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use windlass::run::RunState;
use windlass::run::record::Event;
use windlass::tool::spec::Retry;
use windlass::{Effect, RunId, ToolCall, Windlass};
use windlass_tools::sandbox::{Launcher, Sandbox};

use crate::world::{PATIENCE, World, alone, can_confine, tool, value};

/// Opens every file that this process may still open.
fn all_files() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

async fn failures(windlass: &Windlass, run: RunId) -> usize {
    let journal = windlass.runtime().journal(run).await.unwrap();
    journal.iter().filter(|record| matches!(record.event, Event::Failed { .. })).count()
}

/// In a process of its own, so that its limit does not affect other tests.
#[test]
fn l17_a_once_command_that_was_not_started_is_retried() {
    let name = "start_failures::l17_a_once_command_that_was_not_started_is_retried";
    if !alone(name, "TMPDIR", std::env::temp_dir().to_str().unwrap()) {
        return;
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
    let executor = tokio::runtime::Runtime::new().unwrap();
    executor.block_on(async {
        let world = World::new();
        let mut command = world.sh("echo charged >> ledger; echo done");
        command.sandbox = Sandbox::off();
        let patient = tool(command.clone()).effect(Effect::Once);
        let windlass = Windlass::in_memory().tool(patient).await.unwrap();
        let taken = all_files();
        let run = windlass.start(ToolCall::new("run", json!({}))).await.unwrap().id();
        let started = Instant::now();
        while failures(&windlass, run).await == 0 {
            let over = windlass
                .runtime()
                .info(run)
                .await
                .unwrap()
                .is_some_and(|info| matches!(info.state, RunState::Finished { .. }));
            assert!(!over && started.elapsed() < PATIENCE, "the attempt was not delayed");
            tokio::task::yield_now().await;
        }
        drop(taken);
        let outcome = windlass.runtime().attach(run).await.unwrap().remove(0);
        assert_eq!(outcome.value(), Some(&json!("done")), "{:?}", outcome.result);
        assert_eq!(std::fs::read_to_string(world.work().join("ledger")).unwrap(), "charged\n");

        // If the tool allows one attempt only, the error says that another call is safe.
        let once = tool(command).effect(Effect::Once).retry(Retry::attempts(1));
        let windlass = Windlass::in_memory().tool(once).await.unwrap();
        let taken = all_files();
        let outcome = windlass.call_json("run", json!({})).await.unwrap();
        drop(taken);
        let error = windlass::tool::view::Failure::of(outcome.error().unwrap());
        assert!(error.retryable && error.kind == "failed" && error.message.contains("nothing was done"), "{error:?}");
        assert_eq!(std::fs::read_to_string(world.work().join("ledger")).unwrap(), "charged\n");
    });
}

#[tokio::test]
async fn l17_e26_a_once_command_whose_sandbox_could_not_be_set_up_is_retried() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    // While a file exists, the launcher may open one file besides its standard ones: not enough for Landlock's rules.
    let short = world.base().join("short");
    std::fs::write(&short, "").unwrap();
    let script = "[ -e \"$1\" ] && ulimit -n 4; exec \"$0\"";
    let launch = env!("CARGO_BIN_EXE_windlass-launch");
    let mut command = world.sh("echo charged >> ledger; echo done");
    command.launcher = Launcher::new(["/bin/sh", "-c", script, launch, short.to_str().unwrap()]);
    let windlass = Windlass::in_memory().tool(tool(command).effect(Effect::Once)).await.unwrap();
    let run = windlass.start(ToolCall::new("run", json!({}))).await.unwrap().id();
    let started = Instant::now();
    while failures(&windlass, run).await == 0 {
        let info = windlass.runtime().info(run).await.unwrap();
        let over = info.is_some_and(|info| matches!(info.state, RunState::Finished { .. }));
        assert!(!over && started.elapsed() < PATIENCE, "the attempt was not delayed");
        tokio::task::yield_now().await;
    }
    let journal = format!("{:?}", windlass.runtime().journal(run).await.unwrap());
    assert!(journal.contains("Too many open files") && journal.contains("nothing was done"), "{journal}");
    assert!(!world.work().join("ledger").exists());
    std::fs::remove_file(&short).unwrap();
    let outcome = windlass.runtime().attach(run).await.unwrap().remove(0);
    assert_eq!(outcome.value(), Some(&json!("done")), "{:?}", outcome.result);
    assert_eq!(std::fs::read_to_string(world.work().join("ledger")).unwrap(), "charged\n");
    // The command's own limit on open files does not affect the setup of its sandbox.
    let mut narrow = world.sh("echo done");
    narrow.sandbox.files = Some(4);
    assert_eq!(value(narrow).await, json!("done"));
}
