//! The store recovers from every fault by itself, whichever thread met it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use windlass_core::store::Filter;

use super::super::Health;
use super::super::fault::Fault;
use super::inline_writes::inline_options;
use super::*;

/// How long a store may take to recover. It tries every second.
const RECOVERY_LIMIT: Duration = Duration::from_secs(20);

fn add(seq: u64) -> Commit {
    owner(1, seq, vec![append(json!(seq))])
}

fn wait_until_fine(store: &SqliteStore, after: &str) {
    let until = Instant::now() + RECOVERY_LIMIT;
    while store.health() != Health::Fine {
        assert!(Instant::now() < until, "after {after}: {:?}", store.health());
        std::thread::yield_now();
    }
}

/// A store whose next commit is written inline, and the number of that commit.
fn inline_store(path: &Path) -> (SqliteStore, u64) {
    let store = SqliteStore::open_with(path, inline_options()).unwrap();
    commit(&store, create(1)).unwrap();
    let mut seq = 1;
    while !store.shared_writer.writes_inline() {
        commit(&store, add(seq)).unwrap();
        seq += 1;
        while !store.shared_writer.is_idle() {
            std::thread::yield_now();
        }
    }
    (store, seq)
}

#[cfg(unix)]
#[test]
fn w08_a_store_recovers_from_a_fault_during_an_inline_write() {
    let (directory, path) = temp_db();
    let aside = directory.path().join("aside.db");
    let (store, seq) = inline_store(&path);
    fs::rename(&path, &aside).unwrap();
    assert!(matches!(commit(&store, add(seq)), Err(StoreError::Unavailable(_))));
    fs::rename(&aside, &path).unwrap();
    // Without another commit.
    wait_until_fine(&store, "the file came back");
    commit(&store, add(seq)).unwrap();
    assert_eq!(length(&store, 1), usize::try_from(seq).unwrap() + 1);
}

#[test]
fn w08_a_store_recovers_from_every_kind_of_fault_on_any_thread() {
    let message = || "a disk".to_owned();
    let faults = [
        Fault::Full,
        Fault::ReadOnly,
        Fault::Missing,
        Fault::Replaced,
        Fault::WalMissing,
        Fault::Busy,
        Fault::NoAccess(message()),
        Fault::Damaged(message()),
        Fault::Disk(message()),
        Fault::Other(message()),
    ];
    let (_directory, path) = temp_db();
    let (store, seq) = inline_store(&path);
    for fault in &faults {
        // Not tried again at once, as after a disk that failed twice in a second.
        store.shared_writer.simulate_fault(fault.clone());
        assert!(matches!(store.health(), Health::Unavailable(_)), "{fault:?}");
        assert_eq!(block_on(store.list(Filter::default(), None, 9)).unwrap().len(), 1, "{fault:?}");
        wait_until_fine(&store, &format!("{fault:?}"));
    }
    commit(&store, add(seq)).unwrap();
}

#[cfg(unix)]
#[test]
fn w08_a_check_interrupted_by_a_fault_is_repeated() {
    use super::super::check::{self, CheckState};
    let (directory, path) = temp_db();
    let aside = directory.path().join("aside.db");
    let opened = super::super::open::open(&path, &Options::default()).unwrap();
    let state = CheckState::new(Health::Checking, Arc::default());
    fs::rename(&path, &aside).unwrap();
    std::thread::scope(|scope| {
        let check = scope.spawn(|| check::run_check(&opened.db_file, &state));
        while state.health() == Health::Checking {
            std::thread::yield_now();
        }
        let Health::Broken(why) = state.health() else { panic!("{:?}", state.health()) };
        assert!(why.contains("could not be checked") && why.contains("tried again every second"), "{why}");
        fs::rename(&aside, &path).unwrap();
        check.join().unwrap();
    });
    assert_eq!(state.health(), Health::Fine);
}

#[test]
fn w08_a_store_whose_writer_panicked_reports_it() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    store.shared_writer.simulate_panic();
    let Health::Unavailable(why) = store.health() else { panic!("{:?}", store.health()) };
    assert!(why.contains("panicked") && why.contains("restart this process"), "{why}");
    assert!(matches!(commit(&store, add(1)), Err(StoreError::Unavailable(_))));
    drop(store);
    assert_eq!(length(&SqliteStore::open(&path).unwrap(), 1), 1);
}
