//! Settings, turns and contexts of sessions, and their events.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::RunId;

use super::event::Activity;
use super::nullable;
use super::session::MessageView;
use super::time::Time;

/// Which messages wake a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WakeMode {
    /// Those that ask for it.
    #[default]
    Asked,
    /// Those, and every message of a user that does not ask not to.
    User,
}

/// What becomes of a new turn while the session has one that is not over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnMode {
    /// It waits.
    #[default]
    Queue,
    /// It is refused, and nothing is written.
    Refuse,
}

/// The settings of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SettingsView {
    /// The model, as it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The context window of the model, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// The id of the tool that a wake calls as a turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Which messages wake the session.
    #[serde(default)]
    #[schema(inline)]
    pub wake: WakeMode,
    /// What becomes of a wake while the session has a turn that is not over.
    #[serde(default)]
    #[schema(inline)]
    pub turns: TurnMode,
    /// Most unfinished runs; the server's limit if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfinished_runs: Option<u64>,
}

impl SettingsView {
    /// Whether they are those of a new session.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Changes the settings of a session. A field that is left out stays as it is, and `null` removes the setting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingsRequest {
    /// The model, by any name.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable::some")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 255)]
    pub model: Option<Option<String>>,
    /// The context window of the model, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable::some")]
    #[schema(value_type = Option<u64>, minimum = 1)]
    pub window: Option<Option<u64>>,
    /// The tool that a wake calls as a turn, by its name or id.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable::some")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 255)]
    pub agent: Option<Option<String>>,
    /// Which messages wake the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    pub wake: Option<WakeMode>,
    /// What becomes of a wake while the session has a turn that is not over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    pub turns: Option<TurnMode>,
    /// Most unfinished runs.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable::some")]
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 10_000)]
    pub unfinished_runs: Option<Option<u64>>,
}

/// Whether a session is idle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IdleResponse {
    /// The session.
    pub session: String,
    /// Whether none of its runs is unfinished.
    pub idle: bool,
    /// The oldest unfinished runs.
    pub unfinished: Vec<UnfinishedRun>,
    /// Whether there are more.
    pub more: bool,
}

/// An unfinished run of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnfinishedRun {
    /// Id of the run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// What it does or waits for.
    pub sentence: String,
}

/// What fills the context of a session's model. Tokens are an estimate: bytes of JSON divided by four.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContextView {
    /// The session.
    pub session: String,
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The context window of the model, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// Estimated tokens of all sections.
    pub input_tokens: u64,
    /// How much of the window they are, in per cent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_percent: Option<u64>,
    /// The sections: `messages`, `tools` and `data`.
    pub sections: Vec<ContextSectionView>,
}

/// A part of a context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContextSectionView {
    /// What it contains.
    pub name: String,
    /// How many there are.
    pub items: u64,
    /// Their bytes of JSON.
    pub bytes: u64,
    /// Their estimated tokens.
    pub tokens: u64,
}

/// An event of a session: of one of its runs, or a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SessionEvent {
    /// A message that was posted.
    Message(MessageEvent),
    /// An event of a run. Its `position` is the one after it in the stream of the session.
    Activity(Activity),
}

impl SessionEvent {
    /// The position after the event; `None` for an event that is not recorded.
    pub fn position(&self) -> Option<&str> {
        match self {
            Self::Message(message) => Some(&message.position),
            Self::Activity(activity) => activity.position.as_deref(),
        }
    }

    /// The kind of the event.
    pub fn kind(&self) -> &str {
        match self {
            Self::Message(message) => &message.kind,
            Self::Activity(activity) => &activity.kind,
        }
    }
}

/// A message that was posted to a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessageEvent {
    /// The position after the event in the stream of the session.
    pub position: String,
    /// When it was posted.
    pub at: Time,
    /// `message_posted`.
    pub kind: String,
    /// The message. One that woke the session says so, and names the turn that it started.
    pub message: MessageView,
}

/// A page of events of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionEventPage {
    /// The events, in order.
    pub events: Vec<SessionEvent>,
    /// Position of the next page (`from`).
    pub next: String,
    /// Whether the session was purged, so that there are no further events.
    pub ended: bool,
}
