//! Keys: calls that share a key run one at a time, in order of arrival, across batches and runs.
//!
//! A place in a queue belongs to an operation, addressed by its run and path, and not to the future that requested it.
//! A run that is suspended, held or reloaded keeps its places, and requesting a place again returns the same one. The
//! first place of a queue holds the key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::queues::{OpAddress, QueuePlace, Queues};
use crate::id::RunId;
use crate::path::Path;
use crate::store::KeyPlace;

/// A key held by a durable body, linked to the keys of the bodies around it. Descendants of the body need not wait for
/// the key again. Descendants that share it wait only for one another, in a queue below the body.
pub(crate) struct HeldKey {
    key: Arc<str>,
    /// The queue in which the body got the key.
    queue: Arc<str>,
    /// The queue for the body's descendants.
    below: Arc<str>,
    outer: Option<Arc<HeldKey>>,
}

impl HeldKey {
    /// The key of the body at this address, which it got in this queue. The queue below the body has the same name
    /// whenever the body is entered again.
    pub(crate) fn new(key: Arc<str>, queue: Arc<str>, (run, path): &OpAddress, outer: Option<Arc<Self>>) -> Arc<Self> {
        let below = format!("{key} (below {path} of run {run})").into();
        Arc::new(Self { key, queue, below, outer })
    }

    fn all(held: Option<&Arc<Self>>) -> impl Iterator<Item = &Arc<Self>> {
        std::iter::successors(held, |held| held.outer.as_ref())
    }

    /// The queues of all keys that are held.
    pub(crate) fn queues(held: Option<&Arc<Self>>) -> Vec<Arc<str>> {
        Self::all(held).map(|held| held.queue.clone()).collect()
    }

    /// The queue for a key inside these bodies, which is below the innermost body that holds the key already; and the
    /// queues of the keys that the bodies hold.
    pub(crate) fn queue(key: &Arc<str>, held: Option<&Arc<Self>>) -> (Arc<str>, Vec<Arc<str>>) {
        let around = Self::all(held).find(|held| held.key == *key);
        (around.map_or_else(|| key.clone(), |held| held.below.clone()), Self::queues(held))
    }
}

/// All keys of a runtime.
#[derive(Default)]
pub(crate) struct Keys(Mutex<KeyState>);

#[derive(Default)]
struct KeyState {
    queues: Queues,
    /// What the operations that have places have noticed of them.
    notes: BTreeMap<OpAddress, PlaceNote>,
}

#[derive(Default)]
struct PlaceNote {
    /// Whether the operation has noticed that it holds the key.
    noticed: bool,
    /// Woken when the operation holds the key, with the number of the waiting handle.
    waiter: Option<(u64, Waker)>,
}

/// A call that waits for a key.
pub(crate) struct KeyWait {
    pub(crate) path: Path,
    pub(crate) key: Arc<str>,
    /// The operation that holds it.
    pub(crate) holder: Option<OpAddress>,
}

/// A handle to the place of an operation.
#[derive(Clone)]
pub(crate) struct QueuedKey {
    at: OpAddress,
    key: Arc<str>,
    ticket: u64,
    /// Distinguishes this handle from one that an earlier future of the same operation had.
    number: u64,
}

impl QueuedKey {
    pub(crate) fn path(&self) -> &Path {
        &self.at.1
    }

    /// The place in the form that the store keeps.
    pub(crate) fn stored(&self, held: bool) -> KeyPlace {
        KeyPlace { path: self.at.1.clone(), key: self.key.clone(), ticket: self.ticket, held }
    }
}

