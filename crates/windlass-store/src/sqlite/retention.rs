//! Which finished runs are kept no longer. Looked for on a reading connection, a few hundred rows at a time, so that
//! nobody waits for the looking; the [writer](super::purge) removes what was found.

use parking_lot::Mutex;
use rusqlite::{Connection, params};
use windlass_core::store::{Cutoffs, Retention, Tidied};
use windlass_core::time::Timestamp;

use super::blobs;
use super::decide::Head;
use super::job::Write;
use super::log;
use super::read::{ReadError, decode_line};
use super::table::Trouble;

/// Rows one look goes through for each question.
const LOOKED: i64 = 256;
/// Pages one slice gives back to the file system. Each is moved from the end of the file into a gap.
const PAGES: i64 = 64;
/// Free pages that stay: new records take them, which is cheaper than giving them back and asking again.
const SPARE: i64 = 64;

/// What the writer is asked to do. It looks at each run again before it touches it.
#[derive(Debug, Default)]
pub(super) struct Chores {
    /// When this was looked for.
    pub(super) now: Timestamp,
    /// Runs whose journals are being removed.
    pub(super) going: Vec<i64>,
    /// Runs whose journals are kept no longer.
    pub(super) summarize: Vec<i64>,
    /// Runs that are kept no longer.
    pub(super) remove: Vec<i64>,
    /// Keys of runs that went by then are free, if there are any.
    pub(super) free_keys: Option<Timestamp>,
    /// Whether there is content that nobody needs any more.
    pub(super) blobs: bool,
    /// Pages to give back.
    pub(super) pages: i64,
}

impl Chores {
    pub(super) fn is_empty(&self) -> bool {
        let runs = self.going.len() + self.summarize.len() + self.remove.len();
        runs == 0 && self.free_keys.is_none() && !self.blobs && self.pages == 0
    }
}

/// How far a pass over all finished runs has come. What stands in the way of one run, such as the run that spawned it,
/// may be gone later in the same pass, so passes are repeated as long as they come to anything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    summarize: Place,
    remove: Place,
    achieved: bool,
    over: bool,
}

/// Where the next look begins: after the run that ended then and has this number.
type Place = (i64, i64);
const BEGIN: Place = (i64::MIN, 0);

impl Default for Pass {
    fn default() -> Self {
        Self { summarize: BEGIN, remove: BEGIN, achieved: false, over: false }
    }
}

pub(super) struct Look {
    pub(super) chores: Chores,
    pub(super) next: Pass,
}

pub(super) struct Keeper {
    retention: Retention,
    /// Which opening of the file this is.
    opening: i64,
    pass: Mutex<Pass>,
}

impl Keeper {
    pub(super) fn new(retention: Retention, opening: i64) -> Self {
        Self { retention, opening, pass: Mutex::default() }
    }

    /// What is to be done now, a slice of it.
    pub(super) fn look(&self, connection: &mut Connection, now: Timestamp) -> Result<Look, ReadError> {
        let view = connection.transaction()?;
        let pass = *self.pass.lock();
        let Cutoffs { full, summary, keys } = self.retention.cutoffs(now);
        let going = view.prepare_cached(GOING)?.query_map([LOOKED], |row| row.get(0))?.collect::<Result<_, _>>()?;
        let summarize = page(&view, DUE_SUMMARY, full, pass.summarize)?;
        let remove = page(&view, DUE_REMOVAL, summary, pass.remove)?;
        let free_keys = match keys {
            Some(by) if view.prepare_cached(DUE_KEYS)?.exists([by.as_micros()])? => Some(by),
            _ => None,
        };
        let next = Pass {
            summarize: summarize.next.unwrap_or(pass.summarize),
            remove: remove.next.unwrap_or(pass.remove),
            achieved: pass.achieved,
            over: summarize.next.is_none() && remove.next.is_none(),
        };
        let (summarize, remove) = (summarize.free, remove.free);
        let blobs = blobs::is_due(&view, now, self.opening)?;
        let chores = Chores { now, going, summarize, remove, free_keys, blobs, pages: spare_pages(&view)? };
        Ok(Look { chores, next })
    }

