//! Keys: calls that share one run one at a time, in order of arrival, across batches and runs.
//!
//! A place in a queue belongs to an operation, addressed by its run and path, and not to the future that asked for it: a run
//! that is suspended, held or reloaded keeps its places, and asking for one again returns the same place. The first place of
//! a queue holds the key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::id::RunId;
use crate::path::Path;
use crate::store::KeyPlace;

/// The operation that a place belongs to.
type Address = (RunId, Path);

/// The keys held by a durable body and the bodies around it: what its descendants need not wait for again. Those of them
/// that share such a key wait for one another only, in a queue below the body.
pub(crate) struct Held {
    key: Arc<str>,
    /// The queue it came out of.
    queue: Arc<str>,
    /// The queue of its descendants.
    below: Arc<str>,
    outer: Option<Arc<Held>>,
}

impl Held {
    /// The key of the body at this address, which it took out of this queue. The queue below it has the same name whenever
    /// the body is entered again.
    fn new(key: Arc<str>, queue: Arc<str>, (run, path): &Address, outer: Option<Arc<Self>>) -> Arc<Self> {
        let below = format!("{key} (below {path} of run {run})").into();
        Arc::new(Self { key, queue, below, outer })
    }

    fn all(held: Option<&Arc<Self>>) -> impl Iterator<Item = &Arc<Self>> {
        std::iter::successors(held, |held| held.outer.as_ref())
    }
}

/// All keys of a runtime.
#[derive(Default)]
pub(crate) struct Keys(Mutex<State>);

#[derive(Default)]
struct State {
    /// By ticket, which is the order of arrival.
    queues: FxHashMap<Arc<str>, BTreeMap<u64, Address>>,
    places: BTreeMap<Address, Place>,
    /// Places that wait while bodies around them hold keys, by ticket: what cycles are looked for in.
    waits: BTreeMap<u64, Wait>,
    last: u64,
}

struct Place {
    queue: Arc<str>,
    key: Arc<str>,
    ticket: u64,
    /// Whether its operation knows that it holds the key.
    noticed: bool,
    /// Woken when it holds the key, with the number of the handle that waits.
    waiter: Option<(u64, Waker)>,
}

struct Wait {
    held: Vec<Arc<str>>,
    wanted: Arc<str>,
}

/// A call that waits for a key.
pub(crate) struct KeyWait {
    pub(crate) path: Path,
    pub(crate) key: Arc<str>,
    /// The operation that has it.
    pub(crate) holder: Option<Address>,
}

/// A place as its operation has it.
#[derive(Clone)]
pub(crate) struct KeyTurn {
    at: Address,
    queue: Arc<str>,
    key: Arc<str>,
    ticket: u64,
    /// Tells this handle from one that an earlier future of the same operation had.
    number: u64,
}

impl KeyTurn {
    pub(crate) fn key(&self) -> &Arc<str> {
        &self.key
    }

    pub(crate) fn path(&self) -> &Path {
        &self.at.1
    }

    /// The key as a body has it that is about to hold it.
    pub(crate) fn hold(&self, outer: Option<Arc<Held>>) -> Arc<Held> {
        Held::new(self.key.clone(), self.queue.clone(), &self.at, outer)
    }

    /// The place as the store keeps it.
    pub(crate) fn stored(&self, held: bool) -> KeyPlace {
        KeyPlace { path: self.at.1.clone(), key: self.key.clone(), ticket: self.ticket, held }
    }
}

impl Keys {
    /// Queues for `key`; below the innermost body around the caller that holds it already, if one does. An operation that
    /// has a place keeps it. Refused, naming the cycle, if the holder of the key waits, directly or through others, for a key
    /// that the caller's own bodies hold: the wait that would close the circle is the youngest, and it fails.
    pub(crate) fn request(&self, key: Arc<str>, held: Option<&Arc<Held>>, at: Address) -> Result<KeyTurn, String> {
        let around = Held::all(held).find(|held| held.key == key);
        let queue = around.map_or_else(|| key.clone(), |held| held.below.clone());
        let held: Vec<Arc<str>> = Held::all(held).map(|held| held.queue.clone()).collect();
        let mut state = self.0.lock();
        let (queue, ticket) = match state.places.get(&at) {
            Some(place) => (place.queue.clone(), place.ticket),
            None => {
                if let Some(cycle) = state.cycle(&queue, &held) {
                    return Err(cycle);
                }
                let ticket = state.number();
                state.enter(at.clone(), (queue.clone(), key.clone()), ticket, held);
                (queue, ticket)
            }
        };
        let number = state.number();
        Ok(KeyTurn { at, queue, key, ticket, number })
    }

