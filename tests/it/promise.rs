//! Regressions: one test for every way in which the promise was broken.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::inbox::Settlement;
use windlass::tool::Reconciled;
use windlass::tool::spec::KeyExpression;
use windlass::{Call, Ctx, Effect, Error, Tool, ToolCall, ToolError, ToolResult};
use windlass_core::Runtime;
use windlass_core::testing::{Fault, FaultyStore};
use windlass_core::time::Clock;

use crate::world::{Counter, Kind, World, on_every_store, tool};

fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({}))
}

fn key(text: &str) -> KeyExpression {
    KeyExpression::parse(text).unwrap()
}

/// A tool whose attempts never return by themselves.
fn hangs(name: &str) -> Tool {
    tool(name, |_| std::future::pending::<ToolResult<()>>())
}

/// A tool that counts its attempts.
fn counts(name: &str, counter: &Counter) -> Tool {
    let counter = counter.clone();
    tool(name, move |_| {
        counter.add();
        async { Ok("ran") }
    })
}

/// A tool that sleeps for a while.
fn naps(name: &str, world: &World, time: Duration) -> Tool {
    let sim = world.sim.clone();
    tool(name, move |_| {
        let sim = sim.clone();
        async move {
            sim.sleep(time).await;
            Ok("slept")
        }
    })
}

#[test]
fn w01_a_cancelled_root_call_in_doubt_ends_with_its_doubt_still_open() {
    on_every_store(|world| {
        let runtime = world.runtime([hangs("act")]);
        let run = runtime.start_unconfirmed(call("act")).unwrap();
        world.pass(Duration::from_millis(10));
        let (outcome, doubts) = world.run(async move {
            runtime.cancel(run, "ann", "stop").await.unwrap();
            let outcome = runtime.attach(run).await.unwrap().remove(0);
            (outcome, runtime.doubts().await.unwrap())
        });
        assert_eq!(outcome.error().map(ToolError::kind), Some("cancelled"));
        assert_eq!(doubts.len(), 1, "it may have happened, and no person was asked");
    });
}

#[test]
fn l04_a_batch_that_is_cut_off_still_has_an_outcome_for_every_call() {
    on_every_store(|world| {
        let ran = Counter::default();
        let runtime = world.runtime([counts("first", &ran), hangs("act"), counts("last", &ran)]);
        let (calling, sim) = (runtime.clone(), world.sim.clone());
        let (outcomes, again, doubts) = world.run(async move {
            let cancelling = calling.clone();
            windlass_core::spawn::Spawn::spawn(
                &sim.clone(),
                Box::pin(async move {
                    sim.sleep(Duration::from_millis(10)).await;
                    let run = cancelling.list(windlass_core::store::Filter::running(), None, 1).await.unwrap()[0].run;
                    cancelling.cancel(run, "ann", "stop").await.unwrap();
                }),
            );
            let outcomes = calling.batch(vec![call("first"), call("act"), call("last")], false).await.unwrap();
            let again = calling.attach(outcomes[0].run).await.unwrap();
            (outcomes, again, calling.doubts().await.unwrap())
        });
        let kinds = |outcomes: &[windlass::Outcome]| -> Vec<&'static str> {
            outcomes.iter().map(|outcome| outcome.error().map_or("ok", ToolError::kind)).collect()
        };
        assert_eq!(kinds(&outcomes), ["ok", "cancelled", "cancelled"]);
        assert_eq!(kinds(&again), ["ok", "cancelled", "cancelled"]);
        assert_eq!(ran.get(), 1, "what had not started when the batch was cancelled does not start");
        assert_eq!(doubts.len(), 1);
        assert_eq!(doubts[0].1.path.to_string(), "1");
    });
}

