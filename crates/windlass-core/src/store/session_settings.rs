//! What a session is set to: its model, its agent, and how its turns begin. Every store decides about wakes and limits
//! with these functions, in the commit that writes the message or creates the run.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Author, Creation, NewMessage, SessionInfo};
use crate::id::RunId;
use crate::limits;
use crate::path::Path;
use crate::run::record::{Asked, Event, OpKind, Record};
use crate::time::Timestamp;
use crate::tool::Effect;

/// The settings of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSettings {
    /// The model, by the name that its agent or its client uses. Windlass does not interpret it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    /// The context window of the model, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// The id of the tool that a wake calls as a turn. Without one, a wake is only an event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Arc<str>>,
    /// Which messages wake the session.
    #[serde(default, skip_serializing_if = "WakePolicy::is_default")]
    pub wake: WakePolicy,
    /// What becomes of a wake while the session has a turn that is not over.
    #[serde(default, skip_serializing_if = "TurnPolicy::is_default")]
    pub turns: TurnPolicy,
    /// The most unfinished runs; the runtime's limit if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfinished_runs: Option<u64>,
}

/// How a new run takes its turn in a session. A session has one turn at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Turn {
    /// The run is not a turn.
    #[default]
    No,
    /// The run waits for the turns before it. Only for runs without an owner.
    Queue,
    /// The run is refused while the session has a turn that is not over.
    Refuse,
}

/// Which messages wake a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WakePolicy {
    /// Those that ask for it.
    #[default]
    Asked,
    /// Those, and every message of a user that does not ask not to.
    User,
}

/// What becomes of a new turn while the session has one that is not over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnPolicy {
    /// It waits.
    #[default]
    Queue,
    /// It is refused, and nothing is written.
    Refuse,
}

impl WakePolicy {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl TurnPolicy {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl From<TurnPolicy> for Turn {
    fn from(policy: TurnPolicy) -> Self {
        match policy {
            TurnPolicy::Queue => Self::Queue,
            TurnPolicy::Refuse => Self::Refuse,
        }
    }
}

/// Whether a message wakes its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wake {
    /// As the session's [`WakePolicy`] says.
    #[default]
    BySession,
    /// No.
    No,
    /// Yes, with the session's [`TurnPolicy`].
    Yes,
    /// Yes. The turn waits for the turns before it.
    Queue,
    /// Yes. The message is refused while the session has a turn that is not over.
    Refuse,
}

impl Wake {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A change of settings: what is `None` stays as it is, and `Some(None)` removes a setting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsChange {
    /// See [`SessionSettings::model`].
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub model: Option<Option<Arc<str>>>,
    /// See [`SessionSettings::window`].
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub window: Option<Option<u64>>,
    /// See [`SessionSettings::agent`].
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub agent: Option<Option<Arc<str>>>,
    /// See [`SessionSettings::wake`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake: Option<WakePolicy>,
    /// See [`SessionSettings::turns`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<TurnPolicy>,
    /// See [`SessionSettings::unfinished_runs`].
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub unfinished_runs: Option<Option<u64>>,
}

/// Reads a present field as `Some`, also if it is `null`.
fn present<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(field: D) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(field).map(Some)
}

impl SettingsChange {
    /// Sets the model.
    #[must_use]
    pub fn model(mut self, model: impl Into<Arc<str>>) -> Self {
        self.model = Some(Some(model.into()));
        self
    }

    /// Sets the context window of the model, in tokens.
    #[must_use]
    pub fn window(mut self, tokens: u64) -> Self {
        self.window = Some(Some(tokens));
        self
    }

    /// Sets the tool that a wake calls as a turn, by its name or its id.
    #[must_use]
    pub fn agent(mut self, tool: impl Into<Arc<str>>) -> Self {
        self.agent = Some(Some(tool.into()));
        self
    }

    /// Sets which messages wake the session.
    #[must_use]
    pub fn wake(mut self, policy: WakePolicy) -> Self {
        self.wake = Some(policy);
        self
    }

    /// Sets what becomes of a wake while the session has a turn.
    #[must_use]
    pub fn turns(mut self, policy: TurnPolicy) -> Self {
        self.turns = Some(policy);
        self
    }

