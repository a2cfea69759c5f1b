//! Runs: where they stand, what they did, and what can be made of them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use windlass::{Path, RunId};

use super::call::{ErrorRequest, Failure, Outcome};
use super::event::Activity;
use super::{Time, present};

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It waits to be taken up for the first time.
    Queued,
    /// Somebody drives it, or will.
    Running,
    /// All it does is wait.
    Suspended,
    /// Nobody drives it until the cause is gone.
    Held,
    /// It has its outcome.
    Finished,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// With an output.
    Ok,
    /// With an error.
    Failed,
    /// Cancelled.
    Cancelled,
    /// Its owner died, and nobody else may go on with it.
    Lost,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Run {
    /// Names it, for ever.
    #[schema(value_type = String, format = "uuid")]
    pub id: RunId,
    /// What it runs: the root tool's id, or `batch`.
    pub tool: String,
    /// The session it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The layers it was called through, the lowest first. Not in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<String>,
    /// The run that spawned it, and where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// When it was created.
    pub created: Time,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
    /// Where it stands.
    pub state: State,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
    /// Why it is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// When it goes on by itself, if it is suspended and waits for a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake: Option<Time>,
    /// Counts how often it went on with a fresh journal.
    pub generation: u32,
    /// How many owners it has had.
    pub epoch: u64,
    /// What of it waits for a settlement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<Doubt>,
    /// What else of it waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parks: Vec<Park>,
    /// Why it is not running and what would move it, or how it ended. Not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentence: Option<String>,
    /// What it came to, if it is finished and its journal is still kept. Not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcomes: Option<Vec<Outcome>>,
}

/// A piece of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunPage {
    /// The runs.
    pub runs: Vec<Run>,
    /// Where to go on (`cursor`); `null` at the end.
    pub next: Option<String>,
}

/// The run that spawned another, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Parent {
    /// Which run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// At which path.
    #[schema(value_type = String)]
    pub path: Path,
}

/// Why a run is held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Hold {
    /// For programs: `diverged`, `crash_loop`, `tool_missing`, `undecodable`, `abandoned`, `outside`, `imported`,
    /// `sealed`, `damaged`, `too_long` or `too_big`.
    pub reason: String,
    /// For people, with the way out.
    pub sentence: String,
    /// The rest, by reason.
    #[serde(flatten)]
    #[schema(value_type = Object, additional_properties)]
    pub detail: Map<String, Value>,
}

/// An attempt that waits for somebody to settle whether it happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Doubt {
    /// Where.
    #[schema(value_type = String)]
    pub path: Path,
    /// Which attempt.
    pub attempt: u32,
    /// What was attempted.
    pub operation: String,
    /// Why it is not known: `worker_lost`, `timed_out`, `cancelled`, `restored` or `unclear`.
    pub cause: String,
    /// What the attempt itself said of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
    /// "It did not happen" is believed from then on.
    pub over_by: Time,
    /// Since when it waits.
    pub since: Time,
}

/// An operation that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Park {
    /// Where.
    #[schema(value_type = String)]
    pub path: Path,
    /// What was asked for.
    pub operation: String,
    /// What it waits for.
    pub on: Waiting,
    /// Since when.
    pub since: Time,
    /// When it stops waiting, whatever happens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

/// What an operation waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Waiting {
    /// `time`, `input`, `signal`, `child`, `approval`, `connection` or `retry`.
    pub kind: String,
    /// The rest, by kind: `name`, `run`, `tool`, `digest`, `why`, `provider`.
    #[serde(flatten)]
    #[schema(value_type = Object, additional_properties)]
    pub detail: Map<String, Value>,
}

/// A piece of a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JournalPage {
    /// In order.
    pub records: Vec<Record>,
    /// Where to go on (`after`); `null` at the end.
    pub next: Option<u64>,
}

/// One entry of a journal. Arguments are shown without their secrets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Record {
    /// Counts from zero.
    pub seq: u64,
    /// Where in the run.
    #[schema(value_type = String)]
    pub path: Path,
    /// When.
    pub at: Time,
    /// What was asked for; with the first record of a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub asked: Option<Value>,
    /// What happened, by its `type`.
    #[schema(value_type = Object)]
    pub event: Value,
}

