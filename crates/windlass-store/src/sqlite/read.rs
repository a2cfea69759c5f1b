//! The read side: short statements on connections of their own.
//!
//! They block the thread that polls, for the fraction of a millisecond a read of some hundred records takes: less than
//! moving it to another thread would cost. Readers never wait for the writer, nor it for them, and a reader that starts
//! after a commit was answered sees it.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::de::DeserializeOwned;
use windlass_core::run::record::Record;
use windlass_core::run::state::RunInfo;
use windlass_core::store::{Due, Entry, Filter, Mail, StoreError};
use windlass_core::time::Timestamp;
use windlass_core::{BadPath, Path, RunId};

use super::decide::NEVER;
use super::open;

/// Selects runs as lists show them.
macro_rules! infos {
    ($($which:literal)+) => {
        concat!(
            "SELECT run, tool, created, state, doubts, parks, epoch, generation, ",
            "(SELECT name FROM sessions WHERE sessions.id = runs.session), parent_run, parent_path ",
            "FROM runs ",
            $($which),+
        )
    };
}

/// Selects one page of a list.
macro_rules! page {
    ($which:literal) => {
        infos!($which " AND run > ?1 ORDER BY run LIMIT ?2")
    };
}

/// Idle connections that are kept. More readers than this at one moment open one and close it again.
const IDLE: usize = 8;

pub(super) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("{0}")]
    Sql(#[from] rusqlite::Error),
    #[error("what it holds cannot be read: {0}")]
    Decode(#[from] serde_json::Error),
    #[error("what it holds cannot be read: {0}")]
    Place(#[from] BadPath),
    #[error(transparent)]
    Refused(StoreError),
}

/// Everything a new owner gets to read.
pub(super) struct Contents {
    pub(super) generation: u32,
    pub(super) base: u64,
    pub(super) records: Vec<Record>,
    pub(super) mail: Vec<Mail>,
    pub(super) session: Option<Arc<str>>,
    pub(super) parent: Option<Box<(RunId, Path)>>,
}

impl Readers {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, idle: Mutex::default() }
    }

    pub(super) fn close(&self) {
        self.idle.lock().clear();
    }

    pub(super) fn info(&self, run: RunId) -> Result<Option<RunInfo>, StoreError> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached(infos!("WHERE run = ?1"))?;
            statement.query_row([run.as_bytes()], |row| Ok(info(row))).optional()?.transpose()
        })
    }

    pub(super) fn journal(&self, run: RunId, from: u64) -> Result<Vec<Record>, StoreError> {
        self.with(|connection| {
            let id = find(connection, run)?;
            records(connection, id, signed(from), EVERY)
        })
    }

    pub(super) fn page(&self, run: RunId, from: u64, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.with(|connection| {
            let id = find(connection, run)?;
            records(connection, id, signed(from), size(limit))
        })
    }

    pub(super) fn mail(&self, run: RunId, after: u64) -> Result<Vec<Mail>, StoreError> {
        self.with(|connection| {
            let id = find(connection, run)?;
            mail(connection, id, signed(after))
        })
    }

    pub(super) fn contents(&self, run: RunId) -> Result<Contents, StoreError> {
        self.with(|connection| {
            let transaction = connection.transaction()?;
            let sql = "SELECT id, generation, base, (SELECT name FROM sessions WHERE sessions.id = runs.session),
                              parent_run, parent_path
                       FROM runs WHERE run = ?1";
            let mut statement = transaction.prepare_cached(sql)?;
            let mut rows = statement.query([run.as_bytes()])?;
            let row = rows.next()?.ok_or(ReadError::Refused(StoreError::NoSuchRun(run)))?;
            let (id, base): (i64, i64) = (row.get(0)?, row.get(2)?);
            Ok(Contents {
                generation: row.get(1)?,
                base: base.unsigned_abs(),
                records: records(&transaction, id, base, EVERY)?,
                mail: mail(&transaction, id, 0)?,
                session: row.get(3)?,
                parent: parent(row, 4)?,
            })
        })
    }

    pub(super) fn list(&self, filter: &Filter, after: Option<RunId>, limit: usize) -> Result<Vec<RunInfo>, StoreError> {
        // The empty value sorts before every id.
        let after = after.map(|run| run.as_bytes().to_vec()).unwrap_or_default();
        let (sql, argument) = listing(filter)?;
        self.with(|connection| {
            let mut statement = connection.prepare_cached(sql)?;
            let read = |row: &Row<'_>| Ok(info(row));
            let rows = match argument {
                Some(argument) => statement.query_map(params![after, size(limit), argument], read)?,
                None => statement.query_map(params![after, size(limit)], read)?,
            };
            rows.map(|row| row?).collect()
        })
    }

    /// `opening`: only this one's workers have leases.
    pub(super) fn due(&self, now: Timestamp, limit: usize, opening: i64) -> Result<Due, StoreError> {
        // Whatever the time is, it is not "never".
        let now = now.as_micros().min(NEVER - 1);
        self.with(|connection| {
            // One view of the file, so that no run is on its way from one answer to another.
            let transaction = connection.transaction()?;
            let ids = |sql: &str, limit: i64, opening: Option<i64>| -> rusqlite::Result<Vec<RunId>> {
                let mut statement = transaction.prepare_cached(sql)?;
                let run = |row: &Row<'_>| row.get(0).map(RunId::from_bytes);
                match opening {
                    Some(opening) => statement.query_map([now, limit, opening], run)?.collect(),
                    None => statement.query_map([now, limit], run)?.collect(),
                }
            };
            let mut runs = ids(WOKEN, size(limit), None)?;
            runs.extend(ids(LEFT, size(limit - runs.len()), Some(opening))?);
            let next: Option<i64> = transaction.prepare_cached(NEXT)?.query_row([now], |row| row.get(0)).optional()?;
            Ok(Due { runs, next: next.filter(|next| *next != NEVER).map(Timestamp::from_micros) })
        })
    }

    pub(super) fn feed(&self, session: &str, after: u64, limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached(FEED)?;
            let mut rows = statement.query(params![session, signed(after), size(limit)])?;
            let mut entries = Vec::new();
            while let Some(row) = rows.next()? {
                entries.push(Entry {
                    position: row.get::<_, i64>(0)?.unsigned_abs(),
                    run: RunId::from_bytes(row.get(1)?),
                    seq: row.get::<_, i64>(2)?.unsigned_abs(),
                    record: decode(text(row, 3)?)?,
                });
            }
            Ok(entries)
        })
    }

    /// Reads on an idle connection, or on a new one. A connection that failed is not used again.
    pub(super) fn with<T>(&self, read: impl FnOnce(&mut Connection) -> Result<T, ReadError>) -> Result<T, StoreError> {
        let failed = |error: ReadError| StoreError::Unavailable(format!("reading {}: {error}", self.path.display()));
        let idle = self.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => open::reader(&self.path).map_err(|error| failed(error.into()))?,
        };
        let result = match read(&mut connection) {
            Ok(value) => Ok(value),
            Err(ReadError::Refused(error)) => Err(error),
            Err(error) => return Err(failed(error)),
        };
        let mut idle = self.idle.lock();
        if idle.len() < IDLE {
            idle.push(connection);
        }
        result
    }
}

