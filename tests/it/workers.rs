//! Several runtimes on one store: leases, takeover, fencing; sessions and their turns.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::Settlement;
use windlass::run::{Ending, RunState, Start, Turn};
use windlass::session::{Author, NewMessage, SettingsChange, Wake};
use windlass::store::StoreError;
use windlass::tool::Reconciled;
use windlass::tool::spec::Recovery;
use windlass::{Ctx, Effect, RunId, Tool, ToolCall, ToolResult};
use windlass_core::testing::Sim;
use windlass_core::time::Clock;
use windlass_core::{Error, Runtime};

use crate::shaky::Shaky;
use crate::world::{Counter, World, on_every_store, tool};

const LEASE: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({}))
}

/// A worker with its own executor, so that it can freeze or die alone.
struct Worker {
    sim: Sim,
    runtime: Runtime,
}

impl Worker {
    fn new(world: &World, number: u64, tools: impl IntoIterator<Item = Tool>) -> Self {
        let sim = world.sim.clone();
        let mut config = world.config(tools);
        config.lease = Some(LEASE);
        config.seed = Some(number);
        let runtime = Runtime::new(config);
        let again = runtime.clone();
        sim.block_on(async move { again.recover().await }).expect("it comes to an end").expect("it recovers");
        Self { sim, runtime }
    }

    fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        self.sim.block_on(future).expect("the simulation comes to an end")
    }

    fn state(&self, run: RunId) -> RunState {
        let runtime = self.runtime.clone();
        self.run(async move { runtime.info(run).await }).expect("the store answers").expect("the run is there").state
    }

    fn outcome(&self, run: RunId) -> ToolResult<Value> {
        let runtime = self.runtime.clone();
        let outcomes = self.run(async move { runtime.attach(run).await }).expect("the run ends");
        outcomes[0].result.clone().map(|output| output.value.clone()).map_err(|error| (*error).clone())
    }
}

/// A step that reads, then one that takes long, then one that acts.
fn chain(world: &World, acted: &Counter, looked: &Counter) -> Tool {
    let (sim, acted, looked) = (world.sim.clone(), acted.clone(), looked.clone());
    Tool::durable_fn("chain", "three steps", move |mut ctx: Ctx, _: Value| {
        let (sim, acted, looked) = (sim.clone(), acted.clone(), looked.clone());
        async move {
            ctx.step("act", |_| async { Ok(acted.add()) }).await?;
            ctx.step("look", |_| {
                looked.add();
                let sim = sim.clone();
                async move {
                    sim.sleep(Duration::from_secs(20)).await;
                    Ok(())
                }
            })
            .readonly()
            .await?;
            ctx.step("act again", |_| async { Ok(acted.add()) }).await?;
            Ok(json!("done"))
        }
    })
}

#[test]
fn e18_a_leased_run_is_not_taken_and_is_cancelled_from_another_worker() {
    on_every_store(|world| {
        let (acted, looked) = (Counter::default(), Counter::default());
        let a = Worker::new(&world, 1, [chain(&world, &acted, &looked)]);
        let b = Worker::new(&world, 2, [chain(&world, &acted, &looked)]);
        let run = a.runtime.start_unconfirmed(call("chain")).unwrap();
        world.pass(MOMENT);
        let resume = b.runtime.clone();
        let error = b.run(async move { resume.resume(run).await }).unwrap_err();
        assert!(matches!(error, Error::Store(StoreError::Leased { .. })), "{error}");
        // Cancelled by a worker that does not drive it; the owner sees that at its next check.
        let (cancel, before) = (b.runtime.clone(), world.sim.now());
        b.run(async move { cancel.cancel(run, "ada", "enough").await }).unwrap();
        assert_eq!(b.outcome(run).unwrap_err().kind(), "cancelled");
        let took = world.sim.now().since(before);
        assert!(took <= Duration::from_secs(2), "its owner heard of it after {took:?}");
        assert_eq!((acted.get(), looked.get()), (1, 1));
    });
}

