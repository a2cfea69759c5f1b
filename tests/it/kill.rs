//! Real processes, killed with SIGKILL: the child reports every commit and effect and waits for permission to continue.
//! The parent kills it at each of those points in turn, starts another child on the same file, and checks the ledger.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::run::Filter;
use windlass::store::{Durability, SqliteStore};
use windlass::testing::Watched;
use windlass::tool::Reconciled;
use windlass::tool::spec::Retry;
use windlass::{Call, Ctx, Effect, Tool, ToolCall, ToolError, Windlass};

/// The child's directory. Its presence also marks a process as the child.
pub(crate) const DIR: &str = "WINDLASS_TEST_CHILD_DIR";
/// Set for a child that neither reports nor waits.
pub(crate) const FREE: &str = "WINDLASS_TEST_CHILD_FREE";
/// More points than any scenario has.
pub(crate) const MOST_POINTS: usize = 300;

/// Reports a point to the parent and waits for its permission. A child that is to be killed never returns from here.
pub(crate) fn report(point: &str) {
    static LINE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());
    if std::env::var_os(FREE).is_some() {
        return;
    }
    let _one_at_a_time = LINE.lock();
    println!("\npoint {point}");
    let mut word = String::new();
    let read = std::io::stdin().lock().read_line(&mut word).expect("the parent is there");
    assert!(read > 0, "the parent went away");
}

/// The end mark of a complete line in a ledger.
const END: &str = " .";

/// The outside world: a file that only grows, or a directory of such files, one for each ending of a run's id, so that
/// no reader has to read a long one.
#[derive(Clone)]
pub(crate) struct LedgerFile(pub(crate) PathBuf);

impl LedgerFile {
    pub(crate) fn effect(&self, name: &str, key: &str) {
        report(&format!("before effect {name}"));
        self.of(key).note(&format!("{name} {key}"));
        report(&format!("after effect {name}"));
    }

    /// The file for a run, or for a key, which begins with its run.
    pub(crate) fn of(&self, run: &str) -> Self {
        if self.0.is_dir() { Self(self.0.join(&run[34..36])) } else { self.clone() }
    }

    /// Appends a complete line. A line that a killed process wrote in part has no end mark and does not affect the next
    /// one.
    pub(crate) fn note(&self, line: &str) {
        let mut file = std::fs::File::options().create(true).append(true).open(&self.0).expect("the ledger opens");
        file.write_all(format!("\n{line}{END}\n").as_bytes()).expect("the ledger is written");
    }

    /// Every line of a file.
    pub(crate) fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().filter_map(|line| line.strip_suffix(END)).map(str::to_owned).collect()
    }

    pub(crate) fn happened(&self, name: &str, key: &str) -> bool {
        self.of(key).lines().contains(&format!("{name} {key}"))
    }
}

fn tools(ledger: &LedgerFile) -> Vec<Tool> {
    let (act, check) = (ledger.clone(), ledger.clone());
    let charge = Tool::with_call("charge", "once", move |call: Call, _: Value| {
        let ledger = act.clone();
        async move {
            ledger.effect("charge", &call.idempotency_key());
            Ok(json!("charged"))
        }
    })
    .reconcile(move |call| {
        let happened = check.happened("charge", &call.idempotency_key());
        async move { Ok(if happened { Reconciled::Happened(json!("charged")) } else { Reconciled::DidNotHappen }) }
    });
    let reserve = ledger.clone();
    let reserve = Tool::with_call("reserve", "idempotent, fails at first", move |call: Call, _: Value| {
        let ledger = reserve.clone();
        async move {
            ledger.effect("reserve", &call.idempotency_key());
            match call.number() {
                1 => Err(ToolError::retry_after("busy", Duration::from_millis(1))),
                _ => Ok(json!("reserved")),
            }
        }
    })
    .effect(Effect::Idempotent)
    .retry(Retry::attempts(10));
    let look = Tool::new("look", "readonly", |_: Value| async { Ok(json!("seen")) }).effect(Effect::Readonly);
    let book = Tool::durable_fn("book", "all of it", |mut ctx: Ctx, _: Value| async move {
        let before: u32 = ctx.step("count", |_| async { Ok(3) }).readonly().await?;
        let reserved = ctx.call_json("reserve", json!({})).await?;
        let both = ctx.call_all((ToolCall::new("charge", json!({"n": 1})), ToolCall::new("look", json!({})))).await?;
        let again = ctx.call_json("charge", json!({"n": 2})).await?;
        Ok(json!([before, reserved, both.0, both.1, again]))
    });
    vec![charge, reserve, look, book]
}

pub(crate) fn ledger_path(dir: &Path) -> PathBuf {
    dir.join("ledger.txt")
}

/// The errors of children, to find out why one ended.
fn complaints_path(dir: &Path) -> PathBuf {
    dir.join("stderr.txt")
}

pub(crate) fn complaints(dir: &Path) -> String {
    std::fs::read_to_string(complaints_path(dir)).unwrap_or_default()
}

async fn open(dir: &Path) -> Windlass {
    let store = SqliteStore::open_with(dir.join("app.db"), Durability::Relaxed).expect("the store opens");
    let ledger = LedgerFile(ledger_path(dir));
    let builder = Windlass::with_store(Arc::new(Watched::new(Arc::new(store), report)));
    tools(&ledger).into_iter().fold(builder, windlass::Builder::tool).await.expect("the runtime opens")
}

