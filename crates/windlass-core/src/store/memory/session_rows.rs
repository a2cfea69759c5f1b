//! The sessions of the store in memory: titles, messages, data, and the verdicts on writes of operations.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value;

use super::super::{
    Closing, Creation, DataEntry, DataKind, FileInfo, NewMessage, NewTurn, RecentOutcomes, SeenOutcome, SessionAccess,
    SessionAnswer, SessionChange, SessionCursor, SessionFilter, SessionInfo, SessionMessage, SessionOperation,
    SessionPath, SessionRefusal, SessionSizes, SessionVerdict, SessionWrite, Sessions as SessionStore, StartTurn,
    Starter, StoreError, Turn, message_turn, refuse_session_write, tools_after,
};
use super::sessions::{Session, Sessions};
use super::{Inner, MemoryStore, ready};
use crate::id::RunId;
use crate::limits;
use crate::time::Timestamp;
use crate::tool::{LiveTools, SessionTools, ToolsChange};

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
    pub(super) outcomes: RecentOutcomes,
}

impl SessionRow {
    fn apply(&mut self, change: SessionChange, at: Timestamp) -> SessionAnswer {
        self.kept = true;
        let info = &mut self.info;
        match change {
            SessionChange::Open { title, owner, settings } => {
                info.settings.apply(&settings);
                info.title = title.or(info.title.take());
                info.owner = info.owner.take().or(owner);
                return SessionAnswer::Opened { created: false };
            }
            SessionChange::Title(title) => info.title = title,
            SessionChange::Settings(settings) => info.settings.apply(&settings),
            // Both start a run, so they are written by the store as a whole.
            SessionChange::Post(_) | SessionChange::Start(_) => {}
            SessionChange::Set { kind, name, value } => drop(self.entries.insert((kind, name), (value, at))),
            SessionChange::Delete { kind, name } => {
                return SessionAnswer::Deleted { existed: self.entries.remove(&(kind, name)).is_some() };
            }
            SessionChange::Tools(change) => {
                let tools = tools_after(info, &change);
                info.tools = (!tools.is_default()).then(|| Arc::new(tools.clone()));
                return SessionAnswer::Tools { tools };
            }
            SessionChange::Close { reason } => {
                info.closed.get_or_insert(Closing { at, reason });
            }
            // Applied by `files.rs`.
            SessionChange::File(_) | SessionChange::Stage { .. } => {}
        }
        SessionAnswer::Done
    }

    fn post(&mut self, message: NewMessage, at: Timestamp, woke: bool, run: Option<RunId>) -> SessionAnswer {
        self.kept = true;
        self.info.messages += 1;
        let position = self.info.messages;
        let NewMessage { author, content, cause, dedupe, wake: _ } = message;
        self.dedupe.extend(dedupe.map(|key| (key, position)));
        self.messages.push(SessionMessage { position, at, author, content, cause, woke, run });
        SessionAnswer::Posted { position, at, repeated: false, run }
    }

    /// The message that has the dedupe key of this one.
    fn repeated(&self, message: &NewMessage) -> Option<SessionAnswer> {
        let position = self.dedupe.get(message.dedupe.as_ref()?)?;
        let first = self.messages.iter().find(|message| message.position == *position)?;
        Some(SessionAnswer::Posted { position: *position, at: first.at, repeated: true, run: first.run })
    }

    /// The number of entries besides this one.
    fn others(&self, kind: DataKind, name: &Arc<str>) -> u64 {
        self.entries.keys().filter(|(other, named)| *other == kind && named != name).count() as u64
    }

    fn sizes(&self) -> SessionSizes {
        let of = |text: serde_json::Result<String>| text.map_or(0, |text| text.len() as u64);
        let values = self.entries.iter().filter(|((kind, _), _)| *kind == DataKind::Value);
        let values: Vec<u64> = values.map(|(_, (value, _))| of(serde_json::to_string(value))).collect();
        SessionSizes {
            messages: self.messages.len() as u64,
            message_bytes: self.messages.iter().map(|message| of(serde_json::to_string(&message.content))).sum(),
            values: values.len() as u64,
            value_bytes: values.iter().sum(),
        }
    }

    /// Removes everything but the fact that the session is closed.
    fn empty(&mut self) {
        let (title, owner, tools, settings) = Default::default();
        let info = SessionInfo { title, owner, tools, settings, ..std::mem::take(&mut self.info) };
        *self = Self { info, ..Self::default() };
    }
}

impl Sessions {
    pub(super) fn is_closed(&self, session: &str) -> bool {
        self.all.get(session).is_some_and(|session| session.row.info.closed.is_some())
    }

    /// Whether a run that must stay in the sessions of its principal may be created in this one.
    pub(super) fn admits(&self, session: &str, creation: &Creation) -> bool {
        self.all.get(session).is_none_or(|session| {
            let row = &session.row;
            SessionAccess::admits(creation.principal.as_ref(), row.info.owner.as_ref(), row.kept)
        })
    }

