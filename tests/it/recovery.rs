//! A failing disk may be met by one caller that writes on its own thread or by several callers. In both cases lists
//! show every acknowledged run meanwhile, and the store recovers by itself once the disk works, without another
//! request.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::run::Filter;
use windlass::store::{Health, SqliteStore};
use windlass::{Call, Tool, ToolCall, Windlass};
use windlass_store::Options;

use crate::fault::{Broken, EIO, ENOSPC, EROFS, Means, in_child};

/// How long a store may take to recover: it checks every second, and machines are busy.
const SOON: Duration = Duration::from_secs(20);

/// The request that meets the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finder {
    Caller,
    Callers,
}

const FINDERS: [Finder; 2] = [Finder::Caller, Finder::Callers];

struct Shop {
    store: Arc<SqliteStore>,
    windlass: Windlass,
    /// The key of every charge.
    charged: Arc<Mutex<Vec<String>>>,
}

impl Shop {
    async fn open(path: &Path) -> Self {
        let mut options = Options::default();
        options.inline_writes = true;
        let store = Arc::new(SqliteStore::open_with(path, options).expect("the store opens"));
        let charged: Arc<Mutex<Vec<String>>> = Arc::default();
        let ledger = charged.clone();
        let charge = Tool::with_call("charge", "once", move |call: Call, _: Value| {
            ledger.lock().push(call.idempotency_key().to_string());
            async { Ok(json!("charged")) }
        });
        let windlass = Windlass::with_store(store.clone()).tool(charge).await.expect("the runtime opens");
        Self { store, windlass, charged }
    }

    fn charge(&self) -> impl Future<Output = windlass::Result<Value>> + Send + use<> {
        let windlass = self.windlass.clone();
        async move { windlass.call(ToolCall::<Value>::new("charge", json!({}))).await }
    }

    /// Meets the fault. Whether it succeeds is not checked: a call in progress may succeed once the disk is repaired.
    async fn meet(&self, finder: Finder) {
        let calls = match finder {
            Finder::Caller => 1,
            Finder::Callers => 8,
        };
        let calls: Vec<_> = (0..calls).map(|_| tokio::spawn(self.charge())).collect();
        let until = Instant::now() + SOON;
        while self.store.health() == Health::Fine {
            assert!(Instant::now() < until, "the fault is not met by {finder:?}");
            tokio::task::yield_now().await;
        }
        calls.into_iter().for_each(|call| call.abort());
    }

    /// The number of listed runs.
    async fn listed(&self) -> usize {
        self.windlass.list(Filter::default(), None, 999).await.expect("runs are listed").len()
    }

    async fn goes_on(&self, finder: Finder) {
        let until = Instant::now() + SOON;
        while self.store.health() != Health::Fine {
            assert!(Instant::now() < until, "met by {finder:?}: {:?}", self.store.health());
            tokio::task::yield_now().await;
        }
        assert_eq!(self.charge().await.expect("it is charged"), json!("charged"));
        let mut keys = self.charged.lock().clone();
        let all = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), all, "a charge was made twice");
    }
}

/// Breaks and repairs the disk under every kind of finder.
fn is_recovered_from(path: &Path, breaks: impl Fn(), mends: impl Fn()) {
    let executor = tokio::runtime::Runtime::new().expect("an executor");
    executor.block_on(async {
        let shop = Shop::open(path).await;
        for finder in FINDERS {
            let before = shop.listed().await;
            // Often enough for the store to detect a single caller.
            for _ in 0..8 {
                shop.charge().await.expect("it is charged");
            }
            breaks();
            shop.meet(finder).await;
            assert!(shop.listed().await >= before + 8, "lists lack runs while commits are refused");
            mends();
            shop.goes_on(finder).await;
        }
        shop.windlass.shutdown().await.expect("it closes");
    });
}

fn failing_calls_are_recovered_from(test: &str, calls: &[(&str, &str, i32)]) {
    in_child(test, Means::Library, |broken: &Broken| {
        is_recovered_from(&broken.dir.join("app.db"), || broken.fail(calls), || drop(broken.mend()));
    });
}

