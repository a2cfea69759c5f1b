//! Checking a journal against the code without performing anything. Recorded operations are answered, operations
//! without a record stay unanswered, and whatever would hold the run is found on the way.

use super::machine::{Machine, Stop};
use super::record::{Event, Record};
use super::replay::Decision;
use super::state::Hold;
use crate::path::Path;

/// The progress of a check.
#[derive(Default)]
pub(crate) struct Checking {
    /// Operations that the journal does not answer.
    unknown: Vec<Path>,
}

/// The result of checking a journal against today's code.
#[derive(Clone, Debug, PartialEq)]
pub enum Check {
    /// They fit, as far as the journal goes.
    Fits {
        /// The first operation that the journal does not answer; `None` if the body reaches its end.
        up_to: Option<Path>,
    },
    /// The run would be held.
    Held(Hold),
}

impl Machine {
    /// From now on nothing is performed.
    pub(crate) fn check_only(&mut self) {
        self.checking = Some(Checking::default());
    }

    pub(crate) fn only_checks(&self) -> bool {
        self.checking.is_some()
    }

    /// Replaces a decision that would perform something where nothing may be performed, because the journal is only
    /// checked or the run is stopped. Some operations are already over when their body could be stopped.
    pub(super) fn suppress_effects(&mut self, path: &Path, decision: Decision) -> Decision {
        match (&mut self.checking, decision) {
            (_, decision @ Decision::Diverged(_)) => decision,
            (_, decision) if self.stop.is_some() => Decision::Skipped(Box::new(decision)),
            (None, decision) => decision,
            (_, decision @ (Decision::Answer { .. } | Decision::Enter)) => decision,
            (Some(checking), decision) => {
                checking.unknown.push(path.clone());
                Decision::Skipped(Box::new(decision))
            }
        }
    }

    /// The result of the check.
    pub(crate) fn checked(&self) -> Check {
        match self.stop() {
            Some(Stop::Held(hold)) => Check::Held((**hold).clone()),
            _ => Check::Fits {
                up_to: self.checking.as_ref().and_then(|checking| checking.unknown.iter().min().cloned()),
            },
        }
    }
}

/// The journal as a check uses it: a finished run is entered once more, and deaths do not count.
pub(crate) fn checkable(mut journal: Vec<Record>) -> Vec<Record> {
    let entered = journal.iter().any(|record| record.path.is_root() && matches!(record.event, Event::Entered));
    journal.retain(|record| match record.event {
        Event::Recovered | Event::Cancelled { .. } | Event::CancelledBelow { .. } => false,
        Event::Finished(_) => !(entered && record.path.is_root()),
        _ => true,
    });
    journal
}
