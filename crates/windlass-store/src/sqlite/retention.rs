//! Finds finished runs whose retention has expired. It reads a few hundred rows at a time on a reader's connection, so
//! that commits do not wait for it; the [writer](super::purge) removes what was found.

use parking_lot::Mutex;
use rusqlite::{Connection, params};
use windlass_core::store::{Cutoffs, Retention, Tidied};
use windlass_core::time::Timestamp;

use super::blobs;
use super::decide::RunHead;
use super::job::Write;
use super::log;
use super::read::{ReadError, decode_line};
use super::sessions::due_sessions;
use super::write_tx::JobError;

/// Rows that one query reads at most.
const PAGE_ROWS: i64 = 256;
/// Pages that one slice returns to the file system. Each is moved from the end of the file into a gap.
const PAGES: i64 = 64;
/// Free pages that are kept for new records, which is cheaper than returning and allocating them again.
const SPARE_PAGES: i64 = 64;

/// Work for the writer, which checks each run again before it changes it.
#[derive(Debug, Default)]
pub(super) struct RetentionWork {
    /// The time of the scan.
    pub(super) now: Timestamp,
    /// Runs whose journals are being removed.
    pub(super) in_removal: Vec<i64>,
    /// Runs whose journals have expired.
    pub(super) summarize: Vec<i64>,
    /// Runs that have expired.
    pub(super) remove: Vec<i64>,
    /// Keys of runs that were removed by this time are released, if there are any.
    pub(super) free_keys: Option<Timestamp>,
    /// Closed sessions whose content has expired.
    pub(super) sessions: Vec<i64>,
    /// Whether there is content that is no longer referenced.
    pub(super) blobs: bool,
    /// Pages to return to the file system.
    pub(super) pages: i64,
}

impl RetentionWork {
    pub(super) fn is_empty(&self) -> bool {
        let runs = self.in_removal.len() + self.summarize.len() + self.remove.len();
        runs + self.sessions.len() == 0 && self.free_keys.is_none() && !self.blobs && self.pages == 0
    }
}

/// The progress of a pass over all finished runs. An obstacle for one run, such as its parent run, may be removed later
/// in the same pass, so passes are repeated as long as they remove something.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScanPass {
    summarize: ScanPosition,
    remove: ScanPosition,
    achieved: bool,
    over: bool,
}

/// Where the next query starts: after the run with this end time and number.
type ScanPosition = (i64, i64);
const BEGIN: ScanPosition = (i64::MIN, 0);

impl Default for ScanPass {
    fn default() -> Self {
        Self { summarize: BEGIN, remove: BEGIN, achieved: false, over: false }
    }
}

pub(super) struct ScanSlice {
    pub(super) work: RetentionWork,
    pub(super) next: ScanPass,
}

pub(super) struct RetentionScan {
    retention: Retention,
    /// The current opening of the file.
    opening: i64,
    pass: Mutex<ScanPass>,
}

impl RetentionScan {
    pub(super) fn new(retention: Retention, opening: i64) -> Self {
        Self { retention, opening, pass: Mutex::default() }
    }

    /// The next slice of work.
    pub(super) fn next_slice(&self, connection: &mut Connection, now: Timestamp) -> Result<ScanSlice, ReadError> {
        let view = connection.transaction()?;
        let pass = *self.pass.lock();
        let Cutoffs { full, summary, keys, sessions } = self.retention.cutoffs(now);
        let in_removal =
            view.prepare_cached(IN_REMOVAL)?.query_map([PAGE_ROWS], |row| row.get(0))?.collect::<Result<_, _>>()?;
        let summarize = page(&view, DUE_SUMMARY, full, pass.summarize)?;
        let remove = page(&view, DUE_REMOVAL, summary, pass.remove)?;
        let free_keys = match keys {
            Some(by) if view.prepare_cached(DUE_KEYS)?.exists([by.as_micros()])? => Some(by),
            _ => None,
        };
        let next = ScanPass {
            summarize: summarize.next.unwrap_or(pass.summarize),
            remove: remove.next.unwrap_or(pass.remove),
            achieved: pass.achieved,
            over: summarize.next.is_none() && remove.next.is_none(),
        };
        let (summarize, remove) = (summarize.free, remove.free);
        let blobs = blobs::is_due(&view, now, self.opening)?;
        let (sessions, pages) = (due_sessions(&view, sessions)?, spare_pages(&view)?);
        let work = RetentionWork { now, in_removal, summarize, remove, free_keys, sessions, blobs, pages };
        Ok(ScanSlice { work, next })
    }

