//! The sessions of the store in memory: titles, messages, data, and the verdicts on writes of operations.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value;

use super::super::{
    Closing, DataEntry, DataKind, FileInfo, NewMessage, SessionAnswer, SessionChange, SessionCursor, SessionFilter,
    SessionInfo, SessionMessage, SessionOperation, SessionPath, SessionRefusal, SessionVerdict, SessionWrite,
    Sessions as SessionStore, StoreError, refuse_session_write,
};
use super::sessions::{Session, Sessions};
use super::{Inner, MemoryStore, ready};
use crate::id::RunId;
use crate::time::Timestamp;

/// What a session has besides its runs.
#[derive(Default)]
pub(super) struct SessionRow {
    pub(super) info: SessionInfo,
    /// Whether it stays when its last run is removed.
    pub(super) kept: bool,
    messages: Vec<SessionMessage>,
    dedupe: BTreeMap<Arc<str>, u64>,
    entries: BTreeMap<(DataKind, Arc<str>), (Value, Timestamp)>,
    pub(super) files: BTreeMap<SessionPath, FileInfo>,
    verdicts: BTreeMap<RunId, Vec<(Arc<str>, SessionVerdict)>>,
}

impl SessionRow {
    fn apply(&mut self, change: SessionChange, at: Timestamp) -> SessionAnswer {
        self.kept = true;
        let info = &mut self.info;
        match change {
            SessionChange::Open { title, owner } => {
                info.title = title.or(info.title.take());
                info.owner = info.owner.take().or(owner);
                return SessionAnswer::Opened { created: false };
            }
            SessionChange::Title(title) => info.title = title,
            SessionChange::Post(message) => return self.post(message, at),
            SessionChange::Set { kind, name, value } => drop(self.entries.insert((kind, name), (value, at))),
            SessionChange::Delete { kind, name } => {
                return SessionAnswer::Deleted { existed: self.entries.remove(&(kind, name)).is_some() };
            }
            SessionChange::Close { reason } => {
                info.closed.get_or_insert(Closing { at, reason });
            }
            // Applied by `files.rs`.
            SessionChange::File(_) | SessionChange::Stage { .. } => {}
        }
        SessionAnswer::Done
    }

    fn post(&mut self, message: NewMessage, at: Timestamp) -> SessionAnswer {
        self.kept = true;
        self.info.messages += 1;
        let position = self.info.messages;
        let NewMessage { author, content, cause, dedupe } = message;
        self.dedupe.extend(dedupe.map(|key| (key, position)));
        self.messages.push(SessionMessage { position, at, author, content, cause });
        SessionAnswer::Posted { position, at, repeated: false }
    }

    /// The message that has the dedupe key of this one.
    fn repeated(&self, message: &NewMessage) -> Option<SessionAnswer> {
        let position = self.dedupe.get(message.dedupe.as_ref()?)?;
        let first = self.messages.iter().find(|message| message.position == *position)?;
        Some(SessionAnswer::Posted { position: *position, at: first.at, repeated: true })
    }

    /// The number of entries besides this one.
    fn others(&self, kind: DataKind, name: &Arc<str>) -> u64 {
        self.entries.keys().filter(|(other, named)| *other == kind && named != name).count() as u64
    }

    /// Removes everything but the fact that the session is closed.
    fn empty(&mut self) {
        let info = SessionInfo { title: None, owner: None, ..std::mem::take(&mut self.info) };
        *self = Self { info, ..Self::default() };
    }
}

impl Sessions {
    pub(super) fn is_closed(&self, session: &str) -> bool {
        self.all.get(session).is_some_and(|session| session.row.info.closed.is_some())
    }

    /// Posts a message of an owner's commit.
    pub(super) fn post_if_open(&mut self, session: &Arc<str>, at: Timestamp, message: NewMessage) {
        let Some(row) = self.all.get_mut(session).map(|session| &mut session.row) else { return };
        if row.info.closed.is_some() {
            tracing::warn!(%session, "a message of an outcome was left out: the session is closed");
        } else if row.repeated(&message).is_none() {
            row.post(message, at);
        }
    }

