//! Any body and any program can await any run by its id.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::ctx::{First2, Handle};
use windlass::run::RunState;
use windlass::testing::{CrashMatrix, Ledger};
use windlass::tool::ToolRef;
use windlass::{Ctx, RunId, Tool, ToolCall, ToolError, ToolResult, Windlass, park};
use windlass_core::Runtime;
use windlass_core::run::state::Blocked;

use crate::crash::once;
use crate::crash_parks::check_parked;
use crate::world::{Counter, Kind, World, on_every_store};

const HOUR: Duration = Duration::from_secs(3_600);
const MOMENT: Duration = Duration::from_secs(1);

fn call(name: &str, args: Value) -> ToolCall {
    ToolCall::new(name, args)
}

fn start(world: &World, runtime: &Runtime, call: ToolCall) -> RunId {
    let run = runtime.start_unconfirmed(call).expect("it starts");
    world.pass(MOMENT);
    run
}

fn result(world: &World, runtime: &Runtime, run: RunId) -> ToolResult<Value> {
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).expect("the run ends");
    outcomes[0].result.clone().map(|output| output.value.clone()).map_err(|error| (*error).clone())
}

fn recovered(world: &World, tools: impl IntoIterator<Item = Tool>) -> Runtime {
    let runtime = world.runtime(tools);
    let again = runtime.clone();
    world.run(async move { again.recover().await }).expect("it recovers");
    runtime
}

fn is_suspended(world: &World, runtime: &Runtime, run: RunId) -> bool {
    let runtime = runtime.clone();
    let info = world.run(async move { runtime.info(run).await }).unwrap().unwrap();
    matches!(info.state, RunState::Suspended { .. })
}

/// Sleeps for some hours, and returns or fails.
fn sleeper() -> Tool {
    Tool::durable_fn("sleeper", "", |mut ctx: Ctx, args: Value| async move {
        ctx.sleep(HOUR * args["hours"].as_u64().unwrap_or(0) as u32).await?;
        match args["fails"].as_str() {
            Some(why) => Err(ToolError::rejected("overslept", why)),
            None => Ok(json!({"slept": args["hours"]})),
        }
    })
}

/// Waits for the run that it is told.
fn awaits() -> Tool {
    Tool::durable_fn("awaits", "", |mut ctx: Ctx, args: Value| async move {
        let other: RunId = args["run"].as_str().unwrap_or_default().parse()?;
        let first = ctx.join(&Handle::<Value>::of(other)).await;
        let again = ctx.join(&Handle::<Value>::of(other)).within(HOUR).await;
        assert_eq!(first.clone().map_err(|error| error.to_string()), again.map_err(|error| error.to_string()));
        first
    })
}

#[test]
fn l27_a_body_awaits_a_run_that_it_did_not_start() {
    on_every_store(|world| {
        let runtime = world.runtime([sleeper(), awaits()]);
        let slow = start(&world, &runtime, call("sleeper", json!({"hours": 2})));
        let bad = start(&world, &runtime, call("sleeper", json!({"hours": 3, "fails": "the bed was warm"})));
        let waits = [slow, bad].map(|run| start(&world, &runtime, call("awaits", json!({"run": run}))));
        assert!(waits.iter().all(|run| is_suspended(&world, &runtime, *run)), "it costs a row while it waits");
        let (reader, waiting) = (runtime.clone(), waits[0]);
        let info = world.run(async move { reader.info(waiting).await }).unwrap().unwrap();
        assert!(matches!(info.parks[0].on, Blocked::Child { run } if run == slow), "{info:?}");
        let explained = runtime.clone();
        let explained = world.run(async move { explained.explain(waiting).await }).unwrap().to_string();
        assert!(explained.contains(&slow.to_string()), "{explained}");
        assert_eq!(result(&world, &runtime, waits[0]).unwrap(), json!({"slept": 2}));
        let error = result(&world, &runtime, waits[1]).unwrap_err();
        assert!(matches!(&error, ToolError::Failed { code: Some(code), .. } if **code == *"overslept"), "{error:?}");
        // Awaiting begins after the end.
        let late = start(&world, &runtime, call("awaits", json!({"run": slow})));
        assert_eq!(result(&world, &runtime, late).unwrap(), json!({"slept": 2}));
    });
}