impl Keys {
    /// Queues for `key`, below the innermost body around the caller that holds it already, if there is one. An
    /// operation that has a place keeps it. Refused, with the cycle named, if the holder of the key waits, directly or
    /// through others, for a key that the caller's own bodies hold: the wait that would close the cycle is the
    /// youngest, so it fails.
    pub(crate) fn request(
        &self,
        (queue, key): (Arc<str>, Arc<str>),
        held: Vec<Arc<str>>,
        at: OpAddress,
    ) -> Result<QueuedKey, String> {
        let mut state = self.0.lock();
        let QueuePlace { ticket, .. } = state.queues.request(&at, (queue, key.clone()), held)?;
        state.notes.entry(at.clone()).or_default();
        let number = state.queues.number();
        Ok(QueuedKey { at, key, ticket, number })
    }

    /// Registers that the operation waits for the end of a run while the bodies around it hold these keys. An error
    /// names a cycle.
    pub(crate) fn await_end(&self, at: &OpAddress, run: RunId, held: Vec<Arc<str>>) -> Result<(), String> {
        self.0.lock().queues.await_end(at, run, held)
    }

    /// The operation no longer waits for the end of a run.
    pub(crate) fn stop_waiting(&self, at: &OpAddress) {
        self.0.lock().queues.stop_waiting(at);
    }

    /// Gives up the place of an operation that now wants another key. Returns the run to be taken up.
    #[must_use = "the run that waits for the key must be taken up"]
    pub(crate) fn withdraw_other(&self, at: &OpAddress, key: &str) -> Option<RunId> {
        let mut state = self.0.lock();
        let is_other = state.queues.get(at).is_some_and(|place| *place.key != *key);
        let granted = if is_other { state.leave(at) } else { GrantedKey::default() };
        drop(state);
        granted.notify()
    }

    /// Ready once the place holds the key.
    pub(crate) fn poll(&self, turn: &QueuedKey, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        let Some(place) = state.queues.get(&turn.at) else { return Poll::Pending };
        let is_first = state.queues.is_first(place);
        let note = state.notes.entry(turn.at.clone()).or_default();
        if !is_first {
            note.waiter = Some((turn.number, cx.waker().clone()));
            return Poll::Pending;
        }
        *note = PlaceNote { noticed: true, waiter: None };
        Poll::Ready(())
    }

    /// The future that had this handle is gone. The operation keeps its place.
    pub(crate) fn detach(&self, turn: &QueuedKey) {
        if let Some(note) = self.0.lock().notes.get_mut(&turn.at)
            && note.waiter.as_ref().is_some_and(|(number, _)| *number == turn.number)
        {
            note.waiter = None;
        }
    }

    /// Gives up a place. If the key passes to an operation that no future waits for, returns the run of that operation,
    /// to be taken up.
    #[must_use = "the run that waits for the key must be taken up"]
    pub(crate) fn release(&self, turn: &QueuedKey) -> Option<RunId> {
        let mut state = self.0.lock();
        let is_there = state.queues.get(&turn.at).is_some_and(|place| place.ticket == turn.ticket);
        let granted = if is_there { state.leave(&turn.at) } else { GrantedKey::default() };
        drop(state);
        granted.notify()
    }

    /// Gives up every place of a run at or below a path. Returns the runs to be taken up.
    #[must_use = "the runs that wait for the keys must be taken up"]
    pub(crate) fn release_below(&self, run: RunId, path: &Path) -> Vec<RunId> {
        let mut state = self.0.lock();
        let next = state.queues.leave_below(run, path);
        let of_run = state.notes.range((run, Path::root())..).map(|(at, _)| at).take_while(|at| at.0 == run);
        let is_below = |at: &&OpAddress| at.1.positions().starts_with(path.positions());
        let gone: Vec<OpAddress> = of_run.filter(is_below).cloned().collect();
        gone.iter().for_each(|at| drop(state.notes.remove(at)));
        let granted: Vec<GrantedKey> = next.into_iter().map(|next| state.granted(next)).collect();
        drop(state);
        granted.into_iter().filter_map(GrantedKey::notify).collect()
    }

    /// Whether an operation of the run holds a key that it waits for, and has not noticed it yet.
    pub(crate) fn has_unnoticed_key(&self, run: RunId) -> bool {
        let state = self.0.lock();
        state.queues.of(run).any(|(at, place)| !state.is_noticed(at) && state.queues.is_first(place))
    }

