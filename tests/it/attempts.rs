//! Attempts: time, retries, cancellation, panics, times.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::store::StoreError;
use windlass::tool::spec::Retry;
use windlass::{Call, Ctx, Effect, Error, Tool, ToolCall, ToolError};
use windlass_core::run::record::Event;
use windlass_core::testing::{Fault, FaultyStore};
use windlass_core::time::Clock;

use crate::world::{Counter, Kind, World, on_every_store, tool};

fn sleeper(name: &'static str, world: &World) -> Tool {
    let sim = world.sim.clone();
    tool(name, move |args| {
        let sim = sim.clone();
        async move {
            sim.sleep(Duration::from_millis(args["millis"].as_u64().unwrap_or(0))).await;
            Ok(json!("slept"))
        }
    })
}

fn sleep(name: &str, millis: u64) -> ToolCall {
    ToolCall::new(name, json!({"millis": millis}))
}

#[test]
fn b06_time_outs_are_per_tool_and_per_call() {
    let world = World::new(Kind::Memory);
    let runtime = world.runtime([sleeper("nap", &world).effect(Effect::Readonly).timeout(Duration::from_millis(100))]);
    let outcomes = world.run(async move {
        let calls = vec![
            sleep("nap", 99),
            sleep("nap", 200),
            sleep("nap", 200).timeout(Duration::from_millis(300)),
            sleep("nap", 61).timeout(Duration::from_millis(10)),
            // Within the grace after its timeout, an outcome still counts.
            sleep("nap", 59).timeout(Duration::from_millis(10)),
        ];
        runtime.batch(calls, false).await.unwrap()
    });
    let seen: Vec<_> = outcomes.iter().map(|o| o.error().map_or("ok".to_owned(), ToString::to_string)).collect();
    assert_eq!(
        seen,
        [
            "ok",
            "timed_out: the attempt took longer than 100ms",
            "ok",
            "timed_out: the attempt took longer than 10ms",
            "ok",
        ]
    );
}

#[test]
fn b06_a_timed_out_once_call_is_in_doubt_not_merely_failed() {
    on_every_store(|world| {
        let runtime = world.runtime([sleeper("act", &world).timeout(Duration::from_millis(100))]);
        let run = runtime.start_unconfirmed(sleep("act", 60_000)).unwrap();
        let waiting = runtime.clone();
        assert!(
            world.sim.block_on(async move { waiting.attach(run).await.map(|_| ()) }).is_none(),
            "it waits for a person"
        );
        let doubts = world.run(async move { runtime.doubts().await.unwrap() });
        assert_eq!(doubts.len(), 1);
        assert_eq!(doubts[0].1.cause.to_string(), "the attempt timed out");
        assert_eq!(doubts[0].1.operation, "call of tool `act`");
    });
}

#[test]
fn w06_a_deadline_covers_queueing_and_retries() {
    let world = World::new(Kind::Memory);
    let flaky = tool("flaky", |_| async { Err::<Value, _>(ToolError::failed("busy")) });
    let runtime = world.runtime([
        sleeper("act", &world).effect(Effect::Idempotent),
        flaky.effect(Effect::Readonly).retry(Retry { attempts: 50, ..Retry::attempts(50) }),
    ]);
    let outcomes = world.run(async move {
        let deadline = Duration::from_secs(5);
        let calls = vec![
            sleep("act", 10_000),
            sleep("act", 10).deadline(deadline),
            ToolCall::new("flaky", json!({})).deadline(deadline),
        ];
        runtime.batch(calls, false).await.unwrap()
    });
    assert!(outcomes[0].result.is_ok());
    // The batch delays the second call for ten seconds before it is queued.
    assert!(outcomes[1].result.is_ok());
    assert_eq!(outcomes[2].error().map(ToString::to_string).as_deref(), Some("failed: busy"));
    // This delay is part of its total time, but not of its deadline.
    let (held_back, deadline) = (10_010_000_000, 5_000_000_000);
    let total = outcomes[2].times.total;
    assert!(total > held_back && total < held_back + deadline, "{:?}", outcomes[2].times);
}

