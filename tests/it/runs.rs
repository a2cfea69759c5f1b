//! Runs that use other runs: spawned, joined, signalled, cancelled, continued; and what a body undoes when it fails.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::ctx::{First2, Handle};
use windlass::run::record::Event;
use windlass::run::{RunState, Start};
use windlass::{Ctx, Effect, Error, Output, RunId, Tool, ToolCall, ToolError, ToolResult, park};
use windlass_core::Runtime;

use crate::world::{Counter, World, on_every_store};

const HOUR: Duration = Duration::from_secs(3_600);
const MOMENT: Duration = Duration::from_secs(1);

fn call(name: &str, args: Value) -> ToolCall {
    ToolCall::new(name, args)
}

fn outcome(world: &World, runtime: &Runtime, run: RunId) -> ToolResult<Value> {
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).expect("the run ends");
    outcomes[0].result.clone().map(|output| output.value.clone()).map_err(|error| (*error).clone())
}

fn runs(world: &World, runtime: &Runtime) -> Vec<windlass::run::RunInfo> {
    let runtime = runtime.clone();
    world
        .run(async move { runtime.list(windlass::run::Filter::default(), None, 1_000).await })
        .expect("the store answers")
}

fn call_and_wait(world: &World, runtime: &Runtime, call: ToolCall) -> ToolResult<Value> {
    let runtime = runtime.clone();
    let outcome = world.run(async move { runtime.call(call).await }).expect("the run ends");
    outcome.result.map(|output| output.value.clone()).map_err(|error| (*error).clone())
}

/// Doubles a number after a while.
fn child(done: &Counter) -> Tool {
    let done = done.clone();
    Tool::durable_fn("double", "doubles slowly", move |mut ctx: Ctx, args: Value| {
        let done = done.clone();
        async move {
            ctx.sleep(HOUR).await?;
            ctx.step("count", |_| async { Ok(done.add()) }).await?;
            Ok(json!(args["n"].as_i64().unwrap_or(0) * 2))
        }
    })
}

fn parent() -> Tool {
    Tool::durable_fn("parent", "spawns two", |mut ctx: Ctx, _: Value| async move {
        let a: Handle<i64> = ctx.spawn(ToolCall::<i64>::to(name("double"), json!({"n": 1}))).await?;
        let b: Handle<i64> = ctx.spawn(ToolCall::<i64>::to(name("double"), json!({"n": 20}))).await?;
        // Joined in the other order: each answer belongs to its own operation.
        let (b, a) = (ctx.join(&b).await?, ctx.join(&a).await?);
        Ok(json!(a + b))
    })
}

fn name(name: &str) -> windlass::tool::ToolRef {
    windlass::tool::ToolRef::Name(name.into())
}

#[test]
fn l12_runs_are_spawned_and_joined_over_a_restart() {
    on_every_store(|world| {
        let done = Counter::default();
        let runtime = world.runtime([parent(), child(&done)]);
        let run = runtime.start_unconfirmed(call("parent", json!({}))).unwrap();
        world.pass(MOMENT);
        let all = runs(&world, &runtime);
        assert_eq!(all.len(), 3);
        assert!(all.iter().all(|info| matches!(info.state, RunState::Suspended { .. })), "{all:?}");
        assert_eq!(all.iter().filter(|info| info.parent.as_ref().is_some_and(|parent| parent.0 == run)).count(), 2);
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([parent(), child(&done)]);
        let again = runtime.clone();
        world.run(async move { again.recover().await }).unwrap();
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!(42));
        assert_eq!(done.get(), 2);
    });
}

#[test]
fn l12_starting_under_a_key_is_idempotent() {
    on_every_store(|world| {
        let done = Counter::default();
        let runtime = world.runtime([child(&done)]);
        let start = |runtime: &Runtime, key: &'static str, n: i64| {
            let runtime = runtime.clone();
            world.run(async move { runtime.start_with(call("double", json!({"n": n})), Start::key(key)).await })
        };
        let first = start(&runtime, "order 7", 1).unwrap();
        assert_eq!(start(&runtime, "order 7", 1).unwrap(), first);
        let other = start(&runtime, "order 8", 2).unwrap();
        assert_ne!(other, first);
        assert_eq!(outcome(&world, &runtime, first).unwrap(), json!(2));
        assert_eq!(start(&runtime, "order 7", 1).unwrap(), first, "also once it is finished");
        let reused = start(&runtime, "order 7", 5);
        assert!(matches!(reused, Err(Error::KeyReused { run, .. }) if run == first), "{reused:?}");
        assert_eq!(outcome(&world, &runtime, other).unwrap(), json!(4));
        assert_eq!(done.get(), 2);
    });
}

