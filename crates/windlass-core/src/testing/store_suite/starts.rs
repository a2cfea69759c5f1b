//! Runs that are started without an owner, and keys.

use serde_json::json;

use super::scene::{
    Owner, at, claim_at, due, finished, info, keyed, must, new, number, outside, record, run, start, texts,
};
use crate::run::state::RunState;
use crate::store::{Change, Filter, Store, StoreError};
use crate::testing::block_on;

pub(super) fn a_started_run_is_queued_for_any_worker(store: &dyn Store) {
    must(outside(store, vec![start(1, new(1))]));
    let mut parent = Owner::create(store, 2);
    parent.write(vec![Change::Append(vec![record(1, json!("spawned"))]), start(3, new(3))]);
    assert_eq!(due(store, 10).0, [1, 3]);
    let queued = info(store, run(1));
    assert_eq!((queued.state, queued.epoch, &*queued.tool, queued.created), (RunState::Queued, 0, "tool-1", at(1)));
    let stray = Owner { store, run: run(1), epoch: 0, seq: 7 };
    assert!(stray.submit(vec![Change::Append(vec![record(1, json!(1))])]).is_err(), "it has no owner");
    let (mut owner, claimed) = Owner::claim(store, run(1));
    assert_eq!((claimed.epoch, claimed.seq), (1, 1));
    assert_eq!(texts(&claimed.records), texts(&[record(0, json!("started"))]));
    assert_eq!(owner.state(), RunState::Running);
    assert_eq!(due(store, 10).0, [3]);
    owner.append(json!("running"));
    owner.write(vec![Change::State(finished())]);
    assert_eq!(claim_at(store, 1, 7, 0).err(), Some(StoreError::Finished(run(1))));
}

pub(super) fn a_run_is_started_once(store: &dyn Store) {
    must(outside(store, vec![start(1, keyed(1, "k"))]));
    assert_eq!(outside(store, vec![start(1, keyed(1, "k"))]), Ok(()), "again");
    let other =
        Change::Start { run: run(1), creation: new(9), records: vec![record(0, json!(1)), record(1, json!(2))] };
    assert_eq!(outside(store, vec![other]), Ok(()), "whatever its description");
    let (mut owner, claimed) = Owner::claim(store, run(1));
    assert_eq!(texts(&claimed.records), texts(&[record(0, json!("started"))]));
    owner.append(json!("running"));
    assert_eq!(outside(store, vec![start(1, keyed(1, "k"))]), Ok(()), "while it is running");
    assert_eq!((owner.state(), owner.journal().len()), (RunState::Running, 2));
    owner.write(vec![Change::State(finished())]);
    assert_eq!(outside(store, vec![start(1, keyed(1, "k"))]), Ok(()), "after it has ended");
    assert_eq!((owner.state(), owner.journal().len()), (finished(), 2));
    must(outside(store, vec![start(2, new(2)), start(2, new(3))]));
    assert_eq!(&*info(store, run(2)).tool, "tool-2", "twice in one commit");
}

pub(super) fn a_key_belongs_to_one_run_for_ever(store: &dyn Store) {
    let taken = |n| Err(StoreError::KeyTaken { run: run(n) });
    let mut first = Owner::create_as(store, 1, keyed(1, "k"));
    let create = |n: u8, key| {
        let records = Change::Append(vec![record(0, json!("created"))]);
        Owner { store, run: run(n), epoch: 1, seq: 0 }.submit(vec![Change::Create(keyed(n, key)), records])
    };
    assert_eq!(create(1, "k"), Ok(()), "the identical commit");
    assert_eq!(create(2, "k"), taken(1));
    assert_eq!(outside(store, vec![start(3, keyed(3, "k"))]), taken(1));
    assert_eq!(outside(store, vec![start(3, keyed(3, "j")), start(4, keyed(4, "k"))]), taken(1));
    assert_eq!(outside(store, vec![start(5, keyed(5, "i")), start(6, keyed(6, "i"))]), taken(5), "in one commit");
    let owner = |key: &str| must(block_on(store.keyed(key.into()))).map(|run| number(&run));
    assert_eq!((owner("k"), owner("j"), owner("i")), (Some(1), None, None));
    first.write(vec![Change::State(finished())]);
    assert_eq!(create(2, "k"), taken(1), "although it has ended");
    assert_eq!(owner("k"), Some(1));
    assert_eq!(must(block_on(store.list(Filter::default(), None, 9))).len(), 1, "refused commits leave nothing");
    assert_eq!(due(store, 10), (vec![], None));
    assert_eq!(create(2, "j"), Ok(()), "and use no key");
    let mut owner = Owner { store, run: run(2), epoch: 1, seq: 1 };
    assert_eq!(owner.submit(vec![start(3, keyed(3, "k"))]), taken(1), "also when an owner starts a run");
    owner.write(vec![start(3, keyed(3, "i"))]);
    must(claim_at(store, 3, 1, 0));
}
