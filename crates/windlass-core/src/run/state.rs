//! The state of a run, as the store and its readers see it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::record::{DoubtCause, Event, Settler};
use crate::id::{RunId, WorkerId};
use crate::path::Path;
use crate::store::SessionPath;
use crate::time::Timestamp;
use crate::tool::ToolError;
use crate::value::Difference;

/// The state of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RunState {
    /// It waits to be taken up for the first time.
    Queued,
    /// A worker drives it, or will.
    Running,
    /// It only waits, and costs a row in the store until something happens.
    Suspended {
        /// When its earliest timer is due, if it has one.
        wake: Option<Timestamp>,
    },
    /// It is not driven until the cause is removed.
    Held {
        /// The cause.
        hold: Hold,
    },
    /// It has its outcome.
    Finished {
        /// How it ended.
        ending: Ending,
    },
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// With an output.
    Ok,
    /// With an error.
    Failed,
    /// Cancelled.
    Cancelled,
    /// Its owner died, and no other process may continue it.
    Lost,
}

/// Why a run is held. Each text says what would let it continue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Hold {
    /// The code asks for something else than the journal has.
    Diverged(Box<Divergence>),
    /// The process died repeatedly with the same operation in flight.
    CrashLoop {
        /// The path of the operation.
        path: Path,
        /// How often.
        deaths: u32,
    },
    /// The tool of a recorded call is gone.
    ToolMissing {
        /// The path of the call.
        path: Path,
        /// Which tool.
        tool: String,
    },
    /// The session of the run hides the tool of a recorded call.
    ToolHidden {
        /// The path of the call.
        path: Path,
        /// Which tool.
        tool: String,
        /// The session.
        session: String,
    },
    /// A layer that a recorded call was made through is not registered.
    LayerMissing {
        /// The path of the call.
        path: Path,
        /// Which layer.
        layer: String,
    },
    /// A recorded value does not decode to the type in the code.
    Undecodable {
        /// The path of the operation.
        path: Path,
        /// What does not fit.
        problem: String,
    },
    /// The messages that a body read are not in its session any more.
    MessagesGone {
        /// The path of the operation that read them.
        path: Path,
        /// The session.
        session: Arc<str>,
    },
    /// The content of a file that a body read is not in the store any more.
    FileGone {
        /// The path of the operation that read it.
        path: Path,
        /// The session.
        session: Arc<str>,
        /// The path of the file.
        file: SessionPath,
    },
    /// The body dropped an operation it had started.
    Abandoned {
        /// The path of the operation.
        path: Path,
        /// What the body had asked for.
        operation: String,
    },
    /// The results of the run are larger than the limit for one run.
    TooBig {
        /// The limit.
        bytes: usize,
    },
    /// The body awaits something that is not an operation of its context.
    Outside {
        /// The path of the body.
        path: Path,
    },
    /// It was imported, and the original may still continue elsewhere.
    Imported {
        /// The state of the original.
        was: String,
        /// How many generations of its journal are still to be imported.
        missing: u32,
    },
    /// Secrets in its journal cannot be opened.
    Sealed {
        /// What is missing or damaged, and where.
        why: String,
    },
    /// The store's data of this run is not what was written.
    Damaged {
        /// Which run.
        run: RunId,
        /// What is damaged, and where.
        place: String,
    },
    /// The run asked for more operations than one run may have.
    TooLong {
        /// The limit.
        operations: u64,
    },
}

impl Hold {
    /// Whether only a person can resolve it, and no deployed code could.
    pub(crate) fn needs_person(&self) -> bool {
        matches!(self, Self::CrashLoop { .. } | Self::Imported { .. })
    }

