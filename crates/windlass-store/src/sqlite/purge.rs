//! Removing runs: their journals from the end on, then what is left of them, never more than a few hundred rows in one
//! transaction. Wherever a process dies, a journal is whole, or marked as gone and removed further the next time.

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::store::{StoreError, Tidied};
use windlass_core::time::Timestamp;
use windlass_core::{RunId, limits};

use super::blobs;
use super::decide::Head;
use super::job::Phase;
use super::places;
use super::read::size;
use super::retention::Chores;
use super::sum::{self, run_is_sound, run_sum};
use super::table::{Table, Trouble};

/// Rows that one slice removes: some milliseconds of the writer's time at worst, when each lies on a page of its own.
const SLICE: usize = 200;
/// What a segment counts as: some pages that its rows do not share with others.
const SEGMENT: usize = 8;

/// What a slice may still remove.
struct Budget(usize);

impl Budget {
    fn spend(&mut self, rows: usize) {
        self.0 = self.0.saturating_sub(rows);
    }

    fn is_spent(&self) -> bool {
        self.0 == 0
    }
}

/// The key of a run that is gone.
pub(super) const SPENT: &str = "SELECT key, run, since, sum FROM tombstones WHERE key = ?1";

/// The conditions are those of the question that found the run: it may have changed since.
/// What a damaged row says of its end removes nothing.
const SUMMARIZE: &str = concat!(
    "UPDATE runs SET summary = 1, parks = NULL, asks = 0
     WHERE id = ?1 AND summary = 0 AND phase = 4 AND doubts IS NULL AND NOT EXISTS
         (SELECT 1 FROM runs AS parent WHERE parent.run = runs.parent_run AND parent.summary = 0) AND ",
    run_is_sound!(),
    " RETURNING run, tail"
);

const REMOVE: &str = concat!(
    "DELETE FROM runs
     WHERE id = ?1 AND summary = 2 AND NOT EXISTS (SELECT 1 FROM runs AS parent WHERE parent.run = runs.parent_run) AND ",
    run_is_sound!(),
    " RETURNING run, key, session"
);

const PURGE: &str = "DELETE FROM runs WHERE id = ?1 AND summary = 2 RETURNING run, key, session";

