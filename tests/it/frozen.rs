//! Two workers on one store, of which one stands still for longer than its lease and goes on, or is lost.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::Settlement;
use windlass::run::record::{Event, Record};
use windlass::run::{Hold, RunState};
use windlass::store::{MemoryStore, Queries, Store};
use windlass::{Ctx, Effect, RunId, Tool, ToolCall};
use windlass_core::testing::Sim;
use windlass_core::time::Clock;
use windlass_core::{Config, Runtime};

use crate::world::{Counter, on_every_store, tool};

const LEASE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

/// A worker with an executor of its own, on a clock and a store that it shares with others.
struct Worker {
    sim: Sim,
    runtime: Runtime,
}

impl Worker {
    fn new(store: &MemoryStore, sim: Sim, number: u64, tools: Vec<Tool>) -> Self {
        let shared = Arc::new(sim.clone());
        let mut config = Config::new(Arc::new(store.clone()), shared.clone(), shared);
        config.lease = Some(LEASE);
        config.seed = Some(number);
        tools.into_iter().for_each(|tool| drop(config.toolbox.insert(tool).expect("the tool is sound")));
        let runtime = Runtime::new(config);
        let recovering = runtime.clone();
        sim.block_on(async move { recovering.recover().await }).expect("it comes to an end").expect("it recovers");
        Self { sim, runtime }
    }

    /// Lets this worker alone run for some time. The others stand still, but their clock goes on.
    fn alone_for(&self, time: Duration) {
        let sim = self.sim.clone();
        self.sim.block_on(async move { sim.sleep(time).await }).expect("time passes");
    }

    /// Goes on after it stood still.
    fn thaw(&self) {
        self.sim.fire_due_timers();
        while self.sim.step() {}
    }

    fn info(&self, run: RunId) -> windlass::run::RunInfo {
        let runtime = self.runtime.clone();
        let info = self.sim.block_on(async move { runtime.info(run).await });
        info.expect("it ends").expect("the store answers").expect("the run is there")
    }
}

/// Both workers, with the tools that each of them gets.
fn workers(tools: impl Fn(&Sim) -> Vec<Tool>) -> (Worker, Worker, MemoryStore) {
    let store = MemoryStore::new();
    let first = Sim::new(1);
    store.use_clock(Arc::new(first.clone()));
    let second = first.beside(2);
    let a = Worker::new(&store, first.clone(), 1, tools(&first));
    let b = Worker::new(&store, second.clone(), 2, tools(&second));
    (a, b, store)
}

fn journal(store: &MemoryStore, run: RunId) -> Vec<Record> {
    windlass_core::testing::block_on(store.journal(run, 0)).expect("the journal")
}

/// Acts, looks for a while, acts again. Counts what it does on each worker.
fn chain(sim: &Sim, acted: &Counter, looked: &Counter) -> Tool {
    let (sim, acted, looked) = (sim.clone(), acted.clone(), looked.clone());
    let body = move |mut ctx: Ctx, _: Value| {
        let (sim, acted, looked) = (sim.clone(), acted.clone(), looked.clone());
        async move {
            ctx.step("act", |_| async { Ok(acted.add()) }).await?;
            ctx.step("look", |_| {
                looked.add();
                let sim = sim.clone();
                async move {
                    sim.sleep(20 * SECOND).await;
                    Ok(())
                }
            })
            .readonly()
            .await?;
            ctx.emit("stage", &"looked")?;
            ctx.step("act again", |_| async { Ok(acted.add()) }).await?;
            Ok(json!("done"))
        }
    };
    Tool::durable_fn("chain", "three steps", body).event::<String>("stage")
}

#[test]
fn e18_e19_a_worker_that_goes_on_after_its_lease_writes_nothing_and_stops() {
    let (acted, looked) = (Counter::default(), Counter::default());
    let (a, b, store) = workers(|sim| vec![chain(sim, &acted, &looked)]);
    let run = a.runtime.start_unconfirmed(ToolCall::new("chain", json!({}))).unwrap();
    a.alone_for(SECOND);
    assert_eq!((acted.get(), looked.get()), (1, 1));
    // `a` stands still in the middle of the second step.
    b.alone_for(2 * LEASE);
    let done = journal(&store, run);
    assert_eq!((acted.get(), looked.get()), (2, 2), "taken over; what is safe to repeat is repeated, and nothing else");
    assert!(matches!(b.info(run).state, RunState::Finished { .. }));
    a.thaw();
    a.alone_for(2 * LEASE);
    assert_eq!((acted.get(), looked.get()), (2, 2), "the superseded worker did nothing more");
    let after = journal(&store, run);
    assert_eq!(after.len(), done.len(), "and wrote nothing");
    assert_eq!(after.iter().filter(|record| matches!(record.event, Event::Recovered)).count(), 1);
    // It has a new lease, and takes new work.
    let next = a.runtime.start_unconfirmed(ToolCall::new("chain", json!({}))).unwrap();
    a.alone_for(LEASE);
    assert!(matches!(a.info(next).state, RunState::Finished { .. }));
}

