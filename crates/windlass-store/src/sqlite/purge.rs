//! Removes runs: their journals from the end, then the rest, at most a few hundred rows per transaction. Wherever the
//! process dies, a journal is complete, or it is marked as being removed and the removal continues later.

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::store::{StoreError, Tidied};
use windlass_core::time::Timestamp;
use windlass_core::{RunId, limits};

use super::blobs;
use super::checksum::{self, run_checksum, run_is_intact};
use super::decide::RunHead;
use super::job::RunPhase;
use super::key_places;
use super::read::size;
use super::retention::RetentionWork;
use super::sessions;
use super::write_tx::{JobError, WriteTx};

/// Rows that one slice removes: a few milliseconds of the writer's time at worst, when each row is on a separate page.
pub(super) const SLICE_ROWS: usize = 200;
/// The cost of a segment in rows: it has several pages that it does not share.
const SEGMENT_ROWS: usize = 8;

/// The number of rows that a slice may still remove.
struct Budget(usize);

impl Budget {
    fn spend(&mut self, rows: usize) {
        self.0 = self.0.saturating_sub(rows);
    }

    fn is_spent(&self) -> bool {
        self.0 == 0
    }
}

/// The key of a removed run.
pub(super) const TOMBSTONE: &str = "SELECT key, run, since, sum FROM tombstones WHERE key = ?1";

/// Marks a journal for removal. Repeats the conditions of the query that found the run, which may have changed since. A
/// damaged row must not cause a removal.
const SUMMARIZE: &str = concat!(
    "UPDATE runs SET summary = 1, parks = NULL, asks = 0
     WHERE id = ?1 AND summary = 0 AND phase = 4 AND doubts IS NULL AND NOT EXISTS
         (SELECT 1 FROM runs AS parent WHERE parent.run = runs.parent_run AND parent.summary = 0) AND ",
    run_is_intact!(),
    " RETURNING run, tail"
);

const REMOVE: &str = concat!(
    "DELETE FROM runs
     WHERE id = ?1 AND summary = 2
         AND NOT EXISTS (SELECT 1 FROM runs AS parent WHERE parent.run = runs.parent_run) AND ",
    run_is_intact!(),
    " RETURNING run, key, session"
);

const PURGE: &str = "DELETE FROM runs WHERE id = ?1 AND summary = 2 RETURNING run, key, session";

