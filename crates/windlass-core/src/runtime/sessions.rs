//! Sessions: opened, shown, written to, closed and purged from outside of a run.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{PAGE, Runtime};
use crate::error::{Error, Result};
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::limits;
use crate::run::state::RunState;
use crate::session::check;
use crate::store::{
    DataEntry, DataKind, Filter, Message, NewMessage, SessionAccess, SessionAnswer, SessionChange, SessionCursor,
    SessionFilter, SessionInfo, SessionMessage, SessionWrite, SettingsChange, StoreError,
};
use crate::tool::{SessionTools, Toolbox, ToolsChange};

/// A session, by its name. Nothing is looked up before a method is called.
///
/// A session exists from its first run on, or from the moment it is [opened](Session::open). What is written to it is
/// durable when the method returns. Dropping the future of a write may leave it written.
#[derive(Clone)]
pub struct Session {
    pub(super) runtime: Runtime,
    pub(super) name: Arc<str>,
    pub(super) access: SessionAccess,
    /// Who the turns act for that it starts.
    pub(super) principal: Option<Arc<str>>,
}

/// What becomes of the unfinished runs of a session that is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnfinishedRuns {
    /// They go on. Their reply keys are void.
    #[default]
    Leave,
    /// They are cancelled too.
    Cancel,
}

impl Runtime {
    /// The session with this name.
    pub fn session(&self, name: impl Into<Arc<str>>) -> Session {
        Session { runtime: self.clone(), name: name.into(), access: SessionAccess::All, principal: None }
    }

    /// Sessions that match, newest first, at most `limit`: those before `before`, or from the newest on.
    pub async fn sessions(
        &self,
        filter: SessionFilter,
        before: Option<SessionCursor>,
        limit: usize,
    ) -> Result<Vec<SessionInfo>> {
        Ok(self.kernel.store.sessions().list_sessions(filter, before, limit).await?)
    }

    /// Closes a session and leaves its unfinished runs; see [`Session::close`]. Returns the number of those runs.
    pub async fn close_session(&self, session: &str, reason: &str) -> Result<usize> {
        self.session(session).close(reason, UnfinishedRuns::Leave).await
    }
}

impl Kernel {
    /// Tells the unfinished runs of a closed session about it. Returns their number.
    pub(crate) async fn end_session_runs(
        self: &Arc<Self>,
        session: &Arc<str>,
        reason: &str,
        runs: UnfinishedRuns,
    ) -> Result<usize, StoreError> {
        let why = format!("session {session} was closed: {reason}");
        let (mut told, mut after) = (0, None);
        loop {
            let page = self.store.list(Filter::session(session.clone()), after, PAGE).await?;
            after = page.last().map(|info| info.run);
            for info in page.iter().filter(|info| !matches!(info.state, RunState::Finished { .. })) {
                let mut messages = vec![("revoked", Message::Revoke { reason: why.clone() })];
                if runs == UnfinishedRuns::Cancel {
                    let by = format!("session {session}");
                    messages.push(("cancelled", Message::Cancel { by, reason: why.clone() }));
                }
                let mut took = false;
                for (what, message) in messages {
                    // A close that is repeated after a crash tells no run twice. The inner error is a run that has ended.
                    took |= self.write_to(info.run, message, format!("session {session} {what}").into()).await?.is_ok();
                }
                told += usize::from(took);
            }
            if page.len() < PAGE {
                return Ok(told);
            }
        }
    }
}

impl Session {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same session for a principal: what is written is refused as if the session did not exist, unless it belongs
    /// to that principal. The store decides, together with the write.
    #[must_use]
    pub fn as_principal(mut self, principal: impl Into<Arc<str>>) -> Self {
        self.access = SessionAccess::Of(Some(principal.into()));
        self
    }

    /// The tools that it shows; all of them, for a session that does not exist.
    pub async fn tools(&self) -> Result<SessionTools> {
        Ok(self.info().await?.and_then(|session| session.tools).map(|tools| (*tools).clone()).unwrap_or_default())
    }