#[test]
fn w08_a_full_disk_met_by_one_caller_is_recovered_from() {
    let calls = [("write", "-wal", ENOSPC), ("write", ".db", ENOSPC)];
    failing_calls_are_recovered_from("recovery::w08_a_full_disk_met_by_one_caller_is_recovered_from", &calls);
}

#[test]
fn w08_a_failed_sync_met_by_one_caller_is_recovered_from() {
    let calls = [("sync", "-wal", EIO)];
    failing_calls_are_recovered_from("recovery::w08_a_failed_sync_met_by_one_caller_is_recovered_from", &calls);
}

#[test]
fn w08_a_read_only_disk_met_by_one_caller_is_recovered_from() {
    let calls = [("write", "-wal", EROFS), ("write", ".db", EROFS), ("truncate", "-wal", EROFS)];
    failing_calls_are_recovered_from("recovery::w08_a_read_only_disk_met_by_one_caller_is_recovered_from", &calls);
}

#[cfg(unix)]
#[test]
fn w08_a_file_moved_away_and_back_under_one_caller_is_recovered_from() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, aside) = (directory.path().join("app.db"), directory.path().join("aside.db"));
    let move_to = |from: &Path, to: &Path| std::fs::rename(from, to).expect("it is moved");
    is_recovered_from(&path, || move_to(&path, &aside), || move_to(&aside, &path));
}

/// Mounts a small disk on a child's directory. If that is not allowed, the test reports that it is skipped.
pub(crate) fn mounts(dir: &Path, size: &str) -> bool {
    let size = format!("size={size}");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(dir).status();
    let mounted = mounted.is_ok_and(|status| status.success());
    if !mounted {
        println!("skipped: this user may not mount a small file system to fill");
    }
    mounted
}

/// Writes until there is no room.
pub(crate) fn fill(filler: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::options().create(true).append(true).open(filler).expect("a file");
    for size in [64 << 10, 4_096, 1] {
        while file.write_all(&vec![7; size]).is_ok() {}
    }
}

#[test]
fn w08_a_disk_really_full_met_by_one_caller_is_recovered_from() {
    let test = "recovery::w08_a_disk_really_full_met_by_one_caller_is_recovered_from";
    in_child(test, Means::Mounts, |broken| {
        if mounts(&broken.dir, "8m") {
            let filler = broken.dir.join("filler");
            let empty = || std::fs::remove_file(&filler).expect("room again");
            is_recovered_from(&broken.dir.join("app.db"), || fill(&filler), empty);
        }
    });
}

#[test]
fn w08_starting_on_a_full_disk_names_the_file_the_room_and_the_remedy() {
    let test = "recovery::w08_starting_on_a_full_disk_names_the_file_the_room_and_the_remedy";
    in_child(test, Means::Mounts, |broken| {
        if !mounts(&broken.dir, "8m") {
            return;
        }
        let (clean, crashed, new) =
            (broken.dir.join("clean.db"), broken.dir.join("crashed.db"), broken.dir.join("new.db"));
        let executor = tokio::runtime::Runtime::new().expect("an executor");
        executor.block_on(async {
            let shop = Shop::open(&clean).await;
            shop.charge().await.expect("it is charged");
            // What a killed process leaves.
            for end in ["", "-wal"] {
                let of = |path: &Path| std::path::PathBuf::from(format!("{}{end}", path.display()));
                std::fs::copy(of(&clean), of(&crashed)).expect("a copy");
            }
            shop.windlass.shutdown().await.expect("it closes");
        });
        let filler = broken.dir.join("filler");
        fill(&filler);
        for path in [&clean, &crashed, &new] {
            let path = path
                .parent()
                .expect("a directory")
                .canonicalize()
                .expect("it is there")
                .join(path.file_name().expect("a name"));
            let error = SqliteStore::open(&path).expect_err("there is no room").to_string();
            let expected = format!(
                "cannot open {}: its disk is full (0 KiB free, 1024 KiB needed); free some space, or use a path on another \
                 disk",
                path.display()
            );
            assert_eq!(error, expected);
        }
        std::fs::remove_file(&filler).expect("room again");
        for path in [&clean, &crashed, &new] {
            SqliteStore::open(path).expect("there is room");
        }
    });
}
