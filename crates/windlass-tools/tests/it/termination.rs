//! When a command ends, everything it started ends too.

use std::time::{Duration, Instant};

use serde_json::json;
use windlass::inbox::Settlement;
use windlass::run::RunState;
use windlass::run::record::DoubtCause;
use windlass::{Effect, ToolCall, Windlass};
use windlass_tools::sandbox::Sandbox;

use crate::world::{World, can_confine, grown, lives, tool, tree, until, value};

#[tokio::test]
async fn e26_processes_that_a_command_leaves_are_killed() {
    let world = World::new();
    let mut command = world.sh("sleep 600 & echo $! > pid; echo done");
    command.sandbox = Sandbox::off();
    assert_eq!(value(command).await, json!("done"), "also if a process that it left holds its output open");
    let pid: i32 = std::fs::read_to_string(world.work().join("pid")).unwrap().trim().parse().unwrap();
    assert!(!lives(pid));
    assert_eq!(world.records(), 0);
}

#[tokio::test]
async fn e26_a_cancelled_command_dies_with_its_children() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let windlass = Windlass::in_memory().tool(tool(tree(&world))).await.unwrap();
    let run = windlass.start(ToolCall::new("run", json!({}))).await.unwrap().id();
    let pids = grown(&world.work()).await;
    assert_eq!(world.records(), 1);
    windlass.runtime().cancel(run, "ann", "enough").await.unwrap();
    let outcome = windlass.runtime().attach(run).await.unwrap().remove(0);
    assert_eq!(outcome.result.unwrap_err().kind(), "cancelled");
    assert!(pids.iter().all(|pid| !lives(*pid)), "{pids:?}");
    assert_eq!(world.records(), 0);
}

#[tokio::test]
async fn e26_a_command_that_times_out_dies_with_its_children() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let slow = tool(tree(&world)).timeout(Duration::from_secs(3));
    let windlass = Windlass::in_memory().tool(slow).await.unwrap();
    let run = windlass.start(ToolCall::new("run", json!({}))).await.unwrap().id();
    let pids = grown(&world.work()).await;
    let outcome = windlass.runtime().attach(run).await.unwrap().remove(0);
    assert_eq!(outcome.result.unwrap_err().kind(), "timed_out");
    assert!(pids.iter().all(|pid| !lives(*pid)), "{pids:?}");
}

#[tokio::test]
async fn e26_a_dropped_attempt_kills_its_command() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let windlass = Windlass::in_memory().tool(tool(tree(&world))).await.unwrap();
    windlass.start(ToolCall::new("run", json!({}))).await.unwrap().id();
    let pids = grown(&world.work()).await;
    windlass.shutdown_within(Duration::ZERO).await.unwrap();
    assert!(pids.iter().all(|pid| !lives(*pid)), "{pids:?}");
    assert_eq!(world.records(), 0);
}

#[tokio::test]
async fn e26_a_command_may_clean_up_when_it_is_asked_to_stop() {
    let world = World::new();
    let mut command = world.sh("trap 'echo cleaned; exit 0' TERM; echo ready > ready; while :; do sleep 0.01; done");
    command.sandbox = Sandbox::off();
    let patient = tool(command).with(|spec| spec.limits.grace = Some(Duration::from_secs(20)));
    let windlass = Windlass::in_memory().tool(patient).await.unwrap();
    let run = windlass.start(ToolCall::new("run", json!({}))).await.unwrap().id();
    until("it is ready", || world.work().join("ready").exists()).await;
    windlass.runtime().cancel(run, "ann", "enough").await.unwrap();
    let outcome = windlass.runtime().attach(run).await.unwrap().remove(0);
    assert_eq!(outcome.value(), Some(&json!("cleaned")), "success within the grace counts: {:?}", outcome.result);
}

