//! Journals in the file.
//!
//! One table takes the records of all runs in the order they come, one row for each commit that has some: the cheapest
//! thing to write there is, however many runs write at once. A row knows the row of its run before it, and where a run's
//! newest row is stands in memory ([`Tails`]) and, as soon as the run rests, in its row of `runs`. Rows are never moved
//! or changed. Those of a run that has many are [packed](super::pack) into one compressed segment later, which takes the
//! place of the last of them: whatever pointed to that row points to the segment now.
//!
//! A position is the number of a record among the records of all runs, and is never used twice. Rows and segments are
//! named by the position of their last record.

mod feed;
mod segment;
mod tails;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row as SqlRow, params};
use serde::Deserialize;
use windlass_core::RunId;
use windlass_core::time::Timestamp;

use super::blobs;
use super::damage::Damage;
use super::job::Records;
use super::read::ReadError;
use super::sum;

pub(super) use feed::feed;
#[cfg(test)]
pub(super) use feed::{HOT_FEED, PACKED_FEED};
pub(super) use segment::{Segment, unpack};
pub(super) use tails::{Tail, Tails};

/// The records of one commit of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Of the last record.
    pub(super) position: i64,
    /// Of the first record, in its journal.
    pub(super) seq: u64,
    pub(super) count: u32,
    /// The records, a line each.
    pub(super) body: String,
}

impl Row {
    /// Its records with their numbers in the journal.
    pub(super) fn lines(&self) -> impl Iterator<Item = (u64, &str)> {
        (self.seq..).zip(self.body.split('\n'))
    }

    /// Where the first record is.
    pub(super) fn first(&self) -> i64 {
        self.position.saturating_sub(i64::from(self.count)).saturating_add(1)
    }
}

/// The end of the log as the writer sees it, with what its transaction has added.
#[derive(Debug, Default)]
pub(super) struct End {
    /// The position of the last record.
    pub(super) last: i64,
    /// Rows up to here are not looked through after a crash: whatever points to them is in the file.
    pub(super) packed: i64,
    /// The highest number that was ever handed out for a run.
    pub(super) runs: i64,
    /// No run in the file has a later id. Most runs that are created do, so nobody has to look whether they are there.
    pub(super) newest: Option<RunId>,
    /// Where the journals end that the transaction added to, by the number of their run; nothing where the run's own row
    /// says it.
    pub(super) moved: Vec<(i64, Option<Tail>)>,
    /// What was found to be damaged when the end of the log was looked through.
    pub(super) damaged: Vec<Damage>,
}

/// When a record was written, of all it says.
#[derive(Deserialize)]
pub(super) struct At {
    pub(super) at: Timestamp,
}

/// A journal that is added to.
pub(super) struct Journal {
    /// The number that stands for the run.
    pub(super) run: i64,
    pub(super) session: Option<i64>,
    /// Where it ends now.
    pub(super) tail: Tail,
}

impl End {
    /// Where a journal will end once these records are added to it.
    pub(super) fn after(&self, tail: Tail, records: &Records) -> Tail {
        if records.is_empty() {
            return tail;
        }
        Tail { position: self.last + i64::from(records.count), end: tail.end + u64::from(records.count) }
    }

