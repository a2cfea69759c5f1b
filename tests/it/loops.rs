//! Loops: the same call with the same result, repeatedly.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::run::{Start, Turn, Work};
use windlass::testing::{CrashMatrix, Ledger};
use windlass::{Ctx, Effect, Outcome, RunId, Tool, ToolCall, limits, tool};
use windlass_core::Runtime;

use crate::crash::check;
use crate::world::{Counter, Kind, World, on_every_store, tool as tool_of};

const LOOP: u32 = limits::LOOP_LIMIT;

/// Calls `name` repeatedly, as a model would, and returns how each call ended.
fn model(name: &'static str, times: u32) -> Tool {
    Tool::durable_fn("model", "Calls", move |mut ctx: Ctx, _: Value| async move {
        let mut kinds = Vec::new();
        for _ in 0..times {
            let result = ctx.call_json(name, json!({"n": 1})).await;
            kinds.push(result.map_or_else(|error| error.to_string(), |value| value.to_string()));
        }
        Ok(kinds)
    })
}

fn run(world: &World, tools: impl IntoIterator<Item = Tool>) -> Vec<String> {
    let runtime = world.runtime(tools);
    let outcome = world.run(async move { runtime.call(ToolCall::new("model", json!({}))).await.unwrap() });
    serde_json::from_value(outcome.value().cloned().unwrap()).unwrap()
}

#[test]
fn e13_the_same_call_with_the_same_result_is_refused_in_the_end() {
    on_every_store(|world| {
        let ran = Counter::default();
        let body = ran.clone();
        let look = tool_of("look", move |_| {
            body.add();
            async { Ok(json!("nothing")) }
        });
        let told = run(&world, [look.effect(Effect::Readonly), model("look", LOOP + 2)]);
        assert_eq!(ran.get(), LOOP);
        assert!(told[..LOOP as usize].iter().all(|told| told == "\"nothing\""), "{told:?}");
        for refused in &told[LOOP as usize..] {
            assert!(refused.starts_with("failed: refused: `look` was called 5 times"), "{refused}");
            assert!(refused.contains("call it with other arguments"), "{refused}");
        }
    });
}

#[test]
fn e13_polling_a_changing_job_is_not_a_loop() {
    let world = World::new(Kind::Memory);
    let count = Counter::default();
    let poll = tool_of("poll", move |_| {
        let n = count.add();
        async move { Ok(n) }
    });
    let told = run(&world, [poll.effect(Effect::Readonly), model("poll", 50)]);
    assert_eq!(told[49], "50");
}

#[test]
fn e13_a_batch_of_a_body_counts_results_from_before_it() {
    on_every_store(|world| {
        let body = Tool::durable_fn("model", "Calls two at a time", |mut ctx: Ctx, _: Value| async move {
            let mut kinds = Vec::new();
            for _ in 0..5 {
                let calls = [0, 0, 1].map(|n| ToolCall::new("look", json!({"n": n})));
                let told = ctx.call_all(calls).settled().await;
                kinds.push(told.map(|told| if told.is_ok() { 'o' } else { 'x' }).iter().collect::<String>());
            }
            Ok(kinds)
        });
        let look = tool_of("look", |args| async move { Ok(args) }).effect(Effect::Readonly);
        // The first batch is all new; from then on `n = 0` occurs twice in a batch, `n = 1` once.
        assert_eq!(run(&world, [look, body]), ["ooo", "ooo", "ooo", "ooo", "xxo"]);
    });
}

/// Counts one.
#[tool(effect = readonly)]
async fn tick() -> windlass::ToolResult<u32> {
    Ok(1)
}

#[test]
fn e13_typed_calls_of_a_program_are_not_limited() {
    let world = World::new(Kind::Memory);
    let body = Tool::durable_fn("model", "Calls", |mut ctx: Ctx, _: Value| async move {
        let mut sum = 0;
        for _ in 0..20 {
            sum += ctx.call(tick::call()).await?;
        }
        Ok(vec![sum.to_string()])
    });
    assert_eq!(run(&world, [tick.into(), body]), ["20"]);
}

#[test]
fn e13_a_body_meets_the_same_refusals_after_every_crash() {
    let scenario = |ledger: &Ledger| {
        let ledger = ledger.clone();
        let look = Tool::new("look", "Looks", move |_: Value| {
            let ledger = ledger.clone();
            async move {
                ledger.repeatable("look").await;
                Ok(json!("nothing"))
            }
        });
        vec![look.effect(Effect::Idempotent), model("look", LOOP + 2)]
    };
    let report = check(|| CrashMatrix::new(scenario).call(ToolCall::new("model", json!({}))));
    assert_eq!(report.effects["look"], LOOP);
}

/// Submits work like an external agent, and waits for it.
fn hand_in(world: &World, runtime: &Runtime, work: Work, how: Start) -> (RunId, Vec<Outcome>) {
    let runtime = runtime.clone();
    world.run(async move { runtime.submit(work, how).await.unwrap().outcomes().await.unwrap() })
}

