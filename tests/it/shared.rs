//! Admission that several workers share through their store: keys, the exclusivity of sessions, the limits of tools,
//! and cycles over keys and awaits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::run::{Ending, RunState, Start};
use windlass::tool::spec::KeyExpression;
use windlass::{Ctx, Effect, RunId, Tool, ToolCall, ToolError};
use windlass_core::Runtime;
use windlass_core::run::state::Blocked;
use windlass_core::testing::Sim;
use windlass_core::time::{Clock, Timestamp};

use crate::world::{Kind, World, on_every_store};

const LEASE: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_secs(1);

fn keyed(tool: Tool) -> Tool {
    tool.key(KeyExpression::parse("args.account").unwrap())
}

fn on(name: &str, account: &str) -> ToolCall {
    ToolCall::new(name, json!({"account": account}))
}

/// How many attempts overlap, and the maximum.
#[derive(Clone, Default)]
struct Overlap {
    now: Arc<AtomicU32>,
    most: Arc<AtomicU32>,
    starts: Arc<parking_lot::Mutex<Vec<Timestamp>>>,
}

impl Overlap {
    async fn during(&self, sim: &Sim, time: Duration) {
        let now = self.now.fetch_add(1, Ordering::AcqRel) + 1;
        self.most.fetch_max(now, Ordering::AcqRel);
        self.starts.lock().push(sim.now());
        sim.sleep(time).await;
        self.now.fetch_sub(1, Ordering::AcqRel);
    }

    fn most(&self) -> u32 {
        self.most.load(Ordering::Acquire)
    }
}

fn acts(name: &'static str, sim: &Sim, overlap: &Overlap) -> Tool {
    let (sim, overlap) = (sim.clone(), overlap.clone());
    Tool::new(name, "takes a moment", move |_: Value| {
        let (sim, overlap) = (sim.clone(), overlap.clone());
        async move {
            overlap.during(&sim, MOMENT).await;
            Ok(json!("done"))
        }
    })
    .effect(Effect::Idempotent)
}

/// Two workers on one store in memory.
fn workers(world: &World, tools: impl Fn() -> Vec<Tool>) -> [Runtime; 2] {
    [1, 2].map(|number| {
        let mut config = world.config(tools());
        config.lease = Some(LEASE);
        config.seed = Some(number);
        let runtime = Runtime::new(config);
        let again = runtime.clone();
        world.run(async move { again.recover().await }).unwrap();
        runtime
    })
}

fn state(world: &World, runtime: &Runtime, run: RunId) -> RunState {
    let runtime = runtime.clone();
    world.run(async move { runtime.info(run).await }).unwrap().unwrap().state
}

fn result(world: &World, runtime: &Runtime, run: RunId) -> Result<Value, ToolError> {
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).unwrap();
    outcomes[0].result.clone().map(|output| output.value.clone()).map_err(|error| (*error).clone())
}

#[test]
fn e09_a_key_is_held_by_one_call_at_a_time_across_workers_in_order_of_arrival() {
    let world = World::new(Kind::Memory);
    let overlap = Overlap::default();
    let all = workers(&world, || vec![keyed(acts("charge", &world.sim, &overlap))]);
    let runs: Vec<RunId> = (0..6).map(|n| all[n % 2].start_unconfirmed(on("charge", "ann")).unwrap()).collect();
    let other = all[0].start_unconfirmed(on("charge", "bob")).unwrap();
    world.pass(MOMENT / 2);
    assert_eq!(overlap.now.load(Ordering::Acquire), 2, "one of each account");
    world.pass(20 * MOMENT);
    for run in runs.iter().chain([&other]) {
        assert_eq!(state(&world, &all[0], *run), RunState::Finished { ending: Ending::Ok });
    }
    assert_eq!(overlap.most(), 2);
    let starts = overlap.starts.lock().clone();
    assert!(starts.windows(2).all(|pair| pair[0] <= pair[1]), "{starts:?}");
}

#[test]
fn w03_e09_a_run_that_queues_for_a_key_of_another_worker_is_suspended_and_goes_on_within_two_seconds() {
    let world = World::new(Kind::Memory);
    let hold = || {
        keyed(Tool::durable_fn("hold", "holds an account", |mut ctx: Ctx, _: Value| async move {
            ctx.sleep(60 * MOMENT).await?;
            Ok(json!("done"))
        }))
    };
    let [a, b] = workers(&world, || vec![hold()]);
    let first = a.start_unconfirmed(on("hold", "ann")).unwrap();
    world.pass(MOMENT);
    let second = b.start_unconfirmed(on("hold", "ann")).unwrap();
    world.pass(5 * MOMENT);
    for run in [first, second] {
        assert!(matches!(state(&world, &a, run), RunState::Suspended { .. }), "both cost a row");
    }
    let info = b.clone();
    let info = world.run(async move { info.info(second).await }).unwrap().unwrap();
    assert!(matches!(&info.parks[..], [park] if matches!(&park.on, Blocked::Key { .. })), "{info:?}");
    // The first ends after a minute; by then the second has slept for a minute, minus the two seconds it may take.
    world.pass(58 * MOMENT);
    assert_eq!(result(&world, &a, first).unwrap(), json!("done"));
    world.pass(62 * MOMENT);
    assert_eq!(state(&world, &b, second), RunState::Finished { ending: Ending::Ok });
}