#[test]
fn e19_a_run_whose_worker_is_gone_is_taken_over_when_its_lease_is_over() {
    on_every_store(|world| {
        let (acted, looked) = (Counter::default(), Counter::default());
        let a = Worker::new(&world, 1, [chain(&world, &acted, &looked)]);
        let run = a.runtime.start_unconfirmed(call("chain")).unwrap();
        world.pass(MOMENT);
        // The process that runs `a` dies; `b` is another one, whose store does not know that.
        drop(a);
        let world = world.restart();
        let b = Worker::new(&world, 2, [chain(&world, &acted, &looked)]);
        assert_eq!(b.outcome(run).unwrap(), json!("done"));
        assert_eq!((acted.get(), looked.get()), (2, 2), "what was recorded is not done again, what may repeat is");
    });
}

#[test]
fn e18_a_superseded_worker_stops_and_its_writes_are_refused() {
    on_every_store(|world| {
        let (acted, looked) = (Counter::default(), Counter::default());
        let a = Worker::new(&world, 1, [chain(&world, &acted, &looked)]);
        let run = a.runtime.start_unconfirmed(call("chain")).unwrap();
        world.pass(MOMENT);
        // Another worker takes the run by force, as after a pause in which the lease expired.
        let (store, worker) = (world.store.clone(), windlass_core::WorkerId::from_number(77));
        store.use_clock(windlass_core::testing::still(world.sim.now() + HOUR));
        world.run(async move { store.claim(run, worker).await }).unwrap();
        world.store.use_clock(std::sync::Arc::new(world.sim.clone()));
        world.pass(Duration::from_secs(25));
        // The readonly attempt ended, its record was refused, and nothing was done after it.
        assert_eq!((acted.get(), looked.get()), (1, 1));
        assert_eq!(a.state(run), RunState::Running);
    });
}

#[test]
fn e19_an_interrupted_once_attempt_is_settled_not_repeated() {
    on_every_store(|world| {
        let acted = Counter::default();
        let make = |world: &World, known: bool| {
            let (sim, acted) = (world.sim.clone(), acted.clone());
            let slow = Tool::new("slow", "acts, then hangs", move |_: Value| {
                acted.add();
                let sim = sim.clone();
                async move {
                    sim.sleep(Duration::from_secs(20)).await;
                    Ok(json!("slow"))
                }
            });
            if known { slow.reconcile(|_| async { Ok(Reconciled::Happened(json!("found"))) }) } else { slow }
        };
        let a = Worker::new(&world, 1, [make(&world, true)]);
        let run = a.runtime.start_unconfirmed(call("slow")).unwrap();
        world.pass(MOMENT);
        drop(a);
        let world = world.restart();
        // Checked against the current tool, which has no `reconcile` any more: a person settles it.
        let b = Worker::new(&world, 2, [make(&world, false)]);
        world.pass(MOMENT);
        let settle = b.runtime.clone();
        b.run(async move {
            let (run, doubt) = settle.doubts().await.unwrap().remove(0);
            settle.settle(run, &doubt.path, Settlement::GiveUp, "ada", "cannot tell").await.unwrap();
        });
        assert_eq!(b.outcome(run).unwrap_err().kind(), "in_doubt");
        assert_eq!(acted.get(), 1);
    });
}

#[test]
fn l12_an_owner_bound_run_is_lost_with_its_owner() {
    on_every_store(|world| {
        let tool = || {
            let bound = Tool::durable_fn("bound", "is bound", |mut ctx: Ctx, _: Value| async move {
                ctx.wait::<Value>("never").await
            });
            bound.with(|spec| spec.guards.recovery = Recovery::OwnerBound)
        };
        let runtime = world.runtime([tool()]);
        let run = runtime.start_unconfirmed(call("bound")).unwrap();
        world.pass(MOMENT);
        // Suspended and woken by its own owner: that is not a loss.
        let nudge = runtime.clone();
        world.run(async move { nudge.connect("anything", None).await }).unwrap();
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([tool()]);
        let recover = runtime.clone();
        world.run(async move {
            recover.recover().await.unwrap();
            let item = recover.inbox().await.unwrap().remove(0);
            recover.resolve(&item.key.unwrap(), windlass::inbox::Resolution::Ok { value: json!(1) }).await.unwrap();
        });
        let attach = runtime.clone();
        let outcomes = world.run(async move { attach.attach(run).await }).unwrap();
        assert!(outcomes[0].error().unwrap().to_string().contains("bound to the process"), "{outcomes:?}");
        let info = world.run(async move { runtime.info(run).await }).unwrap().unwrap();
        assert_eq!(info.state, RunState::Finished { ending: Ending::Lost });
    });
}