    /// The places of a run in the form that the store keeps.
    pub(crate) fn of(&self, run: RunId) -> Vec<KeyPlace> {
        let state = self.0.lock();
        let stored = |(at, place): (&OpAddress, &QueuePlace)| KeyPlace {
            path: at.1.clone(),
            key: place.key.clone(),
            ticket: place.ticket,
            held: state.is_noticed(at),
        };
        state.queues.of(run).map(stored).collect()
    }

    /// Restores the places of an earlier process: holders first, then in order of arrival. Returns the runs whose
    /// operation holds its key now and did not when that process ended.
    pub(crate) fn restore(&self, stored: Vec<(RunId, KeyPlace)>) -> Vec<RunId> {
        let mut runs: BTreeMap<RunId, Vec<KeyPlace>> = BTreeMap::new();
        for (run, place) in stored {
            runs.entry(run).or_default().push(place);
        }
        let mut placed = Vec::new();
        for (run, mut places) in runs {
            places.sort_by(|a, b| a.path.cmp(&b.path));
            // The keys held by the bodies above each place.
            let mut bodies: Vec<(Path, Arc<HeldKey>)> = Vec::new();
            for place in places {
                bodies.retain(|(path, _)| place.path.positions().starts_with(path.positions()));
                let outer = bodies.last().map(|(_, held)| held.clone());
                let (queue, held) = HeldKey::queue(&place.key, outer.as_ref());
                let at = (run, place.path.clone());
                if place.held {
                    bodies.push((place.path.clone(), HeldKey::new(place.key.clone(), queue.clone(), &at, outer)));
                }
                placed.push((place, queue, held, at));
            }
        }
        // A holder comes first in its queue, whatever its ticket: in an older file a ticket may have been handed out
        // twice.
        placed.sort_by_key(|(place, ..)| (!place.held, place.ticket));
        let mut state = self.0.lock();
        let mut granted = Vec::new();
        state.queues.number_after(placed.iter().map(|(place, ..)| place.ticket).fold(0, u64::max));
        for (place, queue, held, at) in placed {
            if state.queues.get(&at).is_some() {
                continue;
            }
            let ticket = match state.queues.last_ticket(&queue) {
                Some(last) if last >= place.ticket => state.queues.number(),
                _ => place.ticket,
            };
            let entered = QueuePlace { queue, key: place.key, ticket };
            state.queues.enter(at.clone(), entered.clone(), held);
            if !place.held && state.queues.is_first(&entered) {
                granted.push(at.0);
            }
            state.notes.insert(at, PlaceNote { noticed: place.held, waiter: None });
        }
        granted
    }

    /// The keys that calls of a run wait for, and the operation that holds each.
    pub(crate) fn waits_of(&self, run: RunId) -> Vec<KeyWait> {
        let state = self.0.lock();
        let waiting = state.queues.of(run).filter(|(_, place)| !state.queues.is_first(place));
        let wait = |(at, place): (&OpAddress, &QueuePlace)| KeyWait {
            path: at.1.clone(),
            key: place.key.clone(),
            holder: state.queues.holder(&place.queue).cloned(),
        };
        waiting.map(wait).collect()
    }
}

/// The waiter or run that got a key. It is notified after the lock is released.
#[derive(Default)]
struct GrantedKey {
    waiter: Option<Waker>,
    run: Option<RunId>,
}

impl GrantedKey {
    /// Wakes the waiting future, or returns the run to be taken up if there is none.
    fn notify(self) -> Option<RunId> {
        match self.waiter {
            Some(waker) => {
                waker.wake();
                None
            }
            None => self.run,
        }
    }
}

impl KeyState {
    fn is_noticed(&self, at: &OpAddress) -> bool {
        self.notes.get(at).is_some_and(|note| note.noticed)
    }

