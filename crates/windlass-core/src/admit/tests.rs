//! The behaviour of keys, the same for a runtime that has its store to itself and for a store that several workers
//! share.

use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use futures_util::task::noop_waker_ref;
use parking_lot::Mutex;

use super::keys::{HeldKey, Keys, QueuedKey};
use super::queues::OpAddress;
use crate::id::{RunId, WorkerId};
use crate::path::Path;
use crate::run::state::{Ending, RunState};
use crate::store::{
    Change, Commit, Creation, Driving, Guard, MemoryStore, Message, SharedAdmission, Slot, SlotRequest, Store,
    StoreError, ToolLimits, Verdict, WaitRequest, Wants,
};
use crate::testing::{block_on, still};
use crate::time::Timestamp;

/// One implementation of the queues.
trait Admits {
    /// Requests a key inside the bodies that hold these. Whether it is held at once, or why it never will be.
    fn request(&self, at: &OpAddress, key: &str, held: Option<&Arc<HeldKey>>) -> Result<bool, String>;
    fn await_end(&self, at: &OpAddress, run: RunId, held: Option<&Arc<HeldKey>>) -> Result<(), String>;
    /// The operation ends. Returns the runs that are notified that they hold a key now.
    fn leave(&self, at: &OpAddress) -> Vec<RunId>;
    /// The run ends.
    fn end(&self, run: RunId) -> Vec<RunId>;
}

#[derive(Default)]
struct Local {
    keys: Keys,
    turns: Mutex<Vec<(OpAddress, QueuedKey)>>,
}

impl Admits for Local {
    fn request(&self, at: &OpAddress, key: &str, held: Option<&Arc<HeldKey>>) -> Result<bool, String> {
        let key: Arc<str> = key.into();
        let (queue, around) = HeldKey::queue(&key, held);
        let turn = self.keys.request((queue, key), around, at.clone())?;
        let holds = self.keys.poll(&turn, &Context::from_waker(noop_waker_ref())).is_ready();
        // No future waits, so the run is notified.
        self.keys.detach(&turn);
        self.turns.lock().push((at.clone(), turn));
        Ok(holds)
    }

    fn await_end(&self, at: &OpAddress, run: RunId, held: Option<&Arc<HeldKey>>) -> Result<(), String> {
        self.keys.await_end(at, run, HeldKey::queues(held))
    }

    fn leave(&self, at: &OpAddress) -> Vec<RunId> {
        self.keys.stop_waiting(at);
        let turn = self.turns.lock().iter().rev().find(|(other, _)| other == at).map(|(_, turn)| turn.clone());
        turn.and_then(|turn| self.keys.release(&turn)).into_iter().collect()
    }

    fn end(&self, run: RunId) -> Vec<RunId> {
        self.keys.release_below(run, &Path::root())
    }
}

/// Each run has a row, and epoch 1.
struct Shared(MemoryStore);

impl Shared {
    fn new() -> Self {
        let store = MemoryStore::new();
        for n in 1..=6 {
            let changes = vec![Change::Create(Creation::default())];
            let guard = Guard::Owner { run: run(n), epoch: 1, expected_seq: 0 };
            block_on(store.commit(Commit { guard, changes }).get()).unwrap();
        }
        Self(store)
    }

    fn ask(&self, at: &OpAddress, wants: Wants, held: Vec<Arc<str>>) -> Result<Verdict, StoreError> {
        let request = WaitRequest { run: at.0, epoch: 1, path: at.1.clone(), wants, held };
        block_on(SharedAdmission::request(&self.0, request))
    }

    fn wants(key: &str, held: Option<&Arc<HeldKey>>) -> (Wants, Vec<Arc<str>>) {
        let key: Arc<str> = key.into();
        let (queue, around) = HeldKey::queue(&key, held);
        (Wants::Key { key, queue }, around)
    }