    pub(super) fn add_outcomes(&mut self, session: Option<&Arc<str>>, at: Timestamp, outcomes: &[SeenOutcome]) {
        if let Some(found) = session.and_then(|session| self.all.get_mut(session)) {
            found.row.outcomes.add(at, outcomes);
        }
    }

    /// Changes the tools that a session shows, for an owner's commit.
    pub(super) fn change_tools(&mut self, session: &Arc<str>, change: &ToolsChange) {
        let Some(row) = self.all.get_mut(session).map(|session| &mut session.row) else { return };
        if row.info.closed.is_some() || tools_after(&row.info, change).len() > limits::SESSION_TOOLS {
            tracing::warn!(%session, "a change of an outcome was left out: the session is closed or names too many tools");
        } else if let SessionAnswer::Tools { tools } =
            row.apply(SessionChange::Tools(change.clone()), Timestamp::default())
        {
            self.live.changed(session, tools);
        }
    }
}

impl Inner {
    /// Posts a message of an owner's commit. The turn that it starts is never refused.
    pub(super) fn post_if_open(
        &mut self,
        session: &Arc<str>,
        at: Timestamp,
        message: NewMessage,
        principal: Option<&Arc<str>>,
    ) {
        let Some(row) = self.sessions.all.get(session).map(|session| &session.row) else { return };
        if row.info.closed.is_some() {
            tracing::warn!(%session, "a message of an outcome was left out: the session is closed");
        } else if row.repeated(&message).is_none() {
            let woken = row.info.settings.woken_by(&message);
            self.post(session, at, message, woken.map(|_| principal));
        }
    }

    /// Posts a message. If it wakes the session, starts the turn of the agent for this principal.
    fn post(
        &mut self,
        name: &Arc<str>,
        at: Timestamp,
        message: NewMessage,
        woken: Option<Option<&Arc<str>>>,
    ) -> SessionAnswer {
        let info = self.session_info(name).unwrap_or_default();
        let turn = woken.and_then(|principal| {
            let agent = info.settings.agent.as_ref()?;
            Some(message_turn(&info, agent, info.messages + 1, at, principal))
        });
        let run = turn.as_ref().map(|turn| turn.run);
        let session = self.sessions.all.entry(name.clone()).or_insert_with(|| Session::created(at));
        let answer = session.row.post(message, at, woken.is_some(), run);
        if let Some(turn) = turn {
            self.start_turn(turn);
        }
        answer
    }

    fn start_turn(&mut self, turn: NewTurn) {
        let NewTurn { run, creation, record } = turn;
        self.start(run, creation, vec![record]);
        self.granted.push(run);
    }

    /// Refuses a turn that a write from outside or of an operation starts.
    fn refuse_new_turn(&self, name: &Arc<str>, turn: Turn, starter: &Starter) -> Result<(), SessionRefusal> {
        if turn == Turn::Refuse
            && let Err(StoreError::Busy { turn, since, .. }) = self.refuse_turn(name)
        {
            return Err(SessionRefusal::Busy { turn, since });
        }
        match self.sessions.full(name, starter.most, 0) {
            Some((most, Some(run))) => Err(SessionRefusal::Runs { most, run }),
            _ => Ok(()),
        }
    }

    /// Starts a turn by its id, or finds the one that has it.
    fn start_by_id(
        &mut self,
        info: &SessionInfo,
        at: Timestamp,
        start: &StartTurn,
        starter: &Starter,
    ) -> SessionVerdict {
        let turn = start.turn(info, at, starter);
        match self.check_creation(&super::Creation { turn: Turn::Queue, ..turn.creation.clone() }, &[]) {
            Err(StoreError::KeyTaken { run }) => return Ok(SessionAnswer::Started { run, repeated: true }),
            Err(StoreError::KeySpent { run }) => return Err(SessionRefusal::Spent { run }),
            _ => {}
        }
        self.refuse_new_turn(&info.name, turn.creation.turn, starter)?;
        let run = turn.run;
        self.start_turn(turn);
        Ok(SessionAnswer::Started { run, repeated: false })
    }

    fn write_session(&mut self, write: SessionWrite) -> Result<SessionVerdict, StoreError> {
        if let Some(operation) = &write.by
            && let Some(verdict) = self.kept_verdict(operation)?
        {
            return Ok(verdict);
        }
        if let SessionChange::Stage { edits, limits } = &write.change {
            return self.stage_files(&write.session, write.at, (edits, *limits), write.by.as_ref());
        }
        let verdict = self.decide_session_write(&write);
        if let Some(SessionOperation { run, key, .. }) = write.by {
            self.sessions.verdicts.entry(run).or_default().push((key, verdict.clone()));
        }
        Ok(verdict)
    }

