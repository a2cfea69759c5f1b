//! Sessions.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use windlass::RunId;

use super::session_turn::{SettingsRequest, SettingsView, TurnMode};
use super::time::Time;

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// Its name.
    pub session: String,
    /// Title for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The principal it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// When it was opened, or its first run was created.
    pub created: Time,
    /// When it was closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<Time>,
    /// Why it was closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Position of its latest message; 0 without messages.
    pub messages: u64,
    /// Its settings, if they differ from those of a new session.
    #[serde(default, skip_serializing_if = "SettingsView::is_default")]
    pub settings: SettingsView,
}

/// A page of sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionPage {
    /// The sessions, newest first.
    pub sessions: Vec<SessionView>,
    /// `cursor` of the next page. The last page has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Opens a session, or changes one that is open. A field that is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// Title for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 300)]
    pub title: Option<String>,
    /// The principal it belongs to. A session that has an owner keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub owner: Option<String>,
    /// Settings to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<SettingsRequest>,
}

/// A change of the tools that a session shows. The parts are applied in the order of the fields, so `hide` wins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionToolsRequest {
    /// Show all tools, as a new session does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
    /// Show only these tools, instead of those that were shown and revealed before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 1000)]
    pub only: Option<Vec<String>>,
    /// Show these tools too, and no longer hide them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub show: Vec<String>,
    /// Show these tools with their schemas, besides those that are shown. A hidden tool stays hidden.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub reveal: Vec<String>,
    /// Hide these tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub hide: Vec<String>,
}

/// The tools that a session shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionToolsView {
    /// The session.
    pub session: String,
    /// The only tools that it shows; left out if it shows all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<Vec<String>>,
    /// The tools that it hides.
    #[serde(default)]
    pub hidden: Vec<String>,
    /// The tools that it shows besides `shown`.
    #[serde(default)]
    pub revealed: Vec<String>,
    /// Names among these that no tool has now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    /// Names of the tools that can be called in it now.
    pub tools: Vec<String>,
}

/// Who wrote a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MessageAuthor {
    /// The person who uses the session.
    #[default]
    User,
    /// The agent.
    Agent,
    /// A tool.
    Tool,
    /// The program around them.
    System,
}

/// A message to be posted: either `text` or `content`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageRequest {
    /// Who wrote it; `user` if it is left out.
    #[serde(default)]
    #[schema(inline)]
    pub author: MessageAuthor,
    /// Plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Content blocks, as in the output of a call. A block with bytes contains them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub content: Option<Vec<Value>>,
    /// What caused it, such as the id of a turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub cause: Option<String>,
    /// Whether it wakes the session: then it starts a turn of the session's agent. If it is left out, the session's
    /// setting decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake: Option<bool>,
    /// What becomes of the turn while the session has one that is not over, if not what the session's setting says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    pub turn: Option<TurnMode>,
}

/// A message of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessageView {
    /// Its position in the session, counted from one without gaps.
    pub position: u64,
    /// When it was posted.
    pub at: Time,
    /// Who wrote it: `user`, `agent`, `tool` or `system`.
    pub author: String,
    /// Content blocks.
    #[schema(value_type = Vec<Object>)]
    pub content: Vec<Value>,
    /// What caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Whether it woke the session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub woke: bool,
    /// The turn that it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub run: Option<RunId>,
}

/// A message that was posted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PostedMessage {
    /// Its position in the session.
    pub position: u64,
    /// When it was posted.
    pub at: Time,
    /// Whether an earlier request with the same `Idempotency-Key` posted it.
    pub repeated: bool,
    /// The turn that it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub run: Option<RunId>,
}

/// Messages of a session, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessagePage {
    /// The messages.
    pub messages: Vec<MessageView>,
    /// `after` of the next page. The last page has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// The end of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CloseRequest {
    /// Reason, kept with the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub reason: Option<String>,
    /// Whether the unfinished runs are cancelled. Otherwise they go on.
    #[serde(default)]
    pub cancel: bool,
}

/// A closed session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CloseResponse {
    /// The session.
    #[serde(flatten)]
    pub session: SessionView,
    /// Unfinished runs, whose reply keys are void now.
    pub unfinished_runs: u64,
}

/// A value to be set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DataRequest {
    /// The value: any JSON.
    #[serde(deserialize_with = "any")]
    pub value: Value,
}

/// Reads a field that must be present, also if it is `null`.
fn any<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    Value::deserialize(deserializer)
}

/// A value of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DataView {
    /// Its name.
    pub name: String,
    /// The value.
    pub value: Value,
}

/// A secret to be set.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretRequest {
    /// The secret. No response ever contains it.
    #[schema(min_length = 1, max_length = 16384)]
    pub value: String,
}

/// The name of a value or secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DataName {
    /// The name.
    pub name: String,
    /// When it was last set.
    pub updated: Time,
}

/// The names of values or secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DataNames {
    /// The names, in order.
    pub names: Vec<DataName>,
}
