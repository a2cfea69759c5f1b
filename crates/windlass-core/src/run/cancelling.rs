//! Cancelling a run: who is told, and what comes after that.

use super::machine::Machine;
use super::parks;
use super::record::{Event, Record};
use crate::path::Path;
use crate::time::Timestamp;
use crate::tool::ToolError;

/// A cancellation that reached the run.
pub(super) struct Cancel {
    pub(super) reason: String,
    /// Whether an operation has been told; afterwards the body cleans up undisturbed.
    pub(super) delivered: bool,
    /// The time for cleaning up counts from here, whatever happens to the process.
    pub(super) at: Timestamp,
}

impl Machine {
    /// Somebody cancels the run, and with it the runs it spawned.
    pub(super) fn cancelled(&mut self, by: String, reason: String, at: Timestamp) {
        if self.cancel.is_some() {
            return;
        }
        self.cancel = Some(Cancel { reason: reason.clone(), delivered: false, at });
        for (child, message) in parks::cancelled_with(&self.children, &by, &reason) {
            self.outbox.mail(child, message, None);
        }
        let event = Event::Cancelled { by, reason };
        self.outbox.append(Record { path: Path::root(), at, asked: None, event });
    }

    /// When the run was cancelled.
    pub(crate) fn cancelled_at(&self) -> Option<Timestamp> {
        self.cancel.as_ref().map(|cancel| cancel.at)
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_some()
    }

    /// Whether an operation was told of the cancellation: what is asked for from then on cleans up.
    pub(crate) fn is_cleaning_up(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.delivered)
    }

    /// The cancellation an operation is told.
    pub(crate) fn cancellation(&mut self) -> ToolError {
        let reason = match &mut self.cancel {
            Some(cancel) => {
                cancel.delivered = true;
                cancel.reason.clone()
            }
            None => "cancelled".to_owned(),
        };
        ToolError::Cancelled { reason }
    }
}