/// Queued and suspended runs whose time has come.
const WOKEN: &str = "SELECT run FROM runs WHERE wake <= ?1 ORDER BY wake, run LIMIT ?2";

/// When the next one's time comes.
const NEXT: &str = "SELECT wake FROM runs WHERE wake > ?1 ORDER BY wake LIMIT 1";

/// Running runs whose owner's lease is over: `CROSS JOIN` says that the few workers come first.
const LEFT: &str = "SELECT runs.run FROM workers CROSS JOIN runs
    WHERE workers.until <= ?1 AND runs.worker = workers.id AND runs.phase = 1 AND runs.opening = ?3 LIMIT ?2";

const FEED: &str = "SELECT log.position, runs.run, log.seq, log.body FROM log CROSS JOIN runs ON runs.id = log.run
    WHERE log.session = (SELECT id FROM sessions WHERE name = ?1) AND log.position > ?2
    ORDER BY log.position LIMIT ?3";

/// SQLite would rather walk all mail than look into the index of what is left.
const MAIL: &str = "SELECT position, body FROM mail INDEXED BY mail_unread
    WHERE run = ?1 AND position > ?2 AND body IS NOT NULL ORDER BY position";

/// One statement a filter, each worded like the index that answers it, and the argument it needs.
fn listing(filter: &Filter) -> Result<(&'static str, Option<SqlValue>), StoreError> {
    let argument = match filter {
        Filter::Session(session) => Some(SqlValue::Text(session.to_string())),
        Filter::Children(parent) => Some(SqlValue::Blob(parent.as_bytes().to_vec())),
        _ => None,
    };
    let sql = match filter {
        Filter::Queued => page!("WHERE phase = 0 AND phase < 4"),
        Filter::Running => page!("WHERE phase = 1 AND phase < 4"),
        Filter::Suspended => page!("WHERE phase = 2 AND phase < 4"),
        Filter::Held => page!("WHERE phase = 3 AND phase < 4"),
        // Nearly all runs are finished, so there is no index of those alone.
        Filter::Finished => page!("WHERE phase = 4"),
        Filter::Doubted => page!("INDEXED BY runs_doubted WHERE doubts IS NOT NULL"),
        Filter::Inbox => page!("WHERE (doubts IS NOT NULL OR asks = 1)"),
        Filter::Session(_) => page!("WHERE session = (SELECT id FROM sessions WHERE name = ?3)"),
        Filter::Children(_) => page!("WHERE parent_run = ?3"),
        Filter::All => page!("WHERE true"),
        _ => return Err(StoreError::Invalid("this store does not know the filter".to_owned())),
    };
    Ok((sql, argument))
}

/// The number that stands for the run in the file.
fn find(connection: &Connection, run: RunId) -> Result<i64, ReadError> {
    connection
        .prepare_cached("SELECT id FROM runs WHERE run = ?1")?
        .query_row([run.as_bytes()], |row| row.get(0))
        .optional()?
        .ok_or(ReadError::Refused(StoreError::NoSuchRun(run)))
}