#[test]
fn l27_the_end_of_a_run_reaches_those_that_await_it_across_restarts() {
    on_every_store(|world| {
        let runtime = world.runtime([sleeper(), awaits()]);
        let slow = start(&world, &runtime, call("sleeper", json!({"hours": 2})));
        let waits = start(&world, &runtime, call("awaits", json!({"run": slow})));
        let chained = start(&world, &runtime, call("awaits", json!({"run": waits})));
        drop(runtime);
        // The first process after the restart sees the end and dies before the waiting run is taken up.
        let world = world.restart();
        let only_sleeper = recovered(&world, [sleeper()]);
        assert_eq!(result(&world, &only_sleeper, slow).unwrap(), json!({"slept": 2}));
        drop(only_sleeper);
        let world = world.restart();
        let runtime = recovered(&world, [sleeper(), awaits()]);
        let again = runtime.clone();
        world.run(async move {
            for run in [waits, chained] {
                // Held, because the process in between did not have its tool.
                if matches!(again.info(run).await.unwrap().unwrap().state, RunState::Held { .. }) {
                    again.resume(run).await.unwrap();
                }
            }
        });
        assert_eq!(result(&world, &runtime, waits).unwrap(), json!({"slept": 2}));
        assert_eq!(result(&world, &runtime, chained).unwrap(), json!({"slept": 2}));
    });
}

#[test]
fn l27_another_worker_awaits_a_run_and_takes_over_the_wait() {
    let world = World::new(Kind::Memory);
    let worker = |number: u64| {
        let mut config = world.config([sleeper(), awaits()]);
        config.lease = Some(Duration::from_secs(30));
        config.seed = Some(number);
        let runtime = Runtime::new(config);
        let again = runtime.clone();
        world.run(async move { again.recover().await }).expect("it recovers");
        runtime
    };
    let (a, b) = (worker(1), worker(2));
    let slow = start(&world, &a, call("sleeper", json!({"hours": 1})));
    let waits = start(&world, &b, call("awaits", json!({"run": slow})));
    // A program awaits it through the other worker, too.
    assert_eq!(result(&world, &b, slow).unwrap(), json!({"slept": 1}));
    drop(b);
    assert_eq!(result(&world, &a, waits).unwrap(), json!({"slept": 1}));
}

#[test]
fn l27_a_run_that_is_unknown_or_purged_is_a_named_error() {
    on_every_store(|world| {
        let runtime = world.runtime([sleeper(), awaits()]);
        let unknown = RunId::from_bytes([3; 16]);
        let code = |run: RunId| {
            let waits = start(&world, &runtime, call("awaits", json!({"run": run})));
            match result(&world, &runtime, waits).unwrap_err() {
                ToolError::Failed { code: Some(code), message, .. } => {
                    assert!(message.contains(&run.to_string()), "{message}");
                    code.to_string()
                }
                error => panic!("{error:?}"),
            }
        };
        assert_eq!(code(unknown), "no_such_run");
        let done = start(&world, &runtime, call("sleeper", json!({"hours": 0})));
        let purging = runtime.clone();
        world.run(async move { purging.purge(done).await }).unwrap();
        assert_eq!(code(done), "no_such_run");
    });
}

#[test]
fn l27_a_run_that_is_purged_before_its_outcome_is_read_is_a_named_error() {
    on_every_store(|world| {
        let runtime = world.runtime([sleeper(), awaits()]);
        let slow = start(&world, &runtime, call("sleeper", json!({"hours": 1})));
        let waits = start(&world, &runtime, call("awaits", json!({"run": slow})));
        drop(runtime);
        let world = world.restart();
        let only_sleeper = world.runtime([sleeper()]);
        let run = only_sleeper.clone();
        // Only the awaited run is driven, and purged as soon as it has ended.
        world.run(async move {
            run.resume(slow).await.unwrap();
            run.attach(slow).await.unwrap();
            run.purge(slow).await.unwrap();
        });
        drop(only_sleeper);
        let world = world.restart();
        let runtime = recovered(&world, [sleeper(), awaits()]);
        let again = runtime.clone();
        world.run(async move {
            if matches!(again.info(waits).await.unwrap().unwrap().state, RunState::Held { .. }) {
                again.resume(waits).await.unwrap();
            }
        });
        let error = result(&world, &runtime, waits).unwrap_err();
        assert!(matches!(&error, ToolError::Failed { code: Some(code), .. } if **code == *"run_removed"), "{error:?}");
    });
}

/// Waits until it is told which run to await.
fn told() -> Tool {
    let tool = Tool::durable_fn("told", "", |mut ctx: Ctx, _: Value| async move {
        let other: String = ctx.receive("other").await?;
        ctx.join(&Handle::<Value>::of(other.parse()?)).await
    });
    tool.signal::<String>("other")
}

