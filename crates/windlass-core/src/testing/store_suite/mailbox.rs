//! Mailboxes: positions, examined and consumed messages, and dedupe keys.

use serde_json::json;

use super::scene::{
    Owner, cancel, doubt, due, duplicate, finished, info, keyed, mail, must, new, once, outside, post, record, run,
    settle, start, text,
};
use crate::run::state::Doubt;
use crate::store::{Change, Message, Store, StoreError};
use crate::testing::block_on;

pub(super) fn mail_has_positions_that_are_never_used_again(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    Owner::create(store, 2);
    for (n, reason) in [(1, "a"), (2, "b"), (1, "c")] {
        must(post(store, run(n), cancel(reason)));
    }
    assert_eq!(mail(store, run(1), 0), [(1, text(&cancel("a"))), (2, text(&cancel("c")))]);
    assert_eq!(mail(store, run(2), 0), [(1, text(&cancel("b")))]);
    assert_eq!(mail(store, run(1), 1), [(2, text(&cancel("c")))]);
    owner.write(vec![Change::Examined(2), Change::Consumed(vec![1, 2])]);
    must(post(store, run(1), cancel("d")));
    assert_eq!(mail(store, run(1), 2), [(3, text(&cancel("d")))]);
    assert_eq!(mail(store, run(1), 3), []);
    let (mut next, claimed) = Owner::claim(store, run(1));
    assert_eq!(claimed.mail.iter().map(|mail| mail.position).collect::<Vec<_>>(), [3]);
    // Positions continue even if no message is left.
    next.write(vec![Change::Consumed(vec![3])]);
    next.suspend(3, None);
    must(post(store, run(1), cancel("e")));
    assert_eq!(mail(store, run(1), 0), [(4, text(&cancel("e")))]);
}

pub(super) fn e18_mail_of_many_runs_is_read_at_once(store: &dyn Store) {
    for n in 1..=3 {
        Owner::create(store, n);
    }
    for (n, reason) in [(1, "a"), (1, "b"), (2, "c")] {
        must(post(store, run(n), cancel(reason)));
    }
    let asked = vec![(run(3), 0), (run(1), 1), (run(9), 0), (run(2), 0), (run(1), 2)];
    let found = must(block_on(store.mail_of_many(asked)));
    let found: Vec<_> = found
        .iter()
        .map(|(run, mail)| (*run, mail.iter().map(|mail| (mail.position, text(&mail.message))).collect::<Vec<_>>()))
        .collect();
    assert_eq!(found, [(run(1), vec![(2, text(&cancel("b")))]), (run(2), vec![(1, text(&cancel("c")))])]);
}

pub(super) fn mail_to_a_finished_run_is_refused_unless_it_settles_an_open_doubt(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    owner.write(vec![Change::Doubts(vec![doubt(3, 2)]), Change::State(finished())]);
    let refused = Err(StoreError::Finished(owner.run));
    assert_eq!(post(store, owner.run, cancel("too late")), refused);
    assert_eq!(post(store, owner.run, settle(4, 2)), refused, "another path");
    assert_eq!(post(store, owner.run, settle(3, 1)), refused, "another attempt");
    assert_eq!(post(store, owner.run, settle(3, 2)), Ok(()));
    assert_eq!(mail(store, owner.run, 0), [(1, text(&settle(3, 2)))]);

    let mut settled = Owner::create(store, 2);
    settled.write(vec![Change::Doubts(vec![doubt(3, 2)])]);
    settled.write(vec![Change::Doubts(vec![]), Change::State(finished())]);
    assert_eq!(post(store, settled.run, settle(3, 2)), Err(StoreError::Finished(settled.run)), "already settled");

    let mut running = Owner::create(store, 3);
    assert_eq!(post(store, running.run, settle(3, 2)), Ok(()), "a running run decides by itself");
    running.append(json!("unaffected"));
}

pub(super) fn a_settlement_closes_the_doubt_of_a_finished_run(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    owner.write(vec![Change::State(finished()), Change::Doubts(vec![doubt(3, 2), doubt(4, 1)])]);
    must(post(store, owner.run, settle(3, 2)));
    assert_eq!(info(store, owner.run).doubts, [doubt(4, 1)]);
    assert_eq!(post(store, owner.run, settle(3, 2)), Err(StoreError::Finished(owner.run)), "the doubt is closed");
    must(post(store, owner.run, settle(4, 1)));
    assert_eq!(info(store, owner.run).doubts, Vec::<Doubt>::new());
    assert_eq!(mail(store, owner.run, 0).len(), 2, "the messages are kept as annotations");
}

pub(super) fn mail_is_kept_until_it_is_consumed(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    for reason in ["a", "b", "c"] {
        must(post(store, owner.run, cancel(reason)));
    }
    let positions = |after| -> Vec<u64> { mail(store, run(1), after).iter().map(|(position, _)| *position).collect() };
    owner.write(vec![Change::Examined(3)]);
    assert_eq!(positions(0), [1, 2, 3], "examined messages are not removed");
    owner.write(vec![Change::Append(vec![record(1, json!("b"))]), Change::Consumed(vec![2])]);
    assert_eq!(positions(0), [1, 3]);
    assert_eq!(positions(1), [3]);
    owner.write(vec![Change::Consumed(vec![2, 3, 77])]);
    assert_eq!(positions(0), [1], "a position without a message cannot be consumed");
    let (_, claimed) = Owner::claim(store, owner.run);
    let left: Vec<_> = claimed.mail.iter().map(|mail| (mail.position, text(&mail.message))).collect();
    assert_eq!(left, [(1, text(&cancel("a")))], "a new owner gets what was examined and not consumed");
}

