//! Calls without a record of their start are announced to the watchers when they start, and recorded once.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::run::{Activity, Cursor, Happening, Position, Start, Work};
use windlass::{Ctx, Effect, Tool, ToolCall};
use windlass_core::Runtime;
use windlass_core::time::Clock;

use crate::watch::{call, kinds, place, read, recorded, recover};
use crate::world::{World, on_every_store};

/// How long an attempt takes.
const LONG: Duration = Duration::from_secs(30);
/// A moment within the first attempt; twice that is within the second one.
const MEANWHILE: Duration = Duration::from_secs(20);

/// Looks something up, and writes something. Both may be repeated, so neither is recorded
/// before it ends.
fn quiet(world: &World) -> Vec<Tool> {
    let slow = |name: &str, effect: Effect| {
        let sim = world.sim.clone();
        let body = move |_: Value| {
            let sim = sim.clone();
            async move {
                sim.sleep(LONG).await;
                Ok(json!(1))
            }
        };
        Tool::new(name, "takes a while", body).effect(effect)
    };
    let both = Tool::durable_fn("both", "looks, then writes", |mut ctx: Ctx, _: Value| async move {
        let seen: Value = ctx.call(ToolCall::new("look", json!({"key": 7})).with_id("call_1")).await?;
        ctx.step("think", |_| async { Ok(1) }).readonly().await?;
        let _: Value = ctx.call(call("write")).await?;
        Ok(seen)
    });
    vec![slow("look", Effect::Readonly), slow("write", Effect::Idempotent), both]
}

/// What a watch returns until time has to pass.
fn heard(world: &World, watch: &Arc<Mutex<Vec<Activity>>>) -> Vec<Activity> {
    world.pass(MEANWHILE);
    std::mem::take(&mut *watch.lock())
}

/// Collects what a watch returns, in a task of its own.
fn follow(world: &World, mut watch: windlass::run::Watch) -> Arc<Mutex<Vec<Activity>>> {
    let all = Arc::new(Mutex::new(Vec::new()));
    let into = all.clone();
    let reading = async move {
        while let Some(Ok(activity)) = watch.next().await {
            into.lock().push(activity);
        }
    };
    windlass_core::spawn::Spawn::spawn(&world.sim, Box::pin(reading));
    all
}

#[test]
fn l23_b12_calls_without_a_record_are_announced_when_they_start_and_recorded_once() {
    on_every_store(|world| {
        let runtime = world.runtime(quiet(&world));
        let run = runtime.start_unconfirmed(call("both")).unwrap();
        let watching = runtime.clone();
        let watch = world.run(async move { watching.watch(run, Cursor::START).await.unwrap() });
        let watch = follow(&world, watch);
        let journal = |runtime: &Runtime| {
            let runtime = runtime.clone();
            world.run(async move { runtime.journal(run).await.unwrap().len() })
        };
        let of_child = |all: &[Activity]| -> Vec<Activity> {
            all.iter().filter(|activity| !activity.path.is_root()).cloned().collect()
        };
        let first = heard(&world, &watch);
        let records = journal(&runtime);
        let started = of_child(&first);
        assert_eq!((kinds(&started), started[0].position), (vec!["call_started".to_owned()], Position::Live));
        let Happening::CallStarted { tool, args, call_id, .. } = &started[0].what else { panic!("{started:?}") };
        assert_eq!((&**tool, args, call_id.as_deref()), ("look", &Some(json!({"key": 7})), Some("call_1")));
        assert_eq!(records, 2, "that the call was accepted and its body entered, and no announcement");
        let second = heard(&world, &watch);
        let write: Vec<Activity> =
            of_child(&second).into_iter().filter(|activity| activity.path.to_string() == "2").collect();
        let Happening::CallStarted { idempotency_key, .. } = &write[0].what else { panic!("{second:?}") };
        assert!(write[0].position == Position::Live && idempotency_key.is_some(), "{write:?}");
        assert!(of_child(&second).iter().any(|it| matches!(it.what, Happening::CallFinished { .. })), "{second:?}");
        world.pass(2 * LONG);
        let all: Vec<Activity> = [first, second, std::mem::take(&mut *watch.lock())].concat();
        let durable = recorded(&all);
        assert!(durable.windows(2).all(|pair| place(&pair[0]) < place(&pair[1])), "in order, each once");
        for path in ["0", "2"] {
            let positions: Vec<bool> = all
                .iter()
                .filter(|it| it.path.to_string() == path && matches!(it.what, Happening::CallStarted { .. }))
                .map(|it| it.position == Position::Live)
                .collect();
            assert_eq!(positions, [true, false], "{path}: once live, once recorded");
            let of_path: Vec<&Activity> = all.iter().filter(|it| it.path.to_string() == path).collect();
            let (live, again) = (&of_path[0].what, &of_path[1].what);
            assert_eq!(live, again, "both say the same");
        }
        let late = world.run(read(runtime.clone(), run, Cursor::START));
        assert_eq!(late, durable, "a late reader sees the same sequence, without the announcements");
        for (seen, activity) in durable.iter().enumerate() {
            let rest = world.run(read(runtime.clone(), run, place(activity).next()));
            assert_eq!(rest, durable[seen + 1..], "a reader that resumes sees neither gaps nor duplicates");
        }
    });
}

async fn submitted(runtime: Runtime, how: Start) -> windlass::Result<Value> {
    let (_, outcomes) = runtime.submit(Work::Call(call("look")), how).await?.outcomes().await?;
    Ok(outcomes[0].for_model())
}

#[test]
fn l23_a_root_readonly_call_is_announced_to_its_session_before_it_ends() {
    on_every_store(|world| {
        let runtime = world.runtime(quiet(&world));
        let watch = follow(&world, runtime.watch_session("s", Cursor::START));
        let calling = runtime.clone();
        let how = Start { session: Some("s".into()), ..Start::default() };
        let outcome = Arc::new(Mutex::new(None));
        let slot = outcome.clone();
        let calling = async move { *slot.lock() = Some(submitted(calling, how).await) };
        windlass_core::spawn::Spawn::spawn(&world.sim, Box::pin(calling));
        assert_eq!(kinds(&heard(&world, &watch)), ["run_started", "call_started"]);
        assert!(outcome.lock().is_none(), "the call goes on");
        world.pass(2 * LONG);
        assert_eq!(kinds(&watch.lock()), ["call_finished", "run_finished"]);
        assert!(matches!(outcome.lock().as_ref(), Some(Ok(_))));
    });
}

#[test]
fn l23_the_start_of_a_call_that_is_repeated_after_a_crash_is_recorded_before_it_ends() {
    on_every_store(|world| {
        let runtime = world.runtime(quiet(&world));
        let run = runtime.start_unconfirmed(call("both")).unwrap();
        world.pass(MEANWHILE);
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime(quiet(&world));
        let watching = runtime.clone();
        let watch = world.run(async move { watching.watch(run, Cursor::START).await.unwrap() });
        let watch = follow(&world, watch);
        recover(&world, &runtime);
        let all = heard(&world, &watch);
        let looks: Vec<&Activity> = all.iter().filter(|activity| activity.path.to_string() == "0").collect();
        let looks: Vec<Activity> = looks.into_iter().cloned().collect();
        assert_eq!(kinds(&recorded(&looks)), ["call_started", "attempt_started"], "{all:?}");
    });
}