#[test]
fn l05_cancelling_a_run_cancels_the_runs_it_spawned_unless_they_were_abandoned() {
    on_every_store(|world| {
        let done = Counter::default();
        let keeper = Tool::durable_fn("keeper", "spawns and waits", |mut ctx: Ctx, _: Value| async move {
            let kept = ctx.spawn(call("double", json!({"n": 1}))).await?;
            ctx.spawn(call("double", json!({"n": 2}))).abandon().await?;
            ctx.join(&kept).await
        });
        let runtime = world.runtime([keeper, child(&done)]);
        let run = runtime.start_unconfirmed(call("keeper", json!({}))).unwrap();
        world.pass(MOMENT);
        let again = runtime.clone();
        world.run(async move { again.cancel(run, "ada", "enough").await }).unwrap();
        assert_eq!(outcome(&world, &runtime, run).unwrap_err().kind(), "cancelled");
        world.pass(2 * HOUR);
        let mut endings: Vec<String> = runs(&world, &runtime)
            .iter()
            .filter(|info| info.parent.is_some())
            .map(|info| format!("{:?}", info.state))
            .collect();
        endings.sort();
        assert_eq!(endings, ["Finished { ending: Cancelled }", "Finished { ending: Ok }"]);
        assert_eq!(done.get(), 1);
    });
}

#[test]
fn l12_a_losing_child_of_first_continues() {
    on_every_store(|world| {
        let done = Counter::default();
        let hasty = Tool::durable_fn("hasty", "does not wait long", |mut ctx: Ctx, _: Value| async move {
            let slow = ctx.spawn(call("double", json!({"n": 4}))).await?;
            let first = ctx.first((slow.park(), park::sleep(MOMENT))).await?;
            assert!(matches!(first, First2::B(())));
            ctx.join(&slow).await
        });
        let runtime = world.runtime([hasty, child(&done)]);
        assert_eq!(call_and_wait(&world, &runtime, call("hasty", json!({}))).unwrap(), json!(8));
    });
}

fn listener() -> Tool {
    let listener = Tool::durable_fn("listener", "adds what it hears", |mut ctx: Ctx, args: Value| async move {
        let mut heard = Vec::new();
        for _ in 0..args["count"].as_u64().unwrap_or(0) {
            heard.push(ctx.receive::<i64>("number").await?);
        }
        Ok(json!(heard))
    });
    listener.signal::<i64>("number")
}

#[test]
fn l13_the_nth_signal_answers_the_nth_receive_over_a_restart_and_a_redriven_one_arrives_once() {
    on_every_store(|world| {
        let runtime = world.runtime([listener()]);
        let run = runtime.start_unconfirmed(call("listener", json!({"count": 4}))).unwrap();
        world.pass(MOMENT);
        let send = |world: &World, runtime: &Runtime, n: i64, key: Option<&'static str>| {
            let runtime = runtime.clone();
            world.run(async move { runtime.signal(run, "number", json!(n), key).await })
        };
        send(&world, &runtime, 1, Some("a")).unwrap();
        world.pass(MOMENT);
        // Sent again after it was consumed, and before.
        send(&world, &runtime, 1, Some("a")).unwrap();
        send(&world, &runtime, 2, Some("b")).unwrap();
        send(&world, &runtime, 2, Some("b")).unwrap();
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([listener()]);
        let again = runtime.clone();
        world.run(async move { again.recover().await }).unwrap();
        send(&world, &runtime, 3, None).unwrap();
        send(&world, &runtime, 4, None).unwrap();
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!([1, 2, 3, 4]));
        let error = send(&world, &runtime, 5, None).unwrap_err().to_string();
        assert!(error.contains(&run.to_string()) && error.contains("finished"), "{error}");
    });
}

