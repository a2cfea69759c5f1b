//! One test for every bug that was found.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::Settlement;
use windlass::testing::{CrashMatrix, Ledger};
use windlass::tool::spec::Approval;
use windlass::tool::{Atomic, Reconciled, Schemas};
use windlass::{Call, Ctx, Effect, Output, Path, Tool, ToolCall, ToolError, ToolResult, ToolSpec, Windlass};
use windlass_core::time::Clock;

use crate::crash::check;
use crate::world::{Counter, Kind, World, on_every_store, tool};

fn act(ledger: &Ledger, name: &'static str) -> Tool {
    let (act, check) = (ledger.clone(), ledger.clone());
    Tool::with_call(name, "", move |call: Call, _: Value| {
        let ledger = act.clone();
        async move {
            ledger.once(name, &call.idempotency_key()).await;
            Ok(1)
        }
    })
    .reconcile(move |call| {
        let happened = check.happened(&call.idempotency_key());
        async move { Ok(if happened { Reconciled::Happened(1) } else { Reconciled::DidNotHappen }) }
    })
}

fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({}))
}

/// A tool that accepts only objects with an `x`, whatever its body does.
fn strict(ledger: &Ledger) -> Tool {
    struct Body(Ledger);
    impl Atomic for Body {
        fn attempt(&self, call: Call) -> futures_util::future::BoxFuture<'static, ToolResult<Output>> {
            let ledger = self.0.clone();
            Box::pin(async move {
                ledger.once("strict", &call.idempotency_key()).await;
                Ok(json!(1).into())
            })
        }
    }
    let schemas = Schemas::input(json!({"type": "object", "required": ["x"]}));
    Tool::atomic(ToolSpec::new("strict", ""), schemas, Body(ledger.clone()))
}

#[test]
fn e07_a_crash_does_not_let_a_call_through_without_approval() {
    let tools =
        |l: &Ledger| vec![act(l, "charge"), act(l, "guarded").with(|spec| spec.guards.approval = Approval::Always)];
    let report = check(|| CrashMatrix::new(tools).call(call("charge")).call(call("guarded")));
    assert!(!report.effects.contains_key("guarded"));
}

#[test]
fn b04_a_crash_does_not_let_a_call_through_without_validation() {
    let tools = |l: &Ledger| vec![act(l, "charge"), strict(l)];
    let report = check(|| CrashMatrix::new(tools).call(call("charge")).call(call("strict")));
    assert!(!report.effects.contains_key("strict"));
}

#[test]
fn l02_a_crash_does_not_turn_an_unknown_tool_into_a_held_run() {
    check(|| CrashMatrix::new(|l| vec![act(l, "charge")]).call(call("charge")).call(call("nope")));
}

#[test]
fn e01_a_crash_does_not_lose_the_untrusted_mark() {
    let tools = |l: &Ledger| vec![act(l, "web").with(|spec| spec.hints.open_world = true)];
    check(|| CrashMatrix::new(tools).call(call("web")));
}

#[test]
fn attaching_keeps_the_models_call_id() {
    let world = World::new(Kind::Memory);
    let runtime = world.runtime([tool("t", |_| async { Ok(1) })]);
    let outcome = world.run(async move {
        let run = runtime.start_unconfirmed(call("t").with_id("call_9")).unwrap();
        runtime.attach(run).await.unwrap().remove(0)
    });
    assert_eq!(outcome.id.as_deref(), Some("call_9"));
}

