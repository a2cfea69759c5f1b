//! `call_all` with `stop_on_failure`: what had not started is skipped, and what ran is recorded.

use serde_json::{Value, json};
use windlass::run::record::{Event, OpKind};
use windlass::testing::{CrashMatrix, Ledger};
use windlass::tool::ToolRef;
use windlass::{Ctx, Effect, Tool, ToolCall, ToolError};
use windlass_core::Runtime;

use crate::crash::{check, once};
use crate::world::{Counter, on_every_store, tool};

const SKIPPED: &str = "cancelled: skipped: call 1 (`bad`) failed, and this batch stops on failure";

fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({}))
}

fn bad() -> Tool {
    // Not `once`: an attempt that a crash interrupts would be in doubt, which is no failure yet.
    tool("bad", |_| async { Err::<Value, _>(ToolError::failed("disk full")) }).effect(Effect::Idempotent)
}

/// The calls as an array, a vector and a tuple, and each result as text.
fn body() -> Tool {
    Tool::durable_fn("body", "", |mut ctx: Ctx, args: Value| async move {
        let say = |result: Result<Value, ToolError>| result.unwrap_or_else(|error| json!(error.to_string()));
        let all = ["act", "bad", "act", "act"].map(call);
        let said: Vec<Value> = match args["as"].as_str() {
            Some("array") => ctx.call_all(all).stop_on_failure().settled().await.map(say).to_vec(),
            Some("tuple") => {
                let [a, b, c, d] = all;
                let (a, b, c, d) = ctx.call_all((a, b, c, d)).stop_on_failure().settled().await;
                [a, b, c, d].map(say).to_vec()
            }
            Some("first error") => vec![say(ctx.call_all(all).stop_on_failure().await.map(|values| json!(values)))],
            _ => ctx.call_all(all.to_vec()).stop_on_failure().settled().await.into_iter().map(say).collect(),
        };
        Ok(json!(said))
    })
}

#[test]
fn b07_call_all_skips_calls_that_have_not_started_and_records_everything() {
    on_every_store(|world| {
        for form in ["array", "tuple", "vector"] {
            let ran = Counter::default();
            let count = ran.clone();
            let act = tool("act", move |_| {
                let n = count.add();
                async move { Ok(json!(n)) }
            });
            let runtime = Runtime::new(world.another([body(), act, bad()]));
            let reader = runtime.clone();
            let outcome =
                world.run(async move { runtime.call(ToolCall::new("body", json!({"as": form}))).await.unwrap() });
            assert_eq!(outcome.value(), Some(&json!([1, "failed: disk full", SKIPPED, SKIPPED])), "{form}");
            assert_eq!(ran.get(), 1);
            let journal = world.run(async move { reader.journal(outcome.run).await.unwrap() });
            let finished = journal.iter().filter(|r| r.path.depth() == 2 && matches!(r.event, Event::Finished(_)));
            assert_eq!(finished.count(), 4, "what ran and what was skipped is recorded");
        }
        let runtime = world.runtime([body(), tool("act", |_| async { Ok(json!(1)) }), bad()]);
        let outcome =
            world.run(async move { runtime.call(ToolCall::new("body", json!({"as": "first error"}))).await.unwrap() });
        assert_eq!(outcome.value(), Some(&json!(["failed: disk full"])), "the failure, and not what it skipped");
    });
}

#[test]
fn b07_without_stop_on_failure_every_call_is_made() {
    on_every_store(|world| {
        let ran = Counter::default();
        let count = ran.clone();
        let act = tool("act", move |_| {
            count.add();
            async { Ok(json!(1)) }
        });
        let body = Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
            let results = ctx.call_all(["act", "bad", "act"].map(call)).settled().await;
            Ok(json!(results.map(|result| result.is_ok())))
        });
        let runtime = world.runtime([body, act, bad()]);
        let outcome = world.run(async move { runtime.call(call("body")).await.unwrap() });
        assert_eq!((outcome.value(), ran.get()), (Some(&json!([true, false, true])), 2));
    });
}

