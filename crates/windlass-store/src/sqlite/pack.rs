//! Packing: replaces the rows of runs with many rows by segments.
//!
//! Rows in the file never change, so they are read, combined and compressed on a separate thread. The writer only
//! replaces them, in one transaction with the mark of how far the log is packed. Runs with few rows keep them, because
//! packing would save nothing.

use rusqlite::{Connection, OptionalExtension, params};
use rustc_hash::FxHashMap;
use windlass_core::RunId;

use super::damage::Damage;
use super::db_file::DbFile;
use super::log::{LogRow, Segment, log_row, select_log, signed};
use super::read::ReadError;
use super::write_tx::{JobError, WriteTx};

/// Minimum number of rows of one run that are packed into a segment.
const MIN_SEGMENT_ROWS: usize = 8;
/// Approximate size of a segment before compression. Reading one record decompresses the whole segment.
const SEGMENT_BYTES: usize = 128 << 10;

/// What the writer replaces.
#[derive(Debug)]
pub(super) struct Packed {
    /// Rows up to this position were considered for packing.
    pub(super) upto: i64,
    pub(super) segments: Vec<Segment>,
    /// Damaged rows that were found. They stay in the log.
    pub(super) damaged: Vec<Damage>,
}

/// Consecutive rows of one run.
struct RowBatch {
    session: Option<i64>,
    previous: i64,
    rows: Vec<LogRow>,
    bytes: usize,
}

/// Reads and compresses the part of the log between two positions.
pub(super) fn prepare(db_file: &DbFile, packed: i64, upto: i64) -> Result<Packed, ReadError> {
    let connection = db_file.reader().map_err(ReadError::Fault)?;
    // Most runs are short. Their records are not read.
    let mut rows_of = FxHashMap::<i64, usize>::default();
    let mut statement = connection.prepare("SELECT run FROM log WHERE position > ?1 AND position <= ?2")?;
    let mut rows = statement.query([packed, upto])?;
    while let Some(row) = rows.next()? {
        *rows_of.entry(row.get(0)?).or_default() += 1;
    }
    rows_of.retain(|_, rows| *rows >= MIN_SEGMENT_ROWS);
    let (mut segments, damaged) =
        if rows_of.is_empty() { Default::default() } else { compress(&connection, &rows_of, packed, upto)? };
    // In the order of the table.
    segments.sort_by_key(Segment::position);
    Ok(Packed { upto, segments, damaged })
}

/// Packs the rows of these runs into segments.
fn compress(
    connection: &Connection,
    rows_of: &FxHashMap<i64, usize>,
    packed: i64,
    upto: i64,
) -> Result<(Vec<Segment>, Vec<Damage>), ReadError> {
    let mut statement = connection.prepare(select_log!("WHERE position > ?1 AND position <= ?2 ORDER BY position"))?;
    let mut rows = statement.query([packed, upto])?;
    let (mut batches, mut segments) = (FxHashMap::<i64, RowBatch>::default(), Vec::new());
    let mut damaged = Vec::new();
    while let Some(row) = rows.next()? {
        let run = row.get(1)?;
        if !rows_of.contains_key(&run) {
            continue;
        }
        let (previous, session) = (row.get(4)?, row.get(5)?);
        // A batch has only intact, consecutive rows. Any other row ends the batch and stays in the log.
        let found = log_row(row);
        let follows = |batch: &RowBatch| found.as_ref().is_ok_and(|found| batch.is_followed_by(previous, found));
        if batches.get(&run).is_some_and(|batch| !follows(batch)) {
            segments.extend(batches.remove(&run).and_then(|batch| pack(run, &batch)));
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
        let batch = batches.entry(run).or_insert_with(|| RowBatch { session, previous, rows: Vec::new(), bytes: 0 });
        batch.bytes += found.body.len();
        batch.rows.push(found);
        if batch.bytes >= SEGMENT_BYTES
            && let Some(batch) = batches.remove(&run)
        {
            segments.extend(pack(run, &batch));
        }
    }
    segments.extend(batches.iter().filter_map(|(run, batch)| pack(*run, batch)));
    Ok((segments, damaged))
}

impl RowBatch {
    fn is_followed_by(&self, previous: i64, row: &LogRow) -> bool {
        self.rows.last().is_some_and(|last| last.position == previous && last.seq + u64::from(last.count) == row.seq)
    }
}

/// The run with this number.
fn run_of(connection: &Connection, id: i64) -> rusqlite::Result<Option<RunId>> {
    let mut statement = connection.prepare_cached("SELECT run FROM runs WHERE id = ?1")?;
    statement.query_row([id], |row| row.get(0).map(RunId::from_bytes)).optional()
}

fn pack(run: i64, batch: &RowBatch) -> Option<Segment> {
    (batch.rows.len() >= MIN_SEGMENT_ROWS).then(|| Segment::new(run, batch.session, batch.previous, &batch.rows))?
}

impl WriteTx<'_> {
    /// Replaces rows by their segments, and stores the tails in `runs`, so that this part of the log need not be
    /// scanned at the next opening.
    pub(super) fn pack(&mut self, packed: &Packed) -> Result<(), JobError> {
        for segment in &packed.segments {
            self.replace_rows(segment)?;
        }
        // The stored tail of a journal that is being removed shows how far the removal is. A journal that the same
        // group appended to already has a later tail.
        let sql = "UPDATE runs SET tail = ?2, length = ?3 WHERE id = ?1 AND summary = 0 AND tail < ?2";
        let mut save = self.connection.prepare_cached(sql)?;
        for (run, tail) in self.tails.upto(packed.upto) {
            save.execute(params![run, tail.position, signed(tail.length)])?;
        }
        self.connection.prepare_cached("UPDATE file SET packed = ?1")?.execute([packed.upto])?;
        self.end.packed = packed.upto;
        Ok(())
    }

    fn replace_rows(&self, segment: &Segment) -> rusqlite::Result<()> {
        let mut last = self.connection.prepare_cached("SELECT 1 FROM log WHERE position = ?1")?;
        if !last.exists([segment.position()])? {
            // The journal is being removed from its end. The rest is removed row by row.
            return Ok(());
        }
        let mut delete = self.connection.prepare_cached("DELETE FROM log WHERE position = ?1")?;
        for position in &segment.positions {
            delete.execute([position])?;
        }
        let sql = "INSERT INTO segments (position, first, run, seq, count, previous, session, body, sum)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, windlass_sum(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8))";
        self.connection.prepare_cached(sql)?.execute(params![
            segment.position(),
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
