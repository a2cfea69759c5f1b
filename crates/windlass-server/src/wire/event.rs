//! What happens in a run, as it happens.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use windlass::{Path, RunId};

use super::Time;
use super::run::Parent;

/// One thing that happened. What it says beside its kind depends on that; instants are RFC 3339 there too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Activity {
    /// Which run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Its place in the stream, `RECORD.INDEX`: the same for every reader. Missing for what is only said once, to whoever
    /// listens at that moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "3.0")]
    pub position: Option<String>,
    /// Which call or operation; `/` for the root call and for the run itself.
    #[schema(value_type = String)]
    pub path: Path,
    /// When.
    pub at: Time,
    /// The run that spawned this one, and where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// What: `run_started`, `call_started`, `attempt_started`, `parked`, `call_finished`, `run_finished` and others.
    pub kind: String,
    /// The rest, by kind.
    #[serde(flatten)]
    #[schema(value_type = Object, additional_properties)]
    pub detail: Map<String, Value>,
}

/// A piece of a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventPage {
    /// In order.
    pub events: Vec<Activity>,
    /// Where to go on (`from`).
    pub next: String,
    /// Whether the run has ended and this is the last of it.
    pub ended: bool,
}

/// The last thing a stream says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct End {
    /// Why it ends.
    pub reason: EndReason,
    /// Where to go on (`Last-Event-ID`, or `from`).
    pub next: String,
}

/// Why a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The run has ended, and everything about it was said.
    Finished,
    /// The server stops. Go on when it is back.
    Shutdown,
    /// The reader did not keep up. Go on from `next`.
    Slow,
    /// The store failed. Go on from `next`.
    Failed,
    /// The client these calls were for was taken away.
    Removed,
}
