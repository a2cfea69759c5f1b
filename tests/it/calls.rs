//! Calls and batches: order, results, isolation, keys.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::tool::spec::{Concurrency, KeyExpression};
use windlass::{Ctx, Effect, Outcome, Tool, ToolCall, ToolError};
use windlass_core::run::record::Event;
use windlass_core::testing::Sim;
use windlass_core::time::Clock;

use crate::world::{Counter, Kind, World, on_every_store, tool};

/// Events in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn say(&self, text: impl Into<String>) {
        self.0.lock().push(text.into());
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

/// A tool that logs its start and end, and takes `millis` in between.
fn timed(name: &'static str, sim: &Sim, log: &Log, effect: Effect) -> Tool {
    let (sim, log) = (sim.clone(), log.clone());
    tool(name, move |args| {
        let (sim, log) = (sim.clone(), log.clone());
        async move {
            let label = args["label"].as_str().unwrap_or(name).to_owned();
            log.say(format!("{label} starts"));
            sim.sleep(Duration::from_millis(args["millis"].as_u64().unwrap_or(0))).await;
            log.say(format!("{label} ends"));
            Ok(label)
        }
    })
    .effect(effect)
}

fn call(name: &str, label: &str, millis: u64) -> ToolCall {
    ToolCall::new(name, json!({"label": label, "millis": millis}))
}

fn values(outcomes: &[Outcome]) -> Vec<Value> {
    outcomes.iter().map(Outcome::for_model).collect()
}

#[test]
fn l02_an_unknown_tool_fails_that_one_call_and_the_rest_runs() {
    on_every_store(|world| {
        let runtime = world.runtime([tool("ok", |_| async { Ok(1) }).id("the.ok")]);
        let outcomes = world.run(async move {
            let calls = vec![
                ToolCall::new("ok", json!({})),
                ToolCall::new("okk", json!({})),
                ToolCall::by_id("no.such.id", json!({})),
                ToolCall::by_id("the.ok", json!({})),
            ];
            runtime.batch(calls, false).await.unwrap()
        });
        assert_eq!(outcomes[0].value(), Some(&json!(1)));
        assert_eq!(outcomes[3].value(), Some(&json!(1)));
        let message = |i: usize| outcomes[i].for_model()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(message(1), "there is no tool `okk`; did you mean `ok`?");
        assert_eq!(message(2), "there is no tool `no.such.id`");
        assert!(matches!(outcomes[1].error(), Some(ToolError::Unavailable { .. })));
    });
}