#[test]
fn a09_calls_of_a_cancelled_batch_that_have_not_started_do_not_start() {
    on_every_store(|world| {
        let ran = Counter::default();
        let slow = naps("slow", &world, Duration::from_secs(5)).effect(Effect::Idempotent);
        let body = Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
            let calls = vec![call("slow"), call("act"), call("act")];
            let told = ctx.call_all(calls).settled().await;
            let told: Vec<&str> = told.iter().map(|told| told.as_ref().err().map_or("ok", ToolError::kind)).collect();
            let told = json!(told);
            let cleaned: Value = ctx.call_json("clean", json!({})).await?;
            Ok(json!([told, cleaned]))
        });
        let runtime = world.runtime([slow, counts("act", &ran), counts("clean", &Counter::default()), body]);
        let run = runtime.start_unconfirmed(call("body")).unwrap();
        world.pass(Duration::from_millis(10));
        let outcome = world.run(async move {
            runtime.cancel(run, "ann", "stop").await.unwrap();
            runtime.attach(run).await.unwrap().remove(0)
        });
        assert_eq!(outcome.value(), Some(&json!([["cancelled", "cancelled", "cancelled"], "ran"])), "{outcome:?}");
        assert_eq!(ran.get(), 0);
    });
}

#[test]
fn b07_a_crash_does_not_run_calls_that_a_failure_had_skipped() {
    on_every_store(|world| {
        let ran = Counter::default();
        let tools = |world: &World| {
            let fails = tool("fails", |_| async { Err::<(), _>(ToolError::failed("no")) }).effect(Effect::Readonly);
            [fails, naps("slow", world, Duration::from_secs(5)).effect(Effect::Readonly), counts("act", &ran)]
        };
        let runtime = world.runtime(tools(&world));
        let calling = runtime.clone();
        windlass_core::spawn::Spawn::spawn(
            &world.sim,
            Box::pin(async move {
                let _lost = calling.batch(vec![call("slow"), call("fails"), call("act")], true).await;
            }),
        );
        world.pass(Duration::from_secs(1));
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime(tools(&world));
        let outcomes = world.run(async move {
            let run = runtime.list(windlass_core::store::Filter::running(), None, 1).await.unwrap()[0].run;
            runtime.recover().await.unwrap();
            runtime.attach(run).await.unwrap()
        });
        assert_eq!(outcomes[2].error().map(ToolError::kind), Some("cancelled"), "{outcomes:?}");
        assert_eq!(ran.get(), 0, "skipped, crash or no crash");
    });
}

/// `holder` holds the key for a minute; `waiter` is durable and needs it.
fn key_queue(world: &World, entered: &Counter) -> [Tool; 2] {
    let entered = entered.clone();
    let waiter = Tool::durable_fn("waiter", "", move |_: Ctx, _: Value| {
        entered.add();
        async { Ok("entered") }
    });
    let holder = naps("holder", world, Duration::from_secs(50)).effect(Effect::Idempotent);
    [holder.key(key("'k'")), waiter.key(key("'k'"))]
}

#[test]
fn w06_a_deadline_covers_a_durable_bodys_wait_for_its_key() {
    on_every_store(|world| {
        let entered = Counter::default();
        let [holder, waiter] = key_queue(&world, &entered);
        let runtime = world.runtime([holder, waiter]);
        runtime.start_unconfirmed(call("holder")).unwrap();
        world.pass(Duration::from_millis(10));
        let outcome =
            world.run(async move { runtime.call(call("waiter").deadline(Duration::from_secs(5))).await.unwrap() });
        assert_eq!(outcome.error().map(ToolError::kind), Some("timed_out"));
        assert_eq!(entered.get(), 0);
        assert!(outcome.times.total < 6_000_000_000, "{:?}", outcome.times);
    });
}

