//! The wall clock was set back between two processes: nothing is lost, nothing is stuck, nothing is early. The order
//! comes from sequences and epochs, never from the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use windlass::inbox::Resolution;
use windlass::run::{Filter, RunState};
use windlass::{Ctx, RunId, Tool, ToolCall};
use windlass_core::Runtime;
use windlass_core::testing::Sim;
use windlass_core::time::{Clock, Timestamp};

use crate::world::{Kind, World};

const HOUR: Duration = Duration::from_secs(3_600);
const MOMENT: Duration = Duration::from_secs(1);

fn tools() -> [Tool; 3] {
    [
        Tool::durable_fn("wait", "waits for an answer", |mut ctx: Ctx, _: Value| async move {
            let word: String = ctx.wait("word").within(3 * HOUR).await?;
            ctx.sleep(10 * MOMENT).await?;
            Ok(json!(word))
        }),
        Tool::durable_fn("nap", "sleeps", |mut ctx: Ctx, _: Value| async move {
            ctx.sleep(10 * MOMENT).await?;
            Ok(json!("awake"))
        }),
        Tool::durable_fn("step", "makes steps", |mut ctx: Ctx, _: Value| async move {
            let one: u32 = ctx.step("one", |_| async { Ok(1) }).await?;
            ctx.sleep(MOMENT / 10).await?;
            let two: u32 = ctx.step("two", |_| async { Ok(2) }).await?;
            Ok(json!([one, two]))
        }),
    ]
}

fn start(runtime: &Runtime, name: &str) -> RunId {
    runtime.start_unconfirmed(ToolCall::new(name, json!({}))).expect("it starts")
}

fn end(world: &World, runtime: &Runtime, run: RunId) -> Value {
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).expect("the run ends");
    outcomes[0].result.as_ref().expect("it went well").value.clone()
}

fn is_suspended(world: &World, runtime: &Runtime, run: RunId) -> bool {
    let runtime = runtime.clone();
    let info = world.run(async move { runtime.info(run).await }).expect("the store answers").expect("the run is there");
    matches!(info.state, RunState::Suspended { .. })
}

#[test]
fn w03_w08_a_clock_that_went_back_between_two_openings_is_survived() {
    let world = World::new(Kind::Sqlite);
    world.pass(HOUR);
    let runtime = world.runtime(tools());
    let (waits, naps) = (start(&runtime, "wait"), start(&runtime, "nap"));
    world.pass(MOMENT);
    assert!(is_suspended(&world, &runtime, waits) && is_suspended(&world, &runtime, naps));
    let steps = start(&runtime, "step");
    world.pass(MOMENT / 20);
    drop(runtime);

    // The next process starts with the time at which the first one started: an hour earlier.
    let world = world.restart();
    let runtime = world.runtime(tools());
    let again = runtime.clone();
    world.run(async move { again.recover().await }).expect("it recovers");
    // New work and answers proceed at once, by the new clock.
    let fresh = start(&runtime, "step");
    assert_eq!(end(&world, &runtime, fresh), json!([1, 2]));
    let again = runtime.clone();
    let inbox = world.run(async move { again.inbox().await }).expect("the store answers");
    let key = inbox[0].key.clone().expect("a wait has a key");
    let (again, answer) = (runtime.clone(), Resolution::Ok { value: json!("yes") });
    world.run(async move { again.resolve(&key, answer).await }).expect("it is taken");
    let before = world.sim.now();
    assert_eq!(end(&world, &runtime, waits), json!("yes"));
    assert!(world.sim.now().since(before) < 20 * MOMENT, "it slept by the clock of now");
    // A sleep ends at its time: never earlier, and it does end.
    assert!(is_suspended(&world, &runtime, naps));
    assert_eq!(end(&world, &runtime, naps), json!("awake"));
    assert_eq!(end(&world, &runtime, steps), json!([1, 2]));
    let slept = world.sim.now().since(before);
    assert!(slept > HOUR - 20 * MOMENT && slept < HOUR + 20 * MOMENT, "{slept:?}");
    let again = runtime.clone();
    let left = world.run(async move { again.list(Filter::running(), None, 9).await }).expect("the store answers");
    assert!(left.is_empty(), "{left:?}");
}

/// A wall clock that can be set, like that of a machine that was asleep. The monotonic time is not affected.
#[derive(Clone)]
struct Set {
    sim: Sim,
    ahead: Arc<AtomicU64>,
}

