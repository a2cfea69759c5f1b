//! A weighted semaphore that serves strictly in order of arrival.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// The units of a session's queue: a parallel attempt takes one unit, an exclusive one takes all.
const SESSION_UNITS: u32 = 1 << 20;

pub(crate) struct Fifo {
    capacity: u32,
    state: Mutex<FifoState>,
}

struct FifoState {
    free: u32,
    queue: VecDeque<Arc<Waiter>>,
}

/// A waiter in a queue.
pub(super) struct Waiter {
    want: u32,
    state: Mutex<WaiterState>,
}

enum WaiterState {
    Queued(Option<Waker>),
    Granted,
}

impl Waiter {
    pub(super) fn new(want: u32) -> Arc<Self> {
        Arc::new(Self { want, state: Mutex::new(WaiterState::Queued(None)) })
    }

    pub(super) fn grant(&self) {
        if let WaiterState::Queued(Some(waker)) = std::mem::replace(&mut *self.state.lock(), WaiterState::Granted) {
            waker.wake();
        }
    }

    pub(super) fn is_granted(&self) -> bool {
        matches!(*self.state.lock(), WaiterState::Granted)
    }

    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        match &mut *self.state.lock() {
            WaiterState::Granted => Poll::Ready(()),
            WaiterState::Queued(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Fifo {
    pub(crate) fn new(capacity: u32) -> Arc<Self> {
        Arc::new(Self { capacity, state: Mutex::new(FifoState { free: capacity, queue: VecDeque::new() }) })
    }

    pub(crate) fn session() -> Arc<Self> {
        Self::new(SESSION_UNITS)
    }

    /// Requests one unit.
    pub(crate) fn shared(self: &Arc<Self>) -> FifoRequest {
        self.request(1)
    }

    /// Requests all units.
    pub(crate) fn exclusive(self: &Arc<Self>) -> FifoRequest {
        self.request(self.capacity)
    }

    fn request(self: &Arc<Self>, want: u32) -> FifoRequest {
        let mut state = self.state.lock();
        let waiter = if state.queue.is_empty() && state.free >= want {
            state.free -= want;
            None
        } else {
            let waiter = Waiter::new(want);
            state.queue.push_back(waiter.clone());
            Some(waiter)
        };
        drop(state);
        FifoRequest { fifo: self.clone(), want, waiter }
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

    fn serve(state: &mut FifoState) {
        while let Some(first) = state.queue.front()
            && first.want <= state.free
        {
            state.free -= first.want;
            first.grant();
            state.queue.pop_front();
        }
    }
}

/// A request for units: first queued, then granted. Dropping it withdraws the request or returns the units.
pub(crate) struct FifoRequest {
    fifo: Arc<Fifo>,
    want: u32,
    waiter: Option<Arc<Waiter>>,
}

impl FifoRequest {
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        let Some(waiter) = &self.waiter else { return Poll::Ready(()) };
        std::task::ready!(waiter.poll(cx));
        self.waiter = None;
        Poll::Ready(())
    }
}

impl Drop for FifoRequest {
    fn drop(&mut self) {
        let Some(waiter) = &self.waiter else { return self.fifo.give_back(self.want) };
        let mut state = self.fifo.state.lock();
        if waiter.is_granted() {
            state.free += self.want;
        } else {
            state.queue.retain(|other| !Arc::ptr_eq(other, waiter));
        }
        Fifo::serve(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker_ref;

    use super::*;

    fn ready(turn: &mut FifoRequest) -> bool {
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
    fn dropping_a_request_serves_the_next_one() {
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
