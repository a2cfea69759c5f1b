//! How a call fails: one enum, split by what the caller does next. Only [`view`](super::view) decides what clients and
//! models see of it.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::redact::Redactor;
use crate::artifacts::ArtifactError;
use crate::session::files::FileError;

/// The result of a body or a call.
pub type ToolResult<T> = Result<T, ToolError>;

/// Why a call did not return an output.
///
/// Any `std::error::Error` turns into [`ToolError::Internal`] with `?`: models and clients see only a correlation id,
/// and the log gets the whole source chain. Use [`ToolError::failed`] for a message that the model should read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolError {
    /// The arguments do not fit the tool's schema. Correct them and call again.
    InvalidArguments {
        /// Every violation.
        violations: Vec<Violation>,
    },
    /// The tool does not exist, or cannot be used now.
    Unavailable {
        /// Which tool, why, and what to do.
        message: String,
    },
    /// The tool itself reports a failure.
    Failed {
        /// For the model.
        message: String,
        /// Whether another attempt is safe.
        #[serde(default, skip_serializing_if = "Retryable::is_no")]
        retry: Retryable,
        /// A short name for programs to act on, if the tool gave one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        /// What else the tool reports, for models and programs. A value larger than an error may be is recorded as a
        /// shortened text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<Box<Value>>,
    },
    /// A failure whose details the model must not read.
    Internal(Internal),
    /// An attempt, heartbeat or deadline ran out.
    TimedOut {
        /// Which limit, and after how long.
        message: String,
    },
    /// Cancelled, or skipped because the batch was stopped.
    Cancelled {
        /// What cancelled it.
        reason: String,
    },
    /// The call is not allowed.
    Denied {
        /// Why.
        reason: String,
    },
    /// The session must be connected to a provider first.
    ConnectionRequired {
        /// The name of the provider.
        provider: String,
    },
    /// The body panicked.
    Panicked {
        /// Identifies the log entry.
        correlation: String,
    },
    /// The effect may have happened, and nothing can tell. If an attempt returns it, a `once` attempt is in doubt and
    /// has to be settled, and any other attempt is repeated. If a body receives it, the doubt could not be settled.
    InDoubt {
        /// Why it is unknown.
        reason: String,
    },
}

/// One violation of a schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// JSON pointer into the value; empty for the whole value.
    pub pointer: String,
    /// What is wrong there.
    pub message: String,
}

/// Whether a failed attempt may safely be repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retryable {
    /// It may not.
    #[default]
    No,
    /// It may, after the usual delay.
    Yes,
    /// It may, after this delay.
    After(Duration),
}

impl Retryable {
    fn is_no(&self) -> bool {
        *self == Self::No
    }
}

