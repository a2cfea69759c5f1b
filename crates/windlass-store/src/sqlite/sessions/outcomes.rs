//! The latest outcomes of a session's calls, for loop detection: one small row per session.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::store::{RecentOutcomes, SeenOutcome, StoreError};
use windlass_core::time::Timestamp;

use super::super::checksum;
use super::super::job::encode;
use super::super::read::{Readers, decode};
use super::super::write_tx::JobError;

pub(in crate::sqlite) const DDL: &str = "
CREATE TABLE outcomes (
    session INTEGER PRIMARY KEY,
    body    TEXT NOT NULL,
    sum     INTEGER NOT NULL
) STRICT;
";

pub(super) const DAMAGED: &str = "SELECT NULL, 'the latest outcomes of session ' ||
        coalesce((SELECT name FROM sessions WHERE id = session), session)
     FROM outcomes WHERE sum != windlass_sum(session, body)";

pub(super) const BY_NAME: &str = "SELECT session, body, outcomes.sum FROM outcomes
    WHERE session = (SELECT id FROM sessions WHERE name = ?1)";

const BY_NUMBER: &str = "SELECT session, body, sum FROM outcomes WHERE session = ?1";

/// Reads a row. A damaged one counts as empty: the next outcome replaces it, and until then the check of the file
/// reports it.
fn read(connection: &Connection, sql: &str, key: impl rusqlite::ToSql) -> rusqlite::Result<RecentOutcomes> {
    let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(1)?, checksum::is_intact(row, 2)?));
    let found = connection.prepare_cached(sql)?.query_row([key], row).optional()?;
    let intact = found.filter(|(_, is_intact)| *is_intact);
    Ok(intact.and_then(|(body, _)| decode(&body).ok()).unwrap_or_default())
}

/// Adds the outcomes of a run that ends.
pub(in crate::sqlite) fn add(
    connection: &Connection,
    session: i64,
    (at, outcomes): &(Timestamp, Vec<SeenOutcome>),
) -> Result<(), JobError> {
    let mut recent = read(connection, BY_NUMBER, session)?;
    recent.add(*at, outcomes);
    let sql = "INSERT OR REPLACE INTO outcomes (session, body, sum) VALUES (?1, ?2, windlass_sum(?1, ?2))";
    connection.prepare_cached(sql)?.execute(params![session, encode(&recent)?])?;
    Ok(())
}

/// Deletes the outcomes of a session whose content is removed.
pub(super) fn forget(connection: &Connection, session: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM outcomes WHERE session = ?1")?.execute([session]).map(|_| ())
}

impl Readers {
    pub(super) fn recent_outcomes(&self, session: &Arc<str>) -> Result<RecentOutcomes, StoreError> {
        self.with_reader(None, |connection| Ok(read(connection, BY_NAME, &**session)?))
    }
}
