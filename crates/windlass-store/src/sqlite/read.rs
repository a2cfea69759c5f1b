//! The read side: short statements on connections of their own.
//!
//! They block the thread that polls, for the fraction of a millisecond a read of some hundred records takes: less than
//! moving it to another thread would cost. A reader never writes and never waits for the writer, nor the writer for a
//! reader. A reader that starts after a commit was answered sees it.

mod failure;

use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};
use serde::de::DeserializeOwned;
use windlass_core::run::record::Record;
use windlass_core::run::state::{Hold, RunInfo, RunState};
use windlass_core::store::{Due, Entry, KeyPlace, Mail, Mailboxes, StoreError};
use windlass_core::time::Timestamp;
use windlass_core::{Path, RunId};

use super::blobs;
use super::damage::{Damage, Noticed};
use super::decide::NEVER;
use super::keys::Keys;
use super::log::{self, Row, Tail, Tails, signed, unsigned};
use super::outline;
use super::place::Place;
use super::places;
use super::seal::{self, Closed};
use super::sum::{self, run_is_sound, run_sum};
use super::table;

pub(super) use failure::{ROW, ReadError, is_damage};

/// Selects runs as lists show them.
macro_rules! infos {
    ($($which:literal)+) => {
        concat!(
            "SELECT run, tool, created, state, doubts, parks, epoch, generation, ",
            "(SELECT name FROM sessions WHERE sessions.id = runs.session), parent_run, parent_path, ",
            "ended, ",
            run_is_sound!(),
            " FROM runs ",
            $($which),+
        )
    };
}
pub(super) use infos;

/// Idle connections that are kept. More readers than this at one moment open one and close it again.
const IDLE: usize = 8;

pub(super) struct Readers {
    place: Place,
    keys: Keys,
    pub(super) tails: Arc<Tails>,
    idle: Mutex<Vec<Connection>>,
    noticed: Arc<Noticed>,
}

/// Everything a new owner gets to read.
pub(super) struct Contents {
    pub(super) generation: u32,
    pub(super) records: Vec<Record>,
    pub(super) mail: Vec<Mail>,
    pub(super) session: Option<Arc<str>>,
    pub(super) parent: Option<Box<(RunId, Path)>>,
    /// Where the journal ends.
    pub(super) end: u64,
    /// Why not all secrets of the records could be opened.
    pub(super) sealed: Option<String>,
    /// What of the journal or the mailbox is damaged; there are no records and no mail then.
    pub(super) damaged: Option<Damage>,
}

/// Records as far as they can be opened.
struct Opened {
    records: Vec<Record>,
    /// The first reason why a secret could not be.
    closed: Option<Closed>,
}

impl Readers {
    pub(super) fn new(place: Place, tails: Arc<Tails>, noticed: Arc<Noticed>) -> Self {
        Self { keys: Keys::of(&place.path), place, tails, idle: Mutex::default(), noticed }
    }

    /// What secrets are sealed with.
    pub(super) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(super) fn close(&self) {
        self.idle.lock().clear();
    }

    pub(super) fn info(&self, run: RunId) -> Result<Option<RunInfo>, StoreError> {
        self.glance(Some(run), |connection| {
            let mut statement = connection.prepare_cached(infos!("WHERE run = ?1"))?;
            statement.query_row([run.as_bytes()], |row| Ok(self.info_of(row))).optional()?.transpose()
        })
    }

    /// From the columns of `infos!`. A run whose row is damaged is shown as held for that.
    pub(super) fn info_of(&self, row: &SqlRow<'_>) -> Result<RunInfo, ReadError> {
        let run = RunId::from_bytes(row.get(0)?);
        let damage = match row.get::<_, bool>(12)? {
            true => match info(row) {
                Ok(info) => return Ok(info),
                Err(error) => error.damage(Some(run)).ok_or(error)?,
            },
            false => Damage { run: Some(run), place: ROW.to_owned() },
        };
        self.noticed.notice(&damage);
        Ok(damaged_info(row, run, damage.place))
    }

    pub(super) fn journal(&self, run: RunId, from: u64) -> Result<Vec<Record>, StoreError> {
        self.page(run, from, usize::MAX)
    }

    pub(super) fn page(&self, run: RunId, from: u64, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.glance(Some(run), |connection| {
            let id = find(connection, run)?;
            let read = |view: &Connection, tail| records(view, (&self.keys, run, id), tail, from, limit);
            let found = self.at_tail(connection, run, id, read)?;
            match found.closed {
                None => Ok(found.records),
                Some(closed) => {
                    let why = closed.sentence(&self.keys);
                    Err(ReadError::Refused(StoreError::Sealed { run, why }))
                }
            }
        })
    }