    /// Checks the epoch of an operation. Returns the verdict that it got before.
    fn kept_verdict(&self, operation: &SessionOperation) -> Result<Option<SessionVerdict>, StoreError> {
        let SessionOperation { run, epoch, key } = operation;
        let entry = self.runs.get(run).ok_or(StoreError::NoSuchRun(*run))?;
        if entry.is_finished() {
            return Err(StoreError::Finished(*run));
        }
        if entry.epoch != *epoch {
            return Err(StoreError::Stale { run: *run, epoch: *epoch, current: entry.epoch });
        }
        let kept = self.sessions.verdicts.get(run).and_then(|verdicts| verdicts.iter().find(|(other, _)| other == key));
        Ok(kept.map(|(_, verdict)| verdict.clone()))
    }

    fn decide_session_write(&mut self, write: &SessionWrite) -> SessionVerdict {
        let SessionWrite { session: name, at, change, access, starter, .. } = write;
        let row = self.sessions.all.get(name).map(|session| &session.row);
        if let (SessionChange::Post(message), Some(row)) = (change, row)
            && access.reaches(row.info.owner.as_ref())
            && let Some(answer) = row.repeated(message)
        {
            return Ok(answer);
        }
        let entries = |kind| match (change, row) {
            (SessionChange::Set { name, .. }, Some(row)) => row.others(kind, name),
            _ => 0,
        };
        let info = row.map(|row| SessionInfo { name: name.clone(), opened: row.kept, ..row.info.clone() });
        refuse_session_write(change, access, info.as_ref(), entries)?;
        if let SessionChange::File(change) = change {
            let by = write.by.as_ref().map(|operation| operation.run);
            return self.change_file(name, *at, change, by).map_err(SessionRefusal::File);
        }
        let created = row.is_none();
        match (change, info) {
            (SessionChange::Post(message), Some(info)) => {
                let woken = info.settings.woken_by(message);
                if let (Some(turn), true) = (woken, info.settings.agent.is_some()) {
                    self.refuse_new_turn(name, turn, starter)?;
                }
                return Ok(self.post(name, *at, message.clone(), woken.map(|_| starter.principal.as_ref())));
            }
            (SessionChange::Start(start), Some(info)) => return self.start_by_id(&info, *at, start, starter),
            _ => {}
        }
        let session = self.sessions.all.entry(name.clone()).or_insert_with(|| Session::created(*at));
        match session.row.apply(change.clone(), *at) {
            SessionAnswer::Opened { .. } => Ok(SessionAnswer::Opened { created }),
            SessionAnswer::Tools { tools } => {
                self.sessions.live.changed(name, tools.clone());
                Ok(SessionAnswer::Tools { tools })
            }
            answer => Ok(answer),
        }
    }

    fn unfinished_run_of(&self, session: &str) -> Option<RunId> {
        self.sessions.all.get(session)?.unfinished.first().copied()
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
        self.sessions.live.changed(name, SessionTools::default());
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
        let mut inner = self.inner.lock();
        let answer = inner.write_session(write);
        let started = std::mem::take(&mut inner.granted);
        drop(inner);
        self.hooks.notify(&started);
        ready(answer)
    }

    fn session(&self, name: Arc<str>) -> BoxFuture<'_, Result<Option<SessionInfo>, StoreError>> {
        ready(Ok(self.inner.lock().session_info(&name)))
    }

    fn live_tools(&self, name: Arc<str>) -> BoxFuture<'_, Result<Arc<LiveTools>, StoreError>> {
        let inner = self.inner.lock();
        let live = inner.sessions.live.get(&name);
        let row = inner.sessions.all.get(&name).and_then(|session| session.row.info.tools.clone());
        live.read(row.map(|tools| (*tools).clone()).unwrap_or_default());
        ready(Ok(live))
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

    fn recent_outcomes(&self, session: Arc<str>) -> BoxFuture<'_, Result<RecentOutcomes, StoreError>> {
        let inner = self.inner.lock();
        ready(Ok(inner.sessions.all.get(&session).map(|session| session.row.outcomes.clone()).unwrap_or_default()))
    }

    fn unfinished_runs(&self, session: Arc<str>, limit: usize) -> BoxFuture<'_, Result<Vec<RunId>, StoreError>> {
        let inner = self.inner.lock();
        let runs = inner.sessions.all.get(&session).into_iter().flat_map(|session| &session.unfinished);
        ready(Ok(runs.copied().take(limit).collect()))
    }

    fn session_sizes(&self, session: Arc<str>) -> BoxFuture<'_, Result<SessionSizes, StoreError>> {
        let inner = self.inner.lock();
        ready(Ok(inner.sessions.all.get(&session).map(|session| session.row.sizes()).unwrap_or_default()))
    }

    fn purge_session(&self, name: Arc<str>) -> BoxFuture<'_, Result<(), StoreError>> {
        ready(self.inner.lock().purge_session(&name))
    }
}
