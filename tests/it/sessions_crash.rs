//! A body that writes to its session, through every crash of the simulator and real kills.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use windlass::session::{Author, NewMessage, SessionMessage};
use windlass::store::{Durability, SqliteStore};
use windlass::testing::{CrashMatrix, Watched};
use windlass::{Ctx, Effect, Output, Tool, ToolCall, ToolResult, Windlass};

use crate::crash_parks::{HOUR, check_parked};
use crate::kill::{DIR, every_kill_ends_the_same, report};

fn says(text: &str) -> NewMessage {
    NewMessage::text(Author::Agent, text)
}

fn texts(messages: &[SessionMessage]) -> Vec<String> {
    messages.iter().map(|message| format!("{} {}", message.position, message.text())).collect()
}

/// Posts a message together with its outcome.
fn note() -> Tool {
    let note = |_: Value| async { Ok(Output::value(json!("noted")).post(says("a note"))) };
    Tool::new("note", "notes", note).effect(Effect::Idempotent)
}

/// Posts, reads, sets, closes, and is refused. `wait` is what it does in between.
async fn talk(ctx: &mut Ctx, pause: bool) -> ToolResult<Value> {
    ctx.session().set_title("Trip").await?;
    let first = ctx.session().post(says("hello")).await?;
    let read = ctx.session().messages(0, 10).await?;
    ctx.session().set("seen", &read.len()).await?;
    if pause {
        ctx.sleep(HOUR).await?;
    }
    ctx.call_json("note", json!({})).await?;
    let seen: Option<usize> = ctx.session().get("seen").await?;
    let last = ctx.session().last_messages(1).await?;
    ctx.session().post(says(&format!("seen {seen:?}"))).await?;
    let deleted = (ctx.session().delete("seen").await?, ctx.session().delete("seen").await?);
    let title = ctx.session().title().await?;
    ctx.session().close("over").await?;
    let refused = ctx.session().post(says("too late")).await.unwrap_err();
    let again = ctx.session().set("seen", &1).await.unwrap_err();
    let all = ctx.session().messages(0, 10).await?;
    let codes = [refused.code(), again.code()];
    Ok(json!([first, texts(&read), seen, texts(&last), deleted, title, codes, texts(&all)]))
}

fn expected() -> Value {
    json!([
        1,
        ["1 hello"],
        1,
        ["2 a note"],
        [true, false],
        "Trip",
        ["session_closed", "session_closed"],
        ["1 hello", "2 a note", "3 seen Some(1)"]
    ])
}

fn tools(pause: bool) -> Vec<Tool> {
    let talks = move |mut ctx: Ctx, _: Value| async move { talk(&mut ctx, pause).await };
    vec![Tool::durable_fn("talk", "talks", talks), note()]
}

fn call() -> ToolCall {
    ToolCall::new("talk", json!({})).session("s")
}

#[test]
fn l20_l25_a_body_that_writes_to_its_session_survives_every_crash() {
    let report = check_parked(|| CrashMatrix::new(|_| tools(true)).call(call()));
    assert_eq!(report.outcome, json!([expected()]));
    let writes = report.log.iter().filter(|line| line.contains("a write to a session")).count();
    assert!(writes >= 16, "the process dies before and after every write: {:?}", report.log);
}

#[test]
fn l20_l25_a_body_that_writes_to_its_session_survives_two_crashes() {
    let matrix = CrashMatrix::new(|_| tools(false)).call(call()).crashes(2);
    assert_eq!(matrix.run().outcome, json!([expected()]));
}

async fn open(dir: &Path) -> Windlass {
    let store = SqliteStore::open_with(dir.join("app.db"), Durability::Relaxed).expect("the store opens");
    let builder = Windlass::with_store(Arc::new(Watched::new(Arc::new(store), report)));
    tools(false).into_iter().fold(builder, windlass::Builder::tool).await.expect("the runtime opens")
}

/// Runs only in a child: starts its work, or continues it.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let executor = tokio::runtime::Runtime::new().expect("an executor");
    executor.block_on(async {
        let windlass = open(&dir).await;
        let known = windlass.list(windlass::run::Filter::tool("talk"), None, 2).await.expect("the runs");
        let outcome = match known.first() {
            Some(info) => windlass.runtime().attach(info.run).await.expect("the run ends").remove(0),
            None => windlass.runtime().call(call()).await.expect("the call ends"),
        };
        println!("\nresult {}", outcome.for_model());
    });
    // The parent reads no further reports.
    std::process::exit(0);
}

#[test]
fn l20_l25_every_kill_leaves_each_message_once_and_the_same_result() {
    every_kill_ends_the_same("sessions_crash::child", &expected(), 7);
}
