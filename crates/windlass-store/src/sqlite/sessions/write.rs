//! Writes to sessions: decided and applied in one step. The verdict on a write of a run's operation is kept until the
//! run ends, so that the same operation gets the same answer after a crash.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::store::{
    DataKind, NewMessage, SessionAnswer, SessionChange, SessionOperation, SessionRefusal, SessionVerdict, SessionWrite,
    StoreError, refuse_session_write,
};
use windlass_core::time::Timestamp;

use super::super::checksum;
use super::super::job::{RunPhase, encode};
use super::super::log::unsigned;
use super::super::read;
use super::super::seal;
use super::super::sealing_keys::SealingKeys;
use super::super::write_tx::{JobError, WriteTx};
use super::{StoredSession, insert};

/// A write to a session, encoded on the thread that submits it.
pub(in crate::sqlite) struct SessionJob {
    pub(super) session: Arc<str>,
    pub(super) at: Timestamp,
    /// Without its value, which is in `text`.
    pub(super) change: SessionChange,
    /// The content of a message, or a value; a secret is sealed.
    text: String,
    pub(super) by: Option<SessionOperation>,
}

impl SessionJob {
    pub(in crate::sqlite) fn encode(write: SessionWrite, keys: &SealingKeys) -> Result<Self, StoreError> {
        let SessionWrite { session, at, mut change, by } = write;
        let text = match &mut change {
            SessionChange::Post(message) => encode(&message.content)?,
            SessionChange::Set { kind: DataKind::Value, value, .. } => encode(&value.take())?,
            SessionChange::Set { kind: DataKind::Secret, name, value } => {
                seal::seal_secret(keys, &session, name, &value.take())?
            }
            _ => String::new(),
        };
        Ok(Self { session, at, change, text, by })
    }

    pub(in crate::sqlite) fn bytes(&self) -> usize {
        self.text.len()
    }
}

/// A message that an owner posts together with its own changes.
pub(in crate::sqlite) struct EncodedPost {
    session: Arc<str>,
    at: Timestamp,
    message: NewMessage,
    text: String,
}

impl EncodedPost {
    pub(in crate::sqlite) fn encode(session: Arc<str>, at: Timestamp, message: NewMessage) -> Result<Self, StoreError> {
        Ok(Self { session, at, text: encode(&message.content)?, message })
    }

    pub(in crate::sqlite) fn bytes(&self) -> usize {
        self.text.len()
    }
}

pub(super) const BY_DEDUPE: &str = "SELECT position, at FROM messages WHERE session = ?1 AND dedupe = ?2";

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
        let refused = refuse_session_write(&job.change, found.map(|session| &session.info), |_| others);
        Ok(refused.map(|()| None))
    }

    fn apply_session_change(
        &mut self,
        job: &SessionJob,
        found: Option<StoredSession>,
    ) -> Result<SessionAnswer, JobError> {
        let connection = self.connection;
        let created = found.is_none();
        let id = match found {
            Some(session) => session.id,
            None => {
                let id = insert(connection, &job.session, job.at, true, None)?;
                self.sessions.remember(&job.session, (id, false));
                id
            }
        };
        let update = |sql: &str, values: &[&dyn rusqlite::ToSql]| connection.prepare_cached(sql)?.execute(values);
        match &job.change {
            SessionChange::Open { title, owner } => {
                let sql = "UPDATE sessions SET title = coalesce(?2, title), owner = coalesce(owner, ?3), kept = 1
                           WHERE id = ?1";
                update(sql, &[&id, title, owner])?;
                return Ok(SessionAnswer::Opened { created });
            }
            SessionChange::Title(title) => {
                update("UPDATE sessions SET title = ?2, kept = 1 WHERE id = ?1", &[&id, title])?;
            }
            SessionChange::Post(message) => return Ok(post(connection, id, job.at, message, &job.text)?),
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
            SessionChange::Close { reason } => {
                // The first closing counts.
                let sql = "UPDATE sessions SET closed = ?2, reason = ?3, kept = 1 WHERE id = ?1 AND closed IS NULL";
                update(sql, &[&id, &job.at.as_micros(), reason])?;
                self.sessions.remember(&job.session, (id, true));
            }
            _ => return Err(StoreError::Invalid("this store does not support this write".to_owned()).into()),
        }
        Ok(SessionAnswer::Done)
    }

    /// Posts the messages of an owner's commit.
    pub(in crate::sqlite) fn post_messages(&mut self, posts: &[EncodedPost]) -> Result<(), JobError> {
        for EncodedPost { session, at, message, text } in posts {
            let found = StoredSession::find(self.connection, session)?.transpose()?;
            let Some(found) = found else { continue };
            if found.info.closed.is_some() {
                tracing::warn!(%session, "a message of an outcome was left out: the session is closed");
            } else if repeated(self.connection, found.id, message)?.is_none() {
                post(self.connection, found.id, *at, message, text)?;
            }
        }
        Ok(())
    }
}

fn is_secret(kind: DataKind) -> bool {
    kind == DataKind::Secret
}

/// The message that has the dedupe key of this one.
fn repeated(connection: &Connection, session: i64, message: &NewMessage) -> rusqlite::Result<Option<SessionAnswer>> {
    let Some(dedupe) = &message.dedupe else { return Ok(None) };
    let first = |row: &rusqlite::Row<'_>| {
        let (position, at) = (unsigned(row.get(0)?), Timestamp::from_micros(row.get(1)?));
        Ok(SessionAnswer::Posted { position, at, repeated: true })
    };
    connection.prepare_cached(BY_DEDUPE)?.query_row(params![session, dedupe], first).optional()
}

fn post(
    connection: &Connection,
    session: i64,
    at: Timestamp,
    message: &NewMessage,
    text: &str,
) -> rusqlite::Result<SessionAnswer> {
    let sql = "UPDATE sessions SET messages = messages + 1, kept = 1 WHERE id = ?1 RETURNING messages";
    let position: i64 = connection.prepare_cached(sql)?.query_row([session], |row| row.get(0))?;
    let sql = "INSERT INTO messages (session, position, at, author, cause, dedupe, body, sum)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, windlass_sum(?1, ?2, ?3, ?4, ?5, ?6, ?7))";
    let (author, NewMessage { cause, dedupe, .. }) = (message.author.as_str(), message);
    let values = params![session, position, at.as_micros(), author, cause, dedupe, text];
    connection.prepare_cached(sql)?.execute(values)?;
    Ok(SessionAnswer::Posted { position: unsigned(position), at, repeated: false })
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