#[test]
fn l05_a_durable_body_that_waits_for_its_key_is_cancelled_at_once() {
    on_every_store(|world| {
        let entered = Counter::default();
        let [holder, waiter] = key_queue(&world, &entered);
        let runtime = world.runtime([holder, waiter]);
        let sim = world.sim.clone();
        let outcome = world.run(async move {
            runtime.start_unconfirmed(call("holder")).unwrap();
            sim.sleep(Duration::from_millis(10)).await;
            let run = runtime.start_unconfirmed(call("waiter")).unwrap();
            sim.sleep(Duration::from_millis(10)).await;
            runtime.cancel(run, "ann", "stop").await.unwrap();
            runtime.attach(run).await.unwrap().remove(0)
        });
        assert_eq!(outcome.error().map(ToString::to_string).as_deref(), Some("cancelled: stop"));
        assert!(outcome.times.total < 1_000_000_000, "{:?}", outcome.times);
        assert_eq!(entered.get(), 0);
    });
}

#[test]
fn w12_a_durable_root_call_that_waits_for_its_key_survives_a_crash() {
    on_every_store(|world| {
        let entered = Counter::default();
        let runtime = world.runtime(key_queue(&world, &entered));
        runtime.start_unconfirmed(call("holder")).unwrap();
        world.pass(Duration::from_millis(10));
        let run = runtime.start_unconfirmed(call("waiter")).unwrap();
        world.pass(Duration::from_secs(1));
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime(key_queue(&world, &entered));
        let outcome = world.run(async move {
            runtime.recover().await.unwrap();
            runtime.attach(run).await.map(|mut outcomes| outcomes.remove(0))
        });
        assert_eq!(outcome.unwrap().value(), Some(&json!("entered")));
    });
}

/// A durable body whose first operation depends on what `look` returns; it waits until the second process.
fn looks(look: fn(&mut Ctx) -> Value, patient: bool) -> Tool {
    Tool::durable_fn("body", "", move |mut ctx: Ctx, _: Value| async move {
        let seen = look(&mut ctx);
        ctx.step("act", |_| async { Ok(()) }).input(&seen).await?;
        if patient {
            ctx.step("wait", |_| std::future::pending::<ToolResult<()>>()).idempotent().await?;
        }
        Ok(seen)
    })
}

#[test]
fn l22_the_time_a_body_sees_before_its_first_operation_is_the_same_when_it_is_entered_again() {
    on_every_store(|world| {
        let look = |ctx: &mut Ctx| json!(ctx.now().as_micros());
        let runtime = world.runtime([looks(look, true)]);
        world.pass(Duration::from_secs(7));
        let run = runtime.start_unconfirmed(call("body")).unwrap();
        world.pass(Duration::from_secs(1));
        drop(runtime);
        let world = world.restart();
        world.pass(Duration::from_secs(60));
        let runtime = world.runtime([Tool::durable_fn("body", "", move |mut ctx: Ctx, _: Value| async move {
            let seen = look(&mut ctx);
            ctx.step("act", |_| async { Ok(()) }).input(&seen).await?;
            ctx.step("wait", |_| async { Ok(()) }).idempotent().await?;
            Ok(seen)
        })]);
        let ended = world.run(async move {
            runtime.recover().await.unwrap();
            runtime.attach(run).await
        });
        assert!(ended.is_ok(), "{ended:?}");
    });
}

#[test]
fn l22_a_hidden_error_reads_the_same_live_and_from_the_journal() {
    on_every_store(|world| {
        let body = |waits: bool| {
            Tool::durable_fn("body", "", move |mut ctx: Ctx, _: Value| async move {
                let failed =
                    ctx.step("fails", |_| async { Err::<(), _>(ToolError::internal("the disk is full")) }).await;
                let seen = failed.err().map(|error| format!("{error} {error:?}"));
                ctx.step("act", |_| async { Ok(()) }).input(&seen).await?;
                ctx.step("wait", move |_| async move {
                    if waits {
                        std::future::pending::<()>().await
                    }
                    Ok(())
                })
                .idempotent()
                .await?;
                Ok(seen)
            })
        };
        let runtime = world.runtime([body(true)]);
        let run = runtime.start_unconfirmed(call("body")).unwrap();
        world.pass(Duration::from_secs(1));
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([body(false)]);
        let ended = world.run(async move {
            runtime.recover().await.unwrap();
            runtime.attach(run).await
        });
        assert!(ended.is_ok(), "{ended:?}");
    });
}

