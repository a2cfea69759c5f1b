//! Runs: their state, their journal, and requests about them.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use windlass::{Path, RunId};

use super::blocked::{Doubt, Hold, Park};
use super::call::{ErrorRequest, Failure, Outcome};
use super::event::Activity;
use super::{Time, nullable};

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// No worker has started it yet.
    Queued,
    /// A worker drives it or will drive it.
    Running,
    /// All of its operations wait.
    Suspended,
    /// It is stopped until a cause is removed and it is resumed.
    Held,
    /// It has an outcome.
    Finished,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It succeeded.
    Ok,
    /// It failed.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// Its owner died, and another process must not continue it.
    Lost,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Run {
    /// Id of the run.
    #[schema(value_type = String, format = "uuid")]
    pub id: RunId,
    /// Id of the root tool, or `batch`.
    pub tool: String,
    /// `Idempotency-Key` under which it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Session that the run belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Principal for whom it acts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Cause, as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Layers through which the run was called, the lowest first. Not in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<String>,
    /// The run and operation that spawned it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<OperationRef>,
    /// Time of creation.
    pub created: Time,
    /// Time of its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
    /// State of the run.
    pub state: RunState,
    /// How it ended, if it is finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
    /// Why it is held, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// Time at which it continues by itself, if it is suspended and waits for a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake: Option<Time>,
    /// Number of times that it continued with a new journal.
    pub generation: u32,
    /// Number of owners that it has had.
    pub epoch: u64,
    /// Attempts of which it is not known whether they happened.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<Doubt>,
    /// Operations that wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parks: Vec<Park>,
    /// Why it is not running and what has to happen, or how it ended. Not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentence: Option<String>,
    /// Its outcomes, if it is finished and its journal has not been removed. Not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcomes: Option<Vec<Outcome>>,
}

/// A page of runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunPage {
    /// The runs.
    pub runs: Vec<Run>,
    /// Cursor of the next page; `null` on the last page.
    pub next: Option<String>,
}

/// An operation of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationRef {
    /// Id of the run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Path of the operation.
    #[schema(value_type = String)]
    pub path: Path,
}

/// A page of a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JournalPage {
    /// The records, in order.
    pub records: Vec<Record>,
    /// Value of `after` for the next page; `null` on the last page.
    pub next: Option<u64>,
}

/// A record of a journal. Secret arguments are hidden.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Record {
    /// Sequence number, from zero.
    pub seq: u64,
    /// Path of the operation.
    #[schema(value_type = String)]
    pub path: Path,
    /// Time of the record.
    pub at: Time,
    /// The operation that the body requested; only in the first record of a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub asked: Option<Value>,
    /// What happened. Its fields depend on its `type`.
    #[schema(value_type = Object)]
    pub event: Value,
}

/// The recorded events of a run and of its child runs, as a tree. The first 4 MiB of the values that calls
/// returned are included; further values are left out (`shortened`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Trace {
    /// Id of the run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Id of the root tool, or `batch`.
    pub tool: String,
    /// The run and operation that spawned it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<OperationRef>,
    /// Its events, in order.
    pub activities: Vec<Activity>,
    /// Its child runs, oldest first.
    #[schema(no_recursion)]
    pub children: Vec<Trace>,
    /// Whether the trace was too long, so that a part of it is missing.
    pub truncated: bool,
}

/// A cancellation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Reason, recorded in the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The outcome with which a held run is finished: either `value` or `error`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishRequest {
    /// Value of the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable::value")]
    #[schema(value_type = Option<Value>)]
    pub value: Option<Value>,
    /// Error of the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorRequest>,
    /// Reason, recorded in the journal.
    pub reason: String,
}

/// A fork of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkRequest {
    /// `start`, `end`, or the path of the first operation that is not copied.
    #[schema(example = "2/0")]
    pub at: String,
    /// What is different in the fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<ForkChange>,
}

/// The change in a fork: exactly one of `input`, `value` and `error`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkChange {
    /// New arguments of the call at `at`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable::value")]
    #[schema(value_type = Option<Value>)]
    pub input: Option<Value>,
    /// Value of the operation at `at`, which is then not performed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable::value")]
    #[schema(value_type = Option<Value>)]
    pub value: Option<Value>,
    /// Error of the operation at `at`, which is then not performed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorRequest>,
    /// Reason, recorded in the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A new run that was forked from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Forked {
    /// Id of the new run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Id of the original run.
    #[schema(value_type = String, format = "uuid")]
    pub from: RunId,
}

/// An imported run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Imported {
    /// Id of the run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// `finished`, or `held` until it is resumed.
    pub state: RunState,
}

/// A signal for a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    /// Value of the signal.
    #[serde(default)]
    #[schema(value_type = Value)]
    pub value: Value,
}

/// The result of replaying a journal with the tools of this server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplayCheck {
    /// Id of the run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Whether the run would continue, or end as it did.
    pub fits: bool,
    /// The result in words.
    pub sentence: String,
    /// Why the run would be held, if the journal does not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
}

/// The differences of two runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Comparison {
    /// The first run.
    pub a: Side,
    /// The second run.
    pub b: Side,
    /// Number of operations that both have with the same input and outcome.
    pub same: u64,
    /// Number of operations that both have with a different input or outcome.
    pub differing: u64,
    /// The first difference; missing if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Departure>,
    /// The comparison in one sentence.
    pub sentence: String,
}

/// One of two compared runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Side {
    /// Id of the run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Number of its operations, without the root call.
    pub operations: u64,
    /// Number of operations that only this run has.
    pub alone: u64,
    /// Value of the run, if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable::value")]
    #[schema(value_type = Option<Value>)]
    pub value: Option<Value>,
    /// Error of the run, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// The first operation in which two runs differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Departure {
    /// Path of the operation.
    #[schema(value_type = String)]
    pub path: Path,
    /// What differs: `asked` (the requested operation) or `outcome`.
    pub what: String,
    /// What the first run has at this path; missing if it has nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub a: Option<String>,
    /// What the second run has at this path; missing if it has nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b: Option<String>,
    /// The first differences of the values, in words.
    pub differences: Vec<String>,
}
