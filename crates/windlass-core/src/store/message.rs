//! Messages in the mailbox of a run.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::RunId;
use crate::path::Path;
use crate::run::record::Recorded;
use crate::run::secrets::Places;
use crate::time::Timestamp;
use crate::tool::{Output, ToolError};

/// A message to a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Message {
    /// Settles a doubt.
    Settle {
        /// The operation in doubt.
        path: Path,
        /// The generation of the path; paths start again in each generation.
        #[serde(default, skip_serializing_if = "is_first")]
        generation: u32,
        /// The attempt in doubt.
        attempt: u32,
        /// The settlement.
        settlement: Settlement,
        /// Who settled it.
        by: String,
        /// Why.
        reason: String,
    },
    /// Cancels the run.
    Cancel {
        /// Who cancelled it.
        by: String,
        /// Why.
        reason: String,
    },
    /// Answers a park.
    Resolve {
        /// The operation that is parked.
        path: Path,
        /// The generation for which the reply key was created.
        generation: u32,
        /// The answer.
        resolution: Resolution,
        /// Where the value of the answer contains secrets, according to the tool's schema.
        #[serde(default, skip_serializing_if = "Places::is_empty")]
        secrets: Places,
    },
    /// A named value for an operation that receives signals.
    Signal {
        /// The name of the signal.
        name: Arc<str>,
        /// The value.
        value: Arc<Value>,
    },
    /// A run that this one spawned has ended.
    Ended {
        /// The run that ended.
        run: RunId,
        /// Its result.
        #[serde(with = "crate::run::record::recorded_form")]
        result: Recorded,
    },
    /// Another run waits for the end of this one. It stays in the mailbox; when this run finishes, the store answers it
    /// with [`Over`](Message::Over), in the same commit.
    Await {
        /// The run that waits.
        by: RunId,
    },
    /// A run that this one waits for has finished; its outcome is in the store. Sent by the store itself.
    Over {
        /// The run that finished.
        run: RunId,
    },
    /// A person approved or denied a call.
    Decide {
        /// The operation that needs approval.
        path: Path,
        /// The generation of the path; paths start again in each generation.
        #[serde(default, skip_serializing_if = "is_first")]
        generation: u32,
        /// The digest of the arguments that the decision is about.
        digest: String,
        /// When the approval was requested, because an expired approval is requested again. Absent in messages of older
        /// files.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<Timestamp>,
        /// Whether the call may be made.
        granted: bool,
        /// Who decided.
        by: String,
        /// Why.
        reason: String,
        /// When an approval expires.
        until: Timestamp,
    },
    /// A provider was connected, or the connection was refused.
    Connect {
        /// The provider.
        provider: Arc<str>,
        /// Why it was refused; `None` if it is connected.
        refused: Option<String>,
    },
    /// An operation that was queued for a key now holds it. Sent by a store that keeps the queues.
    Key {
        /// The operation.
        path: Path,
        /// The generation of the path; paths start again in each generation.
        #[serde(default, skip_serializing_if = "is_first")]
        generation: u32,
    },
    /// The run was restored from a backup, so its journal lacks what it did later. Sent by the store itself.
    Restored,
    /// Invalidates the reply keys of the run's parks.
    Revoke {
        /// Why.
        reason: String,
    },
}

fn is_first(generation: &u32) -> bool {
    *generation == 0
}

/// The answer to a park.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Resolution {
    /// A value.
    Ok {
        /// The value.
        value: Value,
    },
    /// An error of the answering system.
    Err {
        /// A short name for programs to act on.
        code: String,
        /// The message for people and models.
        message: String,
        /// What else the answering system reports.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<Box<Value>>,
    },
    /// The answering system ran out of time.
    Timeout,
    /// The answering system was cancelled.
    Cancelled {
        /// Why.
        reason: String,
    },
}

/// Distinguishes the answer "it timed out" from an answer that did not arrive in time.
pub(crate) const OUTSIDE_TIMED_OUT: &str = "the other side answered that it timed out";

impl Resolution {
    /// The result of an operation that gets this answer, with its error bounded.
    pub fn into_result(self) -> Recorded {
        let mut error = match self {
            Self::Ok { value } => return Ok(Arc::new(Output::value(value))),
            Self::Err { code, message, data: None } => ToolError::rejected(code, message),
            Self::Err { code, message, data: Some(data) } => ToolError::rejected(code, message).with_data(*data),
            Self::Timeout => ToolError::TimedOut { message: OUTSIDE_TIMED_OUT.to_owned() },
            Self::Cancelled { reason } => ToolError::Cancelled { reason },
        };
        error.bound();
        Err(Arc::new(error))
    }
}

/// How a person settles a doubt.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settlement {
    /// The effect happened, and this is its outcome.
    Happened(#[serde(with = "crate::run::record::recorded_form")] Recorded),
    /// The effect did not happen: the attempt is repeated.
    DidNotHappen,
    /// It cannot be found out: the body receives an `in_doubt` error.
    GiveUp,
}

/// The messages of several runs.
pub type Mailboxes = Vec<(RunId, Vec<Mail>)>;

/// A message with its position in the mailbox.
#[derive(Clone, Debug)]
pub struct Mail {
    /// The position, counted from one in each mailbox.
    pub position: u64,
    /// The message.
    pub message: Message,
}
