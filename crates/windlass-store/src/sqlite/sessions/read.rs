//! Reads of sessions.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use rusqlite::{OptionalExtension, Row, params};
use serde_json::Value;
use windlass_core::RunId;
use windlass_core::store::LiveTools;
use windlass_core::store::{
    Author, DataEntry, DataKind, Promise, RecentOutcomes, SessionCursor, SessionFilter, SessionInfo, SessionMessage,
    SessionSizes, SessionVerdict, SessionWrite, Sessions, StoreError,
};
use windlass_core::time::Timestamp;

use super::super::SqliteStore;
use super::super::checksum;
use super::super::damage::Damage;
use super::super::job::Job;
use super::super::log::{signed, unsigned};
use super::super::read::{ReadError, Readers, decode, size};
use super::super::seal;
use super::write::started_run;
use super::{SessionJob, StoredSession, select_sessions, unfinished};

pub(super) const LIST: &str = select_sessions!(
    "WHERE (created, name) < (?1, ?2) AND (?3 IS NULL OR (closed IS NULL) = ?3) AND (?4 IS NULL OR owner = ?4)
     ORDER BY created DESC, name DESC LIMIT ?5"
);

pub(super) const MESSAGES: &str = "SELECT position, at, author, cause, body, woke,
        sum = windlass_sum(session, position, at, author, cause, dedupe, body)
              + iif(woke IS NULL, 0, windlass_sum(woke))
    FROM messages WHERE session = ?1 AND position > ?2 ORDER BY position LIMIT ?3";

/// The bytes are those of the stored text.
const SIZES: &str = "SELECT
    (SELECT count(*) FROM messages WHERE session = ?1),
    (SELECT coalesce(sum(octet_length(body)), 0) FROM messages WHERE session = ?1),
    (SELECT count(*) FROM session_data WHERE session = ?1 AND secret = 0),
    (SELECT coalesce(sum(octet_length(value)), 0) FROM session_data WHERE session = ?1 AND secret = 0)";

const VALUE: &str = "SELECT session, secret, name, at, value, sum FROM session_data
    WHERE session = ?1 AND secret = ?2 AND name = ?3";

const ENTRIES: &str = "SELECT session, secret, name, at, value, sum FROM session_data
    WHERE session = ?1 AND secret = ?2 ORDER BY name";

impl Readers {
    fn find_session(&self, name: &str) -> Result<Option<StoredSession>, StoreError> {
        self.with_reader(None, |connection| {
            StoredSession::find(connection, name)?.transpose().map_err(ReadError::Refused)
        })
    }

    fn list_sessions(
        &self,
        filter: &SessionFilter,
        before: Option<&SessionCursor>,
        limit: usize,
    ) -> Result<Vec<SessionInfo>, StoreError> {
        let (created, name) = before.map_or((i64::MAX, ""), |before| (before.created.as_micros(), &before.name));
        self.with_reader(None, |connection| {
            let mut statement = connection.prepare_cached(LIST)?;
            let arguments = params![created, name, filter.open, filter.owner, size(limit)];
            let rows = statement.query_map(arguments, StoredSession::read)?;
            rows.map(|row| Ok(row?.map_err(ReadError::Refused)?.info)).collect()
        })
    }

    fn session_messages(&self, session: &str, after: u64, limit: usize) -> Result<Vec<SessionMessage>, StoreError> {
        let Some(found) = self.find_session(session)? else { return Ok(Vec::new()) };
        self.with_reader(None, |connection| {
            let mut statement = connection.prepare_cached(MESSAGES)?;
            let mut rows = statement.query(params![found.id, signed(after), size(limit)])?;
            let mut messages: Vec<SessionMessage> = Vec::new();
            while let Some(row) = rows.next()? {
                messages.push(message(row, session)?);
            }
            // Only a session that is being removed has less than all of them.
            let wanted = found.info.messages.saturating_sub(after).min(limit as u64);
            let is_short = found.info.closed.is_none() && (messages.len() as u64) < wanted;
            let is_gapless = |pair: &[SessionMessage]| pair[0].position + 1 == pair[1].position;
            if is_short || !messages.windows(2).all(is_gapless) {
                let location = format!("a message of session {session}, which is missing,");
                return Err(ReadError::Damaged(Damage { run: None, location }));
            }
            Ok(messages)
        })
    }

    fn session_value(&self, session: &str, kind: DataKind, name: &Arc<str>) -> Result<Option<Value>, StoreError> {
        let Some(found) = self.find_session(session)? else { return Ok(None) };
        let is_secret = kind == DataKind::Secret;
        let text = self.with_reader(None, |connection| {
            let read = |row: &Row<'_>| Ok((row.get::<_, String>(4)?, checksum::is_intact(row, 5)?));
            let arguments = params![found.id, is_secret, name];
            match connection.prepare_cached(VALUE)?.query_row(arguments, read).optional()? {
                Some((_, false)) => Err(damaged_entry(session)),
                found => Ok(found.map(|(text, _)| text)),
            }
        })?;
        let Some(text) = text else { return Ok(None) };
        if is_secret {
            let unsealable = |why: String| StoreError::Unsealable { session: session.into(), name: name.clone(), why };
            let opened = seal::open_secret(self.keys(), session, name, text);
            return opened.map(Some).map_err(|error| unsealable(error.sentence(self.keys())));
        }
        let damaged = |_| StoreError::Damaged { run: None, place: format!("the value {name:?} of session {session}") };
        decode(&text).map(Some).map_err(damaged)
    }

    fn unfinished_runs(&self, session: &str, limit: usize) -> Result<Vec<RunId>, StoreError> {
        let Some(found) = self.find_session(session)? else { return Ok(Vec::new()) };
        self.with_reader(None, |connection| Ok(unfinished(connection, found.id, limit)?))
    }