#[test]
fn w06_a_crash_does_not_extend_a_deadline() {
    let outcome = |crash: bool| {
        let mut world = World::new(Kind::Memory);
        let attempts = Counter::default();
        let make = |world: &World| {
            let (sim, attempts) = (world.sim.clone(), attempts.clone());
            let slow = tool("slow", move |_| {
                let (sim, first) = (sim.clone(), attempts.add() == 1);
                async move {
                    sim.sleep(Duration::from_secs(if first { 8 } else { 5 })).await;
                    if first { Err(ToolError::retry_after("busy", Duration::from_secs(1))) } else { Ok("too late") }
                }
            });
            let slow = slow.effect(Effect::Idempotent);
            world.runtime([slow.with(|spec| spec.limits.deadline = Some(Duration::from_secs(10)))])
        };
        let mut runtime = make(&world);
        let run = runtime.start_unconfirmed(call("slow")).unwrap();
        world.pass(Duration::from_millis(8_500));
        if crash {
            drop(runtime);
            world = world.restart();
            // The clock of the new process continues where the old one's stopped.
            world.pass(Duration::from_millis(8_500));
            runtime = make(&world);
            let recovering = runtime.clone();
            world.run(async move { recovering.recover().await.unwrap() });
        }
        world.run(async move { runtime.attach(run).await.unwrap().remove(0).for_model() })
    };
    assert_eq!(outcome(true), outcome(false));
}

#[test]
fn l03_a_schema_that_could_not_be_fetched_is_fetched_again() {
    let world = World::new(Kind::Memory);
    let asked = Counter::default();
    let count = asked.clone();
    let given = windlass::tool::Body::Atomic(std::sync::Arc::new(Always));
    let lazy = Tool::lazy(
        ToolSpec::new("lazy", ""),
        move |_| match count.add() {
            1 => Err(ToolError::retryable("the source is down")),
            _ => Ok(Schemas::any()),
        },
        given,
    );
    let runtime = world.runtime([lazy]);
    let (first, second) = world
        .run(async move { (runtime.call(call("lazy")).await.unwrap(), runtime.call(call("lazy")).await.unwrap()) });
    assert_eq!(first.for_model()["error"]["message"], "the source is down", "refused once, not retried by itself");
    assert!(second.result.is_ok());
    assert_eq!(asked.get(), 2);
}

struct Always;

impl Atomic for Always {
    fn attempt(&self, _: Call) -> futures_util::future::BoxFuture<'static, ToolResult<Output>> {
        Box::pin(async { Ok(Output::default()) })
    }
}

#[test]
fn the_operation_is_in_the_first_record_of_a_path_only() {
    on_every_store(|world| {
        let sim = world.sim.clone();
        let slow = tool("slow", move |_| {
            let sim = sim.clone();
            async move {
                sim.sleep(Duration::from_millis(5)).await;
                Ok(1)
            }
        });
        let runtime = world.runtime([tool("t", |_| async { Ok(1) }), slow.effect(Effect::Readonly)]);
        for names in [["t", "t"], ["slow", "slow"], ["slow", "t"]] {
            let runtime = runtime.clone();
            let journal = world.run(async move {
                let outcomes = runtime.batch(names.map(call).to_vec(), false).await.unwrap();
                runtime.journal(outcomes[0].run).await.unwrap()
            });
            let mut seen = BTreeSet::new();
            for record in &journal {
                assert_eq!(record.asked.is_some(), seen.insert(record.path.clone()), "{names:?}: {journal:?}");
            }
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w08_a_file_is_free_once_the_runtime_is_shut_down_and_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    for round in 0..20 {
        let opened = Windlass::open(&path).tool(tool("t", |_| async { Ok(1) })).await;
        let windlass = opened.unwrap_or_else(|error| panic!("round {round}: {error}"));
        let run = windlass.start(call("t")).await.unwrap().id();
        windlass.runtime().attach(run).await.unwrap();
        windlass.shutdown().await.unwrap();
    }
}

#[test]
fn w01_a_doubt_of_a_finished_run_can_be_settled_and_leaves_the_inbox() {
    on_every_store(|world| {
        let body = Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
            ctx.step("slow", |_| std::future::pending::<ToolResult<()>>()).await
        });
        let runtime = world.runtime([body.with(|spec| spec.limits.deadline = Some(Duration::from_secs(1)))]);
        let (outcome, before, after) = world.run(async move {
            let outcome = runtime.call(call("body")).await.unwrap();
            let before = runtime.doubts().await.unwrap();
            let path: Path = "0".parse().unwrap();
            runtime.settle(outcome.run, &path, Settlement::GiveUp, "ann", "the bank does not know").await.unwrap();
            (outcome, before, runtime.doubts().await.unwrap())
        });
        assert_eq!(outcome.error().map(ToolError::kind), Some("timed_out"));
        assert_eq!((before.len(), after.len()), (1, 0));
    });
}

#[test]
fn a_task_dropped_by_the_executor_abandons_nothing() {
    on_every_store(|world| {
        let body = || {
            Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
                ctx.step("slow", |_| std::future::pending::<ToolResult<()>>()).readonly().await
            })
        };
        let runtime = world.runtime([body()]);
        let run = runtime.start_unconfirmed(call("body")).unwrap();
        world.pass(Duration::from_secs(1));
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([body()]);
        let info = world.run(async move { runtime.info(run).await.unwrap().unwrap() });
        assert_eq!(info.state, windlass::run::RunState::Running, "dropped with its body, not abandoned by it");
    });
}

