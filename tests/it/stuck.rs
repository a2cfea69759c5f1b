//! Runs that are not driven any more and answers that are not consumed: every lost wake-up that was found.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::ctx::First2;
use windlass::inbox::{Blocked, ReplyResult, Resolution};
use windlass::run::{Filter, RunState, Start, Turn, Work};
use windlass::store::MemoryStore;
use windlass::tool::spec::{Approval, Concurrency, KeyExpression};
use windlass::tool::{Preparation, Reply};
use windlass::{Call, Ctx, Effect, Outcome, Output, RunId, Tool, ToolCall, ToolError, ToolResult, park};
use windlass_core::Runtime;
use windlass_core::spawn::Spawn;
use windlass_core::testing::{Watched, block_on};
use windlass_core::time::Clock;

use crate::shaky::Shaky;
use crate::world::{Counter, Kind, World, on_every_store, tool};

const HOUR: Duration = Duration::from_secs(3_600);
const MOMENT: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({}))
}

/// A key that makes a durable body stay in memory.
fn k() -> KeyExpression {
    KeyExpression::parse("'k'").expect("a key")
}

fn ok(value: Value) -> Resolution {
    Resolution::Ok { value }
}

/// A runtime on a store that can be made to fail.
fn shaky(world: &World, tools: impl IntoIterator<Item = Tool>, lease: Option<Duration>) -> (Runtime, Arc<Shaky>) {
    let store = Shaky::new(world.store.clone());
    let mut config = world.config(tools);
    config.store = store.clone();
    config.lease = lease;
    (Runtime::new(config), store)
}

fn start(world: &World, runtime: &Runtime, name: &str) -> RunId {
    let run = runtime.start_unconfirmed(call(name)).expect("it starts");
    world.pass(MOMENT);
    run
}

/// The state of the run after two hours.
fn state(world: &World, runtime: &Runtime, run: RunId) -> RunState {
    world.pass(2 * HOUR);
    let runtime = runtime.clone();
    world.run(async move { runtime.info(run).await }).expect("the store answers").expect("the run is there").state
}

fn ends(world: &World, runtime: &Runtime, run: RunId) -> ToolResult<Value> {
    let state = state(world, runtime, run);
    assert!(matches!(state, RunState::Finished { .. }), "{state:?}");
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).expect("the run has ended");
    outcomes[0].result.clone().map(|output| output.value.clone()).map_err(|error| (*error).clone())
}

fn keys(world: &World, runtime: &Runtime) -> Vec<String> {
    let runtime = runtime.clone();
    let inbox = world.run(async move { runtime.inbox().await }).expect("the store answers");
    inbox.into_iter().filter_map(|item| item.key).collect()
}

fn resolve(world: &World, runtime: &Runtime, key: &str, value: Value) -> windlass::Result<ReplyResult> {
    let (runtime, key) = (runtime.clone(), key.to_owned());
    world.run(async move { runtime.resolve(&key, ok(value)).await })
}

/// Waits for an answer.
fn waiter() -> Tool {
    Tool::durable_fn("waiter", "waits", |mut ctx: Ctx, _: Value| async move { ctx.wait::<Value>("word").await })
}

/// An atomic tool whose answer comes later.
fn pending() -> Tool {
    Tool::new("pending", "answers later", |_: Value| async { Ok(Reply::<Value>::later()) }).effect(Effect::Readonly)
}

#[test]
fn l01_a_call_being_prepared_keeps_its_run_in_memory_beside_one_that_is_parked() {
    on_every_store(|world| {
        let (sim, made) = (world.sim.clone(), Counter::default());
        let counted = made.clone();
        let prepared = Tool::new("prepared", "is prepared slowly", move |_: Value| {
            counted.add();
            async { Ok(json!(1)) }
        })
        .effect(Effect::Readonly)
        .prepare(move |_: Call| {
            let sim = sim.clone();
            async move {
                sim.sleep(5 * MOMENT).await;
                Ok(Preparation::go())
            }
        });
        let runtime = world.runtime([pending(), prepared]);
        let batch = runtime.clone();
        let seen = made.clone();
        world.sim.clone().block_on(async move {
            let calls = batch.batch(vec![call("pending"), call("prepared")], false);
            let pass = world.sim.sleep(30 * MOMENT);
            futures_util::future::select(Box::pin(calls), pass).await;
            assert_eq!(seen.get(), 1, "the prepared call did not wait for the pending one");
        });
    });
}

