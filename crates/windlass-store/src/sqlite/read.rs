//! The read side: short statements on connections of their own.
//!
//! They block the thread that polls, for the fraction of a millisecond a read of some hundred records takes: less than
//! moving it to another thread would cost. Readers never wait for the writer, nor it for them, and a reader that starts
//! after a commit was answered sees it.

use std::path::PathBuf;

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::de::DeserializeOwned;
use windlass_core::RunId;
use windlass_core::run::record::Record;
use windlass_core::run::state::RunInfo;
use windlass_core::store::{Filter, Mail, StoreError};
use windlass_core::time::Timestamp;

use super::open;

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
    #[error(transparent)]
    Refused(StoreError),
}

/// Everything a new owner gets to read.
pub(super) struct Contents {
    pub(super) records: Vec<Record>,
    pub(super) mail: Vec<Mail>,
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
            let mut statement = connection
                .prepare_cached("SELECT run, tool, created, state, doubts, epoch FROM runs WHERE run = ?1")?;
            statement.query_row([run.as_bytes()], |row| Ok(info(row))).optional()?.transpose()
        })
    }

    pub(super) fn journal(&self, run: RunId) -> Result<Vec<Record>, StoreError> {
        self.with(|connection| {
            let (id, _) = find(connection, run)?;
            records(connection, id)
        })
    }

    pub(super) fn mail(&self, run: RunId, after: u64) -> Result<Vec<Mail>, StoreError> {
        self.with(|connection| {
            let (id, _) = find(connection, run)?;
            mail(connection, id, i64::try_from(after).unwrap_or(i64::MAX))
        })
    }

    pub(super) fn contents(&self, run: RunId) -> Result<Contents, StoreError> {
        self.with(|connection| {
            let transaction = connection.transaction()?;
            let (id, examined) = find(&transaction, run)?;
            let contents = Contents { records: records(&transaction, id)?, mail: mail(&transaction, id, examined)? };
            Ok(contents)
        })
    }

    pub(super) fn list(&self, filter: Filter, after: Option<RunId>, limit: usize) -> Result<Vec<RunInfo>, StoreError> {
        // The empty value sorts before every id.
        let after = after.map(|run| run.as_bytes().to_vec()).unwrap_or_default();
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.with(|connection| {
            let mut statement = connection.prepare_cached(listing(filter))?;
            let rows = statement.query_map(params![after, limit], |row| Ok(info(row)))?;
            rows.map(|row| row?).collect()
        })
    }

    /// Reads on an idle connection, or on a new one. A connection that failed is not used again.
    fn with<T>(&self, read: impl FnOnce(&mut Connection) -> Result<T, ReadError>) -> Result<T, StoreError> {
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

/// One statement a filter, each worded like the partial index that answers it.
fn listing(filter: Filter) -> &'static str {
    match filter {
        Filter::Running => {
            "SELECT run, tool, created, state, doubts, epoch FROM runs WHERE phase = 0 AND run > ?1 ORDER BY run LIMIT ?2"
        }
        Filter::Held => {
            "SELECT run, tool, created, state, doubts, epoch FROM runs WHERE phase = 1 AND run > ?1 ORDER BY run LIMIT ?2"
        }
        Filter::Doubted => {
            "SELECT run, tool, created, state, doubts, epoch FROM runs WHERE doubts IS NOT NULL AND run > ?1 ORDER BY run \
             LIMIT ?2"
        }
        Filter::All => "SELECT run, tool, created, state, doubts, epoch FROM runs WHERE run > ?1 ORDER BY run LIMIT ?2",
    }
}

/// The number that stands for the run in the file, and how much of its mail its owner has examined.
fn find(connection: &Connection, run: RunId) -> Result<(i64, i64), ReadError> {
    connection
        .prepare_cached("SELECT id, examined FROM runs WHERE run = ?1")?
        .query_row([run.as_bytes()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?
        .ok_or(ReadError::Refused(StoreError::NoSuchRun(run)))
}

fn records(connection: &Connection, id: i64) -> Result<Vec<Record>, ReadError> {
    let mut statement = connection.prepare_cached("SELECT body FROM log WHERE run = ?1 ORDER BY seq")?;
    let mut rows = statement.query([id])?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        records.push(decode(text(row, 0)?)?);
    }
    Ok(records)
}

fn mail(connection: &Connection, id: i64, after: i64) -> Result<Vec<Mail>, ReadError> {
    let sql = "SELECT position, body FROM mail WHERE run = ?1 AND position > ?2 ORDER BY position";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([id, after])?;
    let mut mail = Vec::new();
    while let Some(row) = rows.next()? {
        let position: i64 = row.get(0)?;
        mail.push(Mail { position: position.unsigned_abs(), message: decode(text(row, 1)?)? });
    }
    Ok(mail)
}

/// From the columns `run, tool, created, state, doubts, epoch`.
fn info(row: &Row<'_>) -> Result<RunInfo, ReadError> {
    let doubts = match row.get_ref(4)?.as_str_or_null().map_err(rusqlite::Error::from)? {
        Some(doubts) => decode(doubts)?,
        None => Vec::new(),
    };
    Ok(RunInfo {
        run: RunId::from_bytes(row.get(0)?),
        tool: text(row, 1)?.into(),
        created: Timestamp::from_micros(row.get(2)?),
        state: decode(text(row, 3)?)?,
        doubts,
        epoch: row.get::<_, i64>(5)?.unsigned_abs(),
    })
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
    use super::super::schema;
    use super::*;

    #[test]
    fn every_filter_is_answered_by_its_index() {
        let mut connection = Connection::open_in_memory().unwrap();
        schema::create(&mut connection).unwrap();
        let expected = [
            (Filter::Running, "runs_running"),
            (Filter::Held, "runs_held"),
            (Filter::Doubted, "runs_doubted"),
            (Filter::All, "sqlite_autoindex_runs_1"),
        ];
        for (filter, index) in expected {
            let sql = format!("EXPLAIN QUERY PLAN {}", listing(filter));
            let plan: String = connection.query_row(&sql, params![[0u8; 16], 1], |row| row.get(3)).unwrap();
            assert_eq!(plan, format!("SEARCH runs USING INDEX {index} (run>?)"));
        }
    }
}
