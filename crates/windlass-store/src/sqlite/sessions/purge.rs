//! Removes the content of closed sessions, at most a few hundred rows per transaction.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use windlass_core::store::{SessionTools, StoreError, Tidied};
use windlass_core::time::Timestamp;

use super::super::read::size;
use super::super::write_tx::{JobError, WriteTx};
use super::{StoredSession, outcomes, unfinished};

/// Sessions that one scan returns.
const MAX_DUE: i64 = 16;

/// Closed sessions whose time is over and whose runs have all ended.
pub(super) const DUE: &str = "SELECT id FROM sessions WHERE closed <= ?1 AND closed IS NOT NULL AND kept = 1
    AND NOT EXISTS (SELECT 1 FROM runs INDEXED BY runs_unfinished WHERE runs.session = sessions.id AND runs.phase < 4)
    LIMIT ?2";

/// The sessions that retention empties now.
pub(in crate::sqlite) fn due_sessions(view: &Connection, by: Option<Timestamp>) -> rusqlite::Result<Vec<i64>> {
    let Some(by) = by else { return Ok(Vec::new()) };
    let mut statement = view.prepare_cached(DUE)?;
    let due = statement.query_map(params![by.as_micros(), MAX_DUE], |row| row.get(0))?;
    due.collect()
}

/// What became of a slice of a removal.
pub(in crate::sqlite) struct SessionPurge {
    pub(in crate::sqlite) rows: usize,
    pub(in crate::sqlite) is_done: bool,
}

impl WriteTx<'_> {
    /// Removes a slice of a session that is purged. The freed space is overwritten.
    pub(in crate::sqlite) fn purge_session(&mut self, name: &Arc<str>, rows: usize) -> Result<Tidied, JobError> {
        let session = name.clone();
        let found = StoredSession::find(self.connection, name)?.transpose()?;
        let found = found.ok_or_else(|| StoreError::NoSession { session: session.clone() })?;
        if found.info.closed.is_none() {
            return Err(StoreError::SessionOpen { session }.into());
        }
        if let Some(run) = unfinished(self.connection, found.id, 1)?.pop() {
            return Err(StoreError::SessionBusy { session, run }.into());
        }
        self.connection.pragma_update(None, "secure_delete", true)?;
        let done = self.empty_session(found.id, rows);
        self.connection.pragma_update(None, "secure_delete", "FAST")?;
        Ok(Tidied { more: !done?.is_done, ..Tidied::default() })
    }

    /// Removes up to `rows` rows of a closed session. Its own row stays, and stays closed, while runs refer to it.
    pub(in crate::sqlite) fn empty_session(&mut self, id: i64, rows: usize) -> rusqlite::Result<SessionPurge> {
        let connection = self.connection;
        let sql = "DELETE FROM messages WHERE session = ?1
                   AND position IN (SELECT position FROM messages WHERE session = ?1 LIMIT ?2)";
        let deleted = connection.prepare_cached(sql)?.execute(params![id, size(rows)])?;
        if deleted >= rows {
            return Ok(SessionPurge { rows: deleted, is_done: false });
        }
        let removed = deleted + self.remove_files(id, rows - deleted)?;
        if removed >= rows {
            return Ok(SessionPurge { rows: removed, is_done: false });
        }
        let more = connection.prepare_cached("DELETE FROM session_data WHERE session = ?1")?.execute([id])?;
        outcomes::forget(connection, id)?;
        let sql = "UPDATE sessions SET title = NULL, owner = NULL, tools = NULL, settings = NULL, kept = 0
                   WHERE id = ?1 AND closed IS NOT NULL RETURNING name";
        let name: Option<Arc<str>> = connection.prepare_cached(sql)?.query_row([id], |row| row.get(0)).optional()?;
        name.into_iter().for_each(|name| self.sessions.show_tools(name, SessionTools::default()));
        delete_unused(connection, id)?;
        self.sessions.clear();
        Ok(SessionPurge { rows: removed + more + 1, is_done: true })
    }
}

/// Deletes the row of a session of which nothing is kept.
pub(in crate::sqlite) fn delete_unused(connection: &Connection, session: i64) -> rusqlite::Result<()> {
    let sql = "DELETE FROM sessions WHERE id = ?1 AND kept = 0 AND NOT EXISTS (SELECT 1 FROM runs WHERE session = ?1)";
    if connection.prepare_cached(sql)?.execute([session])? > 0 {
        // The number of the session may be used again.
        outcomes::forget(connection, session)?;
    }
    Ok(())
}
