//! Mixed work under SIGKILL: a child does work of every kind at once and reports its commits and effects. The parent
//! kills it at seeded points repeatedly, and in the end compares the file with the ledger of the outside effects.

pub(crate) mod judge;
pub(crate) mod people;
pub(crate) mod plan;
mod tools;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use tokio::sync::Notify;
use windlass::run::Start;
use windlass::store::{Durability, SqliteStore};
use windlass::testing::Watched;
use windlass::{RunId, ToolCall, Windlass};

use crate::kill::{DIR, LedgerFile, complaints, ledger_path, report, run_ahead};
use people::People;
use plan::Job;

pub(crate) use plan::{Dice, Plan};

/// Kills at a commit in each of the four tests.
const KILLS: usize = 60;
/// Most points of one child: a file takes about ten children.
const LONGEST_LIFE: usize = 100;
/// More children than any file needs.
const MOST_LIVES: usize = 100;

/// Opens the file. The observer is notified of every commit.
pub(crate) async fn open(dir: &Path, plan: &Plan, news: &Arc<Notify>) -> Windlass {
    report("opening");
    let durability = if plan.full { Durability::Full } else { Durability::Relaxed };
    let store = SqliteStore::open_with(dir.join("app.db"), durability).expect("the store opens");
    report("opened");
    let news = news.clone();
    let tell = move |point: &str| {
        report(point);
        news.notify_one();
    };
    let builder = Windlass::with_store(Arc::new(Watched::new(Arc::new(store), tell)));
    let builder = if plan.seed.is_multiple_of(2) { builder.suspend_after(std::time::Duration::ZERO) } else { builder };
    let ledger = LedgerFile(ledger_path(dir));
    tools::tools(&ledger).into_iter().fold(builder, windlass::Builder::tool).await.expect("the runtime opens")
}

/// Starts the jobs that were not accepted yet. Returns the listeners.
async fn start(windlass: &Windlass, jobs: Vec<Job>, ledger: &LedgerFile) -> Vec<RunId> {
    let known = ledger.lines();
    let run_of = |tag: &str| {
        let prefix = format!("accepted {tag} ");
        known.iter().find_map(|line| line.strip_prefix(&prefix)).map(|run| run.parse().expect("a run"))
    };
    let mut listeners = Vec::new();
    for Job { tool, tag } in jobs {
        let run = match run_of(&tag) {
            Some(run) => run,
            None => {
                let call = ToolCall::new(tool, json!({ "tag": tag }));
                let run = windlass.runtime().start_with(call, Start::key(tag.clone())).await.expect("it starts");
                ledger.note(&format!("accepted {tag} {run}"));
                run
            }
        };
        if tool == "listener" {
            listeners.push(run);
        }
    }
    listeners
}

/// Calls and waits: the result must be durable.
async fn call(windlass: Windlass, tool: &'static str, tag: String, ledger: LedgerFile) {
    let outcome = windlass.call_json(tool, json!({ "tag": tag })).await.expect("the call ends");
    ledger.note(&format!("told {} {}", outcome.run, outcome.for_model()));
}

async fn live(dir: &Path) {
    let (plan, ledger, news) = (Plan::read(dir), LedgerFile(ledger_path(dir)), Arc::default());
    let life = ledger.lines().iter().filter(|line| line.starts_with("life ")).count();
    ledger.note(&format!("life {life}"));
    let windlass = open(dir, &plan, &news).await;
    let tool = ["chain", "pay", "set"][life % 3];
    let call = tokio::spawn(call(windlass.clone(), tool, format!("c{life}"), ledger.clone()));
    let listeners = start(&windlass, plan.jobs(), &ledger).await;
    for run in listeners {
        People::signal(&windlass, run).await;
    }
    let mut people = People { windlass, ledger, said: Default::default() };
    loop {
        people.handle_all().await;
        if people.is_over().await {
            break;
        }
        // Nothing changes without a commit.
        news.notified().await;
    }
    call.await.expect("the caller is told");
    println!("\nresult true");
}

/// Runs only in a child: starts its work, or continues it.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let executor = tokio::runtime::Runtime::new().expect("an executor");
    executor.block_on(live(&dir));
    // The parent reads no further reports.
    std::process::exit(0);
}

/// Completes the work on one file, killing as the seed says. Returns how often a child was killed at a commit.
fn work_through(plan: Plan, dice: &mut Dice) -> usize {
    let dir = tempfile::tempdir().expect("a directory");
    plan.write(dir.path());
    let mut kills = 0;
    for life in 0..MOST_LIVES {
        let kill_at = dice.below(LONGEST_LIFE);
        // Half of the children wait for permission at every point and die exactly there; the others die in between.
        let ahead = dice.below(2) * dice.below(16);
        let (result, points) = run_ahead("kill_mixed::child", dir.path(), Some(kill_at), ahead);
        if result.is_some() {
            let runs = judge::check_plan(dir.path(), &plan).runs;
            println!("{plan:?}: {} lives, {kills} kills at commits, {runs} runs", life + 1);
            return kills;
        }
        let last = points.last().cloned().unwrap_or_default();
        assert!(
            points.len() == kill_at + 1,
            "{plan:?}: life {life} ended by itself after {last}: {}",
            complaints(dir.path())
        );
        kills += usize::from(last.contains("commit"));
    }
    panic!("{plan:?}: it never ends");
}

/// A quarter of the kills: four tests, so that they run in parallel.
fn kills(share: u64) {
    let mut dice = Dice::new(share);
    let mut kills = 0;
    for seed in (share..).step_by(4) {
        kills += work_through(Plan { seed, full: seed % 3 == 2 }, &mut dice);
        if kills >= KILLS {
            println!("{kills} kills at commits, nothing lost, nothing doubled");
            return;
        }
    }
}

#[test]
fn e08_w01_mixed_work_survives_kills_first_share() {
    kills(0);
}

#[test]
fn e08_w01_mixed_work_survives_kills_second_share() {
    kills(1);
}

#[test]
fn e08_w01_mixed_work_survives_kills_third_share() {
    kills(2);
}

#[test]
fn e08_w01_mixed_work_survives_kills_fourth_share() {
    kills(3);
}