    /// The tool has another kind of body than the one its call was recorded with.
    pub(crate) fn changed_body(path: &Path, recorded: &str, asked: &str) -> Self {
        let (recorded, asked) = (Some(recorded.to_owned()), Some(asked.to_owned()));
        Self::Diverged(Box::new(Divergence { path: path.clone(), recorded, asked, differences: Vec::new() }))
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Diverged(divergence) => write!(f, "{divergence}"),
            Self::CrashLoop { path, deaths } => write!(
                f,
                "crash loop: the process died {deaths} times with {path} in flight; \
                 fix what kills it there, then resume the run"
            ),
            Self::ToolMissing { path, tool } => write!(
                f,
                "tool missing: {path} calls `{tool}`, which is not registered; register it (or give its successor \
                 the alias `{tool}`), then resume the run"
            ),
            Self::ToolHidden { path, tool, session } => write!(
                f,
                "tool hidden: {path} calls `{tool}`, which session {session:?} hides; show it in the session's tools, then \
                 resume the run"
            ),
            Self::LayerMissing { path, layer } if layer.starts_with('~') => write!(
                f,
                "layer missing: {path} is called through a layer without a name, which ended with its process or its last \
                 toolbox; finish the run by hand, and start the work again through a layer that has a name"
            ),
            Self::LayerMissing { path, layer } => write!(
                f,
                "layer missing: {path} is called through the layer `{layer}`, which is not registered; register it \
                 (`toolbox.layer(\"{layer}\")`, or `[layer.{layer}]` in the config), then resume the run"
            ),
            Self::Undecodable { path, problem } => write!(
                f,
                "undecodable record at {path}: {problem}; deploy code whose types fit the record, then resume the run"
            ),
            Self::MessagesGone { path, session } => write!(
                f,
                "missing messages at {path}: the body read messages of session {session:?} that are not there, because \
                 the session was purged or the run comes from another store; restore a store that has them, then \
                 resume the run, or finish the run by hand"
            ),
            Self::FileGone { path, session, file } => write!(
                f,
                "missing file content at {path}: the body read the file {file:?} of session {session:?}, and what it \
                 read is not there, because the run comes from another store; restore a store that has it, then resume \
                 the run, or finish the run by hand"
            ),
            Self::Abandoned { path, operation } => write!(
                f,
                "abandoned operation at path {path}: the body started {operation} and dropped it unfinished; await \
                 every operation to its end (no `select!` or timeout around `ctx`), deploy, then resume the run"
            ),
            Self::TooLong { operations } => write!(
                f,
                "the run asked for more than {operations} operations; continue in a new generation \
                 (`ctx.continue_as`) or split the work into several runs"
            ),
            Self::TooBig { bytes } => write!(
                f,
                "the results of the run take more than {bytes} bytes; split the work, or continue in a new generation \
                 (`ctx.continue_as`), and return references instead of large content"
            ),
            Self::Outside { path } => write!(
                f,
                "await outside ctx: the body at {path} awaits something that is not an operation of its context, which \
                 a replay could not repeat; move it into `ctx.step(…)`, deploy, then resume the run"
            ),
            Self::Sealed { why } => write!(
                f,
                "sealed: the journal has secrets that cannot be opened: {why}; put the key back, then resume the run, or \
                 finish it by hand and purge it"
            ),
            Self::Damaged { run, place } => write!(
                f,
                "damaged: the store's data of run {run} is not what was written ({place}); restore a backup, then \
                 resume the run, or finish it by hand and purge it"
            ),
            Self::Imported { was, missing: 0 } => write!(
                f,
                "imported: the original was {was}; make sure that the original will not continue, then resume \
                 the run; reply keys handed out there are void, the inbox has new ones"
            ),
            Self::Imported { missing, .. } => write!(
                f,
                "the import was interrupted, and {missing} generations of the journal are missing; import the same document \
                 again"
            ),
        }
    }
}

/// Where the code and the journal disagree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// The path of the operation.
    pub path: Path,
    /// What the journal has there; `None` if nothing.
    pub recorded: Option<String>,
    /// What the code does there; `None` if the body returned.
    pub asked: Option<String>,
    /// The first positions where the inputs differ, if only the inputs do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<Difference>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |side: &Option<String>, none: &str| side.clone().unwrap_or_else(|| none.to_owned());
        let recorded = side(&self.recorded, "nothing");
        write!(f, "diverged at {}: the journal has {recorded}, ", self.path)?;
        write!(f, "the code asks for {}", side(&self.asked, "nothing: the body returned"))?;
        let differences: Vec<String> = self.differences.iter().map(ToString::to_string).collect();
        if !differences.is_empty() {
            write!(f, " ({})", differences.join("; "))?;
        }
        write!(
            f,
            "; deploy code that fits the journal, then resume the run, or fork it at {}, or finish it by hand",
            self.path
        )
    }
}

