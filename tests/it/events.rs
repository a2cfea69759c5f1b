//! Named events: in one body, the same name is the same event, with one key and one answer.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::ctx::First2;
use windlass::inbox::{Awaited, ReplyResult, Resolution};
use windlass::run::record::{Asked, Event, OpKind, Record};
use windlass::testing::{CrashMatrix, Ledger};
use windlass::{Ctx, Effect, Path, RunId, Tool, ToolCall, ToolError, ToolResult, park};
use windlass_core::Runtime;
use windlass_core::run::state::Blocked;
use windlass_core::store::{Change, Commit, Creation, Guard};

use crate::crash::once;
use crate::crash_parks::check_parked;
use crate::world::{World, on_every_store};

const HOUR: Duration = Duration::from_secs(3_600);
const MOMENT: Duration = Duration::from_secs(1);

fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({}))
}

fn ok(value: Value) -> Resolution {
    Resolution::Ok { value }
}

fn start(world: &World, runtime: &Runtime, name: &str) -> RunId {
    let run = runtime.start_unconfirmed(call(name)).expect("it starts");
    world.pass(MOMENT);
    run
}

fn inbox(world: &World, runtime: &Runtime) -> Vec<Awaited> {
    let runtime = runtime.clone();
    world.run(async move { runtime.inbox().await }).expect("the store answers")
}

/// The key of the only wait.
fn key(world: &World, runtime: &Runtime) -> String {
    let inbox = inbox(world, runtime);
    assert_eq!(inbox.len(), 1, "{inbox:?}");
    inbox[0].key.clone().expect("a wait has a key")
}

fn resolve(world: &World, runtime: &Runtime, key: &str, resolution: Resolution) -> ReplyResult {
    let (runtime, key) = (runtime.clone(), key.to_owned());
    world.run(async move { runtime.resolve(&key, resolution).await }).expect("the key is one")
}

fn outcome(world: &World, runtime: &Runtime, run: RunId) -> Value {
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).expect("the run ends");
    outcomes[0].for_model()
}

fn text(result: ToolResult<String>) -> String {
    result.unwrap_or_else(|error| error.to_string())
}

#[test]
fn l10_a_second_wait_for_an_answered_event_has_its_answer_at_once() {
    on_every_store(|world| {
        let body = || {
            Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
                let first = text(ctx.wait("boss").await);
                let second = text(ctx.wait("boss").within(HOUR).await);
                let raced = match ctx.first((park::wait::<String>("boss"), park::sleep(HOUR))).await? {
                    First2::A(word) => word,
                    First2::B(()) => "slept".to_owned(),
                };
                let mut open = ctx.open_wait::<String>("boss");
                let opened = text(ctx.answer(&mut open).await);
                ctx.sleep(HOUR).await?;
                Ok(json!([first, second, raced, opened, text(ctx.wait("boss").await)]))
            })
        };
        for (resolution, word) in [
            (ok(json!("yes")), "yes"),
            (Resolution::Err { code: "no_budget".into(), message: "no money".into(), data: None }, "failed: no money"),
            (Resolution::Timeout, "timed out: the other side answered that it timed out"),
            (Resolution::Cancelled { reason: "on leave".into() }, "cancelled: on leave"),
        ] {
            let runtime = Runtime::new(world.another([body()]));
            let run = start(&world, &runtime, "body");
            let key = key(&world, &runtime);
            let raced = if word == "yes" { json!("yes") } else { json!(null) };
            assert!(matches!(resolve(&world, &runtime, &key, resolution.clone()), ReplyResult::Accepted));
            world.pass(MOMENT);
            let late = resolve(&world, &runtime, &key, ok(json!("late")));
            assert!(matches!(late, ReplyResult::Already(_)), "{late:?}");
            assert!(inbox(&world, &runtime).is_empty(), "nothing waits for it any more");
            let said = outcome(&world, &runtime, run);
            match raced {
                Value::Null => assert_eq!(said["error"]["message"].as_str().map(|m| word.ends_with(m)), Some(true)),
                raced => assert_eq!(said, json!([word, word, raced, word, word])),
            }
        }
    });
}