    /// Adds records to a journal, and returns where it ends now.
    pub(super) fn append(
        &mut self,
        connection: &Connection,
        journal: &Journal,
        records: &Records,
    ) -> rusqlite::Result<Tail> {
        let tail = self.after(journal.tail, records);
        if records.is_empty() {
            return Ok(tail);
        }
        let (seq, previous, body) = (signed(journal.tail.end), journal.tail.position, &records.text.body);
        let number = ValueRef::Integer;
        let sum = sum::sum([
            number(tail.position),
            number(journal.run),
            number(seq),
            number(records.count.into()),
            number(previous),
            journal.session.map_or(ValueRef::Null, number),
            ValueRef::Text(body.as_bytes()),
            // The column `note`: only rows of files before schema version 8 have some.
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
        self.moved.push((journal.run, Some(tail)));
        Ok(tail)
    }

    /// The number of a new run: none that another one had.
    pub(super) fn number(&mut self, run: RunId) -> i64 {
        self.newest = self.newest.max(Some(run));
        self.runs += 1;
        self.runs
    }

    /// The run's own row says where its journal ends.
    pub(super) fn saved(&mut self, run: i64) {
        self.moved.push((run, None));
    }
}

/// The rows of a run whose journal ends at `tail`, oldest first, from the one that holds the record `from` on; at least as many
/// as hold `limit` records, if there are so many. Each is what was written, and follows the one before it.
///
/// Nothing if `tail` is not in this view of the file: it was packed together with later rows meanwhile.
pub(super) fn rows(
    connection: &Connection,
    run: i64,
    tail: Tail,
    from: u64,
    limit: usize,
) -> Result<Option<Vec<Row>>, ReadError> {
    let upto = from.saturating_add(limit as u64);
    let (mut place, mut end, mut newest_first) = (tail.position, tail.end, Vec::new());
    while place != 0 {
        let Some(step) = step(connection, place, from, upto)? else {
            return if place == tail.position { Ok(None) } else { Err(ReadError::Broken(place)) };
        };
        if step.run != run {
            return Err(damaged(format!("its journal at position {place} is another run's")));
        }
        if step.seq + u64::from(step.count) != end || step.previous >= place {
            return Err(damaged(format!("its journal at position {place} does not go on to record {end}")));
        }
        newest_first.extend(step.rows.into_iter().rev());
        (end, place) = (step.seq, step.previous);
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

/// Damage of the run that is read.
pub(super) fn damaged(place: String) -> ReadError {
    ReadError::Damaged(Damage { run: None, place })
}

/// What stands at a place: a row, or a segment of several.
struct Step {
    run: i64,
    /// Of its first record.
    seq: u64,
    count: u32,
    previous: i64,
    /// Nothing if all of it is beyond what is asked for.
    rows: Vec<Row>,
}

/// A row of the log with its checksum behind what that covers.
macro_rules! hot {
    ($which:literal) => {
        concat!("SELECT position, run, seq, count, previous, session, body, note, sum FROM log ", $which)
    };
}
pub(super) use hot;

/// How many columns of that the checksum covers.
const COVERED: usize = 8;

/// Whether a row of [`hot`] is what was written.
pub(super) fn is_sound(row: &SqlRow<'_>) -> rusqlite::Result<bool> {
    sum::is_sound(row, COVERED)
}

const HOT: &str = hot!("WHERE position = ?1");
const PACKED: &str = "SELECT position, first, run, seq, count, previous, session, body, sum FROM segments
    WHERE position = ?1";

fn step(connection: &Connection, place: i64, from: u64, upto: u64) -> Result<Option<Step>, ReadError> {
    let wanted = |seq: u64, count: u32| seq < upto && seq + u64::from(count) > from;
    let mut statement = connection.prepare_cached(HOT)?;
    let mut found = statement.query([place])?;
    if let Some(row) = found.next()? {
        let (run, seq, count, previous) = (row.get(1)?, unsigned(row.get(2)?), row.get(3)?, row.get(4)?);
        let mut rows = Vec::new();
        if wanted(seq, count) {
            rows.push(hot_row(row)?);
        }
        return Ok(Some(Step { run, seq, count, previous, rows }));
    }
    let mut statement = connection.prepare_cached(PACKED)?;
    let mut found = statement.query([place])?;
    let Some(row) = found.next()? else { return Ok(None) };
    let (run, seq, count, previous) = (row.get(2)?, unsigned(row.get(3)?), row.get(4)?, row.get(5)?);
    let mut rows = Vec::new();
    if wanted(seq, count) {
        rows = packed_rows(row)?;
        rows.retain(|row| wanted(row.seq, row.count));
    }
    Ok(Some(Step { run, seq, count, previous, rows }))
}

/// The row of the log that [`hot`] selected, if it is what was written.
pub(super) fn hot_row(row: &SqlRow<'_>) -> Result<Row, ReadError> {
    let found = Row { position: row.get(0)?, seq: unsigned(row.get(2)?), count: row.get(3)?, body: String::new() };
    let damaged = || damaged(format!("its journal at position {}", found.position));
    if !is_sound(row)? {
        return Err(damaged());
    }
    let body: String = row.get(6)?;
    if body.split('\n').count() as u64 != u64::from(found.count) {
        return Err(damaged());
    }
    Ok(Row { body, ..found })
}

/// The rows of a segment, which begins with the columns that its checksum covers, if it is what was written.
pub(super) fn packed_rows(row: &SqlRow<'_>) -> Result<Vec<Row>, ReadError> {
    let position: i64 = row.get(0)?;
    let damaged = || damaged(format!("its packed journal at position {position}"));
    if !sum::is_sound(row, COVERED)? {
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

/// SQLite's integers have a sign; nothing in the file is numbered beyond them.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
