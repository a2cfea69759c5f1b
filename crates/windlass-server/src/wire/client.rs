//! Client tools, and the calls that are sent to clients.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use windlass::{Path, RunId};

use super::Time;

/// Tools that a client registers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientRequest {
    /// The tools.
    #[schema(min_items = 1, max_items = 256)]
    pub tools: Vec<ClientTool>,
    /// The session that the tools belong to; it is opened if it does not exist. Other sessions do not have the tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub session: Option<String>,
    /// Offer the tools in every session and outside of sessions, instead of in one `session`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub everywhere: bool,
}

/// A tool that runs in a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientTool {
    /// Name of the tool.
    #[schema(pattern = "^[a-zA-Z0-9_.-]{1,64}$")]
    pub name: String,
    /// Description for models.
    pub description: String,
    /// JSON Schema of the arguments. By default any object is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<Value>,
    /// JSON Schema of the returned value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub output_schema: Option<Value>,
    /// Effect of a call: `readonly`, `idempotent` or `once` (the default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// Time within which the client has to answer a call; ten minutes by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub deadline_ms: Option<u64>,
}

/// A registered client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClientResponse {
    /// Id of the client. Its calls are at `/v1/clients/{client}/calls`.
    pub client: String,
    /// Names of its tools.
    pub tools: Vec<String>,
    /// The session that they belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

/// A call for a client to execute. The client answers at `/v1/replies/{key}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClientCall {
    /// Id of the run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Path of the call in its run.
    #[schema(value_type = String)]
    pub path: Path,
    /// Name of the tool.
    pub tool: String,
    /// Arguments of the call.
    #[schema(value_type = Value)]
    pub args: Value,
    /// Reply key of the call. It stays the same if the call is sent again.
    pub key: String,
    /// Deadline of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}