    fn commit(&self, run: RunId, change: Change) -> Vec<RunId> {
        let before = self.notifications();
        let guard = Guard::Owner { run, epoch: 1, expected_seq: 0 };
        block_on(self.0.commit(Commit { guard, changes: vec![change] }).get()).unwrap();
        self.notifications()
            .into_iter()
            .zip(before)
            .filter(|(now, before)| now.1 > before.1)
            .map(|(now, _)| now.0)
            .collect()
    }

    /// How often each run was notified that it holds a key.
    fn notifications(&self) -> Vec<(RunId, usize)> {
        let count = |run| {
            let mail = block_on(self.0.mail(run, 0)).unwrap();
            mail.iter().filter(|mail| matches!(mail.message, Message::Key { .. })).count()
        };
        (1..=6).map(run).map(|run| (run, count(run))).collect()
    }
}

impl Admits for Shared {
    fn request(&self, at: &OpAddress, key: &str, held: Option<&Arc<HeldKey>>) -> Result<bool, String> {
        let (wants, around) = Self::wants(key, held);
        match self.ask(at, wants, around).unwrap() {
            Verdict::Granted => Ok(true),
            Verdict::Queued => Ok(false),
            Verdict::Refused(why) => Err(why),
        }
    }

    fn await_end(&self, at: &OpAddress, run: RunId, held: Option<&Arc<HeldKey>>) -> Result<(), String> {
        match self.ask(at, Wants::End(run), HeldKey::queues(held)).unwrap() {
            Verdict::Refused(why) => Err(why),
            _ => Ok(()),
        }
    }

    fn leave(&self, at: &OpAddress) -> Vec<RunId> {
        self.commit(at.0, Change::Leave(vec![at.1.clone()]))
    }

    fn end(&self, run: RunId) -> Vec<RunId> {
        self.commit(run, Change::State(RunState::Finished { ending: Ending::Ok }))
    }
}

fn run(n: u8) -> RunId {
    RunId::from_bytes([n; 16])
}

fn at(n: u8) -> OpAddress {
    (run(n), Path::root())
}

fn below(n: u8, index: u32) -> OpAddress {
    (run(n), Path::root().child(index))
}

fn on_both(check: impl Fn(&dyn Admits)) {
    check(&Local::default());
    check(&Shared::new());
}

#[test]
fn e09_both_serve_in_order_of_arrival_and_notify_the_next_when_the_holder_leaves() {
    on_both(|admits| {
        let asked: Vec<_> = (1..=3).map(|n| admits.request(&at(n), "k", None)).collect();
        assert_eq!(asked, [Ok(true), Ok(false), Ok(false)]);
        assert_eq!(admits.request(&at(4), "other", None), Ok(true), "another key is another queue");
        assert_eq!(admits.request(&at(2), "k", None), Ok(false), "asking again keeps the place");
        assert_eq!(admits.leave(&at(1)), [run(2)]);
        assert_eq!(admits.request(&at(1), "k", None), Ok(false), "and leaving loses it");
        assert_eq!(admits.request(&at(2), "k", None), Ok(true));
        assert_eq!(admits.end(run(2)), [run(3)], "a run that ends gives up everything");
        assert_eq!(admits.leave(&at(4)), Vec::<RunId>::new());
    });
}

#[test]
fn e09_both_grant_a_held_key_to_descendants_one_at_a_time() {
    on_both(|admits| {
        assert_eq!(admits.request(&at(1), "k", None), Ok(true));
        let held = HeldKey::new("k".into(), "k".into(), &at(1), None);
        assert_eq!(admits.request(&below(1, 0), "k", Some(&held)), Ok(true));
        assert_eq!(admits.request(&below(1, 1), "k", Some(&held)), Ok(false));
        assert_eq!(admits.request(&at(2), "k", None), Ok(false));
        assert_eq!(admits.leave(&below(1, 0)), [run(1)], "its sibling is next");
        assert_eq!(admits.request(&at(2), "k", None), Ok(false), "the body itself still has the key");
        assert_eq!(admits.end(run(1)), [run(2)]);
    });
}