    /// Gives up the place of an operation that wants another key now; returns the run to be taken up.
    #[must_use = "a run that waits for the key is to be taken up"]
    pub(crate) fn withdraw_other(&self, at: &Address, key: &str) -> Option<RunId> {
        let mut state = self.0.lock();
        let is_other = state.places.get(at).is_some_and(|place| *place.key != *key);
        let granted = if is_other { state.leave(at) } else { Granted::default() };
        drop(state);
        granted.tell()
    }

    /// Ready once the place holds the key.
    pub(crate) fn poll(&self, turn: &KeyTurn, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        let is_first = state.is_first(&turn.queue, turn.ticket);
        let Some(place) = state.places.get_mut(&turn.at) else { return Poll::Pending };
        if !is_first {
            place.waiter = Some((turn.number, cx.waker().clone()));
            return Poll::Pending;
        }
        place.noticed = true;
        place.waiter = None;
        Poll::Ready(())
    }

    /// The future that had this handle is gone, and the place stays.
    pub(crate) fn rest(&self, turn: &KeyTurn) {
        if let Some(place) = self.0.lock().places.get_mut(&turn.at)
            && place.waiter.as_ref().is_some_and(|(number, _)| *number == turn.number)
        {
            place.waiter = None;
        }
    }

    /// Gives up a place. Returns the run to be taken up whose operation has the key now, and which no future waits for.
    #[must_use = "a run that waits for the key is to be taken up"]
    pub(crate) fn release(&self, turn: &KeyTurn) -> Option<RunId> {
        let mut state = self.0.lock();
        let is_there = state.places.get(&turn.at).is_some_and(|place| place.ticket == turn.ticket);
        let granted = if is_there { state.leave(&turn.at) } else { Granted::default() };
        drop(state);
        granted.tell()
    }

    /// Gives up every place of a run at or below a path; returns the runs to be taken up.
    #[must_use = "runs that wait for the keys are to be taken up"]
    pub(crate) fn release_below(&self, run: RunId, path: &Path) -> Vec<RunId> {
        let mut state = self.0.lock();
        let all: Vec<Address> = state
            .of(run)
            .map(|(at, _)| at)
            .filter(|at| at.1.positions().starts_with(path.positions()))
            .cloned()
            .collect();
        let granted: Vec<Granted> = all.iter().map(|at| state.leave(at)).collect();
        drop(state);
        granted.into_iter().filter_map(Granted::tell).collect()
    }

    /// Whether a run has the key that one of its operations waits for, and does not know it.
    pub(crate) fn has_news(&self, run: RunId) -> bool {
        let state = self.0.lock();
        state.of(run).any(|(_, place)| !place.noticed && state.is_first(&place.queue, place.ticket))
    }

    /// The places of a run, as the store keeps them.
    pub(crate) fn of(&self, run: RunId) -> Vec<KeyPlace> {
        let state = self.0.lock();
        let stored = |(at, place): (&Address, &Place)| KeyPlace {
            path: at.1.clone(),
            key: place.key.clone(),
            ticket: place.ticket,
            held: place.noticed,
        };
        state.of(run).map(stored).collect()
    }

    /// Gives the runs of an earlier process their places back: holders first, then in order of arrival. Returns the runs
    /// whose operation has the key now and did not when the process ended.
    pub(crate) fn restore(&self, stored: Vec<(RunId, KeyPlace)>) -> Vec<RunId> {
        let mut runs: BTreeMap<RunId, Vec<KeyPlace>> = BTreeMap::new();
        for (run, place) in stored {
            runs.entry(run).or_default().push(place);
        }
        let mut placed = Vec::new();
        for (run, mut places) in runs {
            places.sort_by(|a, b| a.path.cmp(&b.path));
            // Held by the bodies on the way to each place.
            let mut bodies: Vec<(Path, Arc<Held>)> = Vec::new();
            for place in places {
                bodies.retain(|(path, _)| place.path.positions().starts_with(path.positions()));
                let outer = bodies.last().map(|(_, held)| held.clone());
                let around = Held::all(outer.as_ref()).find(|held| held.key == place.key);
                let queue = around.map_or_else(|| place.key.clone(), |held| held.below.clone());
                let held = Held::all(outer.as_ref()).map(|held| held.queue.clone()).collect();
                let at = (run, place.path.clone());
                if place.held {
                    bodies.push((place.path.clone(), Held::new(place.key.clone(), queue.clone(), &at, outer)));
                }
                placed.push((place, queue, held, at));
            }
        }
        // A holder comes first in its queue, whatever its ticket says: that of an older file may have been handed out twice.
        placed.sort_by_key(|(place, ..)| (!place.held, place.ticket));
        let mut state = self.0.lock();
        let mut granted = Vec::new();
        state.last = placed.iter().map(|(place, ..)| place.ticket).fold(state.last, u64::max);
        for (place, queue, held, at) in placed {
            if state.places.contains_key(&at) {
                continue;
            }
            let ticket = match state.queues.get(&queue).and_then(|queue| queue.last_key_value()) {
                Some((last, _)) if *last >= place.ticket => state.number(),
                _ => place.ticket,
            };
            let run = at.0;
            state.enter(at.clone(), (queue.clone(), place.key), ticket, held);
            if let Some(entered) = state.places.get_mut(&at) {
                entered.noticed = place.held;
            }
            if !place.held && state.is_first(&queue, ticket) {
                granted.push(run);
            }
        }
        granted
    }

