//! The bound on attempts in flight, shared fairly among runs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::fifo::Waiter;
use crate::id::RunId;

/// Limits the attempts at once. Waiting runs are served round-robin, one attempt each, so that a batch of thousands
/// does not delay a single call. Within a run, attempts are served in order of arrival.
pub(crate) struct Permits(Mutex<PermitState>);

struct PermitState {
    capacity: usize,
    free: usize,
    lanes: FxHashMap<RunId, VecDeque<Arc<Waiter>>>,
    order: VecDeque<RunId>,
}

impl Permits {
    pub(crate) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(PermitState {
            capacity,
            free: capacity,
            lanes: FxHashMap::default(),
            order: VecDeque::new(),
        })))
    }

    /// How many attempts are in flight.
    pub(crate) fn in_use(&self) -> usize {
        let state = self.0.lock();
        state.capacity - state.free
    }

    /// Whether no further attempt can start now.
    pub(crate) fn is_full(&self) -> bool {
        self.0.lock().free == 0
    }

    pub(crate) fn request(self: &Arc<Self>, run: RunId) -> Permit {
        let mut state = self.0.lock();
        let waiter = if state.free > 0 {
            state.free -= 1;
            None
        } else {
            let waiter = Waiter::new(1);
            let lane = state.lanes.entry(run).or_default();
            let first = lane.is_empty();
            lane.push_back(waiter.clone());
            if first {
                state.order.push_back(run);
            }
            Some(waiter)
        };
        drop(state);
        Permit { permits: self.clone(), run, waiter }
    }
}

impl PermitState {
    /// Hands a freed permit to the next run in turn.
    fn give_back(&mut self) {
        let Some(run) = self.order.pop_front() else {
            self.free += 1;
            return;
        };
        let Some(lane) = self.lanes.get_mut(&run) else { return self.give_back() };
        if let Some(first) = lane.pop_front() {
            first.grant();
        }
        if lane.is_empty() {
            self.lanes.remove(&run);
        } else {
            self.order.push_back(run);
        }
    }

    fn forget(&mut self, run: RunId, waiter: &Arc<Waiter>) {
        let Some(lane) = self.lanes.get_mut(&run) else { return };
        lane.retain(|other| !Arc::ptr_eq(other, waiter));
        if lane.is_empty() {
            self.lanes.remove(&run);
            self.order.retain(|other| *other != run);
        }
    }
}

/// A request for a permit: first queued, then granted. Dropping it withdraws the request or returns the permit.
pub(crate) struct Permit {
    permits: Arc<Permits>,
    run: RunId,
    waiter: Option<Arc<Waiter>>,
}

impl Permit {
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        let Some(waiter) = &self.waiter else { return Poll::Ready(()) };
        std::task::ready!(waiter.poll(cx));
        self.waiter = None;
        Poll::Ready(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.permits.0.lock();
        match &self.waiter {
            Some(waiter) if !waiter.is_granted() => state.forget(self.run, waiter),
            _ => state.give_back(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker_ref;

    use super::*;

    #[test]
    fn e09_a_large_batch_does_not_starve_another_run() {
        let permits = Permits::new(1);
        let (big, small) = (RunId::from_bytes([1; 16]), RunId::from_bytes([2; 16]));
        let mut held = permits.request(big);
        let mut queue: Vec<(RunId, Permit)> = (0..100).map(|_| (big, permits.request(big))).collect();
        queue.push((small, permits.request(small)));
        let cx = Context::from_waker(noop_waker_ref());
        let mut served = Vec::new();
        assert!(held.poll(&cx).is_ready());
        for _ in 0..3 {
            drop(std::mem::replace(&mut held, permits.request(big)));
            let next = queue.iter_mut().position(|(_, permit)| permit.poll(&cx).is_ready()).unwrap();
            let (run, permit) = queue.remove(next);
            served.push(run);
            held = permit;
        }
        assert_eq!(served, [big, small, big], "the small run is served in turn, not after the hundred");
        drop(queue);
        drop(held);
        assert_eq!(permits.0.lock().free, 1);
    }
}