/// Everything recorded about a run, and below it about the runs it started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Trace {
    /// Which run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// What it runs.
    pub tool: String,
    /// The run that started it, and where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// What happened, in order.
    pub activities: Vec<Activity>,
    /// The runs it started, oldest first.
    #[schema(no_recursion)]
    pub children: Vec<Trace>,
    /// There is more than is shown.
    pub cut: bool,
}

/// Where a run stands and what would move it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// Which run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// What it runs.
    pub tool: String,
    /// Where it stands.
    pub state: State,
    /// The layers it was called through, the lowest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<String>,
    /// All of it in one sentence.
    pub sentence: String,
    /// What would move it; nothing if it is over.
    pub moves: Vec<Move>,
}

/// One thing that would move a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Move {
    /// What stands still there.
    #[schema(value_type = String)]
    pub path: Path,
    /// What is the case, and who or what changes it.
    pub sentence: String,
    /// For programs: `queued`, `attempt`, `waits`, `in_doubt`, `held` and others.
    pub why: String,
    /// The rest, by reason.
    #[serde(flatten)]
    #[schema(value_type = Object, additional_properties)]
    pub detail: Map<String, Value>,
}

/// Why a run is cancelled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The outcome of a held run, from outside: `value` or `error`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishRequest {
    /// It came to this.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present::value")]
    #[schema(value_type = Option<Value>)]
    pub value: Option<Value>,
    /// It failed like this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorRequest>,
    /// Why.
    pub reason: String,
}

/// Where a run is forked, and what is different there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkRequest {
    /// `start`, `end`, or the path of the first operation that is made anew.
    #[schema(example = "2/0")]
    pub at: String,
    /// What is different there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<ForkChange>,
}

/// What is different in a fork: exactly one of `input`, `value` and `error`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkChange {
    /// The call at the cut is made with these arguments.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present::value")]
    #[schema(value_type = Option<Value>)]
    pub input: Option<Value>,
    /// The operation at the cut is not performed: it returned this.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present::value")]
    #[schema(value_type = Option<Value>)]
    pub value: Option<Value>,
    /// The operation at the cut is not performed: it failed like this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorRequest>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A run that was forked from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Forked {
    /// The new run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// The one it was forked from.
    #[schema(value_type = String, format = "uuid")]
    pub from: RunId,
}

/// A run that came as a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Imported {
    /// Which run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Where it stands: `finished`, or `held` until somebody resumes it.
    pub state: State,
}

/// A signal for a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    /// What it says.
    #[serde(default)]
    #[schema(value_type = Value)]
    pub value: Value,
}

/// How far a journal fits the tools of this server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplayCheck {
    /// Which run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Whether the run would go on, or end as it did.
    pub fits: bool,
    /// In words.
    pub sentence: String,
    /// Why it would be held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
}

/// Where two runs differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Comparison {
    /// The first run.
    pub a: Side,
    /// The second run.
    pub b: Side,
    /// Operations that both have, asked for alike and with the same outcome.
    pub same: u64,
    /// Operations that both have and that differ.
    pub differing: u64,
    /// Where they part first; missing if nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Departure>,
    /// All of it in one sentence.
    pub sentence: String,
}

/// One of two runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Side {
    /// Which run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Its operations, without the root call.
    pub operations: u64,
    /// Those that only it has.
    pub alone: u64,
    /// What it returned, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present::value")]
    #[schema(value_type = Option<Value>)]
    pub value: Option<Value>,
    /// How it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// An operation in which two runs differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Departure {
    /// Where.
    #[schema(value_type = String)]
    pub path: Path,
    /// `asked` or `outcome`.
    pub what: String,
    /// What the first run has there; missing if nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub a: Option<String>,
    /// What the second run has there; missing if nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b: Option<String>,
    /// The first places where the values differ, in words.
    pub differences: Vec<String>,
}