#[test]
fn a_body_that_panics_releases_its_keys() {
    let world = World::new(Kind::Memory);
    let key = || windlass::tool::spec::KeyExpression::parse("'k'").unwrap();
    let boom = Tool::durable_fn("boom", "", |_: Ctx, _: Value| async { if true { panic!("boom") } else { Ok(()) } });
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let set = done.clone();
    let after = tool("after", move |_| {
        set.store(true, Ordering::Release);
        async { Ok(()) }
    });
    let runtime = world.runtime([boom.key(key()), after.key(key())]);
    world.run(async move {
        runtime.call(call("boom")).await.unwrap();
        runtime.call(call("after")).await.unwrap()
    });
    assert!(done.load(Ordering::Acquire));
}

#[test]
fn l05_a_run_can_be_cancelled_as_soon_as_it_has_an_id() {
    on_every_store(|world| {
        let never = tool("never", |_| std::future::pending::<ToolResult<()>>()).effect(Effect::Readonly);
        let runtime = world.runtime([never]);
        let outcome = world.run(async move {
            let run = runtime.start_unconfirmed(call("never")).unwrap();
            runtime.cancel(run, "ann", "at once").await.unwrap();
            runtime.attach(run).await.unwrap().remove(0)
        });
        assert_eq!(outcome.error().map(ToString::to_string).as_deref(), Some("cancelled: at once"));
    });
}

#[test]
fn w01_an_attempt_that_is_lost_repeatedly_is_settled_by_a_person() {
    use windlass::tool::spec::OnDoubt;
    let world = World::new(Kind::Memory);
    let attempts = Counter::default();
    let count = attempts.clone();
    let hangs = tool("hangs", move |_| {
        count.add();
        std::future::pending::<ToolResult<()>>()
    });
    let runtime = world.runtime([hangs.timeout(Duration::from_secs(1)).on_doubt(OnDoubt::Rerun)]);
    let run = runtime.start_unconfirmed(call("hangs")).unwrap();
    world.pass(Duration::from_secs(600));
    assert_eq!(attempts.get(), windlass::limits::ATTEMPTS_IN_DOUBT);
    let doubts = world.run(async move { runtime.doubts().await.unwrap() });
    assert_eq!((doubts.len(), doubts[0].0), (1, run));
}

#[test]
fn w12_repeated_store_failures_are_not_a_crash_loop() {
    use windlass_core::testing::{Fault, FaultyStore};
    on_every_store(|mut world| {
        let faulty = std::sync::Arc::new(FaultyStore::new(world.store.clone()));
        world.store = faulty.clone();
        let sim = world.sim.clone();
        let body = Tool::durable_fn("body", "", move |mut ctx: Ctx, _: Value| {
            let sim = sim.clone();
            async move {
                for n in 0..5u32 {
                    let sim = &sim;
                    let nap = ctx.step(format!("nap {n}"), |_| async move {
                        sim.sleep(Duration::from_secs(10)).await;
                        Ok(n)
                    });
                    nap.idempotent().await?;
                }
                Ok("done")
            }
        });
        let runtime = world.runtime([body]);
        let run = runtime.start_unconfirmed(call("body")).unwrap();
        for _ in 0..5 {
            world.pass(Duration::from_secs(5));
            faulty.fail_after(0, Fault::Refused);
            world.pass(Duration::from_secs(30));
        }
        let outcome = world.run(async move { runtime.attach(run).await.unwrap().remove(0) });
        assert_eq!(outcome.value(), Some(&json!("done")));
    });
}

