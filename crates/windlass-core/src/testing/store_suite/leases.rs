//! Leases: a run is left alone while its worker is trusted to be alive, and found when it is not.

use super::scene::{Owner, at, by, due, finished, held, must, new, run, suspended};
use crate::id::WorkerId;
use crate::run::state::RunState;
use crate::store::{Change, Creation, Store, StoreError};
use crate::testing::block_on;

fn renew(store: &dyn Store, worker: u64, until: i64) {
    must(block_on(store.renew(WorkerId::from_number(worker), at(until))));
}

fn owned(n: u8, worker: u64) -> Creation {
    Creation { worker: WorkerId::from_number(worker), ..new(n) }
}

fn refusal(store: &dyn Store, n: u8, worker: u64, now: i64) -> Option<StoreError> {
    block_on(store.claim(run(n), by(worker, now))).err()
}

pub(super) fn l22_a_leased_run_is_not_taken_away(store: &dyn Store) {
    // Beyond what a signed number holds: a worker's number is anything.
    const OWNER: u64 = u64::MAX - 1;
    renew(store, OWNER, 100);
    let mut owner = Owner::create_as(store, 1, owned(1, OWNER));
    let leased = |until| Some(StoreError::Leased { run: run(1), until: at(until) });
    assert_eq!(refusal(store, 1, 2, 10), leased(100));
    owner.append(serde_json::json!("the refused claim changed nothing"));
    renew(store, OWNER, 200);
    assert_eq!(refusal(store, 1, 2, 199), leased(200), "prolonged");
    let claimed = must(block_on(store.claim(run(1), by(2, 200))));
    assert_eq!(claimed.epoch, 2, "it is over");
    assert!(!claimed.orderly && !claimed.owners_dead, "which does not make it certain that its worker is dead");
    assert_eq!(refusal(store, 1, OWNER, 10), None, "the new worker has no lease");
    assert_eq!(refusal(store, 1, 2, 10), leased(200), "that of the owner counts, whoever created the run");
}

pub(super) fn a_worker_may_take_its_own_run_again(store: &dyn Store) {
    renew(store, 1, 100);
    Owner::create_as(store, 1, owned(1, 1));
    assert_eq!(refusal(store, 1, 1, 10), None);
    assert_eq!(refusal(store, 1, 2, 10), Some(StoreError::Leased { run: run(1), until: at(100) }));
}

pub(super) fn a_worker_that_never_renewed_has_no_lease(store: &dyn Store) {
    Owner::create_as(store, 1, owned(1, 1));
    assert_eq!(due(store, i64::MAX), (vec![], None), "and none that could be over");
    assert_eq!(refusal(store, 1, 2, 10), None);
}

pub(super) fn what_was_let_go_of_is_not_leased(store: &dyn Store) {
    renew(store, 1, 100);
    let given_up = Owner::create_as(store, 1, owned(1, 1));
    must(block_on(store.release(run(1), given_up.epoch)));
    Owner::create_as(store, 2, owned(2, 1)).write(vec![Change::State(suspended(None))]);
    Owner::create_as(store, 3, owned(3, 1)).write(vec![Change::State(held())]);
    for n in 1..=3 {
        assert_eq!(refusal(store, n, 2, 10), None, "run {n}");
    }
    let went_on = Owner::create_as(store, 4, owned(4, 1));
    must(went_on.submit(vec![Change::State(suspended(None))]));
    must(went_on.submit(vec![Change::State(RunState::Running)]));
    assert_eq!(refusal(store, 4, 2, 10), Some(StoreError::Leased { run: run(4), until: at(100) }), "it went on");
    Owner::create_as(store, 5, owned(5, 1)).write(vec![Change::State(finished())]);
    assert_eq!(refusal(store, 5, 2, 10), Some(StoreError::Finished(run(5))), "over is over");
}

pub(super) fn runs_whose_lease_is_over_are_due(store: &dyn Store) {
    renew(store, 1, 100);
    renew(store, 2, 300);
    Owner::create_as(store, 1, owned(1, 1));
    Owner::create_as(store, 2, owned(2, 2));
    Owner::create_as(store, 3, owned(3, 1)).write(vec![Change::State(held())]);
    Owner::create_as(store, 4, owned(4, 1)).write(vec![Change::State(finished())]);
    Owner::create_as(store, 5, owned(5, 1)).write(vec![Change::State(suspended(None))]);
    assert_eq!(due(store, 99), (vec![], None));
    assert_eq!(due(store, 100), (vec![1], None), "only what runs");
    let first = must(block_on(store.due(at(300), 1)));
    assert_eq!(first.runs.len(), 1, "not more than asked for");
    must(block_on(store.claim(run(1), by(2, 100))));
    assert_eq!(due(store, 200).0, Vec::<u8>::new(), "somebody who is alive has it");
    let mut all = due(store, 300).0;
    all.sort_unstable();
    assert_eq!(all, [1, 2], "a lease counts for every run of its worker");
    renew(store, 2, 400);
    assert_eq!(due(store, 300).0, Vec::<u8>::new());
}
