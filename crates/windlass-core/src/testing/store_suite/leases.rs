//! Leases: a run cannot be claimed while its worker's lease is valid, and is due when the lease is over.

use std::time::Duration;

use super::scene::{
    Owner, at, cancel, claim_at, claim_due, doubt, due, finished, held, info, mail, must, new, number, park, post,
    record, run, set_clock, start, suspended,
};
use crate::id::{RunId, WorkerId};
use crate::path::Path;
use crate::run::state::{Blocked, RunState};
use crate::store::{Author, Change, Creation, NewMessage, SeenOutcome, Store, StoreError};
use crate::testing::block_on;
use crate::tool::ToolsChange;

/// Makes a worker's lease end at this time.
fn renew(store: &dyn Store, worker: u64, until: u64) {
    set_clock(store, 0);
    must(block_on(store.renew(WorkerId::from_number(worker), Duration::from_micros(until))));
}

fn owned(n: u8, worker: u64) -> Creation {
    Creation { worker: WorkerId::from_number(worker), ..new(n) }
}

fn refusal(store: &dyn Store, n: u8, worker: u64, now: i64) -> Option<StoreError> {
    claim_at(store, n, worker, now).err()
}

pub(super) fn l22_a_leased_run_is_not_taken_away(store: &dyn Store) {
    // Larger than a signed number: a worker's number may be anything.
    const OWNER: u64 = u64::MAX - 1;
    renew(store, OWNER, 100);
    let mut owner = Owner::create_as(store, 1, owned(1, OWNER));
    let leased = |left| Some(StoreError::Leased { run: run(1), left: Duration::from_micros(left) });
    assert_eq!(refusal(store, 1, 2, 10), leased(90));
    owner.append(serde_json::json!("the refused claim changed nothing"));
    renew(store, OWNER, 200);
    assert_eq!(refusal(store, 1, 2, 199), leased(1), "the lease was renewed");
    let claimed = must(claim_at(store, 1, 2, 200));
    assert_eq!(claimed.epoch, 2, "the lease is over");
    assert!(!claimed.orderly && !claimed.owners_dead, "its worker may still be alive");
    assert_eq!(refusal(store, 1, OWNER, 10), None, "the new worker has no lease");
    assert_eq!(refusal(store, 1, 2, 10), leased(190), "the owner's lease counts, not that of the creator");
}

pub(super) fn a_worker_may_claim_its_own_run_again(store: &dyn Store) {
    renew(store, 1, 100);
    Owner::create_as(store, 1, owned(1, 1));
    assert_eq!(refusal(store, 1, 1, 10), None);
    assert_eq!(refusal(store, 1, 2, 10), Some(StoreError::Leased { run: run(1), left: Duration::from_micros(90) }));
}

pub(super) fn a_worker_that_never_renewed_has_no_lease(store: &dyn Store) {
    Owner::create_as(store, 1, owned(1, 1));
    assert_eq!(due(store, i64::MAX), (vec![], None), "without a lease it is not due");
    assert_eq!(refusal(store, 1, 2, 10), None);
}

pub(super) fn a_released_run_is_not_leased(store: &dyn Store) {
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
    assert_eq!(
        refusal(store, 4, 2, 10),
        Some(StoreError::Leased { run: run(4), left: Duration::from_micros(90) }),
        "it continued"
    );
    Owner::create_as(store, 5, owned(5, 1)).write(vec![Change::State(finished())]);
    assert_eq!(refusal(store, 5, 2, 10), Some(StoreError::Finished(run(5))), "a run that has ended");
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
    assert_eq!(due(store, 100), (vec![1], None), "only running runs");
    set_clock(store, 300);
    let first = must(block_on(store.due(1)));
    assert_eq!(first.runs.len(), 1, "at most the limit");
    must(claim_at(store, 1, 2, 100));
    assert_eq!(due(store, 200).0, Vec::<u8>::new(), "its new owner has a valid lease");
    let mut all = due(store, 300).0;
    all.sort_unstable();
    assert_eq!(all, [1, 2], "a lease covers every run of its worker");
    renew(store, 2, 400);
    assert_eq!(due(store, 300).0, Vec::<u8>::new());
}

/// One change of every kind that an owner can write.
fn every_change(of: RunId) -> Vec<Change> {
    let changes = vec![
        Change::Create(new(1)),
        start(3, new(3)),
        Change::Append(vec![record(1, serde_json::json!(1))]),
        Change::Continue,
        Change::State(finished()),
        Change::Doubts(vec![doubt(0, 1)]),
        Change::Parks(vec![park(0, Blocked::Time)]),
        Change::Keys(Vec::new()),
        Change::Leave(vec![Path::root()]),
        Change::Examined(1),
        Change::Consumed(vec![1]),
        Change::Refer { run: of, artifacts: Vec::new(), by: of },
        Change::Mail { run: run(2), message: cancel("too late"), dedupe: None },
        Change::Outcomes { at: at(1), outcomes: vec![SeenOutcome::New] },
        Change::Tools { session: "s".into(), change: ToolsChange::hide(["t"]) },
        Change::Post {
            session: "s".into(),
            at: at(1),
            message: NewMessage::text(Author::Tool, "too late").wake(),
            principal: None,
        },
        Change::Edit { session: "s".into(), at: at(1), edits: Vec::new(), key: "k".into() },
    ];
    for change in &changes {
        // A new kind of change must be added to the list above.
        match change {
            Change::Create(_)
            | Change::Start { .. }
            | Change::Append(_)
            | Change::Continue
            | Change::State(_)
            | Change::Doubts(_)
            | Change::Parks(_)
            | Change::Keys(_)
            | Change::Leave(_)
            | Change::Examined(_)
            | Change::Consumed(_)
            | Change::Refer { .. }
            | Change::Mail { .. }
            | Change::Post { .. }
            | Change::Outcomes { .. }
            | Change::Tools { .. }
            | Change::Edit { .. } => {}
        }
    }
    changes
}

