//! Everything at once: a run with all kinds of operations, on a store that fails at any commit, cancelled at one moment
//! and killed at another.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::tool::Reconciled;
use windlass::tool::spec::KeyExpression;
use windlass::{Call, Ctx, Effect, Tool, ToolCall, ToolError, ToolResult};
use windlass_core::testing::{Fault, FaultyStore};
use windlass_core::time::Clock;

use crate::world::{Kind, World};

fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({}))
}

/// A body with steps, parallel steps, calls, batches, a nested body, failures and retries.
fn everything(world: &World, effects: &Arc<Mutex<BTreeMap<String, u32>>>) -> Vec<Tool> {
    let act = |name: &'static str, nap: u64| {
        let (act, check, sim) = (effects.clone(), effects.clone(), world.sim.clone());
        Tool::with_call(name, "", move |call: Call, _: Value| {
            let (effects, sim) = (act.clone(), sim.clone());
            async move {
                if nap > 0 {
                    sim.sleep(Duration::from_millis(nap)).await;
                }
                *effects.lock().entry(call.idempotency_key()).or_default() += 1;
                Ok(1)
            }
        })
        .reconcile(move |call| {
            let happened = check.lock().contains_key(&call.idempotency_key());
            async move { Ok(if happened { Reconciled::Happened(1) } else { Reconciled::DidNotHappen }) }
        })
    };
    let flaky = Tool::with_call("flaky", "", |call: Call, _: Value| async move {
        if call.number() < 3 { Err(ToolError::retryable("busy")) } else { Ok(1) }
    });
    let inner = Tool::durable_fn("inner", "", |mut ctx: Ctx, _: Value| async move {
        let calls = [call("act"), call("slow"), call("keyed"), call("keyed"), call("flaky"), call("nope")];
        let told = ctx.call_all(calls).settled().await;
        Ok(told
            .iter()
            .map(|told| told.as_ref().map_or_else(|e| e.kind().to_owned(), Value::to_string))
            .collect::<Vec<_>>())
    });
    let outer = Tool::durable_fn("outer", "", |mut ctx: Ctx, _: Value| async move {
        let started = ctx.now().as_micros();
        let read: i64 = ctx.step("read", |_| async { Ok(7) }).readonly().input(&started).await?;
        let one: Value = ctx.call_json("act", json!({})).await?;
        let new = ctx.version("change");
        let failed: ToolResult<()> =
            ctx.step("fails", |_| async { Err(ToolError::internal("hidden")) }).idempotent().await;
        let failed = failed.err().map(|error| error.to_string());
        let both = ctx.call_all((call("inner"), call("slow"))).await?;
        let pair: [i64; 2] = ctx
            .steps_all(
                [1, 2]
                    .map(|n| windlass::step(format!("{n}"), move |_| async move { Ok(n) }).idempotent().input(&failed)),
            )
            .await?;
        let last: Value = ctx.call_json("slow", json!({})).await?;
        Ok(json!([read, one, new, both, pair, last]))
    });
    let keyed = act("keyed", 3).key(KeyExpression::parse("'k'").unwrap());
    vec![act("act", 0), act("slow", 5), keyed, flaky.effect(Effect::Idempotent), inner, outer]
}

#[test]
fn b09_a_store_that_fails_at_any_commit_changes_nothing_but_the_time_it_takes() {
    for kind in [Kind::Memory, Kind::Sqlite] {
        let (mut reference, mut commits) = (None, 0);
        for (skip, fault) in std::iter::once((u64::MAX, Fault::Refused))
            .chain((0..60).flat_map(|n| [(n, Fault::Refused), (n, Fault::AnswerLost)]))
        {
            if skip != u64::MAX && skip >= commits {
                break;
            }
            let mut world = World::new(kind);
            let faulty = Arc::new(FaultyStore::new(world.store.clone()));
            world.store = faulty.clone();
            let effects = Arc::default();
            let runtime = world.runtime(everything(&world, &effects));
            if skip != u64::MAX {
                faulty.fail_after(skip, fault);
            }
            let run = runtime.start_unconfirmed(call("outer")).unwrap();
            let waiting = runtime.clone();
            let sim = world.sim.clone();
            let ended = world.sim.block_on(async move {
                sim.sleep(Duration::from_secs(3_600)).await;
                waiting.attach(run).await
            });
            let place = format!("{kind:?} commit {skip} {fault:?}");
            let Some(ended) = ended else { panic!("{place}: stuck") };
            let effects = effects.lock().clone();
            if skip == u64::MAX {
                reference = Some(ended.unwrap()[0].for_model());
                commits = faulty.commits();
                assert!(effects.values().all(|count| *count == 1), "{effects:?}");
                continue;
            }
            match ended {
                Ok(outcomes) => assert_eq!(Some(outcomes[0].for_model()), reference, "{place}"),
                Err(error) => assert!(skip == 0 && effects.is_empty(), "{place}: {error} {effects:?}"),
            }
            assert!(effects.values().all(|count| *count == 1), "{place}: {effects:?}");
        }
    }
}

#[test]
fn l05_a_cancel_at_any_moment_and_a_crash_at_any_other_repeat_nothing_and_hold_nothing() {
    for kind in [Kind::Memory, Kind::Sqlite] {
        for (cancel, crash) in (0..16).flat_map(|cancel| [0, 2, 60, 40_000].map(|crash| (cancel, crash))) {
            let effects = Arc::default();
            let world = World::new(kind);
            let runtime = world.runtime(everything(&world, &effects));
            let run = runtime.start_unconfirmed(call("outer")).unwrap();
            world.pass(Duration::from_micros(cancel * 2_000 + 1));
            let cancelling = runtime.clone();
            let cancelled = world.run(async move { cancelling.cancel(run, "ann", "stop").await });
            world.pass(Duration::from_millis(crash));
            drop(runtime);
            let world = world.restart();
            let runtime = world.runtime(everything(&world, &effects));
            let waiting = runtime.clone();
            let ended = world.sim.block_on(async move {
                waiting.recover().await.unwrap();
                waiting.attach(run).await
            });
            let place = format!("{kind:?} cancelled after {cancel}, crashed {crash} ms later, {cancelled:?}");
            let counts: Vec<u32> = effects.lock().values().copied().collect();
            assert!(counts.iter().all(|count| *count == 1), "{place}: {counts:?}");
            match ended {
                Some(Ok(outcomes)) => assert_eq!(outcomes.len(), 1, "{place}"),
                other => panic!("{place}: {other:?}"),
            }
            let doubts = world.run(async move { runtime.doubts().await.unwrap() });
            assert!(doubts.is_empty(), "{place}: {doubts:?}");
        }
    }
}
