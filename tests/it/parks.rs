//! Waiting: answers from outside, times, races, and runs that cost a row while they wait.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::ctx::First2;
use windlass::inbox::{ReplyResult, Resolution};
use windlass::run::RunState;
use windlass::tool::Reply;
use windlass::{Call, Ctx, RunId, Tool, ToolCall, ToolError, park};
use windlass_core::Runtime;
use windlass_core::time::Clock;

use crate::world::{Counter, Kind, World, on_every_store};

const HOUR: Duration = Duration::from_secs(3_600);
const MOMENT: Duration = Duration::from_secs(1);

fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({}))
}

fn ok(value: Value) -> Resolution {
    Resolution::Ok { value }
}

/// Waits for a manager, then acts once.
fn approval(acted: &Counter) -> Tool {
    let acted = acted.clone();
    Tool::durable_fn("approval", "waits", move |mut ctx: Ctx, _: Value| {
        let acted = acted.clone();
        async move {
            let word: String = ctx.wait("manager").within(3 * HOUR).await?;
            let n: u32 = ctx.step("act", |_| async { Ok(acted.add()) }).await?;
            Ok(json!([word, n]))
        }
    })
}

fn is_suspended(world: &World, runtime: &Runtime, run: RunId) -> bool {
    let runtime = runtime.clone();
    let info = world.run(async move { runtime.info(run).await }).expect("the store answers").expect("the run is there");
    matches!(info.state, RunState::Suspended { .. })
}

/// The reply key of the only pending wait.
fn key(world: &World, runtime: &Runtime) -> String {
    let runtime = runtime.clone();
    let inbox = world.run(async move { runtime.inbox().await }).expect("the store answers");
    assert_eq!(inbox.len(), 1, "{inbox:?}");
    inbox[0].key.clone().expect("a wait has a key")
}

fn resolve(world: &World, runtime: &Runtime, key: &str, resolution: Resolution) -> ReplyResult {
    let (runtime, key) = (runtime.clone(), key.to_owned());
    world.run(async move { runtime.resolve(&key, resolution).await }).expect("the key is one")
}

fn outcome(world: &World, runtime: &Runtime, run: RunId) -> Result<Value, ToolError> {
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).expect("the run ends");
    outcomes[0].result.clone().map(|output| output.value.clone()).map_err(|error| (*error).clone())
}

fn start(world: &World, runtime: &Runtime, name: &str) -> RunId {
    let run = runtime.start_unconfirmed(call(name)).expect("it starts");
    world.pass(MOMENT);
    run
}

#[test]
fn l10_a_body_waits_for_an_answer_and_w03_costs_a_row_meanwhile() {
    on_every_store(|world| {
        let acted = Counter::default();
        let runtime = world.runtime([approval(&acted)]);
        let run = start(&world, &runtime, "approval");
        assert!(is_suspended(&world, &runtime, run));
        assert_eq!(world.sim.tasks(), 1, "only the alarm for the deadline is left");
        let key = key(&world, &runtime);
        assert!(matches!(resolve(&world, &runtime, &key, ok(json!("yes"))), ReplyResult::Accepted));
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!(["yes", 1]));
    });
}

#[test]
fn l08_the_first_answer_counts_and_a_late_one_gets_it() {
    on_every_store(|world| {
        let runtime = world.runtime([approval(&Counter::default())]);
        let run = start(&world, &runtime, "approval");
        let key = key(&world, &runtime);
        // Two answers before the run has processed either.
        let (first, second) = (runtime.clone(), runtime.clone());
        let (a, b) = (key.clone(), key.clone());
        let (one, other) = world.run(async move {
            let one = first.resolve(&a, ok(json!("one"))).await.expect("a key");
            let other = second.resolve(&b, ok(json!("other"))).await.expect("a key");
            (one, other)
        });
        assert!(matches!(one, ReplyResult::Accepted));
        let ReplyResult::Already(Ok(terminal)) = other else { panic!("{other:?}") };
        assert_eq!(terminal.value, json!("one"));
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!(["one", 1]));
        // And once more after the run has ended, also in another process.
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([approval(&Counter::default())]);
        let late = resolve(&world, &runtime, &key, ok(json!("late")));
        let ReplyResult::Already(Ok(terminal)) = late else { panic!("{late:?}") };
        assert_eq!(terminal.value, json!("one"));
    });
}

