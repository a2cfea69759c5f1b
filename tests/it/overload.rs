//! Protection under overload: circuit breakers of targets, and the bound on unfinished runs.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::run::{BreakerPhase, Cut, Start, Turn, Work};
use windlass::tool::spec::Retry;
use windlass::{Ctx, Effect, Error, Tool, ToolCall, ToolError};
use windlass_core::Runtime;

use crate::world::{Counter, Kind, World, on_every_store, tool};

const OPEN: Duration = Duration::from_secs(30);

/// A target that fails, succeeds, or refuses requests, and counts its attempts.
#[derive(Clone, Default)]
struct Target {
    attempts: Counter,
    answer: Arc<Mutex<Option<ToolError>>>,
}

impl Target {
    fn answers(&self, error: Option<ToolError>) {
        *self.answer.lock() = error;
    }

    fn tool(&self, name: &str) -> Tool {
        let this = self.clone();
        let tool = tool(name, move |_| {
            this.attempts.add();
            let answer = this.answer.lock().clone();
            async move { answer.map_or(Ok("done"), Err) }
        });
        tool.effect(Effect::Readonly).breaker("api:443")
    }
}

fn down() -> Option<ToolError> {
    Some(ToolError::TimedOut { message: "no answer".into() })
}

fn call(world: &World, runtime: &Runtime, name: &str) -> String {
    let (runtime, call) = (runtime.clone(), ToolCall::new(name, json!({})));
    let outcome = world.run(async move { runtime.call(call).await.unwrap() });
    outcome.error().map_or_else(|| "ok".to_owned(), ToString::to_string)
}

fn phase(runtime: &Runtime) -> BreakerPhase {
    runtime.breakers()[0].phase
}

#[test]
fn e25_failures_in_a_row_stop_attempts_at_a_target_until_it_has_recovered() {
    let (world, target) = (World::new(Kind::Memory), Target::default());
    let runtime = world.runtime([target.tool("read"), target.tool("list")]);
    target.answers(down());
    for n in 0..5 {
        assert_eq!(phase_or_closed(&runtime), BreakerPhase::Closed);
        let told = call(&world, &runtime, if n % 2 == 0 { "read" } else { "list" });
        assert!(told.starts_with("timed_out"), "{told}");
    }
    // Tools with the same target share the breaker.
    for name in ["read", "list"] {
        let told = call(&world, &runtime, name);
        assert!(told.starts_with("failed: refused: the last 5 attempts at `api:443` failed"), "{told}");
        assert!(told.contains("call it again in 30 s"), "{told}");
    }
    assert_eq!(target.attempts.get(), 5, "a refused call attempts nothing");
    world.pass(OPEN);
    assert!(call(&world, &runtime, "read").starts_with("timed_out"), "one attempt is let through");
    assert!(call(&world, &runtime, "read").contains("the last 5 attempts"), "and opens it again");
    world.pass(OPEN);
    target.answers(None);
    assert_eq!(call(&world, &runtime, "read"), "ok");
    assert_eq!(phase(&runtime), BreakerPhase::HalfOpen);
    assert_eq!(call(&world, &runtime, "read"), "ok");
    assert_eq!(phase(&runtime), BreakerPhase::Closed);
}

fn phase_or_closed(runtime: &Runtime) -> BreakerPhase {
    runtime.breakers().first().map_or(BreakerPhase::Closed, |target| target.phase)
}

#[test]
fn e25_errors_of_the_caller_do_not_open_a_breaker() {
    let (world, target) = (World::new(Kind::Memory), Target::default());
    let runtime = world.runtime([target.tool("read")]);
    for error in [ToolError::failed("no such page"), ToolError::denied("no"), ToolError::invalid("", "wrong")] {
        target.answers(Some(error));
        (0..10).for_each(|_| drop(call(&world, &runtime, "read")));
    }
    assert_eq!((target.attempts.get(), phase(&runtime)), (30, BreakerPhase::Closed));
}

#[test]
fn e25_retries_wait_for_the_breaker_instead_of_using_up_attempts() {
    on_every_store(|world| {
        let target = Target::default();
        let retry = Retry { attempts: 7, base: Duration::from_secs(1), cap: Duration::from_secs(1) };
        let runtime = world.runtime([target.tool("read"), target.tool("patient").retry(retry)]);
        target.answers(down());
        let starter = runtime.clone();
        let run = world.run(async move { starter.start_call(ToolCall::new("patient", json!({}))).await.unwrap() });
        // The fifth attempt opens the breaker; the sixth waits.
        world.pass(Duration::from_secs(10));
        assert_eq!(target.attempts.get(), 5);
        let explaining = runtime.clone();
        let why = world.run(async move { explaining.explain(run).await.unwrap() });
        let text = why.to_string();
        assert!(text.contains("attempts at `api:443` failed") && text.contains("one attempt is let through"), "{text}");
        // A call that never made an attempt, and has no retries, is refused at once.
        assert!(call(&world, &runtime, "read").contains("nothing was attempted"));
        target.answers(None);
        let waiting = runtime.clone();
        let outcome = world.run(async move { waiting.attach(run).await.unwrap().remove(0) });
        assert!(outcome.result.is_ok(), "{outcome:?}");
        assert_eq!(target.attempts.get(), 6);
    });
}