/// A failure with hidden details. The source never enters a journal, an event or a response; the correlation id finds
/// it in the log.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Internal {
    /// The correlation id, set by the runtime when the failure is recorded.
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
        Self::Failed { message: message.into(), retry: Retryable::No, code: None, data: None }
    }

    /// A failure the model may read, with a short name that programs can act on.
    pub fn rejected(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::failed(message).with_code(code)
    }

    /// Gives a failure a short name that programs can act on. Only the kind `failed` has one; other errors are
    /// unchanged.
    #[must_use]
    pub fn with_code(mut self, name: impl Into<String>) -> Self {
        if let Self::Failed { code, .. } = &mut self {
            *code = Some(name.into());
        }
        self
    }

    /// Attaches a JSON value to a failure, for models and programs: journal, API and model have it. Only the kind
    /// `failed` carries one; other errors are unchanged. A value whose text is longer than 4 KiB is recorded as its
    /// text without the middle.
    ///
    /// ```
    /// # use windlass_core::tool::ToolError;
    /// # use serde_json::json;
    /// let error = ToolError::rejected("sold_out", "no seat is left").with_data(json!({"next_free": "2026-03-01"}));
    /// assert_eq!(error.data().unwrap()["next_free"], "2026-03-01");
    /// ```
    #[must_use]
    pub fn with_data(mut self, value: impl Into<Value>) -> Self {
        if let Self::Failed { data, .. } = &mut self {
            *data = Some(Box::new(value.into()));
        }
        self
    }

    /// The JSON value that the failure carries, if any.
    pub fn data(&self) -> Option<&Value> {
        match self {
            Self::Failed { data, .. } => data.as_deref(),
            _ => None,
        }
    }

    /// The short name of the failure, if it has one.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Failed { code, .. } => code.as_deref(),
            _ => None,
        }
    }

    /// A failure the model may read, for an attempt that had no effect and may be repeated.
    pub fn retryable(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), retry: Retryable::Yes, code: None, data: None }
    }

    /// Like [`retryable`](Self::retryable), but the next attempt waits at least `delay`.
    pub fn retry_after(message: impl Into<String>, delay: Duration) -> Self {
        Self::Failed { message: message.into(), retry: Retryable::After(delay), code: None, data: None }
    }

    /// A failure whose source is only logged: models and clients see a correlation id.
    pub fn internal(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Internal(Internal { correlation: String::new(), source: Some(Arc::from(source.into())) })
    }

    /// A refusal of the call.
    pub fn denied(reason: impl Into<String>) -> Self {
        Self::Denied { reason: reason.into() }
    }

    /// For a body that needs a connection to a provider and has done nothing without it: the call waits until a person
    /// has connected the provider, and is then attempted again.
    pub fn connection_required(provider: impl Into<String>) -> Self {
        Self::ConnectionRequired { provider: provider.into() }
    }

    /// For an attempt that cannot tell whether it took effect: it sent a request and got no complete response.
    pub fn in_doubt(reason: impl Into<String>) -> Self {
        Self::InDoubt { reason: reason.into() }
    }

    /// The tool does not exist or cannot be used; the message says why and what to do.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable { message: message.into() }
    }

    /// Invalid arguments with one violation, at this JSON pointer.
    pub fn invalid(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::InvalidArguments { violations: vec![Violation { pointer: pointer.into(), message: message.into() }] }
    }

    /// Shortens what a tool reports to the size that an error may have.
    pub(crate) fn bound(&mut self) {
        let (message, data) = match self {
            Self::Failed { message, data, .. } => (message, data.as_deref_mut()),
            Self::Unavailable { message } => (message, None),
            _ => return,
        };
        if let Cow::Owned(cut) = super::view::bounded(message.as_str().into()) {
            *message = cut;
        }
        if let Some(data) = data
            && let Cow::Owned(cut) = super::view::bounded_data(data)
        {
            *data = cut;
        }
    }

    /// Replaces secrets in everything that it says, also to the log.
    pub(crate) fn redact(&mut self, redactor: &Redactor) {
        match self {
            Self::InvalidArguments { violations } => {
                violations.iter_mut().for_each(|violation| redactor.redact_text(&mut violation.message));
            }
            Self::Failed { message, code, data, .. } => {
                redactor.redact_text(message);
                code.iter_mut().for_each(|code| redactor.redact_text(code));
                data.iter_mut().for_each(|data| redactor.redact_value(data));
            }
            Self::Unavailable { message } | Self::TimedOut { message } => redactor.redact_text(message),
            Self::Cancelled { reason } | Self::Denied { reason } | Self::InDoubt { reason } => {
                redactor.redact_text(reason);
            }
            Self::Internal(internal) => {
                let chain = internal.chain().join(": ");
                if let Cow::Owned(clean) = redactor.redact(&chain) {
                    internal.source = Some(Arc::from(Box::<dyn StdError + Send + Sync>::from(clean)));
                }
            }
            Self::ConnectionRequired { provider } => redactor.redact_text(provider),
            Self::Panicked { .. } => {}
        }
    }

    /// The error as the journal returns it. A body must not see more of an error the first time than when it replays.
    pub(crate) fn as_recorded(&self) -> Self {
        match self {
            Self::Internal(internal) => {
                Self::Internal(Internal { correlation: internal.correlation.clone(), source: None })
            }
            other => other.clone(),
        }
    }

    /// The name of the kind in records, APIs and what models see.
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
        // Errors of artifacts and files contain no secrets, and the caller can often fix their cause.
        let any = &error as &dyn std::any::Any;
        let artifact = any.downcast_ref::<ArtifactError>().map(ArtifactError::for_tool);
        let file = || any.downcast_ref::<FileError>().map(FileError::for_tool);
        artifact.or_else(file).unwrap_or_else(|| Self::internal(error))
    }
}

/// For people with access to the process: it names the source of a hidden failure, so never show it to clients.
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
