//! Packing: the rows of runs that have many become segments.
//!
//! Rows that are in the file never change, so they are read, put together and compressed on a thread of their own; the
//! writer only exchanges them, in one transaction with the mark that says how far it came. Runs with few rows keep them:
//! there is nothing to gain.

use rusqlite::{Connection, OptionalExtension, params};
use rustc_hash::FxHashMap;
use windlass_core::RunId;

use super::damage::Damage;
use super::log::{Row, Segment, hot, hot_row, signed};
use super::place::Place;
use super::read::ReadError;
use super::table::{Table, Trouble};

/// Rows of one run, in that part of the log, that are worth a segment.
const WORTH_IT: usize = 8;
/// A segment holds rows of about so many bytes: whoever reads one record of them unpacks all.
const SEGMENT_BYTES: usize = 128 << 10;

/// What the writer exchanges.
#[derive(Debug)]
pub(super) struct Packed {
    /// All rows up to here that are worth it are in the segments.
    pub(super) upto: i64,
    pub(super) segments: Vec<Segment>,
    /// Rows that are not what was written. They stay where they are.
    pub(super) damaged: Vec<Damage>,
}

/// Rows of one run that lie one after the other in its journal.
struct Pile {
    session: Option<i64>,
    previous: i64,
    rows: Vec<Row>,
    bytes: usize,
}

/// Reads and compresses the part of the log between two positions.
pub(super) fn prepare(place: &Place, packed: i64, upto: i64) -> Result<Packed, ReadError> {
    let connection = place.reader().map_err(ReadError::Fault)?;
    // Most runs are short. What they said is not even read.
    let mut rows_of = FxHashMap::<i64, usize>::default();
    let mut statement = connection.prepare("SELECT run FROM log WHERE position > ?1 AND position <= ?2")?;
    let mut rows = statement.query([packed, upto])?;
    while let Some(row) = rows.next()? {
        *rows_of.entry(row.get(0)?).or_default() += 1;
    }
    rows_of.retain(|_, rows| *rows >= WORTH_IT);
    let (mut segments, damaged) =
        if rows_of.is_empty() { Default::default() } else { compress(&connection, &rows_of, packed, upto)? };
    // In the order the table is in.
    segments.sort_by_key(Segment::place);
    Ok(Packed { upto, segments, damaged })
}

/// The rows of these runs, so many each, as segments.
fn compress(
    connection: &Connection,
    rows_of: &FxHashMap<i64, usize>,
    packed: i64,
    upto: i64,
) -> Result<(Vec<Segment>, Vec<Damage>), ReadError> {
    let mut statement = connection.prepare(hot!("WHERE position > ?1 AND position <= ?2 ORDER BY position"))?;
    let mut rows = statement.query([packed, upto])?;
    let (mut piles, mut segments) = (FxHashMap::<i64, Pile>::default(), Vec::new());
    let mut damaged = Vec::new();
    while let Some(row) = rows.next()? {
        let run = row.get(1)?;
        if !rows_of.contains_key(&run) {
            continue;
        }
        let (previous, session) = (row.get(4)?, row.get(5)?);
        // What is put together is what was written, and consecutive: anything else ends the pile, and stays where it is.
        let found = hot_row(row);
        let follows = |pile: &Pile| found.as_ref().is_ok_and(|found| pile.is_followed_by(previous, found));
        if piles.get(&run).is_some_and(|pile| !follows(pile)) {
            segments.extend(piles.remove(&run).and_then(|pile| pack(run, &pile)));
        }
        let found = match found {
            Ok(found) => found,
            Err(ReadError::Damaged(damage)) => {
                let of = run_of(connection, run)?;
                damaged.push(Damage { run: of, ..damage });
                continue;
            }
            Err(error) => return Err(error),
        };
        let pile = piles.entry(run).or_insert_with(|| Pile { session, previous, rows: Vec::new(), bytes: 0 });
        pile.bytes += found.body.len();
        pile.rows.push(found);
        if pile.bytes >= SEGMENT_BYTES
            && let Some(pile) = piles.remove(&run)
        {
            segments.extend(pack(run, &pile));
        }
    }
    segments.extend(piles.iter().filter_map(|(run, pile)| pack(*run, pile)));
    Ok((segments, damaged))
}

impl Pile {
    fn is_followed_by(&self, previous: i64, row: &Row) -> bool {
        self.rows.last().is_some_and(|last| last.position == previous && last.seq + u64::from(last.count) == row.seq)
    }
}

/// The run that a number stands for.
fn run_of(connection: &Connection, id: i64) -> rusqlite::Result<Option<RunId>> {
    let mut statement = connection.prepare_cached("SELECT run FROM runs WHERE id = ?1")?;
    statement.query_row([id], |row| row.get(0).map(RunId::from_bytes)).optional()
}

fn pack(run: i64, pile: &Pile) -> Option<Segment> {
    (pile.rows.len() >= WORTH_IT).then(|| Segment::new(run, pile.session, pile.previous, &pile.rows))?
}

impl Table<'_> {
    /// Puts segments in the place of their rows, and sees to it that nobody needs to look through this part of the log.
    pub(super) fn pack(&mut self, packed: &Packed) -> Result<(), Trouble> {
        for segment in &packed.segments {
            self.exchange(segment)?;
        }
        // A journal that is being removed ends where its removal has come to; and one that the same group added to, further on.
        let sql = "UPDATE runs SET tail = ?2, length = ?3 WHERE id = ?1 AND summary = 0 AND tail < ?2";
        let mut save = self.connection.prepare_cached(sql)?;
        for (run, tail) in self.tails.upto(packed.upto) {
            save.execute(params![run, tail.position, signed(tail.end)])?;
        }
        self.connection.prepare_cached("UPDATE file SET packed = ?1")?.execute([packed.upto])?;
        self.end.packed = packed.upto;
        Ok(())
    }

    fn exchange(&self, segment: &Segment) -> rusqlite::Result<()> {
        let mut last = self.connection.prepare_cached("SELECT 1 FROM log WHERE position = ?1")?;
        if !last.exists([segment.place()])? {
            // The journal is being removed, from its end on. What is left of it is found row by row.
            return Ok(());
        }
        let mut delete = self.connection.prepare_cached("DELETE FROM log WHERE position = ?1")?;
        for place in &segment.places {
            delete.execute([place])?;
        }
        let sql = "INSERT INTO segments (position, first, run, seq, count, previous, session, body, sum)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, windlass_sum(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8))";
        self.connection.prepare_cached(sql)?.execute(params![
            segment.place(),
            segment.first,
            segment.run,
            signed(segment.seq),
            segment.count,
            segment.previous,
            segment.session,
            segment.body,
        ])?;
        Ok(())
    }
}