#[test]
fn l13_signals_are_declared_and_checked() {
    on_every_store(|world| {
        let runtime = world.runtime([listener()]);
        let run = runtime.start_unconfirmed(call("listener", json!({"count": 1}))).unwrap();
        world.pass(MOMENT);
        for (name, value, words) in [
            ("nubmer", json!(1), ["declares no signal \"nubmer\"", "number"]),
            ("number", json!("one"), ["does not fit its schema", "integer"]),
        ] {
            let again = runtime.clone();
            let error = world.run(async move { again.signal(run, name, value, None).await }).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    });
}

#[test]
fn l13_a_signal_to_an_ended_run_is_an_error() {
    on_every_store(|world| {
        let speaker = Tool::durable_fn("speaker", "talks", |mut ctx: Ctx, _: Value| async move {
            let other = ctx.spawn(call("listener", json!({"count": 1}))).await?;
            ctx.signal(other.run(), "number", &7).await?;
            let heard = ctx.join(&other).await?;
            let error = ctx.signal(other.run(), "number", &8).await.unwrap_err();
            Ok(json!([heard, error.code()]))
        });
        let runtime = world.runtime([speaker, listener()]);
        let said = call_and_wait(&world, &runtime, call("speaker", json!({}))).unwrap();
        assert_eq!(said, json!([[7], "run_over"]));
    });
}

#[test]
fn l13_a_receive_of_an_undeclared_signal_fails_and_names_the_way_out() {
    on_every_store(|world| {
        let deaf = || {
            let deaf = Tool::durable_fn("deaf", "misspells a signal", |mut ctx: Ctx, _: Value| async move {
                let alone = ctx.receive::<i64>("nubmer").await.unwrap_err().to_string();
                let raced =
                    ctx.first((park::receive::<i64>("nubmer"), park::sleep(HOUR))).await.unwrap_err().to_string();
                ctx.sleep(HOUR).await?;
                Ok(json!([alone, raced]))
            });
            deaf.signal::<i64>("number")
        };
        let runtime = world.runtime([deaf()]);
        let run = runtime.start_unconfirmed(call("deaf", json!({}))).unwrap();
        world.pass(MOMENT);
        drop(runtime);
        let world = world.restart();
        // The refusal is recorded: a tool that declares the signal later does not change what the body was told.
        let runtime = world.runtime([deaf().signal::<i64>("nubmer")]);
        let again = runtime.clone();
        world.run(async move { again.recover().await }).unwrap();
        let told = outcome(&world, &runtime, run).unwrap();
        for message in [&told[0], &told[1]] {
            assert_eq!(
                message,
                "failed: receive of \"nubmer\": `deaf` declares no such signal (declared: number), so it would wait \
                 for ever; declare it with `#[tool(signals(nubmer = T))]` or `.signal::<T>(\"nubmer\")`"
            );
        }
    });
}

#[test]
fn l13_a_called_body_receives_the_signals_of_the_tool_of_its_run() {
    on_every_store(|world| {
        let inner = Tool::durable_fn("inner", "receives", |mut ctx: Ctx, _: Value| async move {
            Ok(json!([ctx.receive::<i64>("number").await.ok(), ctx.receive::<i64>("own").await.is_err()]))
        });
        let outer = Tool::durable_fn("outer", "calls", |mut ctx: Ctx, _: Value| async move {
            ctx.call(call("inner", json!({}))).await
        });
        let runtime = world.runtime([outer.signal::<i64>("number"), inner.signal::<i64>("own")]);
        let run = runtime.start_unconfirmed(call("outer", json!({}))).unwrap();
        world.pass(MOMENT);
        let again = runtime.clone();
        world.run(async move { again.signal(run, "number", json!(7), None).await }).unwrap();
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!([7, true]));
    });
}

#[test]
fn l12_continue_as_begins_a_fresh_journal_under_the_same_id() {
    on_every_store(|world| {
        let keys: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
        let make = |keys: &Arc<parking_lot::Mutex<Vec<String>>>| {
            let keys = keys.clone();
            let counter = Tool::durable_fn("counter", "counts for ever", move |mut ctx: Ctx, args: Value| {
                let keys = keys.clone();
                async move {
                    let n = args["n"].as_i64().unwrap_or(0);
                    let add: i64 = ctx.receive("add").await?;
                    ctx.step("note", |a| {
                        keys.lock().push(a.key());
                        async { Ok(()) }
                    })
                    .await?;
                    if n + add >= 10 { Ok(json!(n + add)) } else { ctx.continue_as(json!({"n": n + add})).await }
                }
            });
            counter.signal::<i64>("add")
        };
        let runtime = world.runtime([make(&keys)]);
        let run = runtime.start_unconfirmed(call("counter", json!({"n": 0}))).unwrap();
        let send = |world: &World, runtime: &Runtime, n: i64| {
            let again = runtime.clone();
            world.run(async move { again.signal(run, "add", json!(n), None).await }).unwrap();
        };
        world.pass(MOMENT);
        send(&world, &runtime, 3);
        // The second one comes before the first is processed: it belongs to the next generation.
        send(&world, &runtime, 4);
        world.pass(MOMENT);
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([make(&keys)]);
        let again = runtime.clone();
        world.run(async move { again.recover().await }).unwrap();
        send(&world, &runtime, 5);
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!(12));
        let info = runs(&world, &runtime).remove(0);
        assert_eq!((info.run, info.generation), (run, 2));
        let mut distinct = keys.lock().clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), 3, "every generation has keys of its own: {distinct:?}");
    });
}

