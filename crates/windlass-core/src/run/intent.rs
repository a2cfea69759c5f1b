//! Attempts in flight that must not be repeated, and the settlements of people about them.

use std::sync::Arc;

use super::record::{Asked, DoubtCause, Event, Finished, OpKind, Settled, Settler};
use super::state::Doubt;
use crate::path::Path;
use crate::store::Settlement;
use crate::time::{Times, Timestamp};
use crate::tool::Effect;

/// An attempt that must not be repeated and has not ended.
pub(super) struct Intent {
    pub(super) path: Path,
    pub(super) attempt: u32,
    pub(super) operation: Option<(OpKind, Arc<str>)>,
    pub(super) over_by: Timestamp,
    pub(super) since: Timestamp,
}

impl Intent {
    /// The doubt it becomes if the run ends around it.
    pub(super) fn doubt(self) -> Doubt {
        let describe = |(kind, name)| Asked::operation(kind, name, None, Effect::Once).to_string();
        Doubt {
            path: self.path,
            attempt: self.attempt,
            operation: self.operation.map(describe).unwrap_or_default(),
            cause: DoubtCause::Cancelled,
            over_by: self.over_by,
            since: self.since,
            said: None,
        }
    }
}

/// A settlement from the mailbox.
pub(crate) struct SettleMail {
    pub(crate) settlement: Settlement,
    pub(crate) by: String,
    pub(crate) reason: String,
}

impl SettleMail {
    /// The event that records it when no body waits for it.
    pub(super) fn annotation(self, doubt: &Doubt) -> Event {
        let (attempt, by, reason) = (doubt.attempt, Settler::Person(self.by), self.reason);
        let result = match self.settlement {
            Settlement::DidNotHappen => return Event::Settled { attempt, by, reason },
            Settlement::Happened(result) => result,
            Settlement::GiveUp => Err(Arc::new(doubt.given_up(&by, &reason))),
        };
        let settled = Some(Box::new(Settled { by, reason }));
        Event::Finished(Finished { result, told: None, attempts: attempt, times: Times::default(), settled })
    }
}
