//! Why is a run not progressing? One true sentence for every state of a run, and what would make it progress.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::Blocked;
use windlass::run::explain::Why;
use windlass::run::{Explanation, Start, Turn};
use windlass::tool::Reply;
use windlass::tool::spec::{KeyExpression, Retry};
use windlass::{Call, Ctx, Effect, Policy, RunId, Tool, ToolCall, ToolError};
use windlass_core::Runtime;

use crate::world::{Kind, World, on_every_store, tool};

const HOUR: Duration = Duration::from_secs(3_600);
const MOMENT: Duration = Duration::from_secs(1);

fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({}))
}

fn start(world: &World, runtime: &Runtime, name: &str) -> RunId {
    let run = runtime.start_unconfirmed(call(name)).expect("it starts");
    world.pass(MOMENT);
    run
}

fn explain(world: &World, runtime: &Runtime, run: RunId) -> Explanation {
    let runtime = runtime.clone();
    let explanation = world.run(async move { runtime.explain(run).await }).expect("the run is there");
    check(&explanation);
    explanation
}

/// Checks every explanation: it names the run and its tool, and what happened or what would make it progress.
fn check(explanation: &Explanation) {
    let Explanation { run, tool, sentence, moves, .. } = explanation;
    assert!(sentence.starts_with(&format!("Run {run} of `{tool}` ")) && sentence.ends_with('.'), "{sentence}");
    let over = matches!(explanation.state, windlass::run::RunState::Finished { .. });
    assert_eq!(moves.is_empty(), over, "an unfinished run is moved by something: {explanation:?}");
    let verbs = ["continues", "ends", "starts", "must approve", "settle it", "resume", "split the work"];
    for one in moves {
        assert!(verbs.iter().any(|verb| one.sentence.contains(verb)), "nothing moves it: {}", one.sentence);
        assert!(sentence.contains(&one.sentence) || moves.len() > 3, "{sentence} misses {}", one.sentence);
    }
    let json = serde_json::to_value(explanation).expect("it is JSON");
    assert_eq!(json["moves"].as_array().map(Vec::len), Some(moves.len()));
}

/// Every word is in the sentence.
fn says(explanation: &Explanation, words: &[&str]) {
    for word in words {
        assert!(explanation.sentence.contains(word), "{word:?} is not in {:?}", explanation.sentence);
    }
}

fn hangs(name: &str, effect: Effect) -> Tool {
    tool(name, |_| std::future::pending::<windlass::ToolResult<()>>()).effect(effect).timeout(2 * HOUR)
}

#[test]
fn w12_a_running_attempt_is_named_with_its_start_and_its_end() {
    on_every_store(|world| {
        let runtime = world.runtime([hangs("charge", Effect::Once), hangs("look", Effect::Readonly)]);
        let run = start(&world, &runtime, "charge");
        let why = explain(&world, &runtime, run);
        says(&why, &["is running", "attempt 1 of call of tool `charge` started 1 s ago (2026-09-21T14:13:20Z)"]);
        says(&why, &["it ends by itself, at the latest in 1 h 59 min (2026-09-21T16:13:"]);
        assert!(matches!(why.moves[0].why, Why::Attempt { attempt: 1, over_by: Some(_), .. }));
        let run = start(&world, &runtime, "look");
        says(&explain(&world, &runtime, run), &["call of tool `look` started 1 s ago", "times out after 2 h"]);
    });
}

#[test]
fn w12_a_waiting_run_says_for_what_and_until_when() {
    on_every_store(|world| {
        let waits = Tool::durable_fn("waits", "waits", |mut ctx: Ctx, args: Value| async move {
            match args["for"].as_str().unwrap_or_default() {
                "input" => ctx.wait("manager").within(3 * HOUR).await,
                "signal" => ctx.receive("stop").within(3 * HOUR).await,
                _ => ctx.sleep(3 * HOUR).await.map(|()| json!(null)),
            }
        });
        let pending = Tool::with_call("pending", "answers later", |_: Call, _: Value| async {
            Ok(Reply::<Value>::Later { within: Some(HOUR) })
        });
        let guarded = tool("charge", |_| async { Ok(1) }).approval_when("args.cents > 100");
        let mailer = tool("mail", |_| async { Ok(1) }).with(|spec| spec.guards.connection = Some("gmail".into()));
        let runtime = world.runtime([waits.signal::<Value>("stop"), pending, guarded, mailer]);
        let cases: [(ToolCall, &[&str]); 6] = [
            (
                ToolCall::new("waits", json!({"for": "input"})),
                &[
                    "wait for \"manager\" at 0",
                    "it continues when \"manager\" is answered with its reply key",
                    "times out in 2 h 59 min",
                ],
            ),
            (ToolCall::new("waits", json!({"for": "signal"})), &["when the run gets the signal \"stop\""]),
            (
                ToolCall::new("waits", json!({"for": "time"})),
                &["sleep at 0", "continues by itself in 2 h 59 min (2026-"],
            ),
            (call("pending"), &["is answered with its reply key", "times out in 59 min"]),
            (
                ToolCall::new("charge", json!({"cents": 500})),
                &["a person must approve or deny this call of `charge`", "args.cents > 100", "denied in 23 h 59 min"],
            ),
            (call("mail"), &["a person connects gmail"]),
        ];
        for (call, words) in cases {
            let run = runtime.start_unconfirmed(call).expect("it starts");
            world.pass(MOMENT);
            let why = explain(&world, &runtime, run);
            says(&why, &["is suspended"]);
            says(&why, words);
            assert!(matches!(why.moves[0].why, Why::Waits { .. }), "{why:?}");
        }
    });
}

