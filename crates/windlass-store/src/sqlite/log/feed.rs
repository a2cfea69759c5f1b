//! What the runs of one session recorded, in the order they did, wherever it lies now.

use rusqlite::{Connection, params};
use windlass_core::RunId;
use windlass_core::store::Entry;

use super::{Row, signed, unpack, unsigned};
use crate::sqlite::birth;
use crate::sqlite::keys::Keys;
use crate::sqlite::nursery::Nursery;
use crate::sqlite::read::{ReadError, decode_line, text};
use crate::sqlite::seal;

/// A run may have no row yet.
pub(in crate::sqlite) const HOT_FEED: &str = "SELECT log.position, log.seq, log.count, runs.run, log.body, log.run
    FROM log LEFT JOIN runs ON runs.id = log.run
    WHERE log.session = (SELECT id FROM sessions WHERE name = ?1) AND log.position > ?2 AND log.position <= ?3
      AND coalesce(runs.summary, 0) = 0
    ORDER BY log.position LIMIT ?4";

/// Segments of runs that went on at the same time overlap, so they come by where they begin.
pub(in crate::sqlite) const PACKED_FEED: &str = "SELECT segments.first, segments.seq, runs.run, segments.body
    FROM segments CROSS JOIN runs ON runs.id = segments.run
    WHERE segments.session = (SELECT id FROM sessions WHERE name = ?1) AND segments.position > ?2
      AND runs.summary = 0
    ORDER BY segments.first";

/// At most `limit` entries after a position and up to another.
pub(in crate::sqlite) fn feed(
    view: &Connection,
    (keys, nursery): (&Keys, &Nursery),
    session: &str,
    (after, upto): (u64, i64),
    limit: usize,
) -> Result<Vec<Entry>, ReadError> {
    let mut page = Page { view, keys, after: signed(after), limit, entries: Vec::new() };
    let mut statement = view.prepare_cached(HOT_FEED)?;
    let mut rows = statement.query(params![session, page.after, upto, i64::try_from(limit).unwrap_or(i64::MAX)])?;
    while let Some(row) = rows.next()? {
        let body = text(row, 4)?.to_owned();
        let found = Row { position: row.get(0)?, seq: unsigned(row.get(1)?), count: row.get(2)?, body };
        let run = match row.get::<_, Option<_>>(3)? {
            Some(run) => Some(RunId::from_bytes(run)),
            None => match nursery.numbered(row.get(5)?) {
                Some(run) => Some(run),
                // It has got its row since this view was taken.
                None => birth::run_at(view, found.position)?,
            },
        };
        if let Some(run) = run {
            page.add(run, &found)?;
        }
    }
    page.cut();
    let mut statement = view.prepare_cached(PACKED_FEED)?;
    let mut segments = statement.query(params![session, page.after])?;
    while let Some(segment) = segments.next()? {
        if page.ends_before(segment.get(0)?) {
            break;
        }
        let run = RunId::from_bytes(segment.get(2)?);
        let body = segment.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?;
        for row in unpack(unsigned(segment.get(1)?), body)? {
            page.add(run, &row)?;
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
