//! Parents and children: which runs are awaited, which are cancelled together, and what a held body must not do.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::ctx::{First2, Handle};
use windlass::run::record::Event;
use windlass::run::{Filter, Hold, RunInfo, RunState};
use windlass::{Ctx, RunId, Tool, ToolCall, ToolError, ToolResult, park};
use windlass_core::Runtime;

use crate::world::{Counter, World, on_every_store};

const HOUR: Duration = Duration::from_secs(3_600);
const MOMENT: Duration = Duration::from_secs(1);

fn call(name: &str, args: Value) -> ToolCall {
    ToolCall::new(name, args)
}

fn result(world: &World, runtime: &Runtime, run: RunId) -> ToolResult<Value> {
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).expect("the run ends");
    outcomes[0].result.clone().map(|output| output.value.clone()).map_err(|error| (*error).clone())
}

fn runs(world: &World, runtime: &Runtime) -> Vec<RunInfo> {
    let runtime = runtime.clone();
    world.run(async move { runtime.list(Filter::default(), None, 1_000).await }).expect("the store answers")
}

fn recovered(world: &World, tools: impl IntoIterator<Item = Tool>) -> Runtime {
    let runtime = world.runtime(tools);
    let again = runtime.clone();
    world.run(async move { again.recover().await }).unwrap();
    runtime
}

/// Sleeps for the time in its argument.
fn sleeper() -> Tool {
    Tool::durable_fn("sleeper", "", |mut ctx: Ctx, args: Value| async move {
        ctx.sleep(args["hours"].as_u64().unwrap_or(0) as u32 * HOUR).await?;
        Ok(json!("slept"))
    })
}

fn states(world: &World, runtime: &Runtime) -> Vec<String> {
    runs(world, runtime).iter().filter(|info| info.parent.is_some()).map(|info| format!("{:?}", info.state)).collect()
}

#[test]
fn l05_an_unfinished_child_is_cancelled_with_its_parent_also_after_a_restart() {
    on_every_store(|world| {
        let parent = || {
            Tool::durable_fn("parent", "", |mut ctx: Ctx, _: Value| async move {
                let child = ctx.spawn(call("sleeper", json!({"hours": 9}))).await?;
                let waited = ctx.join(&child).within(MOMENT).await;
                assert!(waited.is_err());
                ctx.sleep(5 * HOUR).await?;
                Ok(json!(null))
            })
        };
        let runtime = world.runtime([parent(), sleeper()]);
        let run = runtime.start_unconfirmed(call("parent", json!({}))).unwrap();
        world.pass(5 * MOMENT);
        drop(runtime);
        let world = world.restart();
        let runtime = recovered(&world, [parent(), sleeper()]);
        let again = runtime.clone();
        world.run(async move { again.cancel(run, "ada", "enough").await }).unwrap();
        result(&world, &runtime, run).unwrap_err();
        world.pass(MOMENT);
        assert_eq!(states(&world, &runtime), ["Finished { ending: Cancelled }"]);
    });
}

/// Spawns three children, each with another fate, and ends an hour later, in its second generation.
fn leaver() -> Tool {
    Tool::durable_fn("leaver", "leaves its children", |mut ctx: Ctx, args: Value| async move {
        if args["generation"] == 1 {
            ctx.sleep(HOUR).await?;
            return if args["fail"] == true { Err(ToolError::failed("no")) } else { Ok(json!(null)) };
        }
        ctx.spawn(call("sleeper", json!({"hours": 9}))).await?;
        ctx.spawn(call("sleeper", json!({"hours": 9}))).cancel_when_parent_ends().await?;
        ctx.spawn(call("sleeper", json!({"hours": 9}))).abandon().await?;
        ctx.continue_as(json!({"generation": 1, "fail": args["fail"]})).await
    })
}

#[test]
fn l05_a_parent_that_ends_leaves_its_children_running_unless_they_are_to_end_with_it() {
    for fail in [false, true] {
        on_every_store(|world| {
            let runtime = world.runtime([leaver(), sleeper()]);
            let run = runtime.start_unconfirmed(call("leaver", json!({"fail": fail}))).unwrap();
            world.pass(MOMENT);
            assert_eq!(runs(&world, &runtime).len(), 4);
            drop(runtime);
            let world = world.restart();
            let runtime = recovered(&world, [leaver(), sleeper()]);
            world.pass(MOMENT);
            let running = || states(&world, &runtime).iter().filter(|state| !state.starts_with("Finished")).count();
            assert_eq!(running(), 3, "the next generation of a parent is not its end");
            assert_eq!(result(&world, &runtime, run).is_err(), fail);
            world.pass(MOMENT);
            assert_eq!(running(), 2);
            world.pass(20 * HOUR);
            let mut endings = states(&world, &runtime);
            endings.sort();
            let [cancelled, ok] = ["Finished { ending: Cancelled }", "Finished { ending: Ok }"];
            assert_eq!(endings, [cancelled, ok, ok]);
        });
    }
}

