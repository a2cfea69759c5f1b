//! Checking a journal against the code without doing anything: what the journal knows answers, what it does not know stays
//! unanswered, and whatever would hold the run is found on the way.

use super::machine::{Machine, Stop};
use super::record::{Event, Record};
use super::replay::Decision;
use super::state::Hold;
use crate::path::Path;

/// How far a check came.
#[derive(Default)]
pub(crate) struct Checking {
    /// Operations the journal does not answer.
    unknown: Vec<Path>,
}

/// What a journal and the code of today make of each other.
#[derive(Clone, Debug, PartialEq)]
pub enum Check {
    /// They fit, as far as the journal goes.
    Fits {
        /// The first operation that the journal does not answer; `None` if the body comes to its end.
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

    /// Leaves an operation alone that could only go on by doing something, where nothing may be done: the journal is only
    /// checked, or the run is stopped. Some operations are over before their body could be stopped.
    pub(super) fn leave_alone(&mut self, path: &Path, decision: Decision) -> Decision {
        match (&mut self.checking, decision) {
            (_, decision @ Decision::Diverged(_)) => decision,
            (_, decision) if self.stop.is_some() => Decision::Checked(Box::new(decision)),
            (None, decision) => decision,
            (_, decision @ (Decision::Answer { .. } | Decision::Enter)) => decision,
            (Some(checking), decision) => {
                checking.unknown.push(path.clone());
                Decision::Checked(Box::new(decision))
            }
        }
    }

    /// What the check came to.
    pub(crate) fn checked(&self) -> Check {
        match self.stop() {
            Some(Stop::Held(hold)) => Check::Held((**hold).clone()),
            _ => Check::Fits {
                up_to: self.checking.as_ref().and_then(|checking| checking.unknown.iter().min().cloned()),
            },
        }
    }
}

/// The journal as the code is checked against it: a finished run is entered once more, and deaths do not count.
pub(crate) fn checkable(mut journal: Vec<Record>) -> Vec<Record> {
    let entered = journal.iter().any(|record| record.path.is_root() && matches!(record.event, Event::Entered));
    journal.retain(|record| match record.event {
        Event::Recovered | Event::Cancelled { .. } => false,
        Event::Finished(_) => !(entered && record.path.is_root()),
        _ => true,
    });
    journal
}
