//! Cancelling a run: which runs and operations are told, and what follows.

use super::machine::Machine;
use super::record::{Event, Record};
use crate::id::RunId;
use crate::path::Path;
use crate::store::Message;
use crate::time::Timestamp;
use crate::tool::ToolError;

/// A cancellation that reached the run.
pub(super) struct Cancel {
    pub(super) reason: String,
    /// Whether an operation has received it. From then on the body cleans up undisturbed.
    pub(super) delivered: bool,
    /// The time for cleaning up counts from here, even across restarts of the process.
    pub(super) at: Timestamp,
}

impl Machine {
    /// Cancels the run, and with it the runs it spawned.
    pub(super) fn cancelled(&mut self, by: String, reason: String, at: Timestamp) {
        if self.cancel.is_some() {
            return;
        }
        self.cancel = Some(Cancel { reason: reason.clone(), delivered: false, at });
        self.cancel_children(&by, &reason);
        let event = Event::Cancelled { by, reason };
        self.outbox.append(Record { path: Path::root(), at, asked: None, event });
    }

    /// Cancels another run if this one is cancelled. Returns whether it is.
    pub(crate) fn pass_cancellation_on(&mut self, to: RunId) -> bool {
        let Some(cancel) = &self.cancel else { return false };
        let own = self.outbox.run();
        let reason = format!("run {own}, which waits for it, was cancelled: {}", cancel.reason);
        let message = Message::Cancel { by: format!("run {own}"), reason };
        self.outbox.mail(to, message, Some(format!("cancel with {own}").into()));
        true
    }

    /// When the run was cancelled.
    pub(crate) fn cancelled_at(&self) -> Option<Timestamp> {
        self.cancel.as_ref().map(|cancel| cancel.at)
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_some()
    }

    /// Whether an operation has received the cancellation. Operations requested from then on are part of cleaning up.
    pub(crate) fn is_cleaning_up(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.delivered)
    }

    /// The cancellation as the error of an operation.
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
