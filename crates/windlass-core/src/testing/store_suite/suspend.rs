//! Suspension: a suspended run is due as soon as there is a reason, and no wake-up is lost.

use serde_json::json;

use std::time::Duration;

use super::scene::{
    Owner, cancel, claim_at, due, finished, held, mail, must, number, once, outside, post, record, run, set_clock,
    suspended,
};
use crate::run::state::RunState;
use crate::store::{Change, Store};
use crate::testing::block_on;

pub(super) fn w03_a_suspended_run_is_due_when_its_time_has_come(store: &dyn Store) {
    Owner::create(store, 1).suspend(0, Some(50));
    Owner::create(store, 2).suspend(0, Some(40));
    Owner::create(store, 3).suspend(0, None);
    assert_eq!(due(store, 39), (vec![], Some(40)));
    assert_eq!(due(store, 40), (vec![2], Some(50)));
    assert_eq!(due(store, 50), (vec![2, 1], None), "the one that has waited longest first");
    assert_eq!(due(store, i64::MAX), (vec![2, 1], None), "a run without a timer is never due by time");
    assert_eq!(Owner::create(store, 4).state(), RunState::Running);
    assert_eq!(due(store, 50).0, [2, 1], "a running run is not due");
    let (owner, claimed) = Owner::claim(store, run(2));
    assert_eq!((owner.state(), claimed.orderly), (RunState::Running, true));
    assert_eq!(due(store, 50).0, [1], "a claimed run is not due");
    let (mut again, _) = Owner::claim(store, run(1));
    again.suspend(0, Some(60));
    assert_eq!(due(store, 50), (vec![], Some(60)), "the earlier timer is gone");
    assert_eq!(due(store, 60).0, [1]);
}

pub(super) fn w03_unexamined_mail_makes_a_suspended_run_due(store: &dyn Store) {
    // The number of messages, how many of them were examined, and whether any is left.
    for (n, sent, examined, expected) in
        [(1, 0, 0, false), (2, 1, 1, false), (3, 1, 0, true), (4, 3, 2, true), (5, 3, 3, false)]
    {
        let mut owner = Owner::create(store, n);
        for _ in 0..sent {
            must(post(store, run(n), cancel("before")));
        }
        owner.suspend(examined, Some(1_000));
        assert_eq!(due(store, 10).0.contains(&n), expected, "{sent} messages, {examined} of them examined");
    }
    // In one commit or in two, in any order.
    let mut owner = Owner::create(store, 6);
    must(post(store, run(6), cancel("before")));
    owner.write(vec![Change::State(suspended(None)), Change::Examined(1)]);
    assert!(!due(store, 10).0.contains(&6));
    let mut owner = Owner::create(store, 7);
    must(post(store, run(7), cancel("before")));
    owner.write(vec![Change::Examined(1)]);
    owner.write(vec![Change::State(suspended(None))]);
    assert!(!due(store, 10).0.contains(&7), "an earlier commit examined it");
    // Consuming a message does not examine it.
    let mut owner = Owner::create(store, 8);
    must(post(store, run(8), cancel("before")));
    owner.write(vec![Change::Consumed(vec![1]), Change::Examined(0), Change::State(suspended(None))]);
    assert!(due(store, 10).0.contains(&8), "its owner did not examine the message");
}