#[test]
fn l10_the_resolvers_own_error_reaches_the_body_with_its_code() {
    on_every_store(|world| {
        let runtime = world.runtime([approval(&Counter::default())]);
        for (resolution, kind) in [
            (Resolution::Err { code: "too_dear".into(), message: "no".into(), data: None }, "failed"),
            (Resolution::Timeout, "timed_out"),
            (Resolution::Cancelled { reason: "gone".into() }, "cancelled"),
        ] {
            let run = start(&world, &runtime, "approval");
            let key = key(&world, &runtime);
            resolve(&world, &runtime, &key, resolution);
            let error = outcome(&world, &runtime, run).unwrap_err();
            assert_eq!(error.kind(), kind);
            assert_eq!(error.code(), (kind == "failed").then_some("too_dear"));
        }
    });
}

#[test]
fn l06_a_deadline_is_durable_and_a_restart_does_not_begin_it_again() {
    on_every_store(|world| {
        let runtime = world.runtime([approval(&Counter::default())]);
        let run = start(&world, &runtime, "approval");
        world.pass(HOUR);
        world.pass(HOUR);
        drop(runtime);
        let world = world.restart();
        // The other process is started two hours later.
        world.pass(2 * HOUR);
        let runtime = world.runtime([approval(&Counter::default())]);
        let again = runtime.clone();
        world.run(async move { again.recover().await }).unwrap();
        assert!(is_suspended(&world, &runtime, run), "an hour is left");
        let before = world.sim.now();
        let error = outcome(&world, &runtime, run).unwrap_err();
        assert_eq!(error.kind(), "timed_out");
        let waited = world.sim.now().since(before);
        assert!(waited > HOUR - 10 * MOMENT && waited < HOUR + MOMENT, "{waited:?}");
    });
}

/// The key with one character of its signature changed; the secret of a file is random.
pub(crate) fn forge(key: &str) -> String {
    let place = key.len() - 20;
    let other = if &key[place..=place] == "A" { "B" } else { "A" };
    format!("{}{other}{}", &key[..place], &key[place + 1..])
}

#[test]
fn l07_keys_are_stable_over_restarts_and_forged_ones_are_refused() {
    on_every_store(|world| {
        let runtime = world.runtime([approval(&Counter::default())]);
        start(&world, &runtime, "approval");
        let before = key(&world, &runtime);
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([approval(&Counter::default())]);
        assert_eq!(key(&world, &runtime), before);
        let forged = forge(&before);
        let (again, text) = (runtime.clone(), forged.clone());
        let error = world.run(async move { again.resolve(&text, ok(json!(1))).await }).unwrap_err().to_string();
        assert!(error.contains(&forged) && error.contains("exactly as it was handed out"), "{error}");
    });
}

/// A tool whose answer comes later.
fn office(asked: &Counter) -> Tool {
    let asked = asked.clone();
    Tool::with_call("office", "asks the office", move |call: Call, _: Value| {
        let asked = asked.clone();
        async move {
            asked.add();
            assert!(call.reply_key().starts_with("wlk1_"));
            Ok(Reply::<Value>::later().within(HOUR))
        }
    })
}

#[test]
fn l06_an_atomic_body_answers_pending_and_the_call_survives_a_restart() {
    on_every_store(|world| {
        let asked = Counter::default();
        let runtime = world.runtime([office(&asked)]);
        let run = start(&world, &runtime, "office");
        assert!(is_suspended(&world, &runtime, run));
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([office(&asked)]);
        let again = runtime.clone();
        world.run(async move { again.recover().await }).unwrap();
        let key = key(&world, &runtime);
        resolve(&world, &runtime, &key, ok(json!({"stamp": 7})));
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!({"stamp": 7}));
        assert_eq!(asked.get(), 1, "the office was asked once");
    });
}

#[test]
fn e09_a_pending_call_keeps_its_key_until_it_is_answered_also_after_a_restart() {
    on_every_store(|world| {
        let by_account = || windlass::tool::spec::KeyExpression::parse("args.account").unwrap();
        let (asked, sent) = (Counter::default(), Counter::default());
        let tools = || {
            let counted = sent.clone();
            let send = Tool::new("send", "sends", move |_: Value| {
                let n = counted.add();
                async move { Ok(n) }
            });
            [office(&asked).key(by_account()), send.key(by_account())]
        };
        let on = |name: &str, account: &str| ToolCall::new(name, json!({"account": account}));
        let mut config = world.config(tools());
        // One attempt at a time: a pending call holds no permit.
        config.in_flight = 1;
        let runtime = Runtime::new(config);
        let run = runtime.start_unconfirmed(on("office", "ann")).unwrap();
        world.pass(MOMENT);
        let same = runtime.start_unconfirmed(on("send", "ann")).unwrap();
        let other = runtime.start_unconfirmed(on("send", "bob")).unwrap();
        assert_eq!(outcome(&world, &runtime, other).unwrap(), json!(1), "another key is free, and so is the permit");
        world.pass(MOMENT);
        assert_eq!(sent.get(), 1, "the key is taken while the answer is pending");
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime(tools());
        let again = runtime.clone();
        world.run(async move { again.recover().await }).unwrap();
        let next = runtime.start_unconfirmed(on("send", "ann")).unwrap();
        world.pass(MOMENT);
        assert_eq!(sent.get(), 1, "a restart does not give it back");
        let key = key(&world, &runtime);
        resolve(&world, &runtime, &key, ok(json!("stamped")));
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!("stamped"));
        for waited in [same, next] {
            outcome(&world, &runtime, waited).unwrap();
        }
        assert_eq!(sent.get(), 3, "the next in the queue continues when it is answered");
        assert_eq!(asked.get(), 1);
    });
}