#[test]
fn l05_a_crash_does_not_extend_the_time_for_cleaning_up() {
    on_every_store(|world| {
        let body = || {
            Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
                let told = ctx.step("wait", |_| std::future::pending::<ToolResult<()>>()).readonly().await;
                let endless = ctx.step("clean up", |_| std::future::pending::<ToolResult<()>>()).readonly();
                endless.timeout(Duration::from_secs(1_000)).await?;
                told
            })
        };
        let runtime = world.runtime([body()]);
        let run = runtime.start_unconfirmed(call("body")).unwrap();
        let cancelling = runtime.clone();
        world.pass(Duration::from_secs(1));
        world.run(async move { cancelling.cancel(run, "ann", "enough").await.unwrap() });
        world.pass(Duration::from_secs(20));
        drop(runtime);
        let world = world.restart();
        // The clock of the new process continues where the old one's stopped.
        world.pass(Duration::from_secs(21));
        let runtime = world.runtime([body()]);
        let driving = runtime.clone();
        world.run(async move { driving.recover().await.unwrap() });
        world.pass(Duration::from_secs(9));
        let reading = runtime.clone();
        let still = world.run(async move { reading.info(run).await.unwrap().unwrap().state });
        assert_eq!(still, windlass::run::RunState::Running);
        world.pass(Duration::from_secs(2));
        let info = world.run(async move { runtime.info(run).await.unwrap().unwrap() });
        let ended = windlass::run::RunState::Finished { ending: windlass::run::Ending::Cancelled };
        assert_eq!(info.state, ended, "thirty seconds in all");
    });
}

#[test]
fn l22_arguments_that_are_null_are_the_same_after_a_crash() {
    on_every_store(|world| {
        let tools = |world: &World, millis: u64| {
            let sim = world.sim.clone();
            let body = Tool::durable_fn("body", "", move |mut ctx: Ctx, _: Value| {
                let sim = sim.clone();
                async move {
                    let kind = ctx.call_json("leaf", Value::Null).await.map_or_else(|error| error.kind(), |_| "ok");
                    let sim = &sim;
                    let nap = |_| async move {
                        sim.sleep(Duration::from_millis(millis)).await;
                        Ok(())
                    };
                    ctx.step("nap", nap).idempotent().await?;
                    Ok(kind.to_owned())
                }
            });
            [body, tool("leaf", |_| async { Ok(1) })]
        };
        let runtime = world.runtime(tools(&world, 60_000));
        let run = runtime.start_unconfirmed(ToolCall::new("body", json!({}))).unwrap();
        world.pass(Duration::from_millis(10));
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime(tools(&world, 1));
        let outcome = world.run(async move {
            runtime.recover().await.unwrap();
            runtime.attach(run).await
        });
        assert!(outcome.as_ref().is_ok_and(|outcomes| outcomes[0].value().is_some()), "{outcome:?}");
    });
}

#[test]
fn l12_a_queued_run_that_continues_at_once_is_still_driven() {
    on_every_store(|world| {
        let rounds = Tool::durable_fn("rounds", "", |mut ctx: Ctx, args: Value| async move {
            let round = args["round"].as_u64().unwrap_or(0);
            if round < 3 { ctx.continue_as(json!({"round": round + 1})).await } else { Ok(json!(round)) }
        });
        let runtime = world.runtime([rounds]);
        let outcome = world.run(async move {
            let run = runtime.start_with(call("rounds"), windlass::run::Start::default()).await?;
            runtime.attach(run).await
        });
        assert_eq!(outcome.unwrap()[0].value(), Some(&json!(3)));
    });
}