#[test]
fn w12_a_failed_attempt_says_when_the_next_one_is() {
    on_every_store(|world| {
        let flaky = tool("flaky", |_| async { Err::<(), _>(ToolError::retryable("busy")) })
            .effect(Effect::Idempotent)
            .retry(Retry { base: HOUR, cap: HOUR, ..Retry::attempts(5) });
        let runtime = world.runtime([flaky]);
        let run = start(&world, &runtime, "flaky");
        let why = explain(&world, &runtime, run);
        says(&why, &["call of tool `flaky`", "its last attempt failed, and the next one starts in "]);
        assert!(matches!(why.moves[0].why, Why::Waits { on: Blocked::Retry, .. }), "{why:?}");
    });
}

#[test]
fn w12_a_run_that_waits_for_another_says_what_that_one_waits_for() {
    on_every_store(|world| {
        let child = Tool::durable_fn("child", "waits", |mut ctx: Ctx, _: Value| async move {
            let value: Value = ctx.wait("boss").await?;
            Ok(value)
        });
        let parent = Tool::durable_fn("parent", "joins", |mut ctx: Ctx, _: Value| async move {
            let child = ctx.spawn(call("child")).await?;
            let value: Value = ctx.join(&child).await?;
            Ok(value)
        });
        let runtime = world.runtime([child, parent]);
        let run = start(&world, &runtime, "parent");
        let why = explain(&world, &runtime, run);
        says(&why, &["continues when run ", " of `child` is suspended: wait for \"boss\"", "\"boss\" is answered"]);
        let Why::Waits { child: Some(child), .. } = &why.moves[0].why else { panic!("{why:?}") };
        check(child);
    });
}

#[test]
fn w12_a_doubt_says_how_to_settle_it_and_when_each_answer_takes_effect() {
    on_every_store(|world| {
        let runtime = world.runtime([hangs("charge", Effect::Once).timeout(MOMENT)]);
        let run = start(&world, &runtime, "charge");
        world.pass(HOUR);
        let why = explain(&world, &runtime, run);
        says(
            &why,
            &["it is unknown whether attempt 1 of call of tool `charge` took effect, because the attempt timed out"],
        );
        says(&why, &["settle it: it happened, it did not happen, or give up (each of the three takes effect at once)"]);
        assert!(matches!(why.moves[0].why, Why::InDoubt { attempt: 1, .. }), "{why:?}");
    });
}

#[test]
fn w12_a_call_that_queues_for_a_key_says_which_and_who_has_it() {
    on_every_store(|world| {
        let key = KeyExpression::parse("'till'").unwrap();
        let runtime =
            world.runtime([hangs("first", Effect::Once).key(key.clone()), hangs("second", Effect::Once).key(key)]);
        let holder = start(&world, &runtime, "first");
        let run = start(&world, &runtime, "second");
        let why = explain(&world, &runtime, run);
        says(
            &why,
            &[&format!("is queued for key `till`, which run {holder} holds at /; it continues when that call ends")],
        );
        assert_eq!(why.moves.len(), 1, "{why:?}");
    });
}

#[test]
fn w12_a_queued_run_says_what_is_before_it() {
    on_every_store(|world| {
        let runtime = world.runtime([hangs("turn", Effect::Once)]);
        let starting = runtime.clone();
        let (first, second) = world.run(async move {
            let turn = || Start { turn: Turn::Queue, ..Start::session("chat") };
            let first = starting.start_with(call("turn"), turn()).await.unwrap();
            (first, starting.start_with(call("turn"), turn()).await.unwrap())
        });
        world.pass(MOMENT);
        let why = explain(&world, &runtime, second);
        says(&why, &["is queued", "a worker claims it", "session `chat`", &format!("before it: run {first}")]);
        assert!(matches!(&why.moves[0].why, Why::Queued { behind, .. } if *behind == [first]), "{why:?}");
        explain(&world, &runtime, first);
    });
}

#[test]
fn w12_an_undriven_run_says_how_to_continue_it() {
    on_every_store(|world| {
        let runtime = world.runtime([hangs("look", Effect::Idempotent)]);
        let run = start(&world, &runtime, "look");
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([hangs("look", Effect::Idempotent)]);
        says(&explain(&world, &runtime, run), &["this process does not drive it", "`resume` continues it here"]);
    });
}

