//! Keys belong to operations: they outlast suspension, holds, failures of the store and restarts, and a waiting run
//! needs no memory but an entry in a queue.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::Resolution;
use windlass::run::RunState;
use windlass::testing::CrashMatrix;
use windlass::tool::spec::KeyExpression;
use windlass::{Call, Ctx, Effect, RunId, Tool, ToolCall, ToolError};
use windlass_core::Runtime;
use windlass_core::run::state::Blocked;
use windlass_core::testing::{Fault, FaultyStore};
use windlass_core::time::Clock;

use crate::crash::once;
use crate::crash_parks::{HOUR, check_parked};
use crate::world::{Counter, Kind, World, on_every_store};

const MOMENT: Duration = Duration::from_secs(1);

fn by_account(tool: Tool) -> Tool {
    tool.key(KeyExpression::parse("args.account").unwrap())
}

fn on(name: &str, account: &str) -> ToolCall {
    ToolCall::new(name, json!({"account": account}))
}

/// Holds the account until it gets an answer, and counts how often it was entered and left.
fn holder(entered: &Counter, left: &Counter) -> Tool {
    let (entered, left) = (entered.clone(), left.clone());
    by_account(Tool::durable_fn("holder", "holds an account", move |mut ctx: Ctx, _: Value| {
        let (entered, left) = (entered.clone(), left.clone());
        async move {
            ctx.step("enter", |_| async { Ok(entered.add()) }).await?;
            let _word: Value = ctx.wait("word").await?;
            ctx.step("leave", |_| async { Ok(left.add()) }).await
        }
    }))
}

fn state(world: &World, runtime: &Runtime, run: RunId) -> RunState {
    let runtime = runtime.clone();
    world.run(async move { runtime.info(run).await }).unwrap().unwrap().state
}

fn is_suspended(world: &World, runtime: &Runtime, run: RunId) -> bool {
    matches!(state(world, runtime, run), RunState::Suspended { .. })
}

/// Answers the only pending wait.
fn answer(world: &World, runtime: &Runtime) {
    let asking = runtime.clone();
    let inbox = world.run(async move { asking.inbox().await }).unwrap();
    assert_eq!(inbox.len(), 1, "one of them waits for a word: {inbox:?}");
    let (key, runtime) = (inbox[0].key.clone().unwrap(), runtime.clone());
    world.run(async move { runtime.resolve(&key, Resolution::Ok { value: json!("go") }).await }).unwrap();
}

fn end(world: &World, runtime: &Runtime, run: RunId) -> Result<Value, ToolError> {
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).unwrap();
    outcomes[0].result.clone().map(|output| output.value.clone()).map_err(|error| (*error).clone())
}

fn restarted(world: World, tools: impl IntoIterator<Item = Tool>) -> (World, Runtime) {
    let world = world.restart();
    let runtime = world.runtime(tools);
    let again = runtime.clone();
    world.run(async move { again.recover().await }).unwrap();
    (world, runtime)
}

#[test]
fn w03_e09_runs_that_hold_or_queue_for_a_key_are_suspended_and_served_in_order() {
    for restarts in [false, true] {
        on_every_store(|world| {
            let (entered, left) = (Counter::default(), Counter::default());
            let mut runtime = world.runtime([holder(&entered, &left)]);
            let runs: Vec<RunId> = (0..3)
                .map(|_| {
                    let run = runtime.start_unconfirmed(on("holder", "ann")).unwrap();
                    world.pass(MOMENT);
                    run
                })
                .collect();
            let mut world = world;
            for (index, run) in runs.iter().enumerate() {
                assert!(runs[index..].iter().all(|run| is_suspended(&world, &runtime, *run)), "they cost a row");
                assert_eq!(entered.get(), u32::try_from(index).unwrap() + 1, "one has the key");
                let asking = runtime.clone();
                let (first, waiting) = (*run, runs.get(index + 1).copied());
                let explained = world.run(async move {
                    match waiting {
                        Some(run) => {
                            Some((asking.explain(run).await.unwrap(), asking.info(run).await.unwrap().unwrap()))
                        }
                        None => None,
                    }
                });
                if let Some((explanation, info)) = explained {
                    let sentence = &explanation.sentence;
                    assert!(sentence.contains("`ann`") && sentence.contains(&first.to_string()), "{sentence}");
                    assert!(matches!(&info.parks[..], [park] if matches!(&park.on, Blocked::Key { .. })), "{info:?}");
                }
                if restarts {
                    drop(runtime);
                    (world, runtime) = restarted(world, [holder(&entered, &left)]);
                    world.pass(MOMENT);
                    assert!(is_suspended(&world, &runtime, *run), "a restart gives the key to no other run");
                }
                answer(&world, &runtime);
                assert_eq!(end(&world, &runtime, *run).unwrap(), json!(index + 1));
                world.pass(MOMENT);
            }
            assert_eq!((entered.get(), left.get()), (3, 3));
        });
    }
}