#[test]
fn b02_l12_an_owner_bound_run_whose_layer_is_missing_is_lost_and_not_held() {
    on_every_store(|world| {
        let tool = || {
            let bound = Tool::durable_fn("bound", "is bound", |mut ctx: Ctx, _: Value| async move {
                ctx.wait::<Value>("never").await
            });
            bound.with(|spec| spec.guards.recovery = Recovery::OwnerBound)
        };
        let runtime = world.runtime([tool()]);
        let run = runtime.layer("guest").unwrap().start_unconfirmed(call("bound")).unwrap();
        world.pass(MOMENT);
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([tool()]);
        let recover = runtime.clone();
        world.run(async move {
            recover.recover().await.unwrap();
            let item = recover.inbox().await.unwrap().remove(0);
            recover.resolve(&item.key.unwrap(), windlass::inbox::Resolution::Ok { value: json!(1) }).await.unwrap();
        });
        let attach = runtime.clone();
        let outcomes = world.run(async move { attach.attach(run).await }).unwrap();
        assert!(outcomes[0].error().unwrap().to_string().contains("bound to the process"), "{outcomes:?}");
        let info = world.run(async move { runtime.info(run).await }).unwrap().unwrap();
        assert_eq!(info.state, RunState::Finished { ending: Ending::Lost });
    });
}

#[test]
fn l12_an_external_run_is_finished_from_outside() {
    on_every_store(|world| {
        let runtime = world.runtime([Tool::external("courier", "delivers", windlass::tool::Schemas::any())]);
        let run = runtime.start_unconfirmed(call("courier")).unwrap();
        world.pass(MOMENT);
        let answer = runtime.clone();
        world.run(async move {
            let item = answer.inbox().await.unwrap().remove(0);
            answer
                .resolve(&item.key.unwrap(), windlass::inbox::Resolution::Ok { value: json!("there") })
                .await
                .unwrap();
        });
        let outcomes = world.run(async move { runtime.attach(run).await }).unwrap();
        assert_eq!(outcomes[0].value(), Some(&json!("there")));
    });
}

fn turn(log: &std::sync::Arc<parking_lot::Mutex<Vec<String>>>) -> Tool {
    let log = log.clone();
    Tool::durable_fn("turn", "one turn", move |mut ctx: Ctx, args: Value| {
        let log = log.clone();
        async move {
            log.lock().push(format!("{} begins", args["n"]));
            ctx.sleep(HOUR).await?;
            ctx.step("end", |_| {
                log.lock().push(format!("{} ends", args["n"]));
                async { Ok(()) }
            })
            .readonly()
            .await?;
            Ok(json!(null))
        }
    })
}