#[test]
fn l08_a_claim_whose_answer_is_lost_does_not_strand_the_run() {
    on_every_store(|world| {
        let (runtime, store) = shaky(&world, [waiter()], None);
        let run = start(&world, &runtime, "waiter");
        let key = keys(&world, &runtime).remove(0);
        store.claim.store(1, Ordering::SeqCst);
        resolve(&world, &runtime, &key, json!("hello")).unwrap();
        assert_eq!(ends(&world, &runtime, run).unwrap(), json!("hello"));
    });
}

#[test]
fn l08_mail_that_cannot_be_read_at_once_is_read_later() {
    on_every_store(|world| {
        // A body that holds a key stays in memory, so that no suspension reads its mail.
        let keyed = waiter().key(k());
        let (runtime, store) = shaky(&world, [keyed], None);
        let run = start(&world, &runtime, "waiter");
        let key = keys(&world, &runtime).remove(0);
        // The first read belongs to the caller that answers.
        store.readable.store(1, Ordering::SeqCst);
        store.mail.store(1, Ordering::SeqCst);
        let told = resolve(&world, &runtime, &key, json!("hello"));
        assert!(matches!(told, Ok(ReplyResult::Accepted)), "it is durable: {told:?}");
        assert_eq!(ends(&world, &runtime, run).unwrap(), json!("hello"));
    });
}

/// Sleeps, then acts.
fn sleeper(acted: &Counter) -> Tool {
    let acted = acted.clone();
    Tool::durable_fn("sleeper", "sleeps, then acts", move |mut ctx: Ctx, _: Value| {
        let acted = acted.clone();
        async move {
            ctx.sleep(60 * MOMENT).await?;
            ctx.step("act", |_| async { Ok(acted.add()) }).await
        }
    })
}

#[test]
fn e18_a_worker_that_could_not_renew_for_a_while_goes_on_with_its_runs() {
    on_every_store(|world| {
        let acted = Counter::default();
        let (runtime, store) = shaky(&world, [sleeper(&acted).key(k())], Some(LEASE));
        let recover = runtime.clone();
        world.run(async move { recover.recover().await }).unwrap();
        let run = start(&world, &runtime, "sleeper");
        // The lease has expired when the body acts, and no other worker exists.
        store.renew.store(6, Ordering::SeqCst);
        ends(&world, &runtime, run).unwrap();
        assert_eq!(acted.get(), 1);
    });
}

#[test]
fn e18_a_worker_without_a_lease_reports_it() {
    on_every_store(|world| {
        let (runtime, store) = shaky(&world, [waiter()], Some(LEASE));
        store.renew.store(1, Ordering::SeqCst);
        assert!(world.run(async move { runtime.recover().await }).is_err());
    });
}

#[test]
fn e18_continuing_many_runs_does_not_lose_the_lease() {
    let world = World::new(Kind::Memory);
    let sim = world.sim.clone();
    let busy = Tool::new("busy", "reads slowly", move |_: Value| {
        let sim = sim.clone();
        async move {
            sim.sleep(HOUR).await;
            Ok(1)
        }
    });
    let busy = busy.effect(Effect::Readonly).timeout(2 * HOUR);
    let store = Shaky::new(world.store.clone());
    let mut config = world.config([busy, sleeper(&Counter::default())]);
    config.store = store.clone();
    config.lease = Some(MOMENT);
    *store.clock.lock() = Some(world.sim.clone());
    config.in_flight = 1;
    let runtime = Runtime::new(config);
    let recover = runtime.clone();
    world.run(async move { recover.recover().await }).unwrap();
    for _ in 0..3_000 {
        runtime.start_unconfirmed(call("sleeper")).unwrap();
    }
    runtime.start_unconfirmed(call("busy")).unwrap();
    world.pass(70 * MOMENT);
    let leases = store.leases.lock().clone();
    let longest = leases.windows(2).map(|pair| pair[1].since(pair[0])).max().unwrap();
    assert!(longest < MOMENT, "{longest:?} between two renewals");
}