#[test]
fn l08_an_early_answer_is_kept() {
    on_every_store(|world| {
        let runtime_slot: Arc<std::sync::Mutex<Option<Runtime>>> = Arc::default();
        let slot = runtime_slot.clone();
        let eager = Tool::with_call("eager", "is answered before it waits", move |call: Call, _: Value| {
            let runtime = slot.lock().unwrap().clone().unwrap();
            async move {
                let told = runtime.resolve(&call.reply_key(), ok(json!("early"))).await;
                assert!(matches!(told, Ok(ReplyResult::Accepted)), "{told:?}");
                Ok(Reply::<Value>::later())
            }
        });
        let runtime = world.runtime([eager]);
        *runtime_slot.lock().unwrap() = Some(runtime.clone());
        let again = runtime.clone();
        let outcome = world.run(async move { again.call(call("eager")).await }).unwrap();
        assert_eq!(outcome.result.unwrap().value, json!("early"));
        *runtime_slot.lock().unwrap() = None;
    });
}

#[test]
fn l10_first_continues_with_the_first_and_revokes_the_losing_wait() {
    on_every_store(|world| {
        let race = || {
            Tool::durable_fn("race", "waits or not", |mut ctx: Ctx, _: Value| async move {
                let first = ctx.first((park::wait::<String>("boss"), park::sleep(HOUR))).await?;
                Ok(match first {
                    First2::A(word) => json!({"boss": word}),
                    First2::B(()) => json!("slept"),
                })
            })
        };
        let runtime = world.runtime([race()]);
        let run = start(&world, &runtime, "race");
        let boss = key(&world, &runtime);
        world.pass(2 * HOUR);
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!("slept"));
        let late = resolve(&world, &runtime, &boss, ok(json!("late")));
        assert!(matches!(late, ReplyResult::Revoked { .. }), "{late:?}");

        let run = start(&world, &runtime, "race");
        let boss = key(&world, &runtime);
        resolve(&world, &runtime, &boss, ok(json!("go")));
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([race()]);
        let again = runtime.clone();
        world.run(async move { again.recover().await }).unwrap();
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!({"boss": "go"}));
    });
}

#[test]
fn l10_an_open_wait_is_handed_out_and_awaited_repeatedly() {
    on_every_store(|world| {
        let keys: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
        let sent = keys.clone();
        let patient = Tool::durable_fn("patient", "asks and asks", move |mut ctx: Ctx, _: Value| {
            let sent = sent.clone();
            async move {
                let mut reply = ctx.open_wait::<u32>("number");
                let key = reply.key().to_owned();
                ctx.step("hand it out", |_| {
                    sent.lock().unwrap().push(key.clone());
                    async { Ok(()) }
                })
                .await?;
                let mut tries = 0;
                loop {
                    tries += 1;
                    match ctx.answer(&mut reply).within(HOUR).await {
                        Err(ToolError::TimedOut { .. }) => {}
                        other => {
                            let again = ctx.answer(&mut reply).await?;
                            return Ok(json!([other?, again, tries]));
                        }
                    }
                }
            }
        });
        let runtime = world.runtime([patient]);
        let run = start(&world, &runtime, "patient");
        world.pass(2 * HOUR + HOUR / 2);
        let key = keys.lock().unwrap()[0].clone();
        resolve(&world, &runtime, &key, ok(json!(42)));
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!([42, 42, 3]));
        assert_eq!(keys.lock().unwrap().len(), 1);
    });
}

