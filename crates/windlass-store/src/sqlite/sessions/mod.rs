//! Sessions: their rows, messages, data and secrets.

mod audit;
pub(super) mod files;
mod outcomes;
mod purge;
mod read;
mod write;

pub(super) use audit::check_secrets;
pub(super) use outcomes::{DDL as OUTCOMES, add as add_outcomes};
pub(super) use purge::{delete_unused, due_sessions};
pub(super) use write::{EncodedPost, SessionJob, forget_verdicts};

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};
use windlass_core::RunId;
use windlass_core::store::{Closing, LiveSessions, SessionInfo, SessionSettings, SessionTools, StoreError};
use windlass_core::time::Timestamp;

use super::log::{signed, unsigned};
use super::read::{decode, size};
use super::write_tx::JobError;

/// The columns and tables that this version added.
///
/// - `sessions.kept` says that the session stays when its last run is removed; `sessions.messages` is the position of
///   the latest message.
/// - `verdicts` has the answers to writes of unfinished runs; see `write.rs`.
pub(super) const DDL: &str = "
ALTER TABLE sessions ADD COLUMN title TEXT;
ALTER TABLE sessions ADD COLUMN owner TEXT;
ALTER TABLE sessions ADD COLUMN created INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN closed INTEGER;
ALTER TABLE sessions ADD COLUMN reason TEXT;
ALTER TABLE sessions ADD COLUMN messages INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN kept INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN sum INTEGER;
UPDATE sessions SET created = coalesce((SELECT min(runs.created) FROM runs WHERE runs.session = sessions.id), 0);
CREATE INDEX sessions_by_age ON sessions (created, name);
CREATE INDEX sessions_closed ON sessions (closed) WHERE closed IS NOT NULL AND kept = 1;