fn look(n: u32) -> ToolCall {
    ToolCall::new("look", json!({"n": n}))
}

/// The results of `times` identical calls.
fn repeated(world: &World, runtime: &Runtime, times: u32, how: impl Fn() -> Start) -> Vec<String> {
    let told = |outcome: &Outcome| outcome.error().map_or_else(|| "ok".to_owned(), ToString::to_string);
    (0..times).map(|_| told(&hand_in(world, runtime, Work::Call(look(1)), how()).1[0])).collect()
}

/// Counts its attempts, and returns the same each time, optionally after being parked.
fn looks(ran: &Counter, later: bool) -> Tool {
    let ran = ran.clone();
    Tool::durable_fn("look", "Looks", move |mut ctx: Ctx, _: Value| {
        ran.add();
        async move {
            if later {
                ctx.sleep(Duration::from_secs(60)).await?;
            }
            Ok(json!("nothing"))
        }
    })
}

#[test]
fn e13_repeated_calls_of_one_session_are_refused_in_the_end() {
    // As they come, as turns that are queued in the store, and suspended in the middle.
    for (turn, later) in [(Turn::No, false), (Turn::Queue, false), (Turn::No, true)] {
        on_every_store(|world| {
            let ran = Counter::default();
            let runtime = world.runtime([looks(&ran, later)]);
            let how = || Start { turn, ..Start::session("s") };
            let told = repeated(&world, &runtime, LOOP + 2, how);
            assert!(told[..LOOP as usize].iter().all(|told| told == "ok"), "{told:?}");
            for refused in &told[LOOP as usize..] {
                assert!(refused.starts_with("failed: refused: `look` was called 5 times"), "{refused}");
            }
            assert_eq!(ran.get(), if later { 2 * LOOP } else { LOOP }, "entered again after each rest");
            let elsewhere = repeated(&world, &runtime, 1, || Start::session("another"));
            let alone = repeated(&world, &runtime, LOOP + 1, Start::default);
            assert!(elsewhere.iter().chain(&alone).all(|told| told == "ok"), "{elsewhere:?}, {alone:?}");
        });
    }
}

#[test]
fn e13_a_submitted_batch_counts_earlier_results_of_its_session() {
    on_every_store(|world| {
        let look_at = tool_of("look", |args| async move { Ok(args) }).effect(Effect::Readonly);
        let runtime = world.runtime([look_at]);
        let told: Vec<String> = (0..5)
            .map(|_| {
                let work = Work::Batch { calls: vec![look(0), look(0), look(1)], stop_on_failure: false };
                let (_, outcomes) = hand_in(&world, &runtime, work, Start::session("s"));
                outcomes.iter().map(|outcome| if outcome.result.is_ok() { 'o' } else { 'x' }).collect()
            })
            .collect();
        assert_eq!(told, ["ooo", "ooo", "ooo", "ooo", "xxo"], "as in a body");
    });
}

#[test]
fn e13_a_reused_key_is_not_a_new_call_and_a_restart_resets_the_count() {
    on_every_store(|world| {
        let ran = Counter::default();
        let runtime = world.runtime([looks(&ran, false)]);
        let keyed = || Start { key: Some("k".into()), ..Start::session("s") };
        assert!(repeated(&world, &runtime, 3 * LOOP, keyed).iter().all(|told| told == "ok"));
        assert_eq!(ran.get(), 1);
        let told = repeated(&world, &runtime, LOOP, || Start::session("s"));
        assert_eq!(told.iter().filter(|told| *told == "ok").count(), LOOP as usize - 1, "{told:?}");
        assert_eq!(repeated(&world, &runtime, 1, keyed), ["ok"], "what was done is still there to be asked for");
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([looks(&ran, false)]);
        assert_eq!(repeated(&world, &runtime, 1, || Start::session("s")), ["ok"]);
    });
}

#[test]
fn e13_calls_accepted_before_a_crash_are_made_after_it() {
    on_every_store(|world| {
        let ran = Counter::default();
        let runtime = world.runtime([looks(&ran, true)]);
        let how = || Start::session("s");
        assert!(repeated(&world, &runtime, LOOP - 1, how).iter().all(|told| told == "ok"));
        // Both are accepted before either has ended.
        let starting = runtime.clone();
        let runs: windlass::Result<Vec<RunId>> = world.run(async move {
            let mut runs = Vec::new();
            for _ in 0..2 {
                runs.push(starting.submit(Work::Call(look(1)), Start::session("s")).await?.accepted().await?);
            }
            Ok(runs)
        });
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([looks(&ran, true)]);
        let ended = world.run(async move {
            runtime.recover().await.unwrap();
            let mut ended = Vec::new();
            for run in runs.unwrap() {
                ended.push(runtime.attach(run).await.unwrap().remove(0).result.is_ok());
            }
            ended
        });
        assert_eq!(ended, [true, true]);
    });
}