#[test]
fn l25_commands_happen_with_the_outcome() {
    on_every_store(|world| {
        let act = Tool::new("act", "causes work", |args: Value| async move {
            let listener: RunId = serde_json::from_value(args["to"].clone())?;
            let output = Output::value(json!("done"))
                .signal(listener, "number", json!(5))
                .start(ToolCall::new("double", json!({"n": 3})))
                .emit("acted", json!({"what": "all of it"}));
            if args["fail"] == true { Err(ToolError::failed("no")) } else { Ok(output) }
        });
        let done = Counter::default();
        let runtime = world.runtime([act.event::<Value>("acted"), child(&done), listener()]);
        let to = runtime.start_unconfirmed(call("listener", json!({"count": 1}))).unwrap();
        world.pass(MOMENT);
        call_and_wait(&world, &runtime, call("act", json!({"to": to, "fail": true}))).unwrap_err();
        world.pass(2 * HOUR);
        assert_eq!((done.get(), runs(&world, &runtime).len()), (0, 2), "nothing of it happens");
        call_and_wait(&world, &runtime, call("act", json!({"to": to, "fail": false}))).unwrap();
        world.pass(2 * HOUR);
        assert_eq!(done.get(), 1);
        assert_eq!(outcome(&world, &runtime, to).unwrap(), json!([5]));
    });
}

#[test]
fn l11_events_are_declared_checked_and_emitted_once() {
    on_every_store(|world| {
        let teller = || {
            let teller = Tool::durable_fn("teller", "tells", |mut ctx: Ctx, _: Value| async move {
                ctx.emit("step", &1)?;
                ctx.sleep(HOUR).await?;
                ctx.emit("step", &2)?;
                let wrong = ctx.emit("step", &"three").unwrap_err().to_string();
                let unknown = ctx.emit("stop", &4).unwrap_err().to_string();
                Ok(json!([wrong, unknown]))
            });
            teller.event::<i64>("step")
        };
        let runtime = world.runtime([teller()]);
        let run = runtime.start_unconfirmed(call("teller", json!({}))).unwrap();
        world.pass(MOMENT);
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([teller()]);
        let again = runtime.clone();
        world.run(async move { again.recover().await }).unwrap();
        let said = outcome(&world, &runtime, run).unwrap();
        assert!(said[0].as_str().unwrap().contains("does not fit its schema"), "{said}");
        assert!(said[1].as_str().unwrap().contains("declares no event \"stop\""), "{said}");
        let again = runtime.clone();
        let journal = world.run(async move { again.journal(run).await }).unwrap();
        let emitted = journal.iter().filter(|record| {
            record.asked.as_ref().is_some_and(|asked| asked.kind == windlass::run::record::OpKind::Emit)
        });
        assert_eq!(emitted.count(), 2);
    });
}

/// Books three things and fails; each is undone, the latest first.
fn saga(log: &Arc<parking_lot::Mutex<Vec<String>>>, error: fn() -> ToolError) -> Tool {
    let log = log.clone();
    Tool::durable_fn("saga", "books and fails", move |mut ctx: Ctx, _: Value| {
        let log = log.clone();
        async move {
            for name in ["seat", "room", "car"] {
                let (done, undone) = (log.clone(), log.clone());
                ctx.step(name, move |_| {
                    done.lock().push(name.to_owned());
                    async move { Ok(name.to_owned()) }
                })
                .undo_idempotent(move |what: String, _| {
                    undone.lock().push(format!("no {what}"));
                    async { Ok(()) }
                })
                .await?;
                if name == "room" {
                    ctx.sleep(HOUR).await?;
                }
            }
            Err::<Value, _>(error())
        }
    })
}

