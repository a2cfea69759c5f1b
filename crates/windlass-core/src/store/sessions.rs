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

use super::{FileChange, FileEdit, FileInfo, FileLimits, FileRefusal, Files, RefusedEdit, StoreError};
use crate::id::RunId;
use crate::limits;
use crate::time::Timestamp;
use crate::tool::Content;

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
}

impl NewMessage {
    /// A message of one text block.
    pub fn text(author: Author, text: impl Into<String>) -> Self {
        Self { author, content: vec![Content::text(text)], cause: None, dedupe: None }
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
    },
    /// Sets the title, or removes it.
    Title(Option<Arc<str>>),
    /// Adds a message.
    Post(NewMessage),
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

/// Shows neither values nor secrets, so that they never get into a log.
impl fmt::Debug for SessionChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { .. } => f.write_str("Open"),
            Self::Title(_) => f.write_str("Title"),
            Self::Post(message) => write!(f, "Post({})", message.author.as_str()),
            Self::Set { kind, name, .. } => write!(f, "Set({kind:?} {name:?})"),
            Self::Delete { kind, name } => write!(f, "Delete({kind:?} {name:?})"),
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
}

/// Why a write was refused. Writing again does not help.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "refused", rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionRefusal {
    /// There is no such session.
    Missing,
    /// It is closed.
    Closed,
    /// It belongs to another principal.
    OtherOwner,
    /// It has as many messages as it may have.
    Messages,
    /// It has as many values, or secrets, as it may have.
    Entries,
    /// A file cannot be changed like this.
    File(FileRefusal),
}

impl SessionRefusal {
    /// What was refused, why, and what to do.
    pub fn sentence(&self, session: &str) -> String {
        match self {
            Self::Missing => format!("there is no session {session:?}; open it first, or start a run in it"),
            Self::Closed => StoreError::SessionClosed { session: session.into() }.to_string(),
            Self::OtherOwner => format!("session {session:?} belongs to another owner; open one with another name"),
            Self::Messages => format!(
                "session {session:?} has {} messages, which is the limit; close it and open another one",
                limits::SESSION_MESSAGES
            ),
            Self::Entries => format!(
                "session {session:?} has {} entries of this kind, which is the limit; delete some, or store several \
                 values as one",
                limits::SESSION_ENTRIES
            ),
            Self::File(refusal) => refusal.sentence(session),
        }
    }

    /// The error for a caller outside of a run.
    pub fn into_error(self, session: &str) -> crate::Error {
        match self {
            Self::Missing => crate::Error::NotFound(self.sentence(session)),
            Self::Closed => StoreError::SessionClosed { session: session.into() }.into(),
            Self::OtherOwner | Self::Messages | Self::Entries => crate::Error::Conflict(self.sentence(session)),
            Self::File(refusal) => refusal.into_error(session),
        }
    }

    /// A short name for programs to act on.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Missing => "no_session",
            Self::Closed => "session_closed",
            Self::OtherOwner => "other_owner",
            Self::Messages | Self::Entries => "session_full",
            Self::File(refusal) => refusal.code(),
        }
    }
}

/// Decides about a write, the same way in every store. What is particular to files is decided by
/// [`decide_file_change`](super::decide_file_change). `session` is the session if it exists, and `entries` the number
/// of entries besides the one that the write sets. A message whose dedupe key is taken is answered before this.
pub fn refuse_session_write(
    change: &SessionChange,
    session: Option<&SessionInfo>,
    entries: impl FnOnce(DataKind) -> u64,
) -> Result<(), SessionRefusal> {
    let Some(session) = session else {
        return if matches!(change, SessionChange::Open { .. }) { Ok(()) } else { Err(SessionRefusal::Missing) };
    };
    if session.closed.is_some() {
        return if matches!(change, SessionChange::Close { .. }) { Ok(()) } else { Err(SessionRefusal::Closed) };
    }
    match change {
        SessionChange::Open { owner: Some(owner), .. } if session.owner.as_ref().is_some_and(|has| has != owner) => {
            Err(SessionRefusal::OtherOwner)
        }
        SessionChange::Post(_) if session.messages >= limits::SESSION_MESSAGES => Err(SessionRefusal::Messages),
        SessionChange::Set { kind, .. } if entries(*kind) >= limits::SESSION_ENTRIES => Err(SessionRefusal::Entries),
        _ => Ok(()),
    }
}

/// The sessions of a [`Store`](super::Store).
///
/// The contract, checked by `testing::store_suite`:
/// - a write is decided and applied in one step; once it is answered, it survives the process;
/// - a write of a run's operation is refused unless its epoch matches the run; the same operation gets the same verdict
///   again, refusals too, until the run ends;
/// - messages have consecutive positions, never change, and are removed only with the session;
/// - a closed session takes no runs from outside ([`StoreError::SessionClosed`]), whatever is written at the same time;
///   runs that its unfinished runs start are not refused;
/// - a session with unfinished runs is never purged, neither by request nor by [`Retention`](super::Retention).
pub trait Sessions: Files {
    /// Decides about a write and applies it. The outer error is the store's own, the inner one the verdict.
    fn write_session(&self, write: SessionWrite) -> BoxFuture<'_, Result<SessionVerdict, StoreError>>;

    /// The session of this name, if it exists.
    fn session(&self, name: Arc<str>) -> BoxFuture<'_, Result<Option<SessionInfo>, StoreError>>;

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

    /// Removes the title, messages, data and secrets of a closed session. Its name stays closed while runs of it are
    /// kept, and is free after that. Refused with [`StoreError::SessionOpen`] for an open session and with
    /// [`StoreError::SessionBusy`] for one with unfinished runs. Dropping the future may leave it half removed;
    /// purging it again removes the rest.
    fn purge_session(&self, name: Arc<str>) -> BoxFuture<'_, Result<(), StoreError>>;
}
