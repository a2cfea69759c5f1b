//! The store's side of sessions: a title, messages, data and secrets that the runs of a session share.
//!
//! A session exists from its first run on, or from the moment it is opened. What is written to it can be refused, so
//! the store decides about each write and applies it in one step. The verdict on a write of a run's operation is kept
//! until that run ends: the same write gets the same answer again, and is never made twice.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::session_settings::{SessionSettings, SettingsChange, Starter, Wake};
use super::{
    FileChange, FileEdit, FileInfo, FileLimits, Files, NewTurn, RecentOutcomes, RefusedEdit, SessionRefusal, StoreError,
};
use crate::id::RunId;
use crate::run::record::Asked;
use crate::time::Timestamp;
use crate::tool::{Content, LiveTools, SessionTools, ToolsChange};

/// A session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its name.
    pub name: Arc<str>,
    /// What people see of it.
    pub title: Option<Arc<str>>,
    /// The principal it belongs to.
    pub owner: Option<Arc<str>>,
    /// When it was opened, or its first run was created.
    pub created: Timestamp,
    /// When and why it was closed; `None` if it is open.
    pub closed: Option<Closing>,
    /// The position of its latest message; zero without messages.
    pub messages: u64,
    /// Whether it was opened or written to. If not, it is no more than the name that its runs share.
    pub opened: bool,
    /// The tools that it shows; `None` if it shows all.
    pub tools: Option<Arc<SessionTools>>,
    /// Its model, agent and limits.
    pub settings: SessionSettings,
}

impl SessionInfo {
    /// Where a list continues after this session.
    pub fn cursor(&self) -> SessionCursor {
        SessionCursor { created: self.created, name: self.name.clone() }
    }
}

/// The end of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closing {
    /// When.
    pub at: Timestamp,
    /// Why.
    pub reason: Arc<str>,
}

/// A position in the list of sessions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionCursor {
    /// When the session was created.
    pub created: Timestamp,
    /// Its name, which orders sessions of the same time.
    pub name: Arc<str>,
}

/// Which sessions a list has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionFilter {
    /// Only open ones, or only closed ones.
    pub open: Option<bool>,
    /// Only those of this principal.
    pub owner: Option<Arc<str>>,
}

impl SessionFilter {
    /// Whether a session matches.
    pub fn matches(&self, session: &SessionInfo) -> bool {
        self.open.is_none_or(|open| open == session.closed.is_none())
            && self.owner.as_ref().is_none_or(|owner| session.owner.as_ref() == Some(owner))
    }
}

/// Who wrote a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Author {
    /// The person who uses the session.
    User,
    /// The agent.
    Agent,
    /// A tool.
    Tool,
    /// The program around them.
    System,
}

impl Author {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::User, Self::Agent, Self::Tool, Self::System];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Agent => "agent",
            Self::Tool => "tool",
            Self::System => "system",
        }
    }

    /// The author with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|author| author.as_str() == name)
    }
}

/// A message to be posted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewMessage {
    /// Who wrote it.
    pub author: Author,
    /// Its content.
    pub content: Vec<Content>,
    /// What caused it, as the caller names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Arc<str>>,
    /// At most one message of the session has this key; posting again returns the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedupe: Option<Arc<str>>,
    /// Whether it wakes the session: then it starts a turn of the session's agent.
    #[serde(default, skip_serializing_if = "Wake::is_default")]
    pub wake: Wake,
}

impl NewMessage {
    /// A message with this content.
    pub fn new(author: Author, content: Vec<Content>) -> Self {
        Self { author, content, cause: None, dedupe: None, wake: Wake::default() }
    }

    /// A message of one text block.
    pub fn text(author: Author, text: impl Into<String>) -> Self {
        Self::new(author, vec![Content::text(text)])
    }

    /// Adds a content block. A block must have its bytes in itself: a message cannot refer to a stored artifact.
    #[must_use]
    pub fn with(mut self, content: Content) -> Self {
        self.content.push(content);
        self
    }

    /// Sets what caused it.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<Arc<str>>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Posts it at most once: posting again with this key returns the first message.
    #[must_use]
    pub fn dedupe(mut self, key: impl Into<Arc<str>>) -> Self {
        self.dedupe = Some(key.into());
        self
    }