    pub(super) fn forget_verdicts(&mut self, session: Option<&Arc<str>>, run: RunId) {
        if let Some(found) = session.and_then(|session| self.all.get_mut(session)) {
            found.row.verdicts.remove(&run);
        }
    }
}

impl Inner {
    fn write_session(&mut self, write: SessionWrite) -> Result<SessionVerdict, StoreError> {
        let SessionWrite { session: name, at, change, by } = write;
        if let Some(operation) = &by
            && let Some(verdict) = self.kept_verdict(&name, operation)?
        {
            return Ok(verdict);
        }
        if let SessionChange::Stage { edits, limits } = &change {
            return self.stage_files(&name, at, (edits, *limits), by.as_ref());
        }
        let verdict = self.decide_session_write(&name, at, change, by.as_ref().map(|operation| operation.run));
        if let (Some(SessionOperation { run, key, .. }), Some(session)) = (by, self.sessions.all.get_mut(&name)) {
            session.row.verdicts.entry(run).or_default().push((key, verdict.clone()));
        }
        Ok(verdict)
    }

    /// Checks the epoch of an operation. Returns the verdict that it got before.
    fn kept_verdict(&self, name: &str, operation: &SessionOperation) -> Result<Option<SessionVerdict>, StoreError> {
        let SessionOperation { run, epoch, key } = operation;
        let entry = self.runs.get(run).ok_or(StoreError::NoSuchRun(*run))?;
        if entry.is_finished() {
            return Err(StoreError::Finished(*run));
        }
        if entry.epoch != *epoch {
            return Err(StoreError::Stale { run: *run, epoch: *epoch, current: entry.epoch });
        }
        let verdicts = self.sessions.all.get(name).and_then(|session| session.row.verdicts.get(run));
        let kept = verdicts.and_then(|verdicts| verdicts.iter().find(|(other, _)| other == key));
        Ok(kept.map(|(_, verdict)| verdict.clone()))
    }

    fn decide_session_write(
        &mut self,
        name: &Arc<str>,
        at: Timestamp,
        change: SessionChange,
        by: Option<RunId>,
    ) -> SessionVerdict {
        let row = self.sessions.all.get(name).map(|session| &session.row);
        if let (SessionChange::Post(message), Some(row)) = (&change, row)
            && let Some(answer) = row.repeated(message)
        {
            return Ok(answer);
        }
        let entries = |kind| match (&change, row) {
            (SessionChange::Set { name, .. }, Some(row)) => row.others(kind, name),
            _ => 0,
        };
        let info = row.map(|row| SessionInfo { name: name.clone(), opened: row.kept, ..row.info.clone() });
        refuse_session_write(&change, info.as_ref(), entries)?;
        if let SessionChange::File(change) = &change {
            return self.change_file(name, at, change, by).map_err(SessionRefusal::File);
        }
        let created = row.is_none();
        let session = self.sessions.all.entry(name.clone()).or_insert_with(|| Session::created(at));
        match session.row.apply(change, at) {
            SessionAnswer::Opened { .. } => Ok(SessionAnswer::Opened { created }),
            answer => Ok(answer),
        }
    }

    fn unfinished_run_of(&self, session: &str) -> Option<RunId> {
        let is_open = |(run, entry): (&RunId, &super::RunRow)| {
            (entry.session.as_deref() == Some(session) && !entry.is_finished()).then_some(*run)
        };
        self.runs.iter().filter_map(is_open).min()
    }

    fn purge_session(&mut self, name: &Arc<str>) -> Result<(), StoreError> {
        let session = name.clone();
        let found = self.sessions.all.get(name).ok_or_else(|| StoreError::NoSession { session: session.clone() })?;
        if found.row.info.closed.is_none() {
            return Err(StoreError::SessionOpen { session });
        }
        if let Some(run) = self.unfinished_run_of(name) {
            return Err(StoreError::SessionBusy { session, run });
        }
        self.empty_session(name);
        Ok(())
    }

