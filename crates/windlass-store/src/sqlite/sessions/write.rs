//! Writes to sessions: decided and applied in one step. The verdict on a write of a run's operation is kept until the
//! run ends, so that the same operation gets the same answer after a crash.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::store::ToolsChange;
use windlass_core::store::{
    DataKind, NewMessage, NewTurn, SessionAccess, SessionAnswer, SessionChange, SessionInfo, SessionOperation,
    SessionRefusal, SessionVerdict, SessionWrite, SettingsChange, Starter, StoreError, Turn, message_turn,
    most_unfinished, refuse_session_write, tools_after, turn_key,
};
use windlass_core::time::Timestamp;
use windlass_core::{RunId, limits};

use super::super::checksum;
use super::super::job::{Records, RunPhase, encode};
use super::super::log::unsigned;
use super::super::read;
use super::super::seal;
use super::super::sealing_keys::SealingKeys;
use super::super::write_tx::{JobError, WriteTx};
use super::{StoredSession, count_unfinished, insert, unfinished};

/// A write to a session, encoded on the thread that submits it.
pub(in crate::sqlite) struct SessionJob {
    pub(super) session: Arc<str>,
    pub(super) at: Timestamp,
    /// Without its value, which is in `text`.
    pub(super) change: SessionChange,
    /// The content of a message, or a value; a secret is sealed.
    text: String,
    pub(super) by: Option<SessionOperation>,
    pub(super) access: SessionAccess,
    starter: Starter,
    /// The first record of a turn that is started by its id.
    record: Records,
}

impl SessionJob {
    pub(in crate::sqlite) fn encode(write: SessionWrite, keys: &SealingKeys) -> Result<Self, StoreError> {
        let SessionWrite { session, at, mut change, by, access, starter } = write;
        let mut record = Records::default();
        let text = match &mut change {
            SessionChange::Post(message) => encode(&message.content)?,
            SessionChange::Set { kind: DataKind::Value, value, .. } => encode(&value.take())?,
            SessionChange::Set { kind: DataKind::Secret, name, value } => {
                seal::seal_secret(keys, &session, name, &value.take())?
            }
            SessionChange::Start(start) => {
                // The record does not depend on the session that it is written to.
                let turn = start.turn(&SessionInfo::default(), at, &starter);
                record = Records::of(turn.run, &[turn.record], keys)?;
                String::new()
            }
            _ => String::new(),
        };
        Ok(Self { session, at, change, text, by, access, starter, record })
    }

    pub(in crate::sqlite) fn bytes(&self) -> usize {
        self.text.len() + self.record.bytes()
    }
}

/// A message that an owner posts together with its own changes.
pub(in crate::sqlite) struct EncodedPost {
    session: Arc<str>,
    at: Timestamp,
    message: NewMessage,
    principal: Option<Arc<str>>,
    text: String,
}

impl EncodedPost {
    pub(in crate::sqlite) fn encode(
        session: Arc<str>,
        at: Timestamp,
        message: NewMessage,
        principal: Option<Arc<str>>,
    ) -> Result<Self, StoreError> {
        Ok(Self { session, at, text: encode(&message.content)?, message, principal })
    }

    pub(in crate::sqlite) fn bytes(&self) -> usize {
        self.text.len()
    }
}

pub(super) const BY_DEDUPE: &str = "SELECT position, at, woke FROM messages WHERE session = ?1 AND dedupe = ?2";

pub(super) const VERDICT: &str = "SELECT run, key, body, sum FROM verdicts WHERE run = ?1 AND key = ?2";

/// How a verdict is stored.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
enum StoredVerdict {
    Refused(SessionRefusal),
    Answered(SessionAnswer),
}