#[test]
fn l05_a_child_that_ends_with_its_parent_is_cancelled_once_and_may_end_before() {
    on_every_store(|world| {
        let parent = Tool::durable_fn("parent", "waits for one child", |mut ctx: Ctx, _: Value| async move {
            let short = ctx.spawn(call("sleeper", json!({"hours": 1}))).cancel_when_parent_ends().await?;
            ctx.spawn(call("sleeper", json!({"hours": 9}))).cancel_when_parent_ends().await?;
            ctx.join(&short).await?;
            ctx.sleep(HOUR).await?;
            Ok(json!(null))
        });
        let runtime = world.runtime([parent, sleeper()]);
        let run = runtime.start_unconfirmed(call("parent", json!({}))).unwrap();
        world.pass(HOUR + MOMENT);
        let again = runtime.clone();
        world.run(async move { again.cancel(run, "ada", "enough").await }).unwrap();
        result(&world, &runtime, run).unwrap_err();
        world.pass(MOMENT);
        let mut endings = states(&world, &runtime);
        endings.sort();
        assert_eq!(endings, ["Finished { ending: Cancelled }", "Finished { ending: Ok }"]);
    });
}

#[test]
fn l12_a_new_generation_does_not_keep_ended_children() {
    on_every_store(|world| {
        let parent = Tool::durable_fn("parent", "", |mut ctx: Ctx, args: Value| async move {
            let n = args["n"].as_u64().unwrap_or(0);
            let child = ctx.spawn(call("sleeper", json!({"hours": 1}))).await?;
            ctx.join(&child).await?;
            let _late = ctx.spawn(call("sleeper", json!({"hours": 100}))).await?;
            if n == 3 { Ok(json!(n)) } else { ctx.continue_as(json!({"n": n + 1})).await }
        });
        let runtime = world.runtime([parent, sleeper()]);
        let run = runtime.start_unconfirmed(call("parent", json!({}))).unwrap();
        result(&world, &runtime, run).unwrap();
        let again = runtime.clone();
        let journal = world.run(async move { again.journal(run).await }).unwrap();
        let carried: Vec<usize> = journal
            .iter()
            .filter_map(|record| match &record.event {
                Event::Continued { children, .. } => Some(children.len()),
                _ => None,
            })
            .collect();
        assert_eq!(carried.last(), Some(&3), "{carried:?}");
    });
}

#[test]
fn l12_a_second_join_of_a_child_has_the_same_result() {
    on_every_store(|world| {
        let parent = || {
            Tool::durable_fn("parent", "", |mut ctx: Ctx, _: Value| async move {
                let child = ctx.spawn(call("sleeper", json!({"hours": 1}))).await?;
                let first = ctx.join(&child).await?;
                let second = ctx.join(&child).within(HOUR).await?;
                ctx.sleep(5 * HOUR).await?;
                let third = ctx.join(&child).within(HOUR).await?;
                Ok(json!([first, second, third]))
            })
        };
        let runtime = world.runtime([parent(), sleeper()]);
        let run = runtime.start_unconfirmed(call("parent", json!({}))).unwrap();
        world.pass(3 * HOUR);
        drop(runtime);
        let world = world.restart();
        let runtime = recovered(&world, [parent(), sleeper()]);
        assert_eq!(result(&world, &runtime, run).unwrap(), json!(["slept", "slept", "slept"]));
    });
}

#[test]
fn l27_a_race_that_waits_for_its_own_run_is_decided_by_another_branch() {
    on_every_store(|world| {
        let parent = Tool::durable_fn("parent", "", |mut ctx: Ctx, _: Value| async move {
            let alien: Handle<Value> =
                serde_json::from_value(json!({"run": ctx.run(), "parent": "00000000-0000-0000-0000-000000000001"}))?;
            let refused = ctx.first((alien.park(), park::sleep(HOUR))).await;
            Ok(match refused {
                Ok(First2::A(_)) => "came".to_owned(),
                Ok(First2::B(())) => "waited".to_owned(),
                Err(error) => error.to_string(),
            })
        });
        let runtime = world.runtime([parent]);
        let run = runtime.start_unconfirmed(call("parent", json!({}))).unwrap();
        let said = result(&world, &runtime, run).unwrap();
        assert_eq!(said, json!("waited"));
    });
}

