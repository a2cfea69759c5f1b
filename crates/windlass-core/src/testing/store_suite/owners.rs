//! Owners: who may write, and what a claim says.

use serde_json::json;

use super::scene::{
    Owner, cancel, claimant, creation, doubt, finished, held, info, mail, must, new, once, park, post, record, run,
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
    assert_eq!(early.submit(vec![Change::State(finished())]), refused, "an epoch nobody has yet");

    let info = info(store, owner.run);
    assert_eq!((info.state, info.doubts), (RunState::Running, vec![]));
    assert_eq!((info.parks, info.generation), (vec![], 0));
    assert_eq!(block_on(store.info(run(3))), Ok(None));
    assert_eq!(owner.journal().len(), 1);
    assert_eq!(mail(store, run(2), 0), []);
    let (mut newest, claimed) = Owner::claim(store, owner.run);
    assert_eq!(claimed.mail.len(), 1, "the stale owner consumed nothing");
    newest.append(json!("the owner can"));
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
        assert!(answer.is_err(), "accepted from an outsider: {changes:?}");
    }
    assert_eq!(owner.journal().len(), 1);
    assert_eq!(owner.state(), RunState::Running);
    assert_eq!(mail(store, owner.run, 0), []);
}

pub(super) fn a_run_that_is_not_there_is_said_not_to_be_there(store: &dyn Store) {
    let missing = StoreError::NoSuchRun(run(1));
    let owner = Owner { store, run: run(1), epoch: 1, seq: 0 };
    assert_eq!(owner.submit(vec![Change::State(finished())]), Err(missing.clone()));
    assert_eq!(post(store, run(1), cancel("?")), Err(missing.clone()));
    assert_eq!(block_on(store.claim(run(1), claimant())).err(), Some(missing.clone()));
    assert_eq!(block_on(store.journal(run(1), 0)).err(), Some(missing.clone()));
    assert_eq!(block_on(store.mail(run(1), 0)).err(), Some(missing));
    assert_eq!(block_on(store.info(run(1))), Ok(None));
    assert_eq!(block_on(store.list(Filter::All, None, 10)), Ok(vec![]));
}

pub(super) fn a_claim_returns_everything(store: &dyn Store) {
    let above = (run(9), Path::root().child(2).child(0));
    let creation = Creation { session: Some("s".into()), parent: Some(Box::new(above.clone())), ..new(1) };
    let mut owner = Owner::create_as(store, 1, creation);
    for place in 1..20 {
        owner.append(json!({"place": place}));
    }
    for reason in ["one", "two", "three"] {
        must(post(store, owner.run, cancel(reason)));
    }
    owner.write(vec![Change::Examined(3), Change::Consumed(vec![1])]);
    let journal = owner.journal();
    let (mut next, claimed) = Owner::claim(store, owner.run);
    assert_eq!((claimed.epoch, claimed.seq, claimed.generation), (2, 20, 0));
    assert_eq!((claimed.session.as_deref(), claimed.parent.as_deref()), (Some("s"), Some(&above)));
    assert_eq!(texts(&claimed.records), journal);
    assert_eq!(claimed.mail.iter().map(|mail| mail.position).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(text(&claimed.mail[0].message), text(&cancel("two")));
    next.append(json!("and drives it on"));
}

pub(super) fn a_claim_lets_a_held_run_go_on(store: &dyn Store) {
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
    assert_eq!(block_on(store.claim(owner.run, claimant())).err(), Some(StoreError::Finished(owner.run)));
    assert_eq!(owner.state(), finished());
    assert_eq!(owner.journal().len(), 1, "it can still be read");
}

pub(super) fn a_claim_tells_whether_the_last_owner_ended_well(store: &dyn Store) {
    let first = Owner::create(store, 1);
    let (second, claimed) = Owner::claim(store, first.run);
    assert!(!claimed.orderly, "the first just stopped writing");
    must(block_on(store.release(first.run, first.epoch)));
    let (third, claimed) = Owner::claim(store, first.run);
    assert!(!claimed.orderly, "the first had no say any more, and the second said nothing");
    assert!(third.epoch > second.epoch);
    must(block_on(store.release(third.run, third.epoch)));
    let (_, claimed) = Owner::claim(store, first.run);
    assert!(claimed.orderly, "the third gave it up");
    let (_, claimed) = Owner::claim(store, first.run);
    assert!(!claimed.orderly, "that was said of the third, not of the fourth");
}

pub(super) fn a_claim_calls_no_owner_dead_that_may_be_alive(store: &dyn Store) {
    let first = Owner::create(store, 1);
    let (second, claimed) = Owner::claim(store, first.run);
    assert!(!claimed.owners_dead, "the first may have an attempt running");
    must(block_on(store.release(second.run, second.epoch)));
    let (_, claimed) = Owner::claim(store, first.run);
    assert!(!claimed.owners_dead, "the first still may, although the second ended well");
}

pub(super) fn a_claim_calls_owners_dead_that_all_ended_well(store: &dyn Store) {
    for (n, state) in [(1, held()), (2, suspended(None))] {
        let mut owner = Owner::create(store, n);
        owner.write(vec![Change::State(state)]);
        let (mut next, claimed) = Owner::claim(store, run(n));
        assert!(claimed.orderly && claimed.owners_dead, "nobody else ever drove it");
        next.write(vec![Change::State(suspended(None))]);
        next.write(vec![Change::State(RunState::Running)]);
        let (_, claimed) = Owner::claim(store, run(n));
        assert!(!claimed.orderly && !claimed.owners_dead, "it slept, and went on");
    }
    must(Owner::create(store, 3).submit(vec![start(4, new(4))]));
    let (_, claimed) = Owner::claim(store, run(4));
    assert!(claimed.orderly && claimed.owners_dead, "nobody drove it yet");
    let (_, claimed) = Owner::claim(store, run(4));
    assert!(!claimed.orderly && !claimed.owners_dead, "now somebody does");
}

pub(super) fn an_owner_may_start_and_write_to_others_whatever_becomes_of_it(store: &dyn Store) {
    let mut owner = Owner::create(store, 1);
    Owner::create(store, 2).write(vec![Change::State(finished())]);
    Owner::create(store, 3);
    must(post_once(store, 3));
    owner.write(vec![
        Change::Append(vec![record(1, json!("told everybody"))]),
        Change::Mail { run: run(9), message: cancel("nobody"), dedupe: None },
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
