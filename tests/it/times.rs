//! Times: how long a call took from its request to its outcome, and how much of that in attempts, whether its run
//! stayed in memory, was suspended, or was continued by another process.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::{Blocked, Resolution, Settlement};
use windlass::run::Times;
use windlass::run::record::Event;
use windlass::tool::Reply;
use windlass::tool::spec::{Approval, Retry};
use windlass::{Call, Ctx, Effect, RunId, Tool, ToolCall, ToolError};
use windlass_core::Runtime;
use windlass_core::time::Clock;

use crate::world::{Kind, World, on_every_store, tool};

const LOOK: Duration = Duration::from_secs(2);
const WORK: Duration = Duration::from_millis(30);
/// The time of a commit here, and the rounding of instants to microseconds.
const SLACK: Duration = Duration::from_millis(5);

/// Idle times before a run is suspended: none, and longer than any test.
const SUSPENSIONS: [Duration; 2] = [Duration::ZERO, Duration::from_secs(3_600)];

fn works(name: &str, world: &World) -> Tool {
    let sim = world.sim.clone();
    tool(name, move |_| {
        let sim = sim.clone();
        async move {
            sim.sleep(WORK).await;
            Ok(json!("done"))
        }
    })
}

fn asks_a_person(tool: Tool) -> Tool {
    tool.with(|spec| spec.guards.approval = Approval::Always)
}

/// On every store, with a runtime that suspends at once and one that does not.
fn on_every_way(test: impl Fn(World, Duration)) {
    for suspend_after in SUSPENSIONS {
        on_every_store(|world| test(world, suspend_after));
    }
}

fn runtime(world: &World, suspend_after: Duration, tools: impl IntoIterator<Item = Tool>) -> Runtime {
    let mut config = world.config(tools);
    config.suspend_after = suspend_after;
    Runtime::new(config)
}

/// Starts a run and lets some time pass.
fn start(world: &World, runtime: &Runtime, name: &str) -> RunId {
    let run = runtime.start_unconfirmed(ToolCall::new(name, json!({}))).unwrap();
    world.pass(LOOK);
    run
}

/// Handles the only item that waits.
fn answer<F>(world: &World, runtime: &Runtime, act: impl FnOnce(Runtime) -> F)
where
    F: Future<Output = windlass::Result<()>> + Send + 'static,
{
    world.run(act(runtime.clone())).unwrap();
}

async fn approve(runtime: Runtime) -> windlass::Result<()> {
    let item = runtime.inbox().await?.remove(0);
    let Blocked::Approval { digest, .. } = &item.park.on else { panic!("{item:?}") };
    runtime.decide(item.run, &item.park.path, digest, true, ("ada", "fine")).await
}

async fn settle(runtime: Runtime, settlement: Settlement) -> windlass::Result<()> {
    let (run, doubt) = runtime.doubts().await?.remove(0);
    runtime.settle(run, &doubt.path, settlement, "ada", "looked it up").await
}

/// The times of a run's outcome, which must equal the recorded ones.
fn times(world: &World, runtime: &Runtime, run: RunId) -> Times {
    let again = runtime.clone();
    let (outcomes, journal) =
        world.run(async move { (again.attach(run).await.unwrap(), again.journal(run).await.unwrap()) });
    let recorded = journal.iter().rev().find_map(|record| match &record.event {
        Event::Finished(finished) if record.path.is_root() => Some(finished.times),
        _ => None,
    });
    let times = outcomes[0].times;
    assert_eq!(recorded, Some(times));
    assert_eq!(times.queued + times.running, times.total, "{times:?}");
    times
}

#[track_caller]
fn near(nanos: u64, expected: Duration) {
    let found = Duration::from_nanos(nanos);
    assert!(found >= expected && found <= expected + SLACK, "{found:?}, not {expected:?}");
}

#[test]
fn b06_b09_the_time_a_person_takes_to_approve_is_queue_time() {
    on_every_way(|world, suspend_after| {
        for durable in [false, true] {
            let name = if durable { "body" } else { "atom" };
            let body = Tool::durable_fn("body", "works", |mut ctx: Ctx, _: Value| async move {
                ctx.call_json("work", json!({})).await
            });
            let [atom, body] = [works("atom", &world), body].map(asks_a_person);
            let tools = [works("work", &world), atom, body];
            let runtime = runtime(&world, suspend_after, tools);
            let run = start(&world, &runtime, name);
            answer(&world, &runtime, approve);
            let times = times(&world, &runtime, run);
            near(times.running, WORK);
            near(times.total, LOOK + WORK);
        }
    });
}

