//! Kills by time: a child drives many runs of every kind at once, every commit synced, and is killed at random moments.
//! In the end nothing is lost and nothing doubled, the file is not much larger than its content, and the last minute
//! has completed as much work as the first.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tokio::sync::Notify;
use windlass::run::{Filter, RunState, Start};
use windlass::{ToolCall, Windlass};

use super::from_env;
use crate::kill::{DIR, LedgerFile, complaints, ledger_path, spawn};
use crate::kill_mixed::people::People;
use crate::kill_mixed::plan::TOOLS;
use crate::kill_mixed::{Dice, Plan, judge, open};

/// Concurrent runs.
const LANES: u64 = 32;
/// Largest ratio of the file's size to its content.
const MOST_OVERHEAD: f64 = 2.0;
/// Least ratio of the last minute's work to the first's.
const LEAST_PACE: f64 = 0.9;
const MINUTE: i64 = 60_000_000;
/// Shorter soaks are too short to compare their minutes.
const LONG_ENOUGH: u64 = 5;

fn is_draining(dir: &Path) -> bool {
    dir.join("drain").exists()
}

/// Starts one run after the other and waits for each.
async fn lane(windlass: Windlass, dir: PathBuf, number: u64) {
    let (ledger, mut dice) = (LedgerFile(ledger_path(&dir)), Dice::new(number));
    for n in 0.. {
        if is_draining(&dir) {
            return;
        }
        let (tool, tag) = (TOOLS[dice.below(TOOLS.len())], format!("l{number}.{n}"));
        let call = ToolCall::new(tool, json!({ "tag": tag }));
        let run = windlass.runtime().start_with(call, Start::key(tag.clone())).await.expect("it starts");
        ledger.of(&run.to_string()).note(&format!("accepted {tag} {run}"));
        if tool == "listener" {
            People::signal(&windlass, run).await;
        }
        // Its result is checked later; a held run continues once it is resumed.
        drop(windlass.runtime().attach(run).await);
    }
}

/// Sends again what an earlier child may have failed to send.
async fn remind(windlass: &Windlass) {
    // Selected by tool, not by state: the state changes meanwhile, and a run between two lists would be in neither.
    let mut after = None;
    loop {
        let page = windlass.list(Filter::tool("listener"), after, 1_000).await.expect("the runs");
        after = page.last().map(|info| info.run);
        for info in page.iter().filter(|info| !matches!(info.state, RunState::Finished { .. })) {
            People::signal(windlass, info.run).await;
        }
        if page.len() < 1_000 {
            return;
        }
    }
}

async fn live(dir: &Path) {
    let news: Arc<Notify> = Arc::default();
    let windlass = open(dir, &Plan { seed: 1, full: true }, &news).await;
    remind(&windlass).await;
    let life: u64 = std::fs::read_to_string(dir.join("life")).expect("it is there").parse().expect("a number");
    let numbers = life * LANES..(life + 1) * LANES;
    let lanes: Vec<_> = numbers.map(|n| tokio::spawn(lane(windlass.clone(), dir.to_owned(), n))).collect();
    let mut people = People { windlass, ledger: LedgerFile(ledger_path(dir)), said: Default::default() };
    loop {
        people.handle_all().await;
        let done = lanes.iter().all(tokio::task::JoinHandle::is_finished);
        if done && is_draining(dir) && people.is_over().await {
            break;
        }
        // A lane that ends does not commit, so this does not depend on commits only.
        let _heard = tokio::time::timeout(Duration::from_millis(100), news.notified()).await;
    }
    for lane in lanes {
        lane.await.expect("a lane ends by itself");
    }
}

/// Runs only in a child: works until it is killed, or until all is done once a file named `drain` exists.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let executor = tokio::runtime::Runtime::new().expect("an executor");
    executor.block_on(live(&dir));
    std::process::exit(0);
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970");
    i64::try_from(since.as_micros()).expect("it is earlier than the end of time")
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    assert!(sent.is_ok_and(|sent| sent.success()), "the signal {name} is sent");
}

#[test]
fn kills_by_time() {
    let minutes = from_env("WINDLASS_SOAK_MINUTES", 0);
    let end = Instant::now() + Duration::from_secs(minutes * 60);
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(ledger_path(dir.path())).expect("the ledger");
    let (mut lives, mut dice, began) = (0, Dice::new(7), now());
    // A process that always dies right after its start does little but recover, and shows nothing about throughput.
    let longest_life = if minutes > 0 { 6_000 } else { 600 };
    while lives < 3 || Instant::now() < end {
        std::fs::write(dir.path().join("life"), lives.to_string()).expect("it is written");
        let mut child = spawn("soak::load::child", dir.path(), true);
        // Random moments are the purpose here; deterministic ones are tested elsewhere.
        std::thread::park_timeout(Duration::from_millis(dice.below(longest_life) as u64));
        // Sometimes it is stopped first; then it continues for a while, or is killed while stopped.
        if lives % 3 == 2 {
            signal(&child, "STOP");
            std::thread::park_timeout(Duration::from_millis(dice.below(longest_life / 2) as u64));
            if dice.below(2) == 0 {
                signal(&child, "CONT");
                std::thread::park_timeout(Duration::from_millis(dice.below(longest_life) as u64));
            }
        }
        let ended = child.try_wait().expect("it is ours");
        assert!(ended.is_none(), "life {lives} ended by itself: {}", complaints(dir.path()));
        child.kill().expect("it is killed");
        child.wait().expect("it ends");
        lives += 1;
    }
    let over = now();
    std::fs::write(dir.path().join("drain"), "").expect("the sign to drain");
    std::fs::write(dir.path().join("life"), lives.to_string()).expect("it is written");
    let ended = spawn("soak::load::child", dir.path(), true).wait().expect("it ends");
    assert!(ended.success(), "the last life ends by itself: {}", complaints(dir.path()));
    let found = judge::check(dir.path());
    println!("{lives} kills, {} runs: nothing lost, nothing doubled", found.runs);
    let size = std::fs::metadata(dir.path().join("app.db")).expect("the file").len();
    let overhead = size as f64 / found.bytes as f64;
    println!("a file of {size} bytes for journals of {} bytes: {overhead:.2} times as much", found.bytes);
    let ended = |from: i64| found.ends.iter().filter(|at| (from..from + MINUTE).contains(&at.as_micros())).count();
    let pace: Vec<usize> = (0..(over - began) / MINUTE).map(|minute| ended(began + minute * MINUTE)).collect();
    println!("runs that ended in each minute: {pace:?}");
    if minutes >= LONG_ENOUGH {
        assert!(overhead <= MOST_OVERHEAD, "the file has outgrown what is in it");
        let (first, last) = (pace[0], pace[pace.len() - 1]);
        assert!(last as f64 >= LEAST_PACE * first as f64, "it got slower");
    }
}
