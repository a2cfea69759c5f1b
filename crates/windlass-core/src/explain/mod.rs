//! Answers "why is it not running?": one sentence for every run, and what would make it continue.

mod look;
mod sentence;

use std::sync::Arc;

use serde::Serialize;

pub(crate) use look::Explainer;

use crate::id::RunId;
use crate::path::Path;
use crate::run::record::DoubtCause;
use crate::run::state::{Blocked, Ending, Hold, RunState};
use crate::time::Timestamp;
use crate::tool::Layers;
use crate::tool::view::Failure;

/// The state of a run and what would make it continue, for people and for programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The run.
    pub run: RunId,
    /// The id of its tool, or `batch`.
    pub tool: Arc<str>,
    /// Its state.
    pub state: RunState,
    /// The layers it was called through; empty if its journal is no longer kept or cannot be read.
    #[serde(skip_serializing_if = "Layers::is_empty")]
    pub layers: Layers,
    /// Who it acts for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<Arc<str>>,
    /// What caused it, as given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Arc<str>>,
    /// Everything below in one sentence.
    pub sentence: String,
    /// What would make it continue. Empty for a finished run; usually at least one entry for an unfinished run.
    pub moves: Vec<Move>,
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.sentence)
    }
}

/// One reason why a run waits or is busy, and what would make it continue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Move {
    /// The operation that waits or is in progress; `/` for the run itself.
    pub path: Path,
    /// What is the case, and who or what changes it.
    pub sentence: String,
    /// The idempotency key of the operation's attempts, where one was made, or is being made, that may have changed
    /// something outside. The outside system knows them by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// The reason, for programs.
    #[serde(flatten)]
    pub why: Why,
}

/// Why an operation or a run waits, or that it is in progress.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// No worker has claimed the run yet.
    Queued {
        /// Its session. If the run is a turn, it waits for the earlier turns of the session.
        session: Option<Arc<str>>,
        /// Older runs of that session that have not ended.
        behind: Vec<RunId>,
        /// The number of such runs that are not named, because they act for other principals.
        others: u64,
    },
    /// A process died while driving the run, so it is driven alone: it waits for the other interrupted runs.
    Suspect,
    /// An attempt is running.
    Attempt {
        /// The operation.
        operation: String,
        /// The number of the attempt, counted from one.
        attempt: u32,
        /// When it started.
        since: Timestamp,
        /// When it is over at the latest, if that is recorded.
        over_by: Option<Timestamp>,
    },
    /// The operation runs without a recorded attempt, or is queued for a permit.
    AtWork {
        /// The operation.
        operation: String,
        /// When it started.
        since: Timestamp,
    },
    /// The operation waits.
    Waits {
        /// The operation.
        operation: String,
        /// What it waits for.
        on: Blocked,
        /// Since when it waits.
        since: Timestamp,
        /// When the wait times out.
        until: Option<Timestamp>,
        /// For a wait for another run: the explanation of that run.
        child: Option<Box<Explanation>>,
    },
    /// It is unknown whether an attempt took effect.
    InDoubt {
        /// The operation.
        operation: String,
        /// The number of the attempt, counted from one.
        attempt: u32,
        /// Why it is unknown.
        cause: DoubtCause,
        /// When the settlement "it did not happen" takes effect at the latest.
        over_by: Timestamp,
        /// What the attempt itself reported about the doubt.
        #[serde(skip_serializing_if = "Option::is_none")]
        said: Option<Arc<str>>,
    },
    /// The operation is queued for a key.
    Key {
        /// The key.
        key: Arc<str>,
        /// The run and the path of the call that holds the key, if they are known.
        holder: Option<(RunId, Path)>,
        /// Whether the holder is not named, because it acts for another principal.
        other_principal: bool,
    },
    /// The operation waits for the circuit breaker of its target.
    Breaker {
        /// The target.
        target: Arc<str>,
        /// When an attempt is let through; `None` if it waits for an attempt that tests the target.
        until: Option<Timestamp>,
    },
    /// The run was cancelled and is cleaning up.
    CleaningUp {
        /// Who cancelled it.
        by: String,
        /// The reason that was given.
        reason: String,
        /// When the clean-up is stopped.
        until: Timestamp,
    },
    /// The run is held.
    Held {
        /// Why it is held, and what to do.
        hold: Hold,
    },
    /// This process does not drive the run.
    Elsewhere,
    /// The process that drove the run is gone, and this process leaves the run alone.
    OwnerGone,
    /// What the run waits for depends on another run, which this process leaves alone.
    NotDriven {
        /// The other run; `None` if it is not named, because it acts for another principal.
        run: Option<RunId>,
    },
    /// A message is in the run's mailbox, and this process leaves the run alone.
    InMailbox {
        /// The message, such as `the approval by ada`.
        message: String,
    },
}

/// How a finished run ended.
pub(crate) struct RunEnd {
    pub(crate) ending: Ending,
    pub(crate) failure: Option<Failure>,
}
