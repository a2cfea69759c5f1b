//! An operation's place in the queue of its key, as held by a future of the operation.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::operation::Operation;
use super::shared::SharedWait;
use crate::admit::{HeldKey, QueuedKey};
use crate::path::Path;
use crate::run::Run;
use crate::run::state::{Blocked, Park};
use crate::store::Wants;
use crate::time::Timestamp;

/// Dropping it gives up the place once everything recorded so far is durable. If the run is suspended, held or
/// reloaded, the operation keeps its place and finds it when it is asked for again.
pub(crate) struct KeyClaim {
    run: Arc<Run>,
    path: Path,
    key: Arc<str>,
    queue: Arc<str>,
    location: KeyQueue,
    held: bool,
}

/// Where the queues are kept.
enum KeyQueue {
    /// In this process, which has the store to itself.
    Local(QueuedKey),
    /// In the store, which several workers share.
    Shared(Box<SharedWait>),
}

impl KeyClaim {
    /// Queues for a key, below the bodies around the operation that hold it already. An error names a cycle.
    pub(crate) fn request(
        run: &Arc<Run>,
        path: &Path,
        key: Arc<str>,
        held: Option<&Arc<HeldKey>>,
    ) -> Result<Self, String> {
        let admission = &run.kernel.admission;
        let (queue, around) = HeldKey::queue(&key, held);
        let location = if admission.is_shared {
            run.with(|machine| machine.set_shared_place(path, &key));
            let wants = Wants::Key { key: key.clone(), queue: queue.clone() };
            KeyQueue::Shared(Box::new(SharedWait::new(run, path, wants, around)))
        } else {
            let at = (run.id, path.clone());
            if let Some(next) = admission.keys.withdraw_other(&at, &key) {
                run.kernel.take_up_for_key(next);
            }
            let turn = admission.keys.request((queue.clone(), key.clone()), around, at)?;
            run.with(|machine| machine.set_place(turn.stored(false)));
            KeyQueue::Local(turn)
        };
        Ok(Self { run: run.clone(), path: path.clone(), key, queue, location, held: false })
    }

    /// Ready once the operation holds the key. An error names a cycle.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        if self.held {
            return Poll::Ready(Ok(()));
        }
        match &mut self.location {
            KeyQueue::Local(turn) => {
                std::task::ready!(self.run.kernel.admission.keys.poll(turn, cx));
                self.run.with(|machine| machine.set_place(turn.stored(true)));
            }
            KeyQueue::Shared(shared_wait) => {
                if let Err(cycle) = std::task::ready!(shared_wait.poll(cx)) {
                    return Poll::Ready(Err(cycle));
                }
            }
        }
        self.held = true;
        Poll::Ready(Ok(()))
    }

    /// The key that is waited for, once the operation has a place in its queue.
    pub(crate) fn awaited(&self) -> Option<&Arc<str>> {
        let is_queued = match &self.location {
            KeyQueue::Local(_) => !self.held,
            KeyQueue::Shared(shared_wait) => shared_wait.is_queued(),
        };
        is_queued.then_some(&self.key)
    }

    /// The key in the form in which a body passes it on to its descendants.
    pub(crate) fn hold(&self, outer: Option<Arc<HeldKey>>) -> Arc<HeldKey> {
        HeldKey::new(self.key.clone(), self.queue.clone(), &(self.run.id, self.path.clone()), outer)
    }
}

impl Drop for KeyClaim {
    fn drop(&mut self) {
        let keeps = self.run.keeps_places();
        match &mut self.location {
            KeyQueue::Local(turn) if keeps => self.run.kernel.admission.keys.detach(turn),
            KeyQueue::Local(turn) => self.run.leave_queue(turn.clone()),
            KeyQueue::Shared(_) if keeps => {}
            KeyQueue::Shared(shared_wait) => {
                shared_wait.withdraw_if_asked();
                self.run.with(|machine| machine.leave_places(&self.path));
            }
        }
    }
}

/// The park that lists an operation that waits for its key.
pub(super) fn waits_for_key(run: &Run, op: &Operation, key: &Arc<str>, until: Option<Timestamp>) -> Park {
    let (path, operation, on) = (op.path.clone(), op.describe(), Blocked::Key { key: key.clone() });
    Park { path, operation, on, since: run.now(), until }
}