    /// Wakes the session: the message starts a turn of the session's agent, in the commit that posts it. In a session
    /// without an agent, the wake is only an event. While the session has a turn that is not over, the new one waits,
    /// unless the session's [`TurnPolicy`](super::TurnPolicy) is to refuse it.
    #[must_use]
    pub fn wake(self) -> Self {
        self.waking(Wake::Yes)
    }

    /// Whether it can wake a session.
    pub(crate) fn may_wake(&self) -> bool {
        match self.wake {
            Wake::No => false,
            Wake::BySession => self.author == Author::User,
            Wake::Yes | Wake::Queue | Wake::Refuse => true,
        }
    }

    /// Sets whether it wakes the session.
    #[must_use]
    pub fn waking(mut self, wake: Wake) -> Self {
        self.wake = wake;
        self
    }
}

/// A message of a session. It never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMessage {
    /// Its position among the messages of the session, counted from one without gaps.
    pub position: u64,
    /// When it was posted.
    pub at: Timestamp,
    /// Who wrote it.
    pub author: Author,
    /// Its content.
    pub content: Vec<Content>,
    /// What caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Arc<str>>,
    /// Whether it woke the session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub woke: bool,
    /// The turn that it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
}

impl SessionMessage {
    /// Its text blocks, joined by line breaks.
    pub fn text(&self) -> String {
        let texts = self.content.iter().filter_map(|block| match block {
            Content::Text { text } => Some(text.as_str()),
            _ => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }
}

/// The two stores of names and values that a session has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataKind {
    /// JSON values.
    Value,
    /// Secrets: sealed at rest, and listed by name only.
    Secret,
}

/// An entry of a session's data, without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataEntry {
    /// Its name.
    pub name: Arc<str>,
    /// When it was last set.
    pub at: Timestamp,
}

/// One write to a session.
#[derive(Clone, Debug)]
pub struct SessionWrite {
    /// The name of the session.
    pub session: Arc<str>,
    /// When it is made.
    pub at: Timestamp,
    /// What is written.
    pub change: SessionChange,
    /// The operation of a run that makes it; `None` if it comes from outside.
    pub by: Option<SessionOperation>,
    /// Whose sessions it may reach.
    pub access: SessionAccess,
    /// For a write that starts a run.
    pub starter: Starter,
}

impl SessionWrite {
    /// A write from outside, to any session, that starts no run.
    pub fn outside(session: Arc<str>, at: Timestamp, change: SessionChange) -> Self {
        Self { session, at, change, by: None, access: SessionAccess::All, starter: Starter::default() }
    }
}

/// Whose sessions a write may reach. Others look missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SessionAccess {
    /// All.
    #[default]
    All,
    /// Those of this principal; without a principal, those without an owner.
    Of(Option<Arc<str>>),
}

impl SessionAccess {
    /// Whether it reaches a session with this owner.
    pub fn reaches(&self, owner: Option<&Arc<str>>) -> bool {
        match self {
            Self::All => true,
            Self::Of(principal) => principal.as_ref() == owner,
        }
    }

    /// Whether a run that must stay in the sessions of its principal may be created in this one. A session without an
    /// owner that was never opened is no more than a name.
    pub fn admits(principal: Option<&Arc<str>>, owner: Option<&Arc<str>>, opened: bool) -> bool {
        principal == owner || (owner.is_none() && !opened)
    }
}

/// The operation of a run that writes to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOperation {
    /// The run.
    pub run: RunId,
    /// The epoch of its owner.
    pub epoch: u64,
    /// The idempotency key of the operation.
    pub key: Arc<str>,
}

