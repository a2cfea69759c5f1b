//! Keys: calls that share one run one at a time, in order of arrival, across batches and runs.

use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::fifo::{Fifo, Turn};

/// The keys held by a durable body and the bodies around it.
pub(crate) struct Held {
    /// As declared.
    key: Arc<str>,
    /// As queued for.
    queued_as: Arc<str>,
    outer: Option<Arc<Held>>,
}

impl Held {
    pub(crate) fn new(key: Arc<str>, turn: &KeyTurn, outer: Option<Arc<Held>>) -> Arc<Self> {
        Arc::new(Self { key, queued_as: turn.key.clone(), outer })
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
    queues: FxHashMap<Arc<str>, Arc<Fifo>>,
    waits: Vec<Wait>,
    next: u64,
}

/// Somebody who holds keys waits for another one.
struct Wait {
    id: u64,
    held: Vec<Arc<str>>,
    wanted: Arc<str>,
}

impl Keys {
    /// Queues for `key`. Below a body that holds it the calls queue among themselves, behind that body and nobody else.
    /// Refused, naming the cycle, if whoever holds the key waits, directly or through others, for a key that the caller's
    /// own bodies hold: the wait that would close the circle is the youngest, and it fails.
    pub(crate) fn request(self: &Arc<Self>, key: Arc<str>, held: Option<&Arc<Held>>) -> Result<KeyTurn, String> {
        let holder = Held::all(held).find(|held| held.key == key);
        // The holder's own name for the key is unique while it holds it; a suffix makes the queue below it another one.
        let key = holder.map_or(key, |holder| format!("{}\u{0}below", holder.queued_as).into());
        let held: Vec<Arc<str>> = Held::all(held).map(|held| held.queued_as.clone()).collect();
        let mut state = self.0.lock();
        if let Some(cycle) = state.cycle(&key, &held) {
            return Err(cycle);
        }
        let queue = state.queues.entry(key.clone()).or_insert_with(|| Fifo::new(1)).clone();
        let turn = queue.shared();
        let wait = (!held.is_empty()).then(|| {
            state.next += 1;
            let id = state.next;
            state.waits.push(Wait { id, held, wanted: key.clone() });
            id
        });
        drop(state);
        Ok(KeyTurn { keys: self.clone(), key, turn: Some(turn), wait })
    }
}

impl State {
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
                    let (own, wanted, key) = (declared(own), declared(wanted), declared(&key));
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

/// A key as its tool declared it.
fn declared(key: &str) -> &str {
    key.split('\u{0}').next().unwrap_or(key)
}

/// A place in a key's queue, and then the key. Dropping it gives up either.
pub(crate) struct KeyTurn {
    keys: Arc<Keys>,
    key: Arc<str>,
    turn: Option<Turn>,
    wait: Option<u64>,
}

impl KeyTurn {
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        if let Some(turn) = &mut self.turn {
            std::task::ready!(turn.poll(cx));
        }
        self.stop_waiting();
        Poll::Ready(())
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
        if state.queues.get(&self.key).is_some_and(|queue| queue.is_idle()) {
            state.queues.remove(&self.key);
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
    fn e09_a_key_is_reentrant_for_descendants_who_queue_among_themselves() {
        let keys = Arc::new(Keys::default());
        let mut outer = keys.request("k".into(), None).unwrap();
        assert!(outer.poll(&cx()).is_ready());
        let held = Held::new("k".into(), &outer, None);
        let mut first = keys.request("k".into(), Some(&held)).unwrap();
        let mut second = keys.request("k".into(), Some(&held)).unwrap();
        let mut stranger = keys.request("k".into(), None).unwrap();
        assert!(first.poll(&cx()).is_ready(), "a descendant need not wait for the body around it");
        assert!(second.poll(&cx()).is_pending(), "but for its sibling");
        let inner = Held::new("k".into(), &first, Some(held));
        let mut below = keys.request("k".into(), Some(&inner)).unwrap();
        assert!(below.poll(&cx()).is_ready(), "to any depth");
        drop((below, inner, first));
        assert!(second.poll(&cx()).is_ready());
        assert!(stranger.poll(&cx()).is_pending());
        drop((second, outer));
        assert!(stranger.poll(&cx()).is_ready());
        drop(stranger);
        assert!(keys.0.lock().queues.is_empty());
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
        let (holds_a, holds_b, holds_c) =
            (Held::new("a".into(), &a, None), Held::new("b".into(), &b, None), Held::new("c".into(), &c, None));
        let waits_a_for_b = keys.request("b".into(), Some(&holds_a)).unwrap();
        let _b_for_c = keys.request("c".into(), Some(&holds_b)).unwrap();
        let refused = keys.request("a".into(), Some(&holds_c)).err().unwrap();
        assert!(refused.contains("holds key `c` and wants `a`"), "{refused}");
        drop(waits_a_for_b);
        assert!(keys.request("a".into(), Some(&holds_c)).is_ok(), "without the wait there is no cycle");
    }
}