#[test]
fn e09_a_held_run_keeps_its_key_until_it_is_finished_by_hand_also_after_a_restart() {
    on_every_store(|world| {
        let tools = |entered: &Counter, left: &Counter| {
            let lost = Tool::durable_fn("lost", "waits outside of its context", |_: Ctx, _: Value| async {
                std::future::pending::<windlass::ToolResult<Value>>().await
            });
            [holder(entered, left), by_account(lost)]
        };
        let (entered, left) = (Counter::default(), Counter::default());
        let runtime = world.runtime(tools(&entered, &left));
        let lost = runtime.start_unconfirmed(on("lost", "ann")).unwrap();
        let waiting = runtime.start_unconfirmed(on("holder", "ann")).unwrap();
        world.pass(MOMENT);
        assert!(matches!(state(&world, &runtime, lost), RunState::Held { .. }));
        assert_eq!(entered.get(), 0, "what it did under the key is not settled");
        drop(runtime);
        let (world, runtime) = restarted(world, tools(&entered, &left));
        world.pass(MOMENT);
        assert_eq!((entered.get(), is_suspended(&world, &runtime, waiting)), (0, true));
        let ending = runtime.clone();
        world
            .run(async move { ending.finish_by_hand(lost, Ok(json!("done").into()), "ann", "done by hand").await })
            .unwrap();
        world.pass(MOMENT);
        assert_eq!(entered.get(), 1, "the key is free");
        answer(&world, &runtime);
        assert_eq!(end(&world, &runtime, waiting).unwrap(), json!(1));
    });
}

#[test]
fn e09_b09_a_failure_of_the_store_does_not_release_a_key() {
    let mut repeated = 0;
    for fault in [Fault::Refused, Fault::AnswerLost] {
        for skip in 0..8 {
            let world = World::new(Kind::Memory);
            let faulty = Arc::new(FaultyStore::new(world.store.clone()));
            let log: Arc<std::sync::Mutex<Vec<RunId>>> = Arc::default();
            let (sim, entries) = (world.sim.clone(), log.clone());
            let act = Tool::with_call("act", "acts under a key", move |call: Call, _: Value| {
                let (sim, entries) = (sim.clone(), entries.clone());
                async move {
                    entries.lock().unwrap().push(call.run());
                    sim.sleep(Duration::from_millis(50)).await;
                    Ok(json!("done"))
                }
            });
            let mut config = world.config([by_account(act).effect(Effect::Idempotent)]);
            config.store = faulty.clone();
            let runtime = Runtime::new(config);
            let runs: Vec<RunId> = (0..3).map(|_| runtime.start_unconfirmed(on("act", "ann")).unwrap()).collect();
            // The next commits record the ends of attempts.
            faulty.fail_after(skip, fault);
            for run in &runs {
                assert_eq!(end(&world, &runtime, *run).unwrap(), json!("done"), "{fault:?} after {skip}");
            }
            let mut entries = log.lock().unwrap().clone();
            let again = entries.len() > runs.len();
            entries.dedup();
            assert_eq!(
                entries.len(),
                runs.len(),
                "{fault:?} after {skip}: no other run is between two attempts of one"
            );
            repeated += usize::from(again);
        }
    }
    assert!(repeated > 0, "some attempt was repeated");
}

#[test]
fn e09_l17_a_key_is_kept_between_attempts() {
    on_every_store(|world| {
        let (tried, other) = (Counter::default(), Counter::default());
        let counted = tried.clone();
        let flaky = Tool::new("flaky", "fails once", move |_: Value| {
            let n = counted.add();
            async move {
                match n {
                    1 => Err(ToolError::retry_after("busy", Duration::from_secs(60))),
                    n => Ok(n),
                }
            }
        });
        let counted = other.clone();
        let plain = Tool::new("plain", "acts", move |_: Value| {
            let n = counted.add();
            async move { Ok(n) }
        });
        let runtime = world.runtime([by_account(flaky), by_account(plain)]);
        let first = runtime.start_unconfirmed(on("flaky", "ann")).unwrap();
        world.pass(MOMENT);
        let second = runtime.start_unconfirmed(on("plain", "ann")).unwrap();
        world.pass(MOMENT);
        assert_eq!((tried.get(), other.get()), (1, 0), "the operation is not over");
        assert!(is_suspended(&world, &runtime, first) && is_suspended(&world, &runtime, second));
        assert_eq!(end(&world, &runtime, second).unwrap(), json!(1));
        assert_eq!((tried.get(), other.get()), (2, 1));
        assert_eq!(end(&world, &runtime, first).unwrap(), json!(2));
    });
}

#[test]
fn e09_a_cancelled_run_leaves_the_queue_of_its_key() {
    on_every_store(|world| {
        let (entered, left) = (Counter::default(), Counter::default());
        let runtime = world.runtime([holder(&entered, &left)]);
        let runs: Vec<RunId> = (0..3)
            .map(|_| {
                let run = runtime.start_unconfirmed(on("holder", "ann")).unwrap();
                world.pass(MOMENT);
                run
            })
            .collect();
        for run in [runs[1], runs[0]] {
            let cancelling = runtime.clone();
            world.run(async move { cancelling.cancel(run, "ann", "not needed").await }).unwrap();
            assert!(matches!(end(&world, &runtime, run), Err(ToolError::Cancelled { .. })));
        }
        world.pass(MOMENT);
        assert_eq!(entered.get(), 2, "the third one has the key, and the second one never had it");
        answer(&world, &runtime);
        assert_eq!(end(&world, &runtime, runs[2]).unwrap(), json!(1));
    });
}

#[test]
fn e09_w03_keyed_bodies_that_sleep_survive_every_crash_one_after_the_other() {
    let report = check_parked(|| {
        CrashMatrix::new(|ledger| {
            let shift = Tool::durable_fn("shift", "holds the till for an hour", |mut ctx: Ctx, _: Value| async move {
                ctx.call_json("open", json!({"account": "till"})).await?;
                ctx.sleep(HOUR).await?;
                ctx.call_json("close", json!({"account": "till"})).await
            });
            vec![by_account(shift), by_account(once(ledger, "open")), by_account(once(ledger, "close"))]
        })
        .call(on("shift", "till"))
        .call(on("shift", "till"))
        .outside(|outside| assert!(outside.time() < 3 * HOUR, "two hours, one after the other"))
    });
    assert_eq!((report.effects["open"], report.effects["close"]), (2, 2));
}