    /// Changes the tools that it shows, and returns what it shows now. A name need not be that of a tool: it counts as
    /// soon as a tool of that name is registered. Calls that are made from now on find the tools that it shows; an
    /// unfinished call of a tool that is hidden goes on where it is driven, and is held when its run is taken up again.
    pub async fn change_tools(&self, change: ToolsChange) -> Result<SessionTools> {
        match self.write(SessionChange::Tools(change)).await? {
            SessionAnswer::Tools { tools } => Ok(tools),
            answer => Err(unexpected(&answer)),
        }
    }

    /// The toolbox of the runtime as this session sees it. It follows later changes.
    pub async fn toolbox(&self) -> Result<Toolbox> {
        let tools = self.runtime.kernel.store.sessions().live_tools(self.name.clone()).await?;
        Ok(self.runtime.toolbox.in_session(tools))
    }

    /// Opens the session, or sets the title and owner of one that exists; `None` leaves them as they are. Returns
    /// whether it is new.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if it belongs to another owner, [`StoreError::SessionClosed`] if it is closed.
    pub async fn open(&self, title: Option<&str>, owner: Option<&str>) -> Result<bool> {
        self.open_with(title, owner, SettingsChange::default()).await
    }

    /// What is known of it; `None` if it does not exist.
    pub async fn info(&self) -> Result<Option<SessionInfo>> {
        Ok(self.runtime.kernel.store.sessions().session(self.name.clone()).await?)
    }

    /// Sets its title, or removes it.
    pub async fn set_title(&self, title: Option<&str>) -> Result<()> {
        self.write(SessionChange::Title(title.map(Into::into))).await.map(drop)
    }

    /// Posts a message. One with a dedupe key that the session knows is not posted again: the answer is the first one.
    /// A message that [wakes](NewMessage::wake) the session starts a turn of its agent, in the same commit.
    ///
    /// # Errors
    ///
    /// [`StoreError::SessionClosed`]; for a message that wakes the session also [`StoreError::Busy`] and
    /// [`StoreError::SessionFull`]. A message that is refused is not posted.
    pub async fn post(&self, message: NewMessage) -> Result<Posted> {
        match self.write(SessionChange::Post(message)).await? {
            SessionAnswer::Posted { position, at, repeated, run } => Ok(Posted { position, at, repeated, run }),
            answer => Err(unexpected(&answer)),
        }
    }

    /// The messages after position `after`, in order, at most `limit` and at most [`limits::MESSAGE_PAGE`].
    pub async fn messages(&self, after: u64, limit: usize) -> Result<Vec<SessionMessage>> {
        let limit = limit.min(limits::MESSAGE_PAGE);
        Ok(self.runtime.kernel.store.sessions().session_messages(self.name.clone(), after, limit).await?)
    }

    /// The latest messages, in order, at most `count` and at most [`limits::MESSAGE_PAGE`].
    pub async fn last_messages(&self, count: usize) -> Result<Vec<SessionMessage>> {
        let count = count.min(limits::MESSAGE_PAGE);
        let latest = self.info().await?.map_or(0, |session| session.messages);
        self.messages(latest.saturating_sub(count as u64), count).await
    }

    /// Sets a value of its data.
    pub async fn set(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let value = serde_json::to_value(value).map_err(|error| Error::Invalid(error.to_string()))?;
        self.write(SessionChange::Set { kind: DataKind::Value, name: name.into(), value }).await.map(drop)
    }

