//! Tools that a connected client has, and the calls it is handed.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use windlass::{Path, RunId};

use super::Time;

/// The tools a client brings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientRequest {
    /// The tools; at least one.
    #[schema(min_items = 1, max_items = 256)]
    pub tools: Vec<ClientTool>,
}

/// A tool that a client has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientTool {
    /// What models call it: 1 to 64 of `a-z A-Z 0-9 _ - .`
    #[schema(pattern = "^[a-zA-Z0-9_.-]{1,64}$")]
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments; any object unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<Value>,
    /// JSON Schema of what it returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub output_schema: Option<Value>,
    /// `readonly`, `idempotent` or `once`; `once` unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// How long a call waits for the client's answer; ten minutes unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub deadline_ms: Option<u64>,
}

/// A client that brought tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClientAnswer {
    /// Names it: its calls are at `/v1/clients/{client}/calls`.
    pub client: String,
    /// The names of its tools.
    pub tools: Vec<String>,
}

/// A call that a client is to make. It answers at `/v1/replies/{key}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClientCall {
    /// Which run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Where in it.
    #[schema(value_type = String)]
    pub path: Path,
    /// Which tool.
    pub tool: String,
    /// Its arguments.
    #[schema(value_type = Value)]
    pub args: Value,
    /// The key that answers it; the same if the call is handed out again.
    pub key: String,
    /// The answer is too late from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}
