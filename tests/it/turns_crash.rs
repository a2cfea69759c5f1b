//! Waking messages and turns by id, through every crash of the simulator and real kills: each message has one turn.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::ctx::Handle;
use windlass::session::{Author, NewMessage, SessionMessage, SettingsChange};
use windlass::store::{Durability, SqliteStore};
use windlass::testing::{CrashMatrix, Watched};
use windlass::{Ctx, Effect, Output, Tool, ToolCall, ToolResult, Windlass};

use crate::crash_parks::{HOUR, check_parked};
use crate::kill::{DIR, MOST_POINTS, report, run_child};

const MOMENT: Duration = Duration::from_secs(1);

fn says(text: &str) -> NewMessage {
    NewMessage::text(Author::Tool, text)
}

fn texts(messages: &[SessionMessage]) -> Vec<String> {
    messages.iter().map(|message| format!("{} {}", message.position, message.text())).collect()
}

/// Answers the message that woke it.
fn agent() -> Tool {
    Tool::durable_fn("agent", "answers", |mut ctx: Ctx, args: Value| async move {
        let position = args["message"].as_u64().unwrap_or_default();
        let woke = ctx.session().messages(position - 1, 1).await?;
        ctx.session().post(says(&format!("re: {}", woke[0].text()))).await?;
        Ok(json!(position))
    })
}

/// Posts a waking message together with its outcome.
fn note() -> Tool {
    let note = |_: Value| async { Ok(Output::value(json!("noted")).post(says("a note").wake())) };
    Tool::new("note", "notes", note).effect(Effect::Idempotent)
}

/// A turn that is started by its id.
fn work() -> Tool {
    Tool::durable_fn("work", "works", |mut ctx: Ctx, args: Value| async move {
        ctx.session().post(says(&format!("worked on {}", args["on"]))).await?;
        Ok(args)
    })
}

/// Waits for the turn that the latest message has started.
async fn answered(ctx: &mut Ctx) -> ToolResult<Value> {
    let latest = ctx.session().last_messages(1).await?;
    let Some(run) = latest[0].run else { return Ok(json!(null)) };
    ctx.join(&Handle::of(run)).await
}

/// Wakes the session in three ways, and waits for the turns. Turns are in order, so at the end all of them are over.
async fn talk(ctx: &mut Ctx) -> ToolResult<Value> {
    // The ids of runs are ordered by time, and this run is to be the first.
    ctx.sleep(MOMENT).await?;
    ctx.session().configure(SettingsChange::default().agent("agent").model("m-1")).await?;
    ctx.session().post(says("go").wake()).await?;
    let first = answered(ctx).await?;
    ctx.call_json("note", json!({})).await?;
    let second = answered(ctx).await?;
    let turn = ctx.session().start_turn("t", ToolCall::<Value>::new("work", json!({"on": 1}))).await?;
    let same = ctx.session().start_turn("t", ToolCall::<Value>::new("work", json!({"on": 2}))).await?;
    let done = ctx.join(&turn).await?;
    let model = ctx.session().model().await?;
    let all = ctx.session().messages(0, 99).await?;
    Ok(json!([first, second, turn.run() == same.run(), done, model, texts(&all)]))
}

fn expected() -> Value {
    let messages = ["1 go", "2 re: go", "3 a note", "4 re: a note", "5 worked on 1"];
    json!([1, 3, true, {"on": 1}, "m-1", messages])
}

fn tools() -> Vec<Tool> {
    let talk = Tool::durable_fn("talk", "talks", |mut ctx: Ctx, _: Value| async move { talk(&mut ctx).await });
    vec![talk, agent(), note(), work()]
}

fn call() -> ToolCall {
    ToolCall::new("talk", json!({})).session("s")
}

#[test]
fn l20_l25_wakes_and_turns_of_a_body_survive_every_crash() {
    let report = check_parked(|| CrashMatrix::new(|_| tools()).call(call()));
    assert_eq!(report.outcome, json!([expected()]));
}

