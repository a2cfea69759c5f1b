//! What goes wrong between a caller and the runtime, as opposed to inside a tool.

use std::time::Duration;

use crate::id::RunId;
use crate::path::Path;
use crate::run::state::Hold;
use crate::store::StoreError;
use crate::tool::{RegisterError, ToolError};

/// What the runtime returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the runtime has no result for its caller, split by what the caller does next.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The call ended with an error: read it.
    Tool(ToolError),
    /// Whether the call happened is not known here; the journal decides. Attach to the run to learn how it ends.
    Unknown {
        /// Which run.
        run: RunId,
        /// What the store said.
        source: StoreError,
    },
    /// The run is held: its sentence says what would move it.
    Held {
        /// Which run.
        run: RunId,
        /// Why.
        hold: Hold,
    },
    /// This runtime let go of the run; whoever opens the store next goes on with it. Attach to it there.
    Elsewhere {
        /// Which run.
        run: RunId,
    },
    /// The output is not what the caller's type says.
    Decode {
        /// Which run.
        run: RunId,
        /// What does not fit.
        problem: String,
    },
    /// The key names a run that does something else. Use another key, or ask for the same.
    KeyReused {
        /// The run that has the key.
        run: RunId,
        /// What is different.
        what: String,
    },
    /// This runtime is shut down, and takes nothing new.
    Closed,
    /// The store cannot be opened.
    Open(Box<dyn std::error::Error + Send + Sync>),
    /// The request itself is at fault, and would be anywhere and any time: correct it.
    Invalid(String),
    /// The request asks for more than a limit allows: ask for less.
    TooLarge(String),
    /// What the request names does not exist here: look for what there is.
    NotFound(String),
    /// What the request is about is in no state for it, or another request came first: look at it again.
    Conflict(String),
    /// The attempt may still be running on a worker that was lost: wait, and ask again.
    StillRunning {
        /// Which run.
        run: RunId,
        /// Where its attempt was made.
        path: Path,
        /// For how long it may.
        wait: Duration,
    },
    /// A run of this id is here already, and its id is its own: fork it for another one.
    Exists {
        /// Which run.
        run: RunId,
    },
    /// This runtime drives no runs: ask one that does.
    NotDriving(String),
    /// The system refused something beside the store, such as a file of a backup or a thread: mend that.
    System(Box<dyn std::error::Error + Send + Sync>),
    /// A tool cannot be registered.
    Register(RegisterError),
    /// The store failed before anything was attempted.
    Store(StoreError),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tool(error) => write!(f, "{error}"),
            Self::Unknown { run, source } => {
                write!(
                    f,
                    "the outcome of run {run} is not known yet ({source}); attach to the run to learn how it ends"
                )
            }
            Self::Held { run, hold } => write!(f, "run {run} is held: {hold}"),
            Self::Elsewhere { run } => {
                write!(f, "this runtime let go of run {run}; attach to it where the store is open next")
            }
            Self::Decode { run, problem } => {
                write!(f, "the output of run {run} is not of the type the caller asked for: {problem}")
            }
            Self::KeyReused { run, what } => {
                write!(f, "the key belongs to run {run}, which was started with another request: {what}; use a new key")
            }
            Self::Closed => f.write_str("this runtime is shut down; it takes no new calls"),
            Self::Open(error) => write!(f, "{error}"),
            Self::Invalid(why) | Self::TooLarge(why) | Self::NotFound(why) => f.write_str(why),
            Self::Conflict(why) | Self::NotDriving(why) => f.write_str(why),
            Self::StillRunning { run, path, wait } => write!(
                f,
                "the attempt at {path} of run {run} may still be running on a worker that was lost; \"it did not \
                 happen\" can be said in {wait:?}"
            ),
            Self::Exists { run } => write!(
                f,
                "there is a run {run} here already, and a run is imported once; fork it if you want another one"
            ),
            Self::System(error) => write!(f, "{error}"),
            Self::Register(error) => write!(f, "{error}"),
            Self::Store(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unknown { source, .. } => Some(source),
            Self::Register(error) => Some(error),
            Self::Open(error) | Self::System(error) => Some(&**error),
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<RegisterError> for Error {
    fn from(error: RegisterError) -> Self {
        Self::Register(error)
    }
}