#[test]
fn w06_heartbeats_keep_a_long_attempt_alive_and_silence_ends_it() {
    let world = World::new(Kind::Memory);
    let sim = world.sim.clone();
    let beating = Tool::with_call("beating", "", move |call: Call, beats: Beats| {
        let sim = sim.clone();
        async move {
            for _ in 0..beats.n {
                sim.sleep(Duration::from_millis(80)).await;
                call.heartbeat();
            }
            sim.sleep(Duration::from_millis(500)).await;
            Ok("ended")
        }
    });
    let beating =
        beating.effect(Effect::Readonly).with(|spec| spec.limits.heartbeat = Some(Duration::from_millis(100)));
    let runtime = world.runtime([beating]);
    let outcome = world.run(async move { runtime.call(ToolCall::new("beating", json!({"n": 5}))).await.unwrap() });
    assert_eq!(outcome.error().map(ToString::to_string).as_deref(), Some("timed_out: no heartbeat for 100ms"));
    assert!(outcome.times.running >= 480_000_000, "five beats kept it alive: {:?}", outcome.times);
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Beats {
    n: u32,
}

#[test]
fn l17_every_attempt_is_recorded_with_its_number_and_one_key() {
    on_every_store(|world| {
        let keys = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let seen = keys.clone();
        let flaky = Tool::with_call("flaky", "", move |call: Call, _: Value| {
            seen.lock().push(call.idempotency_key());
            async move {
                match call.number() {
                    3 => Ok(json!({"of": call.of()})),
                    _ => Err(ToolError::retryable("busy")),
                }
            }
        });
        let runtime = world.runtime([flaky.retry(Retry::attempts(5))]);
        let (outcome, journal) = world.run(async move {
            let outcome = runtime.call(ToolCall::new("flaky", json!({}))).await.unwrap();
            let journal = runtime.journal(outcome.run).await.unwrap();
            (outcome, journal)
        });
        assert_eq!(outcome.value(), Some(&json!({"of": 5})));
        let events: Vec<String> = journal
            .iter()
            .map(|record| match &record.event {
                Event::Intended { attempt, .. } => format!("intended {attempt}"),
                Event::Failed { attempt, .. } => format!("failed {attempt}"),
                Event::Finished(finished) => format!("finished after {}", finished.attempts),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(events, ["intended 1", "failed 1", "intended 2", "failed 2", "intended 3", "finished after 3"]);
        let keys = keys.lock().clone();
        assert!(keys.len() == 3 && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
        // 500 ms and 1 s, each with jitter in its upper half.
        let queued = Duration::from_nanos(outcome.times.queued);
        assert!(queued >= Duration::from_millis(750) && queued <= Duration::from_millis(1_500), "{queued:?}");
    });
}

#[test]
fn l05_cancelling_fires_the_token_then_waits_the_grace_then_drops() {
    on_every_store(|world| {
        let sim = world.sim.clone();
        let polite = Tool::with_call("polite", "", {
            let sim = sim.clone();
            move |call: Call, _: Value| {
                let sim = sim.clone();
                async move {
                    call.cancelled().await;
                    sim.sleep(Duration::from_millis(20)).await;
                    Ok("saved what I had")
                }
            }
        });
        let stubborn = tool("stubborn", |_| std::future::pending::<windlass::ToolResult<()>>());
        let runtime = world.runtime([polite.effect(Effect::Readonly), stubborn.effect(Effect::Readonly)]);
        let cancel = |name: &'static str| {
            let runtime = runtime.clone();
            let sim = sim.clone();
            world.run(async move {
                let run = runtime.start_unconfirmed(ToolCall::new(name, json!({}))).unwrap();
                sim.sleep(Duration::from_secs(1)).await;
                runtime.cancel(run, "ann", "no longer needed").await.unwrap();
                (runtime.attach(run).await.unwrap().remove(0), runtime.info(run).await.unwrap().unwrap())
            })
        };
        let (outcome, _) = cancel("polite");
        assert_eq!(outcome.value(), Some(&json!("saved what I had")), "an outcome within the grace wins");
        let (outcome, info) = cancel("stubborn");
        assert_eq!(outcome.error().map(ToString::to_string).as_deref(), Some("cancelled: no longer needed"));
        assert_eq!(serde_json::to_value(&info.state).unwrap(), json!({"state": "finished", "ending": "cancelled"}));
        assert!(outcome.times.running >= 1_050_000_000, "the grace is fifty milliseconds: {:?}", outcome.times);
    });
}

#[test]
fn l05_a_once_attempt_cancelled_in_the_middle_is_in_doubt() {
    let world = World::new(Kind::Memory);
    let stubborn = tool("stubborn", |_| std::future::pending::<windlass::ToolResult<()>>());
    let runtime = world.runtime([stubborn]);
    let sim = world.sim.clone();
    let doubts = world.run(async move {
        let run = runtime.start_unconfirmed(ToolCall::new("stubborn", json!({}))).unwrap();
        sim.sleep(Duration::from_millis(1)).await;
        runtime.cancel(run, "ann", "stop").await.unwrap();
        sim.sleep(Duration::from_millis(60)).await;
        runtime.doubts().await.unwrap()
    });
    assert_eq!(doubts[0].1.cause.to_string(), "the attempt was cancelled in the middle");
}

#[test]
fn l05_a_durable_body_gets_a_recorded_cancellation_and_may_clean_up() {
    on_every_store(|world| {
        let body = Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
            let waited = ctx.step("wait", |_| std::future::pending::<windlass::ToolResult<()>>()).readonly().await;
            let told = waited.err().map(|error| error.to_string());
            let cleaned: String = ctx.step("clean up", |_| async { Ok("cleaned".to_owned()) }).readonly().await?;
            Ok(json!([told, cleaned]))
        });
        let runtime = world.runtime([body]);
        let sim = world.sim.clone();
        let outcome = world.run(async move {
            let run = runtime.start_unconfirmed(ToolCall::new("body", json!({}))).unwrap();
            sim.sleep(Duration::from_millis(1)).await;
            runtime.cancel(run, "ann", "changed my mind").await.unwrap();
            runtime.attach(run).await.unwrap().remove(0)
        });
        assert_eq!(outcome.value(), Some(&json!(["cancelled: changed my mind", "cleaned"])));
    });
}

#[test]
fn l05_a_body_that_does_not_clean_up_in_time_is_cut_off() {
    let world = World::new(Kind::Memory);
    let body = Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
        loop {
            let endless = ctx.step("endless", |_| std::future::pending::<windlass::ToolResult<()>>());
            let _ignored = endless.timeout(Duration::from_secs(1_000)).await;
        }
        #[allow(unreachable_code)]
        Ok(())
    });
    let runtime = world.runtime([body]);
    let sim = world.sim.clone();
    let (outcome, doubts) = world.run(async move {
        let run = runtime.start_unconfirmed(ToolCall::new("body", json!({}))).unwrap();
        sim.sleep(Duration::from_millis(1)).await;
        runtime.cancel(run, "ann", "enough").await.unwrap();
        let outcome = runtime.attach(run).await.unwrap().remove(0);
        (outcome, runtime.doubts().await.unwrap())
    });
    assert_eq!(
        outcome.error().map(ToString::to_string).as_deref(),
        Some("cancelled: cancelled, and not cleaned up within 30s")
    );
    assert_eq!(doubts.len(), 1, "what may have happened stays visible: {doubts:?}");
}

