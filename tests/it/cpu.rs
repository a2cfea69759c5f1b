//! CPU-bound bodies on separate threads: the same grace, the same doubts, and no attempt runs twice at the same time.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::tool::Reconciled;
use windlass::{Call, Tool, ToolCall, ToolResult};
use windlass_core::Runtime;
use windlass_core::spawn::Spawn;
use windlass_core::testing::{Fault, FaultyStore};
use windlass_core::time::Clock;

use crate::world::{Counter, Kind, World, tool};

fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({}))
}

#[test]
fn w01_a_cpu_bound_once_attempt_that_times_out_is_in_doubt() {
    let world = World::new(Kind::Memory);
    let act = tool("act", |_| std::future::pending::<ToolResult<()>>())
        .with(|spec| spec.hints.cpu_bound = true)
        .timeout(Duration::from_millis(100));
    let runtime = world.runtime([act]);
    runtime.start_unconfirmed(call("act")).unwrap();
    world.pass(Duration::from_secs(1));
    let doubts = world.run(async move { runtime.doubts().await.unwrap() });
    assert_eq!(doubts.len(), 1, "it may have happened");
}

#[test]
fn l05_a_cpu_bound_attempt_has_a_grace_too() {
    let world = World::new(Kind::Memory);
    let sim = world.sim.clone();
    let polite = Tool::with_call("polite", "", move |call: Call, _: Value| {
        let sim = sim.clone();
        async move {
            call.cancelled().await;
            sim.sleep(Duration::from_millis(20)).await;
            Ok("saved what I had")
        }
    });
    let runtime = world.runtime([polite.with(|spec| spec.hints.cpu_bound = true).timeout(Duration::from_millis(100))]);
    let outcome = world.run(async move { runtime.call(call("polite")).await.unwrap() });
    assert_eq!(outcome.value(), Some(&json!("saved what I had")));
}

/// An executor that never starts a thread.
struct NoThreads(windlass_core::testing::Sim, Arc<Mutex<Vec<futures_util::future::BoxFuture<'static, ()>>>>);

impl windlass_core::spawn::Spawn for NoThreads {
    fn spawn(&self, task: futures_util::future::BoxFuture<'static, ()>) {
        self.0.spawn(task);
    }

    fn spawn_cpu(&self, task: futures_util::future::BoxFuture<'static, ()>) {
        self.1.lock().push(task);
    }
}

#[test]
fn w01_an_attempt_that_timed_out_before_its_thread_started_never_begins() {
    let world = World::new(Kind::Memory);
    let ran = Counter::default();
    let act = {
        let ran = ran.clone();
        tool("act", move |_| {
            ran.add();
            async { Ok("ran") }
        })
    };
    let act = act.with(|spec| spec.hints.cpu_bound = true).timeout(Duration::from_secs(1));
    let mut config = world.config([act]);
    let queue: Arc<Mutex<Vec<_>>> = Arc::default();
    config.spawn = Arc::new(NoThreads(world.sim.clone(), queue.clone()));
    let runtime = Runtime::new(config);
    runtime.start_unconfirmed(call("act")).unwrap();
    world.pass(Duration::from_secs(5));
    queue.lock().drain(..).for_each(|task| world.sim.spawn(task));
    world.pass(Duration::from_secs(5));
    assert_eq!(ran.get(), 0);
}

#[test]
fn w01_no_attempt_overlaps_one_whose_store_failed_on_a_thread() {
    let mut world = World::new(Kind::Memory);
    let faulty = Arc::new(FaultyStore::new(world.store.clone()));
    world.store = faulty.clone();
    let act = tool("act", |_| async { Ok("ran") }).reconcile(|_| async { Ok(Reconciled::<&str>::DidNotHappen) });
    let act = act.with(|spec| spec.hints.cpu_bound = true).timeout(Duration::from_secs(1));
    let mut config = world.config([act]);
    let threads: Arc<Mutex<Vec<_>>> = Arc::default();
    config.spawn = Arc::new(NoThreads(world.sim.clone(), threads.clone()));
    let runtime = Runtime::new(config);
    runtime.start_unconfirmed(call("act")).unwrap();
    // The doubt cannot be recorded: the run is continued from its journal.
    faulty.fail_after(1, Fault::Refused);
    world.pass(Duration::from_secs(100));
    assert_eq!(threads.lock().len(), 1, "the thread of the first attempt is still at it");
    threads.lock().drain(..).for_each(|task| world.sim.spawn(task));
    world.pass(Duration::from_secs(1));
    assert_eq!(threads.lock().len(), 1, "now it may be attempted again");
}