#[test]
fn b11_a_session_has_one_turn_at_a_time_queued_or_refused_across_workers() {
    on_every_store(|world| {
        let log: std::sync::Arc<parking_lot::Mutex<Vec<String>>> = Default::default();
        let a = Worker::new(&world, 1, [turn(&log)]);
        let b = Worker::new(&world, 2, [turn(&log)]);
        let start = |worker: &Worker, n: u32, turn: Turn| {
            let runtime = worker.runtime.clone();
            let how = Start { session: Some("s1".into()), turn, ..Start::default() };
            worker.run(async move { runtime.start_with(ToolCall::new("turn", json!({"n": n})), how).await })
        };
        let first = start(&a, 1, Turn::Queue).unwrap();
        let second = start(&b, 2, Turn::Queue).unwrap();
        let third = start(&a, 3, Turn::Queue).unwrap();
        world.pass(MOMENT);
        assert_eq!(a.state(second), RunState::Queued);
        let error = start(&b, 4, Turn::Refuse).unwrap_err().to_string();
        assert!(error.contains("s1") && error.contains(&first.to_string()), "{error}");
        for run in [third, second, first] {
            b.outcome(run).unwrap();
        }
        let said = log.lock().clone();
        let mut order: Vec<&String> = said.iter().filter(|line| line.contains("ends")).collect();
        order.dedup();
        assert_eq!(order, ["1 ends", "2 ends", "3 ends"]);
        let begun = |n: u32| said.iter().position(|line| *line == format!("{n} begins"));
        let ended = |n: u32| said.iter().rposition(|line| *line == format!("{n} ends"));
        assert!(ended(1) < begun(2) && ended(2) < begun(3), "{said:?}");
    });
}

/// A turn that takes an hour.
fn slow_agent(done: &Counter) -> Tool {
    let done = done.clone();
    Tool::durable_fn("agent", "one turn", move |mut ctx: Ctx, args: Value| {
        let done = done.clone();
        async move {
            ctx.sleep(HOUR).await?;
            ctx.step("count", |_| async { Ok(done.add()) }).idempotent().await?;
            Ok(args["message"].clone())
        }
    })
}

#[test]
fn b11_waking_messages_of_two_workers_take_turns_and_follow_a_killed_holder() {
    on_every_store(|world| {
        let done = Counter::default();
        let a = Worker::new(&world, 1, [slow_agent(&done)]);
        let b = Worker::new(&world, 2, [slow_agent(&done)]);
        let post = |worker: &Worker, text: &str, wake: Wake| {
            let (session, message) = (worker.runtime.session("s"), NewMessage::text(Author::User, text).waking(wake));
            worker.run(async move { session.post(message).await })
        };
        let session = a.runtime.session("s");
        let settings = SettingsChange::default().agent("agent");
        a.run(async move { session.open_with(None, None, settings).await }).unwrap();
        let began = world.sim.now();
        let first = post(&a, "first", Wake::Yes).unwrap().run.unwrap();
        let second = post(&b, "second", Wake::Queue).unwrap().run.unwrap();
        world.pass(MOMENT);
        let refused = post(&b, "third", Wake::Refuse).unwrap_err();
        let named = matches!(&refused, Error::Store(StoreError::Busy { turn, since, .. })
            if *turn == first && *since >= began);
        assert!(named && refused.to_string().contains("was created at"), "{refused}");
        assert_eq!(b.state(second), RunState::Queued);
        let explained = b.runtime.clone();
        let explained = b.run(async move { explained.explain(second).await }).unwrap();
        assert!(explained.sentence.contains(&first.to_string()), "{}", explained.sentence);
        // The processes of both workers die. The turn still has the session.
        drop((a, b));
        let world = world.restart();
        let c = Worker::new(&world, 3, [slow_agent(&done)]);
        let refused = post(&c, "third", Wake::Refuse).unwrap_err();
        assert!(matches!(refused, Error::Store(StoreError::Busy { turn, .. }) if turn == first), "{refused}");
        assert_eq!(c.outcome(second).unwrap(), json!(2));
        assert_eq!(c.outcome(first).unwrap(), json!(1));
        assert_eq!(done.get(), 2, "each turn was made once");
        assert!(post(&c, "third", Wake::Refuse).unwrap().run.is_some(), "the session is free");
    });
}