    /// Records that a slice is done, and returns its result.
    pub(super) fn finish_slice(&self, next: ScanPass, done: Tidied) -> Tidied {
        let achieved = next.achieved || done.summarized + done.removed > 0;
        let more = done.more || achieved || !next.over;
        // What the writer did not finish is found again by the next pass.
        let again = next.over || done.more;
        *self.pass.lock() = match again {
            true => ScanPass { achieved: achieved && !next.over, ..ScanPass::default() },
            false => ScanPass { achieved, ..next },
        };
        Tidied { more, ..done }
    }
}

/// One page of a query's result.
struct DuePage {
    /// Runs that can be removed now.
    free: Vec<i64>,
    /// Where the next page starts; `None` after the last one.
    next: Option<ScanPosition>,
}

fn page(view: &Connection, sql: &str, by: Option<Timestamp>, after: ScanPosition) -> rusqlite::Result<DuePage> {
    let mut page = DuePage { free: Vec::new(), next: None };
    let Some(by) = by else { return Ok(page) };
    let mut statement = view.prepare_cached(sql)?;
    let mut rows = statement.query(params![by.as_micros(), after.0, after.1, PAGE_ROWS])?;
    let mut seen = 0;
    while let Some(row) = rows.next()? {
        let id = row.get(0)?;
        if row.get(2)? {
            page.free.push(id);
        }
        seen += 1;
        page.next = (seen == PAGE_ROWS).then_some((row.get(1)?, id));
    }
    Ok(page)
}

const IN_REMOVAL: &str = "SELECT id FROM runs WHERE summary = 1 AND ended IS NOT NULL LIMIT ?1";

/// A run's journal is kept while its parent has its own, and while the run has unsettled doubts.
const DUE_SUMMARY: &str = "SELECT id, ended, doubts IS NULL AND NOT EXISTS
        (SELECT 1 FROM runs AS parent WHERE parent.run = runs.parent_run AND parent.summary = 0)
    FROM runs WHERE summary = 0 AND ended <= ?1 AND (ended, id) > (?2, ?3) ORDER BY ended, id LIMIT ?4";

const DUE_REMOVAL: &str = "SELECT id, ended, NOT EXISTS
        (SELECT 1 FROM runs AS parent WHERE parent.run = runs.parent_run)
    FROM runs WHERE summary = 2 AND ended <= ?1 AND (ended, id) > (?2, ?3) ORDER BY ended, id LIMIT ?4";

const DUE_KEYS: &str = "SELECT 1 FROM tombstones WHERE since <= ?1 LIMIT 1";

/// The number of surplus free pages, at most as many as a slice returns.
fn spare_pages(view: &Connection) -> rusqlite::Result<i64> {
    let number = |pragma: &str| view.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let spare = SPARE_PAGES + number("page_count")? / 8;
    let pages = (number("freelist_count")? - spare).clamp(0, PAGES);
    // A file that was not created with incremental vacuum keeps its free pages for new records.
    const INCREMENTAL: i64 = 2;
    Ok(if pages > 0 && number("auto_vacuum")? != INCREMENTAL { 0 } else { pages })
}

/// The end time of a run that this commit finishes: the time of its last record. `None` if that cannot be read; such a
/// run is kept.
pub(super) fn ended(connection: &Connection, head: &RunHead, write: &Write) -> Result<Option<Timestamp>, JobError> {
    if !write.finishes() || write.records.at.is_some() {
        return Ok(write.records.at.filter(|_| write.finishes()));
    }
    let rows = match log::rows(connection, head.id, head.tail, head.tail.length.saturating_sub(1), 1) {
        Err(ReadError::Sql(error)) => return Err(error.into()),
        rows => rows.ok().flatten().unwrap_or_default(),
    };
    let last = rows.iter().flat_map(log::LogRow::lines).last();
    Ok(last.and_then(|(_, line)| decode_line::<log::RecordTime>(connection, line).ok()).map(|last| last.at))
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::{is_indexed, plan};
    use super::*;

    #[test]
    fn w09_every_retention_query_uses_an_index() {
        let expected = [
            (IN_REMOVAL, "SEARCH runs USING COVERING INDEX runs_ended (summary=? AND ended>?)"),
            (DUE_SUMMARY, "SEARCH runs USING INDEX runs_ended (summary=? AND ended>? AND ended<?)"),
            (DUE_REMOVAL, "SEARCH runs USING INDEX runs_ended (summary=? AND ended>? AND ended<?)"),
            (DUE_KEYS, "SEARCH tombstones USING COVERING INDEX tombstones_by_age (since<?)"),
        ];
        for (sql, start) in expected {
            let plan = plan(sql);
            assert!(plan.starts_with(start) && is_indexed(&plan), "{sql}: {plan}");
        }
    }
}