#[test]
fn b10_a_closure_is_a_tool_in_one_line() {
    let world = World::new(Kind::Memory);
    let runtime = world.runtime([Tool::new("double", "Doubles", |n: Double| async move { Ok(n.n * 2) })]);
    let outcome = world.run(async move { runtime.call(ToolCall::new("double", json!({"n": 21}))).await.unwrap() });
    assert_eq!(outcome.value(), Some(&json!(42)));
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Double {
    n: i64,
}

#[test]
fn l04_results_keep_input_order_and_settlement_order_is_recorded() {
    on_every_store(|world| {
        let log = Log::default();
        let runtime = world.runtime([timed("work", &world.sim, &log, Effect::Readonly)]);
        let reader = runtime.clone();
        let outcomes = world.run(async move {
            let calls = vec![call("work", "slow", 30), call("work", "fast", 10), call("work", "middle", 20)];
            runtime.batch(calls, false).await.unwrap()
        });
        assert_eq!(values(&outcomes), [json!("slow"), json!("fast"), json!("middle")]);
        let run = outcomes[0].run;
        let settled = |world: &World, reader: &windlass_core::Runtime| {
            let reader = reader.clone();
            let journal = world.run(async move { reader.journal(run).await.unwrap() });
            let finished = journal.iter().filter(|record| matches!(record.event, Event::Finished(_)));
            finished.map(|record| record.path.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(settled(&world, &reader), ["1", "2", "0", "/"]);
        drop(reader);
        let world = world.restart();
        let reader = world.runtime([]);
        assert_eq!(settled(&world, &reader), ["1", "2", "0", "/"], "and it survives the process");
    });
}

#[test]
fn l04_one_failed_slot_does_not_blank_the_batch() {
    let world = World::new(Kind::Memory);
    let runtime = world.runtime([
        tool("ok", |_| async { Ok(1) }),
        tool("bad", |_| async { Err::<Value, _>(ToolError::failed("broken")) }),
        tool("boom", |_| async { if true { panic!("boom") } else { Ok(1) } }),
    ]);
    let outcomes = world.run(async move {
        let calls = ["ok", "bad", "boom", "ok"].map(|name| ToolCall::new(name, json!({})));
        runtime.batch(calls.to_vec(), false).await.unwrap()
    });
    let kinds: Vec<_> = outcomes.iter().map(|o| o.error().map_or("ok", ToolError::kind)).collect();
    assert_eq!(kinds, ["ok", "failed", "panicked", "ok"]);
}

#[test]
fn b05_an_exclusive_call_waits_for_those_before_it_and_holds_back_those_after_it() {
    on_every_store(|world| {
        let log = Log::default();
        let tools =
            [timed("read", &world.sim, &log, Effect::Readonly), timed("write", &world.sim, &log, Effect::Idempotent)];
        let runtime = world.runtime(tools);
        world.run(async move {
            let calls = vec![
                call("write", "w1", 20),
                call("read", "r1", 20),
                call("read", "r2", 10),
                call("write", "w2", 10),
                call("read", "r3", 10),
            ];
            runtime.batch(calls, false).await.unwrap()
        });
        let expected = [
            "w1 starts",
            "w1 ends",
            "r1 starts",
            "r2 starts",
            "r2 ends",
            "r1 ends",
            "w2 starts",
            "w2 ends",
            "r3 starts",
            "r3 ends",
        ];
        assert_eq!(log.lines(), expected);
    });
}

#[test]
fn b07_stop_on_failure_skips_calls_that_have_not_started() {
    on_every_store(|world| {
        let ran = Counter::default();
        let (count, again) = (ran.clone(), ran.clone());
        let runtime = world.runtime([
            tool("write", move |_| {
                count.add();
                async { Ok(1) }
            }),
            tool("bad", move |_| {
                again.add();
                async { Err::<Value, _>(ToolError::failed("disk full")) }
            }),
        ]);
        let reader = runtime.clone();
        let outcomes = world.run(async move {
            let calls = ["write", "bad", "write", "write"].map(|name| ToolCall::new(name, json!({})));
            runtime.batch(calls.to_vec(), true).await.unwrap()
        });
        assert_eq!(ran.get(), 2);
        let reason = outcomes[2].for_model()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(reason, "skipped: call 1 (`bad`) failed, and this batch stops on failure");
        assert!(matches!(outcomes[3].error(), Some(ToolError::Cancelled { .. })));
        let journal = world.run(async move { reader.journal(outcomes[0].run).await.unwrap() });
        let finished = journal.iter().filter(|record| matches!(record.event, Event::Finished(_))).count();
        assert_eq!(finished, 5, "everything that ran, or was skipped, is recorded");
    });
}

#[test]
fn e09_calls_that_share_a_key_run_one_at_a_time_in_order_across_runs() {
    on_every_store(|world| {
        let log = Log::default();
        let key = KeyExpression::parse("args.label").unwrap();
        let keyed = timed("pay", &world.sim, &log, Effect::Idempotent).key(key);
        let runtime = world.runtime([keyed]);
        world.run(async move {
            let (a, b, c) = (runtime.clone(), runtime.clone(), runtime.clone());
            let first = async move { a.batch(vec![call("pay", "k", 30), call("pay", "other", 10)], false).await };
            let second = async move { b.call(call("pay", "k", 10)).await };
            let third = async move { c.call(call("pay", "k", 5)).await };
            let (first, second, third) = futures_util::future::join3(first, second, third).await;
            first.unwrap();
            second.unwrap();
            third.unwrap();
        });
        let on_k: Vec<_> = log.lines().into_iter().filter(|line| line.starts_with('k')).collect();
        assert_eq!(on_k, ["k starts", "k ends", "k starts", "k ends", "k starts", "k ends"]);
        let position = |text: &str| log.lines().iter().position(|line| line == text).unwrap();
        assert!(position("other ends") < position("k ends"), "other keys overlap: {:?}", log.lines());
    });
}

#[test]
fn e09_attempts_in_flight_are_bounded() {
    let world = World::new(Kind::Memory);
    let (now, most) = (Counter::default(), Arc::new(Mutex::new(0u32)));
    let in_flight = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let (sim, flying, peak) = (world.sim.clone(), in_flight.clone(), most.clone());
    let work = tool("work", move |_| {
        let (sim, flying, peak, now) = (sim.clone(), flying.clone(), peak.clone(), now.clone());
        async move {
            now.add();
            let n = flying.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
            let mut peak_now = *peak.lock();
            peak_now = peak_now.max(n);
            *peak.lock() = peak_now;
            sim.sleep(Duration::from_millis(5)).await;
            flying.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            Ok(())
        }
    });
    let mut config = world.config([work.effect(Effect::Readonly)]);
    config.in_flight = 3;
    let runtime = windlass_core::Runtime::new(config);
    let outcomes =
        world.run(async move { runtime.batch(vec![ToolCall::new("work", json!({})); 20], false).await.unwrap() });
    assert!(outcomes.iter().all(|outcome| outcome.result.is_ok()));
    assert_eq!(*most.lock(), 3);
    let queued: Vec<u64> = outcomes.iter().map(|outcome| outcome.times.queued).collect();
    assert!(queued[0] == 0 && queued[19] >= 25_000_000, "queue time is reported: {queued:?}");
}

#[test]
fn e09_a_tools_own_limits_hold_across_runs() {
    let world = World::new(Kind::Memory);
    let log = Log::default();
    let one = timed("one", &world.sim, &log, Effect::Readonly).with(|spec| spec.limits.in_flight = Some(1));
    let paced = timed("paced", &world.sim, &log, Effect::Readonly).with(|spec| spec.limits.per_second = Some(10));
    let runtime = world.runtime([one, paced]);
    let times = world.run(async move {
        let ones = runtime.batch(vec![call("one", "a", 10), call("one", "b", 10)], false).await.unwrap();
        let paced = runtime.batch(vec![call("paced", "p", 0); 3], false).await.unwrap();
        (ones[1].times, paced[2].times)
    });
    assert_eq!(times.0.queued, 10_000_000);
    assert_eq!(times.1.queued, 200_000_000, "the third start of ten a second waits two tenths");
}

#[test]
fn e09_a_wait_cycle_of_keys_is_refused_by_name_and_both_runs_end() {
    let world = World::new(Kind::Memory);
    let key = |name: &str| Concurrency::Keyed(KeyExpression::parse(name).unwrap());
    let holder = |name: &'static str, own: &'static str, other: &'static str, sim: Sim| {
        Tool::durable_fn(name, "holds one key and wants another", move |mut ctx: Ctx, _: Value| {
            let sim = sim.clone();
            async move {
                ctx.step("pause", |_| async {
                    sim.sleep(Duration::from_millis(5)).await;
                    Ok(())
                })
                .readonly()
                .await?;
                ctx.call_json(other, json!({})).await
            }
        })
        .with(|spec| spec.guards.concurrency = key(own))
    };
    let leaf = |name: &'static str, own: &str| {
        tool(name, |_| async { Ok("done") }).effect(Effect::Idempotent).key(KeyExpression::parse(own).unwrap())
    };
    let runtime = world.runtime([
        holder("left", "'a'", "wants_b", world.sim.clone()),
        holder("right", "'b'", "wants_a", world.sim.clone()),
        leaf("wants_a", "'a'"),
        leaf("wants_b", "'b'"),
    ]);
    let (left, right) = world.run(async move {
        let (a, b) = (runtime.clone(), runtime);
        let left = async move { a.call(ToolCall::new("left", json!({}))).await.unwrap() };
        let right = async move { b.call(ToolCall::new("right", json!({}))).await.unwrap() };
        futures_util::future::join(left, right).await
    });
    let failed: Vec<_> = [left, right].into_iter().filter(|outcome| outcome.result.is_err()).collect();
    assert_eq!(failed.len(), 1, "the youngest fails, the other goes on");
    let message = failed[0].for_model()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("neither could ever continue") && message.contains("`a`") && message.contains("`b`"),
        "{message}"
    );
}