#[test]
fn b11_a_turn_that_waits_for_a_person_is_held_or_in_doubt_keeps_the_session() {
    on_every_store(|world| {
        let asks = Tool::durable_fn("agent", "asks", |mut ctx: Ctx, args: Value| async move {
            match args["message"].as_u64() {
                Some(1) => ctx.wait::<Value>("a person").await,
                Some(2) => {
                    let never = |_| async { std::future::pending::<ToolResult<()>>().await };
                    ctx.step("pay", never).timeout(MOMENT).await?;
                    Ok(json!(2))
                }
                _ => Ok(json!("done")),
            }
        });
        let runtime = Worker::new(&world, 1, [asks]);
        let post = |text: &str, wake: Wake| {
            let (session, message) = (runtime.runtime.session("s"), NewMessage::text(Author::User, text).waking(wake));
            runtime.run(async move { session.post(message).await })
        };
        let session = runtime.runtime.session("s");
        let settings = SettingsChange::default().agent("agent");
        runtime.run(async move { session.open_with(None, None, settings).await }).unwrap();
        let is_busy = |text: &str, with: RunId| matches!(post(text, Wake::Refuse), Err(Error::Store(StoreError::Busy { turn, .. })) if turn == with);
        let parked = post("ask a person", Wake::Yes).unwrap().run.unwrap();
        let doubtful = post("pay", Wake::Yes).unwrap().run.unwrap();
        let last = post("last", Wake::Yes).unwrap().run.unwrap();
        world.pass(HOUR);
        assert!(matches!(runtime.state(parked), RunState::Suspended { .. }) && is_busy("x", parked));
        let why = |run: RunId| {
            let runtime = &runtime;
            let explain = runtime.runtime.clone();
            runtime.run(async move { explain.explain(run).await }).unwrap().sentence
        };
        assert!(why(last).contains(&parked.to_string()) && why(last).contains("the earlier turns"), "{}", why(last));
        let cancel = runtime.runtime.clone();
        runtime.run(async move { cancel.cancel(parked, "ada", "enough").await }).unwrap();
        world.pass(HOUR);
        assert!(is_busy("x", doubtful), "it is in doubt");
        assert!(why(last).contains(&doubtful.to_string()), "{}", why(last));
        let settle = runtime.runtime.clone();
        let doubt = runtime.run(async move { settle.info(doubtful).await }).unwrap().unwrap().doubts.remove(0);
        let settle = runtime.runtime.clone();
        let settled = async move { settle.settle(doubtful, &doubt.path, Settlement::GiveUp, "ada", "unclear").await };
        runtime.run(settled).unwrap();
        assert_eq!(runtime.outcome(last).unwrap(), json!("done"));
    });
}

#[test]
fn b11_a_turn_that_waits_for_a_turn_of_its_own_session_is_refused() {
    on_every_store(|world| {
        let selfish = Tool::durable_fn("selfish", "waits for itself", |mut ctx: Ctx, _: Value| async move {
            let other = ctx.spawn(call("quick")).turn().await?;
            let refused = ctx.join(&other).await.unwrap_err();
            Ok(json!(refused.to_string()))
        });
        let quick = Tool::new("quick", "reads", |_: Value| async { Ok(1) }).effect(Effect::Readonly);
        let runtime = world.runtime([selfish, quick]);
        let how = Start { session: Some("s".into()), turn: Turn::Queue, ..Start::default() };
        let start = runtime.clone();
        let outcome = world.run(async move {
            let run = start.start_with(call("selfish"), how).await.unwrap();
            start.attach(run).await.unwrap().remove(0)
        });
        let text = outcome.value().unwrap().as_str().unwrap().to_owned();
        assert!(text.contains("waits for this very turn to end") && text.contains("without `turn`"), "{text}");
        world.pass(MOMENT);
        let all = world.run(async move { runtime.list(windlass::run::Filter::finished(), None, 9).await }).unwrap();
        assert_eq!(all.len(), 2, "the next turn ran once this one was over");
    });
}

