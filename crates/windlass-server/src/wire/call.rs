//! Calls and what they come to.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use windlass::{Path, RunId};

use super::run::State;

/// A call to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallRequest {
    /// The tool's name.
    #[schema(example = "add", min_length = 1, max_length = 255)]
    pub tool: String,
    /// Its arguments.
    #[serde(default = "nothing")]
    #[schema(value_type = Object)]
    pub args: Value,
    /// The session it belongs to: 1 to 255 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    pub session: Option<String>,
    /// Through which layer, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-zA-Z0-9_.-]+$")]
    pub layer: Option<String>,
    /// The id a model gave the call; comes back with the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 255)]
    pub call_id: Option<String>,
    /// How long to wait for the outcome; 30,000 unless said, at most 300,000. Zero does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 300_000)]
    pub wait_ms: Option<u64>,
}

/// One call of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchCall {
    /// The tool's name.
    #[schema(min_length = 1, max_length = 255)]
    pub tool: String,
    /// Its arguments.
    #[serde(default = "nothing")]
    #[schema(value_type = Object)]
    pub args: Value,
    /// The id a model gave the call; comes back with the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
}

/// Several calls to be made as one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    /// The calls; at least one.
    #[schema(min_items = 1, max_items = 1000)]
    pub calls: Vec<BatchCall>,
    /// The session they belong to: 1 to 255 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    pub session: Option<String>,
    /// Through which layer, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-zA-Z0-9_.-]+$")]
    pub layer: Option<String>,
    /// After a failure, calls not yet started are skipped and say so.
    #[serde(default)]
    pub stop_on_failure: bool,
    /// How long to wait for the outcomes; 30,000 unless said, at most 300,000. Zero does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 300_000)]
    pub wait_ms: Option<u64>,
}

fn nothing() -> Value {
    Value::Object(Map::new())
}

/// What a call came to. The outcome is about the tool; that there is one is what the HTTP status says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CallAnswer {
    /// The run it was.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// What it came to.
    pub outcome: Outcome,
}

/// What the calls of a batch came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BatchAnswer {
    /// The run they were.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// What they came to, in their order.
    pub outcomes: Vec<Outcome>,
}

/// What a run came to: one outcome, or those of a batch.
pub type OutcomeAnswer = BatchAnswer;

/// It is in the store and goes on, whatever becomes of whoever asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Accepted {
    /// Which run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Where it stood a moment ago.
    pub state: State,
    /// Why it has no outcome yet, and what would move it, where that is known without looking further.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentence: Option<String>,
}

/// What one call came to: `error`, or else `value`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Outcome {
    /// Where in the run the call stands; `/` for the only one.
    #[schema(value_type = String, example = "/")]
    pub path: Path,
    /// The id the caller gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// What it returned; may be `null`, and is missing where it failed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::present::value")]
    #[schema(value_type = Option<Value>)]
    pub value: Option<Value>,
    /// Text, images, audio and files beside the value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub content: Vec<Value>,
    /// What a model is to be shown, where that is not the value: cut to its budget, made by the tool for models, or marked
    /// as coming from the world outside.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::present::value")]
    #[schema(value_type = Option<Value>)]
    pub shown: Option<Value>,
    /// How it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// Where its time went.
    pub times: Times,
}

impl Outcome {
    /// Whether the call returned something.
    pub fn is_ok(&self) -> bool {
        self.error.is_none()
    }
}

/// What anyone outside may know of a failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// The kind: `invalid_arguments`, `unavailable`, `failed`, `internal`, `timed_out`, `cancelled`, `denied`,
    /// `connection_required`, `panicked` or `in_doubt`.
    pub kind: String,
    /// One sentence.
    pub message: String,
    /// A short name programs can act on, where whoever failed gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Each way in which the arguments do not fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<Violation>,
    /// Whether calling again may help without changing anything.
    #[serde(default)]
    pub retryable: bool,
}

/// One way in which arguments do not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Violation {
    /// JSON pointer into the arguments; empty for the whole.
    pub pointer: String,
    /// What is wrong there.
    pub message: String,
}

/// An error from outside: of a reply, of a run that is finished by hand, of a changed outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ErrorRequest {
    /// A short name programs can act on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// For people and models.
    pub message: String,
}

/// Where a call's time went, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Times {
    /// Waiting for permits, keys, its turn, retry delays and people.
    pub queued_ms: f64,
    /// In attempts.
    pub running_ms: f64,
    /// From being asked to having an outcome.
    pub total_ms: f64,
}
