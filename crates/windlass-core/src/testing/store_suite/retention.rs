//! What is removed after a time, what is kept, and purging.

use std::sync::Arc;

use serde_json::json;

use super::scene::{
    Owner, at, cancel, claim_at, doubt, due, finished, held, info, keyed, mail, must, new, outside, post, record, run,
    settle, start, suspended,
};
use crate::path::Path;
use crate::run::record::Record;
use crate::store::{Change, Creation, Filter, Store, StoreError, Tidied, Turn};
use crate::testing::block_on;
use crate::time::Timestamp;

const DAY: i64 = 24 * 3_600 * 1_000_000;

/// Tidies at this time until nothing is left to do. Returns how many runs became summaries, and how many were removed.
fn tidy(store: &dyn Store, now: i64) -> (usize, usize) {
    let mut all = Tidied::default();
    for _ in 0..1_000 {
        let done = must(block_on(store.tidy(at(now))));
        all.summarized += done.summarized;
        all.removed += done.removed;
        if !done.more {
            return (all.summarized, all.removed);
        }
    }
    panic!("tidying does not end");
}

/// Appends a record with this time.
fn note(at: i64) -> Change {
    Change::Append(vec![Record { at: Timestamp::from_micros(at), ..record(1, json!("the end")) }])
}

/// Creates run number `n` and finishes it at this time.
fn end_at<'a>(store: &'a dyn Store, n: u8, creation: Creation, end: i64) -> Owner<'a> {
    let mut owner = Owner::create_as(store, n, creation);
    owner.write(vec![note(end), Change::State(finished())]);
    owner
}

fn child_of(n: u8, parent: u8) -> Creation {
    Creation { parent: Some(Box::new((run(parent), Path::root().child(1)))), ..new(n) }
}

fn gone(store: &dyn Store, n: u8) -> bool {
    must(block_on(store.info(run(n)))).is_none()
}

fn is_summary(store: &dyn Store, n: u8) -> bool {
    match block_on(store.journal(run(n), 0)) {
        Ok(records) => {
            assert_eq!(records.len(), 2, "the journal is complete or gone");
            false
        }
        Err(error) => {
            assert_eq!(error, StoreError::JournalGone(run(n)));
            true
        }
    }
}

pub(super) fn w09_a_finished_run_becomes_a_summary_and_is_removed_later(store: &dyn Store) {
    let creation = Creation { session: Some("s".into()), ..keyed(1, "k") };
    let mut owner = Owner::create_as(store, 1, creation);
    must(post(store, run(1), cancel("unread")));
    owner.write(vec![note(5 * DAY), Change::State(finished())]);
    end_at(store, 2, new(2), 20 * DAY);
    assert_eq!(info(store, run(1)).ended, Some(at(5 * DAY)), "the time of the last record of the commit");
    assert_eq!(tidy(store, 35 * DAY - 1), (0, 0));
    assert!(!is_summary(store, 1));
    assert_eq!(tidy(store, 35 * DAY), (1, 0));
    assert!(is_summary(store, 1) && !is_summary(store, 2));
    let summary = info(store, run(1));
    assert_eq!((&*summary.tool, summary.created, summary.ended), ("tool-1", at(1), Some(at(5 * DAY))));
    assert_eq!((summary.state, summary.session.as_deref()), (finished(), Some("s")));
    assert_eq!(mail(store, run(1), 0), [], "its messages are removed too");
    assert_eq!(must(block_on(store.feed("s".into(), 0, 9))).len(), 0);
    assert_eq!(must(block_on(store.list(Filter::finished(), None, 9))).len(), 2);
    assert_eq!(block_on(store.page(run(1), 0, 1)).err(), Some(StoreError::JournalGone(run(1))));
    assert_eq!(claim_at(store, 1, 7, 0).err(), Some(StoreError::Finished(run(1))));
    assert_eq!(post(store, run(1), cancel("late")), Err(StoreError::Finished(run(1))));
    assert_eq!(owner.submit(vec![note(6 * DAY)]), Err(StoreError::Finished(run(1))), "its owner cannot write either");
    assert_eq!(tidy(store, 215 * DAY - 1), (1, 0), "the other one became a summary");
    assert_eq!(tidy(store, 215 * DAY), (0, 1));
    assert!(gone(store, 1) && !gone(store, 2));
    assert_eq!(block_on(store.journal(run(1), 0)).err(), Some(StoreError::NoSuchRun(run(1))));
    assert_eq!(tidy(store, 10_000 * DAY), (0, 1));
    assert_eq!(must(block_on(store.list(Filter::default(), None, 9))).len(), 0);
}

pub(super) fn w09_unfinished_runs_are_kept_however_old_they_are(store: &dyn Store) {
    must(outside(store, vec![start(1, new(1))]));
    Owner::create(store, 2);
    Owner::create(store, 3).suspend(0, Some(9));
    Owner::create(store, 4).write(vec![Change::State(held())]);
    Owner::create(store, 5).write(vec![Change::State(suspended(None))]);
    must(post(store, run(2), cancel("kept")));
    assert_eq!(tidy(store, 10_000 * DAY), (0, 0));
    for n in 1..=5 {
        assert_eq!(must(block_on(store.journal(run(n), 0))).len(), 1, "run {n}");
    }
    assert_eq!(mail(store, run(2), 0).len(), 1);
    assert_eq!(due(store, 10).0, [1, 3]);
}

