//! Short versions of what `cargo xtask soak` runs for long.

mod disk;
mod load;

use serde_json::{Value, json};
use windlass::testing::{Chaos, CrashMatrix, Ledger, MemoryDisk};
use windlass::tool::Reconciled;
use windlass::{Call, Ctx, Effect, Tool, ToolCall, step};

use crate::world::ScratchDisk;

fn from_env(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Parallel branches of every effect class: the order in which they settle follows the seed.
fn tools(ledger: &Ledger) -> Vec<Tool> {
    let (act, check, read) = (ledger.clone(), ledger.clone(), ledger.clone());
    let once = Tool::with_call("once", "", move |call: Call, _: Value| {
        let ledger = act.clone();
        async move {
            ledger.once("once", &call.idempotency_key()).await;
            Ok(json!("once"))
        }
    })
    .with(|spec| spec.guards.concurrency = windlass::tool::Concurrency::Parallel)
    .reconcile(move |call| {
        let happened = check.happened(&call.idempotency_key());
        async move { Ok(if happened { Reconciled::Happened(json!("once")) } else { Reconciled::DidNotHappen }) }
    });
    let look = Tool::new("look", "", move |_: Value| {
        let ledger = read.clone();
        async move {
            ledger.repeatable("look").await;
            Ok(json!("look"))
        }
    })
    .effect(Effect::Readonly);
    let branch = Tool::durable_fn("branch", "", |mut ctx: Ctx, _: Value| async move {
        let calls = ["once", "look", "once"].map(|name| ToolCall::new(name, json!({})));
        let called = ctx.call_all(calls).await?;
        let steps =
            ctx.steps_all((step("a", |_| async { Ok(1) }).idempotent(), step("b", |_| async { Ok(2) }).readonly()));
        Ok(json!([called, steps.await?]))
    });
    vec![once, look, branch]
}

#[test]
fn w11_seeds() {
    for seed in 1..=from_env("WINDLASS_SOAK_SEEDS", 3) {
        let calls = ["branch", "once", "branch", "look"];
        let matrix = CrashMatrix::new(tools).seed(seed);
        calls.iter().fold(matrix, |matrix, name| matrix.call(ToolCall::new(*name, json!({})))).run();
    }
}

/// A quarter of the simulator's stories: four tests, so that they run in parallel. `WINDLASS_SIM_FIRST` selects later
/// ones.
fn stories(share: u64) {
    let first = from_env("WINDLASS_SIM_FIRST", 1);
    for seed in (first..first + from_env("WINDLASS_SIM_SEEDS", 1_000)).filter(|seed| seed % 4 == share) {
        Chaos::seed(seed).run();
    }
}

#[test]
fn w11_stories_first_share() {
    stories(0);
}

#[test]
fn w11_stories_second_share() {
    stories(1);
}

#[test]
fn w11_stories_third_share() {
    stories(2);
}

#[test]
fn w11_stories_fourth_share() {
    stories(3);
}

/// The same on files: the death of a single worker is the end of its store, and the next one opens the file again. Both
/// stores must have the same history, line by line.
fn stories_on_sqlite(share: u64) {
    let first = from_env("WINDLASS_SIM_FIRST", 1);
    let seeds = from_env("WINDLASS_SIM_SEEDS", 1_000) / 10;
    for seed in (first..first + seeds).filter(|seed| seed % 2 == share) {
        let (file, memory) =
            (Chaos::seed(seed).disk(ScratchDisk::new).run(), Chaos::seed(seed).disk(MemoryDisk::default).run());
        let same = file.log.iter().zip(&memory.log).take_while(|(file, memory)| file == memory).count();
        let (file_goes_on, memory_goes_on) = (file.log.get(same), memory.log.get(same));
        let before = file.log[same.saturating_sub(20)..same].join("\n");
        assert_eq!(file_goes_on, memory_goes_on, "seed {seed} tells another story in memory, after\n{before}");
    }
}

#[test]
fn w08_w11_stories_on_sqlite_first_share() {
    stories_on_sqlite(0);
}

#[test]
fn w08_w11_stories_on_sqlite_second_share() {
    stories_on_sqlite(1);
}