impl Clock for Set {
    fn now(&self) -> Timestamp {
        self.sim.now() + Duration::from_secs(self.ahead.load(Ordering::Relaxed))
    }

    fn ticks(&self) -> u64 {
        self.sim.ticks()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.sim.sleep(duration)
    }
}

#[test]
fn w03_an_overdue_run_continues_within_seconds_of_a_clock_jump() {
    let world = World::new(Kind::Memory);
    let ahead = Arc::new(AtomicU64::new(0));
    let mut config = world.config(tools());
    config.clock = Arc::new(Set { sim: world.sim.clone(), ahead: ahead.clone() });
    let runtime = Runtime::new(config);
    let waits = start(&runtime, "wait");
    world.pass(MOMENT);
    assert!(is_suspended(&world, &runtime, waits));
    ahead.store(4 * HOUR.as_secs(), Ordering::Relaxed);
    let before = world.sim.now();
    let again = runtime.clone();
    let outcomes = world.run(async move { again.attach(waits).await }).expect("the run ends");
    assert_eq!(outcomes[0].result.as_ref().expect_err("nothing came").kind(), "timed_out");
    let late = world.sim.now().since(before);
    assert!(late <= 6 * MOMENT, "{late:?}");
}

/// A clock that advances with every reading.
struct Moving(Sim, AtomicU64);

impl Clock for Moving {
    fn now(&self) -> Timestamp {
        self.0.now() + Duration::from_nanos(self.ticks() - self.0.ticks())
    }

    fn ticks(&self) -> u64 {
        self.0.ticks() + self.1.fetch_add(1_000_000, Ordering::Relaxed)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
}

#[test]
fn l23_the_records_of_a_started_call_are_in_the_order_of_their_times() {
    let world = World::new(Kind::Memory);
    let plain = || Tool::new("once", "", |_: Value| async { Ok(json!(1)) });
    let prepared = plain().with(|spec| (spec.id, spec.name) = ("prepared".into(), "prepared".into()));
    let prepared = prepared.prepare(|_| async { Ok(windlass_core::call::Preparation::freeze("frozen")) });
    let mut config = world.config([plain(), prepared]);
    config.clock = Arc::new(Moving(world.sim.clone(), AtomicU64::new(0)));
    let runtime = Runtime::new(config);
    for name in ["once", "prepared"] {
        let run = start(&runtime, name);
        assert_eq!(end(&world, &runtime, run), json!(1));
        let reading = runtime.clone();
        let journal = world.run(async move { reading.journal(run).await }).expect("it is there");
        let times: Vec<(Timestamp, String)> =
            journal.iter().map(|record| (record.at, format!("{:?}", record.event))).collect();
        assert!(times.len() >= 3 && times.is_sorted_by_key(|(at, _)| *at), "{times:#?}");
    }
}

#[test]
fn w03_a_live_run_continues_within_seconds_of_a_clock_jump() {
    let bounded = Tool::durable_fn("bounded", "", |mut ctx: Ctx, _: Value| async move {
        ctx.step("hangs", |_| std::future::pending::<windlass::ToolResult<Value>>()).await
    });
    let world = World::new(Kind::Memory);
    let ahead = Arc::new(AtomicU64::new(0));
    let mut config = world.config(tools().into_iter().chain([bounded]));
    config.clock = Arc::new(Set { sim: world.sim.clone(), ahead: ahead.clone() });
    config.suspend_after = 10 * HOUR;
    let runtime = Runtime::new(config);
    let bounded = ToolCall::new("bounded", json!({})).deadline(3 * HOUR);
    let runs = [start(&runtime, "wait"), runtime.start_unconfirmed(bounded).expect("it starts")];
    world.pass(MOMENT);
    assert!(!runs.iter().any(|run| is_suspended(&world, &runtime, *run)));
    ahead.store(4 * HOUR.as_secs(), Ordering::Relaxed);
    let before = world.sim.now();
    for run in runs {
        let again = runtime.clone();
        let outcomes = world.run(async move { again.attach(run).await }).expect("the run ends");
        assert_eq!(outcomes[0].result.as_ref().expect_err("it is too late").kind(), "timed_out");
        let late = world.sim.now().since(before);
        assert!(late <= 6 * MOMENT, "{late:?}");
    }
}