/// Waits for one event again and again, in several ways, until it is answered.
fn patient() -> Tool {
    Tool::durable_fn("patient", "", |mut ctx: Ctx, _: Value| async move {
        let mut tries = Vec::new();
        for _ in 0..2 {
            match ctx.wait::<String>("boss").within(HOUR).await {
                Err(ToolError::TimedOut { .. }) => tries.push("late".to_owned()),
                answer => tries.push(answer?),
            }
        }
        for _ in 0..2 {
            match ctx.first((park::wait::<String>("boss"), park::sleep(HOUR))).await? {
                First2::A(word) => tries.push(word),
                First2::B(()) => tries.push("slept".to_owned()),
            }
        }
        let mut open = ctx.open_wait::<String>("boss");
        let _handed_out: String = ctx
            .step("hand out", |_| {
                let key = open.key().to_owned();
                async move { Ok(key) }
            })
            .await?;
        tries.push(match ctx.answer(&mut open).within(HOUR).await {
            Err(ToolError::TimedOut { .. }) => "late".to_owned(),
            answer => answer?,
        });
        tries.push(ctx.wait("boss").await?);
        Ok(json!(tries))
    })
}

#[test]
fn l10_an_unanswered_event_keeps_its_key_however_often_it_is_waited_for() {
    on_every_store(|world| {
        let expected = ["late", "late", "slept", "slept", "late"];
        for answered in 0..=5u32 {
            let runtime = Runtime::new(world.another([patient()]));
            let run = start(&world, &runtime, "patient");
            let first = key(&world, &runtime);
            world.pass(HOUR * answered);
            assert_eq!(key(&world, &runtime), first, "after {answered} hours");
            assert!(matches!(resolve(&world, &runtime, &first, ok(json!("go"))), ReplyResult::Accepted));
            let ReplyResult::Already(Ok(said)) = resolve(&world, &runtime, &first, ok(json!("no"))) else { panic!() };
            assert_eq!(said.value, json!("go"));
            let mut all: Vec<&str> = expected[..answered as usize].to_vec();
            all.resize(6, "go");
            assert_eq!(outcome(&world, &runtime, run), json!(all), "answered after {answered} hours");
            let ReplyResult::Already(Ok(said)) = resolve(&world, &runtime, &first, ok(json!("no"))) else { panic!() };
            assert_eq!(said.value, json!("go"), "also after the run has ended");
        }
    });
}

#[test]
fn l10_a_wait_that_timed_out_is_closed_until_it_is_asked_for_again() {
    on_every_store(|world| {
        let body = Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
            let first = ctx.wait::<String>("boss").within(HOUR).await.unwrap_err().kind();
            ctx.sleep(HOUR).await?;
            Ok(json!([first, ctx.wait::<String>("boss").await?]))
        });
        let runtime = world.runtime([body]);
        let run = start(&world, &runtime, "body");
        let key = key(&world, &runtime);
        world.pass(HOUR + MOMENT);
        let early = resolve(&world, &runtime, &key, ok(json!("between")));
        assert!(matches!(&early, ReplyResult::Already(Err(error)) if error.kind() == "timed_out"), "{early:?}");
        world.pass(HOUR);
        assert!(matches!(resolve(&world, &runtime, &key, ok(json!("again"))), ReplyResult::Accepted));
        assert_eq!(outcome(&world, &runtime, run), json!(["timed_out", "again"]));
    });
}

#[test]
fn l10_a_cancelled_wait_can_be_asked_for_again_while_the_body_cleans_up() {
    on_every_store(|world| {
        let body = Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
            let first = ctx.wait::<String>("boss").await.unwrap_err().to_string();
            let again = ctx.wait::<String>("boss").within(Duration::from_secs(20)).await?;
            Ok(json!([first, again]))
        });
        let runtime = world.runtime([body]);
        let run = start(&world, &runtime, "body");
        let before = key(&world, &runtime);
        let cancelling = runtime.clone();
        world.run(async move { cancelling.cancel(run, "ann", "rain").await }).unwrap();
        world.pass(MOMENT);
        assert_eq!(key(&world, &runtime), before);
        assert!(matches!(resolve(&world, &runtime, &before, ok(json!("stay"))), ReplyResult::Accepted));
        assert_eq!(outcome(&world, &runtime, run), json!(["cancelled: rain", "stay"]));
    });
}

#[test]
fn l10_other_names_and_other_bodies_are_other_events() {
    on_every_store(|world| {
        let inner =
            Tool::durable_fn("inner", "", |mut ctx: Ctx, _: Value| async move { ctx.wait::<Value>("boss").await });
        let body = Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
            let own: Value = ctx.wait("boss").await?;
            let inner = ctx.call(call("inner")).await?;
            let mut pages = Vec::new();
            for page in 0..2 {
                pages.push(ctx.wait::<Value>(format!("page {page}")).await?);
            }
            Ok(json!([own, inner, pages]))
        });
        let runtime = world.runtime([body, inner]);
        let run = start(&world, &runtime, "body");
        let mut keys = Vec::new();
        for n in 0..4 {
            let key = key(&world, &runtime);
            assert!(!keys.contains(&key));
            resolve(&world, &runtime, &key, ok(json!(n)));
            world.pass(MOMENT);
            keys.push(key);
        }
        assert_eq!(outcome(&world, &runtime, run), json!([0, 1, [2, 3]]));
    });
}

