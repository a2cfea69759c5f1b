//! Events of runs.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use windlass::{Path, RunId};

use super::Time;
use super::run::OperationRef;

/// An event of a run. Its further fields depend on `kind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Activity {
    /// Id of the run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Position in the stream, `RECORD.INDEX`, which is the same for every reader. Missing for live events, which
    /// are not recorded: progress, and the start of a call or step that is recorded when it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "3.0")]
    pub position: Option<String>,
    /// Path of the call or operation; `/` for the root call and for the run itself.
    #[schema(value_type = String)]
    pub path: Path,
    /// Time of the event.
    pub at: Time,
    /// The run and operation that spawned this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<OperationRef>,
    /// Kind of the event: `run_started`, `call_started`, `attempt_started`, `parked`, `call_finished`, `run_finished`
    /// and others.
    pub kind: String,
    /// Fields that depend on the kind. `call_finished` and `run_finished` have the `value` or the `failure`; a value
    /// beyond the output budget is a text that says how to read on, and `shortened` is true. `call_started`,
    /// `operation_started`, `attempt_started` and `in_doubt` have the `idempotency_key` of the attempts, if these may
    /// change something outside.
    #[serde(flatten)]
    #[schema(value_type = Object, additional_properties)]
    pub detail: Map<String, Value>,
}

/// A page of events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventPage {
    /// The events, in order.
    pub events: Vec<Activity>,
    /// Position of the next page (`from`).
    pub next: String,
    /// Whether the run has ended and this is the last page.
    pub ended: bool,
}

/// The last event of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct End {
    /// Why the stream ends.
    pub reason: EndReason,
    /// Position from which to resume (`from`).
    pub next: String,
}

/// Why a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The run has ended, and all of its events were sent.
    Finished,
    /// The server shuts down. Resume from `next` when it is available again.
    Shutdown,
    /// The reader was too slow. Resume from `next`.
    Slow,
    /// The store failed. Resume from `next`.
    Failed,
    /// The client whose calls these are was removed.
    Removed,
    /// The session was purged: there are no further events.
    Purged,
}