pub(super) fn a_message_is_accepted_once_per_dedupe_key(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    Owner::create(store, 2);
    let send = |n, reason: &str| outside(store, vec![once(run(n), reason, "k")]);
    assert_eq!(send(1, "first"), Ok(()));
    assert_eq!(send(1, "second"), duplicate(run(1), "k"));
    assert_eq!(send(2, "first"), Ok(()), "each mailbox has its own keys");
    assert_eq!(outside(store, vec![once(run(1), "other", "j")]), Ok(()));
    assert_eq!(mail(store, run(1), 0), [(1, text(&cancel("first"))), (2, text(&cancel("other")))]);

    owner.write(vec![Change::Examined(2), Change::Consumed(vec![1, 2])]);
    assert_eq!(send(1, "after it was consumed"), duplicate(run(1), "k"));
    let (mut next, _) = Owner::claim(store, run(1));
    assert_eq!(send(1, "after a claim"), duplicate(run(1), "k"));
    next.suspend(2, None);
    assert_eq!(send(1, "while it is suspended"), duplicate(run(1), "k"));
    let (mut last, _) = Owner::claim(store, run(1));
    last.write(vec![Change::State(finished())]);
    assert_eq!(send(1, "after it ended"), duplicate(run(1), "k"), "the sender learns that it was accepted before");
    assert_eq!(mail(store, run(1), 0), []);
}

pub(super) fn a_mailbox_tells_whether_it_had_a_message(store: &dyn Store) {
    let had = |n, key: &str| block_on(store.told(run(n), key.into()));
    let mut owner = Owner::create(store, 1);
    Owner::create(store, 2);
    assert_eq!(had(1, "k"), Ok(false));
    must(outside(store, vec![once(run(1), "first", "k")]));
    assert_eq!((had(1, "k"), had(1, "j"), had(2, "k")), (Ok(true), Ok(false), Ok(false)));
    owner.write(vec![Change::Examined(1), Change::Consumed(vec![1]), Change::State(finished())]);
    assert_eq!(had(1, "k"), Ok(true), "although it was consumed and the run has ended");
    assert_eq!(had(9, "k"), Err(StoreError::NoSuchRun(run(9))));
}

pub(super) fn a_refused_message_refuses_its_whole_commit(store: &dyn Store) {
    Owner::create(store, 1);
    let twice = outside(store, vec![once(run(1), "a", "k"), once(run(1), "b", "k")]);
    assert_eq!(twice, duplicate(run(1), "k"), "twice in one commit");
    assert_eq!(mail(store, run(1), 0), []);
    must(outside(store, vec![once(run(1), "a", "k")]));
    let changes = |last| vec![once(run(1), "b", "j"), start(2, keyed(2, "key")), last];
    assert_eq!(outside(store, changes(once(run(1), "c", "k"))), duplicate(run(1), "k"));
    let to_missing = Change::Mail { run: run(9), message: cancel("?"), dedupe: None };
    assert_eq!(outside(store, changes(to_missing)), Err(StoreError::NoSuchRun(run(9))));
    assert_eq!(mail(store, run(1), 0).len(), 1);
    must(outside(store, changes(once(run(2), "in the same commit", "k"))));
    assert_eq!(mail(store, run(1), 0).len(), 2, "the refused commits used no dedupe key");
    assert_eq!(mail(store, run(2), 0).len(), 1);
}

pub(super) fn resubmitting_an_owners_commit_sends_no_message_twice(store: &dyn Store) {
    let owner = Owner::create(store, 1);
    Owner::create(store, 2);
    let changes = vec![
        Change::Append(vec![record(1, json!("sent"))]),
        Change::Mail { run: run(2), message: cancel("without a key"), dedupe: None },
        once(run(2), "with a key", "k"),
        start(3, new(3)),
    ];
    must(owner.submit(changes.clone()));
    assert_eq!(owner.submit(changes), Ok(()), "the answer was lost");
    assert_eq!(mail(store, run(2), 0).len(), 2);
    let bare = Owner { seq: 2, ..owner };
    must(bare.submit(vec![once(run(2), "again", "k"), once(run(1), "to itself", "k")]));
    must(bare.submit(vec![once(run(2), "again", "k"), once(run(1), "to itself", "k")]));
    assert_eq!(mail(store, run(2), 0).len(), 2, "its dedupe key prevents a second delivery");
    assert_eq!(mail(store, run(1), 0).len(), 1);
}

pub(super) fn runs_that_await_a_run_are_told_in_the_commit_that_finishes_it(store: &dyn Store) {
    let mut awaited = Owner::create(store, 1);
    let mut waiting = Owner::create(store, 2);
    let mut over = Owner::create(store, 3);
    Owner::create(store, 4);
    let awaits = |n: u8| Change::Mail {
        run: run(1),
        message: Message::Await { by: run(n) },
        dedupe: Some(format!("await {n}").into()),
    };
    must(outside(store, vec![awaits(2), awaits(3), awaits(9)]));
    waiting.suspend(0, None);
    over.write(vec![Change::State(finished())]);
    assert_eq!((mail(store, run(2), 0), due(store, 1).0), (vec![], vec![]), "not before it has finished");
    awaited.write(vec![Change::Append(vec![record(1, json!("done"))]), Change::State(finished())]);
    let told = vec![(1, text(&Message::Over { run: run(1) }))];
    assert_eq!(mail(store, run(2), 0), told);
    assert_eq!(mail(store, run(4), 0), [], "it waits for nothing");
    assert_eq!(due(store, 1).0, [2], "it is due at once, and nothing else is");
    assert_eq!(
        outside(store, vec![awaits(4)]),
        Err(StoreError::Finished(run(1))),
        "the sender reads the outcome instead"
    );
}