#[test]
fn b09_the_time_until_a_call_expires_unapproved_is_queue_time() {
    on_every_way(|world, suspend_after| {
        let runtime = runtime(&world, suspend_after, [asks_a_person(works("atom", &world))]);
        let run = start(&world, &runtime, "atom");
        answer(&world, &runtime, |runtime| async move {
            let item = runtime.inbox().await?.remove(0);
            let Blocked::Approval { digest, .. } = &item.park.on else { panic!("{item:?}") };
            runtime.decide(item.run, &item.park.path, digest, false, ("ada", "no")).await
        });
        let times = times(&world, &runtime, run);
        near(times.total, LOOK);
        near(times.running, Duration::ZERO);
    });
}

#[test]
fn b09_the_time_until_a_connection_is_there_is_queue_time() {
    on_every_way(|world, suspend_after| {
        let mail = works("mail", &world).with(|spec| spec.guards.connection = Some("post".into()));
        let runtime = runtime(&world, suspend_after, [mail]);
        let run = start(&world, &runtime, "mail");
        answer(&world, &runtime, |runtime| async move { runtime.connect("post", None).await.map(drop) });
        let times = times(&world, &runtime, run);
        near(times.running, WORK);
        near(times.total, LOOK + WORK);
    });
}

#[test]
fn b09_the_time_until_an_answer_comes_is_queue_time() {
    on_every_way(|world, suspend_after| {
        let sim = world.sim.clone();
        let later = Tool::with_call("asks", "answers later", move |_: Call, _: Value| {
            let sim = sim.clone();
            async move {
                sim.sleep(WORK).await;
                Ok(Reply::<Value>::later())
            }
        });
        let runtime = runtime(&world, suspend_after, [later]);
        let run = start(&world, &runtime, "asks");
        answer(&world, &runtime, |runtime| async move {
            let key = runtime.inbox().await?.remove(0).key.unwrap();
            runtime.resolve(&key, Resolution::Ok { value: json!("here") }).await.map(drop)
        });
        let times = times(&world, &runtime, run);
        near(times.running, WORK);
        near(times.total, LOOK);
    });
}

/// Never returns from its first attempt.
fn hangs_once(world: &World) -> Tool {
    let sim = world.sim.clone();
    let body = move |call: Call, _: Value| {
        let sim = sim.clone();
        async move {
            if call.number() == 1 {
                std::future::pending::<()>().await;
            }
            sim.sleep(WORK).await;
            Ok(json!("done"))
        }
    };
    Tool::with_call("act", "acts", body).timeout(Duration::from_millis(100))
}

#[test]
fn b06_b09_the_time_in_doubt_is_queue_time_and_the_attempts_are_counted() {
    // The timeout, and the grace after it.
    let lost = Duration::from_millis(150);
    let happened = || Settlement::Happened(Ok(Arc::new(json!("it did").into())));
    on_every_way(|world, suspend_after| {
        let runtime = runtime(&world, suspend_after, [hangs_once(&world)]);
        let run = start(&world, &runtime, "act");
        answer(&world, &runtime, |runtime| settle(runtime, happened()));
        let known = times(&world, &runtime, run);
        near(known.running, lost);
        near(known.total, LOOK);
        let run = start(&world, &runtime, "act");
        answer(&world, &runtime, |runtime| settle(runtime, Settlement::DidNotHappen));
        let repeated = times(&world, &runtime, run);
        near(repeated.running, lost + WORK);
        near(repeated.total, LOOK + WORK);
    });
}

