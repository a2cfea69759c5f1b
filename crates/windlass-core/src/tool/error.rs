//! How a call fails: one enum, split by what the caller does next. What outsiders see of it is decided in
//! [`view`](super::view) alone.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::artifacts::ArtifactError;

/// What a body or call returns.
pub type ToolResult<T> = Result<T, ToolError>;

/// Why a call did not return an output.
///
/// Any `std::error::Error` turns into [`ToolError::Internal`] with `?`: hidden from models and outsiders, logged with
/// its whole source chain. Use [`ToolError::failed`] for what the model should read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolError {
    /// The arguments do not fit the tool's schema. Correct them and call again.
    InvalidArguments {
        /// Every violation.
        violations: Vec<Violation>,
    },
    /// There is no such tool, or it cannot be used now.
    Unavailable {
        /// Which, and what to do.
        message: String,
    },
    /// The tool says so itself.
    Failed {
        /// For the model.
        message: String,
        /// Whether trying again is safe.
        #[serde(default, skip_serializing_if = "Retryable::is_no")]
        retry: Retryable,
        /// A short name programs can act on, where whoever failed gave one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
    /// Something broke that the model must not read.
    Internal(Internal),
    /// An attempt, heartbeat or deadline ran out.
    TimedOut {
        /// Which of them, and after how long.
        message: String,
    },
    /// Cancelled, or skipped because the batch was stopped.
    Cancelled {
        /// By what.
        reason: String,
    },
    /// Not allowed.
    Denied {
        /// Why.
        reason: String,
    },
    /// The session must be connected to a provider first.
    ConnectionRequired {
        /// Which.
        provider: String,
    },
    /// The body panicked.
    Panicked {
        /// Finds the log entry.
        correlation: String,
    },
    /// It may have happened, and nobody can tell. Returned by an attempt it says just that: a `once` attempt is then in
    /// doubt and settled, any other is repeated. To a body it means that whoever had to settle it gave up.
    InDoubt {
        /// Why it is not known.
        reason: String,
    },
}

/// One way in which arguments do not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// JSON pointer into the arguments; empty for the whole.
    pub pointer: String,
    /// What is wrong there.
    pub message: String,
}

/// Whether a failure says that trying again is safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retryable {
    /// It does not.
    #[default]
    No,
    /// It is, after the usual delay.
    Yes,
    /// It is, after this delay.
    After(Duration),
}

impl Retryable {
    fn is_no(&self) -> bool {
        *self == Self::No
    }
}

/// A hidden failure. The source never enters a journal, an event or an answer; the correlation id finds it in the log.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Internal {
    /// Set by the runtime when the failure is recorded.
    pub correlation: String,
    #[serde(skip)]
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Internal {
    /// The error and its sources, outermost first, for the log.
    pub fn chain(&self) -> Vec<String> {
        let first = self.source.as_deref().map(|source| source as &(dyn StdError + 'static));
        std::iter::successors(first, |error| (*error).source()).map(ToString::to_string).collect()
    }
}

impl ToolError {
    /// A failure the model may read.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), retry: Retryable::No, code: None }
    }

    /// A failure the model may read, with a short name that programs can act on.
    pub fn rejected(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), retry: Retryable::No, code: Some(code.into()) }
    }

    /// The short name of a failure, where it has one.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Failed { code, .. } => code.as_deref(),
            _ => None,
        }
    }

    /// A failure the model may read, which left nothing behind and may be tried again.
    pub fn retryable(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), retry: Retryable::Yes, code: None }
    }

    /// The same, asking for a delay.
    pub fn retry_after(message: impl Into<String>, delay: Duration) -> Self {
        Self::Failed { message: message.into(), retry: Retryable::After(delay), code: None }
    }

    /// A failure nobody outside may read.
    pub fn internal(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Internal(Internal { correlation: String::new(), source: Some(Arc::from(source.into())) })
    }

    /// A refusal.
    pub fn denied(reason: impl Into<String>) -> Self {
        Self::Denied { reason: reason.into() }
    }

    /// An attempt that cannot tell whether it happened: it asked another system, and no whole answer came.
    pub fn in_doubt(reason: impl Into<String>) -> Self {
        Self::InDoubt { reason: reason.into() }
    }

    /// A tool that cannot be used.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable { message: message.into() }
    }

    /// One violation of the whole arguments.
    pub fn invalid(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::InvalidArguments { violations: vec![Violation { pointer: pointer.into(), message: message.into() }] }
    }

    /// The error as a journal gives it back. A body must not see more of it the first time than when it is entered again.
    pub(crate) fn as_recorded(&self) -> Self {
        match self {
            Self::Internal(internal) => {
                Self::Internal(Internal { correlation: internal.correlation.clone(), source: None })
            }
            other => other.clone(),
        }
    }

    /// The name of the kind, as records, APIs and models know it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::InvalidArguments { .. } => "invalid_arguments",
            Self::Unavailable { .. } => "unavailable",
            Self::Failed { .. } => "failed",
            Self::Internal(_) => "internal",
            Self::TimedOut { .. } => "timed_out",
            Self::Cancelled { .. } => "cancelled",
            Self::Denied { .. } => "denied",
            Self::ConnectionRequired { .. } => "connection_required",
            Self::Panicked { .. } => "panicked",
            Self::InDoubt { .. } => "in_doubt",
        }
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for ToolError {
    fn from(error: E) -> Self {
        // What went wrong with an artifact is no secret, and often the caller's to mend.
        match (&error as &dyn std::any::Any).downcast_ref::<ArtifactError>() {
            Some(error) => error.for_tool(),
            None => Self::internal(error),
        }
    }
}

/// For people with access to the process: names the source of a hidden failure, so never show it to outsiders.
impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Internal(internal) if internal.source.is_some() => {
                write!(f, "internal: {}", internal.chain().join(": "))
            }
            _ => {
                let view = super::view::ErrorView::of(self);
                write!(f, "{}: {}", view.kind, view.message)
            }
        }
    }
}