/// What is written to a session.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum SessionChange {
    /// Opens the session. For one that exists, sets what is given.
    Open {
        /// What people see of it.
        title: Option<Arc<str>>,
        /// The principal it belongs to. A session that has an owner keeps it.
        owner: Option<Arc<str>>,
        /// What it is set to.
        settings: SettingsChange,
    },
    /// Changes its settings.
    Settings(SettingsChange),
    /// Sets the title, or removes it.
    Title(Option<Arc<str>>),
    /// Adds a message, and starts the turn that it wakes the session for.
    Post(NewMessage),
    /// Starts a turn, unless this session has one with its id.
    Start(Box<StartTurn>),
    /// Sets a value or a secret.
    Set {
        /// Which of the two.
        kind: DataKind,
        /// Its name.
        name: Arc<str>,
        /// Its value; a text for a secret.
        value: Value,
    },
    /// Deletes a value or a secret.
    Delete {
        /// Which of the two.
        kind: DataKind,
        /// Its name.
        name: Arc<str>,
    },
    /// Changes the tools that it shows.
    Tools(ToolsChange),
    /// Closes the session: from then on, it takes neither writes nor new runs.
    Close {
        /// Why.
        reason: Arc<str>,
    },
    /// Changes its files.
    File(FileChange),
    /// Decides about changes of its files that an operation is going to make with its outcome
    /// ([`Change::Edit`](super::Change::Edit)), and reserves them until then. The verdict is not kept: the operation
    /// may be attempted again, with other changes.
    Stage {
        /// The changes.
        edits: Vec<FileEdit>,
        /// The limits that apply.
        limits: FileLimits,
    },
}

/// A turn that is started by its id.
#[derive(Clone, PartialEq)]
pub struct StartTurn {
    /// Its id, unique in the session.
    pub id: Arc<str>,
    /// The run, if the id is new.
    pub run: RunId,
    /// The call.
    pub asked: Asked,
}

impl StartTurn {
    /// The turn, in the session that it is started in.
    pub fn turn(&self, session: &SessionInfo, at: Timestamp, starter: &Starter) -> NewTurn {
        let mut turn = super::session_settings::new_turn(session, self.run, self.asked.clone(), at);
        turn.creation.turn = session.settings.turns.into();
        turn.creation.key = Some(super::turn_key(session, &self.id));
        turn.creation.cause = Some(self.id.clone());
        turn.creation.principal = starter.principal.clone();
        turn.creation.most = starter.most;
        turn
    }
}

/// Shows neither values nor secrets, so that they never get into a log.
impl fmt::Debug for SessionChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { .. } => f.write_str("Open"),
            Self::Settings(_) => f.write_str("Settings"),
            Self::Start(start) => write!(f, "Start({:?})", start.id),
            Self::Title(_) => f.write_str("Title"),
            Self::Post(message) => write!(f, "Post({})", message.author.as_str()),
            Self::Set { kind, name, .. } => write!(f, "Set({kind:?} {name:?})"),
            Self::Delete { kind, name } => write!(f, "Delete({kind:?} {name:?})"),
            Self::Tools(change) => write!(f, "Tools({change:?})"),
            Self::Close { .. } => f.write_str("Close"),
            Self::File(change) => write!(f, "File({:?})", change.path()),
            Self::Stage { edits, .. } => write!(f, "Stage({} files)", edits.len()),
        }
    }
}

/// What became of a write: done, or refused.
pub type SessionVerdict = Result<SessionAnswer, SessionRefusal>;

/// The answer to a write that was not refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionAnswer {
    /// It is written.
    Done,
    /// The session is open.
    Opened {
        /// Whether it did not exist before.
        created: bool,
    },
    /// The message is in the session.
    Posted {
        /// Its position.
        position: u64,
        /// When it was posted.
        at: Timestamp,
        /// Whether it was there before, under the same dedupe key.
        repeated: bool,
        /// The turn that it started.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<RunId>,
    },
    /// The turn is in the store.
    Started {
        /// Its run.
        run: RunId,
        /// Whether it was there before, under the same id.
        repeated: bool,
    },
    /// The entry does not exist any more.
    Deleted {
        /// Whether it did.
        existed: bool,
    },
    /// The file is written.
    FileWritten {
        /// The file as it is now.
        file: FileInfo,
        /// Whether there was none before.
        created: bool,
    },
    /// The changes of files can be made, except these.
    Staged {
        /// The changes that are not made.
        refused: Vec<RefusedEdit>,
    },
    /// The directory exists.
    DirectoryCreated {
        /// Whether it did not before.
        created: bool,
    },
    /// The session shows these tools now.
    Tools {
        /// All of them.
        tools: SessionTools,
    },
}