/// Runs only in a child: starts its work, or continues it.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let executor = tokio::runtime::Runtime::new().expect("an executor");
    executor.block_on(async {
        let windlass = open(&dir).await;
        let known = windlass.list(Filter::default(), None, 2).await.expect("the runs");
        let outcome = match known.first() {
            Some(info) => windlass.runtime().attach(info.run).await.expect("the run ends").remove(0),
            None => windlass.call_json("book", json!({})).await.expect("the call ends"),
        };
        println!("\nresult {}", outcome.for_model());
    });
    // The parent reads no further reports.
    std::process::exit(0);
}

/// Starts this test binary as a child.
pub(crate) fn spawn(child: &str, dir: &Path, free: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", child, "--nocapture", "--test-threads=1"]);
    let complaints = std::fs::File::options().create(true).append(true).open(complaints_path(dir)).expect("it opens");
    command.env(DIR, dir).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(complaints);
    if free {
        command.env(FREE, "1").stdout(Stdio::null());
    }
    command.spawn().expect("the child starts")
}

/// Runs a child, killing it at the point with this number. Returns its result unless it was killed, and the points.
pub(crate) fn run_child(test: &str, dir: &Path, kill_at: Option<usize>) -> (Option<Value>, Vec<String>) {
    run_ahead(test, dir, kill_at, 0)
}

/// Kills the child at every point of its work, one after the other, and lets another one continue: the result is always
/// the same. Undisturbed it makes at least so many writes.
pub(crate) fn every_kill_ends_the_same(child: &str, expected: &Value, writes: usize) {
    for kill_at in 0..MOST_POINTS {
        let dir = tempfile::tempdir().expect("a directory");
        let (first, before) = run_child(child, dir.path(), Some(kill_at));
        if let Some(result) = first {
            assert_eq!(result, *expected);
            assert!(before.iter().filter(|point| *point == "after write").count() >= writes, "{before:?}");
            return;
        }
        let place = before.last().cloned().unwrap_or_default();
        let (second, after) = run_child(child, dir.path(), None);
        assert_eq!(second.as_ref(), Some(expected), "killed at {kill_at} ({place}); then {after:?}");
    }
    panic!("the scenario has more than {MOST_POINTS} points");
}

/// The same with a child that may be this many points ahead of its parent, so that it is killed in the middle of other
/// work.
pub(crate) fn run_ahead(test: &str, dir: &Path, kill_at: Option<usize>, ahead: usize) -> (Option<Value>, Vec<String>) {
    let mut points = Vec::new();
    let result = run_watched(test, dir, ahead, |point| {
        points.push(point.to_owned());
        kill_at.is_none_or(|kill_at| points.len() <= kill_at)
    });
    (result, points)
}

/// Runs a child as long as `goes_on` returns true; it is called at every point while the child waits.
pub(crate) fn run_watched(
    test: &str,
    dir: &Path,
    ahead: usize,
    mut goes_on: impl FnMut(&str) -> bool,
) -> Option<Value> {
    let mut child = spawn(test, dir, false);
    let mut words = child.stdin.take().expect("its input");
    words.write_all(&b"go\n".repeat(ahead)).expect("it listens");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut result = None;
    for line in lines.map_while(Result::ok) {
        if let Some(point) = line.strip_prefix("point ") {
            if !goes_on(point) {
                // SIGKILL: no process of the child runs any more.
                child.kill().expect("it is killed");
                break;
            }
            // A child that is ahead may have ended: then its last reports are read, and the permission is not.
            let heard = words.write_all(b"go\n");
            assert!(heard.is_ok() || ahead > 0, "it listens");
        } else if let Some(text) = line.strip_prefix("result ") {
            result = Some(serde_json::from_str(text).expect("JSON"));
        }
    }
    child.wait().expect("it ends");
    result
}

#[test]
fn e08_l09_l17_l21_l22_w01_every_kill_leaves_one_charge_and_the_same_result() {
    let reference = tempfile::tempdir().expect("a directory");
    let (expected, points) = run_child("kill::child", reference.path(), None);
    let expected = expected.expect("the undisturbed run ends");
    assert_eq!(expected, json!([3, "reserved", "charged", "seen", "charged"]));
    assert!(points.len() > 12, "{points:?}");
    for kill_at in 0..MOST_POINTS {
        let dir = tempfile::tempdir().expect("a directory");
        let (first, before) = run_child("kill::child", dir.path(), Some(kill_at));
        if first.is_some() {
            assert!(kill_at >= 12, "the child must be killed somewhere");
            return;
        }
        let place = before.last().cloned().unwrap_or_default();
        let (second, after) = run_child("kill::child", dir.path(), None);
        assert_eq!(second.as_ref(), Some(&expected), "killed at {kill_at} ({place}); then {after:?}");
        let ledger = LedgerFile(ledger_path(dir.path())).lines();
        let charges: Vec<_> = ledger.iter().filter(|line| line.starts_with("charge ")).collect();
        let mut distinct = charges.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!((charges.len(), distinct.len()), (2, 2), "killed at {kill_at} ({place}): {ledger:?}");
    }
    panic!("the scenario has more than {MOST_POINTS} points");
}