#[test]
fn e25_a_half_open_breaker_lets_one_attempt_through_at_a_time() {
    let world = World::new(Kind::Memory);
    let (ran, fails) = (Counter::default(), Arc::new(Mutex::new(true)));
    let (count, failing) = (ran.clone(), fails.clone());
    let sim = world.sim.clone();
    let slow = tool("slow", move |_| {
        count.add();
        let (fails, sim) = (*failing.lock(), sim.clone());
        async move {
            windlass_core::time::Clock::sleep(&sim, Duration::from_secs(1)).await;
            if fails { Err(ToolError::retryable("down")) } else { Ok("done") }
        }
    });
    let retry = Retry { attempts: 9, base: Duration::from_millis(10), cap: Duration::from_millis(10) };
    let slow = slow.effect(Effect::Readonly).breaker("api:443").retry(retry);
    let runtime = world.runtime([slow]);
    let starter = runtime.clone();
    world.run(async move {
        for _ in 0..20 {
            starter.start_call(ToolCall::new("slow", json!({}))).await.unwrap();
        }
    });
    // All twenty were on their way before the first failed.
    world.pass(Duration::from_secs(2));
    assert_eq!(ran.get(), 20);
    *fails.lock() = false;
    world.pass(OPEN - Duration::from_millis(500));
    assert_eq!(ran.get(), 21, "one tests the target");
    world.pass(Duration::from_secs(1));
    assert_eq!(ran.get(), 22, "then another");
    world.pass(Duration::from_secs(2));
    assert_eq!(ran.get(), 40, "then all of them");
}

#[test]
fn e25_a_breaker_is_refused_where_it_has_no_effect() {
    let durable = Tool::durable_fn("body", "waits", |_: Ctx, _: Value| async { Ok(()) }).breaker("api:443");
    for tool in [durable, tool("read", |_| async { Ok(()) }).breaker("")] {
        let world = World::new(Kind::Memory);
        let mut config = world.config([]);
        assert!(config.toolbox.insert(tool).unwrap_err().to_string().contains("breaker"));
        config.seed = None;
    }
}

fn waits() -> Tool {
    Tool::durable_fn("waits", "waits", |mut ctx: Ctx, args: Value| async move {
        if args["spawn"] == true {
            let child = ctx.spawn(ToolCall::new("waits", json!({}))).await?;
            return ctx.join::<Value>(&child).await;
        }
        ctx.wait::<Value>("go").await
    })
}

#[test]
fn e25_a_store_with_too_many_unfinished_runs_refuses_new_work_and_nothing_else() {
    on_every_store(|world| {
        let runtime = |world: &World| {
            let mut config = world.another([waits(), tool("look", |_| async { Ok("seen") })]);
            config.unfinished_runs = 4;
            Runtime::new(config)
        };
        let bounded = runtime(&world);
        let start = |runtime: &Runtime, args: Value, how: Start| {
            let (runtime, call) = (runtime.clone(), ToolCall::new("waits", args));
            world.run(async move { runtime.start_with(call, how).await })
        };
        let first = start(&bounded, json!({}), Start::key("k")).unwrap();
        start(&bounded, json!({"spawn": true}), Start::default()).unwrap();
        world.pass(Duration::from_secs(1));
        start(&bounded, json!({}), Start::session("s")).unwrap();
        world.pass(Duration::from_secs(1));
        // Each kind of work from outside.
        let full = |result: Result<(), Error>| {
            let Err(Error::Overloaded(why)) = result else { panic!("{result:?}") };
            assert!(why.contains("4 unfinished runs") && why.contains("4 suspended"), "{why}");
            assert!(why.contains("wait until some have ended"), "{why}");
        };
        full(start(&bounded, json!({}), Start::default()).map(drop));
        full(start(&bounded, json!({}), Start { turn: Turn::Queue, ..Start::session("s") }).map(drop));
        let calling = bounded.clone();
        full(world.run(async move { calling.call(ToolCall::new("look", json!({}))).await.map(drop) }));
        let batching = bounded.clone();
        let batch = Work::Batch { calls: vec![ToolCall::new("look", json!({}))], stop_on_failure: false };
        full(world.run(async move { batching.submit(batch, Start::key("batch")).await.map(drop) }));
        let forking = bounded.clone();
        full(world.run(async move { forking.fork(first, Cut::Start, None).await.map(drop) }));
        // A repeated request is not new, and what was accepted goes on, also in another process.
        assert_eq!(start(&bounded, json!({}), Start::key("k")).unwrap(), first);
        drop(bounded);
        let world = world.restart();
        let bounded = runtime(&world);
        let recovering = bounded.clone();
        world.run(async move {
            recovering.recover().await.unwrap();
            recovering.cancel(first, "ada", "over").await.unwrap();
            drop(recovering.attach(first).await.unwrap());
            recovering.call(ToolCall::new("look", json!({}))).await.unwrap();
        });
    });
}