    /// Reads a journal from its end in one view of the file. Where it ends is known before there is a view: if those rows
    /// were packed together with later ones in between, it ends elsewhere now. The view may also have rows that were written
    /// a moment ago and are not known yet; they belong to the journal, for the run's row and mailbox are seen with them.
    fn at_tail<T>(
        &self,
        connection: &mut Connection,
        run: RunId,
        id: i64,
        read: impl Fn(&Connection, Tail) -> Result<Option<T>, ReadError>,
    ) -> Result<T, ReadError> {
        loop {
            let published = self.tails.last();
            let known = self.tails.get(id);
            let view = connection.transaction()?;
            let newest = view
                .prepare_cached(NEWEST)?
                .query_row([published, id], |row| Ok(Tail { position: row.get(0)?, end: unsigned(row.get(1)?) }))
                .optional()?;
            let saved = view
                .prepare_cached(SAVED)?
                .query_row([id], |row| {
                    let tail = Tail { position: row.get(0)?, end: unsigned(row.get(1)?) };
                    Ok((tail, row.get::<_, i64>(2)?, row.get::<_, bool>(3)?))
                })
                .optional()?;
            let saved = match saved {
                None => return Err(ReadError::Refused(StoreError::NoSuchRun(run))),
                Some((.., false)) => return Err(log::damaged(ROW.to_owned())),
                // A part of a journal must not look like all of it.
                Some((_, 1.., _)) => return Err(ReadError::Refused(StoreError::JournalGone(run))),
                Some((saved, ..)) => saved,
            };
            if let (Some(tail), None) = (known, newest)
                && tail.end < saved.end
                && self.tails.get(id) == known
            {
                return Err(log::damaged(format!("its journal after record {}", tail.end)));
            }
            let tail = newest.or(known).unwrap_or(saved);
            if let Some(value) = read(&view, tail)? {
                return Ok(value);
            }
            drop(view);
            if self.tails.get(id) == known {
                return Err(ReadError::Broken(tail.position));
            }
        }
    }

    pub(super) fn mail(&self, run: RunId, after: u64) -> Result<Vec<Mail>, StoreError> {
        self.glance(Some(run), |connection| {
            let id = find(connection, run)?;
            let view = connection.transaction()?;
            check_mailbox(&view, id)?;
            mail(&view, id, signed(after))
        })
    }