impl SessionAnswer {
    /// The run that the write has started, now or when it was made first.
    pub fn started(&self) -> Option<RunId> {
        match self {
            Self::Posted { run, .. } => *run,
            Self::Started { run, .. } => Some(*run),
            _ => None,
        }
    }
}

/// How much a session contains, in bytes of JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionSizes {
    /// The number of its messages.
    pub messages: u64,
    /// The bytes of their content.
    pub message_bytes: u64,
    /// The number of its values, without secrets.
    pub values: u64,
    /// The bytes of the values.
    pub value_bytes: u64,
}

/// The sessions of a [`Store`](super::Store).
///
/// The contract, checked by `testing::store_suite`:
/// - a write is decided and applied in one step; once it is answered, it survives the process;
/// - a write of a run's operation is refused unless its epoch matches the run; the same operation gets the same verdict
///   again, refusals too, until the run ends;
/// - messages have consecutive positions, never change, and are removed only with the session;
/// - a message and the turn that it starts are one write; a message that is posted again starts nothing;
/// - a closed session takes no runs from outside ([`StoreError::SessionClosed`]), whatever is written at the same time;
///   runs that its unfinished runs start are not refused;
/// - a session with unfinished runs is never purged, neither by request nor by [`Retention`](super::Retention).
pub trait Sessions: Files {
    /// Decides about a write and applies it. The outer error is the store's own, the inner one the verdict.
    fn write_session(&self, write: SessionWrite) -> BoxFuture<'_, Result<SessionVerdict, StoreError>>;

    /// The session of this name, if it exists.
    fn session(&self, name: Arc<str>) -> BoxFuture<'_, Result<Option<SessionInfo>, StoreError>>;

    /// The tools that a session shows, kept current while it is held: a change is in it before the write that makes it
    /// is answered. The same for a session that does not exist yet.
    fn live_tools(&self, name: Arc<str>) -> BoxFuture<'_, Result<Arc<LiveTools>, StoreError>>;

    /// Sessions that match, newest first, at most `limit`: those before `before`, or from the newest on.
    fn list_sessions(
        &self,
        filter: SessionFilter,
        before: Option<SessionCursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<SessionInfo>, StoreError>>;

    /// The messages of a session after position `after`, in order, at most `limit`. None if there is no such session.
    fn session_messages(
        &self,
        name: Arc<str>,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<SessionMessage>, StoreError>>;

    /// A value or a secret of a session. [`StoreError::Unsealable`] if a secret cannot be unsealed.
    fn session_value(
        &self,
        session: Arc<str>,
        kind: DataKind,
        name: Arc<str>,
    ) -> BoxFuture<'_, Result<Option<Value>, StoreError>>;

    /// The names of a session's values or secrets, in order.
    fn session_entries(&self, session: Arc<str>, kind: DataKind) -> BoxFuture<'_, Result<Vec<DataEntry>, StoreError>>;

    /// The latest outcomes of the calls of a session; empty if there are none. A row that is damaged counts as empty too:
    /// the calls of a session must not fail because it is not known whether they repeat each other.
    fn recent_outcomes(&self, session: Arc<str>) -> BoxFuture<'_, Result<RecentOutcomes, StoreError>>;
    /// The unfinished runs of a session, oldest first, at most `limit`.
    fn unfinished_runs(&self, session: Arc<str>, limit: usize) -> BoxFuture<'_, Result<Vec<RunId>, StoreError>>;

    /// How much a session contains; nothing if it does not exist.
    fn session_sizes(&self, session: Arc<str>) -> BoxFuture<'_, Result<SessionSizes, StoreError>>;

    /// Removes the title, messages, data and secrets of a closed session. Its name stays closed while runs of it are
    /// kept, and is free after that. Refused with [`StoreError::SessionOpen`] for an open session and with
    /// [`StoreError::SessionBusy`] for one with unfinished runs. Dropping the future may leave it half removed;
    /// purging it again removes the rest.
    fn purge_session(&self, name: Arc<str>) -> BoxFuture<'_, Result<(), StoreError>>;
}