    fn leave(&mut self, at: &OpAddress) -> GrantedKey {
        self.notes.remove(at);
        self.queues.leave(at).map_or_else(GrantedKey::default, |next| self.granted(next))
    }

    /// The operation holds its key now.
    fn granted(&mut self, next: OpAddress) -> GrantedKey {
        let waiter = self.notes.get_mut(&next).and_then(|note| note.waiter.take()).map(|(_, waker)| waker);
        GrantedKey { waiter, run: Some(next.0) }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker_ref;

    use super::*;

    impl Keys {
        fn ask(&self, key: &str, held: Option<&Arc<HeldKey>>, at: OpAddress) -> Result<QueuedKey, String> {
            let key: Arc<str> = key.into();
            let (queue, held) = HeldKey::queue(&key, held);
            self.request((queue, key), held, at)
        }

        fn hold(&self, turn: &QueuedKey, outer: Option<Arc<HeldKey>>) -> Arc<HeldKey> {
            let queue = self.0.lock().queues.get(&turn.at).unwrap().queue.clone();
            HeldKey::new(turn.key.clone(), queue, &turn.at, outer)
        }
    }

    fn cx() -> Context<'static> {
        Context::from_waker(noop_waker_ref())
    }

    fn run(n: u8) -> RunId {
        RunId::from_bytes([n; 16])
    }

    fn at(n: u8) -> OpAddress {
        (run(n), Path::root())
    }

    fn below(address: &OpAddress, index: u32) -> OpAddress {
        (address.0, address.1.child(index))
    }

    fn is_empty(keys: &Keys) -> bool {
        let state = keys.0.lock();
        state.queues.is_empty() && state.notes.is_empty()
    }

    #[test]
    fn e09_a_key_is_held_by_one_at_a_time_in_order_of_arrival() {
        let keys = Keys::default();
        let mut turns: Vec<QueuedKey> = (0..3).map(|n| keys.ask("k", None, at(n)).unwrap()).collect();
        for _ in 0..3 {
            let ready: Vec<bool> = turns.iter().map(|turn| keys.poll(turn, &cx()).is_ready()).collect();
            assert!(ready[0] && ready[1..].iter().all(|ready| !ready), "{ready:?}");
            assert_eq!(keys.release(&turns.remove(0)), None, "a waiting future is woken instead");
        }
        assert!(is_empty(&keys), "idle keys cost nothing");
    }

    #[test]
    fn e09_asking_again_for_a_place_returns_the_same_place() {
        let keys = Keys::default();
        let first = keys.ask("k", None, at(1)).unwrap();
        let second = keys.ask("k", None, at(2)).unwrap();
        assert!(keys.poll(&first, &cx()).is_ready() && keys.poll(&second, &cx()).is_pending());
        keys.detach(&first);
        keys.detach(&second);
        let again = keys.ask("k", None, at(1)).unwrap();
        assert!(keys.poll(&again, &cx()).is_ready(), "it still holds the key");
        assert!(!keys.has_unnoticed_key(run(2)));
        assert_eq!(keys.release(&again), Some(run(2)), "no future waits for the key, so the run is taken up");
        assert!(keys.has_unnoticed_key(run(2)));
        assert!(keys.poll(&second, &cx()).is_ready() && !keys.has_unnoticed_key(run(2)));
        // A handle of an earlier future of the operation does not affect the later one.
        let third = keys.ask("k", None, at(3)).unwrap();
        let later = keys.ask("k", None, at(3)).unwrap();
        assert!(keys.poll(&later, &cx()).is_pending());
        keys.detach(&third);
        assert_eq!(keys.release(&second), None, "the later future is woken");
        assert_eq!(keys.release_below(run(3), &Path::root()), []);
        assert!(is_empty(&keys));
    }