    /// Removes the content of a session, and the session itself if no run of it is kept.
    fn empty_session(&mut self, name: &Arc<str>) {
        self.drop_files(name);
        match self.sessions.all.get_mut(name) {
            Some(session) if session.has_runs() => session.row.empty(),
            _ => drop(self.sessions.all.remove(name)),
        }
    }

    /// Empties sessions that were closed long ago, at most `limit`. Returns their number.
    pub(super) fn empty_closed_sessions(&mut self, by: Option<Timestamp>, limit: usize) -> usize {
        let Some(by) = by else { return 0 };
        let is_due = |session: &Session| {
            session.row.kept && session.row.info.closed.as_ref().is_some_and(|closing| closing.at <= by)
        };
        let due = self.sessions.all.iter().filter(|(_, session)| is_due(session)).map(|(name, _)| name.clone());
        let due = due.filter(|name| self.unfinished_run_of(name).is_none());
        let due: Vec<Arc<str>> = due.take(limit).collect();
        due.iter().for_each(|name| self.empty_session(name));
        due.len()
    }

    pub(super) fn session_info(&self, name: &Arc<str>) -> Option<SessionInfo> {
        let row = &self.sessions.all.get(name)?.row;
        Some(SessionInfo { name: name.clone(), opened: row.kept, ..row.info.clone() })
    }

    fn list_sessions(&self, filter: &SessionFilter, before: Option<&SessionCursor>, limit: usize) -> Vec<SessionInfo> {
        let all = self.sessions.all.keys().filter_map(|name| self.session_info(name));
        let mut found: Vec<SessionInfo> = all.filter(|session| filter.matches(session)).collect();
        found.sort_unstable_by_key(|session| std::cmp::Reverse(session.cursor()));
        found.retain(|session| before.is_none_or(|before| session.cursor() < *before));
        found.truncate(limit);
        found
    }
}

impl SessionStore for MemoryStore {
    fn write_session(&self, write: SessionWrite) -> BoxFuture<'_, Result<SessionVerdict, StoreError>> {
        ready(self.inner.lock().write_session(write))
    }

    fn session(&self, name: Arc<str>) -> BoxFuture<'_, Result<Option<SessionInfo>, StoreError>> {
        ready(Ok(self.inner.lock().session_info(&name)))
    }

    fn list_sessions(
        &self,
        filter: SessionFilter,
        before: Option<SessionCursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<SessionInfo>, StoreError>> {
        ready(Ok(self.inner.lock().list_sessions(&filter, before.as_ref(), limit)))
    }

    fn session_messages(
        &self,
        name: Arc<str>,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<SessionMessage>, StoreError>> {
        let inner = self.inner.lock();
        let messages = inner.sessions.all.get(&name).map(|session| session.row.messages.as_slice()).unwrap_or_default();
        let start = messages.partition_point(|message| message.position <= after);
        ready(Ok(messages[start..].iter().take(limit).cloned().collect()))
    }

    fn session_value(
        &self,
        session: Arc<str>,
        kind: DataKind,
        name: Arc<str>,
    ) -> BoxFuture<'_, Result<Option<Value>, StoreError>> {
        let inner = self.inner.lock();
        let entry = inner.sessions.all.get(&session).and_then(|session| session.row.entries.get(&(kind, name)));
        ready(Ok(entry.map(|(value, _)| value.clone())))
    }

    fn session_entries(&self, session: Arc<str>, kind: DataKind) -> BoxFuture<'_, Result<Vec<DataEntry>, StoreError>> {
        let inner = self.inner.lock();
        let entries = inner.sessions.all.get(&session).into_iter().flat_map(|session| &session.row.entries);
        let of_kind = entries.filter(|((other, _), _)| *other == kind);
        ready(Ok(of_kind.map(|((_, name), (_, at))| DataEntry { name: name.clone(), at: *at }).collect()))
    }

    fn purge_session(&self, name: Arc<str>) -> BoxFuture<'_, Result<(), StoreError>> {
        ready(self.inner.lock().purge_session(&name))
    }
}