impl WriteTx<'_> {
    /// Decides about a write and applies it.
    pub(in crate::sqlite) fn write_session(&mut self, job: &SessionJob) -> Result<SessionVerdict, JobError> {
        let run = match &job.by {
            Some(operation) => Some((self.writing_run(operation)?, &operation.key)),
            None => None,
        };
        if let Some((run, key)) = run
            && let Some(verdict) = kept_verdict(self.connection, run, key)?
        {
            return Ok(verdict);
        }
        let found = StoredSession::find(self.connection, &job.session)?.transpose()?;
        if let SessionChange::Stage { edits, limits } = &job.change {
            return self.stage_files(job, (edits, *limits), found.as_ref());
        }
        let verdict = match self.decide(job, found.as_ref())? {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => match (&job.change, found) {
                (SessionChange::File(change), Some(session)) => self.change_file(job, change, &session)?,
                (_, found) => Ok(self.apply_session_change(job, found)?),
            },
            Err(refusal) => Err(refusal),
        };
        if let Some((run, key)) = run {
            keep_verdict(self.connection, run, key, &verdict)?;
        }
        Ok(verdict)
    }

    /// The number of the run that makes a write, if its owner may.
    fn writing_run(&mut self, operation: &SessionOperation) -> Result<i64, JobError> {
        let SessionOperation { run, epoch, .. } = *operation;
        let head = self.head(run)?.ok_or(StoreError::NoSuchRun(run))?;
        if head.phase == RunPhase::Finished {
            return Err(StoreError::Finished(run).into());
        }
        if head.epoch != epoch {
            return Err(StoreError::Stale { run, epoch, current: head.epoch }.into());
        }
        Ok(head.id)
    }

    /// The answer if nothing is to be written, or the refusal.
    fn decide(
        &self,
        job: &SessionJob,
        found: Option<&StoredSession>,
    ) -> Result<Result<Option<SessionAnswer>, SessionRefusal>, JobError> {
        if let (SessionChange::Post(message), Some(session)) = (&job.change, found)
            && job.access.reaches(session.info.owner.as_ref())
            && let Some(answer) = repeated(self.connection, session.id, message)?
        {
            return Ok(Ok(Some(answer)));
        }
        let others = match (&job.change, found) {
            (SessionChange::Set { kind, name, .. }, Some(session)) => {
                let sql = "SELECT count(*) FROM session_data WHERE session = ?1 AND secret = ?2 AND name != ?3";
                let arguments = params![session.id, is_secret(*kind), name];
                unsigned(self.connection.prepare_cached(sql)?.query_row(arguments, |row| row.get(0))?)
            }
            _ => 0,
        };
        let refused = refuse_session_write(&job.change, &job.access, found.map(|session| &session.info), |_| others);
        match (refused, found, &job.change) {
            (Ok(()), Some(session), SessionChange::Post(message)) => {
                let settings = &session.info.settings;
                let woken = settings.woken_by(message).filter(|_| settings.agent.is_some());
                let refused = match woken {
                    Some(turn) => self.refuse_turn(session, turn, &job.starter)?,
                    None => Ok(()),
                };
                Ok(refused.map(|()| None))
            }
            (Ok(()), Some(session), SessionChange::Start(start)) => {
                let key = turn_key(&session.info, &start.id);
                if let Some(run) = self.keyed(&key)? {
                    return Ok(Ok(Some(SessionAnswer::Started { run, repeated: true })));
                }
                if let Some(run) = self.tombstone(&key)? {
                    return Ok(Err(SessionRefusal::Spent { run }));
                }
                Ok(self.refuse_turn(session, session.info.settings.turns.into(), &job.starter)?.map(|()| None))
            }
            (refused, _, _) => Ok(refused.map(|()| None)),
        }
    }

    /// Whether a turn that a write from outside or of an operation starts is refused.
    fn refuse_turn(
        &self,
        session: &StoredSession,
        turn: Turn,
        starter: &Starter,
    ) -> Result<Result<(), SessionRefusal>, JobError> {
        if turn == Turn::Refuse
            && let Some((turn, since)) = self.turn(&session.info.name)?
        {
            return Ok(Err(SessionRefusal::Busy { turn, since }));
        }
        let most = most_unfinished(&session.info.settings, starter.most);
        if let Some(most) = most
            && count_unfinished(self.connection, session.id, most)? >= most
            && let Some(run) = unfinished(self.connection, session.id, 1)?.pop()
        {
            return Ok(Err(SessionRefusal::Runs { most, run }));
        }
        Ok(Ok(()))
    }

    fn apply_session_change(
        &mut self,
        job: &SessionJob,
        found: Option<StoredSession>,
    ) -> Result<SessionAnswer, JobError> {
        let connection = self.connection;
        let created = found.is_none();
        let session = match found {
            Some(session) => session,
            None => {
                let id = insert(connection, &job.session, job.at, true, None)?;
                StoredSession { id, info: SessionInfo::default() }
            }
        };
        let id = session.id;
        let update = |sql: &str, values: &[&dyn rusqlite::ToSql]| connection.prepare_cached(sql)?.execute(values);
        match &job.change {
            SessionChange::Open { title, owner, settings } => {
                let sql = "UPDATE sessions SET title = coalesce(?2, title), owner = coalesce(owner, ?3), kept = 1
                           WHERE id = ?1";
                update(sql, &[&id, title, owner])?;
                self.sessions.forget(&job.session);
                if !settings.is_empty() {
                    self.configure(&job.session, &session, settings)?;
                }
                return Ok(SessionAnswer::Opened { created });
            }
            SessionChange::Settings(settings) => self.configure(&job.session, &session, settings)?,
            SessionChange::Title(title) => {
                update("UPDATE sessions SET title = ?2, kept = 1 WHERE id = ?1", &[&id, title])?;
            }
            SessionChange::Post(message) => {
                let principal = job.starter.principal.as_ref();
                return self.post(&session, job.at, message, &job.text, principal);
            }
            SessionChange::Start(start) => {
                let turn = start.turn(&session.info, job.at, &job.starter);
                self.start(turn.run, &turn.creation, &job.record)?;
                return Ok(SessionAnswer::Started { run: turn.run, repeated: false });
            }
            SessionChange::Set { kind, name, .. } => {
                let sql = "INSERT OR REPLACE INTO session_data (session, secret, name, at, value, sum)
                           VALUES (?1, ?2, ?3, ?4, ?5, windlass_sum(?1, ?2, ?3, ?4, ?5))";
                update(sql, &[&id, &is_secret(*kind), name, &job.at.as_micros(), &job.text])?;
                update("UPDATE sessions SET kept = 1 WHERE id = ?1 AND kept = 0", &[&id])?;
            }
            SessionChange::Delete { kind, name } => {
                let sql = "DELETE FROM session_data WHERE session = ?1 AND secret = ?2 AND name = ?3";
                return Ok(SessionAnswer::Deleted { existed: update(sql, &[&id, &is_secret(*kind), name])? > 0 });
            }
            SessionChange::Tools(change) => {
                let tools = tools_after(&session.info, change);
                let text = (!tools.is_default()).then(|| encode(&tools)).transpose()?;
                update("UPDATE sessions SET tools = ?2, kept = 1 WHERE id = ?1", &[&id, &text])?;
                self.sessions.show_tools(job.session.clone(), tools.clone());
                return Ok(SessionAnswer::Tools { tools });
            }
            SessionChange::Close { reason } => {
                // The first closing counts.
                let sql = "UPDATE sessions SET closed = ?2, reason = ?3, kept = 1 WHERE id = ?1 AND closed IS NULL";
                update(sql, &[&id, &job.at.as_micros(), reason])?;
                self.sessions.forget(&job.session);
            }
            _ => return Err(StoreError::Invalid("this store does not support this write".to_owned()).into()),
        }
        Ok(SessionAnswer::Done)
    }

    /// Changes the tools of sessions, for an owner's commit.
    pub(in crate::sqlite) fn change_tools(&mut self, changes: &[(Arc<str>, ToolsChange)]) -> Result<(), JobError> {
        for (session, change) in changes {
            let Some(found) = StoredSession::find(self.connection, session)?.transpose()? else { continue };
            let tools = tools_after(&found.info, change);
            if found.info.closed.is_some() || tools.len() > limits::SESSION_TOOLS {
                tracing::warn!(
                    %session,
                    "a change of an outcome was left out: the session is closed or names too many tools"
                );
                continue;
            }
            let text = (!tools.is_default()).then(|| encode(&tools)).transpose()?;
            let sql = "UPDATE sessions SET tools = ?2, kept = 1 WHERE id = ?1";
            self.connection.prepare_cached(sql)?.execute(params![found.id, text])?;
            self.sessions.show_tools(session.clone(), tools);
        }
        Ok(())
    }

    /// Posts the messages of an owner's commit.
    pub(in crate::sqlite) fn post_messages(&mut self, posts: &[EncodedPost]) -> Result<(), JobError> {
        for EncodedPost { session, at, message, principal, text } in posts {
            let found = StoredSession::find(self.connection, session)?.transpose()?;
            let Some(found) = found else { continue };
            if found.info.closed.is_some() {
                tracing::warn!(%session, "a message of an outcome was left out: the session is closed");
            } else if repeated(self.connection, found.id, message)?.is_none() {
                self.post(&found, *at, message, text, principal.as_ref())?;
            }
        }
        Ok(())
    }

    /// Posts a message, and starts the turn that it wakes the session for.
    fn post(
        &mut self,
        session: &StoredSession,
        at: Timestamp,
        message: &NewMessage,
        text: &str,
        principal: Option<&Arc<str>>,
    ) -> Result<SessionAnswer, JobError> {
        let connection = self.connection;
        let sql = "UPDATE sessions SET messages = messages + 1, kept = 1 WHERE id = ?1 RETURNING messages";
        let position: i64 = connection.prepare_cached(sql)?.query_row([session.id], |row| row.get(0))?;
        let (info, wakes) = (&session.info, session.info.settings.woken_by(message).is_some());
        let agent = info.settings.agent.as_ref().filter(|_| wakes);
        let turn = agent.map(|agent| message_turn(info, agent, unsigned(position), at, principal));
        let run = turn.as_ref().map(|turn| turn.run);
        let woke = wakes.then(|| run.map(|run| run.as_bytes().to_vec()).unwrap_or_default());
        let sql = "INSERT INTO messages (session, position, at, author, cause, dedupe, body, woke, sum)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, windlass_sum(?1, ?2, ?3, ?4, ?5, ?6, ?7)
                                                           + iif(?8 IS NULL, 0, windlass_sum(?8)))";
        let (author, NewMessage { cause, dedupe, .. }) = (message.author.as_str(), message);
        let values = params![session.id, position, at.as_micros(), author, cause, dedupe, text, woke];
        connection.prepare_cached(sql)?.execute(values)?;
        if let Some(NewTurn { run, creation, record }) = turn {
            // The arguments name the session and the message, so they contain no secrets.
            self.start(run, &creation, &Records::plain(&record)?)?;
        }
        Ok(SessionAnswer::Posted { position: unsigned(position), at, repeated: false, run })
    }

    fn configure(&mut self, name: &Arc<str>, session: &StoredSession, change: &SettingsChange) -> Result<(), JobError> {
        let mut settings = session.info.settings.clone();
        settings.apply(change);
        let text = if settings.is_default() { None } else { Some(encode(&settings)?) };
        let sql = "UPDATE sessions SET settings = ?2, kept = 1 WHERE id = ?1";
        self.connection.prepare_cached(sql)?.execute(params![session.id, text])?;
        self.sessions.forget(name);
        Ok(())
    }
}

