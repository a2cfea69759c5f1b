//! An operation's place in the queue of its key, for as long as a future of the operation has it.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::operation::Operation;
use crate::admit::{Held, KeyTurn};
use crate::path::Path;
use crate::run::Run;
use crate::run::state::{Blocked, Park};
use crate::time::Timestamp;

/// Dropping it gives up the place once everything that the run has said so far is durable. A run that is suspended, held or
/// reloaded keeps it: its operation is asked for again, and finds it.
pub(crate) struct Key {
    run: Arc<Run>,
    turn: KeyTurn,
    held: bool,
}

impl Key {
    /// Queues for a key, below the bodies around the operation that hold it already. An error names a cycle.
    pub(crate) fn request(
        run: &Arc<Run>,
        path: &Path,
        key: Arc<str>,
        held: Option<&Arc<Held>>,
    ) -> Result<Self, String> {
        let (keys, at) = (&run.kernel.admission.keys, (run.id, path.clone()));
        if let Some(next) = keys.withdraw_other(&at, &key) {
            run.kernel.nudge(next);
        }
        let turn = keys.request(key, held, at)?;
        run.with(|machine| machine.set_place(turn.stored(false)));
        Ok(Self { run: run.clone(), turn, held: false })
    }

    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        if !self.held {
            std::task::ready!(self.run.kernel.admission.keys.poll(&self.turn, cx));
            self.held = true;
            self.run.with(|machine| machine.set_place(self.turn.stored(true)));
        }
        Poll::Ready(())
    }

    /// The key that is still waited for.
    pub(crate) fn awaited(&self) -> Option<&Arc<str>> {
        (!self.held).then(|| self.turn.key())
    }

    /// The key as a body has it that is about to hold it.
    pub(crate) fn hold(&self, outer: Option<Arc<Held>>) -> Arc<Held> {
        self.turn.hold(outer)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        if self.run.keeps_places() {
            return self.run.kernel.admission.keys.rest(&self.turn);
        }
        self.run.leave_queue(self.turn.clone());
    }
}

/// What is shown of an operation that queues for its key.
pub(super) fn waits_for_key(run: &Run, op: &Operation, key: &Arc<str>, until: Option<Timestamp>) -> Park {
    let (path, operation, on) = (op.path.clone(), op.describe(), Blocked::Key { key: key.clone() });
    Park { path, operation, on, since: run.now(), until }
}
