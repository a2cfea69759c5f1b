//! Keys: calls that share one run one at a time, in order of arrival, across batches and runs.

use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::fifo::{Fifo, Turn};
use crate::id::RunId;
use crate::path::Path;

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
    fn all(held: Option<&Arc<Self>>) -> impl Iterator<Item = &Arc<Self>> {
        std::iter::successors(held, |held| held.outer.as_ref())
    }
}

/// All keys of a runtime.
#[derive(Default)]
pub(crate) struct Keys(Mutex<State>);

#[derive(Default)]
struct State {
    queues: FxHashMap<Arc<str>, Arc<Fifo>>,
    waits: Vec<Wait>,
    /// Who queues where, as far as they said.
    places: FxHashMap<u64, Place>,
    next: u64,
}

/// Somebody in the queue of a key.
struct Place {
    queue: Arc<str>,
    key: Arc<str>,
    who: (RunId, Path),
    holds: bool,
}

/// A call that waits for a key.
pub(crate) struct KeyWait {
    pub(crate) path: Path,
    pub(crate) key: Arc<str>,
    /// Who has it.
    pub(crate) holder: Option<(RunId, Path)>,
}

/// Somebody who holds keys waits for another one.
struct Wait {
    id: u64,
    held: Vec<Arc<str>>,
    wanted: Arc<str>,
}

impl Keys {
    /// Queues for `key`; below the innermost body around the caller that holds it already, if one does. Refused, naming
    /// the cycle, if whoever holds the key waits, directly or through others, for a key that the caller's own bodies
    /// hold: the wait that would close the circle is the youngest, and it fails.
    pub(crate) fn request(self: &Arc<Self>, key: Arc<str>, held: Option<&Arc<Held>>) -> Result<KeyTurn, String> {
        let around = Held::all(held).find(|held| held.key == key);
        let name = around.map_or_else(|| key.clone(), |held| held.below.clone());
        let held: Vec<Arc<str>> = Held::all(held).map(|held| held.queue.clone()).collect();
        let mut state = self.0.lock();
        if let Some(cycle) = state.cycle(&name, &held) {
            return Err(cycle);
        }
        let queue = state.queues.entry(name.clone()).or_insert_with(|| Fifo::new(1)).clone();
        let turn = queue.shared();
        let wait = (!held.is_empty()).then(|| {
            let id = state.number();
            state.waits.push(Wait { id, held, wanted: name.clone() });
            id
        });
        drop(state);
        Ok(KeyTurn { keys: self.clone(), key, queue: name, turn: Some(turn), wait, place: None, holds: false })
    }