#[test]
fn b11_a_turn_that_is_finished_by_hand_lets_the_next_one_begin() {
    on_every_store(|world| {
        let broken = Tool::durable_fn("broken", "waits outside", |_: Ctx, _: Value| async {
            std::future::pending::<()>().await;
            Ok(json!(1))
        });
        let quick = Tool::new("quick", "reads", |_: Value| async { Ok(1) }).effect(Effect::Readonly);
        let runtime = world.runtime([broken, quick]);
        let starts = runtime.clone();
        let (first, second) = world.run(async move {
            let how = Start { session: Some("s".into()), turn: Turn::Queue, ..Start::default() };
            let first = starts.start_with(call("broken"), how.clone()).await.unwrap();
            (first, starts.start_with(call("quick"), how).await.unwrap())
        });
        world.pass(MOMENT);
        let by_hand = runtime.clone();
        world
            .run(async move { by_hand.finish_by_hand(first, Ok(Output::value(json!(0))), "ada", "stuck").await })
            .unwrap();
        ends(&world, &runtime, second).unwrap();
    });
}

#[test]
fn l10_an_open_wait_that_came_first_is_still_answered() {
    on_every_store(|world| {
        let tool = || {
            Tool::durable_fn("racer", "races, then asks again", |mut ctx: Ctx, _: Value| async move {
                let mut open = ctx.open_wait::<u32>("number");
                let First2::A(first) = ctx.first((open.park(), park::sleep(HOUR))).await? else {
                    return Err(ToolError::failed("no answer came"));
                };
                let First2::A(again) = ctx.first((open.park(), park::sleep(HOUR))).await? else {
                    return Err(ToolError::failed("the answer is gone"));
                };
                ctx.sleep(MOMENT).await?;
                let last = ctx.answer(&mut open).await?;
                Ok(json!([first, again, last]))
            })
        };
        let runtime = world.runtime([tool()]);
        let run = start(&world, &runtime, "racer");
        let key = keys(&world, &runtime).remove(0);
        resolve(&world, &runtime, &key, json!(7)).unwrap();
        assert_eq!(ends(&world, &runtime, run).unwrap(), json!([7, 7, 7]));
        let late = resolve(&world, &runtime, &key, json!(8)).unwrap();
        assert!(matches!(late, ReplyResult::Already(Ok(_))), "{late:?}");
    });
}

#[test]
fn l10_an_answer_of_another_shape_is_the_bodys_to_handle() {
    on_every_store(|world| {
        let tool = Tool::durable_fn("picky", "waits for a number", |mut ctx: Ctx, _: Value| async move {
            match ctx.wait::<u32>("number").await {
                Ok(number) => Ok(json!(number)),
                Err(error) => Ok(json!([error.to_string(), ctx.wait::<u32>("once more").await?])),
            }
        });
        let runtime = world.runtime([tool]);
        let run = start(&world, &runtime, "picky");
        let key = keys(&world, &runtime).remove(0);
        resolve(&world, &runtime, &key, json!("seven")).unwrap();
        world.pass(MOMENT);
        let key = keys(&world, &runtime).remove(0);
        resolve(&world, &runtime, &key, json!(7)).unwrap();
        let value = ends(&world, &runtime, run).unwrap();
        assert!(value[0].as_str().unwrap().contains("expected u32") && value[1] == 7, "{value}");
    });
}

#[test]
fn l10_the_first_of_nothing_is_an_error() {
    on_every_store(|world| {
        let tool = Tool::durable_fn("none", "waits for nothing", |mut ctx: Ctx, _: Value| async move {
            let (_, word) = ctx.first(Vec::<park::Park<String>>::new()).await?;
            Ok(json!(word))
        });
        let runtime = world.runtime([tool]);
        let run = start(&world, &runtime, "none");
        let error = ends(&world, &runtime, run).unwrap_err().to_string();
        assert!(error.contains("nothing to wait for"), "{error}");
    });
}