impl WriteTx<'_> {
    /// Does a slice of the retention work.
    pub(super) fn tidy(&mut self, work: &RetentionWork) -> Result<Tidied, JobError> {
        let (mut done, mut budget) = (Tidied::default(), Budget(SLICE_ROWS));
        for id in &work.in_removal {
            done.summarized += usize::from(!budget.is_spent() && self.empty_journal(*id, work.now, &mut budget)?);
        }
        for id in &work.summarize {
            if !budget.is_spent() && self.begin_summary(*id)? {
                budget.spend(1);
                done.summarized += usize::from(self.empty_journal(*id, work.now, &mut budget)?);
            }
        }
        for id in &work.remove {
            if !budget.is_spent() && self.remove(*id, work.now, REMOVE)? {
                budget.spend(2);
                done.removed += 1;
            }
        }
        for id in &work.sessions {
            if !budget.is_spent() {
                budget.spend(self.empty_session(*id, budget.0)?.rows);
            }
        }
        done.more |= !work.sessions.is_empty();
        if let Some(by) = work.free_keys {
            free_keys(self.connection, by, &mut budget)?;
        }
        if work.blobs {
            done.more |= blobs::sweep(self.connection, work.now, self.opening, limits::ARTIFACT_SWEEP)?.more;
        }
        if work.pages > 0 {
            give_back(self.connection, work.pages)?;
        }
        done.more |= budget.is_spent() || work.pages > 0;
        Ok(done)
    }

    /// Removes a slice of a run that is purged. The freed space is overwritten, even where that needs an extra write.
    pub(super) fn purge(&mut self, run: RunId, now: Timestamp) -> Result<Tidied, JobError> {
        let head = self.head(run)?.ok_or(StoreError::NoSuchRun(run))?;
        let RunHead { id, phase, .. } = *head;
        if phase != RunPhase::Finished {
            return Err(StoreError::Unfinished(run).into());
        }
        if !head.doubts.is_empty() {
            return Err(StoreError::Doubted(run).into());
        }
        let connection = self.connection;
        connection.pragma_update(None, "secure_delete", true)?;
        let done = self.purge_slice(id, now);
        connection.pragma_update(None, "secure_delete", "FAST")?;
        done
    }

    fn purge_slice(&mut self, id: i64, now: Timestamp) -> Result<Tidied, JobError> {
        let sql = "UPDATE runs SET summary = 1 WHERE id = ?1 AND summary = 0 RETURNING run, tail";
        self.mark_for_removal(id, sql)?;
        let is_empty = self.empty_journal(id, now, &mut Budget(SLICE_ROWS))?;
        // Large values that only this run had are orphans now.
        let is_clear = is_empty && !blobs::sweep(self.connection, now, self.opening, SLICE_ROWS / SEGMENT_ROWS)?.more;
        let is_removed = is_clear && self.remove(id, now, PURGE)?;
        Ok(Tidied { summarized: 0, removed: usize::from(is_removed), more: !is_removed })
    }

    fn begin_summary(&mut self, id: i64) -> Result<bool, JobError> {
        self.mark_for_removal(id, SUMMARIZE)
    }

    /// From now on the journal can neither be read nor appended to.
    fn mark_for_removal(&mut self, id: i64, sql: &str) -> Result<bool, JobError> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let marked =
            statement.query_row([id], |row| Ok((RunId::from_bytes(row.get(0)?), row.get::<_, i64>(1)?))).optional()?;
        let Some((run, saved)) = marked else { return Ok(false) };
        // Records that its owner appended after the end are not in its row yet.
        let tail = self.head(run)?.map_or(saved, |head| head.tail.position);
        if tail != saved {
            self.connection.prepare_cached("UPDATE runs SET tail = ?2 WHERE id = ?1")?.execute(params![id, tail])?;
        }
        self.heads.remove(&run);
        Ok(true)
    }

    /// Removes the rest of a journal, as far as the budget allows. Returns true once only the row of the run is left.
    fn empty_journal(&mut self, id: i64, now: Timestamp, budget: &mut Budget) -> Result<bool, JobError> {
        let connection = self.connection;
        let found = connection
            .prepare_cached("SELECT tail, summary FROM runs WHERE id = ?1")?
            .query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let mut tail: i64 = match found {
            Some((tail, 1)) => tail,
            Some((_, 2)) => return Ok(true),
            _ => return Ok(false),
        };
        let newest = tail;
        while tail != 0 && !budget.is_spent() {
            tail = match delete(connection, DELETE_LOG_ROW, id, tail)? {
                Some(previous) => {
                    budget.spend(1);
                    previous
                }
                None => {
                    budget.spend(SEGMENT_ROWS);
                    // If there is nothing, the journal is damaged and the rest of it cannot be found.
                    delete(connection, DELETE_SEGMENT, id, tail)?.unwrap_or(0)
                }
            };
        }
        if newest > self.end.packed {
            // The positions of removed records must not be used again by the next process.
            connection.prepare_cached("UPDATE file SET last = ?1")?.execute([self.end.last])?;
        }
        self.end.saved(id);
        let is_empty = tail == 0 && empty_mailbox(connection, id, budget)?;
        if is_empty {
            blobs::unreference_run(connection, id, now + limits::ARTIFACT_GRACE)?;
        }
        let summary = if is_empty { 2 } else { 1 };
        connection
            .prepare_cached("UPDATE runs SET tail = ?2, summary = ?3 WHERE id = ?1")?
            .execute(params![id, tail, summary])?;
        Ok(is_empty)
    }

    /// Removes the row of a run whose journal is gone.
    fn remove(&mut self, id: i64, now: Timestamp, sql: &str) -> Result<bool, JobError> {
        let connection = self.connection;
        let removed = connection
            .prepare_cached(sql)?
            .query_row([id], |row| {
                Ok((row.get::<_, [u8; 16]>(0)?, row.get::<_, Option<String>>(1)?, row.get::<_, Option<i64>>(2)?))
            })
            .optional()?;
        let Some((run, key, session)) = removed else { return Ok(false) };
        // No later run may get its number. Once the highest number is deleted, the table no longer shows it.
        connection.prepare_cached("UPDATE file SET runs = ?1 WHERE runs < ?1")?.execute([id])?;
        if let Some(key) = key {
            let sql = "INSERT OR REPLACE INTO tombstones (key, run, since, sum)
                       VALUES (?1, ?2, ?3, windlass_sum(?1, ?2, ?3))";
            connection.prepare_cached(sql)?.execute(params![key, run, now.as_micros()])?;
        }
        if let Some(session) = session {
            sessions::delete_unused(connection, session)?;
            self.sessions.clear();
        }
        self.heads.remove(&RunId::from_bytes(run));
        Ok(true)
    }

    /// The removed run that had this key.
    pub(super) fn tombstone(&self, key: &str) -> Result<Option<RunId>, JobError> {
        let mut statement = self.connection.prepare_cached(TOMBSTONE)?;
        let found = statement
            .query_row([key], |row| Ok((RunId::from_bytes(row.get(1)?), checksum::is_intact(row, 3)?)))
            .optional()?;
        match found {
            Some((_, false)) => {
                let place = format!("the record of the removed run that had the key {key:?}");
                Err(StoreError::Damaged { run: None, place }.into())
            }
            found => Ok(found.map(|(run, _)| run)),
        }
    }
}

const DELETE_LOG_ROW: &str = "DELETE FROM log WHERE position = ?1 AND run = ?2 RETURNING previous";
const DELETE_SEGMENT: &str = "DELETE FROM segments WHERE position = ?1 AND run = ?2 RETURNING previous";

/// Deletes the row or segment at a position, if it belongs to this run. Returns the position before it.
fn delete(connection: &Connection, sql: &str, run: i64, position: i64) -> rusqlite::Result<Option<i64>> {
    connection.prepare_cached(sql)?.query_row([position, run], |row| row.get(0)).optional()
}

fn empty_mailbox(connection: &Connection, id: i64, budget: &mut Budget) -> rusqlite::Result<bool> {
    key_places::forget(connection, id)?;
    sessions::forget_verdicts(connection, id)?;
    let sql = "DELETE FROM mail WHERE run = ?1 AND position IN (SELECT position FROM mail WHERE run = ?1 LIMIT ?2)";
    let limit = budget.0;
    let deleted = connection.prepare_cached(sql)?.execute(params![id, size(limit)])?;
    budget.spend(deleted);
    Ok(deleted < limit)
}

fn free_keys(connection: &Connection, by: Timestamp, budget: &mut Budget) -> rusqlite::Result<()> {
    let sql = "DELETE FROM tombstones WHERE key IN (SELECT key FROM tombstones WHERE since <= ?1 LIMIT ?2)";
    let deleted = connection.prepare_cached(sql)?.execute(params![by.as_micros(), size(budget.0)])?;
    budget.spend(deleted);
    Ok(())
}

/// Returns free pages to the file system. The statement moves one page per step.
fn give_back(connection: &Connection, pages: i64) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(&format!("PRAGMA incremental_vacuum({pages})"))?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    Ok(())
}