/// An operation that waits for a settlement of whether it happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubt {
    /// The path of the operation.
    pub path: Path,
    /// Which attempt.
    pub attempt: u32,
    /// What was attempted.
    pub operation: String,
    /// Why it is not known whether it happened.
    pub cause: DoubtCause,
    /// The attempt cannot still be running after this time. From then on it may be settled as "did not happen".
    pub over_by: Timestamp,
    /// Since when it waits.
    pub since: Timestamp,
    /// What the attempt itself reported about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<Arc<str>>,
}

impl Doubt {
    /// Why it is not known, in a sentence: the cause, and what the attempt itself reported.
    pub fn why(&self) -> String {
        self.cause.with(self.said.as_deref())
    }

    /// The event that records it.
    pub(crate) fn event(&self) -> Event {
        Event::Doubted { attempt: self.attempt, cause: self.cause, over_by: self.over_by, said: self.said.clone() }
    }

    /// The error of an operation whose doubt was given up.
    pub(crate) fn given_up(&self, by: &Settler, reason: &str) -> ToolError {
        ToolError::InDoubt { reason: format!("{}; given up by {by}: {reason}", self.why()) }
    }
}

/// An operation that waits for time or for the mailbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Park {
    /// The path of the operation.
    pub path: Path,
    /// What was asked for.
    pub operation: String,
    /// What it waits for.
    pub on: Blocked,
    /// Since when.
    pub since: Timestamp,
    /// When it stops waiting in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// What an operation waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Blocked {
    /// A point in time.
    Time,
    /// An answer by reply key.
    Input {
        /// What it is about.
        name: Arc<str>,
        /// The path where the key was made, if that is not the waiting operation.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<Path>,
    },
    /// A signal.
    Signal {
        /// Which.
        name: Arc<str>,
    },
    /// The end of another run.
    Child {
        /// Which.
        run: RunId,
    },
    /// A person's decision about a call.
    Approval {
        /// The tool.
        tool: Arc<str>,
        /// The digest of the arguments. The decision applies only to these arguments.
        digest: String,
        /// Why approval is needed.
        why: String,
    },
    /// A connection to a provider.
    Connection {
        /// Which.
        provider: Arc<str>,
        /// The position of the message that reported the last connection to it. The attempt after that needed another
        /// one, so only later messages count.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<u64>,
        /// Why the connection that there was cannot be used, if there was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<Arc<str>>,
    },
    /// The next attempt after a failure.
    Retry,
    /// A key that another operation holds.
    Key {
        /// Which.
        key: Arc<str>,
    },
}

impl Blocked {
    /// The path where the key that answers it was made, if that is not the waiting operation.
    pub(crate) fn made_at(&self) -> Option<&Path> {
        match self {
            Self::Input { at, .. } => at.as_ref(),
            _ => None,
        }
    }

    /// Whether it waits for a person who approves a call or connects a provider.
    pub(crate) fn is_approval_or_connection(&self) -> bool {
        matches!(self, Self::Approval { .. } | Self::Connection { .. })
    }

    /// Whether a person has to act before it continues.
    pub fn needs_person(&self) -> bool {
        matches!(self, Self::Input { .. } | Self::Approval { .. } | Self::Connection { .. })
    }
}

/// A run as lists show it.
#[derive(Clone, Debug, PartialEq)]
// Many fields: one row of a list, as it is shown.
pub struct RunInfo {
    /// Which run.
    pub run: RunId,
    /// What it runs: the root tool's id, or `batch`.
    pub tool: Arc<str>,
    /// When it was created.
    pub created: Timestamp,
    /// When it finished.
    pub ended: Option<Timestamp>,
    /// Its state.
    pub state: RunState,
    /// Its operations that wait for a settlement.
    pub doubts: Vec<Doubt>,
    /// Its other waiting operations.
    pub parks: Vec<Park>,
    /// How many owners it has had.
    pub epoch: u64,
    /// The last of them.
    pub worker: WorkerId,
    /// How many of them left it without releasing it, as a process does that dies.
    pub deaths: u64,
    /// Counts from zero; see `Ctx::continue_as`.
    pub generation: u32,
    /// The key it was started under.
    pub key: Option<Arc<str>>,
    /// The session it belongs to.
    pub session: Option<Arc<str>>,
    /// Who it acts for.
    pub principal: Option<Arc<str>>,
    /// What caused it, as given.
    pub cause: Option<Arc<str>>,
    /// The run that spawned it, and the path of the spawn.
    pub parent: Option<Box<(RunId, Path)>>,
}