#[test]
fn l24_a_panicking_body_is_a_failed_call_and_releases_everything() {
    on_every_store(|world| {
        let tries = Counter::default();
        let count = tries.clone();
        let boom = tool("boom", move |_| {
            count.add();
            async { if true { panic!("at the disco") } else { Ok(()) } }
        });
        let key = windlass::tool::spec::KeyExpression::parse("'k'").unwrap();
        let runtime = world.runtime([
            boom.retry(Retry::attempts(5)).key(key.clone()),
            tool("after", |_| async { Ok("went on") }).key(key),
            Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
                ctx.step("fine", |_| async { Ok(1) }).readonly().await?;
                if true { panic!("in the body") } else { Ok(()) }
            }),
        ]);
        let outcomes = world.run(async move {
            let calls = ["boom", "after", "body"].map(|name| ToolCall::new(name, json!({})));
            runtime.batch(calls.to_vec(), false).await.unwrap()
        });
        let kinds: Vec<_> = outcomes.iter().map(|o| o.error().map_or("ok", ToolError::kind)).collect();
        assert_eq!(kinds, ["panicked", "ok", "panicked"]);
        assert_eq!(tries.get(), 1, "never retried automatically");
        assert!(!outcomes[0].for_model().to_string().contains("disco"), "the message is for the log");
    });
}

