//! A call is prepared, then executed: the result of a tool's `prepare` is recorded, and used from then on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::run::record::Event;
use windlass::testing::{CrashMatrix, Ledger};
use windlass::tool::spec::{Approval, KeyExpression, Retry};
use windlass::tool::{Preparation, Reconciled};
use windlass::{Call, Ctx, Effect, RunId, Tool, ToolCall, ToolError};
use windlass_core::Runtime;
use windlass_core::time::Clock;

use crate::crash::check;
use crate::world::{Counter, Kind, World, on_every_store, tool};

/// The types of a run's records, in order.
fn journal(world: &World, runtime: &Runtime, run: RunId) -> Vec<Value> {
    let runtime = runtime.clone();
    let records = world.run(async move { runtime.journal(run).await.unwrap() });
    records.iter().map(|record| serde_json::to_value(&record.event).unwrap()).collect()
}

fn types(records: &[Value]) -> Vec<&str> {
    records.iter().map(|record| record["type"].as_str().unwrap()).collect()
}

/// Returns the arguments of its attempt.
fn echo() -> Tool {
    Tool::with_call("echo", "Says what it sees", |call: Call, args: Value| async move {
        Ok(json!({"args": args, "prepared": call.prepared()}))
    })
}

#[test]
fn l01_prepare_freezes_a_payload_and_rewrites_arguments_and_both_are_recorded_first() {
    on_every_store(|world| {
        let prepare = |call: Call| async move {
            assert_eq!(call.args()["n"], 1, "the arguments as checked");
            Ok(Preparation::freeze(json!({"nonce": 7})).with_args(json!({"n": 2})))
        };
        let runtime = world.runtime([echo().prepare(prepare)]);
        let caller = runtime.clone();
        let outcome = world.run(async move { caller.call(ToolCall::new("echo", json!({"n": 1}))).await.unwrap() });
        assert_eq!(outcome.value().unwrap(), &json!({"args": {"n": 2}, "prepared": {"nonce": 7}}));
        let records = journal(&world, &runtime, outcome.run);
        assert_eq!(types(&records), ["prepared", "intended", "finished"]);
        assert_eq!(records[0], json!({"type": "prepared", "args": {"n": 2}, "payload": {"nonce": 7}}));
    });
}

#[test]
fn l01_prepare_may_answer_without_executing() {
    on_every_store(|world| {
        let ran = Counter::default();
        let body = ran.clone();
        let cached = tool("cached", move |_| {
            body.add();
            async { Ok(json!("fresh")) }
        })
        .prepare(|_| async { Ok(Preparation::answer(json!("kept"))) });
        let runtime = world.runtime([cached]);
        let caller = runtime.clone();
        let outcome = world.run(async move { caller.call(ToolCall::new("cached", json!({}))).await.unwrap() });
        assert_eq!((outcome.value(), ran.get()), (Some(&json!("kept")), 0));
        assert_eq!(types(&journal(&world, &runtime, outcome.run)), ["finished"], "nothing was intended");
    });
}

#[test]
fn l01_arguments_rewritten_by_prepare_are_checked_again() {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Args {
        n: u32,
    }
    let world = World::new(Kind::Memory);
    let strict = |name: &str| Tool::new(name, "Strict", |args: Args| async move { Ok(args.n) });
    let runtime = world.runtime([
        strict("rewritten").prepare(|_| async { Ok(Preparation::go().with_args(json!({"n": "x"}))) }),
        strict("asked").prepare(|_| async { Err(ToolError::failed("prepare saw arguments that do not fit")) }),
        tool("answered", |_| async { Ok(1u32) }).prepare(|_| async { Ok(Preparation::answer(json!("one"))) }),
    ]);
    let outcomes = world.run(async move {
        let calls = vec![
            ToolCall::new("rewritten", json!({"n": 1})),
            ToolCall::new("asked", json!({"n": "x"})),
            ToolCall::new("answered", json!({})),
        ];
        runtime.batch(calls, false).await.unwrap()
    });
    let kinds: Vec<_> = outcomes.iter().map(|outcome| outcome.error().unwrap().kind()).collect();
    assert_eq!(kinds, ["invalid_arguments", "invalid_arguments", "internal"]);
}

#[test]
fn l01_prepare_fails_panics_and_times_out_like_an_attempt() {
    let world = World::new(Kind::Memory);
    let sim = world.sim.clone();
    let plain = |name: &str| tool(name, |_| async { Ok(1) });
    let runtime = world.runtime([
        plain("fails").prepare(|_| async { Err(ToolError::failed("no price today")) }),
        plain("panics").prepare(|_| async { if true { panic!("boom") } else { Ok(Preparation::go()) } }),
        plain("hangs").timeout(Duration::from_secs(3)).prepare(move |_| {
            let sim = sim.clone();
            async move {
                sim.sleep(Duration::from_secs(60)).await;
                Ok(Preparation::go())
            }
        }),
    ]);
    let reader = runtime.clone();
    let outcomes = world.run(async move {
        let calls = ["fails", "panics", "hangs"].map(|name| ToolCall::new(name, json!({})));
        runtime.batch(calls.to_vec(), false).await.unwrap()
    });
    let kinds: Vec<_> = outcomes.iter().map(|outcome| outcome.error().unwrap().kind()).collect();
    assert_eq!(kinds, ["failed", "panicked", "timed_out"]);
    assert_eq!(outcomes[2].times.total, 3_000_000_000, "it took the attempt's timeout: {:?}", outcomes[2].times);
    let records = journal(&world, &reader, outcomes[0].run);
    assert!(records.iter().all(|record| record["type"] != "intended"), "{records:?}");
}