impl Table<'_> {
    /// Does a slice of what is to be done.
    pub(super) fn tidy(&mut self, chores: &Chores) -> Result<Tidied, Trouble> {
        let (mut done, mut budget) = (Tidied::default(), Budget(SLICE));
        for id in &chores.going {
            done.summarized += usize::from(!budget.is_spent() && self.empty(*id, chores.now, &mut budget)?);
        }
        for id in &chores.summarize {
            if !budget.is_spent() && self.begin_summary(*id)? {
                budget.spend(1);
                done.summarized += usize::from(self.empty(*id, chores.now, &mut budget)?);
            }
        }
        for id in &chores.remove {
            if !budget.is_spent() && self.remove(*id, chores.now, REMOVE)? {
                budget.spend(2);
                done.removed += 1;
            }
        }
        if let Some(by) = chores.free_keys {
            free_keys(self.connection, by, &mut budget)?;
        }
        if chores.blobs {
            done.more |= blobs::sweep(self.connection, chores.now, self.opening, limits::ARTIFACT_SWEEP)?.more;
        }
        if chores.pages > 0 {
            give_back(self.connection, chores.pages)?;
        }
        done.more |= budget.is_spent() || chores.pages > 0;
        Ok(done)
    }

    /// Removes a slice of a run that somebody wants gone. What it frees is overwritten, also where that takes a write.
    pub(super) fn purge(&mut self, run: RunId, now: Timestamp) -> Result<Tidied, Trouble> {
        let head = self.head(run)?.ok_or(StoreError::NoSuchRun(run))?;
        let Head { id, phase, .. } = *head;
        if phase != Phase::Finished {
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

    fn purge_slice(&mut self, id: i64, now: Timestamp) -> Result<Tidied, Trouble> {
        let sql = "UPDATE runs SET summary = 1 WHERE id = ?1 AND summary = 0 RETURNING run, tail";
        self.mark_going(id, sql)?;
        let is_empty = self.empty(id, now, &mut Budget(SLICE))?;
        // Large values that only this run had are left-overs now.
        let is_clear = is_empty && !blobs::sweep(self.connection, now, self.opening, SLICE / SEGMENT)?.more;
        let is_removed = is_clear && self.remove(id, now, PURGE)?;
        Ok(Tidied { summarized: 0, removed: usize::from(is_removed), more: !is_removed })
    }

    fn begin_summary(&mut self, id: i64) -> Result<bool, Trouble> {
        self.mark_going(id, SUMMARIZE)
    }

    /// From now on nobody reads the journal or adds to it.
    fn mark_going(&mut self, id: i64, sql: &str) -> Result<bool, Trouble> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let marked =
            statement.query_row([id], |row| Ok((RunId::from_bytes(row.get(0)?), row.get::<_, i64>(1)?))).optional()?;
        let Some((run, saved)) = marked else { return Ok(false) };
        // What its owner said after its end is not in its row yet.
        let tail = self.head(run)?.map_or(saved, |head| head.tail.position);
        if tail != saved {
            self.connection.prepare_cached("UPDATE runs SET tail = ?2 WHERE id = ?1")?.execute(params![id, tail])?;
        }
        self.heads.remove(&run);
        Ok(true)
    }

    /// Removes what is left of a journal that is going, as far as the budget lasts. True once the row is all that is left.
    fn empty(&mut self, id: i64, now: Timestamp, budget: &mut Budget) -> Result<bool, Trouble> {
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
            tail = match delete(connection, HOT, id, tail)? {
                Some(previous) => {
                    budget.spend(1);
                    previous
                }
                None => {
                    budget.spend(SEGMENT);
                    // Nothing there is the end of a damaged journal, and all that can be found of it.
                    delete(connection, PACKED, id, tail)?.unwrap_or(0)
                }
            };
        }
        if newest > self.end.packed {
            // The positions of what is gone must not come back with the next process.
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

    /// Removes a run of which only the row is left.
    fn remove(&mut self, id: i64, now: Timestamp, sql: &str) -> Result<bool, Trouble> {
        let connection = self.connection;
        let removed = connection
            .prepare_cached(sql)?
            .query_row([id], |row| {
                Ok((row.get::<_, [u8; 16]>(0)?, row.get::<_, Option<String>>(1)?, row.get::<_, Option<i64>>(2)?))
            })
            .optional()?;
        let Some((run, key, session)) = removed else { return Ok(false) };
        // No later run may have its number: where the highest one goes, the table no longer says which that was.
        connection.prepare_cached("UPDATE file SET runs = ?1 WHERE runs < ?1")?.execute([id])?;
        if let Some(key) = key {
            let sql = "INSERT OR REPLACE INTO tombstones (key, run, since, sum)
                       VALUES (?1, ?2, ?3, windlass_sum(?1, ?2, ?3))";
            connection.prepare_cached(sql)?.execute(params![key, run, now.as_micros()])?;
        }
        if let Some(session) = session {
            let sql = "DELETE FROM sessions WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM runs WHERE session = ?1)";
            connection.prepare_cached(sql)?.execute([session])?;
            self.sessions.clear();
        }
        self.heads.remove(&RunId::from_bytes(run));
        Ok(true)
    }

    /// The run that had a key and is gone.
    pub(super) fn spent(&self, key: &str) -> Result<Option<RunId>, Trouble> {
        let mut statement = self.connection.prepare_cached(SPENT)?;
        let found = statement
            .query_row([key], |row| Ok((RunId::from_bytes(row.get(1)?), sum::is_sound(row, 3)?)))
            .optional()?;
        match found {
            Some((_, false)) => {
                let place = format!("which run had the key {key:?}");
                Err(StoreError::Damaged { run: None, place }.into())
            }
            found => Ok(found.map(|(run, _)| run)),
        }
    }
}

const HOT: &str = "DELETE FROM log WHERE position = ?1 AND run = ?2 RETURNING previous";
const PACKED: &str = "DELETE FROM segments WHERE position = ?1 AND run = ?2 RETURNING previous";

/// Deletes what stands at a place, if it is this run's; returns the place before it.
fn delete(connection: &Connection, sql: &str, run: i64, place: i64) -> rusqlite::Result<Option<i64>> {
    connection.prepare_cached(sql)?.query_row([place, run], |row| row.get(0)).optional()
}

fn empty_mailbox(connection: &Connection, id: i64, budget: &mut Budget) -> rusqlite::Result<bool> {
    places::forget(connection, id)?;
    let sql = "DELETE FROM mail WHERE run = ?1 AND position IN (SELECT position FROM mail WHERE run = ?1 LIMIT ?2)";
    let most = budget.0;
    let deleted = connection.prepare_cached(sql)?.execute(params![id, size(most)])?;
    budget.spend(deleted);
    Ok(deleted < most)
}

fn free_keys(connection: &Connection, by: Timestamp, budget: &mut Budget) -> rusqlite::Result<()> {
    let sql = "DELETE FROM tombstones WHERE key IN (SELECT key FROM tombstones WHERE since <= ?1 LIMIT ?2)";
    let deleted = connection.prepare_cached(sql)?.execute(params![by.as_micros(), size(budget.0)])?;
    budget.spend(deleted);
    Ok(())
}

/// Gives free pages back to the file system. The statement moves one page a step.
fn give_back(connection: &Connection, pages: i64) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(&format!("PRAGMA incremental_vacuum({pages})"))?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    Ok(())
}