#[test]
fn w12_a_cancelled_run_says_that_it_cleans_up_and_until_when() {
    on_every_store(|world| {
        let stubborn = Tool::durable_fn("stubborn", "cleans up", |mut ctx: Ctx, _: Value| async move {
            let waited = ctx.sleep(HOUR).await;
            let pending = |_| std::future::pending::<windlass::ToolResult<()>>();
            ctx.step("tidy", pending).idempotent().await?;
            waited
        });
        let runtime = world.runtime([stubborn]);
        let run = start(&world, &runtime, "stubborn");
        let cancelling = runtime.clone();
        world.run(async move { cancelling.cancel(run, "ada", "enough").await }).unwrap();
        world.pass(MOMENT);
        says(&explain(&world, &runtime, run), &["ada cancelled it (enough)", "cleans up", "stopped in "]);
        world.pass(HOUR);
        says(&explain(&world, &runtime, run), &["was cancelled: cancelled, and not cleaned up"]);
    });
}

#[test]
fn w12_held_runs_and_crash_loops_are_explained_with_a_remedy() {
    on_every_store(|mut world| {
        let killer = || hangs("killer", Effect::Idempotent);
        let runtime = world.runtime([killer()]);
        let run = start(&world, &runtime, "killer");
        drop(runtime);
        for _ in 0..3 {
            world = world.restart();
            let runtime = world.runtime([killer()]);
            let recovering = runtime.clone();
            world.run(async move { recovering.recover().await }).unwrap();
            explain(&world, &runtime, run);
            world.pass(MOMENT);
            explain(&world, &runtime, run);
        }
        let runtime = world.runtime([killer()]);
        let why = explain(&world, &runtime, run);
        says(&why, &["is held: crash loop: the process died 3 times with / in flight", "then resume the run"]);
        assert!(matches!(why.moves[0].why, Why::Held { .. }), "{why:?}");
    });
}

#[test]
fn w12_a_run_whose_process_died_waits_to_be_driven_alone() {
    on_every_store(|mut world| {
        let tools = || [hangs("a", Effect::Idempotent), hangs("b", Effect::Idempotent)];
        let runtime = world.runtime(tools());
        let runs = [start(&world, &runtime, "a"), start(&world, &runtime, "b")];
        drop(runtime);
        // The first successor cannot know of an earlier crash; the second one does.
        let mut next = || {
            world = std::mem::replace(&mut world, World::new(Kind::Memory)).restart();
            let runtime = world.runtime(tools());
            let recovering = runtime.clone();
            world.run(async move { recovering.recover().await }).unwrap();
            world.pass(MOMENT);
            runtime
        };
        drop(next());
        let runtime = next();
        let said = runs.map(|run| explain(&world, &runtime, run).sentence).join("\n");
        assert!(said.contains("driven alone"), "{said}");
    });
}

#[test]
fn w12_a_finished_run_says_how_it_ended() {
    on_every_store(|world| {
        let fails = tool("fails", |_| async { Err::<(), _>(ToolError::failed("the disk is full")) });
        let runtime = world.runtime([tool("works", |_| async { Ok(1) }), fails]);
        let works = start(&world, &runtime, "works");
        says(&explain(&world, &runtime, works), &["succeeded"]);
        let fails = start(&world, &runtime, "fails");
        says(&explain(&world, &runtime, fails), &["failed: the disk is full"]);
    });
}

#[test]
fn w12_a_run_in_every_moment_of_its_life_is_explained() {
    on_every_store(|world| {
        let job = Tool::durable_fn("job", "does a bit of everything", |mut ctx: Ctx, _: Value| async move {
            ctx.step("reserve", |_| async { Ok(1) }).await?;
            let (a, b) = (call("slow"), call("charge"));
            let [_, charged] = ctx.call_all([a, b]).settled().await;
            assert!(charged.is_err());
            ctx.sleep(MOMENT).await?;
            let child = ctx.spawn(call("slow")).await?;
            let value: Value = ctx.join(&child).await?;
            Ok(value)
        });
        let sim = world.sim.clone();
        let slow = tool("slow", move |_| {
            let nap = windlass_core::time::Clock::sleep(&sim, Duration::from_millis(300));
            async move {
                nap.await;
                Ok(json!(1))
            }
        });
        let charge = hangs("charge", Effect::Once).timeout(Duration::from_millis(200));
        let charge = charge.policy(Policy { on_doubt: Some(windlass::tool::spec::OnDoubt::Fail), ..Policy::default() });
        let runtime = world.runtime([job, slow, charge]);
        let run = runtime.start_unconfirmed(call("job")).expect("it starts");
        world.pass(Duration::from_millis(1));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..60 {
            let why = explain(&world, &runtime, run);
            seen.extend(why.moves.iter().map(|one| serde_json::to_value(&one.why).unwrap()["why"].to_string()));
            world.pass(Duration::from_millis(50));
        }
        says(&explain(&world, &runtime, run), &["succeeded"]);
        assert!(seen.len() >= 2, "{seen:?}");
    });
}
