//! The limits of a step: timeout, deadline, heartbeat and grace mean the same as on a tool, also across a crash.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::tool::spec::Retry;
use windlass::{Attempt, Ctx, Effect, Outcome, RunId, Tool, ToolCall, ToolError};
use windlass_core::Runtime;
use windlass_core::run::record::DoubtCause;
use windlass_core::time::Clock;

use crate::world::{World, on_every_store};

const MOMENT: Duration = Duration::from_millis(10);

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What an attempt does.
#[derive(Clone, Copy)]
enum Does {
    /// Nothing, for ever.
    Hangs,
    /// Beats so often, every 80 ms, and then hangs.
    Beats(u32),
    /// Fails at once, and may be repeated.
    Fails,
    /// Ends this long after it is asked to stop.
    Stops(Duration),
}

async fn attempt(world: windlass_core::testing::Sim, attempt: Attempt, does: Does) -> windlass::ToolResult<Value> {
    match does {
        Does::Hangs => std::future::pending().await,
        Does::Beats(beats) => {
            for _ in 0..beats {
                world.sleep(millis(80)).await;
                attempt.heartbeat();
            }
            std::future::pending().await
        }
        Does::Fails => Err(ToolError::retryable("busy")),
        Does::Stops(after) => {
            attempt.cancelled().await;
            world.sleep(after).await;
            Ok(json!("stopped in time"))
        }
    }
}

/// The limits of one row of the table.
#[derive(Clone, Copy)]
struct Limits {
    timeout: Duration,
    deadline: Duration,
    heartbeat: Duration,
    grace: Duration,
}

const LONG: Duration = Duration::from_secs(3_600);
const LIMITS: Limits = Limits { timeout: LONG, deadline: LONG, heartbeat: LONG, grace: Duration::from_millis(50) };

/// The same attempt with the same limits, as a step of a body and as a tool.
fn kinds(world: &World, does: Does, effect: Effect, limits: Limits) -> [Tool; 2] {
    let Limits { timeout, deadline, heartbeat, grace } = limits;
    let (in_step, in_tool) = (world.sim.clone(), world.sim.clone());
    let body = Tool::durable_fn("step", "", move |mut ctx: Ctx, _: Value| {
        let sim = in_step.clone();
        async move {
            let step = ctx.step("work", |a| attempt(sim.clone(), a, does)).retry(Retry::attempts(50));
            let step = step.timeout(timeout).deadline(deadline).heartbeat(heartbeat).grace(grace);
            match effect {
                Effect::Readonly => step.readonly().await,
                Effect::Idempotent => step.idempotent().await,
                Effect::Once => step.await,
            }
        }
    });
    let function = Tool::with_call("function", "", move |call: windlass::Call, _: Value| {
        attempt(in_tool.clone(), (*call).clone(), does)
    });
    let function = function.effect(effect).retry(Retry::attempts(50)).timeout(timeout).with(|spec| {
        spec.limits.deadline = Some(deadline);
        spec.limits.heartbeat = Some(heartbeat);
        spec.limits.grace = Some(grace);
    });
    [body, function]
}

fn outcome(world: &World, runtime: &Runtime, run: RunId) -> Outcome {
    let runtime = runtime.clone();
    world.run(async move { runtime.attach(run).await.unwrap().remove(0) })
}

#[test]
fn w06_limits_of_a_step_mean_the_same_as_those_of_a_tool() {
    let rows: [(&str, Does, Limits, &str, u64); 4] = [
        ("timeout", Does::Hangs, Limits { timeout: millis(500), ..LIMITS }, "the attempt took longer than 500ms", 500),
        ("deadline", Does::Hangs, Limits { deadline: millis(400), ..LIMITS }, "the deadline of 400ms passed", 400),
        ("silence", Does::Hangs, Limits { heartbeat: millis(100), ..LIMITS }, "no heartbeat for 100ms", 100),
        ("beats", Does::Beats(5), Limits { heartbeat: millis(100), ..LIMITS }, "no heartbeat for 100ms", 480),
    ];
    on_every_store(|world| {
        for (row, does, limits, message, at_least) in rows {
            for kind in ["step", "function"] {
                // The deadline also ends the retries of what may be repeated.
                let limits = Limits { deadline: limits.deadline.min(millis(600)), ..limits };
                let runtime = world.runtime(kinds(&world, does, Effect::Readonly, limits));
                let began = world.sim.now();
                let run = runtime.start_unconfirmed(ToolCall::new(kind, json!({}))).unwrap();
                let error = outcome(&world, &runtime, run).error().cloned().unwrap();
                assert_eq!(error.to_string(), format!("timed_out: {message}"), "{row} of a {kind}");
                assert!(world.sim.now().since(began) >= millis(at_least), "{row} of a {kind}");
            }
        }
    });
}

