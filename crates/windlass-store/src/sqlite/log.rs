//! Journals in the file.
//!
//! One table stores the records of all runs in the order they arrive, one row for each commit that has records. That is
//! the cheapest way to write, however many runs write at once. A row points to the previous row of its run. The
//! position of a run's newest row is in memory ([`JournalTails`]) and, when the run is suspended or finished, in its
//! row of `runs`. Rows are never moved or changed. Later, the rows of a run with many rows are [packed](super::pack)
//! into one compressed segment at the position of the last of them, so that every pointer to that row now points to the
//! segment.
//!
//! A position is the number of a record among the records of all runs, and is never used twice. Rows and segments are
//! identified by the position of their last record.

mod feed;
mod journal_tails;
mod segment;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row as SqlRow, params};
use serde::Deserialize;
use windlass_core::RunId;
use windlass_core::time::Timestamp;

use super::blobs;
use super::checksum;
use super::damage::Damage;
use super::job::Records;
use super::read::ReadError;

pub(super) use feed::feed;
#[cfg(test)]
pub(super) use feed::{LOG_FEED, SEGMENT_FEED};
pub(super) use journal_tails::{JournalTail, JournalTails};
pub(super) use segment::{Segment, unpack};

/// The records of one commit of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogRow {
    /// Position of the last record.
    pub(super) position: i64,
    /// Number of the first record in its journal.
    pub(super) seq: u64,
    pub(super) count: u32,
    /// The records, one line each.
    pub(super) body: String,
}

impl LogRow {
    /// The records with their numbers in the journal.
    pub(super) fn lines(&self) -> impl Iterator<Item = (u64, &str)> {
        (self.seq..).zip(self.body.split('\n'))
    }

    /// The position of the first record.
    pub(super) fn first(&self) -> i64 {
        self.position.saturating_sub(i64::from(self.count)).saturating_add(1)
    }
}

/// The end of the log as the writer sees it, including its open transaction.
#[derive(Debug, Default)]
pub(super) struct LogEnd {
    /// The position of the last record.
    pub(super) last: i64,
    /// Rows up to here are not scanned after a crash, because all tails up to here are stored in `runs`.
    pub(super) packed: i64,
    /// The highest number that was ever assigned to a run.
    pub(super) runs: i64,
    /// The largest run id in the file. Most new runs have a larger id, so the file need not be searched for them.
    pub(super) newest: Option<RunId>,
    /// New tails of the journals that the transaction changed, by the number of their run; `None` where the run's own
    /// row has the tail.
    pub(super) changed_tails: Vec<(i64, Option<JournalTail>)>,
    /// Damage that was found while the end of the log was scanned.
    pub(super) damaged: Vec<Damage>,
}

/// The time of a record, without the rest of it.
#[derive(Deserialize)]
pub(super) struct RecordTime {
    pub(super) at: Timestamp,
}

/// A journal that is appended to.
pub(super) struct Journal {
    /// The number of the run (`runs.id`).
    pub(super) run: i64,
    pub(super) session: Option<i64>,
    /// Its current tail.
    pub(super) tail: JournalTail,
}

impl LogEnd {
    /// The tail of a journal after these records are appended to it.
    pub(super) fn after(&self, tail: JournalTail, records: &Records) -> JournalTail {
        if records.is_empty() {
            return tail;
        }
        JournalTail { position: self.last + i64::from(records.count), length: tail.length + u64::from(records.count) }
    }

    /// Appends records to a journal and returns its new tail.
    pub(super) fn append(
        &mut self,
        connection: &Connection,
        journal: &Journal,
        records: &Records,
    ) -> rusqlite::Result<JournalTail> {
        let tail = self.after(journal.tail, records);
        if records.is_empty() {
            return Ok(tail);
        }
        let (seq, previous, body) = (signed(journal.tail.length), journal.tail.position, &records.text.body);
        let number = ValueRef::Integer;
        let sum = checksum::checksum([
            number(tail.position),
            number(journal.run),
            number(seq),
            number(records.count.into()),
            number(previous),
            journal.session.map_or(ValueRef::Null, number),
            ValueRef::Text(body.as_bytes()),
            // The column `note`: only rows that were written before schema version 8 have one.
            ValueRef::Null,
        ]);
        let sql = "INSERT INTO log (position, run, seq, count, previous, session, body, sum)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        connection.prepare_cached(sql)?.execute(params![
            tail.position,
            journal.run,
            seq,
            records.count,
            previous,
            journal.session,
            body,
            sum,
        ])?;
        blobs::keep(connection, journal.run, &records.text.payloads)?;
        self.last = tail.position;
        self.changed_tails.push((journal.run, Some(tail)));
        Ok(tail)
    }

    /// Assigns a number to a new run. Numbers are never reused.
    pub(super) fn number(&mut self, run: RunId) -> i64 {
        self.newest = self.newest.max(Some(run));
        self.runs += 1;
        self.runs
    }

    /// Records that the run's own row has the tail of its journal.
    pub(super) fn saved(&mut self, run: i64) {
        self.changed_tails.push((run, None));
    }
}