#[test]
fn w04_a_held_body_starts_nothing_and_writes_nothing() {
    on_every_store(|world| {
        let counter = Counter::default();
        let teller = |event: &'static str, spawns: bool| {
            Tool::durable_fn("teller", "", move |mut ctx: Ctx, _: Value| async move {
                ctx.emit(event, &1)?;
                if spawns {
                    ctx.version("spawns");
                    ctx.open_wait::<u64>("anything");
                    ctx.spawn(call("count", json!({}))).await?;
                } else {
                    std::future::pending::<()>().await;
                }
                ctx.step("next", |_| async { Ok(()) }).await?;
                Ok(json!(null))
            })
            .event::<i64>("a")
            .event::<i64>("b")
        };
        let count = || {
            let counter = counter.clone();
            crate::world::tool("count", move |_| {
                let counter = counter.clone();
                async move { Ok(counter.add()) }
            })
        };
        let runtime = world.runtime([teller("a", false), count()]);
        let run = runtime.start_unconfirmed(call("teller", json!({}))).unwrap();
        world.pass(MOMENT);
        let again = runtime.clone();
        let before = world.run(async move { again.journal(run).await }).unwrap().len();
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([teller("b", true), count()]);
        let again = runtime.clone();
        world.run(async move {
            let _ = again.recover().await;
            let _ = again.resume(run).await;
        });
        world.pass(MOMENT);
        let info = runs(&world, &runtime).into_iter().find(|info| info.run == run).unwrap();
        assert!(matches!(&info.state, RunState::Held { hold: Hold::Diverged(_) }), "{info:?}");
        assert_eq!((counter.get(), runs(&world, &runtime).len()), (0, 1));
        let again = runtime.clone();
        let journal = world.run(async move { again.journal(run).await }).unwrap();
        let new: Vec<_> = journal[before..].iter().filter(|record| record.asked.is_some()).collect();
        assert!(new.is_empty(), "{new:?}");
    });
}

#[test]
fn l12_a_body_that_only_emits_is_stopped_by_the_limit() {
    on_every_store(|world| {
        let teller = Tool::durable_fn("teller", "", |mut ctx: Ctx, _: Value| async move {
            loop {
                ctx.emit("a", &1)?;
            }
            #[allow(unreachable_code)]
            Ok(json!(null))
        })
        .event::<i64>("a");
        let runtime = world.runtime([teller]);
        let run = runtime.start_unconfirmed(call("teller", json!({}))).unwrap();
        world.pass(MOMENT);
        let info = runs(&world, &runtime).into_iter().find(|info| info.run == run).unwrap();
        assert!(matches!(&info.state, RunState::Held { hold: Hold::TooLong { .. } }), "{info:?}");
    });
}

#[test]
fn l05_a_cancelled_run_does_not_escape_into_its_next_generation() {
    on_every_store(|world| {
        let stubborn = Tool::durable_fn("stubborn", "", |mut ctx: Ctx, _: Value| async move {
            let _ = ctx.sleep(HOUR).await;
            ctx.continue_as::<Value>(json!({})).await
        });
        let runtime = world.runtime([stubborn]);
        let run = runtime.start_unconfirmed(call("stubborn", json!({}))).unwrap();
        world.pass(2 * HOUR);
        let again = runtime.clone();
        world.run(async move { again.cancel(run, "ada", "enough").await }).unwrap();
        world.pass(MOMENT);
        let info = runs(&world, &runtime).remove(0);
        assert!(matches!(info.state, RunState::Finished { .. }), "{info:?}");
        assert_eq!(result(&world, &runtime, run).unwrap_err().kind(), "cancelled");
    });
}

#[test]
fn l12_every_generation_draws_random_numbers_of_its_own() {
    on_every_store(|world| {
        let drawing = Tool::durable_fn("drawing", "", |mut ctx: Ctx, args: Value| async move {
            let mut drawn = args["drawn"].as_array().cloned().unwrap_or_default();
            drawn.push(json!(ctx.uuid()));
            drawn.push(json!(ctx.random()));
            if drawn.len() == 6 { Ok(json!(drawn)) } else { ctx.continue_as(json!({ "drawn": drawn })).await }
        });
        let runtime = world.runtime([drawing]);
        let run = runtime.start_unconfirmed(call("drawing", json!({}))).unwrap();
        let drawn = result(&world, &runtime, run).unwrap();
        let distinct: std::collections::BTreeSet<String> =
            drawn.as_array().unwrap().iter().map(Value::to_string).collect();
        assert_eq!(distinct.len(), 6, "{drawn}");
    });
}

#[test]
fn l05_a_body_gets_a_cancellation_although_the_interrupted_attempt_happened() {
    on_every_store(|world| {
        let undone = Counter::default();
        let act = Tool::new("act", "", |_: Value| async {
            std::future::pending::<()>().await;
            Ok(json!(1))
        })
        .reconcile(|_| async { Ok(windlass::tool::Reconciled::Happened(json!(1))) });
        let body = {
            let undone = undone.clone();
            Tool::durable_fn("body", "", move |mut ctx: Ctx, _: Value| {
                let undone = undone.clone();
                async move {
                    ctx.step("book", |_| async { Ok(1) })
                        .undo(move |_: i64, _| {
                            undone.add();
                            async { Ok(()) }
                        })
                        .await?;
                    ctx.call(call("act", json!({}))).await?;
                    ctx.sleep(HOUR).await?;
                    Ok(json!(null))
                }
            })
        };
        let runtime = world.runtime([act, body]);
        let run = runtime.start_unconfirmed(call("body", json!({}))).unwrap();
        world.pass(MOMENT);
        let again = runtime.clone();
        world.run(async move { again.cancel(run, "ada", "enough").await }).unwrap();
        let error = result(&world, &runtime, run).unwrap_err().to_string();
        assert_eq!((error.as_str(), undone.get()), ("cancelled: enough", 1));
    });
}
