//! A runtime that drives only its own runs: the others stay as they are, whatever becomes due meanwhile.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::run::{Filter, RunInfo, RunState};
use windlass::tool::spec::KeyExpression;
use windlass::{Ctx, RunId, Tool, ToolCall};
use windlass_core::{Drives, Runtime, Start};

use crate::world::{Counter, World, on_every_store, tool};

const HOUR: Duration = Duration::from_secs(3_600);

fn call(name: &str, args: Value) -> ToolCall {
    ToolCall::new(name, args)
}

/// A tool that sleeps for an hour, one that spawns it and waits for it, and one that counts.
fn tools(counted: &Counter) -> Vec<Tool> {
    let sleeper = Tool::durable_fn("sleeper", "", |mut ctx: Ctx, _: Value| async move {
        ctx.sleep(HOUR).await?;
        Ok(json!("slept"))
    });
    let parent = Tool::durable_fn("parent", "", |mut ctx: Ctx, _: Value| async move {
        let child = ctx.spawn(call("sleeper", json!({}))).await?;
        ctx.join::<Value>(&child).await
    });
    let (counted, again) = (counted.clone(), counted.clone());
    let count = tool("count", move |_| std::future::ready(Ok(json!(counted.add()))));
    let keyed = Tool::new("keyed", "", move |_: Value| {
        again.add();
        async { std::future::pending::<windlass::ToolResult<Value>>().await }
    });
    vec![
        sleeper,
        parent,
        count,
        keyed.effect(windlass::Effect::Idempotent).key(KeyExpression::parse("'till'").unwrap()),
    ]
}

fn own(world: &World, counted: &Counter) -> Runtime {
    let mut config = world.config(tools(counted));
    config.drives = Drives::Own;
    let runtime = Runtime::new(config);
    let again = runtime.clone();
    assert_eq!(world.run(async move { again.recover().await }).unwrap(), 0);
    runtime
}

fn runs(world: &World, runtime: &Runtime) -> Vec<RunInfo> {
    let runtime = runtime.clone();
    world.run(async move { runtime.list(Filter::default(), None, 99).await }).unwrap()
}

fn value(world: &World, runtime: &Runtime, run: RunId) -> Value {
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).expect("the run ends");
    outcomes[0].value().cloned().expect("it succeeds")
}

/// A dead process left a sleeper, a parent that waits for its child, and a call in the middle of an attempt that holds a
/// key. A process that drives nothing added a queued run.
fn left(world: World, counted: &Counter) -> (World, [RunId; 4]) {
    let runtime = world.runtime(tools(counted));
    let [sleeper, parent, keyed] = ["sleeper", "parent", "keyed"].map(|name| {
        let runtime = runtime.clone();
        world.run(async move { runtime.start_with(call(name, json!({})), Start::key(name)).await }).unwrap()
    });
    world.pass(Duration::from_secs(1));
    drop(runtime);
    let world = world.restart();
    let mut config = world.config(tools(counted));
    config.drives = Drives::Nothing;
    let idle = Runtime::new(config);
    let queued = world.run(async move { idle.start_with(call("count", json!({})), Start::default()).await }).unwrap();
    (world.restart(), [sleeper, parent, keyed, queued])
}

#[test]
fn w01_a_runtime_with_own_runs_leaves_the_others_as_they_are() {
    on_every_store(|world| {
        let counted = Counter::default();
        let (world, left_runs) = left(world, &counted);
        let runtime = own(&world, &counted);
        let before = runs(&world, &runtime);
        assert_eq!((before.len(), counted.get()), (5, 1), "four runs and a child");
        let again = runtime.clone();
        let outcome = world.run(async move { again.call(call("parent", json!({}))).await }).unwrap();
        assert_eq!(outcome.value(), Some(&json!("slept")), "its child is driven, also after its sleep");
        world.pass(2 * HOUR);
        let after = runs(&world, &runtime);
        let others: Vec<RunInfo> =
            after.iter().filter(|info| before.iter().any(|old| old.run == info.run)).cloned().collect();
        assert_eq!(format!("{others:?}"), format!("{before:?}"));
        assert_eq!((after.len(), counted.get()), (7, 1));
        drop(runtime);
        // The next runtime continues all of them.
        let world = world.restart();
        let runtime = world.runtime(tools(&counted));
        let again = runtime.clone();
        world.run(async move { again.recover().await }).unwrap();
        let [sleeper, parent, keyed, queued] = left_runs;
        assert_eq!([sleeper, parent].map(|run| value(&world, &runtime, run)), [json!("slept"), json!("slept")]);
        assert_eq!(value(&world, &runtime, queued), json!(3), "after the second attempt of the interrupted call");
        let deaths = |run| runs(&world, &runtime).iter().find(|info| info.run == run).unwrap().deaths;
        assert_eq!([sleeper, parent, keyed, queued].map(deaths), [0, 0, 1, 0], "one process died with it");
    });
}

#[test]
fn l12_a_key_or_a_resume_makes_a_left_run_and_its_children_own_runs() {
    on_every_store(|world| {
        let counted = Counter::default();
        let (world, [sleeper, parent, keyed, queued]) = left(world, &counted);
        let runtime = own(&world, &counted);
        let (again, submitted) = (runtime.clone(), runtime.clone());
        let run = world.run(async move { again.start_with(call("parent", json!({})), Start::key("parent")).await });
        assert_eq!(run.unwrap(), parent);
        assert_eq!(value(&world, &runtime, parent), json!("slept"));
        world.run(async move { submitted.resume(keyed).await }).unwrap();
        world.pass(HOUR);
        assert_eq!(counted.get(), 2, "the idempotent attempt is repeated");
        let info = |run| runs(&world, &runtime).into_iter().find(|info| info.run == run).unwrap();
        assert_eq!([sleeper, queued].map(|run| info(run).epoch), [1, 0]);
        assert_eq!(info(queued).state, RunState::Queued);
    });
}

#[test]
fn e09_a_run_that_queues_behind_a_run_that_is_left_alone_is_explained() {
    on_every_store(|world| {
        let counted = Counter::default();
        let (world, [_, _, keyed, _]) = left(world, &counted);
        let runtime = own(&world, &counted);
        let again = runtime.clone();
        let run = world.run(async move { again.start_with(call("keyed", json!({})), Start::default()).await }).unwrap();
        world.pass(HOUR);
        let again = runtime.clone();
        let explained = world.run(async move { again.explain(run).await }).unwrap();
        let expected = format!("this process leaves run {keyed} as it is");
        assert!(explained.sentence.contains(&expected), "{}", explained.sentence);
        assert_eq!(counted.get(), 1, "neither is attempted");
    });
}