/// No limit, to SQLite.
const EVERY: i64 = -1;

fn records(connection: &Connection, id: i64, from: i64, limit: i64) -> Result<Vec<Record>, ReadError> {
    let sql = "SELECT body FROM log WHERE run = ?1 AND seq >= ?2 ORDER BY seq LIMIT ?3";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([id, from, limit])?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        records.push(decode(text(row, 0)?)?);
    }
    Ok(records)
}

fn mail(connection: &Connection, id: i64, after: i64) -> Result<Vec<Mail>, ReadError> {
    let mut statement = connection.prepare_cached(MAIL)?;
    let mut rows = statement.query([id, after])?;
    let mut mail = Vec::new();
    while let Some(row) = rows.next()? {
        let position: i64 = row.get(0)?;
        mail.push(Mail { position: position.unsigned_abs(), message: decode(text(row, 1)?)? });
    }
    Ok(mail)
}

/// From the columns of `infos!`.
fn info(row: &Row<'_>) -> Result<RunInfo, ReadError> {
    Ok(RunInfo {
        run: RunId::from_bytes(row.get(0)?),
        tool: text(row, 1)?.into(),
        created: Timestamp::from_micros(row.get(2)?),
        state: decode(text(row, 3)?)?,
        doubts: list(row, 4)?,
        parks: list(row, 5)?,
        epoch: row.get::<_, i64>(6)?.unsigned_abs(),
        generation: row.get(7)?,
        session: row.get(8)?,
        parent: parent(row, 9)?,
    })
}

/// From a column that is empty for an empty list.
fn list<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> Result<Vec<T>, ReadError> {
    match row.get_ref(column)?.as_str_or_null().map_err(rusqlite::Error::from)? {
        Some(text) => Ok(decode(text)?),
        None => Ok(Vec::new()),
    }
}

/// From the column of the run that spawned this one, and the next column, which says where.
fn parent(row: &Row<'_>, column: usize) -> Result<Option<Box<(RunId, Path)>>, ReadError> {
    let Some(run) = row.get::<_, Option<[u8; 16]>>(column)? else { return Ok(None) };
    let path = text(row, column + 1)?.parse()?;
    Ok(Some(Box::new((RunId::from_bytes(run), path))))
}

/// SQLite's integers have a sign; nothing in the file is numbered beyond them.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn size(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn text<'a>(row: &'a Row<'_>, column: usize) -> rusqlite::Result<&'a str> {
    Ok(row.get_ref(column)?.as_str()?)
}

/// Decodes what the file holds. The parser's own depth limit is lifted: what is in the file was within the limits when
/// it was taken, and the record around a value makes it a few levels deeper than the parser allows.
pub(super) fn decode<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    let mut parser = serde_json::Deserializer::from_str(text);
    parser.disable_recursion_limit();
    let value = T::deserialize(&mut parser)?;
    parser.end()?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::{is_indexed, plan};
    use super::*;

    #[test]
    fn every_filter_is_answered_by_its_index() {
        let children = Filter::Children(RunId::from_bytes([1; 16]));
        let expected = [
            (Filter::Queued, "runs_open (phase=? AND run>?)"),
            (Filter::Running, "runs_open (phase=? AND run>?)"),
            (Filter::Suspended, "runs_open (phase=? AND run>?)"),
            (Filter::Held, "runs_open (phase=? AND run>?)"),
            (Filter::Finished, "sqlite_autoindex_runs_1 (run>?)"),
            (Filter::Doubted, "runs_doubted (run>?)"),
            (Filter::Inbox, "runs_inbox (run>?)"),
            (Filter::Session("s".into()), "runs_by_session (session=? AND run>?)"),
            (children, "runs_by_parent (parent_run=? AND run>?)"),
            (Filter::All, "sqlite_autoindex_runs_1 (run>?)"),
        ];
        for (filter, index) in expected {
            let plan = plan(listing(&filter).unwrap().0);
            let start = format!("SEARCH runs USING INDEX {index}");
            assert!(plan.starts_with(&start) && is_indexed(&plan), "{filter:?}: {plan}");
        }
    }

    #[test]
    fn every_other_question_is_answered_by_an_index() {
        let expected = [
            (WOKEN, "SEARCH runs USING COVERING INDEX runs_due (wake<?)"),
            (NEXT, "SEARCH runs USING COVERING INDEX runs_due (wake>?)"),
            (
                LEFT,
                "SEARCH workers USING COVERING INDEX workers_by_lease (until<?); SEARCH runs USING INDEX runs_driven",
            ),
            (FEED, "SEARCH log USING INDEX log_by_session (session=? AND rowid>?)"),
            (MAIL, "SEARCH mail USING INDEX mail_unread (run=? AND position>?)"),
        ];
        for (sql, start) in expected {
            let plan = plan(sql);
            assert!(plan.starts_with(start) && is_indexed(&plan), "{sql}: {plan}");
        }
    }
}
