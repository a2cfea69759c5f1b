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

use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};
use serde::Deserialize;
use windlass_core::RunId;
use windlass_core::time::Timestamp;

use super::blobs;
use super::job::Records;
use super::read::ReadError;

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
        self.position - i64::from(self.count) + 1
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
        note: Option<&str>,
    ) -> rusqlite::Result<Tail> {
        let tail = self.after(journal.tail, records);
        if records.is_empty() {
            return Ok(tail);
        }
        let sql = "INSERT INTO log (position, run, seq, count, previous, session, body, note)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        connection.prepare_cached(sql)?.execute(params![
            tail.position,
            journal.run,
            signed(journal.tail.end),
            records.count,
            journal.tail.position,
            journal.session,
            records.text.body,
            note,
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

/// The rows of a run that ends at `tail`, oldest first, from the one that holds the record `from` on; at least as many as
/// hold `limit` records, if there are so many.
///
/// Nothing if `tail` is not in this view of the file: it was packed together with later rows meanwhile.
pub(super) fn rows(connection: &Connection, tail: i64, from: u64, limit: usize) -> Result<Option<Vec<Row>>, ReadError> {
    let upto = from.saturating_add(limit as u64);
    let (mut place, mut newest_first) = (tail, Vec::new());
    while place != 0 {
        let Some(step) = step(connection, place, from, upto)? else {
            return if place == tail { Ok(None) } else { Err(ReadError::Broken(place)) };
        };
        newest_first.extend(step.rows.into_iter().rev());
        if step.seq <= from {
            break;
        }
        place = step.previous;
    }
    newest_first.reverse();
    Ok(Some(newest_first))
}

/// What stands at a place: a row, or a segment of several.
struct Step {
    /// Of its first record.
    seq: u64,
    previous: i64,
    /// Nothing if all of it is beyond what is asked for.
    rows: Vec<Row>,
}

const HOT: &str = "SELECT seq, count, previous, body FROM log WHERE position = ?1";
const PACKED: &str = "SELECT seq, count, previous, body FROM segments WHERE position = ?1";

fn step(connection: &Connection, place: i64, from: u64, upto: u64) -> Result<Option<Step>, ReadError> {
    let wanted = |seq: u64, count: u32| seq < upto && seq + u64::from(count) > from;
    let head = |row: &SqlRow<'_>| -> rusqlite::Result<(u64, u32, i64)> {
        Ok((unsigned(row.get(0)?), row.get(1)?, row.get(2)?))
    };
    let hot = connection.prepare_cached(HOT)?.query_row([place], |row| {
        let (seq, count, previous) = head(row)?;
        let mut rows = Vec::new();
        if wanted(seq, count) {
            rows.push(Row { position: place, seq, count, body: row.get(3)? });
        }
        Ok(Step { seq, previous, rows })
    });
    if let Some(step) = hot.optional()? {
        return Ok(Some(step));
    }
    let mut statement = connection.prepare_cached(PACKED)?;
    let mut found = statement.query([place])?;
    let Some(row) = found.next()? else { return Ok(None) };
    let (seq, count, previous) = head(row)?;
    let mut rows = Vec::new();
    if wanted(seq, count) {
        rows = unpack(seq, row.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?)?;
        rows.retain(|row| wanted(row.seq, row.count));
    }
    Ok(Some(Step { seq, previous, rows }))
}

/// SQLite's integers have a sign; nothing in the file is numbered beyond them.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
