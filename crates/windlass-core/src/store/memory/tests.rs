use super::*;
use crate::path::Path;
use crate::run::record::DoubtCause;
use crate::run::state::{Doubt, Ending};
use crate::store::{Access, ArtifactId, Settlement};
use crate::testing::{block_on, store_suite};

fn run(n: u64) -> RunId {
    RunId::from_bytes(u128::from(n).to_be_bytes())
}

fn create(store: &MemoryStore, n: u64, creation: Creation, changes: Vec<Change>) {
    let guard = Guard::Owner { run: run(n), epoch: 1, expected_seq: 0 };
    let changes = [vec![Change::Create(creation)], changes].concat();
    block_on(store.commit(Commit { guard, changes }).get()).unwrap();
}

#[test]
fn w08_the_suite_passes_in_memory() {
    store_suite::run_all(|| Arc::new(MemoryStore::new()));
}

#[test]
fn a_lease_ends_with_its_process() {
    let store = MemoryStore::new();
    let worker = WorkerId::from_number(1);
    create(&store, 1, Creation { worker, ..Creation::default() }, vec![]);
    block_on(store.renew(worker, Duration::from_micros(100))).unwrap();
    store.owners_died();
    // The same worker number may come back, as in a simulation.
    block_on(store.renew(worker, Duration::ZERO)).unwrap();
    let due = block_on(store.due(9)).unwrap();
    assert!(due.runs.is_empty(), "only recovery finds the run");
    assert!(block_on(store.claim(run(1), WorkerId::from_number(2))).unwrap().owners_dead);
}

#[test]
fn a_finished_run_is_dropped_only_when_its_doubts_are_settled() {
    let store = MemoryStore::new();
    let finished = || Change::State(RunState::Finished { ending: Ending::Ok });
    let path = Path::root().child(1);
    let doubt = Doubt {
        path: path.clone(),
        attempt: 1,
        operation: "charge".to_owned(),
        cause: DoubtCause::WorkerLost,
        over_by: Timestamp::default(),
        since: Timestamp::default(),
        said: None,
    };
    create(&store, 0, Creation::default(), vec![Change::Doubts(vec![doubt]), finished()]);
    let flood = |from: u64| {
        for n in from..from + FINISHED_KEPT as u64 {
            create(&store, n, Creation::default(), vec![finished()]);
        }
    };
    flood(1);
    assert!(block_on(store.info(run(0))).unwrap().is_some());
    let (by, reason) = ("ada".to_owned(), "the bank says no".to_owned());
    let message = Message::Settle { path, generation: 0, attempt: 1, settlement: Settlement::DidNotHappen, by, reason };
    let changes = vec![Change::Mail { run: run(0), message, dedupe: None }];
    block_on(store.commit(Commit { guard: Guard::Outsider, changes }).get()).unwrap();
    flood(10_000);
    assert!(block_on(store.info(run(0))).unwrap().is_none());
}

#[test]
fn l16_a_run_that_is_dropped_keeps_no_artifact() {
    let store = MemoryStore::new();
    let stored = |n: u64, bytes: &[u8]| {
        let upload = block_on(store.begin(Access::Run(run(n)), Timestamp::from_micros(1))).unwrap();
        block_on(store.append(upload, bytes.to_vec())).unwrap();
        block_on(store.finish(upload, "text/csv".into())).unwrap().id
    };
    let finish = |n: u64, artifacts: Vec<ArtifactId>| {
        let refer = Change::Refer { run: run(n), artifacts, by: run(n) };
        create(&store, n, Creation::default(), vec![refer, Change::State(RunState::Finished { ending: Ending::Ok })]);
    };
    let own = stored(1, b"own");
    let shared = stored(1, b"shared");
    assert_eq!(stored(2, b"shared"), shared);
    finish(1, vec![own, shared]);
    finish(2, vec![shared]);
    block_on(store.sweep(Timestamp::from_micros(1), 9)).unwrap();
    (3..=FINISHED_KEPT as u64).for_each(|n| finish(n, vec![]));
    assert_eq!(block_on(store.size(own, Access::Owner)), Ok(3));
    finish(FINISHED_KEPT as u64 + 1, vec![]);
    assert_eq!(block_on(store.size(own, Access::Owner)), Err(StoreError::NoArtifact { artifact: own }));
    assert_eq!(block_on(store.size(shared, Access::Owner)), Ok(6), "another run refers to it");
}