#[test]
fn l05_a_failed_body_undoes_what_it_did_in_reverse_order_over_a_restart() {
    on_every_store(|world| {
        let log: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
        let make = || saga(&log, || ToolError::failed("no money"));
        let runtime = world.runtime([make()]);
        let run = runtime.start_unconfirmed(call("saga", json!({}))).unwrap();
        world.pass(MOMENT);
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([make()]);
        let again = runtime.clone();
        world.run(async move { again.recover().await }).unwrap();
        let error = outcome(&world, &runtime, run).unwrap_err();
        assert_eq!(error.to_string(), "failed: no money");
        assert_eq!(*log.lock(), ["seat", "room", "car", "no car", "no room", "no seat"]);
    });
}

#[test]
fn l05_a_cancelled_body_undoes_what_it_did() {
    on_every_store(|world| {
        let log: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
        let runtime = world.runtime([saga(&log, || ToolError::failed("unreachable"))]);
        let run = runtime.start_unconfirmed(call("saga", json!({}))).unwrap();
        world.pass(MOMENT);
        let again = runtime.clone();
        world.run(async move { again.cancel(run, "ada", "rain").await }).unwrap();
        let error = outcome(&world, &runtime, run).unwrap_err();
        assert_eq!(error.kind(), "cancelled");
        assert_eq!(*log.lock(), ["seat", "room", "no room", "no seat"]);
        let again = runtime.clone();
        let journal = world.run(async move { again.journal(run).await }).unwrap();
        let cancelled = journal.iter().filter(|record| matches!(record.event, Event::Cancelled { .. })).count();
        assert_eq!(cancelled, 1);
    });
}

#[test]
fn l12_wrong_use_is_refused_with_advice() {
    on_every_store(|world| {
        let meddler = Tool::durable_fn("meddler", "does it wrong", |mut ctx: Ctx, _: Value| async move {
            let unknown = ctx.spawn(call("missing", json!({}))).await.unwrap_err().to_string();
            let alien: Handle<Value> =
                serde_json::from_value(json!({"run": ctx.run(), "parent": "00000000-0000-0000-0000-000000000001"}))?;
            let not_mine = ctx.join(&alien).await.unwrap_err().to_string();
            let nested = ctx.call(call("nested", json!({}))).await.unwrap_err().to_string();
            Ok(json!([unknown, not_mine, nested]))
        });
        let nested = Tool::durable_fn("nested", "is not the root", |mut ctx: Ctx, _: Value| async move {
            ctx.continue_as::<Value>(json!({})).await
        });
        let silent = Tool::new("silent", "readonly", |_: Value| async { Ok(json!(1)) }).effect(Effect::Readonly);
        let runtime = world.runtime([meddler, nested, silent]);
        let said = call_and_wait(&world, &runtime, call("meddler", json!({}))).unwrap();
        for (index, words) in
            [["no tool `missing`", ""], ["cannot wait for its own end", ""], ["root of a run", "return to it"]]
                .iter()
                .enumerate()
        {
            let text = said[index].as_str().unwrap();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    });
}

#[test]
fn w01_a_settlement_of_one_generation_settles_nothing_in_the_next() {
    on_every_store(|world| {
        let acted = Counter::default();
        let make = || {
            let acted = acted.clone();
            let lasting = Tool::durable_fn("lasting", "acts in each generation", move |mut ctx: Ctx, args: Value| {
                let acted = acted.clone();
                async move {
                    ctx.step("act", |_| async { Ok(acted.add()) }).await?;
                    ctx.sleep(HOUR).await?;
                    if args["n"] == 1 { Ok(json!("done")) } else { ctx.continue_as(json!({"n": 1})).await }
                }
            });
            [lasting]
        };
        let runtime = world.runtime(make());
        let run = runtime.start_unconfirmed(call("lasting", json!({"n": 0}))).unwrap();
        world.pass(MOMENT);
        // Sent for an attempt that had been settled otherwise by then, so no one consumed it.
        let settlement = windlass::inbox::Settlement::Happened(Ok(Arc::new(json!(99).into())));
        let message = windlass_core::store::Message::Settle {
            path: "0".parse().unwrap(),
            generation: 0,
            attempt: 1,
            settlement,
            by: "ada".into(),
            reason: "late".into(),
        };
        let change = windlass_core::store::Change::Mail { run, message, dedupe: None };
        let commit =
            windlass_core::store::Commit { guard: windlass_core::store::Guard::Outsider, changes: vec![change] };
        let store = world.store.clone();
        world.run(async move { store.commit(commit).get().await }).unwrap();
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!("done"));
        assert_eq!(acted.get(), 2, "both generations acted");
        let store = world.store.clone();
        let mail = world.run(async move { store.mail(run, 0).await }).unwrap();
        assert!(mail.is_empty(), "it is void, and forgotten: {mail:?}");
    });
}