    /// What calls of a run wait for, and which operation has it.
    pub(crate) fn waits_of(&self, run: RunId) -> Vec<KeyWait> {
        let state = self.0.lock();
        let first = |queue: &Arc<str>| state.queues.get(queue)?.first_key_value().map(|(_, at)| at.clone());
        let waiting = state.of(run).filter(|(_, place)| !state.is_first(&place.queue, place.ticket));
        let wait = |(at, place): (&Address, &Place)| KeyWait {
            path: at.1.clone(),
            key: place.key.clone(),
            holder: first(&place.queue),
        };
        waiting.map(wait).collect()
    }
}

/// What is to be told of a key that was given up, after the lock is released.
#[derive(Default)]
struct Granted {
    waiter: Option<Waker>,
    run: Option<RunId>,
}

impl Granted {
    /// The run to be taken up, unless a future waits for the key.
    fn tell(self) -> Option<RunId> {
        match self.waiter {
            Some(waker) => {
                waker.wake();
                None
            }
            None => self.run,
        }
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn of(&self, run: RunId) -> impl Iterator<Item = (&Address, &Place)> {
        self.places.range((run, Path::root())..).take_while(move |(at, _)| at.0 == run)
    }

    fn is_first(&self, queue: &Arc<str>, ticket: u64) -> bool {
        self.queues.get(queue).and_then(BTreeMap::first_key_value).is_some_and(|(first, _)| *first == ticket)
    }

    fn enter(&mut self, at: Address, (queue, key): (Arc<str>, Arc<str>), ticket: u64, held: Vec<Arc<str>>) {
        let queued = self.queues.entry(queue.clone()).or_default();
        queued.insert(ticket, at.clone());
        if queued.len() > 1 && !held.is_empty() {
            self.waits.insert(ticket, Wait { held, wanted: queue.clone() });
        }
        self.places.insert(at, Place { queue, key, ticket, noticed: false, waiter: None });
    }

    fn leave(&mut self, at: &Address) -> Granted {
        let Some(place) = self.places.remove(at) else { return Granted::default() };
        self.waits.remove(&place.ticket);
        let Some(queue) = self.queues.get_mut(&place.queue) else { return Granted::default() };
        let was_first = queue.first_key_value().is_some_and(|(first, _)| *first == place.ticket);
        queue.remove(&place.ticket);
        let Some((ticket, next)) = queue.first_key_value().map(|(ticket, next)| (*ticket, next.clone())) else {
            self.queues.remove(&place.queue);
            return Granted::default();
        };
        if !was_first {
            return Granted::default();
        }
        self.waits.remove(&ticket);
        let waiter = self.places.get_mut(&next).and_then(|place| place.waiter.take()).map(|(_, waker)| waker);
        Granted { waiter, run: Some(next.0) }
    }

    fn cycle(&self, wanted: &Arc<str>, held: &[Arc<str>]) -> Option<String> {
        if held.is_empty() {
            return None;
        }
        let mut chain = vec![wanted.clone()];
        let mut next = 0;
        while let Some(key) = chain.get(next).cloned() {
            next += 1;
            for wait in self.waits.values().filter(|wait| wait.held.contains(&key)) {
                if let Some(own) = held.iter().find(|own| **own == wait.wanted) {
                    return Some(format!(
                        "this call holds key `{own}` and wants `{wanted}`, while a call that holds `{key}` waits for \
                         `{own}`: neither could ever go on. Take keys in one order everywhere, or declare the key on \
                         the outermost tool only"
                    ));
                }
                if !chain.contains(&wait.wanted) {
                    chain.push(wait.wanted.clone());
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker_ref;

    use super::*;

    fn cx() -> Context<'static> {
        Context::from_waker(noop_waker_ref())
    }

    fn run(n: u8) -> RunId {
        RunId::from_bytes([n; 16])
    }

    fn at(n: u8) -> Address {
        (run(n), Path::root())
    }

    fn below(address: &Address, index: u32) -> Address {
        (address.0, address.1.child(index))
    }

    fn is_empty(keys: &Keys) -> bool {
        let state = keys.0.lock();
        state.queues.is_empty() && state.places.is_empty() && state.waits.is_empty()
    }

    #[test]
    fn e09_a_key_is_held_by_one_at_a_time_in_order_of_arrival() {
        let keys = Keys::default();
        let mut turns: Vec<KeyTurn> = (0..3).map(|n| keys.request("k".into(), None, at(n)).unwrap()).collect();
        for _ in 0..3 {
            let ready: Vec<bool> = turns.iter().map(|turn| keys.poll(turn, &cx()).is_ready()).collect();
            assert!(ready[0] && ready[1..].iter().all(|ready| !ready), "{ready:?}");
            assert_eq!(keys.release(&turns.remove(0)), None, "the next one has a waiter, or there is none");
        }
        assert!(is_empty(&keys), "idle keys cost nothing");
    }

    #[test]
    fn e09_asking_again_for_a_place_returns_the_same_place() {
        let keys = Keys::default();
        let first = keys.request("k".into(), None, at(1)).unwrap();
        let second = keys.request("k".into(), None, at(2)).unwrap();
        assert!(keys.poll(&first, &cx()).is_ready() && keys.poll(&second, &cx()).is_pending());
        keys.rest(&first);
        keys.rest(&second);
        let again = keys.request("k".into(), None, at(1)).unwrap();
        assert!(keys.poll(&again, &cx()).is_ready(), "it still holds the key");
        assert!(!keys.has_news(run(2)));
        assert_eq!(keys.release(&again), Some(run(2)), "no future waits for the next one: its run is taken up");
        assert!(keys.has_news(run(2)));
        assert!(keys.poll(&second, &cx()).is_ready() && !keys.has_news(run(2)));
        // A handle of an earlier future of the operation takes away nothing from the later one.
        let third = keys.request("k".into(), None, at(3)).unwrap();
        let later = keys.request("k".into(), None, at(3)).unwrap();
        assert!(keys.poll(&later, &cx()).is_pending());
        keys.rest(&third);
        assert_eq!(keys.release(&second), None, "the later future is woken");
        assert_eq!(keys.release_below(run(3), &Path::root()), []);
        assert!(is_empty(&keys));
    }

    #[test]
    fn e09_a_key_is_reentrant_for_descendants_one_at_a_time() {
        let keys = Keys::default();
        let take = |key: &str, held: Option<&Arc<Held>>, at: Address| {
            let turn = keys.request(key.into(), held, at).unwrap();
            let ready = keys.poll(&turn, &cx()).is_ready();
            (turn, ready)
        };
        let root = at(1);
        let (outer, _) = take("k", None, root.clone());
        let held = outer.hold(None);
        let (j, ready) = take("j", Some(&held), below(&root, 0));
        assert!(ready);
        let inner = j.hold(Some(held.clone()));
        let (child, ready) = take("k", Some(&inner), below(&below(&root, 0), 0));
        assert!(ready, "its ancestor has it");
        let (cousin, ready) = take("k", Some(&held), below(&root, 1));
        assert!(!ready, "its cousin waits");
        let (grandchild, ready) =
            take("k", Some(&child.hold(Some(inner.clone()))), below(&below(&below(&root, 0), 0), 0));
        assert!(ready, "and its own children do not");
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
            let turn = keys.request(key.into(), None, at(n)).unwrap();
            assert!(keys.poll(&turn, &cx()).is_ready());
            turn
        };
        let (a, b, c) = (take("a", 1), take("b", 2), take("c", 3));
        let a_for_b = keys.request("b".into(), Some(&a.hold(None)), below(&at(1), 0)).unwrap();
        let _b_for_c = keys.request("c".into(), Some(&b.hold(None)), below(&at(2), 0)).unwrap();
        let refused = keys.request("a".into(), Some(&c.hold(None)), below(&at(3), 0)).err().unwrap();
        assert!(refused.contains("holds key `c` and wants `a`"), "{refused}");
        assert_eq!(keys.release(&a_for_b), None);
        assert!(
            keys.request("a".into(), Some(&c.hold(None)), below(&at(3), 0)).is_ok(),
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
        let turn = |n: u8, held: Option<&Arc<Held>>, path: &Path| {
            keys.request("k".into(), held, (run(n), path.clone())).unwrap()
        };
        let (holder, third, first) = (turn(2, None, &root), turn(3, None, &root), turn(1, None, &root));
        assert!(keys.poll(&holder, &cx()).is_ready() && keys.poll(&third, &cx()).is_pending());
        let child = turn(2, Some(&holder.hold(None)), &root.child(0));
        assert!(keys.poll(&child, &cx()).is_ready(), "what it holds below its body is its own affair");
        let late = turn(5, None, &root);
        assert_eq!(keys.release(&child), None);
        assert_eq!(keys.release(&holder), None);
        for (turn, what) in [(&third, "ticket 4"), (&first, "ticket 9"), (&late, "the newcomer")] {
            assert!(keys.poll(turn, &cx()).is_ready(), "{what}");
            assert!(keys.release(turn).is_none_or(|run| run != turn.at.0));
        }
    }
}