    pub(super) fn mail_of_many(&self, runs: &[(RunId, u64)]) -> Result<Mailboxes, StoreError> {
        let mut all = Vec::new();
        for (run, after) in runs {
            match self.mail(*run, *after) {
                Ok(mail) if mail.is_empty() => {}
                Ok(mail) => all.push((*run, mail)),
                // Told by the run itself when it is taken up; the others have theirs.
                Err(StoreError::Damaged { .. } | StoreError::Sealed { .. } | StoreError::NoSuchRun(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    pub(super) fn key_places(&self) -> Result<Vec<(RunId, KeyPlace)>, StoreError> {
        self.glance(None, |connection| places::all(connection, &self.noticed))
    }

    pub(super) fn contents(&self, run: RunId) -> Result<Contents, StoreError> {
        let contents = self.glance(Some(run), |connection| {
            let id = find(connection, run)?;
            self.at_tail(connection, run, id, |view, tail| contents(view, (&self.keys, run, id), tail))
        })?;
        contents.damaged.iter().for_each(|damage| self.noticed.notice(damage));
        Ok(contents)
    }

    pub(super) fn keyed(&self, key: &str) -> Result<Option<RunId>, StoreError> {
        self.glance(None, |connection| {
            let mut statement = connection.prepare_cached(table::KEYED)?;
            let read = |row: &SqlRow<'_>| Ok((RunId::from_bytes(row.get(0)?), row.get(1)?));
            match statement.query_row([key], read).optional()? {
                Some((run, false)) => Err(log::damaged(ROW.to_owned()).of(Some(run))),
                found => Ok(found.map(|(run, _)| run)),
            }
        })
    }

    pub(super) fn told(&self, run: RunId, dedupe: &str) -> Result<bool, StoreError> {
        self.glance(Some(run), |connection| {
            let id = find(connection, run)?;
            Ok(connection.prepare_cached(table::KNOWN)?.exists(params![id, dedupe])?)
        })
    }

    /// `opening`: only this one's workers have leases.
    pub(super) fn due(&self, now: Timestamp, limit: usize, opening: i64) -> Result<Due, StoreError> {
        // Whatever the time is, it is not "never".
        let now = now.as_micros().min(NEVER - 1);
        self.glance(None, |connection| {
            // One view of the file, so that no run is on its way from one answer to another.
            let transaction = connection.transaction()?;
            let ids = |sql: &str, limit: i64, opening: Option<i64>| -> rusqlite::Result<Vec<RunId>> {
                let mut statement = transaction.prepare_cached(sql)?;
                let run = |row: &SqlRow<'_>| row.get(0).map(RunId::from_bytes);
                match opening {
                    Some(opening) => statement.query_map([now, limit, opening], run)?.collect(),
                    None => statement.query_map([now, limit], run)?.collect(),
                }
            };
            let mut runs = ids(WOKEN, size(limit), None)?;
            runs.extend(ids(LEFT, size(limit - runs.len()), Some(opening))?);
            let next: Option<i64> = transaction.prepare_cached(NEXT)?.query_row([now], |row| row.get(0)).optional()?;
            Ok(Due { runs, next: next.filter(|next| *next != NEVER).map(Timestamp::from_micros) })
        })
    }

    pub(super) fn feed(&self, session: &str, after: u64, limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.glance(None, |connection| {
            // A group whose sync failed may be seen in the file and be gone after a power cut, with its positions.
            let upto = self.tails.last();
            // One view of the file, so that nothing is on its way into a segment.
            let view = connection.transaction()?;
            log::feed(&view, &self.keys, session, (after, upto), limit)
        })
    }

    /// Reads on an idle connection, or on a new one. A connection that failed is not used again. Damage is noticed, and told
    /// of the run that is read, if it is one.
    pub(super) fn glance<T>(
        &self,
        about: Option<RunId>,
        read: impl FnOnce(&mut Connection) -> Result<T, ReadError>,
    ) -> Result<T, StoreError> {
        let failed = |error: ReadError| match error.damage(about) {
            Some(damage) => {
                self.noticed.notice(&damage);
                StoreError::Damaged { run: damage.run, place: damage.place }
            }
            None => StoreError::Unavailable(format!("reading {}: {error}", self.place.path.display())),
        };
        let idle = self.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.place.reader().map_err(|fault| failed(ReadError::Fault(fault)))?,
        };
        let result = match read(&mut connection) {
            Ok(value) => Ok(value),
            Err(ReadError::Refused(error)) => Err(error),
            Err(error) => return Err(failed(error)),
        };
        let mut idle = self.idle.lock();
        if idle.len() < IDLE {
            idle.push(connection);
        }
        result
    }
}

/// The number that stands for the run in the file.
fn find(connection: &Connection, run: RunId) -> Result<i64, ReadError> {
    let read = |row: &SqlRow<'_>| Ok((row.get(0)?, row.get(1)?));
    match connection.prepare_cached(NUMBER)?.query_row([run.as_bytes()], read).optional()? {
        None => Err(ReadError::Refused(StoreError::NoSuchRun(run))),
        Some((_, false)) => Err(log::damaged(ROW.to_owned())),
        Some((id, _)) => Ok(id),
    }
}

/// Where the journal of a run ends among the rows behind a position: those of a group or two.
const NEWEST: &str = "SELECT position, seq + count FROM log WHERE position > ?1 AND run = ?2
    ORDER BY position DESC LIMIT 1";

/// Queued and suspended runs whose time has come.
const WOKEN: &str = "SELECT run FROM runs WHERE wake <= ?1 ORDER BY wake, run LIMIT ?2";

/// When the next one's time comes.
const NEXT: &str = "SELECT wake FROM runs WHERE wake > ?1 ORDER BY wake LIMIT 1";

/// Running runs whose owner's lease is over: `CROSS JOIN` says that the few workers come first, and hardly ever is there one.
const LEFT: &str = "SELECT runs.run FROM workers CROSS JOIN runs INDEXED BY runs_open
    WHERE workers.until <= ?1 AND runs.worker = workers.id AND runs.phase = 1 AND runs.phase < 4
        AND runs.opening = ?3 LIMIT ?2";

/// What stands for a run in the other tables, and whether its row is what was written.
const NUMBER: &str = concat!("SELECT id, ", run_is_sound!(), " FROM runs WHERE run = ?1");

/// Where a journal ends by the row of its run, how much of it is left, and whether the row is what was written.
const SAVED: &str = concat!("SELECT tail, length, summary, ", run_is_sound!(), " FROM runs WHERE id = ?1");

/// SQLite would rather walk all mail than look into the index of what is left.
const MAIL: &str = "SELECT run, position, dedupe, body, sum FROM mail INDEXED BY mail_unread
    WHERE run = ?1 AND position > ?2 AND body IS NOT NULL ORDER BY position";

/// Nothing if the journal does not end there in this view of the file.
fn records(
    view: &Connection,
    (keys, run, id): (&Keys, RunId, i64),
    tail: Tail,
    from: u64,
    limit: usize,
) -> Result<Option<Opened>, ReadError> {
    let Some(rows) = log::rows(view, id, tail, from, limit)? else { return Ok(None) };
    let lines = rows.iter().flat_map(Row::lines).skip_while(|(seq, _)| *seq < from).take(limit);
    let mut found = Opened { records: Vec::new(), closed: None };
    for (seq, line) in lines {
        let unreadable = |error: ReadError| match error.damage(None) {
            Some(damage) => log::damaged(format!("record {seq} of its journal: {}", damage.place)),
            None => error,
        };
        let mut record = decode_line(view, line).map_err(unreadable)?;
        if let Err(closed) = seal::open(keys, run, &mut record) {
            found.closed.get_or_insert(closed);
        }
        found.records.push(record);
    }
    Ok(Some(found))
}

fn contents(
    view: &Connection,
    (keys, run, id): (&Keys, RunId, i64),
    tail: Tail,
) -> Result<Option<Contents>, ReadError> {
    let sql = "SELECT generation, base, (SELECT name FROM sessions WHERE sessions.id = runs.session),
                      parent_run, parent_path
               FROM runs WHERE id = ?1";
    let mut statement = view.prepare_cached(sql)?;
    let mut rows = statement.query([id])?;
    let row = rows.next()?.ok_or(ReadError::Broken(tail.position))?;
    let base = row.get::<_, i64>(1)?.unsigned_abs();
    let read = || -> Result<Option<(Opened, Vec<Mail>)>, ReadError> {
        let Some(found) = records(view, (keys, run, id), tail, base, usize::MAX)? else { return Ok(None) };
        check_mailbox(view, id)?;
        Ok(Some((found, mail(view, id, 0)?)))
    };
    let (found, mail, damaged) = match read() {
        Ok(None) => return Ok(None),
        Ok(Some((found, mail))) => (found, mail, None),
        Err(error) => {
            let damage = error.damage(Some(run)).ok_or(error)?;
            (Opened { records: Vec::new(), closed: None }, Vec::new(), Some(damage))
        }
    };
    Ok(Some(Contents {
        generation: row.get(0)?,
        records: found.records,
        mail,
        session: row.get(2)?,
        parent: parent(row, 3)?,
        end: tail.end,
        sealed: found.closed.map(|closed| closed.sentence(keys)),
        damaged,
    }))
}

/// No message is missing: their rows stay when they are consumed, and the index of what is left has all that is left.
fn check_mailbox(view: &Connection, id: i64) -> Result<(), ReadError> {
    let sql = "SELECT count(*), max(coalesce(max(position), 0), coalesce((SELECT mail FROM runs WHERE id = ?1), 0)),
                      coalesce((SELECT summary FROM runs WHERE id = ?1), 0), count(body),
                      (SELECT count(*) FROM mail INDEXED BY mail_unread WHERE run = ?1 AND body IS NOT NULL)
               FROM mail NOT INDEXED WHERE run = ?1";
    let (count, last, summary, unread, indexed): (i64, i64, i64, i64, i64) = view
        .prepare_cached(sql)?
        .query_row([id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)))?;
    if unread != indexed {
        return Err(log::damaged(format!("the index of its mailbox has {indexed} of {unread} messages")));
    }
    // They go with the journal.
    if count == last || summary != 0 {
        return Ok(());
    }
    Err(log::damaged(format!("its mailbox has {count} of {last} messages")))
}

fn mail(connection: &Connection, id: i64, after: i64) -> Result<Vec<Mail>, ReadError> {
    let mut statement = connection.prepare_cached(MAIL)?;
    let mut rows = statement.query([id, after])?;
    let mut mail = Vec::new();
    while let Some(row) = rows.next()? {
        let position: i64 = row.get(1)?;
        let damaged = || log::damaged(format!("its message {position}"));
        if !sum::is_sound(row, 4)? {
            return Err(damaged());
        }
        let message = decode_line(connection, text(row, 3)?);
        let message = message.map_err(|error| if error.damage(None).is_some() { damaged() } else { error })?;
        mail.push(Mail { position: position.unsigned_abs(), message });
    }
    Ok(mail)
}

/// A run of whose row nothing can be relied on.
fn damaged_info(row: &SqlRow<'_>, run: RunId, place: String) -> RunInfo {
    RunInfo {
        run,
        tool: text(row, 1).unwrap_or_default().into(),
        created: Timestamp::from_micros(row.get(2).unwrap_or(0)),
        state: RunState::Held { hold: Hold::Damaged { run, place } },
        doubts: Vec::new(),
        parks: Vec::new(),
        epoch: row.get::<_, i64>(6).unwrap_or(0).unsigned_abs(),
        generation: row.get(7).unwrap_or(0),
        session: row.get(8).unwrap_or(None),
        parent: None,
        ended: None,
    }
}

/// From the columns of `infos!`, if they are what was written.
fn info(row: &SqlRow<'_>) -> Result<RunInfo, ReadError> {
    Ok(RunInfo {
        run: RunId::from_bytes(row.get(0)?),
        tool: text(row, 1)?.into(),
        created: Timestamp::from_micros(row.get(2)?),
        state: decode(text(row, 3)?)?,
        doubts: list(row, 4)?,
        parks: list(row, 5)?,
        epoch: row.get::<_, i64>(6)?.unsigned_abs(),
        generation: row.get(7)?,
        session: row.get(8)?,
        parent: parent(row, 9)?,
        ended: row.get::<_, Option<i64>>(11)?.map(Timestamp::from_micros),
    })
}

/// From a column that is empty for an empty list.
fn list<T: DeserializeOwned>(row: &SqlRow<'_>, column: usize) -> Result<Vec<T>, ReadError> {
    match row.get_ref(column)?.as_str_or_null().map_err(rusqlite::Error::from)? {
        Some(text) => Ok(decode(text)?),
        None => Ok(Vec::new()),
    }
}

/// From the column of the run that spawned this one, and the next column, which says where.
fn parent(row: &SqlRow<'_>, column: usize) -> Result<Option<Box<(RunId, Path)>>, ReadError> {
    let Some(run) = row.get::<_, Option<[u8; 16]>>(column)? else { return Ok(None) };
    let path = text(row, column + 1)?.parse()?;
    Ok(Some(Box::new((RunId::from_bytes(run), path))))
}

pub(super) fn size(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

pub(super) fn text<'a>(row: &'a SqlRow<'_>, column: usize) -> rusqlite::Result<&'a str> {
    Ok(row.get_ref(column)?.as_str()?)
}

/// Decodes a record or a message, with what of it lies out of line.
pub(super) fn decode_line<T: DeserializeOwned>(view: &Connection, line: &str) -> Result<T, ReadError> {
    if !outline::is_outlined(line) {
        return Ok(decode(line)?);
    }
    let value = outline::inline(line, |name| {
        let missing = || ReadError::Payload(name.to_owned());
        let id = name.parse().map_err(|_| missing())?;
        blobs::read_payload(view, &id)?.ok_or_else(missing)
    })?;
    Ok(serde_json::from_value(value)?)
}

/// Decodes what the file holds. The parser's own depth limit is lifted: what is in the file was within the limits when
/// it was taken, and the record around a value makes it a few levels deeper than the parser allows.
pub(super) fn decode<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    let mut parser = serde_json::Deserializer::from_str(text);
    parser.disable_recursion_limit();
    let value = T::deserialize(&mut parser)?;
    parser.end()?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::{is_indexed, plan};
    use super::*;

    #[test]
    fn every_other_question_is_answered_by_an_index() {
        let expected = [
            (WOKEN, "SEARCH runs USING COVERING INDEX runs_due (wake<?)"),
            (NEXT, "SEARCH runs USING COVERING INDEX runs_due (wake>?)"),
            (
                LEFT,
                "SEARCH workers USING COVERING INDEX workers_by_lease (until<?); SEARCH runs USING INDEX runs_open (phase=?)",
            ),
            (log::HOT_FEED, "SEARCH log USING INDEX log_by_session (session=? AND rowid>? AND rowid<?)"),
            (log::PACKED_FEED, "SEARCH segments USING INDEX segments_by_session (session=?)"),
            (MAIL, "SEARCH mail USING INDEX mail_unread (run=? AND position>?)"),
        ];
        for (sql, start) in expected {
            let plan = plan(sql);
            assert!(plan.starts_with(start) && is_indexed(&plan), "{sql}: {plan}");
        }
    }
}