/// The run in the column `woke`; `None` if the session had no agent.
pub(super) fn started_run(woke: &[u8]) -> Option<RunId> {
    woke.try_into().ok().map(RunId::from_bytes)
}

fn is_secret(kind: DataKind) -> bool {
    kind == DataKind::Secret
}

/// The message that has the dedupe key of this one.
fn repeated(connection: &Connection, session: i64, message: &NewMessage) -> rusqlite::Result<Option<SessionAnswer>> {
    let Some(dedupe) = &message.dedupe else { return Ok(None) };
    let first = |row: &rusqlite::Row<'_>| {
        let (position, at) = (unsigned(row.get(0)?), Timestamp::from_micros(row.get(1)?));
        let run = row.get::<_, Option<Vec<u8>>>(2)?.as_deref().and_then(started_run);
        Ok(SessionAnswer::Posted { position, at, repeated: true, run })
    };
    connection.prepare_cached(BY_DEDUPE)?.query_row(params![session, dedupe], first).optional()
}

fn kept_verdict(connection: &Connection, run: i64, key: &str) -> Result<Option<SessionVerdict>, JobError> {
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(2)?, checksum::is_intact(row, 3)?));
    let found = connection.prepare_cached(VERDICT)?.query_row(params![run, key], read).optional()?;
    let Some((body, intact)) = found else { return Ok(None) };
    let verdict = intact.then(|| read::decode::<StoredVerdict>(&body).ok()).flatten();
    match verdict {
        Some(StoredVerdict::Answered(answer)) => Ok(Some(Ok(answer))),
        Some(StoredVerdict::Refused(refusal)) => Ok(Some(Err(refusal))),
        None => {
            let place = format!("the answer to the write {key} to a session");
            Err(StoreError::Damaged { run: None, place }.into())
        }
    }
}

fn keep_verdict(connection: &Connection, run: i64, key: &str, verdict: &SessionVerdict) -> Result<(), JobError> {
    let stored = match verdict.clone() {
        Ok(answer) => StoredVerdict::Answered(answer),
        Err(refusal) => StoredVerdict::Refused(refusal),
    };
    let sql = "INSERT INTO verdicts (run, key, body, sum) VALUES (?1, ?2, ?3, windlass_sum(?1, ?2, ?3))";
    connection.prepare_cached(sql)?.execute(params![run, key, encode(&stored)?])?;
    Ok(())
}

/// Deletes the verdicts on the writes of a run that has ended, or of its last generation.
pub(in crate::sqlite) fn forget_verdicts(connection: &Connection, run: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM verdicts WHERE run = ?1")?.execute([run]).map(|_| ())
}
