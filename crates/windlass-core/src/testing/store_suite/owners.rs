//! Owners: who may write, and what a claim returns.

use serde_json::json;

use super::scene::{
    Owner, cancel, claim_at, creation, doubt, finished, held, info, mail, must, new, once, park, post, record, run,
    start, suspended, text, texts,
};
use crate::path::Path;
use crate::run::state::{Blocked, RunState};
use crate::store::{Change, Commit, Creation, Filter, Guard, Store, StoreError};
use crate::testing::block_on;

pub(super) fn l22_a_stale_owner_cannot_write(store: &dyn Store) {
    let old = Owner::create(store, 1);
    Owner::create(store, 2);
    must(post(store, old.run, cancel("unread")));
    let (owner, _) = Owner::claim(store, old.run);
    assert!(owner.epoch > old.epoch, "a claim raises the epoch");
    let writes = [
        vec![Change::Append(vec![record(1, json!(1))])],
        vec![Change::State(finished())],
        vec![Change::Doubts(vec![doubt(0, 1)])],
        vec![Change::Examined(1)],
        vec![Change::Consumed(vec![1])],
        vec![Change::Parks(vec![park(0, Blocked::Time)])],
        vec![Change::Continue],
        vec![start(3, new(3))],
        vec![Change::Mail { run: run(2), message: cancel("too late"), dedupe: None }],
        vec![Change::Append(vec![record(0, json!("created"))])],
        vec![],
    ];
    for changes in writes {
        let refused = Err(StoreError::Stale { run: old.run, epoch: old.epoch, current: owner.epoch });
        assert_eq!(old.submit(changes.clone()), refused, "{changes:?}");
    }
    let early = Owner { epoch: owner.epoch + 1, ..old };
    let refused = Err(StoreError::Stale { run: owner.run, epoch: early.epoch, current: owner.epoch });
    assert_eq!(early.submit(vec![Change::State(finished())]), refused, "an epoch that is not in force yet");

    let info = info(store, owner.run);
    assert_eq!((info.state, info.doubts), (RunState::Running, vec![]));
    assert_eq!((info.parks, info.generation), (vec![], 0));
    assert_eq!(block_on(store.info(run(3))), Ok(None));
    assert_eq!(owner.journal().len(), 1);
    assert_eq!(mail(store, run(2), 0), []);
    let (mut newest, claimed) = Owner::claim(store, owner.run);
    assert_eq!(claimed.mail.len(), 1, "the stale owner consumed nothing");
    newest.append(json!("the owner can write"));
}

pub(super) fn l22_a_write_out_of_sequence_is_refused(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    owner.append(json!("second"));
    for expected in [0, 1, 3, u64::MAX] {
        let lost = Owner { seq: expected, ..owner };
        let refused = Err(StoreError::WrongSequence { run: owner.run, expected, current: 2 });
        assert_eq!(lost.submit(vec![Change::Append(vec![record(7, json!("?"))])]), refused);
        assert_eq!(lost.submit(vec![Change::State(finished())]), refused);
    }
    assert_eq!(owner.journal().len(), 2);
    assert_eq!(owner.state(), RunState::Running);
}

pub(super) fn l22_an_outsider_cannot_write_a_journal(store: &dyn Store) {
    let owner = Owner::create(store, 1);
    let writes = [
        creation(2),
        Change::Append(vec![record(1, json!(1))]),
        Change::State(finished()),
        Change::Doubts(vec![doubt(0, 1)]),
        Change::Examined(1),
        Change::Consumed(vec![1]),
        Change::Parks(vec![park(0, Blocked::Time)]),
        Change::Continue,
    ];
    for change in writes {
        let changes = vec![Change::Mail { run: owner.run, message: cancel("and more"), dedupe: None }, change];
        let answer = block_on(store.commit(Commit { guard: Guard::Outsider, changes: changes.clone() }).get());
        assert!(answer.is_err(), "accepted without ownership: {changes:?}");
    }
    assert_eq!(owner.journal().len(), 1);
    assert_eq!(owner.state(), RunState::Running);
    assert_eq!(mail(store, owner.run, 0), []);
}

pub(super) fn an_unknown_run_is_reported_as_missing(store: &dyn Store) {
    let missing = StoreError::NoSuchRun(run(1));
    let owner = Owner { store, run: run(1), epoch: 1, seq: 0 };
    assert_eq!(owner.submit(vec![Change::State(finished())]), Err(missing.clone()));
    assert_eq!(post(store, run(1), cancel("?")), Err(missing.clone()));
    assert_eq!(claim_at(store, 1, 7, 0).err(), Some(missing.clone()));
    assert_eq!(block_on(store.journal(run(1), 0)).err(), Some(missing.clone()));
    assert_eq!(block_on(store.mail(run(1), 0)).err(), Some(missing));
    assert_eq!(block_on(store.info(run(1))), Ok(None));
    assert_eq!(block_on(store.list(Filter::default(), None, 10)), Ok(vec![]));
}

