//! Suspension: a run that sleeps is due as soon as there is reason, and no wake-up is lost.

use serde_json::json;

use super::scene::{
    Owner, at, by, cancel, due, finished, held, mail, must, number, once, outside, post, record, run, suspended,
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
    assert_eq!(due(store, 50), (vec![2, 1], None), "the one that waits longest first");
    assert_eq!(due(store, i64::MAX), (vec![2, 1], None), "no time is late enough for a run without a timer");
    assert_eq!(Owner::create(store, 4).state(), RunState::Running);
    assert_eq!(due(store, 50).0, [2, 1], "a run that somebody drives is not");
    let (owner, claimed) = Owner::claim(store, run(2));
    assert_eq!((owner.state(), claimed.orderly), (RunState::Running, true));
    assert_eq!(due(store, 50).0, [1], "nor one that was taken up");
    let (mut again, _) = Owner::claim(store, run(1));
    again.suspend(0, Some(60));
    assert_eq!(due(store, 50), (vec![], Some(60)), "the timer of before is gone");
    assert_eq!(due(store, 60).0, [1]);
}

pub(super) fn w03_mail_that_was_there_first_makes_it_due(store: &dyn Store) {
    // (messages, how many of them were examined, whether that leaves anything)
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
    // Said in one commit or in two, in any order.
    let mut owner = Owner::create(store, 6);
    must(post(store, run(6), cancel("before")));
    owner.write(vec![Change::State(suspended(None)), Change::Examined(1)]);
    assert!(!due(store, 10).0.contains(&6));
    let mut owner = Owner::create(store, 7);
    must(post(store, run(7), cancel("before")));
    owner.write(vec![Change::Examined(1)]);
    owner.write(vec![Change::State(suspended(None))]);
    assert!(!due(store, 10).0.contains(&7), "examined is examined");
    // Consuming is not examining, and the other way round.
    let mut owner = Owner::create(store, 8);
    must(post(store, run(8), cancel("before")));
    owner.write(vec![Change::Consumed(vec![1]), Change::Examined(0), Change::State(suspended(None))]);
    assert!(due(store, 10).0.contains(&8), "its owner did not say that it looked");
}

pub(super) fn w03_mail_that_comes_later_makes_it_due(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    must(post(store, run(1), cancel("examined")));
    owner.suspend(1, Some(1_000));
    assert_eq!(due(store, 10), (vec![], Some(1_000)));
    must(outside(store, vec![once(run(1), "news", "k")]));
    assert_eq!(due(store, 10), (vec![1], None));
    assert_eq!(due(store, i64::MIN + 1).0, [1], "at once means at any time");
    assert!(outside(store, vec![once(run(1), "news", "k")]).is_err());
    let (mut next, claimed) = Owner::claim(store, run(1));
    assert_eq!(claimed.mail.len(), 2);
    assert_eq!(due(store, 2_000), (vec![], None));
    next.suspend(2, None);
    assert_eq!(due(store, 2_000), (vec![], None), "it has seen everything");
    let mut other = Owner::create(store, 2);
    other.write(vec![Change::Mail { run: run(1), message: cancel("from a run"), dedupe: None }]);
    assert_eq!(due(store, 10).0, [1]);
    // A run that writes to itself and goes to sleep.
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
            // Knows the mail of the rounds before, not this one's.
            owner.suspend(round, None);
        });
        assert_eq!(due(store, 10).0, [1], "round {round}");
        let (next, claimed) = Owner::claim(store, run(1));
        assert_eq!(claimed.mail.len() as u64, round + 1);
        owner = next;
    }
}

pub(super) fn w03_mail_that_is_not_there_cannot_be_examined(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    must(post(store, run(1), cancel("one")));
    owner.write(vec![Change::Examined(u64::MAX)]);
    owner.suspend(7, None);
    assert_eq!(due(store, 10).0, Vec::<u8>::new());
    must(post(store, run(1), cancel("two")));
    let (mut owner, _) = Owner::claim(store, run(1));
    owner.suspend(1, None);
    assert_eq!(due(store, 10).0, [1], "the second was not there when it was examined");
    let (mut owner, _) = Owner::claim(store, run(1));
    owner.write(vec![Change::Examined(2)]);
    owner.suspend(0, None);
    assert_eq!(due(store, 10).0, Vec::<u8>::new(), "what was examined stays examined");
}

pub(super) fn w03_only_sleep_is_interrupted_by_mail(store: &dyn Store) {
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
    assert_eq!(due(store, 10), (vec![], None), "its owner goes on");
    owner.write(vec![Change::State(RunState::Queued)]);
    assert_eq!(due(store, 10).0, [4], "its owner put it back");
    assert_eq!(mail(store, run(2), 0).len(), 1);
}

pub(super) fn w03_a_page_of_due_runs_has_a_limit(store: &dyn Store) {
    for n in 1..=6 {
        Owner::create(store, n).suspend(0, Some(i64::from(n)));
    }
    let page = |limit| must(block_on(store.due(at(4), limit)));
    assert_eq!(page(3).runs.iter().map(number).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(page(3).next, Some(at(5)));
    assert!(page(0).runs.is_empty());
    assert_eq!(page(usize::MAX).runs.len(), 4);
    for n in 1..=3 {
        must(block_on(store.claim(run(n), by(1, 4))));
    }
    assert_eq!(page(3).runs, [run(4)], "the rest comes when the first are taken up");
}