/// Starts `old`, kills the process in the middle of it, and continues with `new`.
fn replace(world: World, old: Tool, new: Tool) -> Option<Result<Value, Error>> {
    let runtime = world.runtime([old]);
    let run = runtime.start_unconfirmed(call("job")).unwrap();
    world.pass(Duration::from_secs(1));
    drop(runtime);
    let world = world.restart();
    let runtime = world.runtime([new]);
    world.sim.block_on(async move {
        runtime.recover().await?;
        Ok(runtime.attach(run).await?.remove(0).for_model())
    })
}

#[test]
fn w04_a_tool_that_changed_its_kind_of_body_holds_the_run() {
    let durable = || {
        Tool::durable_fn("job", "", |mut ctx: Ctx, _: Value| async move {
            ctx.step("wait", |_| std::future::pending::<ToolResult<()>>()).await
        })
    };
    on_every_store(|world| {
        let ended = replace(world, hangs("job"), durable());
        assert!(matches!(ended, Some(Err(Error::Held { .. }))), "an atomic attempt is open: {ended:?}");
    });
    on_every_store(|world| {
        let ended = replace(world, durable(), tool("job", |_| async { Ok(1) }));
        assert!(matches!(ended, Some(Err(Error::Held { .. }))), "a durable body was entered: {ended:?}");
    });
}

#[test]
fn l05_a_cancel_that_comes_during_the_first_poll_is_not_lost() {
    let world = World::new(Kind::Memory);
    let slot: Arc<Mutex<Option<Runtime>>> = Arc::default();
    let inside = slot.clone();
    let suicidal = Tool::with_call("suicidal", "", move |call: Call, _: Value| {
        let runtime = inside.lock().clone().unwrap();
        async move {
            runtime.cancel(call.run(), "the body", "I know better").await.unwrap();
            std::future::pending::<()>().await;
            Ok(())
        }
    });
    let runtime = world.runtime([suicidal.effect(Effect::Idempotent).timeout(Duration::from_secs(50))]);
    *slot.lock() = Some(runtime.clone());
    let outcome = world.run(async move { runtime.call(call("suicidal")).await.unwrap() });
    *slot.lock() = None;
    assert_eq!(outcome.error().map(ToolError::kind), Some("cancelled"));
}

#[test]
fn w01_a_doubt_of_a_body_that_is_over_is_not_attempted_again() {
    on_every_store(|world| {
        let acted = Counter::default();
        let count = acted.clone();
        let act = tool("act", move |_| {
            count.add();
            std::future::pending::<ToolResult<()>>()
        })
        .timeout(Duration::from_millis(100))
        .key(key("'parallel'"));
        let inner = Tool::durable_fn("inner", "", |mut ctx: Ctx, _: Value| async move {
            ctx.call_all([call("act")]).await.map(|_| ())
        })
        .with(|spec| spec.limits.deadline = Some(Duration::from_secs(1)));
        let outer = Tool::durable_fn("outer", "", |mut ctx: Ctx, _: Value| async move {
            let told = ctx.call_json("inner", json!({})).await.err().map(|error| error.kind());
            ctx.call_json("nap", json!({})).await?;
            Ok(told)
        });
        let nap = naps("nap", &world, Duration::from_secs(30)).effect(Effect::Readonly);
        let runtime = world.runtime([act, inner, outer, nap]);
        let run = runtime.start_unconfirmed(call("outer")).unwrap();
        world.pass(Duration::from_secs(5));
        let (outcome, doubts) = world.run(async move {
            let (_, doubt) = runtime.doubts().await.unwrap().remove(0);
            runtime.settle(run, &doubt.path, Settlement::DidNotHappen, "ann", "looked").await.unwrap();
            (runtime.attach(run).await.unwrap().remove(0), runtime.doubts().await.unwrap())
        });
        assert_eq!(outcome.value(), Some(&json!("timed_out")));
        assert_eq!(acted.get(), 1, "no caller waits for it any more");
        assert!(doubts.is_empty(), "settled, and stays settled: {doubts:?}");
    });
}

