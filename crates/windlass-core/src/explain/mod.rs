//! Why is it not running? One sentence for every run, and what would move it.

mod look;
mod sentence;

use std::sync::Arc;

use serde::Serialize;

pub(crate) use look::Looker;

use crate::id::RunId;
use crate::path::Path;
use crate::run::record::DoubtCause;
use crate::run::state::{Blocked, Ending, Hold, RunState};
use crate::time::Timestamp;
use crate::tool::Layers;
use crate::tool::view::Failure;

/// Where a run stands and what would move it, for people and for programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Which run.
    pub run: RunId,
    /// What it runs.
    pub tool: Arc<str>,
    /// Where it stands.
    pub state: RunState,
    /// The layers it was called through; nothing where its journal cannot be read any more.
    #[serde(skip_serializing_if = "Layers::is_empty")]
    pub layers: Layers,
    /// Everything below in one sentence.
    pub sentence: String,
    /// What would move it. A run that is over has nothing here, an unfinished one at least one thing.
    pub moves: Vec<Move>,
}

/// One thing that would move a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Move {
    /// What stands still there; `/` for the run itself.
    pub path: Path,
    /// What is the case, and who or what changes it.
    pub sentence: String,
    /// The same for programs.
    #[serde(flatten)]
    pub why: Why,
}

/// Why something does not go on, or that it does.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// Nobody has taken the run up yet.
    Queued {
        /// The session whose earlier turns it may have to wait for.
        session: Option<Arc<str>>,
        /// Older runs of that session that are not finished.
        behind: Vec<RunId>,
    },
    /// A process died with it before: it waits until the other such runs have been driven.
    Suspect,
    /// An attempt is being made.
    Attempt {
        /// What is attempted.
        operation: String,
        /// Which attempt.
        attempt: u32,
        /// Since when.
        since: Timestamp,
        /// It is over by then, where that is recorded.
        over_by: Option<Timestamp>,
    },
    /// It is at work: an attempt that leaves no record runs, or queues for its turn.
    AtWork {
        /// What is at work.
        operation: String,
        /// Since when.
        since: Timestamp,
    },
    /// It waits.
    Waits {
        /// What was asked for.
        operation: String,
        /// What for.
        on: Blocked,
        /// Since when.
        since: Timestamp,
        /// When it stops waiting, whatever happens.
        until: Option<Timestamp>,
        /// Of a wait for another run: what that one waits for.
        child: Option<Box<Explanation>>,
    },
    /// Whether an attempt happened is not known.
    InDoubt {
        /// What was attempted.
        operation: String,
        /// Which attempt.
        attempt: u32,
        /// Why it is not known.
        cause: DoubtCause,
        /// "It did not happen" is believed from then on.
        over_by: Timestamp,
        /// What the attempt itself said of that.
        #[serde(skip_serializing_if = "Option::is_none")]
        said: Option<Arc<str>>,
    },
    /// It queues for a key.
    Key {
        /// Which.
        key: Arc<str>,
        /// Which call of which run has it, where that is known.
        holder: Option<(RunId, Path)>,
    },
    /// It was cancelled and cleans up.
    CleaningUp {
        /// Who cancelled it.
        by: String,
        /// Why.
        reason: String,
        /// What is left of it is dropped then.
        until: Timestamp,
    },
    /// It is held.
    Held {
        /// Why.
        hold: Hold,
    },
    /// Nobody here drives it.
    Elsewhere,
}

/// How a finished run ended.
pub(crate) struct End {
    pub(crate) ending: Ending,
    pub(crate) failure: Option<Failure>,
}