    /// A value of its data; `None` if it is not set.
    pub async fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let Some(value) = self.read(DataKind::Value, name).await? else { return Ok(None) };
        let unfit = |error| Error::Invalid(format!("the value {name:?} of session {:?}: {error}", self.name));
        serde_json::from_value(value).map(Some).map_err(unfit)
    }

    /// Deletes a value of its data. Returns whether it was set.
    pub async fn delete(&self, name: &str) -> Result<bool> {
        self.remove(DataKind::Value, name).await
    }

    /// The names of the values of its data.
    pub async fn values(&self) -> Result<Vec<DataEntry>> {
        self.entries(DataKind::Value).await
    }

    /// Sets a secret. It is sealed at rest, and no record, event, log or export ever contains it.
    pub async fn set_secret(&self, name: &str, secret: &str) -> Result<()> {
        let value = Value::String(secret.to_owned());
        self.write(SessionChange::Set { kind: DataKind::Secret, name: name.into(), value }).await.map(drop)
    }

    /// A secret; `None` if it is not set.
    pub async fn secret(&self, name: &str) -> Result<Option<String>> {
        let value = self.read(DataKind::Secret, name).await?;
        Ok(value.and_then(|value| value.as_str().map(str::to_owned)))
    }

    /// Deletes a secret. Returns whether it was set.
    pub async fn delete_secret(&self, name: &str) -> Result<bool> {
        self.remove(DataKind::Secret, name).await
    }

    /// The names of its secrets.
    pub async fn secrets(&self) -> Result<Vec<DataEntry>> {
        self.entries(DataKind::Secret).await
    }

    /// Closes the session: from now on it refuses runs, messages and other writes. The reply keys of its unfinished
    /// runs are void; the runs themselves go on or are cancelled. Returns their number. The closing is durable before
    /// the runs are told; closing again tells those that were not.
    pub async fn close(&self, reason: &str, runs: UnfinishedRuns) -> Result<usize> {
        self.write(SessionChange::Close { reason: reason.into() }).await?;
        Ok(self.runtime.kernel.end_session_runs(&self.name, reason, runs).await?)
    }

    /// Removes the title, messages, data, secrets and files of a closed session whose runs have all ended. Its name is free as
    /// soon as its runs are removed too. Dropping the future may leave it half removed; purging again removes the rest.
    ///
    /// # Errors
    ///
    /// [`StoreError::SessionOpen`], [`StoreError::SessionBusy`], or [`StoreError::NoSession`].
    pub async fn purge(&self) -> Result<()> {
        self.runtime.kernel.store.sessions().purge_session(self.name.clone()).await?;
        self.runtime.kernel.reach.watchers.session_changed(&self.name);
        Ok(())
    }

    pub(super) async fn write(&self, change: SessionChange) -> Result<SessionAnswer> {
        check::name(&self.name)?;
        check::change(&change)?;
        let kernel = &self.runtime.kernel;
        let starter = kernel.starter(self.principal.clone());
        let (session, at, access) = (self.name.clone(), kernel.env.clock.now(), self.access.clone());
        let write = SessionWrite { session, at, change, by: None, access, starter };
        let verdict = kernel.store.sessions().write_session(write).await;
        // After an error the write may have been made.
        let started = verdict.as_ref().ok().and_then(|verdict| verdict.as_ref().ok()).and_then(SessionAnswer::started);
        kernel.after_session_write(&self.name, started);
        let verdict = verdict?;
        verdict.map_err(|refusal| refusal.into_error(&self.name))
    }

    async fn read(&self, kind: DataKind, name: &str) -> Result<Option<Value>> {
        Ok(self.runtime.kernel.store.sessions().session_value(self.name.clone(), kind, name.into()).await?)
    }

    async fn remove(&self, kind: DataKind, name: &str) -> Result<bool> {
        let deleted = self.write(SessionChange::Delete { kind, name: name.into() }).await?;
        Ok(matches!(deleted, SessionAnswer::Deleted { existed: true }))
    }

    async fn entries(&self, kind: DataKind) -> Result<Vec<DataEntry>> {
        Ok(self.runtime.kernel.store.sessions().session_entries(self.name.clone(), kind).await?)
    }
}

/// A message that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Its position in the session.
    pub position: u64,
    /// When it was posted.
    pub at: crate::time::Timestamp,
    /// Whether it was there before, under the same dedupe key.
    pub repeated: bool,
    /// The turn that it started.
    pub run: Option<RunId>,
}

/// The error for a store that answers something else than was asked.
pub(crate) fn unexpected(answer: &SessionAnswer) -> Error {
    StoreError::Unknown(format!("the store answered {answer:?} to another kind of write")).into()
}
