//! Errors between a caller and the runtime, as opposed to errors inside a tool.

use std::time::Duration;

use crate::id::RunId;
use crate::path::Path;
use crate::run::state::Hold;
use crate::store::StoreError;
use crate::tool::{RegisterError, ToolError};

/// The result of a runtime call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the runtime has no result for its caller. The variants differ in what the caller does next.
#[non_exhaustive]
pub enum Error {
    /// The call ended with an error: read it.
    Tool(ToolError),
    /// It is not known here whether the call happened; the journal decides. Attach to the run to learn how it ends.
    Unknown {
        /// Which run.
        run: RunId,
        /// The store's error.
        source: StoreError,
    },
    /// The run is held. The hold says what would let it continue.
    Held {
        /// Which run.
        run: RunId,
        /// Why.
        hold: Hold,
    },
    /// This runtime no longer drives the run. The next process that opens the store continues it. Attach to it there.
    Elsewhere {
        /// Which run.
        run: RunId,
    },
    /// The output does not decode to the caller's type.
    Decode {
        /// Which run.
        run: RunId,
        /// What does not fit.
        problem: String,
    },
    /// The key belongs to a run with another request. Use another key, or repeat the same request.
    KeyReused {
        /// The run that has the key.
        run: RunId,
        /// What is different.
        what: String,
    },
    /// This runtime is shut down and accepts nothing new.
    Closed,
    /// The store cannot be opened.
    Open(Box<dyn std::error::Error + Send + Sync>),
    /// The request is invalid, whatever the state of the runtime: correct it.
    Invalid(String),
    /// The request exceeds a limit: ask for less.
    TooLarge(String),
    /// What the request names does not exist here: list what does.
    NotFound(String),
    /// The state of what the request is about does not allow it, or another request came first: read the state again.
    Conflict(String),
    /// The session has unfinished runs after the time that the caller wanted to wait: read what they wait for.
    NotIdle(String),
    /// The attempt may still be running on a worker that was lost: wait, and ask again.
    StillRunning {
        /// Which run.
        run: RunId,
        /// The path of the attempt.
        path: Path,
        /// How long it may still run.
        wait: Duration,
    },
    /// A run with this id exists here already. Fork it if another one is wanted.
    Exists {
        /// Which run.
        run: RunId,
    },
    /// There is too much unfinished work to accept more: wait until some of it has ended.
    Overloaded(String),
    /// This runtime drives no runs: ask one that does.
    NotDriving(String),
    /// The system refused something other than the store, such as a backup file or a thread: fix that.
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
                write!(
                    f,
                    "this runtime no longer drives run {run}; attach to it in the process that opens the store next"
                )
            }
            Self::Decode { run, problem } => {
                write!(f, "the output of run {run} is not of the type the caller asked for: {problem}")
            }
            Self::KeyReused { run, what } => {
                write!(f, "the key belongs to run {run}, which was started with another request: {what}; use a new key")
            }
            Self::Closed => f.write_str("this runtime is shut down; it accepts no new calls"),
            Self::Open(error) => write!(f, "{error}"),
            Self::Invalid(why) | Self::TooLarge(why) | Self::NotFound(why) => f.write_str(why),
            Self::Conflict(why) | Self::NotDriving(why) | Self::NotIdle(why) | Self::Overloaded(why) => {
                f.write_str(why)
            }
            Self::StillRunning { run, path, wait } => write!(
                f,
                "the attempt at {path} of run {run} may still be running on a worker that was lost; it can be settled as \
                 \"did not happen\" in {wait:?}"
            ),
            Self::Exists { run } => write!(
                f,
                "run {run} exists here already, and a run can be imported only once; fork it if you want another one"
            ),
            Self::System(error) => write!(f, "{error}"),
            Self::Register(error) => write!(f, "{error}"),
            Self::Store(error) => write!(f, "{error}"),
        }
    }
}

/// The same sentence as [`Display`](std::fmt::Display): a `main` that returns an error prints it by this.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
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
