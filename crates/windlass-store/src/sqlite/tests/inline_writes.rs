//! Commits that are written inline, on the thread that submits them.

use std::thread;

use windlass_core::store::Promise;

use super::super::job::{Job, Write};
use super::*;

pub(super) fn inline_options() -> Options {
    Options { inline_writes: true, durability: Durability::Relaxed, ..Options::default() }
}

/// Submits a commit. Returns whether it was written inline.
fn is_written_inline(store: &SqliteStore, seq: u64) -> bool {
    // A caller may be answered before the writer is idle.
    while !store.shared_writer.is_idle() {
        thread::yield_now();
    }
    let (promise, ticket) = Promise::pair();
    let write = Write::encode(owner(1, seq, vec![append(json!(seq))]), &keys()).unwrap();
    let left = store.shared_writer.write_inline(Job::Write(write.into(), promise));
    let is_written = left.is_none();
    left.map_or(Ok(()), |job| store.queue.push(job)).unwrap();
    block_on(ticket).unwrap();
    is_written
}

#[test]
fn w08_a_single_caller_writes_inline_and_is_queued_at_intervals() {
    let (_directory, path) = temp_db();
    let store = SqliteStore::open_with(&path, inline_options()).unwrap();
    commit(&store, create(1)).unwrap();
    let first = (1..10).find(|seq| is_written_inline(&store, *seq)).expect("some commit is written inline");
    let more = (first + 1..).take_while(|seq| is_written_inline(&store, *seq)).count();
    assert!(more < 128, "maintenance must run at intervals: {more}");
}

#[test]
fn w08_concurrent_inline_writes_lose_nothing_and_keep_the_order() {
    let (_directory, path) = temp_db();
    let store = Arc::new(SqliteStore::open_with(&path, inline_options()).unwrap());
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