#[tokio::test]
async fn e26_a_command_that_ignores_sigterm_is_killed_after_the_grace() {
    let world = World::new();
    let mut command = world.sh("trap '' TERM; echo $$ > pid.tmp; mv pid.tmp pid; while :; do sleep 0.01; done");
    command.sandbox = Sandbox::off();
    let windlass = Windlass::in_memory().tool(tool(command)).await.unwrap();
    let run = windlass.start(ToolCall::new("run", json!({}))).await.unwrap().id();
    until("it is ready", || world.work().join("pid").exists()).await;
    let pid: i32 = std::fs::read_to_string(world.work().join("pid")).unwrap().trim().parse().unwrap();
    let asked = Instant::now();
    windlass.runtime().cancel(run, "ann", "enough").await.unwrap();
    let outcome = windlass.runtime().attach(run).await.unwrap().remove(0);
    assert_eq!(outcome.result.unwrap_err().kind(), "cancelled");
    assert!(!lives(pid) && asked.elapsed() >= windlass::limits::CANCEL_GRACE);
}

#[tokio::test]
async fn w01_a_once_command_that_times_out_is_dead_before_it_is_in_doubt() {
    let world = World::new();
    // It exits when it is asked to stop, but not with 0: that does not show what was done.
    let mut command = world.sh("trap 'exit 3' TERM; echo $$ > pid.tmp; mv pid.tmp pid; while :; do sleep 0.01; done");
    command.sandbox = Sandbox::off();
    let once = tool(command).effect(Effect::Once).timeout(Duration::from_secs(2));
    let mut reconcile = world.sh("echo '{\"unknown\": true}'");
    reconcile.sandbox = Sandbox::off();
    let windlass = Windlass::in_memory().tool(reconcile.reconcile(once)).attended().await.unwrap();
    let run = windlass.start(ToolCall::new("run", json!({}))).await.unwrap().id();
    let mut doubts = Vec::new();
    let started = Instant::now();
    while doubts.is_empty() {
        assert!(started.elapsed() < crate::world::PATIENCE, "no doubt");
        doubts = windlass.inbox().doubts().await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (_, doubt) = doubts.remove(0);
    assert_eq!(doubt.cause, DoubtCause::TimedOut);
    let pid: i32 = std::fs::read_to_string(world.work().join("pid")).unwrap().trim().parse().unwrap();
    assert!(!lives(pid), "it is dead before anything can be settled");
    windlass.inbox().settle(run, &doubt.path, Settlement::GiveUp, "ann", "unknown").await.unwrap();
    let outcome = windlass.runtime().attach(run).await.unwrap().remove(0);
    assert_eq!(outcome.result.unwrap_err().kind(), "in_doubt");
    assert!(matches!(windlass.runtime().info(run).await.unwrap().unwrap().state, RunState::Finished { .. }));
}

#[tokio::test]
async fn w01_a_command_settles_the_doubts_of_another() {
    let world = World::new();
    for (answer, expected) in [
        (r#"{"happened": {"receipt": 7}}"#, Ok(json!({"receipt": 7}))),
        (r#"{"did_not_happen": true}"#, Ok(json!("second"))),
        ("nonsense", Err("in_doubt")),
    ] {
        let _ = std::fs::remove_file(world.work().join("begun"));
        // The first attempt hangs, the second does not.
        let mut act = world.sh("[ -e begun ] && echo second && exit; echo x > begun; while :; do sleep 0.01; done");
        act.sandbox = Sandbox::off();
        let mut ask = world.sh(&format!("[ -n \"$WINDLASS_IDEMPOTENCY_KEY\" ] && echo '{answer}'"));
        ask.sandbox = Sandbox::off();
        let once = tool(act).effect(Effect::Once).timeout(Duration::from_millis(500));
        let once = ask.reconcile(once).on_doubt(windlass::tool::spec::OnDoubt::Fail);
        let windlass = Windlass::in_memory().tool(once).await.unwrap();
        let outcome = windlass.call_json("run", json!({})).await.unwrap();
        let result = outcome.result.as_ref().map(|output| output.value.clone()).map_err(|error| error.kind());
        assert_eq!(result, expected, "{answer}");
    }
}

/// The first doubt of a run, once there is one.
async fn doubt(windlass: &Windlass) -> windlass::inbox::Doubt {
    let started = Instant::now();
    loop {
        if let Some((_, doubt)) = windlass.inbox().doubts().await.unwrap().pop() {
            return doubt;
        }
        assert!(started.elapsed() < crate::world::PATIENCE, "no doubt");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// By another program, by the kernel, by a bug or by a limit: the command had begun, and how far it came is unknown. A
/// shell reports the death of its child by an exit code.
#[tokio::test]
async fn w01_a_once_command_that_is_killed_is_in_doubt() {
    for (script, word) in [
        ("kill -KILL $$", "SIGKILL"),
        ("kill -TERM $$", "SIGTERM"),
        ("kill -HUP $$", "SIGHUP"),
        ("kill -SEGV $$", "SIGSEGV"),
        ("kill -XCPU $$", "SIGXCPU"),
        ("sh -c 'kill -KILL $$'; exit $?", "code 137"),
    ] {
        let world = World::new();
        let mut command = world.sh(&format!("echo charged >> ledger; {script}"));
        command.sandbox = Sandbox::off();
        let windlass = Windlass::in_memory().tool(tool(command).effect(Effect::Once)).attended().await.unwrap();
        let run = windlass.start(ToolCall::new("run", json!({}))).await.unwrap().id();
        let doubt = doubt(&windlass).await;
        assert_eq!(doubt.cause, DoubtCause::Unclear, "{script}");
        assert!(doubt.said.as_deref().is_some_and(|said| said.contains(word)), "{script}: {doubt:?}");
        windlass.inbox().settle(run, &doubt.path, Settlement::GiveUp, "ann", "unknown").await.unwrap();
        assert_eq!(windlass.runtime().attach(run).await.unwrap().remove(0).result.unwrap_err().kind(), "in_doubt");
        assert_eq!(std::fs::read_to_string(world.work().join("ledger")).unwrap(), "charged\n", "{script}: once");
    }
}

#[tokio::test]
async fn w01_a_once_command_with_too_many_processes_is_in_doubt() {
    let world = World::new();
    let mut command = world.sh("echo charged > ledger; for n in 1 2 3 4 5 6; do sleep 600 & done; wait");
    command.sandbox = Sandbox { processes: Some(3), ..Sandbox::off() };
    let windlass = Windlass::in_memory().tool(tool(command).effect(Effect::Once)).attended().await.unwrap();
    let run = windlass.start(ToolCall::new("run", json!({}))).await.unwrap().id();
    let doubt = doubt(&windlass).await;
    assert!(doubt.said.as_deref().is_some_and(|said| said.contains("more than 3 processes")), "{doubt:?}");
    windlass.inbox().settle(run, &doubt.path, Settlement::GiveUp, "ann", "unknown").await.unwrap();
    windlass.runtime().attach(run).await.unwrap();
}

#[tokio::test]
async fn l17_a_repeatable_command_that_is_killed_from_outside_is_retried() {
    for effect in [Effect::Readonly, Effect::Idempotent] {
        let world = World::new();
        let mut command = world.sh("[ -e begun ] && echo second && exit; echo x > begun; kill -KILL $$");
        command.sandbox = Sandbox::off();
        let windlass = Windlass::in_memory().tool(tool(command).effect(effect)).await.unwrap();
        let outcome = windlass.call_json("run", json!({})).await.unwrap();
        assert_eq!(outcome.value(), Some(&json!("second")), "{effect:?}: {:?}", outcome.result);
        // A crash of its own would happen again.
        let mut command = world.sh("echo x >> crashes; kill -SEGV $$");
        command.sandbox = Sandbox::off();
        let windlass = Windlass::in_memory().tool(tool(command).effect(effect)).await.unwrap();
        let outcome = windlass.call_json("run", json!({})).await.unwrap();
        assert_eq!(outcome.result.unwrap_err().kind(), "failed", "{effect:?}");
        assert_eq!(std::fs::read_to_string(world.work().join("crashes")).unwrap(), "x\n", "{effect:?}");
    }
}
