//! What the runs of one session recorded, in the order they did, wherever it lies now.

use rusqlite::{Connection, params};
use windlass_core::RunId;
use windlass_core::store::Entry;

use super::{Row, damaged, hot_row, packed_rows, signed, unsigned};
use crate::sqlite::keys::Keys;
use crate::sqlite::read::{ReadError, decode_line};
use crate::sqlite::seal;

/// A damaged row may name a run that is not there, and must not be left out for it.
pub(in crate::sqlite) const HOT_FEED: &str = "SELECT log.position, log.run, log.seq, log.count, log.previous,
        log.session, log.body, log.note, log.sum, runs.run
    FROM log LEFT JOIN runs ON runs.id = log.run
    WHERE log.session = (SELECT id FROM sessions WHERE name = ?1) AND log.position > ?2 AND log.position <= ?3
      AND coalesce(runs.summary, 0) = 0
    ORDER BY log.position LIMIT ?4";

/// Segments of runs that went on at the same time overlap, so they come by where they begin.
pub(in crate::sqlite) const PACKED_FEED: &str = "SELECT segments.position, segments.first, segments.run,
        segments.seq, segments.count, segments.previous, segments.session, segments.body, segments.sum, runs.run
    FROM segments CROSS JOIN runs ON runs.id = segments.run
    WHERE segments.session = (SELECT id FROM sessions WHERE name = ?1) AND segments.position > ?2
      AND runs.summary = 0
    ORDER BY segments.first";

/// At most `limit` entries after a position and up to another.
pub(in crate::sqlite) fn feed(
    view: &Connection,
    keys: &Keys,
    session: &str,
    (after, upto): (u64, i64),
    limit: usize,
) -> Result<Vec<Entry>, ReadError> {
    let mut page = Page { view, keys, after: signed(after), limit, entries: Vec::new() };
    let mut statement = view.prepare_cached(HOT_FEED)?;
    let mut rows = statement.query(params![session, page.after, upto, i64::try_from(limit).unwrap_or(i64::MAX)])?;
    while let Some(row) = rows.next()? {
        let run = row.get::<_, Option<_>>(9)?.map(RunId::from_bytes);
        let found = hot_row(row).map_err(|error| error.of(run))?;
        let run = run.ok_or_else(|| damaged(format!("the journal at position {} is of no run", found.position)))?;
        page.add(run, &found).map_err(|error| error.of(Some(run)))?;
    }
    page.cut();
    let mut statement = view.prepare_cached(PACKED_FEED)?;
    let mut segments = statement.query(params![session, page.after])?;
    while let Some(segment) = segments.next()? {
        if page.ends_before(segment.get(1)?) {
            break;
        }
        let run = RunId::from_bytes(segment.get(9)?);
        let of = |error: ReadError| error.of(Some(run));
        for row in packed_rows(segment).map_err(of)? {
            page.add(run, &row).map_err(of)?;
        }
        page.cut();
    }
    Ok(page.entries)
}

struct Page<'a> {
    view: &'a Connection,
    keys: &'a Keys,
    after: i64,
    limit: usize,
    entries: Vec<Entry>,
}

impl Page<'_> {
    fn add(&mut self, run: RunId, row: &Row) -> Result<(), ReadError> {
        for (position, (seq, line)) in (row.first()..).zip(row.lines()) {
            if position > self.after {
                let mut record = decode_line(self.view, line)?;
                // What cannot be opened stays sealed here: one run without its key must not hide the others of its session.
                if let Err(closed) = seal::open(self.keys, run, &mut record) {
                    tracing::debug!(%run, seq, "secrets stay sealed: {}", closed.sentence(self.keys));
                }
                self.entries.push(Entry { position: unsigned(position), run, seq, record });
            }
        }
        Ok(())
    }

    /// Keeps the first ones.
    fn cut(&mut self) {
        self.entries.sort_by_key(|entry| entry.position);
        self.entries.truncate(self.limit);
    }

    /// Whether it is full of what comes before a position.
    fn ends_before(&self, first: i64) -> bool {
        self.entries.len() >= self.limit && self.entries.last().is_none_or(|entry| signed(entry.position) < first)
    }
}
