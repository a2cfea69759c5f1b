//! Segments: many rows of one run, compressed into one.

use super::LogRow;
use crate::sqlite::read::ReadError;

/// Consecutive rows of one run, stored together.
#[derive(Debug)]
pub(in crate::sqlite) struct Segment {
    pub(in crate::sqlite) run: i64,
    pub(in crate::sqlite) session: Option<i64>,
    /// The position of the row before the first of them.
    pub(in crate::sqlite) previous: i64,
    /// Number of the first record in its journal.
    pub(in crate::sqlite) seq: u64,
    pub(in crate::sqlite) count: u32,
    /// The position of the first record.
    pub(in crate::sqlite) first: i64,
    /// The positions of the rows. The segment gets the last of these positions.
    pub(in crate::sqlite) positions: Vec<i64>,
    pub(in crate::sqlite) body: Vec<u8>,
}

/// The header before every row: its position, the number of its records, the length of its text.
const HEADER: usize = 8 + 4 + 4;

impl Segment {
    /// Returns `None` if there are no rows.
    pub(in crate::sqlite) fn new(run: i64, session: Option<i64>, previous: i64, rows: &[LogRow]) -> Option<Self> {
        let oldest = rows.first()?;
        let mut text = Vec::with_capacity(rows.iter().map(|row| HEADER + row.body.len()).sum());
        for row in rows {
            text.extend_from_slice(&row.position.to_le_bytes());
            text.extend_from_slice(&row.count.to_le_bytes());
            // A row is far smaller than that, because large values are stored separately.
            text.extend_from_slice(&u32::try_from(row.body.len()).ok()?.to_le_bytes());
            text.extend_from_slice(row.body.as_bytes());
        }
        Some(Self {
            run,
            session,
            previous,
            seq: oldest.seq,
            count: rows.iter().map(|row| row.count).sum(),
            first: oldest.first(),
            positions: rows.iter().map(|row| row.position).collect(),
            body: lz4_flex::compress_prepend_size(&text),
        })
    }

    pub(in crate::sqlite) fn position(&self) -> i64 {
        self.positions.last().copied().unwrap_or(0)
    }
}

/// Decompresses the rows of a segment. Its first record has the number `seq` in its journal.
pub(in crate::sqlite) fn unpack(seq: u64, body: &[u8]) -> Result<Vec<LogRow>, ReadError> {
    // A damaged length must not exhaust the memory: no content is compressed further than this.
    let (size, _) = body.split_first_chunk().ok_or_else(|| ReadError::Segment("it is truncated".to_owned()))?;
    if u64::from(u32::from_le_bytes(*size)) > 255 * body.len() as u64 {
        return Err(ReadError::Segment("its length is damaged".to_owned()));
    }
    let text = lz4_flex::decompress_size_prepended(body).map_err(|error| ReadError::Segment(error.to_string()))?;
    let (mut rest, mut seq, mut rows) = (&text[..], seq, Vec::new());
    while !rest.is_empty() {
        let (row, left) = read_row(rest, seq).ok_or_else(|| ReadError::Segment("it is truncated".to_owned()))?;
        seq = seq.saturating_add(row.count.into());
        rest = left;
        rows.push(row);
    }
    Ok(rows)
}

fn read_row(bytes: &[u8], seq: u64) -> Option<(LogRow, &[u8])> {
    let (position, bytes) = bytes.split_first_chunk()?;
    let (count, bytes) = bytes.split_first_chunk()?;
    let (length, bytes) = bytes.split_first_chunk()?;
    let (body, rest) = bytes.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    let body = std::str::from_utf8(body).ok()?.to_owned();
    Some((LogRow { position: i64::from_le_bytes(*position), seq, count: u32::from_le_bytes(*count), body }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(position: i64, seq: u64, body: &str) -> LogRow {
        LogRow { position, seq, count: u32::try_from(body.split('\n').count()).unwrap(), body: body.to_owned() }
    }

    #[test]
    fn a_segment_unpacks_to_the_rows_it_was_made_of() {
        let rows = [row(12, 3, "{\"a\":1}\n{\"b\":2}"), row(20, 5, "{}"), row(31, 6, "[1]\n[2]\n\"ü\"")];
        let segment = Segment::new(7, None, 9, &rows).unwrap();
        assert_eq!((segment.seq, segment.count, segment.first, segment.position()), (3, 6, 11, 31));
        assert_eq!(segment.positions, [12, 20, 31]);
        assert_eq!(unpack(3, &segment.body).unwrap(), rows);
        assert!(Segment::new(7, None, 9, &[]).is_none());
    }

    #[test]
    fn a_damaged_segment_is_an_error() {
        let segment = Segment::new(7, None, 9, &[row(12, 3, "{}")]).unwrap();
        assert!(unpack(3, &segment.body[..segment.body.len() - 1]).is_err());
        assert!(unpack(3, b"").is_err());
        assert!(unpack(3, &lz4_flex::compress_prepend_size(b"too short")).is_err());
    }
}
