//! A weighted semaphore that serves strictly in order of arrival.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// Everything a session's exclusivity has to give: a parallel attempt takes one unit, an exclusive one all of them.
const SESSION_UNITS: u32 = 1 << 20;

pub(crate) struct Fifo {
    capacity: u32,
    state: Mutex<State>,
}

struct State {
    free: u32,
    queue: VecDeque<Arc<Waiting>>,
}

/// Somebody in a queue.
pub(super) struct Waiting {
    want: u32,
    place: Mutex<Place>,
}

enum Place {
    Queued(Option<Waker>),
    Granted,
}

impl Waiting {
    pub(super) fn new(want: u32) -> Arc<Self> {
        Arc::new(Self { want, place: Mutex::new(Place::Queued(None)) })
    }

    pub(super) fn grant(&self) {
        if let Place::Queued(Some(waker)) = std::mem::replace(&mut *self.place.lock(), Place::Granted) {
            waker.wake();
        }
    }

    pub(super) fn is_granted(&self) -> bool {
        matches!(*self.place.lock(), Place::Granted)
    }

    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        match &mut *self.place.lock() {
            Place::Granted => Poll::Ready(()),
            Place::Queued(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Fifo {
    pub(crate) fn new(capacity: u32) -> Arc<Self> {
        Arc::new(Self { capacity, state: Mutex::new(State { free: capacity, queue: VecDeque::new() }) })
    }

    pub(crate) fn session() -> Arc<Self> {
        Self::new(SESSION_UNITS)
    }

    /// One unit.
    pub(crate) fn shared(self: &Arc<Self>) -> Turn {
        self.request(1)
    }

    /// All units.
    pub(crate) fn exclusive(self: &Arc<Self>) -> Turn {
        self.request(self.capacity)
    }

    fn request(self: &Arc<Self>, want: u32) -> Turn {
        let mut state = self.state.lock();
        let waiting = if state.queue.is_empty() && state.free >= want {
            state.free -= want;
            None
        } else {
            let waiting = Waiting::new(want);
            state.queue.push_back(waiting.clone());
            Some(waiting)
        };
        drop(state);
        Turn { fifo: self.clone(), want, waiting }
    }

    #[cfg(test)]
    fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.free == self.capacity && state.queue.is_empty()
    }

    fn give_back(&self, units: u32) {
        let mut state = self.state.lock();
        state.free += units;
        Self::serve(&mut state);
    }

    fn serve(state: &mut State) {
        while let Some(first) = state.queue.front()
            && first.want <= state.free
        {
            state.free -= first.want;
            first.grant();
            state.queue.pop_front();
        }
    }
}

/// A place in the queue, and then what was waited for. Dropping it gives up either.
pub(crate) struct Turn {
    fifo: Arc<Fifo>,
    want: u32,
    waiting: Option<Arc<Waiting>>,
}

impl Turn {
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        let Some(waiting) = &self.waiting else { return Poll::Ready(()) };
        std::task::ready!(waiting.poll(cx));
        self.waiting = None;
        Poll::Ready(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(waiting) = &self.waiting else { return self.fifo.give_back(self.want) };
        let mut state = self.fifo.state.lock();
        if waiting.is_granted() {
            state.free += self.want;
        } else {
            state.queue.retain(|other| !Arc::ptr_eq(other, waiting));
        }
        Fifo::serve(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker_ref;

    use super::*;

    fn ready(turn: &mut Turn) -> bool {
        turn.poll(&Context::from_waker(noop_waker_ref())).is_ready()
    }

    #[test]
    fn b05_an_exclusive_turn_waits_for_those_before_it_and_holds_back_those_after_it() {
        let fifo = Fifo::session();
        let mut readers = [fifo.shared(), fifo.shared()];
        assert!(readers.iter_mut().all(ready));
        let mut writer = fifo.exclusive();
        let mut late = fifo.shared();
        assert!(!ready(&mut writer) && !ready(&mut late), "the late reader does not overtake");
        drop(readers);
        assert!(ready(&mut writer) && !ready(&mut late));
        drop(writer);
        assert!(ready(&mut late));
        drop(late);
        assert!(fifo.is_idle());
    }

    #[test]
    fn giving_up_a_place_lets_the_next_one_in() {
        let fifo = Fifo::new(1);
        let first = fifo.shared();
        let second = fifo.shared();
        let mut third = fifo.shared();
        drop(second);
        drop(first);
        assert!(ready(&mut third));
        let granted_unpolled = fifo.shared();
        drop(third);
        drop(granted_unpolled);
        assert!(fifo.is_idle());
    }
}
