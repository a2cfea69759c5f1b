//! When a session refuses a write, and what the refusal says.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{DataKind, FileRefusal, SessionAccess, SessionChange, SessionInfo, StoreError};
use crate::id::RunId;
use crate::limits;
use crate::time::Timestamp;
use crate::tool::{SessionTools, ToolsChange};

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
    /// It would name more tools than it may.
    Tools,
    /// It has a turn that is not over, and the new one was not to be queued.
    Busy {
        /// The run of the current turn.
        turn: RunId,
        /// When that run was created.
        since: Timestamp,
    },
    /// It has as many unfinished runs as it may have.
    Runs {
        /// The limit.
        most: u64,
        /// The oldest of them.
        run: RunId,
    },
    /// The turn id was used for a run that has been removed since.
    Spent {
        /// That run.
        run: RunId,
    },
}

impl SessionRefusal {
    /// What was refused, why, and what to do.
    pub fn sentence(&self, session: &str) -> String {
        match self {
            Self::Missing => format!("there is no session {session:?}; open it first, or start a run in it"),
            Self::Closed => self.store_error(session).to_string(),
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
            Self::Tools => format!(
                "session {session:?} would name more than {} tools, which is the limit; reset it, and name fewer",
                limits::SESSION_TOOLS
            ),
            Self::Busy { .. } | Self::Runs { .. } => self.store_error(session).to_string(),
            Self::Spent { run } => format!(
                "the turn id was used in session {session:?} for run {run}, which is no longer kept; use another turn id"
            ),
        }
    }

    /// The error for a caller outside of a run.
    pub fn into_error(self, session: &str) -> crate::Error {
        match self {
            Self::Missing => crate::Error::NotFound(self.sentence(session)),
            Self::File(refusal) => refusal.into_error(session),
            Self::Closed | Self::Busy { .. } | Self::Runs { .. } => self.store_error(session).into(),
            Self::OtherOwner | Self::Messages | Self::Entries | Self::Tools | Self::Spent { .. } => {
                crate::Error::Conflict(self.sentence(session))
            }
        }
    }

    /// The error with which a run would be refused for the same reason.
    fn store_error(&self, session: &str) -> StoreError {
        let session: Arc<str> = session.into();
        match *self {
            Self::Busy { turn, since } => StoreError::Busy { session, turn, since },
            Self::Runs { most, run } => StoreError::SessionFull { session, most, run },
            _ => StoreError::SessionClosed { session },
        }
    }

    /// A short name for programs to act on.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Missing => "no_session",
            Self::Closed => "session_closed",
            Self::OtherOwner => "other_owner",
            Self::File(refusal) => refusal.code(),
            Self::Messages | Self::Entries | Self::Tools | Self::Runs { .. } => "session_full",
            Self::Busy { .. } => "session_busy",
            Self::Spent { .. } => "turn_spent",
        }
    }
}

/// Decides about a write, the same way in every store. What is particular to files is decided by
/// [`decide_file_change`](super::decide_file_change). `session` is the session if it exists, and `entries` the number
/// of entries besides the one that the write sets. A message whose dedupe key is taken is answered before this.
pub fn refuse_session_write(
    change: &SessionChange,
    access: &SessionAccess,
    session: Option<&SessionInfo>,
    entries: impl FnOnce(DataKind) -> u64,
) -> Result<(), SessionRefusal> {
    let Some(session) = session else {
        return if matches!(change, SessionChange::Open { .. }) { Ok(()) } else { Err(SessionRefusal::Missing) };
    };
    if !access.reaches(session.owner.as_ref()) {
        return Err(SessionRefusal::Missing);
    }
    if session.closed.is_some() {
        return if matches!(change, SessionChange::Close { .. }) { Ok(()) } else { Err(SessionRefusal::Closed) };
    }
    match change {
        SessionChange::Open { owner: Some(owner), .. } if session.owner.as_ref().is_some_and(|has| has != owner) => {
            Err(SessionRefusal::OtherOwner)
        }
        SessionChange::Post(_) if session.messages >= limits::SESSION_MESSAGES => Err(SessionRefusal::Messages),
        SessionChange::Tools(change) if tools_after(session, change).len() > limits::SESSION_TOOLS => {
            Err(SessionRefusal::Tools)
        }
        SessionChange::Set { kind, .. } if entries(*kind) >= limits::SESSION_ENTRIES => Err(SessionRefusal::Entries),
        _ => Ok(()),
    }
}

/// The tools that a session shows after a change.
pub fn tools_after(session: &SessionInfo, change: &ToolsChange) -> SessionTools {
    session.tools.as_deref().map_or_else(|| SessionTools::default().after(change), |tools| tools.after(change))
}
