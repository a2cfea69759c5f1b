//! What others tell a run: the messages in its mailbox.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::RunId;
use crate::path::Path;
use crate::run::record::Recorded;
use crate::time::Timestamp;

/// What others tell a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Message {
    /// Settles a doubt.
    Settle {
        /// Where.
        path: Path,
        /// In which generation: paths begin anew in each.
        #[serde(default, skip_serializing_if = "is_first")]
        generation: u32,
        /// Which attempt.
        attempt: u32,
        /// How.
        settlement: Settlement,
        /// Who says so.
        by: String,
        /// Why.
        reason: String,
    },
    /// Cancels the run.
    Cancel {
        /// Who says so.
        by: String,
        /// Why.
        reason: String,
    },
    /// Answers a park of this generation.
    Resolve {
        /// Where.
        path: Path,
        /// The generation the reply key was made in.
        generation: u32,
        /// The answer.
        resolution: Resolution,
    },
    /// A named value for a receive.
    Signal {
        /// Which receive.
        name: Arc<str>,
        /// The value.
        value: Arc<Value>,
    },
    /// A run that this one spawned has ended.
    Ended {
        /// Which run.
        run: RunId,
        /// With what.
        #[serde(with = "crate::run::record::recorded_form")]
        result: Recorded,
    },
    /// A person decided about a call that needs approval.
    Decide {
        /// Where.
        path: Path,
        /// In which generation: paths begin anew in each.
        #[serde(default, skip_serializing_if = "is_first")]
        generation: u32,
        /// The arguments the decision is about, by their digest.
        digest: String,
        /// Since when it was asked for: a grant that is void is asked for again. Not in messages of older files.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<Timestamp>,
        /// Whether the call may be made.
        granted: bool,
        /// Who says so.
        by: String,
        /// Why.
        reason: String,
        /// A grant is void from then on.
        until: Timestamp,
    },
    /// A provider is connected now, or will not be.
    Connect {
        /// Which.
        provider: Arc<str>,
        /// Why it will not be; nothing if it is.
        refused: Option<String>,
    },
    /// The run comes from a backup of its store: what it did after that is not in its journal. Sent by the store itself.
    Restored,
    /// The keys handed out for this run's parks are void.
    Revoke {
        /// Why.
        reason: String,
    },
}

fn is_first(generation: &u32) -> bool {
    *generation == 0
}

/// How the outside answers a park.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Resolution {
    /// With a value.
    Ok {
        /// The value.
        value: Value,
    },
    /// With an error of its own.
    Err {
        /// A short name programs can act on.
        code: String,
        /// For people and models.
        message: String,
    },
    /// The outside ran out of time.
    Timeout,
    /// The outside was cancelled.
    Cancelled {
        /// Why.
        reason: String,
    },
}

/// How a person settles a doubt.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settlement {
    /// It happened, and this is its outcome.
    Happened(#[serde(with = "crate::run::record::recorded_form")] Recorded),
    /// It did not happen: attempt it again.
    DidNotHappen,
    /// It cannot be found out: the body gets an `in_doubt` error.
    GiveUp,
}

/// Mail of several runs.
pub type Mailboxes = Vec<(RunId, Vec<Mail>)>;

/// A message with its place in the mailbox.
#[derive(Clone, Debug)]
pub struct Mail {
    /// Counts from one in each mailbox.
    pub position: u64,
    /// What it says.
    pub message: Message,
}