CREATE TABLE messages (
    session  INTEGER NOT NULL,
    position INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    author   TEXT NOT NULL,
    cause    TEXT,
    dedupe   TEXT,
    body     TEXT NOT NULL,
    sum      INTEGER NOT NULL,
    PRIMARY KEY (session, position)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX messages_by_dedupe ON messages (session, dedupe) WHERE dedupe IS NOT NULL;

CREATE TABLE session_data (
    session INTEGER NOT NULL,
    secret  INTEGER NOT NULL,
    name    TEXT NOT NULL,
    at      INTEGER NOT NULL,
    value   TEXT NOT NULL,
    sum     INTEGER NOT NULL,
    PRIMARY KEY (session, secret, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE verdicts (
    run  INTEGER NOT NULL,
    key  TEXT NOT NULL,
    body TEXT NOT NULL,
    sum  INTEGER NOT NULL,
    PRIMARY KEY (run, key)
) STRICT, WITHOUT ROWID;
";

/// The trigger that updates the checksum of a session's row.
pub(super) const TRIGGER: &str = "
CREATE TRIGGER sessions_sum
     AFTER UPDATE OF name, title, owner, created, closed, reason, messages, kept ON sessions
     WHEN old.sum IS NULL OR old.sum = windlass_sum(old.id, old.name, old.title, old.owner, old.created, old.closed,
                                                    old.reason, old.messages, old.kept)
     BEGIN UPDATE sessions SET sum = windlass_sum(new.id, new.name, new.title, new.owner, new.created, new.closed,
                                                  new.reason, new.messages, new.kept)
           WHERE id = new.id; END;
";

/// The columns that version 12 added: `settings` and `tools` are JSON, or NULL in a session without them.
/// `messages.woke` is NULL for a message that did not wake its session, and otherwise the run that it started, empty if
/// the session had no agent. The index finds and counts the unfinished runs of a session.
pub(super) const SETTINGS: &str = "
ALTER TABLE messages ADD COLUMN woke BLOB;
CREATE INDEX runs_unfinished ON runs (session, run) WHERE session IS NOT NULL AND phase < 4;
DROP TRIGGER sessions_sum;
ALTER TABLE sessions ADD COLUMN settings TEXT;
ALTER TABLE sessions ADD COLUMN tools TEXT;
UPDATE sessions SET sum = windlass_sum(id, name, title, owner, created, closed, reason, messages, kept, settings, tools)
     WHERE sum = windlass_sum(id, name, title, owner, created, closed, reason, messages, kept);
CREATE TRIGGER sessions_sum
     AFTER UPDATE OF name, title, owner, created, closed, reason, messages, kept, settings, tools ON sessions
     WHEN old.sum IS NULL
          OR old.sum = windlass_sum(old.id, old.name, old.title, old.owner, old.created, old.closed, old.reason,
                                    old.messages, old.kept, old.settings, old.tools)
     BEGIN UPDATE sessions SET sum = windlass_sum(new.id, new.name, new.title, new.owner, new.created, new.closed,
                                                  new.reason, new.messages, new.kept, new.settings, new.tools)
           WHERE id = new.id; END;
";

/// Selects damaged rows.
pub(super) const DAMAGED: [&str; 5] = [
    "SELECT NULL, 'the row of session ' || name FROM sessions
     WHERE sum != windlass_sum(id, name, title, owner, created, closed, reason, messages, kept, settings, tools)",
    "SELECT NULL, 'message ' || position || ' of session ' ||
                  coalesce((SELECT name FROM sessions WHERE id = session), session)
     FROM messages WHERE sum != windlass_sum(session, position, at, author, cause, dedupe, body)
                             + iif(woke IS NULL, 0, windlass_sum(woke))",
    "SELECT NULL, 'a value or secret of session ' || coalesce((SELECT sessions.name FROM sessions WHERE id = session), session)
     FROM session_data WHERE sum != windlass_sum(session, secret, name, at, value)",
    "SELECT (SELECT runs.run FROM runs WHERE runs.id = verdicts.run), 'the answer to its write to a session' FROM verdicts
     WHERE sum != windlass_sum(run, key, body)",
    outcomes::DAMAGED,
];

/// Adds a session. `kept` as in the table.
const INSERT: &str = "INSERT INTO sessions (id, name, created, kept, owner, sum)
    SELECT id, ?1, ?2, ?3, ?4, windlass_sum(id, ?1, NULL, ?4, ?2, NULL, NULL, 0, ?3, NULL, NULL)
    FROM (SELECT coalesce(max(id), 0) + 1 AS id FROM sessions) RETURNING id";

/// Selects the columns of [`StoredSession`].
macro_rules! select_sessions {
    ($($which:literal),+) => {
        concat!(
            "SELECT id, name, title, owner, created, closed, reason, messages, kept, tools, settings,
                    sum IS NULL OR sum = windlass_sum(id, name, title, owner, created, closed, reason, messages, kept,
                                                      settings, tools)
             FROM sessions ",
            $($which),+
        )
    };
}
use select_sessions;

const FIND: &str = select_sessions!("WHERE name = ?1");

/// The row of a session.
struct StoredSession {
    id: i64,
    info: SessionInfo,
}

impl StoredSession {
    /// Reads the columns of `select_sessions!`. The inner error is damage.
    fn read(row: &Row<'_>) -> rusqlite::Result<Result<Self, StoreError>> {
        let name: String = row.get(1)?;
        let damaged = |name| StoreError::Damaged { run: None, place: format!("the row of session {name}") };
        if !row.get::<_, bool>(11)? {
            return Ok(Err(damaged(name)));
        }
        let tools = match row.get::<_, Option<String>>(9)?.map(|text| decode::<SessionTools>(&text)).transpose() {
            Ok(tools) => tools.map(Arc::new),
            Err(_) => return Ok(Err(damaged(name))),
        };
        let settings = row.get::<_, Option<String>>(10)?.map(|text| decode::<SessionSettings>(&text)).transpose();
        let Ok(settings) = settings.map(Option::unwrap_or_default) else { return Ok(Err(damaged(name))) };
        let closed = row.get::<_, Option<i64>>(5)?.map(Timestamp::from_micros);
        let reason: Option<String> = row.get(6)?;
        let info = SessionInfo {
            name: name.as_str().into(),
            title: row.get(2)?,
            owner: row.get(3)?,
            created: Timestamp::from_micros(row.get(4)?),
            closed: closed.map(|at| Closing { at, reason: reason.unwrap_or_default().into() }),
            messages: unsigned(row.get(7)?),
            opened: row.get(8)?,
            tools,
            settings,
        };
        Ok(Ok(Self { id: row.get(0)?, info }))
    }

    fn find(connection: &Connection, name: &str) -> rusqlite::Result<Option<Result<Self, StoreError>>> {
        connection.prepare_cached(FIND)?.query_row([name], Self::read).optional()
    }
}

/// Adds a session and returns its number. `kept` as in the table.
pub(super) fn insert(
    connection: &Connection,
    name: &str,
    at: Timestamp,
    kept: bool,
    owner: Option<&str>,
) -> rusqlite::Result<i64> {
    connection.prepare_cached(INSERT)?.query_row(params![name, at.as_micros(), kept, owner], |row| row.get(0))
}

/// What the writer keeps in memory of a session.
#[derive(Clone)]
pub(super) struct KnownSession {
    pub(super) id: i64,
    pub(super) is_closed: bool,
    /// Only opening a session can change it, and makes the writer forget this.
    pub(super) owner: Option<Arc<str>>,
    /// Its own limit of unfinished runs.
    pub(super) most: Option<u64>,
}

impl KnownSession {
    pub(super) fn find(connection: &Connection, name: &str) -> Result<Option<Self>, JobError> {
        let found = StoredSession::find(connection, name)?.transpose()?;
        let known = |StoredSession { id, info }: StoredSession| Self {
            id,
            is_closed: info.closed.is_some(),
            owner: info.owner,
            most: info.settings.unfinished_runs,
        };
        Ok(found.map(known))
    }
}

/// Whether a session was opened or written to.
pub(super) fn is_opened(connection: &Connection, name: &str) -> Result<bool, JobError> {
    Ok(StoredSession::find(connection, name)?.transpose()?.is_some_and(|session| session.info.opened))
}

/// Reads the tools of all sessions that are held again, after the file was opened again: a commit without an answer may
/// have been written.
pub(super) fn refresh(connection: &Connection, live: &LiveSessions) -> rusqlite::Result<()> {
    for held in live.held() {
        let found = match StoredSession::find(connection, held.session())?.transpose() {
            Ok(found) => found,
            // What hides nothing must not replace a row that cannot be read.
            Err(_) => continue,
        };
        let tools = found.and_then(|session| session.info.tools).map(|tools| (*tools).clone());
        live.replaced(&held, tools.unwrap_or_default());
    }
    Ok(())
}

/// The unfinished runs of a session, oldest first.
pub(super) const UNFINISHED: &str = "SELECT run FROM runs INDEXED BY runs_unfinished
    WHERE session = ?1 AND phase < 4 ORDER BY run LIMIT ?2";

/// Counts the unfinished runs of a session, up to a limit.
const COUNT_UNFINISHED: &str = "SELECT count(*) FROM
    (SELECT 1 FROM runs INDEXED BY runs_unfinished WHERE session = ?1 AND phase < 4 LIMIT ?2)";

/// The unfinished runs of a session, oldest first, at most `limit`.
pub(super) fn unfinished(connection: &Connection, session: i64, limit: usize) -> rusqlite::Result<Vec<RunId>> {
    let mut statement = connection.prepare_cached(UNFINISHED)?;
    let runs = statement.query_map(params![session, size(limit)], |row| row.get(0).map(RunId::from_bytes))?;
    runs.collect()
}

/// The number of unfinished runs of a session, at most `limit`.
pub(super) fn count_unfinished(connection: &Connection, session: i64, limit: u64) -> rusqlite::Result<u64> {
    let arguments = params![session, signed(limit)];
    connection.prepare_cached(COUNT_UNFINISHED)?.query_row(arguments, |row| row.get(0)).map(unsigned)
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::{is_indexed, plan};
    use super::*;

    #[test]
    fn l20_every_query_about_sessions_uses_an_index() {
        let expected = [
            (FIND, "SEARCH sessions USING INDEX sqlite_autoindex_sessions_1 (name=?)"),
            (read::LIST, "SEARCH sessions USING INDEX sessions_by_age ((created,name)<(?,?))"),
            (read::MESSAGES, "SEARCH messages USING PRIMARY KEY (session=? AND position>?)"),
            (write::BY_DEDUPE, "SEARCH messages USING INDEX messages_by_dedupe (session=? AND dedupe=?)"),
            (write::VERDICT, "SEARCH verdicts USING PRIMARY KEY (run=? AND key=?)"),
            (outcomes::BY_NAME, "SEARCH outcomes USING INTEGER PRIMARY KEY (rowid=?)"),
            (purge::DUE, "SEARCH sessions USING COVERING INDEX sessions_closed (closed>? AND closed<?)"),
            (files::FILE, "SEARCH files USING PRIMARY KEY (session=? AND path=?)"),
            (files::BELOW, "SEARCH files USING PRIMARY KEY (session=? AND path>? AND path<?)"),
            (files::CHILDREN, "SEARCH files USING INDEX files_by_parent (session=? AND parent=? AND path>?)"),
            (files::USAGE, "SEARCH files USING COVERING INDEX files_by_size (session=?)"),
            (UNFINISHED, "SEARCH runs USING INDEX runs_unfinished (session=?)"),
        ];
        for (sql, start) in expected {
            let plan = plan(sql);
            assert!(plan.starts_with(start) && is_indexed(&plan), "{sql}: {plan}");
        }
    }
}
