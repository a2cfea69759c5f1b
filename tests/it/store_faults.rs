//! The effect of a failing disk on the file itself: acknowledged commits are in it, also after a power cut.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use windlass::run::record::{Event, Finished, Record};
use windlass::run::{Filter, Times};
use windlass::store::{Driving, Health, Queries, SqliteStore, StoreError};
use windlass::{Output, RunId, Timestamp};
use windlass_core::store::{Change, Commit, Creation, Guard};
use windlass_core::testing::block_on;

use crate::fault::{EIO, ENOSPC, Means, in_child};

fn run() -> RunId {
    RunId::from_bytes([1; 16])
}

/// A record of this many bytes, or a few more.
fn record(seq: u64, bytes: usize) -> Record {
    let result = Ok(Arc::new(Output::value(json!([seq, "x".repeat(bytes)]))));
    let finished = Finished { result, told: None, attempts: 1, times: Times::default(), settled: None };
    let event = Event::Finished(finished);
    Record { path: windlass::Path::root(), at: Timestamp::default(), asked: None, event }
}

fn commit(store: &SqliteStore, seq: u64, bytes: usize) -> Result<(), StoreError> {
    let mut changes = vec![Change::Append(vec![record(seq, bytes)])];
    if seq == 0 {
        changes.push(Change::Create(Creation { tool: "t".into(), ..Creation::default() }));
    }
    block_on(store.commit(Commit { guard: Guard::Owner { run: run(), epoch: 1, expected_seq: seq }, changes }).get())
}

fn length(store: &SqliteStore) -> u64 {
    block_on(store.journal(run(), 0)).expect("it can be read").len() as u64
}

fn log_of(path: &Path) -> PathBuf {
    path.with_extension("db-wal")
}

/// The current log, and the number that changes when it is restarted.
fn log(path: &Path) -> (Vec<u8>, Vec<u8>) {
    let bytes = std::fs::read(log_of(path)).expect("there is a log");
    let salt = bytes.get(16..24).unwrap_or_default().to_vec();
    (bytes, salt)
}

/// The state after a power cut: everything but these bytes of the log, which never reached the disk.
fn after_a_power_cut(path: &Path, lost: std::ops::Range<usize>, salt: &[u8]) -> SqliteStore {
    let elsewhere = path.with_file_name("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a directory");
    let copy = elsewhere.join("app.db");
    std::fs::copy(path, &copy).expect("a copy");
    let (mut bytes, now) = log(path);
    // A log that was restarted since has been written again and synced.
    if now == salt {
        bytes[lost].fill(0);
    }
    std::fs::write(log_of(&copy), bytes).expect("a copy");
    SqliteStore::open(&copy).expect("it opens")
}

fn wait_until_recovered(store: &SqliteStore) {
    while store.health() != Health::Fine {
        std::thread::yield_now();
    }
}

#[test]
fn w08_no_acknowledged_commit_follows_a_failed_sync() {
    let test = "store_faults::w08_no_acknowledged_commit_follows_a_failed_sync";
    in_child(test, Means::Library, |broken| {
        let path = broken.dir.join("app.db");
        let store = SqliteStore::open(&path).expect("it opens");
        (0..4).for_each(|seq| commit(&store, seq, 10).expect("it is taken"));
        let (before, salt) = log(&path);
        broken.fail(&[("sync", "-wal", EIO)]);
        let answer = commit(&store, 4, 10);
        let said = format!("writing {}: disk I/O error", store.path().display());
        assert_eq!(answer, Err(StoreError::Unknown(said)));
        let (after, _) = log(&path);
        assert!(after.len() > before.len(), "the group is in the log, and looks as if it were on disk");
        assert!(matches!(commit(&store, 4, 10), Err(StoreError::Unavailable(_))));
        broken.mend();
        wait_until_recovered(&store);
        // Whether the unacknowledged commit is there is decided by the file.
        let mut acknowledged = length(&store);
        assert!((4..=5).contains(&acknowledged), "{acknowledged}");
        for _ in 0..3 {
            commit(&store, acknowledged, 10).expect("it is taken");
            acknowledged += 1;
        }
        let found = after_a_power_cut(&path, before.len()..after.len(), &salt);
        assert_eq!(length(&found), acknowledged);
    });
}

#[test]
fn w08_a_checkpoint_whose_sync_fails_stops_the_store() {
    in_child("store_faults::w08_a_checkpoint_whose_sync_fails_stops_the_store", Means::Library, |broken| {
        let path = broken.dir.join("app.db");
        let store = SqliteStore::open(&path).expect("it opens");
        commit(&store, 0, 10).expect("it is taken");
        broken.fail(&[("sync", ".db", EIO)]);
        let mut acknowledged = 1;
        // The largest inline value.
        while commit(&store, acknowledged, 15 << 10).is_ok() {
            acknowledged += 1;
            assert!(acknowledged < 4_000, "the log grows without end");
        }
        assert!(matches!(store.health(), Health::Unavailable(_)));
        assert_eq!(length(&store), acknowledged, "what is there can be read");
        assert!(broken.mend().contains("sync"));
        wait_until_recovered(&store);
        commit(&store, acknowledged, 10).expect("it is taken");
        assert_eq!(length(&store), acknowledged + 1);
        assert!(std::fs::metadata(log_of(&path)).expect("there is a log").len() < 1 << 20, "the log began again");
    });
}

#[test]
fn w08_a_full_disk_is_named_when_the_file_is_opened() {
    in_child("store_faults::w08_a_full_disk_is_named_when_the_file_is_opened", Means::Library, |broken| {
        let path = broken.dir.canonicalize().expect("the directory").join("app.db");
        broken.fail(&[("write", "-wal", ENOSPC), ("write", ".db", ENOSPC)]);
        let error = SqliteStore::open(&path).expect_err("there is no room").to_string();
        let advice = "free some space, or use a path on another disk";
        assert!(error.starts_with(&format!("cannot open {}: its disk is full (", path.display())), "{error}");
        assert!(error.ends_with(advice), "{error}");
        broken.mend();
        let store = SqliteStore::open(&path).expect("what it left is taken");
        assert!(block_on(store.list(Filter::default(), None, 9)).expect("it can be read").is_empty());
    });
}
