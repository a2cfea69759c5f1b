//! Runs that wait for people and for one another: real processes, killed at every commit and effect.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use windlass::inbox::{About, Blocked, Question, ReplyResult, Resolution};
use windlass::run::{Cursor, Happening, Start};
use windlass::store::{Durability, SqliteStore};
use windlass::testing::Watched;
use windlass::tool::Reconciled;
use windlass::{Call, Ctx, Error, RunId, Tool, ToolCall, ToolError, Windlass};

use crate::kill::{DIR, LedgerFile, MOST_POINTS, ledger_path, report, run_child};

/// A charge that needs approval, must happen once, and can be reconciled.
fn charge(ledger: &LedgerFile) -> Tool {
    let (act, check) = (ledger.clone(), ledger.clone());
    let charge = Tool::with_call("charge", "once", move |call: Call, _: Value| {
        let ledger = act.clone();
        async move {
            ledger.effect("charge", &call.idempotency_key());
            Ok(json!("charged"))
        }
    });
    let charge = charge.reconcile(move |call| {
        let happened = check.happened("charge", &call.idempotency_key());
        async move { Ok(if happened { Reconciled::Happened(json!("charged")) } else { Reconciled::DidNotHappen }) }
    });
    charge.approval_when("args.cents > 100")
}

/// Books, fails, and undoes.
fn fickle(ledger: &LedgerFile) -> Tool {
    let ledger = ledger.clone();
    Tool::durable_fn("fickle", "changes its mind", move |mut ctx: Ctx, _: Value| {
        let undo = ledger.clone();
        async move {
            ctx.step("book", |_| async { Ok("seat".to_owned()) })
                .idempotent()
                .undo_idempotent(move |seat: String, attempt| {
                    undo.effect(&format!("undo {seat}"), &attempt.key());
                    async { Ok(()) }
                })
                .await?;
            Err::<Value, _>(ToolError::failed("no"))
        }
    })
}

fn trip() -> Tool {
    let trip = Tool::durable_fn("trip", "all of it, in two generations", |mut ctx: Ctx, args: Value| async move {
        let Some(word) = args["word"].as_str() else {
            let word: String = ctx.wait("the manager").await?;
            return ctx.continue_as(json!({"word": word})).await;
        };
        let charged = ctx.call(ToolCall::new("charge", json!({"cents": 500}))).await?;
        let child = ctx.spawn(ToolCall::new("charge", json!({"cents": 5}))).await?;
        let go: u32 = ctx.receive("go").await?;
        let joined = ctx.join(&child).await?;
        let failed = ctx.call_json("fickle", json!({})).await.is_err();
        Ok(json!([word, charged, go, joined, failed]))
    });
    trip.signal::<u32>("go")
}

async fn open(dir: &Path) -> Windlass {
    let store = SqliteStore::open_with(dir.join("app.db"), Durability::Relaxed).expect("the store opens");
    let ledger = LedgerFile(ledger_path(dir));
    let builder = Windlass::with_store(Arc::new(Watched::new(Arc::new(store), report)));
    let builder = builder.suspend_after(std::time::Duration::ZERO).tool(trip()).tool(fickle(&ledger));
    builder.tool(charge(&ledger)).await.expect("the runtime opens")
}

/// Answers everything that waits. Repeated after a crash, it changes nothing.
async fn act(windlass: &Windlass, run: RunId) {
    for item in windlass.inbox().waiting().await.expect("the inbox") {
        if let Some(key) = &item.key {
            let answer = |word: &str| Resolution::Ok { value: json!(word) };
            let first = windlass.inbox().resolve(key, answer("yes")).await.expect("the key is one");
            assert!(matches!(first, ReplyResult::Accepted | ReplyResult::Already(Ok(_))), "{first:?}");
            let late = windlass.inbox().resolve(key, answer("no")).await.expect("the key is one");
            assert!(matches!(&late, ReplyResult::Already(Ok(terminal)) if terminal.value == json!("yes")), "{late:?}");
        } else if let Blocked::Approval { .. } = &item.park.on {
            // It may have been decided a moment before; then that decision counts.
            let decided = windlass.inbox().approve(&item, "ada", "fine").await;
            assert!(matches!(decided, Ok(()) | Err(Error::Conflict(_))), "{decided:?}");
            let info = windlass.runtime().info(run).await.expect("the store answers").expect("it is there");
            let (generation, path) = (info.generation, item.park.path.clone());
            let question = Question { run, generation, path, about: About::Approval(item.park.since) };
            let counted = windlass.runtime().counted(&question).await.expect("the store answers");
            assert_eq!(counted.map(|counted| counted.by).as_deref(), Some("ada"));
        }
    }
    let sent = windlass.runtime().signal(run, "go", json!(7), Some("the only one")).await;
    assert!(sent.is_ok() || sent.is_err_and(|error| error.to_string().contains("finished")));
}

/// Runs only in a child: starts its work, or continues it.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let executor = tokio::runtime::Runtime::new().expect("an executor");
    executor.block_on(async {
        let windlass = open(&dir).await;
        let call = ToolCall::new("trip", json!({}));
        let run = windlass.runtime().start_with(call, Start::key("the trip")).await.expect("it starts");
        let mut watch = windlass.runtime().watch(run, Cursor::START).await.expect("it can be watched");
        while let Some(activity) = watch.next().await {
            if let Happening::Parked { .. } = activity.expect("the store answers").what {
                act(&windlass, run).await;
            }
        }
        let outcome = windlass.runtime().attach(run).await.expect("the run ends").remove(0);
        println!("\nresult {}", outcome.for_model());
    });
    // The parent reads no further reports.
    std::process::exit(0);
}

#[test]
fn l06_l08_l10_l12_l13_e07_w02_w03_every_kill_leaves_two_charges_and_the_same_result() {
    let expected = json!(["yes", "charged", 7, "charged", true]);
    for kill_at in 0..MOST_POINTS {
        let dir = tempfile::tempdir().expect("a directory");
        let (first, before) = run_child("kill_people::child", dir.path(), Some(kill_at));
        if let Some(result) = first {
            assert_eq!(result, expected);
            assert!(kill_at > 20, "the child must be killed somewhere: {before:?}");
            return;
        }
        let place = before.last().cloned().unwrap_or_default();
        let (second, after) = run_child("kill_people::child", dir.path(), None);
        assert_eq!(second.as_ref(), Some(&expected), "killed at {kill_at} ({place}); then {after:?}");
        let ledger = LedgerFile(ledger_path(dir.path())).lines();
        let mut charges: Vec<_> = ledger.iter().filter(|line| line.starts_with("charge ")).collect();
        assert_eq!(charges.len(), 2, "killed at {kill_at} ({place}): {ledger:?}");
        charges.sort();
        charges.dedup();
        assert_eq!(charges.len(), 2, "killed at {kill_at} ({place}): {ledger:?}");
        assert!(ledger.iter().any(|line| line.starts_with("undo seat ")), "killed at {kill_at} ({place}): {ledger:?}");
    }
    panic!("the scenario has more than {MOST_POINTS} points");
}