pub(super) fn e18_every_write_of_a_superseded_worker_is_refused(store: &dyn Store) {
    renew(store, 1, 100);
    let frozen = Owner::create_as(store, 1, owned(1, 1));
    Owner::create_as(store, 2, owned(2, 2));
    must(post(store, run(1), cancel("unread")));
    assert_eq!(claim_due(store, 2, 100, 9), [1], "its lease is over");
    // It goes on: its lease is valid again, but the run is no longer its own.
    set_clock(store, 101);
    must(block_on(store.renew(WorkerId::from_number(1), Duration::from_micros(100))));
    for change in every_change(run(1)) {
        let stale = Err(StoreError::Stale { run: run(1), epoch: frozen.epoch, current: 2 });
        let answer = frozen.submit(vec![change.clone()]);
        // A store without shared admission supports no `Leave`.
        let is_unsupported = matches!((&change, &answer), (Change::Leave(_), Err(StoreError::Invalid(_))));
        assert!(answer == stale || is_unsupported, "{change:?}: {answer:?}");
    }
    must(block_on(store.release(run(1), frozen.epoch)));
    let now = info(store, run(1));
    assert_eq!((now.state, now.worker, now.epoch), (RunState::Running, WorkerId::from_number(2), 2));
    assert_eq!((now.doubts, now.parks, now.generation), (vec![], vec![], 0));
    assert_eq!((block_on(store.info(run(3))), mail(store, run(2), 0)), (Ok(None), vec![]));
    let mut owner = Owner { epoch: 2, ..frozen };
    assert_eq!((owner.journal().len(), mail(store, run(1), 0).len()), (1, 1), "nothing was written or consumed");
    owner.append(serde_json::json!("the new owner can write"));
}

pub(super) fn e18_due_runs_are_claimed_as_they_are_found(store: &dyn Store) {
    for n in 1..=6 {
        Owner::create_as(store, n, owned(n, 9)).suspend(0, Some(i64::from(n)));
    }
    assert_eq!(claim_due(store, 1, 4, 3), [1, 2, 3], "the ones that have waited longest");
    assert_eq!(claim_due(store, 2, 4, 3), [4], "each worker gets different runs");
    assert_eq!(claim_due(store, 1, 4, 3), Vec::<u8>::new());
    assert!(claim_due(store, 1, 9, 0).is_empty());
    set_clock(store, 4);
    assert_eq!(must(block_on(store.claim_due(WorkerId::from_number(1), 9))).next, Some(Duration::from_micros(1)));
    for (n, worker) in [(1, 1), (4, 2)] {
        let info = info(store, run(n));
        assert_eq!((info.state, info.worker, info.epoch), (RunState::Running, WorkerId::from_number(worker), 2));
    }
    let mut owner = Owner { store, run: run(1), epoch: 2, seq: 1 };
    owner.append(serde_json::json!("the new owner can write"));
    let stale = Owner { store, run: run(2), epoch: 1, seq: 1 };
    assert!(matches!(stale.submit(vec![Change::State(finished())]), Err(StoreError::Stale { .. })));
}

pub(super) fn e18_a_claim_of_due_runs_tells_their_earlier_state(store: &dyn Store) {
    renew(store, 1, 100);
    Owner::create_as(store, 1, owned(1, 1));
    Owner::create_as(store, 2, owned(2, 1)).write(vec![Change::State(suspended(Some(5)))]);
    set_clock(store, 200);
    let own = must(block_on(store.claim_due(WorkerId::from_number(1), 9)));
    assert_eq!(own.runs.iter().map(|(run, _)| number(run)).collect::<Vec<_>>(), [2], "not the run that it drives");
    Owner { store, run: run(2), epoch: 2, seq: 1 }.write(vec![Change::State(suspended(Some(5)))]);
    let due = must(block_on(store.claim_due(WorkerId::from_number(2), 9)));
    let mut states: Vec<(u8, bool, bool)> = Vec::new();
    for (run, claimed) in due.runs {
        let claimed = must(claimed);
        states.push((number(&run), claimed.was_running, claimed.orderly));
    }
    states.sort_unstable();
    assert_eq!(states, [(1, true, false), (2, false, true)]);
    assert_eq!([1, 2].map(|n| info(store, run(n)).deaths), [1, 0], "only a run that was not suspended counts");
    must(claim_at(store, 1, 2, 200));
    assert_eq!(info(store, run(1)).deaths, 1, "a worker that claims its own run again has not died");
}