pub(super) fn w03_later_mail_makes_a_suspended_run_due(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    must(post(store, run(1), cancel("examined")));
    owner.suspend(1, Some(1_000));
    assert_eq!(due(store, 10), (vec![], Some(1_000)));
    must(outside(store, vec![once(run(1), "news", "k")]));
    assert_eq!(due(store, 10), (vec![1], None));
    assert_eq!(due(store, i64::MIN + 1).0, [1], "it is due at any time");
    assert!(outside(store, vec![once(run(1), "news", "k")]).is_err());
    let (mut next, claimed) = Owner::claim(store, run(1));
    assert_eq!(claimed.mail.len(), 2);
    assert_eq!(due(store, 2_000), (vec![], None));
    next.suspend(2, None);
    assert_eq!(due(store, 2_000), (vec![], None), "all messages were examined");
    let mut other = Owner::create(store, 2);
    other.write(vec![Change::Mail { run: run(1), message: cancel("from a run"), dedupe: None }]);
    assert_eq!(due(store, 10).0, [1]);
    // A run that writes to itself and suspends.
    let own = Change::Mail { run: run(2), message: cancel("to myself"), dedupe: None };
    other.write(vec![own, Change::Examined(5), Change::State(suspended(None))]);
    assert_eq!(due(store, 10).0, [1, 2]);
}

pub(super) fn w03_mail_at_the_moment_of_suspension_is_not_lost(store: &dyn Store) {
    const ROUNDS: u64 = 40;
    let mut owner = Owner::create(store, 1);
    for round in 0..ROUNDS {
        std::thread::scope(|scope| {
            scope.spawn(|| must(post(store, run(1), cancel("now"))));
            // It has examined the messages of the earlier rounds, not this one.
            owner.suspend(round, None);
        });
        assert_eq!(due(store, 10).0, [1], "round {round}");
        let (next, claimed) = Owner::claim(store, run(1));
        assert_eq!(claimed.mail.len() as u64, round + 1);
        owner = next;
    }
}

pub(super) fn w03_a_position_beyond_the_mail_cannot_be_examined(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    must(post(store, run(1), cancel("one")));
    owner.write(vec![Change::Examined(u64::MAX)]);
    owner.suspend(7, None);
    assert_eq!(due(store, 10).0, Vec::<u8>::new());
    must(post(store, run(1), cancel("two")));
    let (mut owner, _) = Owner::claim(store, run(1));
    owner.suspend(1, None);
    assert_eq!(due(store, 10).0, [1], "the second message did not exist when it was examined");
    let (mut owner, _) = Owner::claim(store, run(1));
    owner.write(vec![Change::Examined(2)]);
    owner.suspend(0, None);
    assert_eq!(due(store, 10).0, Vec::<u8>::new(), "the examined position does not go back");
}

pub(super) fn w03_mail_makes_only_suspended_runs_due(store: &dyn Store) {
    for (n, state) in [(1, RunState::Running), (2, held())] {
        let mut owner = Owner::create(store, n);
        owner.write(vec![Change::State(state)]);
        must(post(store, run(n), cancel("wake up")));
    }
    let mut owner = Owner::create(store, 3);
    owner.suspend(0, Some(5));
    owner.write(vec![Change::Append(vec![record(1, json!("over"))]), Change::State(finished())]);
    assert_eq!(due(store, 10), (vec![], None));
    let mut owner = Owner::create(store, 4);
    owner.suspend(0, Some(5));
    owner.write(vec![Change::State(RunState::Running)]);
    assert_eq!(due(store, 10), (vec![], None), "its owner drives it again");
    owner.write(vec![Change::State(RunState::Queued)]);
    assert_eq!(due(store, 10).0, [4], "its owner queued it");
    assert_eq!(mail(store, run(2), 0).len(), 1);
}

pub(super) fn w03_a_page_of_due_runs_has_a_limit(store: &dyn Store) {
    for n in 1..=6 {
        Owner::create(store, n).suspend(0, Some(i64::from(n)));
    }
    set_clock(store, 4);
    let page = |limit| must(block_on(store.due(limit)));
    assert_eq!(page(3).runs.iter().map(number).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(page(3).next, Some(Duration::from_micros(1)));
    assert!(page(0).runs.is_empty());
    assert_eq!(page(usize::MAX).runs.len(), 4);
    for n in 1..=3 {
        must(claim_at(store, n, 1, 4));
    }
    assert_eq!(page(3).runs, [run(4)], "the rest follows after the first ones were claimed");
}