#[test]
fn e18_a_worker_that_renews_keeps_its_run_however_long_it_takes_and_hears_a_cancellation_within_two_seconds() {
    let started = Counter::default();
    let (a, b, store) = workers(|sim| {
        let (sim, started) = (sim.clone(), started.clone());
        let body = move |_: Value| {
            started.add();
            let sim = sim.clone();
            async move {
                sim.sleep(20 * LEASE).await;
                Ok(json!(1))
            }
        };
        vec![Tool::new("long", "takes long", body).effect(Effect::Idempotent).timeout(30 * LEASE)]
    });
    let run = a.runtime.start_unconfirmed(ToolCall::new("long", json!({}))).unwrap();
    // Both workers run; a second at a time, so that neither stands still for its lease.
    let both_for = |seconds: u32| {
        for _ in 0..seconds {
            a.alone_for(SECOND / 2);
            b.sim.fire_due_timers();
            b.alone_for(SECOND / 2);
            a.sim.fire_due_timers();
            while a.sim.step() {}
        }
    };
    both_for(10 * 30);
    let info = b.info(run);
    assert_eq!((info.state, info.epoch, started.get()), (RunState::Running, 1, 1), "its owner renews its lease");
    // The request arrives at the other worker.
    let cancelling = b.runtime.clone();
    b.sim.block_on(async move { cancelling.cancel(run, "ada", "enough").await }).unwrap().unwrap();
    both_for(2);
    let ended = journal(&store, run);
    assert!(matches!(b.info(run).state, RunState::Finished { .. }), "{ended:?}");
    let cancelled =
        ended.iter().find(|record| matches!(record.event, Event::Cancelled { .. })).expect("it is recorded");
    let end = ended.last().expect("an end").at;
    assert!(end.since(cancelled.at) <= 2 * SECOND, "{end:?}");
    assert_eq!(b.info(run).epoch, 1, "its owner ended it");
}

/// Counts its attempts, and never ends by itself.
fn hangs(effect: Effect, attempts: &Counter) -> Tool {
    let attempts = attempts.clone();
    let body = move |_: Value| {
        attempts.add();
        std::future::pending::<windlass::ToolResult<Value>>()
    };
    tool("act", body).effect(effect)
}

#[test]
fn e19_after_a_loss_the_stricter_of_the_recorded_and_the_live_effect_decides() {
    // What was recorded, what the live tool says, and whether the attempt is repeated.
    let cases = [
        (Effect::Readonly, Effect::Readonly, true),
        (Effect::Idempotent, Effect::Idempotent, true),
        (Effect::Readonly, Effect::Idempotent, true),
        (Effect::Idempotent, Effect::Readonly, true),
        (Effect::Once, Effect::Once, false),
        (Effect::Once, Effect::Idempotent, false),
        (Effect::Once, Effect::Readonly, false),
        (Effect::Idempotent, Effect::Once, false),
        (Effect::Readonly, Effect::Once, false),
    ];
    for (recorded, live, repeats) in cases {
        on_every_store(|world| {
            let attempts = Counter::default();
            let runtime = world.runtime([hangs(recorded, &attempts)]);
            let run = runtime.start_unconfirmed(ToolCall::new("act", json!({}))).unwrap();
            world.pass(SECOND);
            assert_eq!(attempts.get(), 1);
            drop(runtime);
            let world = world.restart();
            let runtime = world.runtime([hangs(live, &attempts)]);
            let recovering = runtime.clone();
            world.run(async move { recovering.recover().await }).unwrap();
            world.pass(SECOND);
            let what = format!("recorded {recorded:?}, now {live:?}");
            let asking = runtime.clone();
            let doubts = world.run(async move { asking.doubts().await }).unwrap();
            assert_eq!((attempts.get(), doubts.len()), if repeats { (2, 0) } else { (1, 1) }, "{what}");
            if let Some((of, doubt)) = doubts.into_iter().next() {
                let settling = runtime.clone();
                let settled =
                    async move { settling.settle(of, &doubt.path, Settlement::GiveUp, "ada", "unclear").await };
                world.run(settled).unwrap();
                let outcome = world.run(async move { runtime.attach(run).await }).unwrap().remove(0);
                assert_eq!(outcome.error().unwrap().kind(), "in_doubt", "{what}");
            }
        });
    }
}

#[test]
fn e19_a_call_that_no_worker_began_is_made_under_the_live_effect() {
    on_every_store(|world| {
        let attempts = Counter::default();
        let mut config = world.config([hangs(Effect::Idempotent, &attempts)]);
        config.drives = windlass_core::Drives::Nothing;
        let runtime = Runtime::new(config);
        let starting = runtime.clone();
        let start = async move { starting.start_call(ToolCall::new("act", json!({}))).await };
        world.run(start).unwrap();
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([hangs(Effect::Once, &attempts)]);
        let recovering = runtime.clone();
        world.run(async move { recovering.recover().await }).unwrap();
        world.pass(SECOND);
        let doubts = world.run(async move { runtime.doubts().await }).unwrap();
        assert_eq!((attempts.get(), doubts.len()), (1, 0), "nothing is in doubt about it");
    });
}

#[test]
fn e19_the_number_of_losses_is_bounded_and_the_run_is_held_with_its_path() {
    on_every_store(|world| {
        let attempts = Counter::default();
        let mut world = world;
        let runtime = world.runtime([hangs(Effect::Idempotent, &attempts)]);
        let run = runtime.start_unconfirmed(ToolCall::new("act", json!({}))).unwrap();
        world.pass(SECOND);
        drop(runtime);
        for _ in 0..6 {
            world = world.restart();
            let runtime = world.runtime([hangs(Effect::Idempotent, &attempts)]);
            let recovering = runtime.clone();
            world.run(async move { recovering.recover().await }).unwrap();
            world.pass(SECOND);
        }
        let runtime = world.runtime([]);
        let info = world.run(async move { runtime.info(run).await }).unwrap().unwrap();
        assert!(matches!(info.state, RunState::Held { hold: Hold::CrashLoop { .. } }), "{:?}", info.state);
        let most = windlass::limits::CRASH_LOOP + 1;
        assert!(attempts.get() <= most, "{} attempts", attempts.get());
    });
}