#[test]
fn b09_queue_run_and_total_times_are_real_and_recorded() {
    on_every_store(|world| {
        let runtime = world.runtime([sleeper("write", &world).effect(Effect::Idempotent)]);
        let (outcomes, journal) = world.run(async move {
            let calls = vec![sleep("write", 30), sleep("write", 20)];
            let outcomes = runtime.batch(calls, false).await.unwrap();
            let journal = runtime.journal(outcomes[0].run).await.unwrap();
            (outcomes, journal)
        });
        assert_eq!(outcomes[0].times.running, 30_000_000);
        assert_eq!(outcomes[1].times.running, 20_000_000);
        for record in &journal {
            if let (Event::Finished(finished), 1) = (&record.event, record.path.depth()) {
                let index = record.path.positions()[0] as usize;
                assert_eq!(finished.times, outcomes[index].times);
                assert!(finished.times.total >= finished.times.running + finished.times.queued);
            }
        }
    });
}

/// A once call on a store that fails at each of its two commits, in both ways.
#[test]
fn b09_a_record_that_cannot_be_stored_stops_the_body_and_replay_decides() {
    for (commit, fault, effects) in
        [(0, Fault::Refused, 0), (0, Fault::AnswerLost, 1), (1, Fault::Refused, 1), (1, Fault::AnswerLost, 1)]
    {
        on_every_store(|mut world| {
            let faulty = Arc::new(FaultyStore::new(world.store.clone()));
            world.store = faulty.clone();
            let acted = Counter::default();
            let (count, check) = (acted.clone(), acted.clone());
            let act = tool("act", move |_| {
                count.add();
                async { Ok("acted") }
            })
            .reconcile(move |_| {
                let happened = check.get() > 0;
                async move {
                    Ok(if happened {
                        windlass::tool::Reconciled::Happened("acted")
                    } else {
                        windlass::tool::Reconciled::DidNotHappen
                    })
                }
            });
            let runtime = world.runtime([act]);
            faulty.fail_after(commit, fault);
            let place = format!("commit {commit}, {fault:?}");
            let sim = world.sim.clone();
            let ending = world.run(async move {
                let error = runtime.call(ToolCall::new("act", json!({}))).await.expect_err("the store failed");
                let Error::Unknown { run, source: StoreError::Unknown(_) } = error else { panic!("{error}") };
                // The runtime continues the run by itself.
                sim.sleep(Duration::from_secs(120)).await;
                runtime.info(run).await.unwrap()
            });
            assert_eq!(acted.get(), effects, "{place}: never twice");
            match ending {
                None => assert_eq!((commit, fault), (0, Fault::Refused), "{place}: nothing was ever recorded"),
                Some(info) => {
                    assert!(matches!(info.state, windlass::run::RunState::Finished { .. }), "{place}: {info:?}");
                }
            }
        });
    }
}

#[test]
fn l05_the_grace_is_that_of_the_tool() {
    let world = World::new(Kind::Memory);
    let stubborn = tool("stubborn", |_| std::future::pending::<windlass::ToolResult<()>>()).effect(Effect::Readonly);
    let stubborn =
        stubborn.timeout(Duration::from_secs(1)).with(|spec| spec.limits.grace = Some(Duration::from_secs(2)));
    let runtime = world.runtime([stubborn]);
    let outcome = world.run(async move { runtime.call(ToolCall::new("stubborn", json!({}))).await.unwrap() });
    assert_eq!(outcome.times.running, 3_000_000_000);
}