#[test]
fn e09_both_refuse_cycles_over_keys_and_awaits_by_name() {
    on_both(|admits| {
        assert_eq!(admits.request(&at(1), "a", None), Ok(true));
        assert_eq!(admits.request(&at(2), "b", None), Ok(true));
        let holds = |n: u8, key: &str| HeldKey::new(key.into(), key.into(), &at(n), None);
        assert_eq!(admits.request(&below(1, 0), "b", Some(&holds(1, "a"))), Ok(false));
        let refused = admits.request(&below(2, 0), "a", Some(&holds(2, "b"))).unwrap_err();
        assert!(refused.contains("holds key `b` and wants key `a`"), "{refused}");
        // Run 3 holds a key and waits for run 4, which wants it.
        assert_eq!(admits.request(&at(3), "c", None), Ok(true));
        assert_eq!(admits.await_end(&below(3, 0), run(4), Some(&holds(3, "c"))), Ok(()));
        let refused = admits.request(&at(4), "c", None).unwrap_err();
        assert!(refused.contains("waits for the end of run"), "{refused}");
        assert_eq!(admits.leave(&below(3, 0)), Vec::<RunId>::new());
        assert_eq!(admits.request(&at(5), "c", None), Ok(false));
        let refused = admits.await_end(&below(3, 1), run(5), Some(&holds(3, "c"))).unwrap_err();
        assert!(refused.contains("holds key `c` and wants to wait for the end of run"), "{refused}");
    });
}

#[test]
fn e09_a_store_keeps_its_verdict_and_refuses_a_superseded_owner() {
    let shared = Shared::new();
    assert_eq!(shared.request(&at(1), "k", None), Ok(true));
    let held = HeldKey::new("k".into(), "k".into(), &at(1), None);
    shared.await_end(&below(1, 0), run(2), Some(&held)).unwrap();
    let refused = shared.request(&at(2), "k", None).unwrap_err();
    shared.leave(&at(1));
    assert_eq!(shared.request(&at(2), "k", None), Err(refused), "a repeated request gets the same answer");
    assert_eq!(shared.request(&below(2, 0), "k", None), Ok(true), "another operation is judged again");
    block_on(shared.0.claim(run(2), WorkerId::from_number(9))).unwrap();
    let (wants, _) = Shared::wants("k", None);
    assert_eq!(shared.ask(&at(2), wants, Vec::new()), Err(StoreError::Stale { run: run(2), epoch: 1, current: 2 }));
    let claimed = block_on(shared.0.claim(run(2), WorkerId::from_number(9))).unwrap();
    assert_eq!(claimed.places.len(), 1, "the next owner gets the place");
}

#[test]
fn e09_a_slot_needs_a_lease_and_ends_with_it() {
    let store = MemoryStore::new();
    let at = |seconds: i64| store.use_clock(still(Timestamp::from_micros(seconds * 1_000_000)));
    at(0);
    let slot = |worker: u64| {
        let tool = ToolLimits { id: "t".into(), in_flight: Some(1), per_second: None };
        let request = SlotRequest {
            worker: WorkerId::from_number(worker),
            slot: 1,
            run: run(1),
            session: None,
            tool: Some(tool),
        };
        block_on(store.enter(request))
    };
    let renew = |worker: u64| block_on(store.renew(WorkerId::from_number(worker), Duration::from_secs(10))).unwrap();
    assert!(matches!(slot(1), Err(StoreError::Unavailable(_))), "it would keep the slot for ever");
    renew(1);
    renew(2);
    assert_eq!(slot(1), Ok(Slot::Granted(Duration::ZERO)));
    assert_eq!(slot(2), Ok(Slot::Queued));
    at(11);
    renew(2);
    assert_eq!(slot(2), Ok(Slot::Granted(Duration::ZERO)), "the first worker's lease is over");
}
