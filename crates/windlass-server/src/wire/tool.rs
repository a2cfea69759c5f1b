//! Tools.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::call::{Failure, Violation};

/// A tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolView {
    /// Name of the tool.
    pub name: String,
    /// Stable id of the tool.
    pub id: String,
    /// Title for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Description for models.
    pub description: String,
    /// Version of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Tags that select the tool in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Effect of a call: `readonly`, `idempotent` or `once`. Each step of a durable tool has its own effect.
    pub effect: String,
    /// Whether the body consists of durable operations.
    pub durable: bool,
    /// Hints for callers: `destructive`, `open_world`, `long_running`, `cpu_bound`.
    #[schema(value_type = Object)]
    pub hints: Map<String, Value>,
    /// Policy that the tool itself declares: `timeout_ms`, `approval`, `attempts` and others.
    #[schema(value_type = Object)]
    pub policy: Map<String, Value>,
    /// `auto`, `parallel`, `exclusive`, or the expression of the key under which calls queue.
    pub concurrency: String,
    /// Provider to which calls need a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// JSON Schema of the arguments. Absent in a list if it is not loaded; `schemas=all`, `names` or
    /// `/v1/tools/{name}` load it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<Value>,
    /// JSON Schema of the returned value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub output_schema: Option<Value>,
    /// Why the schemas could not be loaded, in which case calls fail. Only in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// A source whose tools could not be listed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FailedSource {
    /// Name of the source.
    pub source: String,
    /// Why its tools could not be listed.
    pub message: String,
}

/// All tools, sorted by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolList {
    /// The tools.
    pub tools: Vec<ToolView>,
    /// Sources whose tools are missing in the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_sources: Vec<FailedSource>,
}

/// All tools in OpenAI's format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OpenAiTools {
    /// The tools.
    pub tools: Vec<OpenAiTool>,
    /// Sources whose tools are missing in the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_sources: Vec<FailedSource>,
}

/// A tool in OpenAI's format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenAiTool {
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The tool.
    pub function: OpenAiFunction,
}

/// A function in OpenAI's format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OpenAiFunction {
    /// Name of the tool, in characters that the API accepts.
    pub name: String,
    /// Description for models.
    pub description: String,
    /// JSON Schema of the arguments.
    #[schema(value_type = Object)]
    pub parameters: Value,
}

/// All tools in Anthropic's format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AnthropicTools {
    /// The tools.
    pub tools: Vec<AnthropicTool>,
    /// Sources whose tools are missing in the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_sources: Vec<FailedSource>,
}

/// A tool in Anthropic's format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnthropicTool {
    /// Name of the tool, in characters that the API accepts.
    pub name: String,
    /// Description for models.
    pub description: String,
    /// JSON Schema of the arguments.
    #[schema(value_type = Object)]
    pub input_schema: Value,
}

/// A hypothetical call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckRequest {
    /// Arguments of the call.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub args: Map<String, Value>,
    /// Session of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Cause of the run, as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub cause: Option<String>,
    /// Layer through which the tool would be called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-zA-Z0-9_.-]+$")]
    pub layer: Option<String>,
}

/// What would happen to a hypothetical call. Nothing was executed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CheckResponse {
    /// Name of the tool.
    pub tool: String,
    /// Whether the arguments match the input schema.
    pub valid: bool,
    /// Violations of the input schema.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<Violation>,
    /// What would happen.
    pub verdict: Verdict,
    /// Why the call would not run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The error with which the call would be refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// Effect of the call: `readonly`, `idempotent` or `once`.
    pub effect: String,
    /// Key under which the call would queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Longest time of one attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Longest time of the call in all, if it is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Whether the tool has a `prepare` that was not asked, because the token lacks the scope `call`. It may still refuse the
    /// call, answer it or change its arguments.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unprepared: bool,
}

/// What would happen to a hypothetical call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It would run.
    Runs,
    /// Middleware would answer it, without an attempt.
    Answered,
    /// It would wait for a connection to a provider.
    NeedsConnection,
    /// It would wait for approval.
    NeedsApproval,
    /// It would fail without an attempt.
    Refused,
}
