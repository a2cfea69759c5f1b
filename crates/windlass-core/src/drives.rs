//! Which runs of a store a runtime drives: all, its own, or none.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::id::RunId;

/// Which runs of the store a runtime drives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drives {
    /// All: also the runs that earlier processes left, and every run that becomes due.
    #[default]
    All,
    /// The runs that are called, started or resumed through it, and the runs that those spawn. The others are not
    /// claimed: they stay as they are for the next process.
    Own,
    /// None. Runs can be inspected and sent messages, and new runs wait in the store for a process that drives them.
    Nothing,
}

/// The same, with the runs that are its own so far.
pub(crate) enum DriveScope {
    All,
    /// It only grows: such a runtime exists for one command.
    Own(Mutex<BTreeSet<RunId>>),
    Nothing,
}

impl From<Drives> for DriveScope {
    fn from(drives: Drives) -> Self {
        match drives {
            Drives::All => Self::All,
            Drives::Own => Self::Own(Mutex::default()),
            Drives::Nothing => Self::Nothing,
        }
    }
}

impl DriveScope {
    /// Whether any run is driven.
    pub(crate) fn any(&self) -> bool {
        !matches!(self, Self::Nothing)
    }

    /// Whether this run is driven.
    pub(crate) fn includes(&self, run: RunId) -> bool {
        match self {
            Self::All => true,
            Self::Own(own) => own.lock().contains(&run),
            Self::Nothing => false,
        }
    }

    /// Adds a run to its own. Returns whether that is news.
    pub(crate) fn add(&self, run: RunId) -> bool {
        match self {
            Self::Own(own) => own.lock().insert(run),
            Self::All | Self::Nothing => false,
        }
    }
}