    #[test]
    fn e09_a_key_is_reentrant_for_descendants_one_at_a_time() {
        let keys = Keys::default();
        let take = |key: &str, held: Option<&Arc<HeldKey>>, at: OpAddress| {
            let turn = keys.ask(key, held, at).unwrap();
            let ready = keys.poll(&turn, &cx()).is_ready();
            (turn, ready)
        };
        let root = at(1);
        let (outer, _) = take("k", None, root.clone());
        let held = keys.hold(&outer, None);
        let (j, ready) = take("j", Some(&held), below(&root, 0));
        assert!(ready);
        let inner = keys.hold(&j, Some(held.clone()));
        let (child, ready) = take("k", Some(&inner), below(&below(&root, 0), 0));
        assert!(ready, "its ancestor has it");
        let (cousin, ready) = take("k", Some(&held), below(&root, 1));
        assert!(!ready, "the cousin waits");
        let (grandchild, ready) =
            take("k", Some(&keys.hold(&child, Some(inner.clone()))), below(&below(&below(&root, 0), 0), 0));
        assert!(ready, "its own children do not wait");
        for turn in [&grandchild, &child] {
            assert_eq!(keys.release(turn), None);
        }
        assert!(keys.poll(&cousin, &cx()).is_ready());
        assert_eq!(keys.release_below(root.0, &Path::root()), []);
        assert!(is_empty(&keys), "idle keys cost nothing");
    }

    #[test]
    fn e09_a_wait_cycle_is_refused_by_name() {
        let keys = Keys::default();
        let take = |key: &str, n: u8| {
            let turn = keys.ask(key, None, at(n)).unwrap();
            assert!(keys.poll(&turn, &cx()).is_ready());
            turn
        };
        let (a, b, c) = (take("a", 1), take("b", 2), take("c", 3));
        let a_for_b = keys.ask("b", Some(&keys.hold(&a, None)), below(&at(1), 0)).unwrap();
        let _b_for_c = keys.ask("c", Some(&keys.hold(&b, None)), below(&at(2), 0)).unwrap();
        let refused = keys.ask("a", Some(&keys.hold(&c, None)), below(&at(3), 0)).err().unwrap();
        assert!(refused.contains("holds key `c` and wants key `a`"), "{refused}");
        assert_eq!(keys.release(&a_for_b), None);
        assert!(
            keys.ask("a", Some(&keys.hold(&c, None)), below(&at(3), 0)).is_ok(),
            "without the wait there is no cycle"
        );
    }

    #[test]
    fn e09_places_are_restored_with_holders_first_and_then_in_order_of_arrival() {
        let keys = Keys::default();
        let place = |path: &Path, key: &str, ticket: u64, held: bool| KeyPlace {
            path: path.clone(),
            key: key.into(),
            ticket,
            held,
        };
        let root = Path::root();
        let news = keys.restore(vec![
            (run(1), place(&root, "k", 9, false)),
            (run(2), place(&root, "k", 12, true)),
            (run(2), place(&root.child(0), "k", 13, true)),
            (run(3), place(&root, "k", 4, false)),
            (run(4), place(&root, "free", 2, false)),
        ]);
        assert_eq!(news, [run(4)], "its holder is gone");
        let turn =
            |n: u8, held: Option<&Arc<HeldKey>>, path: &Path| keys.ask("k", held, (run(n), path.clone())).unwrap();
        let (holder, third, first) = (turn(2, None, &root), turn(3, None, &root), turn(1, None, &root));
        assert!(keys.poll(&holder, &cx()).is_ready() && keys.poll(&third, &cx()).is_pending());
        let child = turn(2, Some(&keys.hold(&holder, None)), &root.child(0));
        assert!(keys.poll(&child, &cx()).is_ready(), "a key below its body has its own queue");
        let late = turn(5, None, &root);
        assert_eq!(keys.release(&child), None);
        assert_eq!(keys.release(&holder), None);
        for (turn, what) in [(&third, "ticket 4"), (&first, "ticket 9"), (&late, "the newcomer")] {
            assert!(keys.poll(turn, &cx()).is_ready(), "{what}");
            assert!(keys.release(turn).is_none_or(|run| run != turn.at.0));
        }
    }
}