#[test]
fn b07_a_skipped_call_does_not_count_as_a_repetition() {
    on_every_store(|world| {
        let ran = Counter::default();
        let count = ran.clone();
        let flaky = tool("bad", move |_| {
            let n = count.add();
            async move { if n < 20 { Err(ToolError::failed("busy")) } else { Ok(json!("fine")) } }
        });
        let body = Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
            let mut last = Vec::new();
            for _ in 0..20 {
                // Not called by name, so it is not counted itself.
                let bad = ToolCall::<Value>::to(ToolRef::Id("bad".into()), json!({}));
                let calls = [bad, ToolCall::new("act", json!({}))];
                last = ctx.call_all(calls).stop_on_failure().settled().await.map(|result| result.is_ok()).to_vec();
            }
            Ok(json!(last))
        });
        let runtime = world.runtime([body, tool("act", |_| async { Ok(json!(1)) }), flaky]);
        let outcome = world.run(async move { runtime.call(call("body")).await.unwrap() });
        assert_eq!(outcome.value(), Some(&json!([true, true])), "the second call was never made before");
    });
}

fn crashing(ledger: &Ledger) -> Vec<Tool> {
    let after = ledger.clone();
    let never = Tool::new("never", "must not run", move |_: Value| {
        let ledger = after.clone();
        async move {
            ledger.repeatable("never").await;
            Ok(json!(1))
        }
    });
    let body = Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
        let results = ctx.call_all(["act", "bad", "never", "never"].map(call)).stop_on_failure().settled().await;
        ctx.call(call("act")).await?;
        Ok(json!(results.map(|result| result.map_err(|error| error.to_string()))))
    });
    vec![body, once(ledger, "act"), bad(), never]
}

#[test]
fn b07_what_call_all_skipped_stays_skipped_over_every_crash() {
    let report = check(|| CrashMatrix::new(crashing).call(call("body")));
    let skipped = json!({"Err": SKIPPED});
    let expected = json!([[{"Ok": {"done": "act"}}, {"Err": "failed: disk full"}, skipped, skipped]]);
    assert_eq!(report.outcome, expected);
    assert_eq!(report.effects.get("act"), Some(&2));
    assert_eq!(report.effects.get("never"), None);
    assert!(report.runs >= 10, "{report:?}");
    check(|| CrashMatrix::new(crashing).call(call("body")).crashes(2));
}

#[test]
fn b07_a_body_that_gets_the_flag_while_it_runs_continues() {
    on_every_store(|world| {
        let make = |stops: bool| {
            Tool::durable_fn("body", "", move |mut ctx: Ctx, _: Value| async move {
                let calls = ctx.call_all(["act", "bad"].map(call));
                let results = if stops { calls.stop_on_failure().settled().await } else { calls.settled().await };
                ctx.sleep(std::time::Duration::from_secs(60)).await?;
                Ok(json!(results.map(|result| result.is_ok())))
            })
        };
        let act = || tool("act", |_| async { Ok(json!(1)) });
        let runtime = world.runtime([make(false), act(), bad()]);
        let run = runtime.start_unconfirmed(call("body")).unwrap();
        world.pass(std::time::Duration::from_secs(1));
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([make(true), act(), bad()]);
        let reader = runtime.clone();
        let outcome = world.run(async move {
            runtime.recover().await.unwrap();
            runtime.attach(run).await.unwrap().remove(0)
        });
        assert_eq!(outcome.value(), Some(&json!([true, false])));
        let journal = world.run(async move { reader.journal(run).await.unwrap() });
        let batch = journal.iter().filter_map(|r| r.asked.as_ref()).find(|asked| asked.kind == OpKind::Batch);
        assert!(batch.is_some_and(|asked| asked.input.is_none()), "the flag is not part of the operation");
    });
}
