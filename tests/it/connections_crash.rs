//! Calls that use a connection, through every crash of the simulator and real kills.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use windlass::inbox::{Blocked, Settlement};
use windlass::run::{Cursor, Happening};
use windlass::store::{Durability, SqliteStore};
use windlass::testing::{CrashMatrix, Ledger, Watched};
use windlass::{Call, Ctx, Effect, Output, Tool, ToolCall, Windlass};
use windlass_core::Start;

use crate::crash_parks::{call, check_parked};
use crate::kill::{DIR, MOST_POINTS, report, run_child};

const TOKEN: &str = "gho_correct-horse-battery-staple";

/// Sends with its credential, once. It declares its provider or finds out in its body.
fn mail(ledger: &Ledger, declares: bool) -> Tool {
    let ledger = ledger.clone();
    let mail = Tool::with_call("mail", "sends, once", move |call: Call, _: Value| {
        let ledger = ledger.clone();
        async move {
            let token = call.connection("post").await?;
            assert_eq!(token.expose(), TOKEN);
            ledger.once("mail", &call.idempotency_key()).await;
            Ok(json!("sent"))
        }
    });
    mail.with(|spec| spec.guards.connection = declares.then(|| "post".into()))
}

fn both() -> Tool {
    Tool::durable_fn("both", "sends two, and one more", |mut ctx: Ctx, _: Value| async move {
        let (a, b) = ctx.call_all((call("mail"), call("mail"))).await?;
        let c: Value = ctx.call_json("mail", json!({})).await?;
        Ok(json!([a, b, c]))
    })
}

fn matrix(declares: bool) -> CrashMatrix {
    CrashMatrix::new(move |ledger| vec![mail(ledger, declares), both()])
        .call(call("both"))
        .outside(|outside| outside.connect_with("post", TOKEN))
        .person(|ledger, key, _| match ledger.happened(key) {
            true => Settlement::Happened(Ok(Arc::new(Output::value(json!("sent"))))),
            false => Settlement::DidNotHappen,
        })
}

#[test]
fn e06_calls_get_their_connection_whatever_crashes() {
    for declares in [true, false] {
        let report = check_parked(|| matrix(declares));
        assert_eq!(report.outcome, json!([["sent", "sent", "sent"]]));
        assert_eq!(report.effects["mail"], 3);
        let writes = report.log.iter().filter(|line| line.contains("a write to a connection")).count();
        assert!(writes >= 2, "the process dies before and after the connection is written: {:?}", report.log);
    }
}

#[test]
fn e06_calls_get_their_connection_over_two_crashes() {
    let report = matrix(true).crashes(2).run();
    assert_eq!((&report.outcome, report.effects["mail"]), (&json!([["sent", "sent", "sent"]]), 3));
}

async fn open(dir: &Path) -> Windlass {
    let store = SqliteStore::open_with(dir.join("app.db"), Durability::Relaxed).expect("the store opens");
    let builder = Windlass::with_store(Arc::new(Watched::new(Arc::new(store), report)));
    let push = Tool::with_call("push", "pushes", |call: Call, _: Value| async move {
        let token = call.connection("git").await?;
        Ok(json!(token.expose().len()))
    });
    let push = push.effect(Effect::Idempotent).with(|spec| spec.guards.connection = Some("git".into()));
    let twice = Tool::durable_fn("twice", "pushes twice", |mut ctx: Ctx, _: Value| async move {
        let first: Value = ctx.call_json("push", json!({})).await?;
        let second: Value = ctx.call_json("push", json!({})).await?;
        Ok(json!([first, second]))
    });
    builder.suspend_after(std::time::Duration::ZERO).tool(push).tool(twice).await.expect("the runtime opens")
}

/// Runs only in a child: starts its work, or continues it, and connects when it is asked.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let executor = tokio::runtime::Runtime::new().expect("an executor");
    executor.block_on(async {
        let windlass = open(&dir).await;
        let how = Start { principal: Some("ada".into()), ..Start::key("the pushes") };
        let run = windlass.runtime().start_with(ToolCall::new("twice", json!({})), how).await.expect("it starts");
        let mut watch = windlass.runtime().watch(run, Cursor::START).await.expect("it can be watched");
        let kept = !windlass.connections().list().await.expect("the list").is_empty();
        while let Some(activity) = watch.next().await {
            let what = activity.expect("the store answers").what;
            // The connection of an earlier life is kept, and the call continues without another one.
            if let (false, Happening::Parked { on: Blocked::Connection { .. }, .. }) = (kept, what) {
                let connecting = windlass.inbox().connect("git").credential(TOKEN).principal("ada");
                connecting.await.expect("the store answers");
            }
        }
        let outcome = windlass.runtime().attach(run).await.expect("the run ends").remove(0);
        println!("\nresult {}", outcome.for_model());
    });
    // The parent reads no further reports.
    std::process::exit(0);
}

#[test]
fn e06_every_kill_leaves_a_connection_that_continues_its_calls() {
    let expected = json!([TOKEN.len(), TOKEN.len()]);
    for kill_at in 0..MOST_POINTS {
        let dir = tempfile::tempdir().expect("a directory");
        let (first, before) = run_child("connections_crash::child", dir.path(), Some(kill_at));
        if let Some(result) = first {
            assert_eq!(result, expected);
            assert!(before.iter().any(|point| point == "after write"), "{before:?}");
            return;
        }
        let place = before.last().cloned().unwrap_or_default();
        let (second, after) = run_child("connections_crash::child", dir.path(), None);
        assert_eq!(second, Some(expected.clone()), "killed at {kill_at} ({place}); then {after:?}");
        for entry in std::fs::read_dir(dir.path()).expect("the folder") {
            let bytes = std::fs::read(entry.expect("a file").path()).unwrap_or_default();
            assert!(!bytes.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes()), "killed at {kill_at}");
        }
    }
    panic!("the scenario has more than {MOST_POINTS} points");
}