pub(super) fn w09_a_run_is_kept_as_long_as_the_run_that_spawned_it(store: &dyn Store) {
    let mut parent = Owner::create(store, 1);
    end_at(store, 2, child_of(2, 1), DAY);
    end_at(store, 3, child_of(3, 2), DAY / 2);
    assert_eq!(tidy(store, 1_000 * DAY), (0, 0), "an ancestor has not ended");
    assert!(!is_summary(store, 2) && !is_summary(store, 3));
    parent.write(vec![note(1_000 * DAY), Change::State(finished())]);
    assert_eq!(tidy(store, 1_029 * DAY), (0, 0), "it has not ended long ago");
    assert_eq!(tidy(store, 1_030 * DAY), (3, 0), "the journals are removed together");
    assert_eq!(tidy(store, 1_209 * DAY), (0, 0), "so are the summaries");
    assert_eq!(tidy(store, 1_210 * DAY), (0, 3));
}

pub(super) fn w09_a_run_with_open_doubts_is_kept_until_they_are_settled(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    owner.write(vec![note(DAY), Change::Doubts(vec![doubt(1, 1)]), Change::State(finished())]);
    assert_eq!(tidy(store, 1_000 * DAY), (0, 0));
    assert!(!is_summary(store, 1));
    must(post(store, run(1), settle(1, 1)));
    assert_eq!(tidy(store, 40 * DAY), (1, 0));
}

pub(super) fn w09_a_key_stays_taken_for_a_while_after_its_run_is_removed(store: &dyn Store) {
    let again = |n: u8| outside(store, vec![start(n, keyed(n, "k"))]);
    end_at(store, 1, keyed(1, "k"), DAY);
    tidy(store, 31 * DAY);
    assert_eq!(again(2), Err(StoreError::KeyTaken { run: run(1) }), "a summary is a run");
    tidy(store, 300 * DAY);
    assert!(gone(store, 1));
    let spent = StoreError::KeySpent { run: run(1) };
    assert_eq!(again(2), Err(spent.clone()));
    let created = Owner { store, run: run(3), epoch: 1, seq: 0 }.submit(vec![Change::Create(keyed(3, "k"))]);
    assert_eq!(created, Err(spent.clone()), "also for an owner");
    tidy(store, 479 * DAY);
    assert_eq!(again(2), Err(spent), "counted from the removal of the run");
    tidy(store, 480 * DAY);
    assert_eq!(again(2), Ok(()));
    assert_eq!(again(4), Err(StoreError::KeyTaken { run: run(2) }));
}

pub(super) fn w09_a_purged_run_is_gone_at_once(store: &dyn Store) {
    let mut owner = Owner::create_as(store, 1, keyed(1, "k"));
    for n in 0..50 {
        owner.append(json!({"n": n}));
    }
    must(post(store, run(1), cancel("unread")));
    owner.write(vec![Change::State(finished())]);
    end_at(store, 2, new(2), 1);
    must(block_on(store.purge(run(1), at(DAY))));
    assert!(gone(store, 1) && !is_summary(store, 2));
    assert_eq!(block_on(store.journal(run(1), 0)).err(), Some(StoreError::NoSuchRun(run(1))));
    assert_eq!(owner.submit(vec![Change::State(finished())]), Err(StoreError::NoSuchRun(run(1))));
    assert_eq!(block_on(store.purge(run(1), at(DAY))), Err(StoreError::NoSuchRun(run(1))), "only once");
    assert_eq!(outside(store, vec![start(3, keyed(3, "k"))]), Err(StoreError::KeySpent { run: run(1) }));
    tidy(store, 31 * DAY);
    must(block_on(store.purge(run(2), at(DAY))));
    assert!(gone(store, 2), "a summary can be purged too");
}

pub(super) fn w09_unfinished_and_doubted_runs_are_not_purged(store: &dyn Store) {
    must(outside(store, vec![start(1, new(1))]));
    Owner::create(store, 2);
    Owner::create(store, 3).write(vec![Change::State(held())]);
    for n in 1..=3 {
        assert_eq!(block_on(store.purge(run(n), at(0))), Err(StoreError::Unfinished(run(n))));
        assert_eq!(must(block_on(store.journal(run(n), 0))).len(), 1);
    }
    let mut owner = Owner::create(store, 4);
    owner.write(vec![note(2), Change::Doubts(vec![doubt(1, 1)]), Change::State(finished())]);
    assert_eq!(block_on(store.purge(run(4), at(0))), Err(StoreError::Doubted(run(4))));
    assert!(!is_summary(store, 4));
    must(post(store, run(4), settle(1, 1)));
    must(block_on(store.purge(run(4), at(0))));
    assert_eq!(block_on(store.purge(run(9), at(0))), Err(StoreError::NoSuchRun(run(9))));
}

pub(super) fn w09_a_session_feed_continues_after_its_runs_are_removed(store: &dyn Store) {
    let session: Arc<str> = "s".into();
    let turn = |n| Creation { session: Some(session.clone()), turn: Turn::Refuse, ..new(n) };
    let read = |after| must(block_on(store.feed(session.clone(), after, 9)));
    end_at(store, 1, turn(1), 1);
    let last = read(0).last().map_or(0, |entry| entry.position);
    must(block_on(store.purge(run(1), at(0))));
    assert_eq!(read(0).len(), 0);
    end_at(store, 2, turn(2), 1);
    let entries = read(last);
    assert_eq!(entries.len(), 2, "positions are not used again");
    assert!(entries.iter().all(|entry| entry.position > last && entry.run == run(2)));
}
