//! Admission for the workers that share the store in memory.

use futures_util::future::BoxFuture;
use parking_lot::MutexGuard;

use super::super::{KeyPlace, Message, SharedAdmission, Slot, SlotRequest, StoreError, Verdict, WaitRequest, Wants};
use super::{Inner, MemoryStore, ready};
use crate::admit::queues::OpAddress;
use crate::id::{RunId, WorkerId};
use crate::path::Path;
use crate::time::Timestamp;

impl Inner {
    fn decide(&mut self, request: WaitRequest) -> Result<Verdict, StoreError> {
        let WaitRequest { run, epoch, path, wants, held } = request;
        let entry = self.runs.get(&run).ok_or(StoreError::NoSuchRun(run))?;
        if entry.is_finished() {
            return Err(StoreError::Finished(run));
        }
        if entry.epoch != epoch {
            return Err(StoreError::Stale { run, epoch, current: entry.epoch });
        }
        let refused = entry.refusals.iter().find(|(at, wanted, _)| *at == path && *wanted == wants);
        if let Some((_, _, why)) = refused {
            return Ok(Verdict::Refused(why.clone()));
        }
        let at = (run, path);
        // The code of the operation may have changed and ask for another queue than before.
        if let (Some(place), Wants::Key { queue, .. }) = (self.queues.get(&at), &wants)
            && place.queue != *queue
            && let Some(next) = self.queues.leave(&at)
        {
            self.notify_granted(next);
        }
        let decided = match &wants {
            Wants::Key { key, queue } => {
                self.queues.request(&at, (queue.clone(), key.clone()), held).map(|place| self.queues.is_first(&place))
            }
            Wants::End(awaited) => self.queues.await_end(&at, *awaited, held).map(|()| true),
        };
        Ok(match decided {
            Ok(true) => Verdict::Granted,
            Ok(false) => Verdict::Queued,
            Err(why) => {
                if let Some(entry) = self.runs.get_mut(&run) {
                    entry.refusals.push((at.1, wants, why.clone()));
                }
                Verdict::Refused(why)
            }
        })
    }

    /// Removes the operations of a run at or below a path from the queues, and notifies the runs whose operations get
    /// the keys.
    pub(super) fn leave_queues(&mut self, run: RunId, path: &Path) {
        for next in self.queues.leave_below(run, path) {
            self.notify_granted(next);
        }
    }

    fn notify_granted(&mut self, (run, path): OpAddress) {
        let Some(entry) = self.runs.get(&run) else { return };
        let generation = entry.generation();
        self.deliver(run, Message::Key { path, generation }, None);
        self.granted.push(run);
    }

    /// The queue positions of a run's operations, for its next owner.
    pub(super) fn places_of(&self, run: RunId) -> Vec<KeyPlace> {
        let key_place = |(at, place): (&OpAddress, &crate::admit::queues::QueuePlace)| KeyPlace {
            path: at.1.clone(),
            key: place.key.clone(),
            ticket: place.ticket,
            held: self.queues.is_first(place),
        };
        self.queues.of(run).map(key_place).collect()
    }

    fn expire_slots(&mut self, now: Timestamp) {
        let leases = &self.leases;
        self.slots.expire(|worker| leases.get(&worker).is_none_or(|until| *until <= now));
    }
}

impl MemoryStore {
    /// Notifies the runs that were granted a key.
    fn notify(&self, mut inner: MutexGuard<'_, Inner>) {
        let granted = std::mem::take(&mut inner.granted);
        drop(inner);
        self.hooks.notify(&granted);
    }
}

impl SharedAdmission for MemoryStore {
    fn request(&self, request: WaitRequest) -> BoxFuture<'_, Result<Verdict, StoreError>> {
        let mut inner = self.inner.lock();
        let verdict = inner.decide(request);
        self.notify(inner);
        ready(verdict)
    }

    fn withdraw(&self, run: RunId, path: Path) -> BoxFuture<'_, Result<(), StoreError>> {
        let mut inner = self.inner.lock();
        if let Some(next) = inner.queues.leave(&(run, path)) {
            inner.notify_granted(next);
        }
        self.notify(inner);
        ready(Ok(()))
    }

    fn enter(&self, request: SlotRequest) -> BoxFuture<'_, Result<Slot, StoreError>> {
        let (now, mut inner) = (self.clock.now(), self.inner.lock());
        inner.expire_slots(now);
        // A slot ends with the lease of its worker, so a worker without one would keep it for ever after its death.
        if inner.leases.get(&request.worker).is_none_or(|until| *until <= now) {
            let why =
                "an attempt slot needs a worker with a lease; it is granted once the worker has renewed its lease";
            return ready(Err(StoreError::Unavailable(why.to_owned())));
        }
        ready(Ok(inner.slots.enter(request, now)))
    }

    fn leave(&self, worker: WorkerId, slot: u64) -> BoxFuture<'_, Result<(), StoreError>> {
        let (now, mut inner) = (self.clock.now(), self.inner.lock());
        inner.expire_slots(now);
        let granted = inner.slots.leave(worker, slot, now);
        drop(inner);
        self.hooks.notify(&granted);
        ready(Ok(()))
    }
}