#[test]
fn w06_a_once_step_whose_heartbeat_falls_silent_is_in_doubt() {
    on_every_store(|world| {
        for kind in ["step", "function"] {
            let limits = Limits { heartbeat: millis(100), ..LIMITS };
            let runtime = world.runtime(kinds(&world, Does::Beats(2), Effect::Once, limits));
            let run = runtime.start_unconfirmed(ToolCall::new(kind, json!({}))).unwrap();
            world.pass(millis(200));
            let reader = runtime.clone();
            assert!(world.run(async move { reader.doubts().await.unwrap() }).is_empty(), "two beats keep it alive");
            world.pass(millis(300));
            let reader = runtime.clone();
            let (of, doubt) = world.run(async move { reader.doubts().await.unwrap().remove(0) });
            assert_eq!((of, doubt.cause), (run, DoubtCause::TimedOut), "{kind}");
            let giving_up = runtime.clone();
            world.run(async move {
                let settlement = windlass::inbox::Settlement::GiveUp;
                giving_up.settle(run, &doubt.path, settlement, "ann", "cannot tell").await.unwrap();
            });
            assert_eq!(outcome(&world, &runtime, run).error().map(ToolError::kind), Some("in_doubt"));
        }
    });
}

#[test]
fn w06_a_cancelled_step_has_its_grace_and_what_it_returns_in_time_counts() {
    on_every_store(|world| {
        for kind in ["step", "function"] {
            for (takes, grace, expected) in [(300, 400, "ok"), (300, 200, "cancelled")] {
                let limits = Limits { grace: millis(grace), ..LIMITS };
                let runtime = world.runtime(kinds(&world, Does::Stops(millis(takes)), Effect::Readonly, limits));
                let run = runtime.start_unconfirmed(ToolCall::new(kind, json!({}))).unwrap();
                world.pass(MOMENT);
                let cancelling = runtime.clone();
                world.run(async move { cancelling.cancel(run, "ann", "rain").await.unwrap() });
                let outcome = outcome(&world, &runtime, run);
                assert_eq!(
                    outcome.error().map_or("ok", ToolError::kind),
                    expected,
                    "{kind} with a grace of {grace} ms"
                );
            }
        }
    });
}

#[test]
fn w06_the_deadline_of_a_step_covers_its_retries_and_a_crash() {
    on_every_store(|world| {
        for kind in ["step", "function"] {
            // Its retries end with the last error before the deadline.
            let limits = Limits { deadline: Duration::from_secs(5), ..LIMITS };
            let runtime = world.runtime(kinds(&world, Does::Fails, Effect::Once, limits));
            let began = world.sim.now();
            let run = runtime.start_unconfirmed(ToolCall::new(kind, json!({}))).unwrap();
            let error = outcome(&world, &runtime, run).error().cloned().unwrap();
            assert_eq!(error.to_string(), "failed: busy", "{kind}");
            assert!(world.sim.now().since(began) <= Duration::from_secs(5), "{kind}");
        }
    });
    for kind in ["step", "function"] {
        on_every_store(|world| {
            let limits = Limits { deadline: Duration::from_secs(60), ..LIMITS };
            let make = |world: &World| kinds(world, Does::Hangs, Effect::Idempotent, limits);
            let runtime = world.runtime(make(&world));
            let began = world.sim.now();
            let run = runtime.start_unconfirmed(ToolCall::new(kind, json!({}))).unwrap();
            world.pass(Duration::from_secs(50));
            drop(runtime);
            let world = world.restart();
            let runtime = world.runtime(make(&world));
            let again = runtime.clone();
            world.run(async move { again.recover().await.unwrap() });
            let error = outcome(&world, &runtime, run).error().cloned().unwrap();
            assert_eq!(error.to_string(), "timed_out: the deadline of 60s passed", "{kind}");
            let took = world.sim.now().since(began);
            assert!(took < Duration::from_secs(70), "the crash did not begin its time again: {took:?}");
        });
    }
}

#[test]
fn w06_a_deadline_that_passes_while_no_process_drives_the_run_ends_the_step() {
    on_every_store(|world| {
        let make = |world: &World| {
            let sim = world.sim.clone();
            Tool::durable_fn("body", "", move |mut ctx: Ctx, _: Value| {
                let sim = sim.clone();
                async move {
                    let work = |_| {
                        let sim = sim.clone();
                        async move {
                            sim.sleep(Duration::from_secs(50)).await;
                            Ok(1)
                        }
                    };
                    ctx.step("work", work).idempotent().deadline(Duration::from_secs(40)).await
                }
            })
        };
        let runtime = world.runtime([make(&world)]);
        let began = world.sim.now();
        let run = runtime.start_unconfirmed(ToolCall::new("body", json!({}))).unwrap();
        world.pass(Duration::from_secs(10));
        drop(runtime);
        let world = world.restart();
        world.pass(Duration::from_secs(60));
        let runtime = world.runtime([make(&world)]);
        let again = runtime.clone();
        world.run(async move { again.recover().await.unwrap() });
        let error = outcome(&world, &runtime, run).error().cloned().unwrap();
        assert_eq!(error.to_string(), "timed_out: the deadline of 40s passed before it could start");
        assert!(world.sim.now().since(began) < Duration::from_secs(80), "it counts from the first attempt");
    });
}
