//! Tools as others see them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::call::{Failure, Violation};

/// A tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolView {
    /// What models call it.
    pub name: String,
    /// Its stable id.
    pub id: String,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// For models.
    pub description: String,
    /// Its own version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Selects it in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// `readonly`, `idempotent` or `once`; of a durable tool: what its steps are is theirs to say.
    pub effect: String,
    /// Whether its body is made of durable operations.
    pub durable: bool,
    /// What a caller should know: `destructive`, `open_world`, `long_running`, `cpu_bound`.
    #[schema(value_type = Object)]
    pub hints: Map<String, Value>,
    /// What it asks for, as far as it says so itself: `timeout_ms`, `approval`, `retry` and others.
    #[schema(value_type = Object)]
    pub policy: Map<String, Value>,
    /// `auto`, `parallel`, `exclusive`, or the expression of its key.
    pub concurrency: String,
    /// The provider its calls need a connection to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// JSON Schema of its arguments.
    #[schema(value_type = Object)]
    pub input_schema: Value,
    /// JSON Schema of what it returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub output_schema: Option<Value>,
    /// Why its schemas are not shown, and calls of it fail; in a list, where it hides no other tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// Every tool, sorted by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolList {
    /// The tools.
    pub tools: Vec<ToolView>,
}

/// The same as OpenAI's models are told of tools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OpenAiTools {
    /// The tools.
    pub tools: Vec<OpenAiTool>,
}

/// A tool in OpenAI's form, and nothing else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenAiTool {
    /// `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The tool.
    pub function: OpenAiFunction,
}

/// What OpenAI calls a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OpenAiFunction {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments.
    #[schema(value_type = Object)]
    pub parameters: Value,
}

/// The same as Anthropic's models are told of tools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AnthropicTools {
    /// The tools.
    pub tools: Vec<AnthropicTool>,
}

/// A tool in Anthropic's form, and nothing else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnthropicTool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments.
    #[schema(value_type = Object)]
    pub input_schema: Value,
}

/// A call that might be made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckRequest {
    /// Its arguments.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub args: Map<String, Value>,
    /// The session it would belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The layer it would be made through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-zA-Z0-9_.-]+$")]
    pub layer: Option<String>,
}

/// What would become of a call. Nothing was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CheckAnswer {
    /// The tool's name.
    pub tool: String,
    /// Whether the arguments fit.
    pub valid: bool,
    /// Each way in which they do not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<Violation>,
    /// What would happen.
    pub verdict: Verdict,
    /// Why, if it would not simply run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How it would be refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// `readonly`, `idempotent` or `once`.
    pub effect: String,
    /// The key it would queue under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What would happen to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It would run.
    Runs,
    /// Somebody would have to connect a provider first.
    NeedsConnection,
    /// Somebody would have to approve it first.
    NeedsApproval,
    /// It would end with an error, without an attempt.
    Refused,
}