#[test]
fn l21_calls_nest_to_a_limit() {
    let world = World::new(Kind::Memory);
    let recursive = Tool::durable_fn("down", "calls itself", |mut ctx: Ctx, _: Value| async move {
        ctx.call_json("down", json!({})).await
    });
    let runtime = world.runtime([recursive]);
    let outcome = world.run(async move { runtime.call(ToolCall::new("down", json!({}))).await.unwrap() });
    let message = outcome.for_model()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("nested more than 32 deep"), "{message}");
}

#[test]
fn l21_a_nested_batch_is_journaled_and_replayed() {
    on_every_store(|world| {
        let effects = Counter::default();
        let make = |effects: &Counter| {
            let effects = effects.clone();
            let act = tool("act", move |args| {
                effects.add();
                async move { Ok(args) }
            });
            let parent = Tool::durable_fn("parent", "calls three", |mut ctx: Ctx, stop: Stop| async move {
                let calls: Vec<ToolCall> = (0..3).map(|n| ToolCall::new("act", json!({"n": n}))).collect();
                let done = ctx.call_all(calls).await?;
                if stop.hold {
                    let never =
                        ctx.step("never ends", |_| std::future::pending::<windlass::ToolResult<Value>>()).idempotent();
                    return never.await;
                }
                Ok(json!(done))
            });
            [act, parent.with(|spec| spec.aliases.push("parent-old".into()))]
        };
        let runtime = world.runtime(make(&effects));
        let run = runtime.start_unconfirmed(ToolCall::new("parent", json!({"hold": true}))).unwrap();
        let waiting = runtime.clone();
        world.sim.block_on(async move { waiting.attach(run).await.map(|_| ()) });
        assert_eq!(effects.get(), 3);
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime(make(&effects));
        world.run(async move { runtime.recover().await.unwrap() });
        assert_eq!(effects.get(), 3, "recorded children are not called again");
    });
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Stop {
    hold: bool,
}

#[test]
fn e02_every_kind_of_outcome_is_distinguished() {
    let world = World::new(Kind::Memory);
    let fail =
        |name: &'static str, error: fn() -> ToolError| tool(name, move |_| async move { Err::<Value, _>(error()) });
    let runtime = world.runtime([
        tool("ok", |_| async { Ok(json!({"x": 1})) }),
        fail("failed", || ToolError::failed("no such city")),
        fail("internal", || ToolError::from(std::io::Error::other("password=hunter2"))),
        fail("denied", || ToolError::denied("not you")),
        fail("connection", || ToolError::ConnectionRequired { provider: "github".into() }),
        fail("timeout", || ToolError::TimedOut { message: "upstream".into() }),
    ]);
    let outcomes = world.run(async move {
        let names = ["ok", "failed", "internal", "denied", "connection", "timeout"];
        runtime.batch(names.map(|name| ToolCall::new(name, json!({}))).to_vec(), false).await.unwrap()
    });
    assert_eq!(outcomes[0].for_model(), json!({"x": 1}));
    let kinds: Vec<_> = outcomes[1..].iter().map(|o| o.for_model()["error"]["kind"].clone()).collect();
    assert_eq!(json!(kinds), json!(["failed", "internal", "denied", "connection_required", "timed_out"]));
    let hidden = outcomes[2].for_model().to_string();
    assert!(!hidden.contains("hunter2") && hidden.contains(&outcomes[2].run.to_string()), "{hidden}");
}

#[test]
fn e03_an_internal_error_never_reaches_the_journal() {
    on_every_store(|world| {
        let leak = tool("leak", |_| async { Err::<Value, _>(ToolError::from(std::io::Error::other("hunter2"))) });
        let runtime = world.runtime([leak.effect(Effect::Readonly)]);
        let journal = world.run(async move {
            let outcome = runtime.call(ToolCall::new("leak", json!({}))).await.unwrap();
            runtime.journal(outcome.run).await.unwrap()
        });
        assert!(!serde_json::to_string(&journal).unwrap().contains("hunter2"));
    });
}

#[test]
fn e01_the_runtime_acts_on_approval_connection_and_hints() {
    let world = World::new(Kind::Memory);
    let ran = Counter::default();
    let count = ran.clone();
    let plain = move |name: &'static str| {
        let count = count.clone();
        tool(name, move |_| {
            count.add();
            async { Ok("content") }
        })
    };
    let mut config = world.config([
        plain("always").with(|spec| spec.guards.approval = windlass::tool::spec::Approval::Always),
        plain("when").with(|spec| spec.guards.approval = windlass::tool::spec::Approval::When("args.n > 1".into())),
        plain("github").with(|spec| spec.guards.connection = Some("github".into())),
        plain("mail").with(|spec| spec.guards.connection = Some("mail".into())),
        plain("web").with(|spec| spec.hints.open_world = true),
    ]);
    config.connections = vec!["mail".to_owned()];
    let runtime = windlass_core::Runtime::new(config);
    let outcomes = world.run(async move {
        let names = ["always", "when", "github", "mail", "web"];
        runtime.batch(names.map(|name| ToolCall::new(name, json!({}))).to_vec(), false).await.unwrap()
    });
    let kinds: Vec<_> = outcomes.iter().map(|o| o.error().map_or("ok", ToolError::kind)).collect();
    assert_eq!(kinds, ["denied", "denied", "connection_required", "ok", "ok"], "approval fails closed");
    assert_eq!(ran.get(), 2);
    assert_eq!(outcomes[4].for_model(), json!({"untrusted": true, "result": "content"}));
}

