//! Sessions: one turn at a time, in order of arrival, and a feed of their records.

use std::sync::Arc;

use serde_json::json;

use super::scene::{
    Owner, at, cancel, claim_at, due, finished, held, info, must, new, number, outside, post, record, run, start,
    suspended, text,
};
use crate::run::state::RunState;
use crate::store::{Change, Creation, Entry, Store, StoreError, Turn};
use crate::testing::block_on;

fn turn(n: u8, session: &str, turn: Turn) -> Creation {
    Creation { session: Some(session.into()), turn, ..new(n) }
}

fn busy(n: u8) -> StoreError {
    StoreError::Busy { session: "s".into(), turn: run(n), since: at(i64::from(n)) }
}

fn claim(store: &dyn Store, n: u8) -> Option<StoreError> {
    claim_at(store, n, 1, 0).err()
}

fn feed(store: &dyn Store, after: u64, limit: usize) -> Vec<Entry> {
    must(block_on(store.feed(Arc::from("s"), after, limit)))
}

pub(super) fn turns_wait_for_earlier_turns(store: &dyn Store) {
    let wait = |n| start(n, turn(n, "s", Turn::Queue));
    // Not in the order of their ids, because the order of arrival counts.
    for n in [4, 2, 3] {
        must(outside(store, vec![wait(n)]));
    }
    must(outside(store, vec![start(1, turn(1, "other", Turn::Queue)), start(5, turn(5, "s", Turn::No))]));
    assert_eq!(due(store, 10), (vec![1, 4, 5], None), "other sessions and runs that are not turns do not wait");
    assert_eq!(due(store, i64::MAX).0, [1, 4, 5]);
    assert_eq!((claim(store, 2), claim(store, 3)), (Some(busy(4)), Some(busy(4))));
    assert_eq!(info(store, run(2)).state, RunState::Queued, "the refused claim changed nothing");
    let (mut first, claimed) = Owner::claim(store, run(4));
    assert_eq!(claimed.session.as_deref(), Some("s"));
    must(post(store, run(2), cancel("patience")));
    first.write(vec![Change::State(held())]);
    assert_eq!(claim(store, 2), Some(busy(4)), "a held turn is not over");
    let (mut first, _) = Owner::claim(store, run(4));
    first.write(vec![Change::State(suspended(None))]);
    assert_eq!(claim(store, 2), Some(busy(4)), "a suspended turn is not over");
    let (mut first, _) = Owner::claim(store, run(4));
    assert_eq!(due(store, 10).0, [1, 5]);
    first.write(vec![Change::State(finished())]);
    assert_eq!(due(store, 10).0, [1, 2, 5], "only the next turn");
    assert_eq!(claim(store, 3), Some(busy(2)));
    let (mut second, _) = Owner::claim(store, run(2));
    // A turn may start another one when it ends: that one is last.
    second.write(vec![wait(6), Change::State(finished())]);
    assert_eq!(due(store, 10).0, [1, 3, 5]);
    assert_eq!(claim(store, 6), Some(busy(3)));
    Owner::claim(store, run(3)).0.write(vec![Change::State(finished())]);
    Owner::claim(store, run(6)).0.write(vec![Change::State(finished()), wait(7)]);
    assert_eq!(due(store, 10).0, [1, 5, 7], "no turn is before it");
}

pub(super) fn a_turn_may_be_refused_instead(store: &dyn Store) {
    let create = |n| {
        let owner = Owner { store, run: run(n), epoch: 1, seq: 0 };
        owner.submit(vec![Change::Create(turn(n, "s", Turn::Refuse)), Change::Append(vec![record(0, json!("turn"))])])
    };
    assert_eq!(create(1), Ok(()));
    assert_eq!(create(1), Ok(()), "the identical commit");
    assert_eq!(create(2), Err(busy(1)));
    assert_eq!(outside(store, vec![start(2, turn(2, "s", Turn::Refuse))]), Err(busy(1)));
    assert_eq!(block_on(store.info(run(2))), Ok(None));
    must(outside(store, vec![start(3, turn(3, "s", Turn::Queue))]));
    assert_eq!(due(store, 10).0, Vec::<u8>::new(), "a running turn counts too");
    must(Owner { store, run: run(1), epoch: 1, seq: 1 }.submit(vec![Change::State(finished())]));
    assert_eq!(create(2), Err(busy(3)), "a waiting turn comes first");
    Owner::claim(store, run(3)).0.write(vec![Change::State(finished())]);
    let both = vec![start(4, turn(4, "s", Turn::Refuse)), start(5, turn(5, "s", Turn::Refuse))];
    assert_eq!(outside(store, both), Err(busy(4)), "two in one commit");
    assert_eq!(create(2), Ok(()));
    let owner = Owner { store, run: run(6), epoch: 1, seq: 0 };
    let waits = owner.submit(vec![Change::Create(turn(6, "t", Turn::Queue))]);
    assert!(matches!(waits, Err(StoreError::Invalid(_))), "a run with an owner cannot wait for its turn: {waits:?}");
}