#[test]
fn w12_a_wait_that_was_answered_in_a_crash_leaves_the_inbox() {
    on_every_store(|world| {
        let make = |world: &World| {
            let sim = world.sim.clone();
            Tool::durable_fn("busy", "waits, then works", move |mut ctx: Ctx, _: Value| {
                let sim = sim.clone();
                async move {
                    ctx.wait::<Value>("word").await?;
                    ctx.step("work", |_| {
                        let sim = sim.clone();
                        async move {
                            sim.sleep(10 * MOMENT).await;
                            Ok(json!(1))
                        }
                    })
                    .readonly()
                    .await
                }
            })
            .key(k())
        };
        let (runtime, store) = shaky(&world, [make(&world)], None);
        start(&world, &runtime, "busy");
        let key = keys(&world, &runtime).remove(0);
        // The answer is in the mailbox, and the process dies before it is consumed.
        store.readable.store(1, Ordering::SeqCst);
        store.mail.store(u32::MAX, Ordering::SeqCst);
        let _ = resolve(&world, &runtime, &key, json!("hello"));
        drop((runtime, store));
        let world = world.restart();
        let runtime = world.runtime([make(&world)]);
        let recover = runtime.clone();
        world.run(async move { recover.recover().await }).unwrap();
        world.pass(MOMENT);
        assert!(keys(&world, &runtime).is_empty(), "an answered wait is not in the inbox");
    });
}

#[test]
fn l06_an_approval_does_not_use_up_a_calls_deadline_also_after_a_crash() {
    let outcome = |crash: bool| {
        let mut world = World::new(Kind::Memory);
        let tries = Counter::default();
        let make = |world: &World| {
            let tries = tries.clone();
            let flaky = Tool::new("flaky", "fails once", move |_: Value| {
                let n = tries.add();
                async move { if n == 1 { Err(ToolError::retry_after("busy", 5 * MOMENT)) } else { Ok(json!(n)) } }
            });
            let flaky = flaky.effect(Effect::Idempotent).with(|spec| {
                spec.guards.approval = Approval::Always;
                spec.limits.deadline = Some(60 * MOMENT);
            });
            let mut config = world.config([flaky]);
            config.attended = true;
            Runtime::new(config)
        };
        let mut runtime = make(&world);
        let run = start(&world, &runtime, "flaky");
        let again = runtime.clone();
        world.pass(HOUR);
        world.run(async move {
            let item = again.inbox().await.unwrap().remove(0);
            let Blocked::Approval { digest, .. } = &item.park.on else { panic!("{item:?}") };
            again.decide(run, &item.park.path, digest, true, ("ada", "fine")).await.unwrap();
        });
        if crash {
            drop(runtime);
            world = world.restart();
            world.pass(HOUR + 2 * MOMENT);
            runtime = make(&world);
            let recover = runtime.clone();
            world.run(async move { recover.recover().await }).unwrap();
        }
        ends(&world, &runtime, run).map_err(|error| error.to_string())
    };
    assert_eq!(outcome(false), Ok(json!(2)));
    assert_eq!(outcome(true), Ok(json!(2)));
}