#[test]
fn l10_an_event_that_is_waited_for_again_survives_every_crash() {
    fn tools(ledger: &Ledger) -> Vec<Tool> {
        let body = Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
            let mut tries = Vec::new();
            for _ in 0..2 {
                tries.push(ctx.wait::<String>("boss").within(HOUR).await.map_err(|error| error.kind().to_owned()));
            }
            match ctx.first((park::wait::<String>("boss"), park::sleep(HOUR))).await? {
                First2::A(word) => tries.push(Ok(word)),
                First2::B(()) => tries.push(Err("slept".to_owned())),
            }
            let acted = ctx.call_json("act", json!({})).await?;
            tries.push(ctx.wait::<String>("boss").await.map_err(|error| error.kind().to_owned()));
            Ok(json!([tries, acted]))
        });
        vec![body, once(ledger, "act")]
    }
    let answered_after = |hours: u32| {
        check_parked(|| {
            CrashMatrix::new(tools).call(call("body")).outside(move |outside| {
                let inbox = outside.inbox();
                assert!(inbox.len() <= 1, "one event is listed once: {inbox:?}");
                for item in inbox {
                    let Blocked::Input { at, .. } = &item.park.on else { panic!("{item:?}") };
                    let made_at = at.as_ref().unwrap_or(&item.park.path);
                    assert_eq!(made_at.to_string(), "0", "every wait has the key of the first");
                }
                if outside.time() >= hours * HOUR {
                    outside.answer("boss", json!("go"));
                }
            })
        })
    };
    let (late, slept, go) = (json!({"Err": "timed_out"}), json!({"Err": "slept"}), json!({"Ok": "go"}));
    assert_eq!(answered_after(0).outcome, json!([[[go, go, go, go], {"done": "act"}]]));
    assert_eq!(answered_after(1).outcome, json!([[[late, go, go, go], {"done": "act"}]]));
    assert_eq!(answered_after(3).outcome, json!([[[late, late, slept, go], {"done": "act"}]]));
}

/// A journal in which each wait has a key of its own, as older versions wrote it.
#[test]
fn l10_a_body_of_an_older_journal_keeps_a_key_for_each_wait() {
    on_every_store(|world| {
        let body = || {
            Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
                let mut all = Vec::new();
                for _ in 0..3 {
                    all.push(ctx.wait::<Value>("next").await?);
                }
                Ok(json!(all))
            })
        };
        let run = RunId::from_bytes([9; 16]);
        let at = windlass::Timestamp::from_micros(1);
        let asked = |kind, name: &str| Some(Asked::operation(kind, name.into(), None, Effect::Readonly));
        let root = Asked { input: Some(std::sync::Arc::new(json!({}))), ..asked(OpKind::Call, "body").unwrap() };
        let wait = |n: u32| Path::root().child(n);
        let parked = || Event::Parked { on: Blocked::Input { name: "next".into(), at: None }, until: None, attempt: 0 };
        let finished: Event = serde_json::from_value(json!({"type": "finished", "result": {"ok": {"value": "a"}},
            "attempts": 1, "times": {"queued": 0, "running": 0, "total": 0}}))
        .unwrap();
        let record = |path: Path, asked, event| Record { path, at, asked, event };
        let records = vec![
            record(Path::root(), Some(root), Event::Accepted),
            record(Path::root(), None, Event::Entered),
            record(wait(0), asked(OpKind::Wait, "next"), parked()),
            record(wait(0), None, finished),
            record(wait(1), asked(OpKind::Wait, "next"), parked()),
        ];
        let creation = Creation { tool: "body".into(), at, ..Creation::default() };
        let store = world.store.clone();
        let changes = vec![Change::Start { run, creation, records }];
        world.run(async move { store.commit(Commit { guard: Guard::Outsider, changes }).get().await }).unwrap();
        let runtime = world.runtime([body()]);
        let recovering = runtime.clone();
        world.run(async move { recovering.recover().await }).unwrap();
        world.pass(MOMENT);
        let second = key(&world, &runtime);
        resolve(&world, &runtime, &second, ok(json!("b")));
        world.pass(MOMENT);
        let third = key(&world, &runtime);
        assert_ne!(second, third, "the body continues as it began");
        resolve(&world, &runtime, &third, ok(json!("c")));
        assert_eq!(outcome(&world, &runtime, run), json!(["a", "b", "c"]));
    });
}