    /// Sets the most unfinished runs.
    #[must_use]
    pub fn unfinished_runs(mut self, most: u64) -> Self {
        self.unfinished_runs = Some(Some(most));
        self
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl SessionSettings {
    /// Applies a change.
    pub fn apply(&mut self, change: &SettingsChange) {
        let SettingsChange { model, window, agent, wake, turns, unfinished_runs } = change.clone();
        self.model = model.unwrap_or(self.model.take());
        self.window = window.unwrap_or(self.window);
        self.agent = agent.unwrap_or(self.agent.take());
        self.wake = wake.unwrap_or(self.wake);
        self.turns = turns.unwrap_or(self.turns);
        self.unfinished_runs = unfinished_runs.unwrap_or(self.unfinished_runs);
    }

    /// Whether they are those of a new session.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// How the turn begins that a message starts; `None` if the message does not wake the session.
    pub fn woken_by(&self, message: &NewMessage) -> Option<Turn> {
        match message.wake {
            Wake::No => None,
            Wake::BySession if self.wake == WakePolicy::User && message.author == Author::User => {
                Some(self.turns.into())
            }
            Wake::BySession => None,
            Wake::Yes => Some(self.turns.into()),
            Wake::Queue => Some(Turn::Queue),
            Wake::Refuse => Some(Turn::Refuse),
        }
    }
}

/// The principal for whom a write to a session starts a run, and how many unfinished runs the session may have besides
/// it. `None` does not limit them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Starter {
    /// Who the run acts for.
    pub principal: Option<Arc<str>>,
    /// See [`Creation::most`].
    pub most: Option<u64>,
}

/// A run that a write to a session starts.
#[derive(Clone, Debug)]
pub struct NewTurn {
    /// Its id.
    pub run: RunId,
    /// Its description.
    pub creation: Creation,
    /// The first record of its journal.
    pub record: Record,
}

/// The turn that the message at `position` starts. Its id follows from the session and the message, so that it is the
/// same however often the write is tried.
pub fn message_turn(
    session: &SessionInfo,
    agent: &Arc<str>,
    position: u64,
    at: Timestamp,
    principal: Option<&Arc<str>>,
) -> NewTurn {
    let named = json!(["wake", session.name, session.created, position]);
    let input = json!({"session": session.name, "message": position});
    // No attempt was made, so the effect class of the tool counts, which is at least as strict as this one.
    let asked = Asked::operation(OpKind::Call, agent.clone(), Some(Arc::new(input)), Effect::Readonly);
    let mut turn = new_turn(session, RunId::derived(&named.to_string(), at), asked, at);
    turn.creation.principal = principal.or(session.owner.as_ref()).cloned();
    turn.creation.cause = Some(format!("message {position}").into());
    turn
}

/// A turn of a session that is not started by a message.
pub(super) fn new_turn(session: &SessionInfo, run: RunId, asked: Asked, at: Timestamp) -> NewTurn {
    let creation = Creation {
        tool: asked.name.clone(),
        at,
        session: Some(session.name.clone()),
        turn: Turn::Queue,
        ..Creation::default()
    };
    let record = Record { path: Path::root(), at, asked: Some(asked), event: Event::Accepted };
    NewTurn { run, creation, record }
}

/// The key of the run that was started with a turn id. It names the time of the session, because a session that was
/// purged may be followed by another one of the same name.
pub fn turn_key(session: &SessionInfo, id: &str) -> Arc<str> {
    json!(["turn", session.name, session.created, id]).to_string().into()
}

/// The most unfinished runs of a session, if a run with this limit is to be created in it.
pub fn most_unfinished(settings: &SessionSettings, most: Option<u64>) -> Option<u64> {
    most.map(|most| settings.unfinished_runs.unwrap_or(most).min(limits::SESSION_RUNS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l20_a_change_of_settings_keeps_what_it_does_not_name() {
        let mut settings = SessionSettings::default();
        settings.apply(&SettingsChange::default().model("m-1").agent("agent").turns(TurnPolicy::Refuse));
        let read: SettingsChange = serde_json::from_value(json!({"model": null, "window": 8_000})).unwrap();
        assert_eq!((&read.model, read.window, &read.agent), (&Some(None), Some(Some(8_000)), &None));
        settings.apply(&read);
        let expected = json!({"window": 8_000, "agent": "agent", "turns": "refuse"});
        assert_eq!(serde_json::to_value(&settings).unwrap(), expected);
        assert_eq!(serde_json::from_value::<SessionSettings>(expected).unwrap(), settings);
        assert!(SettingsChange::default().is_empty() && !read.is_empty());
        assert_eq!(serde_json::to_value(SessionSettings::default()).unwrap(), json!({}));
    }

    #[test]
    fn l20_which_messages_wake_a_session_is_its_policy_unless_they_say_so_themselves() {
        let says = |author, wake| NewMessage { wake, ..NewMessage::text(author, "hello") };
        let by_user = |turns| SessionSettings { wake: WakePolicy::User, turns, ..SessionSettings::default() };
        let (asked, user) = (SessionSettings::default(), by_user(TurnPolicy::Refuse));
        for (settings, message, expected) in [
            (&asked, says(Author::User, Wake::BySession), None),
            (&user, says(Author::User, Wake::BySession), Some(Turn::Refuse)),
            (&user, says(Author::Tool, Wake::BySession), None),
            (&user, says(Author::User, Wake::No), None),
            (&asked, says(Author::Tool, Wake::Yes), Some(Turn::Queue)),
            (&user, says(Author::Tool, Wake::Yes), Some(Turn::Refuse)),
            (&user, says(Author::Tool, Wake::Queue), Some(Turn::Queue)),
            (&asked, says(Author::Tool, Wake::Refuse), Some(Turn::Refuse)),
        ] {
            assert_eq!(settings.woken_by(&message), expected, "{message:?} in {settings:?}");
        }
    }
}
