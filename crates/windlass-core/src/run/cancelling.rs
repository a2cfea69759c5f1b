//! Cancelling a run, or a part of it: which runs and operations are told, and what follows.

use std::sync::atomic::Ordering;

use super::Run;
use super::machine::Machine;
use super::record::{Event, OpKind, Record};
use crate::id::RunId;
use crate::path::Path;
use crate::store::Message;
use crate::time::Timestamp;
use crate::tool::ToolError;

/// The cancellations that reached a run, and what is needed to tell which operations are told.
#[derive(Default)]
pub(super) struct Cancels {
    all: Vec<Cancel>,
}

/// A cancellation of a run, or of a part of it.
struct Cancel {
    /// Everything below this path is cancelled.
    scope: Path,
    reason: String,
    /// The operations that have received it. What their bodies ask for from then on is part of cleaning up.
    received: Vec<Path>,
    /// The time for cleaning up counts from here, even across restarts of the process.
    at: Timestamp,
}

impl Cancel {
    fn covers(&self, path: &Path) -> bool {
        path.positions().starts_with(self.scope.positions())
    }

    fn is_received_error(&self, path: &Path, error: &ToolError) -> bool {
        self.covers(path) && matches!(error, ToolError::Cancelled { reason } if *reason == self.reason)
    }

    /// Whether the operation at `path` is part of cleaning up: its body, or one that called that body, has received the
    /// cancellation in an earlier operation. The other members of a group run beside the one that received it, and are
    /// told themselves.
    fn is_cleaning_up(&self, path: &Path, groups: &[Path]) -> bool {
        self.received.iter().any(|received| {
            let shared = shared_depth(path, received);
            let body = &path.positions()[..shared];
            shared < path.depth().min(received.depth()) && !groups.iter().any(|group| group.positions() == body)
        })
    }

    fn receive(&mut self, path: &Path) {
        if !self.received.contains(path) {
            self.received.push(path.clone());
        }
    }
}

fn shared_depth(one: &Path, other: &Path) -> usize {
    one.positions().iter().zip(other.positions()).take_while(|(one, other)| one == other).count()
}

impl Cancels {
    /// Adds a cancellation of everything below `scope`.
    pub(super) fn add(&mut self, scope: Path, reason: String, at: Timestamp) {
        self.all.push(Cancel { scope, reason, received: Vec::new(), at });
    }

    fn of_run(&self) -> Option<&Cancel> {
        self.all.iter().find(|cancel| cancel.scope.is_root())
    }

    /// Whether this error means that the operation at `path` received a cancellation of this run. Other runs can be
    /// cancelled too, and waits that lost a race also end as cancelled.
    pub(super) fn is_received(&self, path: &Path, error: &ToolError) -> bool {
        self.all.iter().any(|cancel| cancel.is_received_error(path, error))
    }

    /// Takes the recorded end of an operation into account.
    pub(super) fn note_end(&mut self, path: &Path, error: &ToolError) {
        let mut received = self.all.iter_mut().filter(|cancel| cancel.is_received_error(path, error));
        if let Some(cancel) = received.next() {
            cancel.receive(path);
        }
    }

    #[cfg(test)]
    pub(super) fn is_unreceived(&self) -> bool {
        self.all.iter().all(|cancel| cancel.received.is_empty())
    }

    /// The reasons, for which waits ended without an answer.
    pub(super) fn reasons(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|cancel| cancel.reason.as_str())
    }
}

impl Run {
    /// Whether there is a cancellation, of the run or of a part of it.
    fn has_cancels(&self) -> bool {
        self.cancels.load(Ordering::Acquire) > 0
    }

    /// Whether an operation that is asked for now ends on a cancellation. It does not if it is part of cleaning up
    /// after one.
    pub(crate) fn heeds_cancel(&self, path: &Path) -> bool {
        !self.has_cancels() || self.with(|machine| machine.heeds_cancel(path))
    }

    /// Whether the operation at `path` was cancelled.
    pub(crate) fn is_cancelled_at(&self, path: &Path) -> bool {
        self.has_cancels() && self.with(|machine| machine.is_cancelled_at(path))
    }

    /// The error of an attempt at `path` that ended because it was told to stop.
    pub(crate) fn told_to_stop(&self, path: &Path) -> ToolError {
        let unknown = || ToolError::Cancelled { reason: "cancelled".to_owned() };
        self.with(|machine| machine.cancellation(path)).unwrap_or_else(unknown)
    }

    /// The cancellation error of the operation at `path`, if it must end on it.
    pub(crate) fn cancellation(&self, path: &Path, heeds: bool) -> Option<ToolError> {
        if heeds && self.has_cancels() { self.with(|machine| machine.cancellation(path)) } else { None }
    }
}