    fn session_sizes(&self, session: &str) -> Result<SessionSizes, StoreError> {
        let Some(found) = self.find_session(session)? else { return Ok(SessionSizes::default()) };
        self.with_reader(None, |connection| {
            let sizes = |row: &Row<'_>| {
                let number = |column| row.get(column).map(unsigned);
                let (messages, message_bytes) = (number(0)?, number(1)?);
                Ok(SessionSizes { messages, message_bytes, values: number(2)?, value_bytes: number(3)? })
            };
            Ok(connection.prepare_cached(SIZES)?.query_row([found.id], sizes)?)
        })
    }

    fn session_entries(&self, session: &str, kind: DataKind) -> Result<Vec<DataEntry>, StoreError> {
        let Some(found) = self.find_session(session)? else { return Ok(Vec::new()) };
        self.with_reader(None, |connection| {
            let mut statement = connection.prepare_cached(ENTRIES)?;
            let mut rows = statement.query(params![found.id, kind == DataKind::Secret])?;
            let mut entries = Vec::new();
            while let Some(row) = rows.next()? {
                if !checksum::is_intact(row, 5)? {
                    return Err(damaged_entry(session));
                }
                entries.push(DataEntry { name: row.get(2)?, at: Timestamp::from_micros(row.get(3)?) });
            }
            Ok(entries)
        })
    }
}

/// Names no value or secret: a damaged name may be part of a secret.
fn damaged_entry(session: &str) -> ReadError {
    ReadError::Damaged(Damage { run: None, location: format!("a value or secret of session {session}") })
}

/// Reads the columns of [`MESSAGES`].
fn message(row: &Row<'_>, session: &str) -> Result<SessionMessage, ReadError> {
    let position = unsigned(row.get(0)?);
    let damaged = || {
        let location = format!("message {position} of session {session}");
        ReadError::Damaged(Damage { run: None, location })
    };
    if row.get::<_, Option<bool>>(6)? != Some(true) {
        return Err(damaged());
    }
    let author = Author::from_name(row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?).ok_or_else(damaged)?;
    let content = decode(row.get_ref(4)?.as_str().map_err(rusqlite::Error::from)?)?;
    let woke: Option<Vec<u8>> = row.get(5)?;
    let run = woke.as_deref().and_then(started_run);
    let (at, cause, woke) = (Timestamp::from_micros(row.get(1)?), row.get(3)?, woke.is_some());
    Ok(SessionMessage { position, at, author, content, cause, woke, run })
}

impl Sessions for SqliteStore {
    fn write_session(&self, write: SessionWrite) -> BoxFuture<'_, Result<SessionVerdict, StoreError>> {
        // Encoded and queued at once, so that a write that was submitted is made even if its future is dropped.
        let (promise, ticket) = Promise::pair();
        let queued = SessionJob::encode(write, self.readers.keys())
            .and_then(|job| self.queue.push(Job::Session(Box::new(job), promise)));
        Box::pin(async move {
            queued?;
            ticket.await
        })
    }

    fn session(&self, name: Arc<str>) -> BoxFuture<'_, Result<Option<SessionInfo>, StoreError>> {
        Box::pin(async move { Ok(self.readers.find_session(&name)?.map(|session| session.info)) })
    }

    fn live_tools(&self, name: Arc<str>) -> BoxFuture<'_, Result<Arc<LiveTools>, StoreError>> {
        let live = self.live.get(&name);
        if live.is_read() {
            return Box::pin(std::future::ready(Ok(live)));
        }
        Box::pin(async move {
            let found = self.readers.find_session(&name)?.and_then(|session| session.info.tools);
            live.read(found.map(|tools| (*tools).clone()).unwrap_or_default());
            Ok(live)
        })
    }

    fn list_sessions(
        &self,
        filter: SessionFilter,
        before: Option<SessionCursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<SessionInfo>, StoreError>> {
        Box::pin(async move { self.readers.list_sessions(&filter, before.as_ref(), limit) })
    }

    fn session_messages(
        &self,
        name: Arc<str>,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<SessionMessage>, StoreError>> {
        Box::pin(async move { self.readers.session_messages(&name, after, limit) })
    }

    fn session_value(
        &self,
        session: Arc<str>,
        kind: DataKind,
        name: Arc<str>,
    ) -> BoxFuture<'_, Result<Option<Value>, StoreError>> {
        Box::pin(async move { self.readers.session_value(&session, kind, &name) })
    }

    fn session_entries(&self, session: Arc<str>, kind: DataKind) -> BoxFuture<'_, Result<Vec<DataEntry>, StoreError>> {
        Box::pin(async move { self.readers.session_entries(&session, kind) })
    }

    fn recent_outcomes(&self, session: Arc<str>) -> BoxFuture<'_, Result<RecentOutcomes, StoreError>> {
        Box::pin(async move { self.readers.recent_outcomes(&session) })
    }

    fn unfinished_runs(&self, session: Arc<str>, limit: usize) -> BoxFuture<'_, Result<Vec<RunId>, StoreError>> {
        Box::pin(async move { self.readers.unfinished_runs(&session, limit) })
    }

    fn session_sizes(&self, session: Arc<str>) -> BoxFuture<'_, Result<SessionSizes, StoreError>> {
        Box::pin(async move { self.readers.session_sizes(&session) })
    }

    fn purge_session(&self, name: Arc<str>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            // Many messages are removed in slices, so that commits do not wait for all of them.
            while self.ask(|promise| Job::PurgeSession(name.clone(), promise)).await?.more {}
            Ok(())
        })
    }
}