pub(super) fn a_claim_returns_everything(store: &dyn Store) {
    let above = (run(9), Path::root().child(2).child(0));
    let creation = Creation { session: Some("s".into()), parent: Some(Box::new(above.clone())), ..new(1) };
    let mut owner = Owner::create_as(store, 1, creation);
    for index in 1..20 {
        owner.append(json!({"index": index}));
    }
    for reason in ["one", "two", "three"] {
        must(post(store, owner.run, cancel(reason)));
    }
    owner.write(vec![Change::Examined(3), Change::Consumed(vec![1])]);
    must(post(store, owner.run, cancel("four")));
    owner.write(vec![Change::Consumed(vec![4])]);
    let journal = owner.journal();
    let (mut next, claimed) = Owner::claim(store, owner.run);
    assert_eq!((claimed.epoch, claimed.seq, claimed.generation), (2, 20, 0));
    assert_eq!((claimed.session.as_deref(), claimed.parent.as_deref()), (Some("s"), Some(&above)));
    assert_eq!(texts(&claimed.records), journal);
    assert_eq!(claimed.mail.iter().map(|mail| mail.position).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(claimed.mailed, 4, "including consumed messages");
    assert_eq!(text(&claimed.mail[0].message), text(&cancel("two")));
    next.append(json!("the new owner can write"));
}

pub(super) fn a_claim_resumes_a_held_run(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    owner.write(vec![Change::State(held()), Change::Doubts(vec![doubt(0, 2)])]);
    assert_eq!(owner.state(), held());
    let (next, _) = Owner::claim(store, owner.run);
    assert_eq!(next.state(), RunState::Running);
    assert_eq!(info(store, owner.run).doubts, [doubt(0, 2)], "a doubt stays until it is settled");
}

pub(super) fn a_claim_of_a_finished_run_is_refused(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    owner.write(vec![Change::State(finished())]);
    assert_eq!(claim_at(store, 1, 7, 0).err(), Some(StoreError::Finished(owner.run)));
    assert_eq!(owner.state(), finished());
    assert_eq!(owner.journal().len(), 1, "its journal can still be read");
}

pub(super) fn a_claim_tells_whether_the_last_owner_shut_down_cleanly(store: &dyn Store) {
    let first = Owner::create(store, 1);
    let (second, claimed) = Owner::claim(store, first.run);
    assert!(!claimed.orderly, "the first owner only stopped writing");
    must(block_on(store.release(first.run, first.epoch)));
    let (third, claimed) = Owner::claim(store, first.run);
    assert!(!claimed.orderly, "the release of the first owner was stale, and the second owner made none");
    assert!(third.epoch > second.epoch);
    must(block_on(store.release(third.run, third.epoch)));
    let (_, claimed) = Owner::claim(store, first.run);
    assert!(claimed.orderly, "the third owner released it");
    let (_, claimed) = Owner::claim(store, first.run);
    assert!(!claimed.orderly, "the release was the third owner's, not the fourth's");
}

pub(super) fn a_claim_reports_no_owner_dead_that_may_be_alive(store: &dyn Store) {
    let first = Owner::create(store, 1);
    let (second, claimed) = Owner::claim(store, first.run);
    assert!(!claimed.owners_dead, "the first owner may have a running attempt");
    must(block_on(store.release(second.run, second.epoch)));
    let (_, claimed) = Owner::claim(store, first.run);
    assert!(!claimed.owners_dead, "the first owner still may, although the second shut down cleanly");
}

pub(super) fn a_claim_reports_owners_dead_that_all_shut_down_cleanly(store: &dyn Store) {
    for (n, state) in [(1, held()), (2, suspended(None))] {
        let mut owner = Owner::create(store, n);
        owner.write(vec![Change::State(state)]);
        let (mut next, claimed) = Owner::claim(store, run(n));
        assert!(claimed.orderly && claimed.owners_dead, "it had no other owner");
        next.write(vec![Change::State(suspended(None))]);
        next.write(vec![Change::State(RunState::Running)]);
        let (_, claimed) = Owner::claim(store, run(n));
        assert!(!claimed.orderly && !claimed.owners_dead, "it was suspended and continued");
    }
    must(Owner::create(store, 3).submit(vec![start(4, new(4))]));
    let (_, claimed) = Owner::claim(store, run(4));
    assert!(claimed.orderly && claimed.owners_dead, "it had no owner yet");
    let (_, claimed) = Owner::claim(store, run(4));
    assert!(!claimed.orderly && !claimed.owners_dead, "now it has one");
}

pub(super) fn an_owners_messages_that_cannot_be_delivered_are_left_out(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    Owner::create(store, 2).write(vec![Change::State(finished())]);
    Owner::create(store, 3);
    must(post_once(store, 3));
    owner.write(vec![
        Change::Append(vec![record(1, json!("sent to all"))]),
        Change::Mail { run: run(9), message: cancel("to a missing run"), dedupe: None },
        Change::Mail { run: run(2), message: cancel("too late"), dedupe: None },
        once(run(3), "again", "k"),
        Change::Mail { run: run(3), message: cancel("this one"), dedupe: None },
        Change::Mail { run: run(4), message: cancel("welcome"), dedupe: None },
        start(4, new(4)),
    ]);
    assert_eq!(owner.journal().len(), 2);
    assert_eq!(mail(store, run(2), 0), []);
    assert_eq!(mail(store, run(3), 0), [(1, text(&cancel("first"))), (2, text(&cancel("this one")))]);
    assert_eq!(mail(store, run(4), 0), [(1, text(&cancel("welcome")))], "started in the same commit");
}

fn post_once(store: &dyn Store, n: u8) -> Result<(), StoreError> {
    super::scene::outside(store, vec![once(run(n), "first", "k")])
}