#[test]
fn w03_retry_delays_and_doubts_suspend_too() {
    on_every_store(|world| {
        let tries = Counter::default();
        let counted = tries.clone();
        let flaky = Tool::new("flaky", "fails once", move |_: Value| {
            let n = counted.add();
            async move { if n == 1 { Err(ToolError::retry_after("busy", HOUR)) } else { Ok(json!(n)) } }
        });
        let lost = Tool::new("lost", "never ends", |_: Value| std::future::pending::<windlass::ToolResult<Value>>());
        let runtime = world.runtime([flaky, lost]);
        let run = start(&world, &runtime, "flaky");
        assert!(is_suspended(&world, &runtime, run));
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!(2));
        let run = start(&world, &runtime, "lost");
        world.pass(HOUR);
        assert!(is_suspended(&world, &runtime, run));
        let again = runtime.clone();
        world.run(async move {
            let (run, doubt) = again.doubts().await.unwrap().remove(0);
            again.settle(run, &doubt.path, windlass::inbox::Settlement::GiveUp, "ada", "cannot tell").await.unwrap();
        });
        assert_eq!(outcome(&world, &runtime, run).unwrap_err().kind(), "in_doubt");
    });
}

#[test]
fn w03_a_suspended_run_is_cancelled_and_cleans_up() {
    on_every_store(|world| {
        let cleaned = Counter::default();
        let counted = cleaned.clone();
        let tidy = Tool::durable_fn("tidy", "cleans up", move |mut ctx: Ctx, _: Value| {
            let counted = counted.clone();
            async move {
                let waited = ctx.wait::<Value>("no answer").await;
                ctx.step("clean up", |_| async { Ok(counted.add()) }).await?;
                waited
            }
        });
        let runtime = world.runtime([tidy]);
        let run = start(&world, &runtime, "tidy");
        assert!(is_suspended(&world, &runtime, run));
        let again = runtime.clone();
        world.run(async move { again.cancel(run, "ada", "changed her mind").await }).unwrap();
        let error = outcome(&world, &runtime, run).unwrap_err();
        assert!(error.to_string().contains("changed her mind"), "{error}");
        assert_eq!(cleaned.get(), 1);
    });
}

#[test]
fn w03_parallel_branches_are_suspended_once_all_of_them_wait() {
    on_every_store(|world| {
        let both = Tool::durable_fn("both", "two at once", |mut ctx: Ctx, _: Value| async move {
            let (a, b) = ctx.call_all((call("office"), call("approval"))).await?;
            Ok(json!([a, b]))
        });
        let runtime = world.runtime([both, approval(&Counter::default()), office(&Counter::default())]);
        let run = start(&world, &runtime, "both");
        assert!(is_suspended(&world, &runtime, run));
        let again = runtime.clone();
        let inbox = world.run(async move { again.inbox().await }).unwrap();
        assert_eq!(inbox.len(), 2);
        for waiting in inbox {
            resolve(&world, &runtime, &waiting.key.unwrap(), ok(json!("fine")));
            world.pass(MOMENT);
        }
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!(["fine", ["fine", 1]]));
    });
}

#[test]
fn w03_a_deadline_around_a_wait_wakes_the_suspended_run() {
    on_every_store(|world| {
        let outer = Tool::durable_fn("outer", "impatient", |mut ctx: Ctx, _: Value| async move {
            let inner = ctx.call(call("approval").deadline(HOUR)).await;
            Ok(json!(inner.unwrap_err().kind()))
        });
        let runtime = world.runtime([outer, approval(&Counter::default())]);
        let run = start(&world, &runtime, "outer");
        assert!(is_suspended(&world, &runtime, run));
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!("timed_out"));
    });
}

#[test]
fn l08_closing_a_session_revokes_its_keys_and_unknown_keys_are_distinguished() {
    on_every_store(|world| {
        let runtime = world.runtime([approval(&Counter::default())]);
        let started = runtime.clone();
        let run = world.run(async move {
            let how = windlass::run::Start::session("office");
            started.start_with(call("approval"), how).await.unwrap()
        });
        world.pass(MOMENT);
        let office = key(&world, &runtime);
        let closing = runtime.clone();
        assert_eq!(world.run(async move { closing.close_session("office", "closing time").await }).unwrap(), 1);
        let error = outcome(&world, &runtime, run).unwrap_err().to_string();
        assert!(error.contains("revoked") && error.contains("closing time"), "{error}");
        let late = resolve(&world, &runtime, &office, ok(json!("late")));
        assert!(matches!(&late, ReplyResult::Revoked { reason } if reason.contains("closing time")), "{late:?}");
        // A key that was signed here, of a run that does not exist.
        let other = World::new(Kind::Memory);
        let elsewhere = other.runtime([approval(&Counter::default())]);
        let (again, text) = (elsewhere.clone(), office.clone());
        let forged = other.run(async move { again.resolve(&text, ok(json!(1))).await }).unwrap_err().to_string();
        assert!(forged.contains("not a reply key of this store"), "{forged}");
    });
}