pub(super) fn a_turn_that_ends_in_its_first_commit_is_over(store: &dyn Store) {
    let owner = Owner { store, run: run(1), epoch: 1, seq: 0 };
    must(owner.submit(vec![Change::Create(turn(1, "s", Turn::Refuse)), Change::State(finished())]));
    must(outside(store, vec![start(2, turn(2, "s", Turn::Refuse))]));
    assert_eq!(due(store, 10).0, [2]);
}

pub(super) fn a_feed_has_the_records_of_a_session_in_order(store: &dyn Store) {
    let talk = |n| turn(n, "s", Turn::No);
    let mut first = Owner::create_as(store, 1, talk(1));
    let mut apart = Owner::create_as(store, 2, turn(2, "other", Turn::No));
    let mut alone = Owner::create(store, 3);
    first.write(vec![Change::Append(vec![record(1, json!("a")), record(2, json!("b"))]), start(4, talk(4))]);
    apart.append(json!("in another session"));
    alone.append(json!("in no session"));
    let (mut second, _) = Owner::claim(store, run(4));
    second.append(json!("c"));
    first.write(vec![Change::Continue, Change::Append(vec![record(3, json!("d"))]), Change::State(finished())]);
    second.append(json!("e"));
    let all = feed(store, 0, 100);
    let positions: Vec<_> = all.iter().map(|entry| (number(&entry.run), entry.seq)).collect();
    assert_eq!(positions, [(1, 0), (1, 1), (1, 2), (4, 0), (4, 1), (1, 3), (4, 2)]);
    assert!(all.is_sorted_by(|a, b| a.position < b.position), "positions grow");
    assert_eq!(text(&all[4].record), text(&record(1, json!("c"))));
    // One entry at a time, each from the position of the last one.
    let mut position = 0;
    for expected in &all {
        let page = feed(store, position, 1);
        assert_eq!(page.iter().map(|entry| entry.position).collect::<Vec<_>>(), [expected.position]);
        position = expected.position;
    }
    assert!(feed(store, position, 100).is_empty());
    assert!(feed(store, u64::MAX, 100).is_empty());
    assert!(feed(store, 0, 0).is_empty());
    assert!(must(block_on(store.feed(Arc::from("no such session"), 0, 9))).is_empty());
}

pub(super) fn a_feed_can_be_followed_without_gaps(store: &dyn Store) {
    const RUNS: u8 = 4;
    const RECORDS: usize = 30;
    let mut seen: Vec<Entry> = Vec::new();
    std::thread::scope(|scope| {
        let write = |n| {
            let mut owner = Owner::create_as(store, n, turn(n, "s", Turn::No));
            for index in 1..RECORDS {
                owner.append(json!(index));
            }
        };
        let writers: Vec<_> = (1..=RUNS).map(|n| scope.spawn(move || write(n))).collect();
        // Follow while they write: no record may appear before a position that was read already.
        loop {
            let all_written = writers.iter().all(|writer| writer.is_finished());
            let page = feed(store, seen.last().map_or(0, |entry| entry.position), 7);
            if page.is_empty() && all_written {
                break;
            }
            seen.extend(page);
            std::thread::yield_now();
        }
    });
    assert_eq!(seen.len(), usize::from(RUNS) * RECORDS);
    let positions =
        |entries: &[Entry]| entries.iter().map(|entry| (entry.position, entry.run, entry.seq)).collect::<Vec<_>>();
    assert_eq!(positions(&seen), positions(&feed(store, 0, usize::MAX)));
}