#[test]
fn e09_a_key_outlasts_its_worker_and_goes_to_the_next_when_the_run_was_taken_over() {
    let world = World::new(Kind::Memory);
    let overlap = Overlap::default();
    let shift = || {
        keyed(Tool::durable_fn("shift", "acts twice", |mut ctx: Ctx, _: Value| async move {
            let act = || ToolCall::<Value>::new("act", json!({}));
            ctx.call(act()).await?;
            ctx.sleep(5 * MOMENT).await?;
            ctx.call(act()).await
        }))
    };
    let frozen = world.sim.beside(7);
    let mut config = world.config([shift(), acts("act", &frozen, &overlap)]);
    config.clock = Arc::new(frozen.clone());
    config.spawn = Arc::new(frozen.clone());
    (config.lease, config.seed) = (Some(LEASE), Some(9));
    let dead = Runtime::new(config);
    let recovering = dead.clone();
    frozen.block_on(async move { recovering.recover().await }).unwrap().unwrap();
    let first = dead.start_unconfirmed(on("shift", "ann")).unwrap();
    // It begins, and is never polled again.
    while frozen.step() {}
    let [a, _b] = workers(&world, || vec![shift(), acts("act", &world.sim, &overlap)]);
    let second = a.start_unconfirmed(on("shift", "ann")).unwrap();
    world.pass(LEASE / 2);
    assert!(matches!(state(&world, &a, second), RunState::Suspended { .. }), "the key is the first one's");
    world.pass(LEASE + 60 * MOMENT);
    for run in [first, second] {
        assert_eq!(state(&world, &a, run), RunState::Finished { ending: Ending::Ok });
    }
}

#[test]
fn e09_attempts_of_a_session_exclude_one_another_across_workers() {
    let world = World::new(Kind::Memory);
    let overlap = Overlap::default();
    let all = workers(&world, || vec![acts("write", &world.sim, &overlap)]);
    let started: Vec<RunId> = (0..4)
        .map(|n| {
            let runtime = all[n % 2].clone();
            let call = ToolCall::new("write", json!({}));
            world.run(async move { runtime.start_with(call, Start::session("s")).await }).unwrap()
        })
        .collect();
    world.pass(20 * MOMENT);
    for run in started {
        assert_eq!(state(&world, &all[0], run), RunState::Finished { ending: Ending::Ok });
    }
    assert_eq!(overlap.most(), 1);
}

#[test]
fn e09_the_limits_of_a_tool_count_the_attempts_of_all_workers() {
    let world = World::new(Kind::Memory);
    let overlap = Overlap::default();
    let limited = || {
        acts("fetch", &world.sim, &overlap).with(|spec| {
            spec.limits.in_flight = Some(2);
            spec.limits.per_second = Some(4);
        })
    };
    let all = workers(&world, || vec![limited()]);
    let runs: Vec<RunId> =
        (0..8).map(|n| all[n % 2].start_unconfirmed(ToolCall::new("fetch", json!({}))).unwrap()).collect();
    world.pass(30 * MOMENT);
    for run in runs {
        assert_eq!(state(&world, &all[0], run), RunState::Finished { ending: Ending::Ok });
    }
    assert_eq!(overlap.most(), 2, "two at once, on whichever worker");
    let starts = overlap.starts.lock().clone();
    let spaced = starts.windows(2).all(|pair| pair[1].since(pair[0]) >= MOMENT / 4);
    assert!(spaced, "four begin per second: {starts:?}");
}

#[test]
fn e09_waiting_for_a_run_that_waits_for_a_key_of_the_body_is_refused_by_name() {
    let tools = || {
        let child = Tool::durable_fn("child", "needs the account", |_: Ctx, _: Value| async { Ok(json!("had it")) });
        let parent =
            Tool::durable_fn("parent", "waits for its child under its key", |mut ctx: Ctx, _: Value| async move {
                let child = ctx.spawn(on("child", "ann")).await?;
                ctx.sleep(5 * MOMENT).await?;
                let refused = ctx.join::<Value>(&child).await.unwrap_err();
                Ok(json!(refused.to_string()))
            });
        let early = Tool::durable_fn("early", "waits before its child asks", |mut ctx: Ctx, _: Value| async move {
            let child = ctx.spawn(on("child", "ann")).await?;
            match ctx.join::<Value>(&child).await {
                Ok(value) => Ok(value),
                Err(error) => Ok(json!(error.to_string())),
            }
        });
        vec![keyed(child), keyed(parent), keyed(early)]
    };
    let check = |world: &World, runtime: &Runtime| {
        for name in ["parent", "early"] {
            let run = runtime.start_unconfirmed(on(name, "ann")).unwrap();
            let sentence = result(world, runtime, run).unwrap().to_string();
            assert!(sentence.contains("neither could ever continue"), "{name}: {sentence}");
            assert!(sentence.contains("ann"), "{name} names the key: {sentence}");
            world.pass(10 * MOMENT);
        }
    };
    on_every_store(|world| {
        let runtime = world.runtime(tools());
        check(&world, &runtime);
    });
    let world = World::new(Kind::Memory);
    let [a, _b] = workers(&world, tools);
    check(&world, &a);
}