#[test]
fn w03_an_attempt_in_its_first_poll_is_not_suspended_beside_a_call_that_waits() {
    on_every_store(|world| {
        let charged = Counter::default();
        let (counted, sim) = (charged.clone(), world.sim.clone());
        // It blocks its thread for longer than a run idles before it is suspended, while others continue.
        let charge = Tool::new("charge", "charges", move |_: Value| {
            let (n, sim) = (counted.add(), sim.clone());
            async move {
                let idle = sim.clone();
                sim.block_on(async move { idle.sleep(10 * MOMENT).await });
                Ok(json!(n))
            }
        });
        let charge = charge.with(|spec| {
            spec.guards.approval = Approval::Always;
            spec.guards.concurrency = Concurrency::Parallel;
        });
        let mut config = world.config([charge]);
        (config.attended, config.suspend_after) = (true, MOMENT);
        let runtime = Runtime::new(config);
        let batch = runtime.clone();
        let outcomes = Arc::new(Mutex::new(None));
        let slot = outcomes.clone();
        world.sim.spawn(Box::pin(async move {
            *slot.lock() = Some(batch.batch(vec![call("charge"), call("charge")], false).await);
        }));
        world.pass(MOMENT / 2);
        for left in [2, 1] {
            let approve = runtime.clone();
            world.run(async move {
                let items = approve.inbox().await.unwrap();
                assert_eq!(items.len(), left);
                let item = &items[left - 1];
                let Blocked::Approval { digest, .. } = &item.park.on else { panic!("{item:?}") };
                approve.decide(item.run, &item.park.path, digest, true, ("ada", "fine")).await.unwrap();
            });
            world.pass(20 * MOMENT);
        }
        let doubts = world.run(async move { runtime.doubts().await }).unwrap();
        assert!(doubts.is_empty(), "what happened is recorded: {doubts:?}");
        let outcomes = outcomes.lock().take().expect("the batch ends").unwrap();
        assert!(outcomes.iter().all(|outcome| outcome.error().is_none()), "{outcomes:?}");
        assert_eq!(charged.get(), 2);
    });
}

#[test]
fn w06_a_durable_call_that_its_batch_held_back_has_all_its_time_after_a_crash() {
    let mut world = World::new(Kind::Memory);
    let make = |world: &World| {
        let sim = world.sim.clone();
        let slow = Tool::new("slow", "takes long", move |_: Value| {
            let sim = sim.clone();
            async move {
                sim.sleep(20 * MOMENT).await;
                Ok(1)
            }
        });
        let durable = Tool::durable_fn("durable", "is quick", |mut ctx: Ctx, _: Value| async move {
            ctx.sleep(MOMENT).await?;
            Ok(json!("done"))
        });
        let durable = durable.with(|spec| {
            spec.limits.deadline = Some(10 * MOMENT);
            spec.guards.concurrency = Concurrency::Exclusive;
        });
        world.runtime([slow.effect(Effect::Idempotent), durable])
    };
    let runtime = make(&world);
    let (batch, sim) = (runtime.clone(), world.sim.clone());
    world.run(async move {
        let calls = Box::pin(batch.batch(vec![call("slow"), call("durable")], false));
        futures_util::future::select(calls, sim.sleep(5 * MOMENT)).await;
    });
    drop(runtime);
    world = world.restart();
    world.pass(5 * MOMENT);
    let runtime = make(&world);
    let recover = runtime.clone();
    let outcomes = world.run(async move {
        recover.recover().await.unwrap();
        let run = recover.list(Filter::running(), None, 1).await.unwrap()[0].run;
        recover.attach(run).await.unwrap()
    });
    assert_eq!(outcomes[1].value(), Some(&json!("done")), "{outcomes:?}");
}

#[test]
fn attaching_to_a_run_that_is_being_claimed_waits_for_its_end() {
    on_every_store(|world| {
        let (runtime, store) = shaky(&world, [sleeper(&Counter::default())], None);
        let run = start(&world, &runtime, "sleeper");
        *store.slow.lock() = Some((world.sim.clone(), 5 * MOMENT));
        // Its time has come, and the store has not answered the claim yet.
        world.pass(61 * MOMENT);
        let outcomes = world.run(async move { runtime.attach(run).await }).unwrap();
        assert_eq!(outcomes[0].value(), Some(&json!(1)));
    });
}