#[test]
fn e09_exclusive_calls_of_one_session_run_one_at_a_time_over_its_runs() {
    on_every_store(|world| {
        let (inside, most) = (Counter::default(), Counter::default());
        let tool = {
            let (sim, inside, most) = (world.sim.clone(), inside.clone(), most.clone());
            Tool::new("write", "writes", move |_: Value| {
                let (sim, inside, most) = (sim.clone(), inside.clone(), most.clone());
                async move {
                    let now = inside.add();
                    sim.sleep(MOMENT).await;
                    if inside.get() == now {
                        most.add();
                    }
                    Ok(())
                }
            })
        };
        let runtime = world.runtime([tool]);
        let start = runtime.clone();
        world.run(async move {
            let mut runs = Vec::new();
            for _ in 0..4 {
                runs.push(start.start_with(call("write"), Start::session("files")).await.unwrap());
            }
            for run in runs {
                start.attach(run).await.unwrap();
            }
        });
        assert_eq!((inside.get(), most.get()), (4, 4), "no two attempts overlapped");
    });
}

#[test]
fn e19_recovery_continues_runs_at_a_limited_rate_and_new_calls_go_first() {
    on_every_store(|world| {
        let make = |world: &World| {
            let sim = world.sim.clone();
            let slow = Tool::new("slow", "reads slowly", move |_: Value| {
                let sim = sim.clone();
                async move {
                    sim.sleep(HOUR).await;
                    Ok(1)
                }
            });
            let quick = Tool::new("quick", "reads", |_: Value| async { Ok(1) }).effect(Effect::Readonly);
            [slow.effect(Effect::Readonly).timeout(2 * HOUR), quick]
        };
        let runtime = world.runtime(make(&world));
        for _ in 0..300 {
            runtime.start_unconfirmed(call("slow")).unwrap();
        }
        world.pass(MOMENT);
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime(make(&world));
        let fresh = runtime.clone();
        let before = world.sim.now();
        let found = world.run(async move {
            let found = fresh.recover().await.unwrap();
            fresh.call(call("quick")).await.unwrap();
            found
        });
        assert_eq!(found, 300);
        assert!(world.sim.now().since(before) < HOUR, "the new call did not wait for the old ones");
        world.pass(3 * HOUR);
        let all = world.run(async move { runtime.list(windlass::run::Filter::finished(), None, 1_000).await }).unwrap();
        assert_eq!(all.len(), 301);
    });
}

#[test]
fn e18_a_run_found_by_two_workers_has_one_owner() {
    on_every_store(|world| {
        let (looked, sim) = (Counter::default(), world.sim.clone());
        let count = looked.clone();
        let late = Tool::durable_fn("late", "sleeps, then looks for long", move |mut ctx: Ctx, _: Value| {
            let (sim, count) = (sim.clone(), count.clone());
            async move {
                ctx.sleep(60 * MOMENT).await?;
                let look = |_| {
                    count.add();
                    let sim = sim.clone();
                    async move {
                        sim.sleep(20 * MOMENT).await;
                        Ok(())
                    }
                };
                ctx.step("look", look).readonly().await
            }
        });
        let store = Shaky::new(world.store.clone());
        let mut config = world.config([late, tool("quick", |_| async { Ok(()) })]);
        config.store = store.clone();
        let runtime = Runtime::new(config);
        let run = runtime.start_unconfirmed(call("late")).unwrap();
        world.pass(58 * MOMENT);
        // Its time comes, and the answer to the claim takes long.
        *store.slow.lock() = Some((world.sim.clone(), 10 * MOMENT));
        world.pass(4 * MOMENT);
        let claimed = runtime.clone();
        let claimed = world.run(async move { claimed.info(run).await }).unwrap().unwrap();
        assert_eq!((claimed.state, looked.get()), (RunState::Running, 0), "claimed, and not driven yet");
        // The end of a run in a session makes the runtime look for others that are due.
        let other = runtime.clone();
        world.run(async move { other.start_with(call("quick"), Start::session("s")).await }).unwrap();
        world.pass(60 * MOMENT);
        let info = runtime.clone();
        let info = world.run(async move { info.info(run).await }).unwrap().unwrap();
        assert_eq!((looked.get(), info.state), (1, RunState::Finished { ending: Ending::Ok }));
    });
}