#[test]
fn b04_arguments_are_checked_without_compiling_anything_on_the_way() {
    let world = World::new(Kind::Memory);
    let runtime = world.runtime([Tool::new("double", "", |n: Double| async move { Ok(n.n) })]);
    let before = windlass_core::tool::Contract::compiled();
    let outcomes = world.run(async move {
        let args = [json!({"n": 1}), json!({"n": "one"}), json!({}), json!([]), json!({"n": 1.5})];
        runtime.batch(args.map(|args| ToolCall::new("double", args)).to_vec(), false).await.unwrap()
    });
    let pointer = |i: usize| outcomes[i].for_model()["error"]["violations"][0]["pointer"].clone();
    assert!(outcomes[0].result.is_ok());
    assert_eq!([pointer(1), pointer(2), pointer(3), pointer(4)], [json!("/n"), json!(""), json!(""), json!("/n")]);
    assert_eq!(windlass_core::tool::Contract::compiled(), before, "counted by thread, and the world has one");
}

#[test]
fn an_output_that_breaks_its_own_schema_is_recorded_and_hidden() {
    on_every_store(|world| {
        let schemas =
            windlass::tool::Schemas { input: json!({"type": "object"}), output: Some(json!({"type": "integer"})) };
        struct Liar;
        impl windlass::tool::Atomic for Liar {
            fn attempt(
                &self,
                _: windlass::Call,
            ) -> futures_util::future::BoxFuture<'static, windlass::ToolResult<windlass::Output>> {
                Box::pin(async { Ok(json!("not an integer").into()) })
            }
        }
        let liar = Tool::atomic(windlass::ToolSpec::new("liar", ""), schemas, Liar);
        let runtime = world.runtime([liar]);
        let (outcome, journal) = world.run(async move {
            let outcome = runtime.call(ToolCall::new("liar", json!({}))).await.unwrap();
            let journal = runtime.journal(outcome.run).await.unwrap();
            (outcome, journal)
        });
        assert_eq!(outcome.error().map(ToolError::kind), Some("internal"));
        let Some(Event::Finished(finished)) = journal.last().map(|record| &record.event) else { panic!("{journal:?}") };
        assert!(finished.result.is_ok() && finished.told.is_some(), "the record says that the effect happened");
    });
}

#[test]
fn e01_a_foreground_tool_is_not_started_in_the_background() {
    let world = World::new(Kind::Memory);
    let tool = tool("now", |_| async { Ok(1) });
    let runtime = world.runtime([tool.with(|spec| spec.guards.background = windlass::tool::spec::Background::Never)]);
    let error = runtime.start_unconfirmed(ToolCall::new("now", json!({}))).unwrap_err().to_string();
    assert_eq!(error, "`now` does not run in the background: call it and wait");
    let outcome = world.run(async move { runtime.call(ToolCall::new("now", json!({}))).await.unwrap() });
    assert!(outcome.result.is_ok());
}