    /// What calls of a run wait for, and who has it.
    pub(crate) fn waits_of(&self, run: RunId) -> Vec<KeyWait> {
        let state = self.0.lock();
        let holder = |queue: &str| state.places.values().find(|place| place.holds && *place.queue == *queue);
        let waiting = state.places.values().filter(|place| !place.holds && place.who.0 == run);
        let mut waits: Vec<KeyWait> = waiting
            .map(|place| KeyWait {
                path: place.who.1.clone(),
                key: place.key.clone(),
                holder: holder(&place.queue).map(|place| place.who.clone()),
            })
            .collect();
        waits.sort_by(|a, b| a.path.cmp(&b.path));
        waits
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn cycle(&self, wanted: &Arc<str>, held: &[Arc<str>]) -> Option<String> {
        if held.is_empty() {
            return None;
        }
        let mut chain = vec![wanted.clone()];
        let mut next = 0;
        while let Some(key) = chain.get(next).cloned() {
            next += 1;
            for wait in self.waits.iter().filter(|wait| wait.held.contains(&key)) {
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

/// A place in a key's queue, and then the key. Dropping it gives up either.
pub(crate) struct KeyTurn {
    keys: Arc<Keys>,
    key: Arc<str>,
    queue: Arc<str>,
    turn: Option<Turn>,
    wait: Option<u64>,
    place: Option<u64>,
    holds: bool,
}

impl KeyTurn {
    /// Says whose place it is, so that those behind it can be told.
    pub(crate) fn of(mut self, run: RunId, path: &Path) -> Self {
        let mut state = self.keys.0.lock();
        let id = state.number();
        let (queue, key) = (self.queue.clone(), self.key.clone());
        state.places.insert(id, Place { queue, key, who: (run, path.clone()), holds: self.holds });
        drop(state);
        self.place = Some(id);
        self
    }

    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        if let Some(turn) = &mut self.turn {
            std::task::ready!(turn.poll(cx));
        }
        self.stop_waiting();
        if !std::mem::replace(&mut self.holds, true)
            && let Some(id) = self.place
            && let Some(place) = self.keys.0.lock().places.get_mut(&id)
        {
            place.holds = true;
        }
        Poll::Ready(())
    }

    /// The key as a body has it that is about to hold it.
    pub(crate) fn hold(&self, outer: Option<Arc<Held>>) -> Arc<Held> {
        // Numbered, so that two bodies' queues differ.
        let number = self.keys.0.lock().number();
        let below = format!("{} (below {number})", self.key).into();
        Arc::new(Held { key: self.key.clone(), queue: self.queue.clone(), below, outer })
    }

    fn stop_waiting(&mut self) {
        if let Some(id) = self.wait.take() {
            self.keys.0.lock().waits.retain(|wait| wait.id != id);
        }
    }
}

impl Drop for KeyTurn {
    fn drop(&mut self) {
        self.stop_waiting();
        self.turn = None;
        let mut state = self.keys.0.lock();
        if let Some(id) = self.place {
            state.places.remove(&id);
        }
        if state.queues.get(&self.queue).is_some_and(|queue| queue.is_idle()) {
            state.queues.remove(&self.queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker_ref;

    use super::*;

    fn cx() -> Context<'static> {
        Context::from_waker(noop_waker_ref())
    }

    #[test]
    fn e09_a_key_is_held_by_one_at_a_time_in_order_of_arrival() {
        let keys = Arc::new(Keys::default());
        let mut turns: Vec<KeyTurn> = (0..3).map(|_| keys.request("k".into(), None).unwrap()).collect();
        for _ in 0..3 {
            let ready: Vec<bool> = turns.iter_mut().map(|turn| turn.poll(&cx()).is_ready()).collect();
            assert!(ready[0] && ready[1..].iter().all(|ready| !ready), "{ready:?}");
            turns.remove(0);
        }
        assert!(keys.0.lock().queues.is_empty(), "idle keys cost nothing");
    }

    #[test]
    fn e09_a_key_is_reentrant_for_descendants_one_at_a_time() {
        let keys = Arc::new(Keys::default());
        let take = |key: &str, held: Option<&Arc<Held>>| {
            let mut turn = keys.request(key.into(), held).unwrap();
            let ready = turn.poll(&cx()).is_ready();
            (turn, ready)
        };
        let (outer, _) = take("k", None);
        let held = outer.hold(None);
        let (j, ready) = take("j", Some(&held));
        assert!(ready);
        let inner = j.hold(Some(held.clone()));
        let (child, ready) = take("k", Some(&inner));
        assert!(ready, "its ancestor has it");
        assert!(!take("k", Some(&held)).1, "its cousin waits");
        let (_, ready) = take("k", Some(&child.hold(Some(inner.clone()))));
        assert!(ready, "and its own children do not");
        drop(child);
        assert!(take("k", Some(&held)).1);
        drop((outer, j));
        assert!(keys.0.lock().queues.is_empty(), "idle keys cost nothing");
    }

    #[test]
    fn e09_a_wait_cycle_is_refused_by_name() {
        let keys = Arc::new(Keys::default());
        let take = |key: &str| {
            let mut turn = keys.request(key.into(), None).unwrap();
            assert!(turn.poll(&cx()).is_ready());
            turn
        };
        let (a, b, c) = (take("a"), take("b"), take("c"));
        let waits_a_for_b = keys.request("b".into(), Some(&a.hold(None))).unwrap();
        let _b_for_c = keys.request("c".into(), Some(&b.hold(None))).unwrap();
        let refused = keys.request("a".into(), Some(&c.hold(None))).err().unwrap();
        assert!(refused.contains("holds key `c` and wants `a`"), "{refused}");
        drop(waits_a_for_b);
        assert!(keys.request("a".into(), Some(&c.hold(None))).is_ok(), "without the wait there is no cycle");
    }
}