#[test]
fn l27_e09_a_cycle_of_awaits_is_refused_by_name_also_after_a_restart() {
    for restarts in [false, true] {
        on_every_store(|world| {
            let runtime = world.runtime([told()]);
            let [a, b, c] = [(); 3].map(|()| start(&world, &runtime, call("told", json!({}))));
            let signal = |world: &World, runtime: &Runtime, to: RunId, about: RunId| {
                let runtime = runtime.clone();
                world.run(async move { runtime.signal(to, "other", json!(about), None).await }).unwrap();
                world.pass(MOMENT);
            };
            signal(&world, &runtime, a, b);
            signal(&world, &runtime, b, c);
            let (world, runtime) = if restarts {
                drop(runtime);
                let world = world.restart();
                let runtime = recovered(&world, [told()]);
                (world, runtime)
            } else {
                (world, runtime)
            };
            signal(&world, &runtime, c, a);
            let error = result(&world, &runtime, c).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.kind(), "unavailable", "{text}");
            for name in [a, c] {
                assert!(text.contains(&name.to_string()), "restarts: {restarts}: {text}");
            }
            for run in [a, b] {
                let error = result(&world, &runtime, run).unwrap_err();
                assert_eq!(error.kind(), "unavailable", "the others get the end of the run they await");
            }
        });
    }
}

/// Waits for a run as its own cancellation is passed on, and tells what it saw.
fn responsible(cleaned: &Counter) -> Tool {
    let cleaned = cleaned.clone();
    Tool::durable_fn("responsible", "", move |mut ctx: Ctx, args: Value| {
        let cleaned = cleaned.clone();
        async move {
            let other: RunId = args["run"].as_str().unwrap_or_default().parse()?;
            let seen = ctx.join(&Handle::<Value>::of(other)).cancel_with_me().await;
            let own = ctx.sleep(HOUR).await.unwrap_err().to_string();
            cleaned.add();
            Ok(json!([seen.map_err(|error| error.to_string()), own]))
        }
    })
}

/// Takes ten seconds to clean up after it was cancelled, and then succeeds all the same or not.
fn stubborn() -> Tool {
    Tool::durable_fn("stubborn", "", |mut ctx: Ctx, args: Value| async move {
        let error = ctx.sleep(HOUR).await.unwrap_err();
        ctx.sleep(Duration::from_secs(10)).await?;
        if args["gives_in"] == true { Err::<Value, _>(error) } else { Ok(json!("finished all the same")) }
    })
}

#[test]
fn l27_a_cancelled_body_cancels_the_run_it_awaits_and_sees_its_real_end() {
    on_every_store(|world| {
        for (gives_in, restarts) in [(true, false), (false, false), (true, true), (false, true)] {
            let world = World::new(if restarts { Kind::Sqlite } else { Kind::Memory });
            let cleaned = Counter::default();
            let tools = || [stubborn(), responsible(&cleaned)];
            let runtime = world.runtime(tools());
            let other = start(&world, &runtime, call("stubborn", json!({"gives_in": gives_in})));
            let waits = start(&world, &runtime, call("responsible", json!({"run": other})));
            let cancelling = runtime.clone();
            world.run(async move { cancelling.cancel(waits, "ann", "rain").await }).unwrap();
            world.pass(MOMENT);
            let (world, runtime) = if restarts {
                drop(runtime);
                let world = world.restart();
                let runtime = recovered(&world, tools());
                (world, runtime)
            } else {
                (world, runtime)
            };
            let said = result(&world, &runtime, waits).unwrap();
            let reason = format!("cancelled: run {waits}, which waits for it, was cancelled: rain");
            let seen = if gives_in { json!({"Err": reason}) } else { json!({"Ok": "finished all the same"}) };
            assert_eq!(said, json!([seen, "cancelled: rain"]), "restarts: {restarts}");
            assert_eq!(cleaned.get(), 1);
        }
        drop(world);
    });
}

#[test]
fn l27_without_that_a_cancelled_body_leaves_the_awaited_run_alone() {
    on_every_store(|world| {
        let runtime = world.runtime([sleeper(), awaits()]);
        let slow = start(&world, &runtime, call("sleeper", json!({"hours": 2})));
        let waits = start(&world, &runtime, call("awaits", json!({"run": slow})));
        let cancelling = runtime.clone();
        world.run(async move { cancelling.cancel(waits, "ann", "rain").await }).unwrap();
        assert_eq!(result(&world, &runtime, waits).unwrap_err().kind(), "cancelled");
        assert_eq!(result(&world, &runtime, slow).unwrap(), json!({"slept": 2}));
    });
}

