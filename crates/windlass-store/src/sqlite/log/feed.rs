//! The feed of a session: the records of its runs in the order they were written, from rows and segments.

use rusqlite::{Connection, params};
use windlass_core::RunId;
use windlass_core::store::Entry;

use super::{LogRow, damaged, log_row, segment_rows, signed, unsigned};
use crate::sqlite::read::{ReadError, decode_line};
use crate::sqlite::seal;
use crate::sqlite::sealing_keys::SealingKeys;

/// A `LEFT JOIN`, because a damaged row may name a run that does not exist, and must not be left out.
pub(in crate::sqlite) const LOG_FEED: &str = "SELECT log.position, log.run, log.seq, log.count, log.previous,
        log.session, log.body, log.note, log.sum, runs.run
    FROM log LEFT JOIN runs ON runs.id = log.run
    WHERE log.session = (SELECT id FROM sessions WHERE name = ?1) AND log.position > ?2 AND log.position <= ?3
      AND coalesce(runs.summary, 0) = 0
    ORDER BY log.position LIMIT ?4";

/// Segments of concurrent runs overlap, so they are ordered by their first position.
pub(in crate::sqlite) const SEGMENT_FEED: &str = "SELECT segments.position, segments.first, segments.run,
        segments.seq, segments.count, segments.previous, segments.session, segments.body, segments.sum, runs.run
    FROM segments CROSS JOIN runs ON runs.id = segments.run
    WHERE segments.session = (SELECT id FROM sessions WHERE name = ?1) AND segments.position > ?2
      AND runs.summary = 0
    ORDER BY segments.first";

/// At most `limit` entries after one position and up to another.
pub(in crate::sqlite) fn feed(
    view: &Connection,
    keys: &SealingKeys,
    session: &str,
    (after, upto): (u64, i64),
    limit: usize,
) -> Result<Vec<Entry>, ReadError> {
    let mut page = FeedPage { view, keys, after: signed(after), limit, entries: Vec::new() };
    let mut statement = view.prepare_cached(LOG_FEED)?;
    let mut rows = statement.query(params![session, page.after, upto, i64::try_from(limit).unwrap_or(i64::MAX)])?;
    while let Some(row) = rows.next()? {
        let run = row.get::<_, Option<_>>(9)?.map(RunId::from_bytes);
        let found = log_row(row).map_err(|error| error.about_run(run))?;
        let run =
            run.ok_or_else(|| damaged(format!("the journal at position {} belongs to no run", found.position)))?;
        page.add(run, &found).map_err(|error| error.about_run(Some(run)))?;
    }
    page.cut();
    let mut statement = view.prepare_cached(SEGMENT_FEED)?;
    let mut segments = statement.query(params![session, page.after])?;
    while let Some(segment) = segments.next()? {
        if page.ends_before(segment.get(1)?) {
            break;
        }
        let run = RunId::from_bytes(segment.get(9)?);
        let of = |error: ReadError| error.about_run(Some(run));
        for row in segment_rows(segment).map_err(of)? {
            page.add(run, &row).map_err(of)?;
        }
        page.cut();
    }
    Ok(page.entries)
}

struct FeedPage<'a> {
    view: &'a Connection,
    keys: &'a SealingKeys,
    after: i64,
    limit: usize,
    entries: Vec<Entry>,
}

impl FeedPage<'_> {
    fn add(&mut self, run: RunId, row: &LogRow) -> Result<(), ReadError> {
        for (position, (seq, line)) in (row.first()..).zip(row.lines()) {
            if position > self.after {
                let mut record = decode_line(self.view, line)?;
                // Secrets that cannot be unsealed stay sealed here: one run without its key must not hide the other
                // runs of its session.
                if let Err(closed) = seal::open(self.keys, run, &mut record) {
                    tracing::debug!(%run, seq, "secrets stay sealed: {}", closed.sentence(self.keys));
                }
                self.entries.push(Entry { position: unsigned(position), run, seq, record });
            }
        }
        Ok(())
    }

    /// Sorts the entries and keeps the first `limit`.
    fn cut(&mut self) {
        self.entries.sort_by_key(|entry| entry.position);
        self.entries.truncate(self.limit);
    }

    /// Whether the page is full of entries before a position.
    fn ends_before(&self, first: i64) -> bool {
        self.entries.len() >= self.limit && self.entries.last().is_none_or(|entry| signed(entry.position) < first)
    }
}