#[test]
fn b09_retry_delays_are_queue_time_also_across_a_suspension() {
    on_every_way(|world, suspend_after| {
        let sim = world.sim.clone();
        let flaky = Tool::with_call("flaky", "fails first", move |call: Call, _: Value| {
            let sim = sim.clone();
            async move {
                sim.sleep(WORK).await;
                match call.number() {
                    1 => Err(ToolError::retry_after("busy", LOOK)),
                    _ => Ok(json!("done")),
                }
            }
        });
        let runtime = runtime(&world, suspend_after, [flaky.retry(Retry::attempts(2))]);
        let run = runtime.start_unconfirmed(ToolCall::new("flaky", json!({}))).unwrap();
        let times = times(&world, &runtime, run);
        near(times.running, 2 * WORK);
        near(times.total, LOOK + 2 * WORK);
    });
}

#[test]
fn b09_a_call_that_its_batch_holds_back_queues_meanwhile() {
    on_every_store(|world| {
        let runtime = world.runtime([works("write", &world)]);
        let calls = vec![ToolCall::new("write", json!({})); 2];
        let again = runtime.clone();
        let outcomes = world.run(async move { again.batch(calls, false).await.unwrap() });
        near(outcomes[0].times.total, WORK);
        near(outcomes[1].times.running, WORK);
        near(outcomes[1].times.queued, WORK);
        let run = outcomes[0].run;
        let journal = world.run(async move { runtime.journal(run).await.unwrap() });
        let Some(Event::Finished(batch)) = journal.last().map(|record| &record.event) else { panic!("{journal:?}") };
        near(batch.times.total, 2 * WORK);
    });
}

/// Everything but the store dies while a person is asked; a later process continues when its clock says `later`.
fn after_a_crash(kind: Kind, tools: impl Fn(&World) -> Tool, later: Duration, act: fn(Runtime) -> Acting) -> Times {
    let world = World::new(kind);
    world.pass(LOOK);
    let first = runtime(&world, SUSPENSIONS[1], [tools(&world)]);
    let run = start(&world, &first, "act");
    drop(first);
    // Its clock starts with the same time as the first one's.
    let world = world.restart();
    world.pass(later);
    let second = runtime(&world, SUSPENSIONS[0], [tools(&world)]);
    let recovering = second.clone();
    world.run(async move { recovering.recover().await.unwrap() });
    world.pass(SLACK);
    answer(&world, &second, act);
    times(&world, &second, run)
}

type Acting = std::pin::Pin<Box<dyn Future<Output = windlass::Result<()>> + Send>>;

fn act(world: &World) -> Tool {
    asks_a_person(works("act", world))
}

#[test]
fn b09_time_counts_from_the_request_also_in_another_process() {
    for kind in [Kind::Memory, Kind::Sqlite] {
        let times = after_a_crash(kind, act, 10 * LOOK, |runtime| Box::pin(approve(runtime)));
        near(times.running, WORK);
        near(times.total, 9 * LOOK + WORK + SLACK);
        // How long the attempt took that died with its process is unknown.
        let happened = |runtime| -> Acting {
            Box::pin(settle(runtime, Settlement::Happened(Ok(Arc::new(json!("it did").into())))))
        };
        let hangs = |world: &World| hangs_once(world).timeout(Duration::from_secs(60));
        let times = after_a_crash(kind, hangs, 10 * LOOK, happened);
        assert_eq!(times.running, 0);
        near(times.total, 9 * LOOK + SLACK);
    }
}

#[test]
fn b09_a_clock_that_was_set_back_makes_no_time_negative() {
    for kind in [Kind::Memory, Kind::Sqlite] {
        let times = after_a_crash(kind, act, Duration::ZERO, |runtime| Box::pin(approve(runtime)));
        near(times.running, WORK);
        near(times.total, WORK);
    }
}

#[test]
fn b09_a_run_that_is_finished_by_hand_has_its_real_times() {
    on_every_store(|world| {
        let gone = Tool::durable_fn("gone", "waits outside", |_: Ctx, _: Value| async {
            std::future::pending::<()>().await;
            Ok(json!(null))
        });
        let runtime = world.runtime([gone.effect(Effect::Once)]);
        let run = start(&world, &runtime, "gone");
        let again = runtime.clone();
        let outcome = world.run(async move {
            again.finish_by_hand(run, Ok(json!("done").into()), "ada", "by hand").await.unwrap();
            again.attach(run).await.unwrap().remove(0)
        });
        near(outcome.times.total, LOOK);
    });
}