/// The rows of a run whose journal ends at `tail`, oldest first, starting with the row that has the record `from`, and
/// with at least `limit` records if there are so many. Each row is verified and follows the previous one.
///
/// Returns `None` if `tail` is not in this snapshot, because it was packed together with later rows meanwhile.
pub(super) fn rows(
    connection: &Connection,
    run: i64,
    tail: JournalTail,
    from: u64,
    limit: usize,
) -> Result<Option<Vec<LogRow>>, ReadError> {
    let upto = from.saturating_add(limit as u64);
    let (mut position, mut end, mut newest_first) = (tail.position, tail.length, Vec::new());
    while position != 0 {
        let Some(journal_part) = journal_part(connection, position, from, upto)? else {
            return if position == tail.position { Ok(None) } else { Err(ReadError::Broken(position)) };
        };
        if journal_part.run != run {
            return Err(damaged(format!("its journal at position {position} is another run's")));
        }
        if journal_part.seq + u64::from(journal_part.count) != end || journal_part.previous >= position {
            return Err(damaged(format!("its journal at position {position} does not end at record {end}")));
        }
        newest_first.extend(journal_part.rows.into_iter().rev());
        (end, position) = (journal_part.seq, journal_part.previous);
        if end <= from {
            break;
        }
    }
    if end > from {
        return Err(damaged(format!("the first {end} records of its journal are missing")));
    }
    newest_first.reverse();
    Ok(Some(newest_first))
}

/// An error for damage of the run that is read.
pub(super) fn damaged(location: String) -> ReadError {
    ReadError::Damaged(Damage { run: None, location })
}

/// The part of a journal at one position: a row, or a segment of several rows.
struct JournalPart {
    run: i64,
    /// Number of its first record.
    seq: u64,
    count: u32,
    previous: i64,
    /// Empty if no record in it is requested.
    rows: Vec<LogRow>,
}

/// Selects rows of the log: the columns that the checksum covers, then the checksum.
macro_rules! select_log {
    ($which:literal) => {
        concat!("SELECT position, run, seq, count, previous, session, body, note, sum FROM log ", $which)
    };
}
pub(super) use select_log;

/// The number of columns that the checksum covers.
const CHECKSUM_COLUMNS: usize = 8;

/// Whether a row of [`select_log`] matches its checksum.
pub(super) fn is_intact(row: &SqlRow<'_>) -> rusqlite::Result<bool> {
    checksum::is_intact(row, CHECKSUM_COLUMNS)
}

const LOG_ROW: &str = select_log!("WHERE position = ?1");
const SEGMENT: &str = "SELECT position, first, run, seq, count, previous, session, body, sum FROM segments
    WHERE position = ?1";

fn journal_part(
    connection: &Connection,
    position: i64,
    from: u64,
    upto: u64,
) -> Result<Option<JournalPart>, ReadError> {
    let wanted = |seq: u64, count: u32| seq < upto && seq + u64::from(count) > from;
    let mut statement = connection.prepare_cached(LOG_ROW)?;
    let mut found = statement.query([position])?;
    if let Some(row) = found.next()? {
        let (run, seq, count, previous) = (row.get(1)?, unsigned(row.get(2)?), row.get(3)?, row.get(4)?);
        let mut rows = Vec::new();
        if wanted(seq, count) {
            rows.push(log_row(row)?);
        }
        return Ok(Some(JournalPart { run, seq, count, previous, rows }));
    }
    let mut statement = connection.prepare_cached(SEGMENT)?;
    let mut found = statement.query([position])?;
    let Some(row) = found.next()? else { return Ok(None) };
    let (run, seq, count, previous) = (row.get(2)?, unsigned(row.get(3)?), row.get(4)?, row.get(5)?);
    let mut rows = Vec::new();
    if wanted(seq, count) {
        rows = segment_rows(row)?;
        rows.retain(|row| wanted(row.seq, row.count));
    }
    Ok(Some(JournalPart { run, seq, count, previous, rows }))
}

/// Reads and verifies a row that [`select_log`] selected.
pub(super) fn log_row(row: &SqlRow<'_>) -> Result<LogRow, ReadError> {
    let found = LogRow { position: row.get(0)?, seq: unsigned(row.get(2)?), count: row.get(3)?, body: String::new() };
    let damaged = || damaged(format!("its journal at position {}", found.position));
    if !is_intact(row)? {
        return Err(damaged());
    }
    let body: String = row.get(6)?;
    if body.split('\n').count() as u64 != u64::from(found.count) {
        return Err(damaged());
    }
    Ok(LogRow { body, ..found })
}

/// Reads and verifies the rows of a segment. The result row starts with the columns that the checksum covers.
pub(super) fn segment_rows(row: &SqlRow<'_>) -> Result<Vec<LogRow>, ReadError> {
    let position: i64 = row.get(0)?;
    let damaged = || damaged(format!("its packed journal at position {position}"));
    if !checksum::is_intact(row, CHECKSUM_COLUMNS)? {
        return Err(damaged());
    }
    let (seq, count): (i64, u32) = (row.get(3)?, row.get(4)?);
    let rows = unpack(unsigned(seq), row.get_ref(7)?.as_blob().map_err(rusqlite::Error::from)?)?;
    let counted: u64 = rows.iter().map(|row| u64::from(row.count)).sum();
    let lines = rows.iter().all(|row| row.lines().count() as u64 == u64::from(row.count));
    let last = rows.last().map(|row| row.position);
    if counted != u64::from(count) || last != Some(position) || !lines {
        return Err(damaged());
    }
    Ok(rows)
}

/// SQLite's integers are signed. No number in the file exceeds them.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
