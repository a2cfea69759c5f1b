//! Calls and their outcomes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use windlass::{Path, RunId};

use super::blocked::Move;
use super::raw::RawJson;
use super::run::RunState;

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallRequest {
    /// Name of the tool.
    #[schema(example = "add", min_length = 1, max_length = 255)]
    pub tool: String,
    /// Arguments of the call.
    #[serde(default = "empty_object")]
    #[schema(value_type = Object)]
    pub args: Value,
    /// Session that the run belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    pub session: Option<String>,
    /// Layer through which the tool is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-zA-Z0-9_.-]+$")]
    pub layer: Option<String>,
    /// The model's id of the call, returned with the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 255)]
    pub call_id: Option<String>,
    /// Opaque data of the model's provider, such as a reasoning signature: any JSON, returned with the outcome byte for
    /// byte. At most 256 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::nullable::raw")]
    #[schema(value_type = Option<Value>)]
    pub metadata: Option<RawJson>,
    /// Cause of the run: the id of a message, a turn or a frame, as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub cause: Option<String>,
    /// Longest time to wait for the outcome; 30,000 by default. With 0 the response does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 300_000)]
    pub wait_ms: Option<u64>,
}

/// One call of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchCall {
    /// Name of the tool.
    #[schema(min_length = 1, max_length = 255)]
    pub tool: String,
    /// Arguments of the call.
    #[serde(default = "empty_object")]
    #[schema(value_type = Object)]
    pub args: Value,
    /// The model's id of the call, returned with the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// Opaque data of the model's provider, such as a reasoning signature: any JSON, returned with the outcome byte for
    /// byte. At most 256 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::nullable::raw")]
    #[schema(value_type = Option<Value>)]
    pub metadata: Option<RawJson>,
}

/// Several calls as one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    /// The calls.
    #[schema(min_items = 1, max_items = 1000)]
    pub calls: Vec<BatchCall>,
    /// Session that the run belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    pub session: Option<String>,
    /// Layer through which the tool is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-zA-Z0-9_.-]+$")]
    pub layer: Option<String>,
    /// Cause of the run: the id of a message, a turn or a frame, as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub cause: Option<String>,
    /// After a failed call, calls that have not started are skipped; their outcome is a `cancelled` error.
    #[serde(default)]
    pub stop_on_failure: bool,
    /// Longest time to wait for the outcomes; 30,000 by default. With 0 the response does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 300_000)]
    pub wait_ms: Option<u64>,
}

fn empty_object() -> Value {
    Value::Object(Map::new())
}

/// A finished call. Its outcome may be an error of the tool: the HTTP status is 200 in both cases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CallResponse {
    /// Id of the run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Outcome of the call.
    pub outcome: Outcome,
}

/// A finished batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BatchResponse {
    /// Id of the run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Digest of the calls of a batch: their ids, the ids of their tools, and their arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Indices of the calls of a batch in the order in which they ended. Only in the response of
    /// `/v1/runs/{run}/outcome`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settled: Vec<u32>,
    /// Outcomes in the order of the calls.
    pub outcomes: Vec<Outcome>,
}

/// The outcomes of a run: one of a call, or those of a batch.
pub type OutcomeResponse = BatchResponse;

/// A run that is stored and continues, even if the client disconnects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Accepted {
    /// Id of the run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// State of the run when the response was made.
    pub state: RunState,
    /// Why there is no outcome yet, and what has to happen, in one sentence.
    pub sentence: String,
    /// What would let the run continue; empty if it has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<Move>,
    /// Query parameter `access` of `/v1/runs/{run}` and `/v1/runs/{run}/outcome`, with which the token that made the
    /// call can read the run. Missing if the token has the scope `read`, and therefore needs no permission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
}

/// A page of the text of an output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputPage {
    /// Id of the run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Path of the call in its run.
    #[schema(value_type = String, example = "/")]
    pub path: Path,
    /// Text of this page.
    pub text: String,
    /// Byte that the page begins at.
    pub offset: u64,
    /// Byte that the next page begins at; `null` at the end.
    pub next_offset: Option<u64>,
    /// Bytes of the whole text.
    pub total_bytes: u64,
}

/// The outcome of one call: either `value` or `error`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Outcome {
    /// Path of the call in its run; `/` for a single call.
    #[schema(value_type = String, example = "/")]
    pub path: Path,
    /// The id that the request gave the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// Returned value, which may be `null`. Missing if the call failed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::nullable::value")]
    #[schema(value_type = Option<Value>)]
    pub value: Option<Value>,
    /// Text, images, audio and files in addition to the value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub content: Vec<Value>,
    /// What to show a model, if that is not the value: shortened to the output budget, rendered by the tool, or marked
    /// as untrusted content.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::nullable::value")]
    #[schema(value_type = Option<Value>)]
    pub shown: Option<Value>,
    /// What to show a model that accepts content blocks, if the output has any: the value as text and the blocks, with
    /// all texts together within the output budget. Large images, audio and files are artifacts: `artifact` and `size`
    /// instead of `data`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub shown_content: Vec<Value>,
    /// The error, if the call failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// Duration of the call.
    pub times: Times,
    /// The call: its tool and its arguments.
    pub call: OutcomeCall,
    /// The metadata that was given with the call, byte for byte.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::nullable::raw")]
    #[schema(value_type = Option<Value>)]
    pub metadata: Option<RawJson>,
}

/// The call of an outcome. Secret arguments are hidden; arguments of a tool that is not registered are left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutcomeCall {
    /// Id of the tool; the name as called if no tool has it.
    pub tool: String,
    /// Name by which the tool was called.
    pub name: String,
    /// Arguments as asked.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::nullable::value")]
    #[schema(value_type = Option<Value>)]
    pub args: Option<Value>,
    /// Arguments as executed, if middleware or the tool's `prepare` changed them.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::nullable::value")]
    #[schema(value_type = Option<Value>)]
    pub executed: Option<Value>,
}

impl Outcome {
    /// Whether the call succeeded.
    pub fn is_ok(&self) -> bool {
        self.error.is_none()
    }
}

/// An error of a call, without internal details.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// Kind of the error: `invalid_arguments`, `unavailable`, `failed`, `internal`, `timed_out`, `cancelled`, `denied`,
    /// `connection_required`, `panicked` or `in_doubt`.
    pub kind: String,
    /// One sentence for people and models.
    pub message: String,
    /// Short name for programs, if the tool gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What else the tool reported, if anything. A value of more than 4 KiB is its text without the middle.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::nullable::value")]
    #[schema(value_type = Option<Value>)]
    pub data: Option<Value>,
    /// Violations of the input schema.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<Violation>,
    /// Whether the same call may succeed later.
    #[serde(default)]
    pub retryable: bool,
}

/// A violation of the input schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Violation {
    /// JSON pointer into the arguments; empty for the arguments as a whole.
    pub pointer: String,
    /// What is wrong at this position.
    pub message: String,
}

/// An error that a client supplies as the outcome of an input, an attempt or a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ErrorRequest {
    /// Short name for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// One sentence for people and models.
    pub message: String,
    /// What else there is to report, at most 4 KiB of JSON; longer values are shortened.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::nullable::value")]
    #[schema(value_type = Option<Value>)]
    pub data: Option<Value>,
}

/// Durations of a call, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Times {
    /// Time spent waiting: for permits, keys, earlier turns, retry delays and people.
    pub queued_ms: f64,
    /// Time spent in attempts.
    pub running_ms: f64,
    /// Time from the request to the outcome.
    pub total_ms: f64,
}
