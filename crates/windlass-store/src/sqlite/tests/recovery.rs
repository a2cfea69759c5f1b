//! A fault ends, and the store goes on: whichever thread met it, whatever it was, and without a request.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use windlass_core::store::Filter;

use super::super::Health;
use super::super::fault::Fault;
use super::desk::here;
use super::*;

/// How long a store may take to go on. It looks every second.
const SOON: Duration = Duration::from_secs(20);

fn add(seq: u64) -> Commit {
    owner(1, seq, vec![append(json!(seq))])
}

fn wait_until_fine(store: &SqliteStore, after: &str) {
    let until = Instant::now() + SOON;
    while store.health() != Health::Fine {
        assert!(Instant::now() < until, "after {after}: {:?}", store.health());
        std::thread::yield_now();
    }
}

/// A store whose next commit is written on the caller's thread, and the number of that commit.
fn lone(path: &Path) -> (SqliteStore, u64) {
    let store = SqliteStore::open_with(path, here()).unwrap();
    commit(&store, create(1)).unwrap();
    let mut seq = 1;
    while !store.desk.writes_here() {
        commit(&store, add(seq)).unwrap();
        seq += 1;
        while !store.desk.is_free() {
            std::thread::yield_now();
        }
    }
    (store, seq)
}

#[cfg(unix)]
#[test]
fn w08_a_fault_met_by_a_caller_that_writes_by_itself_is_recovered_from() {
    let (directory, path) = place();
    let aside = directory.path().join("aside.db");
    let (store, seq) = lone(&path);
    fs::rename(&path, &aside).unwrap();
    assert!(matches!(commit(&store, add(seq)), Err(StoreError::Unavailable(_))));
    fs::rename(&aside, &path).unwrap();
    // Without another commit.
    wait_until_fine(&store, "the file came back");
    commit(&store, add(seq)).unwrap();
    assert_eq!(length(&store, 1), usize::try_from(seq).unwrap() + 1);
}

#[test]
fn w08_every_kind_of_fault_is_recovered_from_whichever_thread_met_it() {
    let said = || "a disk".to_owned();
    let faults = [
        Fault::Full,
        Fault::ReadOnly,
        Fault::Gone,
        Fault::Replaced,
        Fault::LogGone,
        Fault::Busy,
        Fault::NoAccess(said()),
        Fault::Damaged(said()),
        Fault::Disk(said()),
        Fault::Other(said()),
    ];
    let (_directory, path) = place();
    let (store, seq) = lone(&path);
    for fault in &faults {
        // Not tried again at once: as after a disk that failed twice in a second.
        store.desk.meet(fault.clone());
        assert!(matches!(store.health(), Health::Unavailable(_)), "{fault:?}");
        assert_eq!(block_on(store.list(Filter::All, None, 9)).unwrap().len(), 1, "{fault:?}");
        wait_until_fine(&store, &format!("{fault:?}"));
    }
    commit(&store, add(seq)).unwrap();
}

#[cfg(unix)]
#[test]
fn w08_a_check_that_meets_a_fault_is_made_again_when_that_is_over() {
    use super::super::check::{self, Shared};
    let (directory, path) = place();
    let aside = directory.path().join("aside.db");
    let opened = super::super::open::open(&path, &Options::default()).unwrap();
    let shared = Shared::new(Health::Checking, Arc::default());
    fs::rename(&path, &aside).unwrap();
    std::thread::scope(|scope| {
        let check = scope.spawn(|| check::conclude(&opened.place, &shared));
        while shared.found() == Health::Checking {
            std::thread::yield_now();
        }
        let Health::Broken(why) = shared.found() else { panic!("{:?}", shared.found()) };
        assert!(why.contains("could not be looked through") && why.contains("tried again every second"), "{why}");
        fs::rename(&aside, &path).unwrap();
        check.join().unwrap();
    });
    assert_eq!(shared.found(), Health::Fine);
}

#[test]
fn w08_a_store_whose_writer_panicked_says_so() {
    let (_directory, path) = place();
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, create(1)).unwrap();
    store.desk.panic_at_the_desk();
    let Health::Unavailable(why) = store.health() else { panic!("{:?}", store.health()) };
    assert!(why.contains("panicked") && why.contains("start this process again"), "{why}");
    assert!(matches!(commit(&store, add(1)), Err(StoreError::Unavailable(_))));
    drop(store);
    assert_eq!(length(&SqliteStore::open(&path).unwrap(), 1), 1);
}