    /// The slice is done; says what it came to.
    pub(super) fn after(&self, next: Pass, done: Tidied) -> Tidied {
        let achieved = next.achieved || done.summarized + done.removed > 0;
        let more = done.more || achieved || !next.over;
        // What the writer did not get to is found again from the beginning.
        let again = next.over || done.more;
        *self.pass.lock() = match again {
            true => Pass { achieved: achieved && !next.over, ..Pass::default() },
            false => Pass { achieved, ..next },
        };
        Tidied { more, ..done }
    }
}

/// One page of the answer to a question.
struct Page {
    /// Runs that nothing stands in the way of.
    free: Vec<i64>,
    /// Where the next page begins; nothing after the last one.
    next: Option<Place>,
}

fn page(view: &Connection, question: &str, by: Option<Timestamp>, after: Place) -> rusqlite::Result<Page> {
    let mut page = Page { free: Vec::new(), next: None };
    let Some(by) = by else { return Ok(page) };
    let mut statement = view.prepare_cached(question)?;
    let mut rows = statement.query(params![by.as_micros(), after.0, after.1, LOOKED])?;
    let mut seen = 0;
    while let Some(row) = rows.next()? {
        let id = row.get(0)?;
        if row.get(2)? {
            page.free.push(id);
        }
        seen += 1;
        page.next = (seen == LOOKED).then_some((row.get(1)?, id));
    }
    Ok(page)
}

const GOING: &str = "SELECT id FROM runs WHERE summary = 1 AND ended IS NOT NULL LIMIT ?1";

/// A run's journal is kept while the run that spawned it has its own, and while somebody may settle what it did.
const DUE_SUMMARY: &str = "SELECT id, ended, doubts IS NULL AND NOT EXISTS
        (SELECT 1 FROM runs AS parent WHERE parent.run = runs.parent_run AND parent.summary = 0)
    FROM runs WHERE summary = 0 AND ended <= ?1 AND (ended, id) > (?2, ?3) ORDER BY ended, id LIMIT ?4";

const DUE_REMOVAL: &str = "SELECT id, ended, NOT EXISTS
        (SELECT 1 FROM runs AS parent WHERE parent.run = runs.parent_run)
    FROM runs WHERE summary = 2 AND ended <= ?1 AND (ended, id) > (?2, ?3) ORDER BY ended, id LIMIT ?4";

const DUE_KEYS: &str = "SELECT 1 FROM tombstones WHERE since <= ?1 LIMIT 1";

/// How many free pages there are too many, as many as a slice gives back.
fn spare_pages(view: &Connection) -> rusqlite::Result<i64> {
    let number = |pragma: &str| view.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let spare = SPARE + number("page_count")? / 8;
    let pages = (number("freelist_count")? - spare).clamp(0, PAGES);
    // A file that was not created to give pages back keeps them for new records.
    const INCREMENTAL: i64 = 2;
    Ok(if pages > 0 && number("auto_vacuum")? != INCREMENTAL { 0 } else { pages })
}

/// When a run ends that this commit finishes: when the last of its records was written. Nothing if that cannot be told:
/// such a run is kept.
pub(super) fn ended(connection: &Connection, head: &Head, write: &Write) -> Result<Option<Timestamp>, Trouble> {
    if !write.finishes() || write.records.at.is_some() {
        return Ok(write.records.at.filter(|_| write.finishes()));
    }
    let rows = match log::rows(connection, head.id, head.tail, head.tail.end.saturating_sub(1), 1) {
        Err(ReadError::Sql(error)) => return Err(error.into()),
        rows => rows.ok().flatten().unwrap_or_default(),
    };
    let last = rows.iter().flat_map(log::Row::lines).last();
    Ok(last.and_then(|(_, line)| decode_line::<log::At>(connection, line).ok()).map(|last| last.at))
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::{is_indexed, plan};
    use super::*;

    #[test]
    fn w09_every_question_of_the_keeper_is_answered_by_an_index() {
        let expected = [
            (GOING, "SEARCH runs USING COVERING INDEX runs_ended (summary=? AND ended>?)"),
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