#[test]
fn w01_a_body_that_panics_when_it_is_entered_again_loses_no_doubt() {
    on_every_store(|world| {
        let old = Tool::durable_fn("job", "", |mut ctx: Ctx, _: Value| async move {
            ctx.step("act", |_| std::future::pending::<ToolResult<()>>()).await
        });
        let new = Tool::durable_fn("job", "", |_: Ctx, _: Value| async {
            if true { panic!("a bad deploy") } else { Ok(()) }
        });
        let ended = replace(world, old, new);
        assert!(matches!(ended, Some(Err(Error::Held { .. }))), "{ended:?}");
    });
}

#[test]
fn b09_a_run_whose_store_failed_can_be_attached_to_at_once() {
    on_every_store(|mut world| {
        let faulty = Arc::new(FaultyStore::new(world.store.clone()));
        world.store = faulty.clone();
        let ran = Counter::default();
        let runtime = world.runtime([counts("act", &ran).reconcile(|_| async { Ok(Reconciled::Happened("found")) })]);
        faulty.fail_after(1, Fault::Refused);
        let outcome = world.run(async move {
            let Err(Error::Unknown { run, .. }) = runtime.call(call("act")).await else { panic!("the store failed") };
            runtime.attach(run).await
        });
        assert_eq!(outcome.unwrap()[0].value(), Some(&json!("found")));
    });
}

#[test]
fn b09_a_waiter_gets_the_end_of_a_run_whose_store_failed() {
    for fault in [Fault::Refused, Fault::AnswerLost] {
        on_every_store(|mut world| {
            let faulty = Arc::new(FaultyStore::new(world.store.clone()));
            world.store = faulty.clone();
            let ran = Counter::default();
            let runtime =
                world.runtime([counts("act", &ran).reconcile(|_| async { Ok(Reconciled::Happened("found")) })]);
            faulty.fail_after(2, fault);
            let outcome = world.run(async move {
                let run = runtime.start_unconfirmed(call("act")).expect("it is accepted");
                runtime.attach(run).await
            });
            assert!(outcome.expect("the run ends")[0].result.is_ok());
            assert_eq!(ran.get(), 1);
        });
    }
}

#[test]
fn e09_calls_below_a_body_that_holds_their_key_still_run_one_at_a_time() {
    let world = World::new(Kind::Memory);
    let most = Arc::new(Mutex::new(0));
    let sim = world.sim.clone();
    let inside: Arc<Mutex<u32>> = Arc::default();
    let (at_once, peak) = (inside.clone(), most.clone());
    let keyed = tool("keyed", move |_| {
        let (sim, inside, peak) = (sim.clone(), at_once.clone(), peak.clone());
        async move {
            {
                let mut n = inside.lock();
                *n += 1;
                let mut p = peak.lock();
                *p = (*p).max(*n);
            }
            sim.sleep(Duration::from_millis(10)).await;
            *inside.lock() -= 1;
            Ok(())
        }
    });
    let body = Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
        ctx.call_all([call("keyed"), call("keyed")]).await.map(|_| ())
    });
    let runtime = world.runtime([keyed.key(key("'k'")), body.key(key("'k'"))]);
    world.run(async move { runtime.call(call("body")).await.unwrap() });
    assert_eq!(*most.lock(), 1, "they share a key");
}