impl Machine {
    /// Cancels the run, and with it the runs it spawned.
    pub(super) fn cancelled(&mut self, by: String, reason: String, at: Timestamp) {
        if self.is_cancelled() {
            return;
        }
        self.cancels.make().add(Path::root(), reason.clone(), at);
        self.cancel_children(&by, &reason);
        let event = Event::Cancelled { by, reason };
        self.outbox.append(Record { path: Path::root(), at, asked: None, event });
    }

    /// Cancels everything below `path`. Runs that were spawned there continue.
    pub(crate) fn cancel_below(&mut self, path: &Path, reason: String, at: Timestamp) {
        self.cancels.make().add(path.clone(), reason.clone(), at);
        self.outbox.append(Record { path: path.clone(), at, asked: None, event: Event::CancelledBelow { reason } });
    }

    /// When and why everything below `path` was cancelled, without the rest of the run.
    pub(crate) fn cancelled_below(&self, path: &Path) -> Option<(Timestamp, &str)> {
        let all = &self.cancels.get()?.all;
        all.iter().find(|cancel| cancel.scope == *path).map(|cancel| (cancel.at, cancel.reason.as_str()))
    }

    /// Whether an attempt below `path` is in doubt.
    pub(crate) fn has_doubt_below(&self, path: &Path) -> bool {
        self.doubts.iter().any(|doubt| doubt.path.positions().starts_with(path.positions()))
    }

    /// Cancels another run if this one is cancelled. Returns whether it is.
    pub(crate) fn pass_cancellation_on(&mut self, to: RunId) -> bool {
        let Some(cancel) = self.cancels.get().and_then(Cancels::of_run) else { return false };
        let own = self.outbox.run();
        let reason = format!("run {own}, which waits for it, was cancelled: {}", cancel.reason);
        let message = Message::Cancel { by: format!("run {own}"), reason };
        self.outbox.mail(to, message, Some(format!("cancel with {own}").into()));
        true
    }

    /// When the run was cancelled.
    pub(crate) fn cancelled_at(&self) -> Option<Timestamp> {
        self.cancels.get()?.of_run().map(|cancel| cancel.at)
    }

    /// Whether the run was cancelled, not only a part of it.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled_at().is_some()
    }

    /// How many cancellations there are, of the run and of parts of it.
    pub(super) fn cancel_count(&self) -> usize {
        self.cancels.get().map_or(0, |cancels| cancels.all.len())
    }

    /// Remembers groups of operations that run side by side, as long as they do.
    pub(super) fn note_group(&mut self, path: &Path, kind: OpKind) {
        let is_group = matches!(kind, OpKind::Batch | OpKind::Steps | OpKind::Branches | OpKind::First);
        if !is_group || self.groups.contains(path) {
            return;
        }
        // A group is over when its body asks for something else.
        let groups = std::mem::take(&mut self.groups);
        let is_open = |group: &&Path| {
            let shared = shared_depth(group, path);
            let body = &path.positions()[..shared];
            shared == group.depth() || groups.iter().any(|other| other.positions() == body)
        };
        self.groups = groups.iter().filter(is_open).cloned().collect();
        self.groups.push(path.clone());
    }

    /// Whether an operation that is asked for now ends on a cancellation. It does not if it is part of cleaning up after
    /// one.
    pub(super) fn heeds_cancel(&self, path: &Path) -> bool {
        let Some(cancels) = self.cancels.get() else { return true };
        let mut covering = cancels.all.iter().filter(|cancel| cancel.covers(path)).peekable();
        covering.peek().is_none() || covering.any(|cancel| !cancel.is_cleaning_up(path, &self.groups))
    }

    /// The cancellation as the error of the operation at `path`, if it is cancelled. The operation has received it then.
    pub(crate) fn cancellation(&mut self, path: &Path) -> Option<ToolError> {
        let groups = std::mem::take(&mut self.groups);
        let all = self.cancels.get_mut().map(|cancels| cancels.all.iter_mut()).into_iter().flatten();
        let mut own = all.filter(|cancel| cancel.covers(path) && !cancel.is_cleaning_up(path, &groups));
        let error = own.next().map(|cancel| {
            cancel.receive(path);
            ToolError::Cancelled { reason: cancel.reason.clone() }
        });
        self.groups = groups;
        error
    }

    /// Whether the operation at `path` has to end on a cancellation.
    pub(super) fn is_cancelled_at(&self, path: &Path) -> bool {
        let is_own = |cancel: &Cancel| cancel.covers(path) && !cancel.is_cleaning_up(path, &self.groups);
        self.cancels.get().is_some_and(|cancels| cancels.all.iter().any(is_own))
    }
}