#[test]
fn l27_a_race_may_await_any_run() {
    on_every_store(|world| {
        let racer = Tool::durable_fn("racer", "", |mut ctx: Ctx, args: Value| async move {
            let other = Handle::<Value>::of(args["run"].as_str().unwrap_or_default().parse::<RunId>()?);
            let mut seen = Vec::new();
            for _ in 0..3 {
                seen.push(match ctx.first((other.park(), park::sleep(HOUR))).await? {
                    First2::A(value) => value,
                    First2::B(()) => json!("an hour"),
                });
            }
            Ok(json!(seen))
        });
        let runtime = world.runtime([sleeper(), racer]);
        let slow = start(&world, &runtime, call("sleeper", json!({"hours": 2})));
        let race = start(&world, &runtime, call("racer", json!({"run": slow})));
        let end = json!({"slept": 2});
        assert_eq!(result(&world, &runtime, race).unwrap(), json!(["an hour", end, end]));
    });
}

#[test]
fn l27_a_child_is_awaited_in_a_later_generation_also_if_it_was_awaited_before() {
    on_every_store(|world| {
        let parent = Tool::durable_fn("parent", "", |mut ctx: Ctx, args: Value| async move {
            if args.get("child").is_none() {
                let to = ToolCall::<Value>::to(ToolRef::Name("sleeper".into()), json!({"hours": 1}));
                let child = ctx.spawn(to).await?;
                ctx.join(&child).await?;
                return ctx.continue_as(json!({"child": child})).await;
            }
            let child: Handle<Value> = serde_json::from_value(args["child"].clone())?;
            ctx.join(&child).await
        });
        let runtime = world.runtime([sleeper(), parent]);
        let run = start(&world, &runtime, call("parent", json!({})));
        assert_eq!(result(&world, &runtime, run).unwrap(), json!({"slept": 1}));
    });
}

/// One body spawns a run and passes its id to another one, which awaits it. Both act once when it has ended.
fn family(ledger: &Ledger) -> Vec<Tool> {
    let worker = Tool::durable_fn("worker", "", |mut ctx: Ctx, _: Value| async move {
        ctx.sleep(HOUR).await?;
        ctx.call_json("act", json!({})).await
    });
    let observer = Tool::durable_fn("observer", "", |mut ctx: Ctx, args: Value| async move {
        let other: RunId = args["run"].as_str().unwrap_or_default().parse()?;
        let seen = ctx.join(&Handle::<Value>::of(other)).await?;
        ctx.call_json("note", json!({})).await?;
        Ok(json!({"seen": seen}))
    });
    let root = Tool::durable_fn("root", "", |mut ctx: Ctx, args: Value| async move {
        let to = |name: &str, args| ToolCall::<Value>::to(ToolRef::Name(name.into()), args);
        let work = ctx.spawn(to("worker", json!({}))).abandon().await?;
        if args["late"] == true {
            ctx.sleep(2 * HOUR).await?;
        }
        let observer = ctx.spawn(to("observer", json!({"run": work.run()}))).await?;
        ctx.join(&observer).await
    });
    vec![root, worker, observer, once(ledger, "act"), once(ledger, "note")]
}

#[test]
fn l27_an_awaited_end_arrives_once_over_every_crash() {
    for late in [false, true] {
        let report = check_parked(|| CrashMatrix::new(family).call(call("root", json!({"late": late}))));
        assert_eq!(report.outcome, json!([{"seen": {"done": "act"}}]));
        assert_eq!((report.effects["act"], report.effects["note"]), (1, 1));
    }
}

#[tokio::test]
async fn l27_a_program_awaits_a_run_that_another_handle_started() -> windlass::Result<()> {
    let dir = crate::world::scratch();
    let path = dir.path().join("app.db");
    let greet =
        || Tool::durable_fn("greet", "", |mut ctx: Ctx, _: Value| async move { ctx.wait::<Value>("name").await });
    let windlass = Windlass::open(&path).tool(greet()).await?;
    let run = windlass.start(call("greet", json!({}))).await?.id();
    let waiting = tokio::spawn(windlass.run(run).into_future());
    let key = loop {
        match windlass.inbox().waiting().await?.pop() {
            Some(item) => break item.key.expect("a wait has a key"),
            None => tokio::task::yield_now().await,
        }
    };
    windlass.inbox().resolve(&key, windlass::inbox::Resolution::Ok { value: json!("ada") }).await?;
    assert_eq!(waiting.await.expect("it ends")?, json!("ada"));
    windlass.shutdown().await?;
    // Another process, after the end.
    let windlass = Windlass::open(&path).tool(greet()).await?;
    assert_eq!(windlass.run(run).await?, json!("ada"));
    windlass.shutdown().await
}
