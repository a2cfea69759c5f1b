//! What calls return, over real processes that are killed at every commit and effect: errors with values, images and
//! files, secrets, and bodies that need a connection.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use windlass::inbox::Blocked;
use windlass::run::{Cursor, Happening, Start};
use windlass::store::{Durability, SqliteStore};
use windlass::testing::Watched;
use windlass::tool::{Atomic, Reconciled, Schemas, ToolRef};
use windlass::{
    Artifact, Call, Content, Ctx, Effect, Output, Tool, ToolCall, ToolError, ToolResult, ToolSpec, Windlass,
};

use crate::kill::{DIR, LedgerFile, MOST_POINTS, ledger_path, report, run_child};

const MARKER: &str = "correct-horse-battery";

struct Login;

impl Atomic for Login {
    fn attempt(&self, _: Call) -> BoxFuture<'static, ToolResult<Output>> {
        Box::pin(std::future::ready(Ok(Output::value(json!({"token": MARKER, "user": "ada"})))))
    }
}

fn login() -> Tool {
    let output = json!({"type": "object", "properties": {"token": {"type": "string", "x-secret": true}}});
    let schemas = Schemas { output: Some(output), ..Schemas::any() };
    Tool::atomic(ToolSpec::new("login", "returns a secret"), schemas, Login).effect(Effect::Idempotent)
}

fn draw() -> Tool {
    Tool::with_call("draw", "returns an image and a stored file", |call: Call, _: Value| async move {
        let mut writer = call.new_artifact("text/csv").named("t.csv");
        writer.write(&[b'x'; 100_000]).await?;
        let image = Artifact::new("image/png", [137u8, 80].as_slice());
        let output = Output::value(json!({"pages": 1})).with(Content::text("a chart")).with(Content::Image(image));
        Ok(output.with(Content::File(writer.finish().await?)))
    })
    .effect(Effect::Idempotent)
}

/// Sends once, and only when the provider is connected.
fn mail(ledger: &LedgerFile, dir: &Path) -> Tool {
    let (act, check, connected) = (ledger.clone(), ledger.clone(), dir.join("connected"));
    let mail = Tool::with_call("mail", "once", move |call: Call, _: Value| {
        let (ledger, is_connected) = (act.clone(), connected.exists());
        async move {
            if !is_connected {
                return Err(ToolError::connection_required("post"));
            }
            ledger.effect("mail", &call.idempotency_key());
            Ok(json!("sent"))
        }
    });
    mail.reconcile(move |call| {
        let happened = check.happened("mail", &call.idempotency_key());
        async move { Ok(if happened { Reconciled::Happened(json!("sent")) } else { Reconciled::DidNotHappen }) }
    })
}

fn tour() -> Tool {
    Tool::durable_fn("tour", "all of it", |mut ctx: Ctx, _: Value| async move {
        let secret = ctx.call_json("login", json!({})).await?["token"] == MARKER;
        let error = ctx.call_json("seat", json!({})).await.unwrap_err();
        let draw = ToolCall::<Output>::to(ToolRef::Name("draw".into()), json!({}));
        let mut drawn = ctx.call(draw).await?;
        let sent = ctx.call_json("mail", json!({})).await?;
        let file = drawn.content.last().and_then(Content::artifact).map(Artifact::size);
        drawn.value = json!([secret, error.code(), error.data(), file, sent]);
        Ok(drawn)
    })
}

async fn open(dir: &Path) -> Windlass {
    let store = SqliteStore::open_with(dir.join("app.db"), Durability::Relaxed).expect("the store opens");
    let ledger = LedgerFile(ledger_path(dir));
    let builder = Windlass::with_store(Arc::new(Watched::new(Arc::new(store), report)));
    let seat = Tool::new("seat", "fails", |_: Value| async {
        Err::<Value, _>(ToolError::rejected("sold_out", "no seat").with_data(json!({"next": [7]})))
    });
    let builder = builder.suspend_after(std::time::Duration::ZERO).tool(login()).tool(draw()).tool(tour());
    builder.tool(seat.effect(Effect::Idempotent)).tool(mail(&ledger, dir)).await.expect("the runtime opens")
}

/// Runs only in a child: starts its work, or continues it.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let executor = tokio::runtime::Runtime::new().expect("an executor");
    executor.block_on(async {
        let windlass = open(&dir).await;
        let call = ToolCall::new("tour", json!({}));
        let run = windlass.runtime().start_with(call, Start::key("the tour")).await.expect("it starts");
        let mut watch = windlass.runtime().watch(run, Cursor::START).await.expect("it can be watched");
        while let Some(activity) = watch.next().await {
            let what = activity.expect("the store answers").what;
            if let Happening::Parked { on: Blocked::Connection { .. }, .. } = what {
                std::fs::write(dir.join("connected"), "").expect("the folder is there");
                windlass.runtime().connect("post", None).await.expect("the store answers");
            }
        }
        let outcome = windlass.runtime().attach(run).await.expect("the run ends").remove(0);
        println!("\nresult {}", json!([outcome.for_model(), outcome.projection().content]));
    });
    // The parent reads no further reports.
    std::process::exit(0);
}

#[test]
fn e04_e06_e26_e29_every_kill_leaves_one_effect_and_the_same_output() {
    let value = json!([true, "sold_out", {"next": [7]}, 100_000, "sent"]);
    let check = |result: &Value, place: &str| {
        assert_eq!(result[0], value, "{place}");
        let kinds: Vec<&Value> = result[1].as_array().unwrap().iter().map(|block| &block["type"]).collect();
        assert_eq!(kinds, ["text", "text", "image", "file"], "{place}");
        assert_eq!(result[1][2], json!({"type": "image", "media_type": "image/png", "data": "iVA="}), "{place}");
        assert_eq!((&result[1][3]["name"], &result[1][3]["size"]), (&json!("t.csv"), &json!(100_000)), "{place}");
    };
    for kill_at in 0..MOST_POINTS {
        let dir = tempfile::tempdir().expect("a directory");
        let (first, before) = run_child("kill_outputs::child", dir.path(), Some(kill_at));
        let place = before.last().cloned().unwrap_or_default();
        let is_over = first.is_some();
        let (second, after) = match first {
            Some(result) => (Some(result), Vec::new()),
            None => run_child("kill_outputs::child", dir.path(), None),
        };
        let place = format!("killed at {kill_at} ({place}); then {after:?}");
        check(second.as_ref().unwrap_or_else(|| panic!("{place}")), &place);
        let ledger = LedgerFile(ledger_path(dir.path())).lines();
        assert_eq!(ledger.iter().filter(|line| line.starts_with("mail ")).count(), 1, "{place}: {ledger:?}");
        for entry in std::fs::read_dir(dir.path()).expect("the folder") {
            let path = entry.expect("a file").path();
            let bytes = std::fs::read(&path).unwrap_or_default();
            let found = bytes.windows(MARKER.len()).any(|window| window == MARKER.as_bytes());
            assert!(!found, "{} {place}", path.display());
        }
        if is_over {
            assert!(kill_at > 10, "the child must be killed somewhere: {before:?}");
            return;
        }
    }
    panic!("the scenario has more than {MOST_POINTS} points");
}