#[test]
fn recovering_twice_does_not_take_a_run_from_this_process_itself() {
    on_every_store(|world| {
        let ran = Counter::default();
        let tools = |world: &World| {
            [naps("slow", world, Duration::from_secs(20)).effect(Effect::Idempotent), counts("act", &ran)]
        };
        let mut world = world;
        let mut run = None;
        for _ in 0..2 {
            let runtime = world.runtime(tools(&world));
            match run {
                None => run = Some(runtime.start_unconfirmed(call("slow")).unwrap()),
                Some(_) => {
                    let r = runtime.clone();
                    world.run(async move { r.recover().await.unwrap() });
                }
            }
            world.pass(Duration::from_secs(1));
            drop(runtime);
            world = world.restart();
        }
        let runtime = world.runtime(tools(&world));
        let ended = world.run(async move {
            runtime.recover().await.unwrap();
            runtime.recover().await.unwrap();
            runtime.attach(run.unwrap()).await
        });
        assert!(ended.is_ok(), "{ended:?}");
    });
}

/// A settlement that is not effective yet stays in the mailbox until the journal has it.
#[test]
fn w01_a_settlement_survives_a_crash_between_being_read_and_being_recorded() {
    on_every_store(|world| {
        let ran = Counter::default();
        let act = |first: bool| {
            let ran = ran.clone();
            tool("act", move |_| {
                ran.add();
                async move {
                    if first {
                        std::future::pending::<()>().await;
                    }
                    Ok("ran")
                }
            })
        };
        let runtime = world.runtime([act(true)]);
        let run = runtime.start_unconfirmed(call("act")).unwrap();
        world.pass(Duration::from_secs(1));
        // Another worker takes over while the first may be alive; it accepts "did not happen" only a minute later.
        let second = world.runtime([act(false)]);
        let store = world.store.clone();
        world.run(async move {
            second.resume(run).await.unwrap();
            let message = windlass_core::store::Message::Settle {
                generation: 0,
                path: windlass::Path::root(),
                attempt: 1,
                settlement: Settlement::DidNotHappen,
                by: "ann".to_owned(),
                reason: "sure".to_owned(),
            };
            let changes = vec![windlass_core::store::Change::Mail { run, message, dedupe: None }];
            let commit = windlass_core::store::Commit { guard: windlass_core::store::Guard::Outsider, changes };
            store.commit(commit).get().await.unwrap();
            // Any message to the run makes it read its mailbox.
            second.cancel(run, "ann", "but stop").await.unwrap();
        });
        world.pass(Duration::from_secs(1));
        drop(runtime);
        let world = world.restart();
        world.pass(Duration::from_secs(120));
        let runtime = world.runtime([act(false)]);
        let journal = world.run(async move {
            runtime.recover().await.unwrap();
            let _ended = runtime.attach(run).await;
            runtime.journal(run).await.unwrap()
        });
        let settled = |record: &windlass_core::run::record::Record| matches!(&record.event, windlass_core::run::record::Event::Settled { reason, .. } if reason == "sure");
        assert!(journal.iter().any(settled), "{journal:?}");
    });
}

#[test]
fn w01_a_doubt_keeps_its_key_over_a_crash() {
    let world = World::new(Kind::Memory);
    let ran = Counter::default();
    let tools = |world: &World| {
        let body = Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
            ctx.call_json("nap", json!({})).await?;
            ctx.call_json("other", json!({})).await
        });
        let nap = naps("nap", world, Duration::from_secs(1)).effect(Effect::Readonly);
        [hangs("act").key(key("'k'")), counts("other", &ran).key(key("'k'")), nap, body]
    };
    let runtime = world.runtime(tools(&world));
    runtime.start_unconfirmed(call("body")).unwrap();
    world.pass(Duration::from_millis(10));
    runtime.start_unconfirmed(call("act")).unwrap();
    world.pass(Duration::from_secs(2));
    assert_eq!(ran.get(), 0, "`act` has the key");
    drop(runtime);
    let world = world.restart();
    let runtime = world.runtime(tools(&world));
    world.run(async move { runtime.recover().await.unwrap() });
    world.pass(Duration::from_secs(2));
    assert_eq!(ran.get(), 0, "a call that shares its key must not run during a doubt");
}