#[test]
fn l20_l25_wakes_and_turns_of_a_body_survive_two_crashes() {
    let short = || {
        Tool::durable_fn("talk", "talks", |mut ctx: Ctx, _: Value| async move {
            ctx.sleep(MOMENT).await?;
            ctx.session().configure(SettingsChange::default().agent("agent")).await?;
            ctx.call_json("note", json!({})).await?;
            answered(&mut ctx).await?;
            ctx.session().start_turn("t", ToolCall::<Value>::new("work", json!({"on": 1}))).await?;
            let same = ctx.session().start_turn("t", ToolCall::<Value>::new("work", json!({"on": 2}))).await?;
            ctx.join(&same).await?;
            Ok(json!(texts(&ctx.session().messages(0, 99).await?)))
        })
    };
    let matrix = CrashMatrix::new(move |_| vec![short(), agent(), note(), work()]).call(call()).crashes(2);
    assert_eq!(matrix.run().outcome, json!([["1 a note", "2 re: a note", "3 worked on 1"]]));
}

#[test]
fn l20_a_client_that_repeats_a_waking_message_after_crashes_starts_one_turn() {
    let host = || {
        Tool::durable_fn("host", "waits", |mut ctx: Ctx, _: Value| async move {
            ctx.session().configure(SettingsChange::default().agent("agent")).await?;
            ctx.sleep(MOMENT).await?;
            ctx.sleep(HOUR).await?;
            Ok(json!(texts(&ctx.session().messages(0, 99).await?)))
        })
    };
    let matrix = CrashMatrix::new(move |_| vec![host(), agent()]).call(ToolCall::new("host", json!({})).session("s"));
    let matrix = matrix.outside(|outside| {
        if outside.time() >= MOMENT && outside.time() < HOUR && outside.is_new("post") {
            let message = NewMessage::text(Author::User, "hello").wake().dedupe("k");
            outside.act(move |runtime| async move { runtime.session("s").post(message).await.map(drop) });
        }
    });
    let report = matrix.crashes(2).run();
    assert_eq!(report.outcome, json!([["1 hello", "2 re: hello"]]));
}

async fn open(dir: &Path) -> Windlass {
    let store = SqliteStore::open_with(dir.join("app.db"), Durability::Relaxed).expect("the store opens");
    let builder = Windlass::with_store(Arc::new(Watched::new(Arc::new(store), report)));
    tools().into_iter().fold(builder, windlass::Builder::tool).await.expect("the runtime opens")
}

/// Runs only in a child: posts three waking messages, each under a key, and waits until the session is idle.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let executor = tokio::runtime::Runtime::new().expect("an executor");
    executor.block_on(async {
        let windlass = open(&dir).await;
        let session = windlass.session("s");
        session.open_with(None, None, SettingsChange::default().agent("agent")).await.expect("the session opens");
        for text in ["one", "two", "three"] {
            let message = NewMessage::text(Author::User, text).wake().dedupe(text);
            session.post(message).await.expect("the message is posted");
        }
        session.wait_idle(HOUR).await.expect("the turns end");
        let messages = session.messages(0, 99).await.expect("the messages");
        let mut answers: Vec<String> = messages.iter().map(SessionMessage::text).collect();
        answers.sort();
        let turns = messages.iter().filter(|message| message.run.is_some()).count();
        let runs = windlass.list(windlass::run::Filter::tool("agent"), None, 99).await.expect("the runs").len();
        println!("\nresult {}", json!([answers, turns, runs]));
    });
    // The parent reads no further reports.
    std::process::exit(0);
}

#[test]
fn l20_every_kill_leaves_exactly_one_turn_for_each_waking_message() {
    let expected = json!([["one", "re: one", "re: three", "re: two", "three", "two"], 3, 3]);
    for kill_at in 0..MOST_POINTS {
        let dir = tempfile::tempdir().expect("a directory");
        let (first, before) = run_child("turns_crash::child", dir.path(), Some(kill_at));
        if let Some(result) = first {
            assert_eq!(result, expected);
            assert!(before.iter().filter(|point| *point == "after write").count() >= 7, "{before:?}");
            return;
        }
        let place = before.last().cloned().unwrap_or_default();
        let (second, after) = run_child("turns_crash::child", dir.path(), None);
        assert_eq!(second, Some(expected.clone()), "killed at {kill_at} ({place}); then {after:?}");
    }
    panic!("the scenario has more than {MOST_POINTS} points");
}