#[test]
fn l01_a_long_preparation_survives_a_restart() {
    on_every_store(|world| {
        let sim = world.sim.clone();
        let slow = |sim: &windlass_core::testing::Sim, millis: u64| {
            let sim = sim.clone();
            echo().prepare(move |_| {
                let sim = sim.clone();
                async move {
                    sim.sleep(Duration::from_millis(millis)).await;
                    Ok(Preparation::freeze(json!(millis)))
                }
            })
        };
        let runtime = world.runtime([slow(&sim, 5_000)]);
        let run = runtime.start_unconfirmed(ToolCall::new("echo", json!({}))).unwrap();
        world.pass(Duration::from_millis(100));
        drop(runtime);
        drop(sim);
        let world = world.restart();
        let runtime = world.runtime([slow(&world.sim, 10)]);
        let value = world.run(async move {
            runtime.recover().await.unwrap();
            runtime.attach(run).await.unwrap().remove(0).value().cloned()
        });
        assert_eq!(value, Some(json!({"args": {}, "prepared": 10})), "it was prepared again: nothing was recorded");
    });
}

/// A price that is different at each request, within one process.
#[derive(Clone, Default)]
struct Prices(Arc<AtomicU32>);

impl Prices {
    fn draw(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

#[test]
fn l01_retries_and_later_processes_see_the_same_bytes() {
    on_every_store(|world| {
        let prices = Prices::default();
        let tools = |fail: bool| {
            let prices = prices.clone();
            let buy = Tool::with_call("buy", "Buys", move |call: Call, _: Value| async move {
                if fail || call.number() < 3 {
                    return Err(ToolError::retry_after("busy", Duration::from_secs(1)));
                }
                Ok(json!({"price": call.prepared(), "attempt": call.number()}))
            });
            let draw = move |_: Call| {
                let price = prices.draw();
                async move { Ok(Preparation::freeze(price)) }
            };
            [buy.retry(Retry::attempts(9)).prepare(draw)]
        };
        let runtime = world.runtime(tools(true));
        let run = runtime.start_unconfirmed(ToolCall::new("buy", json!({}))).unwrap();
        world.pass(Duration::from_millis(1_500));
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime(tools(false));
        let value = world.run(async move {
            runtime.recover().await.unwrap();
            runtime.attach(run).await.unwrap().remove(0).value().cloned()
        });
        assert_eq!(value, Some(json!({"price": 1, "attempt": 3})));
        assert_eq!(prices.draw(), 2, "the price was asked for once");
    });
}

#[test]
fn l01_a_prepared_call_still_needs_its_approval() {
    on_every_store(|world| {
        let guarded = || echo().prepare(|_| async { Ok(Preparation::freeze(1)) });
        let runtime = world.runtime([guarded().with(|spec| spec.guards.approval = Approval::Always)]);
        let caller = runtime.clone();
        let outcome = world.run(async move { caller.call(ToolCall::new("echo", json!({}))).await.unwrap() });
        assert_eq!(outcome.error().unwrap().kind(), "denied");
        assert_eq!(
            types(&journal(&world, &runtime, outcome.run)),
            ["prepared", "parked", "finished"],
            "approval sees these bytes"
        );
    });
}

#[test]
fn l01_keys_come_from_the_prepared_arguments() {
    let world = World::new(Kind::Memory);
    let running = Counter::default();
    let (sim, count) = (world.sim.clone(), running.clone());
    let alone = tool("alone", move |_| {
        let (sim, count) = (sim.clone(), count.clone());
        async move {
            count.add();
            sim.sleep(Duration::from_secs(1)).await;
            Ok(count.get())
        }
    });
    let key = KeyExpression::parse("args.account").unwrap();
    let alone = alone.key(key).prepare(|_| async { Ok(Preparation::go().with_args(json!({"account": "one"}))) });
    let runtime = world.runtime([alone]);
    let outcomes = world.run(async move {
        let calls = ["a", "b"].map(|account| ToolCall::new("alone", json!({"account": account})));
        runtime.batch(calls.to_vec(), false).await.unwrap()
    });
    let seen: Vec<_> = outcomes.iter().map(|outcome| outcome.value().cloned().unwrap()).collect();
    assert_eq!(seen, [json!(1), json!(2)], "the second waited for the first");
}

#[test]
fn l01_a_durable_body_is_entered_with_the_same_prepared_bytes() {
    on_every_store(|world| {
        let prices = Prices::default();
        let tools = |world: &World, wait: u64| {
            let (prices, sim) = (prices.clone(), world.sim.clone());
            let order = Tool::durable_fn("order", "Orders", move |mut ctx: Ctx, args: Value| {
                let sim = sim.clone();
                async move {
                    let sim = &sim;
                    let nap = |_| async move {
                        sim.sleep(Duration::from_millis(wait)).await;
                        Ok(())
                    };
                    ctx.step("nap", nap).readonly().await?;
                    Ok(json!([args, ctx.prepared()]))
                }
            });
            let draw = move |_: Call| {
                let price = prices.draw();
                async move { Ok(Preparation::freeze(price).with_args(json!({"n": price}))) }
            };
            [order.prepare(draw)]
        };
        let runtime = world.runtime(tools(&world, 60_000));
        let run = runtime.start_unconfirmed(ToolCall::new("order", json!({"n": 0}))).unwrap();
        world.pass(Duration::from_millis(100));
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime(tools(&world, 1));
        let value = world.run(async move {
            runtime.recover().await.unwrap();
            runtime.attach(run).await.unwrap().remove(0).value().cloned()
        });
        assert_eq!(value, Some(json!([{"n": 1}, 1])));
    });
}

/// Each process draws another price; the recorded price is paid, and the paid price is recorded.
fn quoted(ledger: &Ledger, name: &'static str, effect: Effect) -> Tool {
    let (outside, draws) = (ledger.clone(), ledger.clone());
    let pay = Tool::with_call(name, "Pays", move |call: Call, args: Value| {
        let ledger = outside.clone();
        async move {
            let price = call.prepared().cloned().unwrap_or_default();
            // The price that was paid under this key must be the one that every later attempt and the record have.
            if effect == Effect::Once {
                ledger.once(name, &format!("{}={price}", call.idempotency_key())).await;
            } else {
                ledger.repeatable(name).await;
            }
            Ok(json!({"same": args["price"] == price}))
        }
    });
    let pay = pay.effect(effect).prepare(move |call: Call| {
        let ledger = draws.clone();
        async move {
            ledger.repeatable("draw").await;
            let price = ledger.count("draw");
            assert!(call.args().get("price").is_none());
            Ok(Preparation::freeze(price).with_args(json!({"price": price})))
        }
    });
    if effect != Effect::Once {
        return pay;
    }
    let outside = ledger.clone();
    pay.reconcile(move |call: Call| {
        let price = call.prepared().cloned().unwrap_or_default();
        let happened = outside.happened(&format!("{}={price}", call.idempotency_key()));
        let same = call.args()["price"] == price;
        async move { Ok(if happened { Reconciled::Happened(json!({"same": same})) } else { Reconciled::DidNotHappen }) }
    })
}

fn order(ledger: &Ledger) -> Vec<Tool> {
    let order = Tool::durable_fn("order", "Orders twice", |mut ctx: Ctx, _: Value| async move {
        let first: Value = ctx.call_json("pay", json!({})).await?;
        let second: Value = ctx.call_json("set", json!({})).await?;
        Ok(json!([first, second]))
    });
    vec![quoted(ledger, "pay", Effect::Once), quoted(ledger, "set", Effect::Idempotent), order]
}

#[test]
fn l01_prepared_calls_survive_every_crash_with_their_bytes() {
    for crashes in [1, 2] {
        let matrix = || CrashMatrix::new(order).call(ToolCall::new("order", json!({}))).crashes(crashes);
        let report = check(matrix);
        assert_eq!(report.outcome, json!([[{"same": true}, {"same": true}]]));
        assert_eq!((report.effects["pay"], report.effects["draw"]), (1, 2));
    }
}

#[test]
fn l01_the_prepared_call_is_in_the_journal_before_the_attempt_leaves() {
    on_every_store(|world| {
        let runtime = world.runtime([]);
        let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let (store, log) = (world.store.clone(), seen.clone());
        let act = Tool::with_call("act", "Acts", move |call: Call, _: Value| {
            let (store, log) = (store.clone(), log.clone());
            async move {
                let journal = store.journal(call.run(), 0).await.unwrap();
                log.lock().extend(journal.into_iter().map(|record| record.event));
                Ok(1)
            }
        });
        runtime.toolbox().insert(act.prepare(|_| async { Ok(Preparation::freeze("bytes")) })).unwrap();
        world.run(async move { runtime.call(ToolCall::new("act", json!({}))).await.unwrap() });
        let seen = seen.lock();
        assert!(matches!(&seen[0], Event::Prepared(prepared) if prepared.payload.as_deref() == Some(&json!("bytes"))));
        assert!(matches!(&seen[1], Event::Intended { attempt: 1, .. }));
    });
}
