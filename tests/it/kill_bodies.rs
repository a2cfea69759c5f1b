//! Real processes, killed with SIGKILL at every commit and effect, in bodies whose steps can be asked whether they
//! happened, that await runs by id, and that wait for one event more than once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::ctx::Handle;
use windlass::inbox::Resolution;
use windlass::run::{Filter, Start};
use windlass::store::{Durability, SqliteStore};
use windlass::testing::Watched;
use windlass::tool::Reconciled;
use windlass::{Ctx, Effect, RunId, Tool, ToolCall, ToolError, Windlass, step};

use crate::kill::{DIR, LedgerFile, MOST_POINTS, ledger_path, report, run_child};

fn tools(ledger: &LedgerFile) -> Vec<Tool> {
    let ledger = ledger.clone();
    let pay = Tool::durable_fn("pay", "acts in steps", move |mut ctx: Ctx, _: Value| {
        let ledger = ledger.clone();
        async move {
            let act = |name: &'static str| {
                let ledger = ledger.clone();
                move |attempt: windlass::Attempt| {
                    ledger.effect(name, &attempt.key());
                    async move { Ok(name.to_owned()) }
                }
            };
            let find = |name: &'static str| {
                let ledger = ledger.clone();
                move |attempt: windlass::Attempt| {
                    let happened = ledger.happened(name, &attempt.key());
                    let found = if happened { Reconciled::Happened(name.to_owned()) } else { Reconciled::DidNotHappen };
                    async move { Ok(found) }
                }
            };
            let seat = ctx.step("seat", act("seat")).reconcile(find("seat")).await?;
            let rest = [step("room", act("room")).reconcile(find("room"))];
            let [room] = ctx.steps_all(rest).await?;
            // The first wait is too short for an answer.
            let early = ctx.wait::<String>("go").within(Duration::from_millis(1)).await;
            let go = match early {
                Err(ToolError::TimedOut { .. }) => ctx.wait::<String>("go").await?,
                answer => answer?,
            };
            Ok(json!([seat, room, go]))
        }
    });
    let bad = Tool::new("bad", "fails", |_: Value| async { Err::<Value, _>(ToolError::failed("no")) })
        .effect(Effect::Idempotent);
    let watch = Tool::durable_fn("watch", "awaits a run", |mut ctx: Ctx, args: Value| async move {
        let run: RunId = args["run"].as_str().unwrap_or_default().parse()?;
        let seen: Value = ctx.join(&Handle::of(run)).await?;
        let calls = ["bad", "bad"].map(|name| ToolCall::new(name, json!({})));
        let settled = ctx.call_all(calls).stop_on_failure().settled().await;
        Ok(json!([seen, settled.map(|result| result.unwrap_err().kind())]))
    });
    vec![pay, bad, watch]
}

async fn open(dir: &Path) -> Windlass {
    let store = SqliteStore::open_with(dir.join("app.db"), Durability::Relaxed).expect("the store opens");
    let ledger = LedgerFile(ledger_path(dir));
    let builder = Windlass::with_store(Arc::new(Watched::new(Arc::new(store), report)));
    tools(&ledger).into_iter().fold(builder, windlass::Builder::tool).await.expect("the runtime opens")
}

/// Answers everything that waits, again and again, and sees one key only.
async fn answer(windlass: Windlass) {
    loop {
        let items = windlass.inbox().waiting().await.expect("the inbox");
        for key in items.into_iter().filter_map(|item| item.key) {
            let resolution = Resolution::Ok { value: json!("go") };
            windlass.inbox().resolve(&key, resolution).await.expect("the key is known");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Runs only in a child: starts its work, or continues it.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("an executor");
    executor.block_on(async {
        let windlass = open(&dir).await;
        // The keys make sure that a second process starts nothing twice.
        let keyed = |key: &str| Start { key: Some(key.into()), ..Start::default() };
        let pay = windlass.runtime().start_with(ToolCall::new("pay", json!({})), keyed("pay")).await.expect("pays");
        let watching = ToolCall::new("watch", json!({"run": pay}));
        let watch = windlass.runtime().start_with(watching, keyed("watch")).await.expect("watches");
        let answering = tokio::spawn(answer(windlass.clone()));
        let outcome = windlass.run(watch).outcome().await.expect("the run ends");
        answering.abort();
        assert_eq!(windlass.list(Filter::default(), None, 9).await.expect("the runs").len(), 2);
        println!("\nresult {}", outcome.for_model());
    });
    // The parent reads no further reports.
    std::process::exit(0);
}

#[test]
fn l09_l10_l27_b07_w01_every_kill_leaves_one_effect_of_each_step_and_the_same_result() {
    let reference = tempfile::tempdir().expect("a directory");
    let (expected, points) = run_child("kill_bodies::child", reference.path(), None);
    let expected = expected.expect("the undisturbed run ends");
    assert_eq!(expected, json!([["seat", "room", "go"], ["failed", "cancelled"]]));
    assert!(points.len() > 12, "{points:?}");
    for kill_at in 0..MOST_POINTS {
        let dir = tempfile::tempdir().expect("a directory");
        let (first, before) = run_child("kill_bodies::child", dir.path(), Some(kill_at));
        if first.is_some() {
            assert!(kill_at >= 12, "the child must be killed somewhere");
            return;
        }
        let place = before.last().cloned().unwrap_or_default();
        let (second, after) = run_child("kill_bodies::child", dir.path(), None);
        assert_eq!(second.as_ref(), Some(&expected), "killed at {kill_at} ({place}); then {after:?}");
        let ledger = LedgerFile(ledger_path(dir.path())).lines();
        for name in ["seat ", "room "] {
            let effects = ledger.iter().filter(|line| line.starts_with(name)).count();
            assert_eq!(effects, 1, "killed at {kill_at} ({place}): {ledger:?}");
        }
    }
    panic!("the scenario has more than {MOST_POINTS} points");
}