#[test]
fn attaching_to_a_run_that_ends_while_its_row_is_read_finds_its_end() {
    on_every_store(|world| {
        let (runtime, store) = shaky(&world, [sleeper(&Counter::default())], None);
        let run = start(&world, &runtime, "sleeper");
        // Its row is read when it is claimed and not driven yet, and returned when it has ended.
        *store.slow.lock() = Some((world.sim.clone(), 5 * MOMENT));
        world.pass(57 * MOMENT);
        *store.slow_look.lock() = Some((world.sim.clone(), [4 * MOMENT, 10 * MOMENT]));
        let outcomes = world.run(async move { runtime.attach(run).await }).unwrap();
        assert_eq!(outcomes[0].value(), Some(&json!(1)));
    });
}

/// A run is in the store as soon as its first commit is, and live a moment later.
#[test]
fn attaching_to_a_run_that_is_in_the_store_and_not_yet_live_waits_for_its_end() {
    type Found = BoxFuture<'static, windlass::Result<Vec<Outcome>>>;
    for time in [Duration::ZERO, MOMENT] {
        let world = World::new(Kind::Memory);
        let here: Arc<Mutex<Option<Runtime>>> = Arc::default();
        let found: Arc<Mutex<Option<Found>>> = Arc::default();
        let (runtime, attached) = (here.clone(), found.clone());
        let store = Watched::new(Arc::new(MemoryStore::new()), move |when: &str| {
            let Some(runtime) = runtime.lock().take_if(|_| when == "after commit") else { return };
            let run = block_on(runtime.list(Filter::default(), None, 1)).unwrap()[0].run;
            let mut attaching: Found = Box::pin(async move { runtime.attach(run).await });
            let first = attaching.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(first.is_pending(), "{first:?}");
            *attached.lock() = Some(attaching);
        });
        let sim = world.sim.clone();
        let act = tool("act", move |_| {
            let sim = sim.clone();
            async move {
                if !time.is_zero() {
                    sim.sleep(time).await;
                }
                Ok(json!("done"))
            }
        });
        let mut config = world.config([act]);
        config.store = Arc::new(store);
        let runtime = Runtime::new(config);
        *here.lock() = Some(runtime.clone());
        let value = world.run(async move {
            let work = Work::Call(call("act"));
            runtime.submit(work, Start::default()).await.unwrap().outcomes().await.unwrap();
            let attaching = found.lock().take().expect("a caller attached");
            attaching.await.map(|outcomes| outcomes[0].value().cloned())
        });
        assert_eq!(value.unwrap(), Some(json!("done")), "{time:?}");
    }
}

/// Two runtimes continue the run. The one with the older claim learns of that only by its next commit, and until then
/// treats messages to the run as its own.
#[test]
fn l08_a_message_to_a_superseded_owner_is_not_lost() {
    on_every_store(|world| {
        let twice = || {
            Tool::durable_fn("twice", "waits twice", |mut ctx: Ctx, _: Value| async move {
                let first: Value = ctx.wait("first").await?;
                let second: Value = ctx.wait("second").await?;
                Ok(json!([first, second]))
            })
        };
        let (runtime, store) = shaky(&world, [twice()], None);
        let run = start(&world, &runtime, "twice");
        // The answer to the claim takes long, and another runtime is faster.
        *store.slow.lock() = Some((world.sim.clone(), 30 * MOMENT));
        let people = runtime.clone();
        world.run(async move {
            let key = people.inbox().await.unwrap()[0].key.clone().expect("it waits for an answer");
            people.resolve(&key, ok(json!(1))).await.unwrap();
        });
        world.pass(MOMENT);
        *store.slow.lock() = None;
        let mut config = world.config([twice()]);
        config.store = store.clone();
        config.seed = Some(2);
        let other = Runtime::new(config);
        world.run(async move { other.resume(run).await }).unwrap();
        world.pass(27 * MOMENT);
        // Messages to the run are in its mailbox when the older runtime has begun and has not been refused yet.
        store.slow_commits.lock().extend([5, 10].map(|moments| (world.sim.clone(), moments * MOMENT)));
        let cancel = runtime.clone();
        world.run(async move { cancel.cancel(run, "ada", "enough").await }).unwrap();
        assert!(store.slow_commits.lock().is_empty(), "the older one is at work");
        assert_eq!(ends(&world, &runtime, run).unwrap_err().kind(), "cancelled");
    });
}
