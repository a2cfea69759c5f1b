//! A body that changes the tools of its session and opens other sessions, through every crash of the simulator and real
//! kills.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use windlass::session::{Author, NewMessage, ToolsChange};
use windlass::store::{Durability, SqliteStore};
use windlass::testing::{CrashMatrix, Watched};
use windlass::{Ctx, Effect, Output, Tool, ToolCall, ToolResult, Windlass};

use crate::crash_parks::{HOUR, check_parked};
use crate::kill::{DIR, every_kill_ends_the_same, report};

async fn names(ctx: &mut Ctx) -> ToolResult<Vec<Arc<str>>> {
    Ok(ctx.session().tools().await?.into_iter().map(|tool| tool.name).collect())
}

async fn paid(ctx: &mut Ctx) -> Value {
    ctx.call_json("pay", json!({})).await.unwrap_or_else(|error| json!(error.kind()))
}

/// Hides, calls, shows, and works with another session.
async fn choose(ctx: &mut Ctx, pause: bool) -> ToolResult<Value> {
    let hidden = ctx.session().hide_tools(["pay"]).await?;
    let refused = paid(ctx).await;
    if pause {
        ctx.sleep(HOUR).await?;
    }
    let still = paid(ctx).await;
    let some = names(ctx).await?;
    ctx.call_json("only", json!({})).await?;
    let few = names(ctx).await?;
    ctx.session().change_tools(ToolsChange::reset()).await?;
    let done = paid(ctx).await;
    let new = ctx.in_session("side").open(Some("Side")).await?;
    let position = ctx.in_session("side").post(NewMessage::text(Author::Agent, "hello")).await?;
    ctx.in_session("side").close("over").await?;
    let late = ctx.in_session("side").open(None).await.unwrap_err();
    let missing = ctx.in_session("nowhere").hide_tools(["pay"]).await.unwrap_err();
    Ok(json!([hidden, refused, still, some, few, done, new, position, late.code(), missing.code()]))
}

fn expected() -> Value {
    json!([
        {"hidden": ["pay"]},
        "unavailable",
        "unavailable",
        ["choose", "only"],
        ["choose"],
        "paid",
        true,
        1,
        "session_closed",
        "no_session"
    ])
}

fn tools(pause: bool) -> Vec<Tool> {
    let body = move |mut ctx: Ctx, _: Value| async move { choose(&mut ctx, pause).await };
    let only = |_: Value| async { Ok(Output::value(json!(1)).change_tools(ToolsChange::only(["choose"]))) };
    vec![
        Tool::durable_fn("choose", "chooses", body),
        Tool::new("pay", "pays", |_: Value| async { Ok("paid") }).effect(Effect::Idempotent),
        Tool::new("only", "shows one tool", only).effect(Effect::Idempotent),
    ]
}

fn call() -> ToolCall {
    ToolCall::new("choose", json!({})).session("s")
}

#[test]
fn l20_b02_a_body_that_changes_its_tools_survives_every_crash() {
    let report = check_parked(|| CrashMatrix::new(|_| tools(true)).call(call()));
    assert_eq!(report.outcome, json!([expected()]));
    let writes = report.log.iter().filter(|line| line.contains("a write to a session")).count();
    assert!(writes >= 14, "the process dies before and after every write: {:?}", report.log);
}

#[test]
fn l20_b02_a_body_that_changes_its_tools_survives_two_crashes() {
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
        let known = windlass.list(windlass::run::Filter::tool("choose"), None, 2).await.expect("the runs");
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
fn l20_b02_every_kill_leaves_the_same_tools_and_the_same_result() {
    every_kill_ends_the_same("session_tools_crash::child", &expected(), 7);
}
