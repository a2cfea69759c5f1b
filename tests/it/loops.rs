//! Loops: the same call with the same result, repeatedly.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use windlass::run::{Start, Turn, Work};
use windlass::testing::{CrashMatrix, Ledger};
use windlass::tool::{Atomic, Schemas};
use windlass::{Call, Ctx, Effect, Outcome, Output, RunId, Tool, ToolCall, ToolResult, ToolSpec, limits, tool};
use windlass_core::policy::{Hypothetical, Verdict};
use windlass_core::{Drives, Runtime};

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
fn e13_a_reused_key_is_not_a_new_call_and_a_restart_keeps_the_count() {
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
        let told = repeated(&world, &runtime, 1, || Start::session("s"));
        assert!(told[0].starts_with("failed: refused: `look` was called 5 times"), "{told:?}");
        assert_eq!(repeated(&world, &runtime, 1, keyed), ["ok"], "a key that was used before");
    });
}

#[test]
fn e13_two_runtimes_count_the_calls_of_a_session_together_also_over_a_restart() {
    on_every_store(|mut world| {
        let ran = Counter::default();
        let mut told = Vec::new();
        // One call by each of two runtimes in each of several processes.
        for _ in 0..4 {
            let runtimes = [(); 2].map(|()| Runtime::new(world.another([looks(&ran, false)])));
            told.extend(runtimes.iter().flat_map(|runtime| repeated(&world, runtime, 1, || Start::session("s"))));
            drop(runtimes);
            world = world.restart();
        }
        assert_eq!(told.iter().filter(|told| *told == "ok").count(), LOOP as usize, "{told:?}");
        assert!(told[LOOP as usize..].iter().all(|told| told.contains("was called 5 times")), "{told:?}");
        assert_eq!(ran.get(), LOOP);

        // The refusal is what a dry run predicts, what the run ended with, and what programs can act on.
        let runtime = world.runtime([looks(&ran, false)]);
        let predicting = runtime.clone();
        let case = Hypothetical::new(look(1).session("s"));
        let predicted = world.run(async move { predicting.predict(case).await.unwrap() });
        let (run, outcomes) = hand_in(&world, &runtime, Work::Call(look(1)), Start::session("s"));
        let error = outcomes[0].error().unwrap();
        assert!(matches!(&predicted.verdict, Verdict::Refused(refused) if refused.to_string() == error.to_string()));
        assert_eq!(error.code(), Some("loop"));
        let explaining = runtime.clone();
        let explained = world.run(async move { explaining.explain(run).await.unwrap().to_string() });
        assert!(explained.contains("was called 5 times with these arguments"), "{explained}");

        // Other arguments are not a loop. After a while the session starts over.
        let other = hand_in(&world, &runtime, Work::Call(look(2)), Start::session("t"));
        assert!(other.1[0].result.is_ok());
        world.pass(limits::LOOP_MEMORY + Duration::from_secs(1));
        assert_eq!(repeated(&world, &runtime, 1, || Start::session("s")), ["ok"]);
    });
}

#[test]
fn e13_polling_a_changing_job_by_separate_calls_is_never_a_loop() {
    on_every_store(|mut world| {
        let count = Counter::default();
        for _ in 0..3 {
            let body = count.clone();
            let poll = tool_of("look", move |_| {
                let n = body.add();
                // The progress of a job that changes at every fourth call.
                async move { Ok(n / 4) }
            });
            let runtime = world.runtime([poll.effect(Effect::Readonly)]);
            assert!(repeated(&world, &runtime, 10, || Start::session("s")).iter().all(|told| told == "ok"));
            drop(runtime);
            world = world.restart();
        }
        assert_eq!(count.get(), 30);
    });
}

/// Takes a secret, and returns the same each time.
struct Pin;

impl Atomic for Pin {
    fn attempt(&self, _: Call) -> BoxFuture<'static, ToolResult<Output>> {
        Box::pin(std::future::ready(Ok(Output::value(json!("wrong")))))
    }
}

#[test]
fn e13_spawned_runs_and_calls_with_secrets_are_not_counted_in_the_session() {
    on_every_store(|world| {
        let ran = Counter::default();
        let spawns = Tool::durable_fn("spawns", "Spawns", |mut ctx: Ctx, _: Value| async move {
            for _ in 0..2 * LOOP {
                let child = ctx.spawn(look(1)).await?;
                ctx.join(&child).await?;
            }
            Ok(())
        });
        let schema = json!({"type": "object", "properties": {"pin": {"type": "string", "writeOnly": true}}});
        let pin = Tool::atomic(ToolSpec::new("pin", "checks"), Schemas::input(schema), Pin).effect(Effect::Readonly);
        let runtime = world.runtime([looks(&ran, false), spawns, pin]);
        let how = || Start::session("s");
        let (_, outcomes) = hand_in(&world, &runtime, Work::Call(ToolCall::new("spawns", json!({}))), how());
        assert!(outcomes[0].result.is_ok(), "{outcomes:?}");
        assert_eq!(ran.get(), 2 * LOOP);
        assert_eq!(repeated(&world, &runtime, 1, how), ["ok"]);
        for _ in 0..2 * LOOP {
            let pin = ToolCall::new("pin", json!({"pin": "1234"}));
            assert!(hand_in(&world, &runtime, Work::Call(pin), how()).1[0].result.is_ok());
        }
    });
}

#[test]
fn e13_calls_that_wait_in_the_store_are_judged_when_they_are_submitted() {
    on_every_store(|world| {
        let ran = Counter::default();
        let look_at = |ran: &Counter| {
            let ran = ran.clone();
            tool_of("look", move |args| {
                ran.add();
                async move { Ok(args) }
            })
        };
        let runtime = world.runtime([look_at(&ran).effect(Effect::Readonly)]);
        assert!(repeated(&world, &runtime, LOOP, || Start::session("s")).iter().all(|told| told == "ok"));
        // As a turn, and through a runtime that drives no runs.
        let batch = || Work::Batch { calls: vec![look(1), look(0), look(1)], stop_on_failure: false };
        let turn = Start { turn: Turn::Queue, ..Start::session("s") };
        let kinds = |outcomes: &[Outcome]| {
            outcomes.iter().map(|outcome| if outcome.result.is_ok() { 'o' } else { 'x' }).collect::<String>()
        };
        assert_eq!(kinds(&hand_in(&world, &runtime, batch(), turn).1), "xox");
        assert_eq!(ran.get(), LOOP + 1);
        assert!(repeated(&world, &runtime, LOOP, || Start::session("t")).iter().all(|told| told == "ok"));
        let mut config = world.another([look_at(&ran).effect(Effect::Readonly)]);
        config.drives = Drives::Nothing;
        let idle = Runtime::new(config);
        let single = world.run(async move { idle.start_with(look(1), Start::session("t")).await.unwrap() });
        let waiter = runtime.clone();
        let outcomes = world.run(async move {
            waiter.recover().await.unwrap();
            waiter.attach(single).await.unwrap()
        });
        assert!(outcomes[0].error().unwrap().to_string().contains("was called 5 times"));
        assert_eq!(ran.get(), 2 * LOOP + 1, "it was not made");
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
        // Both count, although another process ended them.
        let runtime = world.runtime([looks(&ran, true)]);
        let told = repeated(&world, &runtime, 1, || Start::session("s"));
        assert!(told[0].contains("was called 6 times"), "{told:?}");
    });
}
