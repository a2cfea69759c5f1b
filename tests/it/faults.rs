//! Full disks, failing syncs, read-only files: the store stops, reports why, loses nothing that it accepted, and
//! continues by itself when the cause is gone. Bodies do not notice.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use windlass::run::Filter;
use windlass::store::{Health, SqliteStore, StoreError};
use windlass::tool::Reconciled;
use windlass::{Call, Ctx, Effect, Error, Tool, ToolCall, ToolError, Windlass};

use crate::fault::{Broken, EIO, ENOSPC, EROFS, Means, in_child};

const FULL: &str = "its disk is full; free some space, and it goes on by itself; nothing that was accepted is lost";
const DISK: &str = "reading, writing or syncing it failed (disk I/O error); check the disk, the quota, the limit on the \
                    size of files, and whether its file system has become read-only; it is tried again every second, and \
                    nothing that was accepted is lost";

fn sentence(path: &Path, why: &str) -> String {
    format!("{} takes no commits: {why}", path.display())
}

const RUNS: usize = 12;

/// The effects outside: the name and the key of each.
type Ledger = Arc<Mutex<Vec<(&'static str, String)>>>;

/// Tools whose effects are counted. They begin when the gate is opened, and the disk breaks in the middle of the
/// `RUNS`th charge.
fn tools(ledger: &Ledger, gate: &Arc<Semaphore>, breaks: impl Fn() + Send + Sync + 'static) -> Vec<Tool> {
    let (acts, knows, holds) = (ledger.clone(), ledger.clone(), ledger.clone());
    let (count, breaks) = (Arc::new(AtomicUsize::new(0)), Arc::new(breaks));
    let charge = Tool::with_call("charge", "once", move |call: Call, _: Value| {
        let (ledger, count, breaks) = (acts.clone(), count.clone(), breaks.clone());
        async move {
            ledger.lock().push(("charge", call.idempotency_key().to_string()));
            if count.fetch_add(1, Ordering::SeqCst) + 1 == RUNS {
                breaks();
            }
            Ok(json!("charged"))
        }
    })
    .timeout(Duration::from_millis(300))
    .reconcile(move |call| {
        let happened = knows.lock().contains(&("charge", call.idempotency_key().to_string()));
        async move { Ok(if happened { Reconciled::Happened(json!("charged")) } else { Reconciled::DidNotHappen }) }
    });
    let reserve = Tool::with_call("reserve", "idempotent", move |call: Call, _: Value| {
        holds.lock().push(("reserve", call.idempotency_key().to_string()));
        async { Ok(json!("reserved")) }
    })
    .effect(Effect::Idempotent);
    let gate = gate.clone();
    let wait = Tool::new("wait", "readonly", move |_: Value| {
        let gate = gate.clone();
        async move { gate.acquire().await.map(|_| json!("begun")).map_err(|error| ToolError::failed(error.to_string())) }
    })
    .effect(Effect::Readonly);
    let book = Tool::durable_fn("book", "all of it", |mut ctx: Ctx, _: Value| async move {
        ctx.call_json("wait", json!({})).await?;
        let first = ctx.call_json("charge", json!({"n": 1})).await?;
        let held = ctx.call_json("reserve", json!({})).await?;
        ctx.sleep(Duration::from_millis(20)).await?;
        let second = ctx.call_json("charge", json!({"n": 2})).await?;
        Ok(json!([first, held, second]))
    });
    vec![charge, reserve, wait, book]
}

/// Runs are in progress when the disk breaks. They stop, nothing new is accepted, and existing data can be read. Then
/// the disk is repaired, and all of them end, with every effect once.
fn runs_outlast(path: &Path, why: &str, breaks: impl Fn() + Send + Sync + 'static, mends: impl FnOnce()) {
    let executor = tokio::runtime::Runtime::new().expect("an executor");
    executor.block_on(async {
        let (ledger, gate) = (Ledger::default(), Arc::new(Semaphore::new(0)));
        let store = Arc::new(SqliteStore::open(path).expect("the store opens"));
        let path = store.path().to_owned();
        let builder = Windlass::with_store(store.clone());
        let builder = tools(&ledger, &gate, breaks).into_iter().fold(builder, windlass::Builder::tool);
        let windlass = builder.await.expect("the runtime opens");
        let mut runs = Vec::new();
        for _ in 0..RUNS {
            let how = windlass::run::Start::default();
            runs.push(
                windlass.runtime().start_with(ToolCall::<Value>::new("book", json!({})), how).await.expect("accepted"),
            );
        }
        gate.add_permits(RUNS);
        while store.health() == Health::Fine {
            tokio::task::yield_now().await;
        }
        assert_eq!(store.health(), Health::Unavailable(sentence(&path, why)));
        match windlass.runtime().start_unconfirmed(ToolCall::<Value>::new("book", json!({}))) {
            Err(Error::Store(StoreError::Unavailable(said))) => assert_eq!(said, sentence(&path, why)),
            other => panic!("{other:?}"),
        }
        assert_eq!(windlass.list(Filter::default(), None, 100).await.expect("it can be read").len(), RUNS);
        mends();
        for run in runs {
            let outcome = windlass.runtime().attach(run).await.expect("the run ends").remove(0);
            assert_eq!(outcome.for_model(), json!(["charged", "reserved", "charged"]), "{run}");
        }
        assert_eq!(store.health(), Health::Fine);
        assert!(windlass.inbox().doubts().await.expect("the doubts").is_empty());
        assert_eq!(
            windlass.list(Filter::default(), None, 100).await.expect("the runs").len(),
            RUNS,
            "nothing else was accepted"
        );
        let ledger = ledger.lock().clone();
        let keys = |name| {
            let mut keys: Vec<_> = ledger.iter().filter(|(effect, _)| *effect == name).collect();
            let all = keys.len();
            keys.sort();
            keys.dedup();
            (all, keys.len())
        };
        assert_eq!(keys("charge"), (RUNS * 2, RUNS * 2), "every charge once");
        assert_eq!(keys("reserve").1, RUNS);
        windlass.shutdown().await.expect("it closes");
    });
}

/// With calls that fail while the control file says so.
fn runs_outlast_failing(broken: &Broken, calls: &'static [(&str, &str, i32)], why: &str) {
    let path = broken.dir.join("app.db");
    let breaks = broken.clone();
    runs_outlast(
        &path,
        why,
        move || breaks.fail(calls),
        || {
            let struck = broken.mend();
            assert!(struck.contains(calls[0].1), "nothing failed: {struck}");
        },
    );
}

#[test]
fn w08_runs_outlast_a_full_disk() {
    in_child("faults::w08_runs_outlast_a_full_disk", Means::Library, |broken| {
        runs_outlast_failing(broken, &[("write", "-wal", ENOSPC), ("write", ".db", ENOSPC)], FULL);
    });
}

#[test]
fn w08_runs_outlast_a_disk_that_cannot_sync() {
    in_child("faults::w08_runs_outlast_a_disk_that_cannot_sync", Means::Library, |broken| {
        runs_outlast_failing(broken, &[("sync", "-wal", EIO)], DISK);
    });
}

#[test]
fn w08_runs_outlast_a_file_system_that_became_read_only() {
    in_child("faults::w08_runs_outlast_a_file_system_that_became_read_only", Means::Library, |broken| {
        let calls = &[("write", "-wal", EROFS), ("write", ".db", EROFS), ("truncate", "-wal", EROFS)];
        runs_outlast_failing(broken, calls, DISK);
    });
}

#[test]
fn w08_runs_outlast_a_limit_on_the_size_of_files() {
    in_child("faults::w08_runs_outlast_a_limit_on_the_size_of_files", Means::Sizes, |broken| {
        let limit = |bytes: &str| {
            let pid = std::process::id().to_string();
            let limit = format!("--fsize={bytes}:unlimited");
            assert!(Command::new("prlimit").args(["--pid", &pid, &limit]).status().expect("prlimit").success());
        };
        runs_outlast(&broken.dir.join("app.db"), DISK, move || limit("1"), || limit("unlimited"));
    });
}

#[test]
fn w08_runs_outlast_a_disk_that_is_really_full() {
    in_child("faults::w08_runs_outlast_a_disk_that_is_really_full", Means::Mounts, |broken| {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "none"]).arg(&broken.dir).status();
        if !mounted.is_ok_and(|status| status.success()) {
            return println!("skipped: this user may not mount a small file system to fill");
        }
        let filler = broken.dir.join("filler");
        let fill = filler.clone();
        let fills = move || while std::fs::write(&fill, vec![7; 4 << 20]).is_ok() {};
        runs_outlast(&broken.dir.join("app.db"), FULL, fills, || std::fs::remove_file(filler).expect("room again"));
    });
}
