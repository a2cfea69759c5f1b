//! What is kept from one opening of the file to the next.

use windlass_core::store::{Filter, Turn};

use super::*;

fn suspend(n: u8, seq: u64, wake: Option<i64>) -> Commit {
    let wake = wake.map(Timestamp::from_micros);
    owner(n, seq, vec![Change::State(RunState::Suspended { wake })])
}

fn due(store: &SqliteStore, now: i64) -> (Vec<RunId>, Option<i64>) {
    store.use_clock(still(Timestamp::from_micros(now)));
    let due = block_on(store.due(9)).unwrap();
    (due.runs, due.next.map(|next| (Timestamp::from_micros(now) + next).as_micros()))
}

#[test]
fn the_secret_is_kept_with_the_file() {
    let (directory, path) = temp_db();
    let secret = SqliteStore::open(&path).unwrap().secret();
    assert_eq!(SqliteStore::open(&path).unwrap().secret(), secret);
    assert_ne!(SqliteStore::open(directory.path().join("other.db")).unwrap().secret(), secret);
    assert_ne!(secret, [0; 32]);
}

#[test]
fn a_lease_ends_with_its_process() {
    let (_directory, path) = temp_db();
    let worker = WorkerId::from_number(1);
    let creation = Creation { tool: "t".into(), worker, ..Creation::default() };
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, owner(1, 0, vec![Change::Create(creation)])).unwrap();
    block_on(store.renew(worker, Duration::from_micros(100))).unwrap();
    assert!(matches!(block_on(store.claim(run(1), claimant())), Err(StoreError::Leased { .. })));
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    // Recovery finds the run. It need not wait for the end of a dead worker's lease.
    assert_eq!(due(&store, 200), (vec![], None));
    block_on(store.renew(worker, Duration::from_micros(150))).unwrap();
    assert_eq!(due(&store, 200), (vec![], None), "a worker with the same number is not the same owner");
    assert_eq!(block_on(store.list(Filter::running(), None, 9)).unwrap().len(), 1);
    let claimed = block_on(store.claim(run(1), claimant())).unwrap();
    assert!(claimed.owners_dead && !claimed.orderly);
}

#[test]
fn w03_a_suspended_run_wakes_after_a_restart() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    for n in 1..=3 {
        commit(&store, create(n)).unwrap();
    }
    commit(&store, suspend(1, 1, Some(50))).unwrap();
    commit(&store, suspend(2, 1, None)).unwrap();
    commit(&store, cancel(3)).unwrap();
    commit(&store, suspend(3, 1, None)).unwrap();
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(due(&store, 10), (vec![run(3)], Some(50)));
    commit(&store, cancel(2)).unwrap();
    assert_eq!(due(&store, 60), (vec![run(2), run(3), run(1)], None));
    let claimed = block_on(store.claim(run(1), claimant())).unwrap();
    assert!(claimed.owners_dead && claimed.orderly);
}

#[test]
fn queued_turns_keep_their_order_over_a_restart() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open(&path).unwrap();
    for n in [2, 1] {
        let creation = Creation { session: Some("s".into()), turn: Turn::Queue, ..Creation::default() };
        let start = Change::Start { run: run(n), creation, records: vec![record(json!("turn"))] };
        commit(&store, Commit { guard: Guard::Outsider, changes: vec![start] }).unwrap();
    }
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(due(&store, 10), (vec![run(2)], None));
    let busy = StoreError::Busy { session: "s".into(), turn: run(2), since: Timestamp::default() };
    assert_eq!(block_on(store.claim(run(1), claimant())).err(), Some(busy));
    assert_eq!(block_on(store.claim(run(2), claimant())).unwrap().epoch, 1);
    commit(&store, owner(2, 1, vec![finish()])).unwrap();
    assert_eq!(due(&store, 10), (vec![run(1)], None));
}

#[test]
fn w03_w08_leases_wake_times_and_positions_do_not_need_a_monotonic_clock() {
    const HOUR: i64 = 3_600_000_000;
    let (_directory, path) = temp_db();
    let worker = WorkerId::from_number(1);
    let creation = |at| Creation {
        tool: "t".into(),
        at: Timestamp::from_micros(at),
        worker,
        session: Some("s".into()),
        ..Creation::default()
    };
    let begin = |n, at| owner(n, 0, vec![Change::Create(creation(at)), append(json!(n))]);
    let store = SqliteStore::open(&path).unwrap();
    for n in 1..=2 {
        commit(&store, begin(n, HOUR)).unwrap();
    }
    commit(&store, suspend(1, 1, Some(HOUR + 10))).unwrap();
    block_on(store.renew(worker, Duration::from_micros(HOUR.unsigned_abs() + 100))).unwrap();
    drop(store);
    // The clock went back by an hour.
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(due(&store, 5), (vec![], Some(HOUR + 10)), "neither lost nor early");
    // The lease of more than an hour belongs to the dead process.
    let claimed = block_on(store.claim(run(2), claimant())).unwrap();
    assert!(claimed.owners_dead && claimed.epoch == 2);
    commit(&store, begin(3, 5)).unwrap();
    commit(&store, suspend(3, 1, Some(10))).unwrap();
    assert_eq!(due(&store, 10), (vec![run(3)], Some(HOUR + 10)));
    commit(&store, cancel(1)).unwrap();
    assert_eq!(due(&store, 10), (vec![run(1), run(3)], None));
    let feed = block_on(store.feed("s".into(), 0, 9)).unwrap();
    let order: Vec<RunId> = feed.iter().map(|entry| entry.run).collect();
    assert_eq!(order, [run(1), run(2), run(3)], "in the order they were written");
    assert!(feed.is_sorted_by(|a, b| a.position < b.position));
}
