//! Commits that whoever submits them writes by itself.

use std::thread;

use windlass_core::store::Promise;

use super::super::job::{Job, Write};
use super::*;

pub(super) fn here() -> Options {
    Options { here: true, durability: Durability::Relaxed, ..Options::default() }
}

/// Whether a commit is written by whoever submits it.
fn is_written_here(store: &SqliteStore, seq: u64) -> bool {
    // Whoever is answered may be back before the writer is.
    while !store.desk.is_free() {
        thread::yield_now();
    }
    let (promise, ticket) = Promise::pair();
    let write = Write::encode(owner(1, seq, vec![append(json!(seq))]), &keys()).unwrap();
    let left = store.desk.write_here(Job::Write(write.into(), promise));
    let is_written = left.is_none();
    left.map_or(Ok(()), |job| store.queue.push(job)).unwrap();
    block_on(ticket).unwrap();
    is_written
}

#[test]
fn w08_a_lone_caller_writes_by_itself_and_hands_over_now_and_then() {
    let (_directory, path) = place();
    let store = SqliteStore::open_with(&path, here()).unwrap();
    commit(&store, create(1)).unwrap();
    let first = (1..10).find(|seq| is_written_here(&store, *seq)).expect("it is allowed to");
    let more = (first + 1..).take_while(|seq| is_written_here(&store, *seq)).count();
    assert!(more < 128, "what follows a group is done now and then: {more}");
}

#[test]
fn w08_callers_that_write_by_themselves_keep_everything_and_its_order() {
    let (_directory, path) = place();
    let store = Arc::new(SqliteStore::open_with(&path, here()).unwrap());
    thread::scope(|scope| {
        for number in 1..=4 {
            let store = &store;
            scope.spawn(move || {
                commit(store, create(number)).unwrap();
                for seq in 1..200 {
                    // Two at once, so that the second is submitted before the first is answered.
                    let first = store.commit(owner(number, 2 * seq - 1, vec![append(json!(seq))]));
                    let second = store.commit(owner(number, 2 * seq, vec![append(json!(seq))]));
                    block_on(first.get()).unwrap();
                    block_on(second.get()).unwrap();
                }
            });
        }
    });
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!((1..=4).map(|number| length(&store, number)).collect::<Vec<_>>(), [399; 4]);
}
