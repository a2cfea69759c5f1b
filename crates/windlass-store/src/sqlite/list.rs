//! Lists of runs: one pair of statements a filter, each worded like the index that answers it.

use rusqlite::types::Value as SqlValue;
use rusqlite::{Row as SqlRow, params};
use windlass_core::RunId;
use windlass_core::run::state::RunInfo;
use windlass_core::store::{Counts, Filter, StoreError};

use super::read::{ReadError, Readers, infos, size};
use super::sum::{run_is_sound, run_sum};

/// Selects one page of a list: oldest first, and newest first.
macro_rules! page {
    ($which:literal) => {
        [infos!($which " AND run > ?1 ORDER BY run LIMIT ?2"), infos!($which " AND run < ?1 ORDER BY run DESC LIMIT ?2")]
    };
}

const OLDEST_FIRST: usize = 0;
const NEWEST_FIRST: usize = 1;

/// Sorts after every id.
const BEYOND: [u8; 17] = [0xff; 17];

/// How many unfinished runs are in which phase. Walks an index that holds those alone.
const OPEN: &str = "SELECT phase, count(*) FROM runs INDEXED BY runs_open WHERE phase < 4 GROUP BY phase";

const ENDED: &str = "SELECT count(*) FROM runs INDEXED BY runs_ended WHERE ended IS NOT NULL";

const INBOX: &str = "SELECT count(*) FROM runs INDEXED BY runs_inbox WHERE doubts IS NOT NULL OR asks = 1";

impl Readers {
    pub(super) fn list(&self, filter: &Filter, after: Option<RunId>, limit: usize) -> Result<Vec<RunInfo>, StoreError> {
        // The empty value sorts before every id.
        let after = after.map(|run| run.as_bytes().to_vec()).unwrap_or_default();
        self.turn(filter, OLDEST_FIRST, after, limit)
    }

    pub(super) fn latest(
        &self,
        filter: &Filter,
        before: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<RunInfo>, StoreError> {
        let before = before.map_or_else(|| BEYOND.to_vec(), |run| run.as_bytes().to_vec());
        self.turn(filter, NEWEST_FIRST, before, limit)
    }

    fn turn(&self, filter: &Filter, order: usize, from: Vec<u8>, limit: usize) -> Result<Vec<RunInfo>, StoreError> {
        let (sql, argument) = listing(filter)?;
        self.glance(None, |connection| {
            let mut statement = connection.prepare_cached(sql[order])?;
            let read = |row: &SqlRow<'_>| Ok(self.info_of(row));
            let rows = match argument {
                Some(argument) => statement.query_map(params![from, size(limit), argument], read)?,
                None => statement.query_map(params![from, size(limit)], read)?,
            };
            rows.map(|row| row?).collect()
        })
    }

    pub(super) fn counts(&self) -> Result<Counts, StoreError> {
        self.glance(None, |connection| {
            // One view of the file, so that no run is counted twice.
            let view = connection.transaction()?;
            let number = |sql: &str| -> Result<u64, ReadError> {
                let count: i64 = view.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
                Ok(count.unsigned_abs())
            };
            let mut counts = Counts { finished: number(ENDED)?, inbox: number(INBOX)?, ..Counts::default() };
            let mut statement = view.prepare_cached(OPEN)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let count = row.get::<_, i64>(1)?.unsigned_abs();
                match row.get::<_, i64>(0)? {
                    0 => counts.queued = count,
                    1 => counts.running = count,
                    2 => counts.suspended = count,
                    _ => counts.held = count,
                }
            }
            Ok(counts)
        })
    }
}

/// The statements of a filter, and the argument they need.
fn listing(filter: &Filter) -> Result<([&'static str; 2], Option<SqlValue>), StoreError> {
    let argument = match filter {
        Filter::Session(name) | Filter::Tool(name) => Some(SqlValue::Text(name.to_string())),
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
        Filter::Tool(_) => page!("WHERE tool = ?3"),
        Filter::All => page!("WHERE true"),
        _ => return Err(StoreError::Invalid("this store does not know the filter".to_owned())),
    };
    Ok((sql, argument))
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::{is_indexed, plan};
    use super::*;

    #[test]
    fn every_filter_is_answered_by_its_index_in_both_orders() {
        let expected = [
            (Filter::Queued, "runs_open (phase=? AND run"),
            (Filter::Running, "runs_open (phase=? AND run"),
            (Filter::Suspended, "runs_open (phase=? AND run"),
            (Filter::Held, "runs_open (phase=? AND run"),
            (Filter::Finished, "sqlite_autoindex_runs_1 (run"),
            (Filter::Doubted, "runs_doubted (run"),
            (Filter::Inbox, "runs_inbox (run"),
            (Filter::Session("s".into()), "runs_by_session (session=? AND run"),
            (Filter::Children(RunId::from_bytes([1; 16])), "runs_by_parent (parent_run=? AND run"),
            (Filter::Tool("t".into()), "runs_by_tool (tool=? AND run"),
            (Filter::All, "sqlite_autoindex_runs_1 (run"),
        ];
        for (filter, index) in expected {
            for (sql, way) in listing(&filter).unwrap().0.into_iter().zip([">?)", "<?)"]) {
                let plan = plan(sql);
                let start = format!("SEARCH runs USING INDEX {index}{way}");
                assert!(plan.starts_with(&start) && is_indexed(&plan), "{filter:?}: {plan}");
            }
        }
    }

    #[test]
    fn runs_are_counted_by_indexes_that_hold_no_more_than_is_counted() {
        for (sql, index) in [(OPEN, "runs_open"), (ENDED, "runs_ended"), (INBOX, "runs_inbox")] {
            let plan = plan(sql);
            assert!(plan.contains(index) && !plan.contains("TEMP B-TREE"), "{sql}: {plan}");
        }
    }
}
