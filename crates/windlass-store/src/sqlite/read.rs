//! Reads: short statements on separate connections.
//!
//! A read blocks the polling thread for a fraction of a millisecond per few hundred records, which is less than moving
//! it to another thread would cost. Readers never write, and readers and the writer never wait for each other. A reader
//! that starts after a commit was answered sees that commit.

mod error;
mod info;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};
use serde::de::DeserializeOwned;
use windlass_core::run::record::Record;
use windlass_core::run::state::RunInfo;
use windlass_core::store::{Due, Entry, KeyPlace, Mail, Mailboxes, StoreError};
use windlass_core::time::Timestamp;
use windlass_core::{Path, RunId};

use super::blobs;
use super::checksum::{self, run_checksum, run_is_intact};
use super::damage::{Damage, KnownDamage};
use super::db_file::DbFile;
use super::decide::NEVER;
use super::key_places;
use super::large_values;
use super::log::{self, JournalTail, JournalTails, LogRow, signed, unsigned};
use super::seal::{self, UnsealError};
use super::sealing_keys::SealingKeys;
use super::write_tx;

pub(super) use error::{RUN_ROW, ReadError, is_damage};
use info::{damaged_info, info, parent};

/// Selects the columns of a [`RunInfo`].
macro_rules! select_infos {
    ($($which:literal)+) => {
        concat!(
            "SELECT run, tool, created, state, doubts, parks, epoch, generation, ",
            "(SELECT name FROM sessions WHERE sessions.id = runs.session), parent_run, parent_path, ",
            "ended, worker, deaths, key, principal, cause, ",
            run_is_intact!(),
            " FROM runs ",
            $($which),+
        )
    };
}
pub(super) use select_infos;

/// Idle connections that are kept. Further concurrent readers open a connection and close it again.
const MAX_IDLE: usize = 8;

pub(super) struct Readers {
    db_file: DbFile,
    keys: SealingKeys,
    pub(super) tails: Arc<JournalTails>,
    idle: Mutex<Vec<Connection>>,
    known_damage: Arc<KnownDamage>,
}

/// Everything that a new owner reads.
pub(super) struct RunContents {
    pub(super) generation: u32,
    pub(super) records: Vec<Record>,
    pub(super) mail: Vec<Mail>,
    /// The position of the latest message, consumed or not.
    pub(super) mailed: u64,
    pub(super) session: Option<Arc<str>>,
    pub(super) principal: Option<Arc<str>>,
    pub(super) cause: Option<Arc<str>>,
    pub(super) parent: Option<Box<(RunId, Path)>>,
    /// The number of records in the journal.
    pub(super) end: u64,
    /// Why some secrets of the records could not be unsealed.
    pub(super) sealed: Option<String>,
    /// The damage in the journal or the mailbox, if any. Records and mail are empty then.
    pub(super) damaged: Option<Damage>,
}

/// Records with their secrets unsealed where possible.
struct UnsealedRecords {
    records: Vec<Record>,
    /// The first error of unsealing.
    closed: Option<UnsealError>,
}

impl Readers {
    pub(super) fn new(db_file: DbFile, tails: Arc<JournalTails>, known_damage: Arc<KnownDamage>) -> Self {
        Self { keys: SealingKeys::of(&db_file.path), db_file, tails, idle: Mutex::default(), known_damage }
    }

    /// The keys that secrets are sealed with.
    pub(super) fn keys(&self) -> &SealingKeys {
        &self.keys
    }

    pub(super) fn close(&self) {
        self.idle.lock().clear();
    }

    pub(super) fn info(&self, run: RunId) -> Result<Option<RunInfo>, StoreError> {
        self.with_reader(Some(run), |connection| {
            let mut statement = connection.prepare_cached(select_infos!("WHERE run = ?1"))?;
            statement.query_row([run.as_bytes()], |row| Ok(self.info_of(row))).optional()?.transpose()
        })
    }

    /// Reads the columns of `select_infos!`. A run whose row is damaged is shown as held.
    pub(super) fn info_of(&self, row: &SqlRow<'_>) -> Result<RunInfo, ReadError> {
        let run = RunId::from_bytes(row.get(0)?);
        let damage = match row.get::<_, bool>(17)? {
            true => match info(row) {
                Ok(info) => return Ok(info),
                Err(error) => error.damage(Some(run)).ok_or(error)?,
            },
            false => Damage { run: Some(run), location: RUN_ROW.to_owned() },
        };
        self.known_damage.record(&damage);
        Ok(damaged_info(row, run, damage.location))
    }

    pub(super) fn journal(&self, run: RunId, from: u64) -> Result<Vec<Record>, StoreError> {
        self.page(run, from, usize::MAX)
    }

    pub(super) fn page(&self, run: RunId, from: u64, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.with_reader(Some(run), |connection| {
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

    /// Reads a journal from its end in one snapshot of the file. The tail is looked up before the snapshot is taken: if
    /// those rows were packed together with later ones in between, the journal ends elsewhere now. The snapshot may
    /// also contain rows that were written a moment ago and are not published yet. They belong to the journal, because
    /// the run's row and mailbox are read with them.
    fn at_tail<T>(
        &self,
        connection: &mut Connection,
        run: RunId,
        id: i64,
        read: impl Fn(&Connection, JournalTail) -> Result<Option<T>, ReadError>,
    ) -> Result<T, ReadError> {
        loop {
            let published = self.tails.last();
            let cached = self.tails.get(id);
            let view = connection.transaction()?;
            let newest = view
                .prepare_cached(NEWEST_TAIL)?
                .query_row([published, id], |row| {
                    Ok(JournalTail { position: row.get(0)?, length: unsigned(row.get(1)?) })
                })
                .optional()?;
            let saved = view
                .prepare_cached(STORED_TAIL)?
                .query_row([id], |row| {
                    let tail = JournalTail { position: row.get(0)?, length: unsigned(row.get(1)?) };
                    Ok((tail, row.get::<_, i64>(2)?, row.get::<_, bool>(3)?))
                })
                .optional()?;
            let saved = match saved {
                None => return Err(ReadError::Refused(StoreError::NoSuchRun(run))),
                Some((.., false)) => return Err(log::damaged(RUN_ROW.to_owned())),
                // A partly removed journal must not look complete.
                Some((_, 1.., _)) => return Err(ReadError::Refused(StoreError::JournalGone(run))),
                Some((saved, ..)) => saved,
            };
            if let (Some(tail), None) = (cached, newest)
                && tail.length < saved.length
                && self.tails.get(id) == cached
            {
                return Err(log::damaged(format!("its journal after record {}", tail.length)));
            }
            let tail = newest.or(cached).unwrap_or(saved);
            if let Some(value) = read(&view, tail)? {
                return Ok(value);
            }
            drop(view);
            if self.tails.get(id) == cached {
                return Err(ReadError::Broken(tail.position));
            }
        }
    }

    pub(super) fn mail(&self, run: RunId, after: u64) -> Result<Vec<Mail>, StoreError> {
        self.with_reader(Some(run), |connection| {
            let id = find(connection, run)?;
            let view = connection.transaction()?;
            check_mailbox(&view, id)?;
            let (mail, closed) = mail(&view, (&self.keys, run, id), signed(after))?;
            match closed {
                None => Ok(mail),
                Some(closed) => {
                    let why = closed.sentence(&self.keys);
                    Err(ReadError::Refused(StoreError::Sealed { run, why }))
                }
            }
        })
    }

    pub(super) fn mail_of_many(&self, runs: &[(RunId, u64)]) -> Result<Mailboxes, StoreError> {
        let mut all = Vec::new();
        for (run, after) in runs {
            match self.mail(*run, *after) {
                Ok(mail) if mail.is_empty() => {}
                Ok(mail) => all.push((*run, mail)),
                // Reported when the run itself is claimed. It must not affect the other runs.
                Err(StoreError::Damaged { .. } | StoreError::Sealed { .. } | StoreError::NoSuchRun(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    pub(super) fn key_places(&self) -> Result<Vec<(RunId, KeyPlace)>, StoreError> {
        self.with_reader(None, |connection| key_places::all(connection, &self.known_damage))
    }

    pub(super) fn contents(&self, run: RunId) -> Result<RunContents, StoreError> {
        let contents = self.with_reader(Some(run), |connection| {
            let id = find(connection, run)?;
            self.at_tail(connection, run, id, |view, tail| contents(view, (&self.keys, run, id), tail))
        })?;
        contents.damaged.iter().for_each(|damage| self.known_damage.record(damage));
        Ok(contents)
    }

    pub(super) fn keyed(&self, key: &str) -> Result<Option<RunId>, StoreError> {
        self.with_reader(None, |connection| {
            let mut statement = connection.prepare_cached(write_tx::RUN_BY_KEY)?;
            let read = |row: &SqlRow<'_>| Ok((RunId::from_bytes(row.get(0)?), row.get(1)?));
            match statement.query_row([key], read).optional()? {
                Some((run, false)) => Err(log::damaged(RUN_ROW.to_owned()).about_run(Some(run))),
                found => Ok(found.map(|(run, _)| run)),
            }
        })
    }

    pub(super) fn has_message(&self, run: RunId, dedupe: &str) -> Result<bool, StoreError> {
        self.with_reader(Some(run), |connection| {
            let id = find(connection, run)?;
            Ok(connection.prepare_cached(write_tx::HAS_DEDUPE_KEY)?.exists(params![id, dedupe])?)
        })
    }

    /// Only workers of this `opening` have leases.
    pub(super) fn due(&self, now: Timestamp, limit: usize, opening: i64) -> Result<Due, StoreError> {
        self.with_reader(None, |connection| {
            // One snapshot, so that no run moves from one result to the other in between.
            let view = connection.transaction()?;
            Ok(Due { runs: due(&view, now, (0, limit), opening, None)?, next: next_wake(&view, now)? })
        })
    }

    /// The time until the next run becomes due.
    pub(super) fn next_wake(&self, now: Timestamp) -> Result<Option<Duration>, StoreError> {
        self.with_reader(None, |connection| Ok(next_wake(connection, now)?))
    }

    pub(super) fn feed(&self, session: &str, after: u64, limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.with_reader(None, |connection| {
            // A group whose sync failed may be visible in the file, and its positions may be lost in a power failure.
            let upto = self.tails.last();
            // One snapshot, so that no row is moved into a segment in between.
            let view = connection.transaction()?;
            log::feed(&view, &self.keys, session, (after, upto), limit)
        })
    }

    /// Reads with an idle connection, or with a new one. A connection that failed is not used again. Damage is
    /// recorded, and attributed to the run `about`.
    pub(super) fn with_reader<T>(
        &self,
        about: Option<RunId>,
        read: impl FnOnce(&mut Connection) -> Result<T, ReadError>,
    ) -> Result<T, StoreError> {
        let failed = |error: ReadError| match error.damage(about) {
            Some(damage) => {
                self.known_damage.record(&damage);
                StoreError::Damaged { run: damage.run, place: damage.location }
            }
            None => StoreError::Unavailable(format!("reading {}: {error}", self.db_file.path.display())),
        };
        let idle = self.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.db_file.reader().map_err(|fault| failed(ReadError::Fault(fault)))?,
        };
        let result = match read(&mut connection) {
            Ok(value) => Ok(value),
            Err(ReadError::Refused(error)) => Err(error),
            Err(error) => return Err(failed(error)),
        };
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push(connection);
        }
        result
    }
}

/// Due runs: at most `limit`, after the first `skip`. Running runs of the worker `except` are left out.
pub(super) fn due(
    connection: &Connection,
    now: Timestamp,
    (skip, limit): (usize, usize),
    opening: i64,
    except: Option<i64>,
) -> rusqlite::Result<Vec<RunId>> {
    let (now, run) = (before_never(now), |row: &SqlRow<'_>| row.get(0).map(RunId::from_bytes));
    let mut woken = connection.prepare_cached(DUE_RUNS)?;
    let mut runs: Vec<RunId> =
        woken.query_map([now, size(limit.saturating_add(skip))], run)?.collect::<Result<_, _>>()?;
    if runs.len() < limit.saturating_add(skip) {
        let rest = size(limit.saturating_add(skip) - runs.len());
        let mut left = connection.prepare_cached(EXPIRED_LEASES)?;
        let found = left.query_map(rusqlite::params![now, rest, opening, except], run)?;
        runs.extend(found.collect::<Result<Vec<_>, _>>()?);
    }
    Ok(runs.split_off(skip.min(runs.len())))
}

fn next_wake(connection: &Connection, now: Timestamp) -> rusqlite::Result<Option<Duration>> {
    let now = before_never(now);
    let next: Option<i64> = connection.prepare_cached(NEXT_WAKE)?.query_row([now], |row| row.get(0)).optional()?;
    let next = next.filter(|next| *next != NEVER).map(Timestamp::from_micros);
    Ok(next.map(|next| next.since(Timestamp::from_micros(now))))
}

/// Keeps the time distinct from the value for "never".
fn before_never(now: Timestamp) -> i64 {
    now.as_micros().min(NEVER - 1)
}

/// The number of the run (`runs.id`).
fn find(connection: &Connection, run: RunId) -> Result<i64, ReadError> {
    let read = |row: &SqlRow<'_>| Ok((row.get(0)?, row.get(1)?));
    match connection.prepare_cached(RUN_NUMBER)?.query_row([run.as_bytes()], read).optional()? {
        None => Err(ReadError::Refused(StoreError::NoSuchRun(run))),
        Some((_, false)) => Err(log::damaged(RUN_ROW.to_owned())),
        Some((id, _)) => Ok(id),
    }
}

/// The tail of a run's journal among the rows after a position: those of a group or two.
const NEWEST_TAIL: &str = "SELECT position, seq + count FROM log WHERE position > ?1 AND run = ?2
    ORDER BY position DESC LIMIT 1";

/// Queued and suspended runs that are due.
const DUE_RUNS: &str = "SELECT run FROM runs WHERE wake <= ?1 ORDER BY wake, run LIMIT ?2";

/// When the next run is due.
const NEXT_WAKE: &str = "SELECT wake FROM runs WHERE wake > ?1 ORDER BY wake LIMIT 1";

/// Running runs whose owner's lease has expired. `CROSS JOIN` makes SQLite read the few workers first; expired leases
/// are rare.
const EXPIRED_LEASES: &str = "SELECT runs.run FROM workers CROSS JOIN runs INDEXED BY runs_open
    WHERE workers.until <= ?1 AND runs.worker = workers.id AND runs.phase = 1 AND runs.phase < 4
        AND runs.opening = ?3 AND workers.id IS NOT ?4
    ORDER BY workers.until, workers.id, runs.run LIMIT ?2";

/// The number of a run, and whether its row is intact.
const RUN_NUMBER: &str = concat!("SELECT id, ", run_is_intact!(), " FROM runs WHERE run = ?1");

/// The tail of a journal as stored in the row of its run, how much of the journal is left, and whether the row is
/// intact.
const STORED_TAIL: &str = concat!("SELECT tail, length, summary, ", run_is_intact!(), " FROM runs WHERE id = ?1");

/// Without the hint, SQLite would scan all messages instead of using the index of unread ones.
const MAIL: &str = "SELECT run, position, dedupe, body, sum FROM mail INDEXED BY mail_unread
    WHERE run = ?1 AND position > ?2 AND body IS NOT NULL ORDER BY position";

/// Returns `None` if the journal does not end at `tail` in this snapshot.
fn records(
    view: &Connection,
    (keys, run, id): (&SealingKeys, RunId, i64),
    tail: JournalTail,
    from: u64,
    limit: usize,
) -> Result<Option<UnsealedRecords>, ReadError> {
    let Some(rows) = log::rows(view, id, tail, from, limit)? else { return Ok(None) };
    let lines = rows.iter().flat_map(LogRow::lines).skip_while(|(seq, _)| *seq < from).take(limit);
    let mut found = UnsealedRecords { records: Vec::new(), closed: None };
    for (seq, line) in lines {
        let unreadable = |error: ReadError| match error.damage(None) {
            Some(damage) => log::damaged(format!("record {seq} of its journal: {}", damage.location)),
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
    (keys, run, id): (&SealingKeys, RunId, i64),
    tail: JournalTail,
) -> Result<Option<RunContents>, ReadError> {
    let sql = "SELECT generation, base, (SELECT name FROM sessions WHERE sessions.id = runs.session),
                      parent_run, parent_path, principal, cause
               FROM runs WHERE id = ?1";
    let mut statement = view.prepare_cached(sql)?;
    let mut rows = statement.query([id])?;
    let row = rows.next()?.ok_or(ReadError::Broken(tail.position))?;
    let base = row.get::<_, i64>(1)?.unsigned_abs();
    let read = || -> Result<Option<(UnsealedRecords, u64, Vec<Mail>)>, ReadError> {
        let Some(mut found) = records(view, (keys, run, id), tail, base, usize::MAX)? else { return Ok(None) };
        let mailed = check_mailbox(view, id)?;
        let (mail, closed) = mail(view, (keys, run, id), 0)?;
        found.closed = found.closed.or(closed);
        Ok(Some((found, mailed, mail)))
    };
    let (found, mailed, mail, damaged) = match read() {
        Ok(None) => return Ok(None),
        Ok(Some((found, mailed, mail))) => (found, mailed, mail, None),
        Err(error) => {
            let damage = error.damage(Some(run)).ok_or(error)?;
            (UnsealedRecords { records: Vec::new(), closed: None }, 0, Vec::new(), Some(damage))
        }
    };
    Ok(Some(RunContents {
        generation: row.get(0)?,
        records: found.records,
        mail,
        mailed,
        session: row.get(2)?,
        parent: parent(row, 3)?,
        principal: row.get(5)?,
        cause: row.get(6)?,
        end: tail.length,
        sealed: found.closed.map(|closed| closed.sentence(keys)),
        damaged,
    }))
}

/// Checks that no message is missing: rows stay when messages are consumed, and the index has every unread message.
/// Returns the position of the last message.
fn check_mailbox(view: &Connection, id: i64) -> Result<u64, ReadError> {
    // Positions count from one, and none is given twice: as many as the last one says, from one on, are all of them.
    let sql = "SELECT count(*) FILTER (WHERE position > 0),
                      max(coalesce(max(position), 0), coalesce((SELECT mail FROM runs WHERE id = ?1), 0)),
                      coalesce((SELECT summary FROM runs WHERE id = ?1), 0), count(body),
                      (SELECT count(*) FROM mail INDEXED BY mail_unread WHERE run = ?1 AND body IS NOT NULL)
               FROM mail NOT INDEXED WHERE run = ?1";
    let (count, last, summary, unread, indexed): (i64, i64, i64, i64, i64) = view
        .prepare_cached(sql)?
        .query_row([id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)))?;
    if unread != indexed {
        return Err(log::damaged(format!("the index of its mailbox has {indexed} of {unread} messages")));
    }
    // Messages are removed with the journal.
    if count == last || summary != 0 {
        return Ok(last.unsigned_abs());
    }
    Err(log::damaged(format!("its mailbox has {count} of {last} messages")))
}

/// Also says why a secret could not be unsealed, if that is so.
fn mail(
    connection: &Connection,
    (keys, run, id): (&SealingKeys, RunId, i64),
    after: i64,
) -> Result<(Vec<Mail>, Option<UnsealError>), ReadError> {
    let mut statement = connection.prepare_cached(MAIL)?;
    let mut rows = statement.query([id, after])?;
    let (mut mail, mut closed) = (Vec::new(), None);
    while let Some(row) = rows.next()? {
        let position: i64 = row.get(1)?;
        let damaged = || log::damaged(format!("its message {position}"));
        if !checksum::is_intact(row, 4)? {
            return Err(damaged());
        }
        let message = decode_line(connection, text(row, 3)?);
        let mut message = message.map_err(|error| if error.damage(None).is_some() { damaged() } else { error })?;
        closed = closed.or(seal::open_message(keys, run, &mut message).err());
        mail.push(Mail { position: position.unsigned_abs(), message });
    }
    Ok((mail, closed))
}

pub(super) fn size(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

pub(super) fn text<'a>(row: &'a SqlRow<'_>, column: usize) -> rusqlite::Result<&'a str> {
    Ok(row.get_ref(column)?.as_str()?)
}

/// Decodes a record or a message, including its large values.
pub(super) fn decode_line<T: DeserializeOwned>(view: &Connection, line: &str) -> Result<T, ReadError> {
    if !large_values::has_placeholders(line) {
        return Ok(decode(line)?);
    }
    let value = large_values::restore(line, |name| {
        let missing = || ReadError::Payload(name.to_owned());
        let id = name.parse().map_err(|_| missing())?;
        blobs::read_payload(view, &id)?.ok_or_else(missing)
    })?;
    Ok(serde_json::from_value(value)?)
}

/// Decodes JSON from the file. The parser's depth limit is disabled: stored values were within the limits when they
/// were accepted, and the record around a value adds a few levels.
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
    fn every_query_of_readers_uses_an_index() {
        let expected = [
            (DUE_RUNS, "SEARCH runs USING COVERING INDEX runs_due (wake<?)"),
            (NEXT_WAKE, "SEARCH runs USING COVERING INDEX runs_due (wake>?)"),
            (
                EXPIRED_LEASES,
                "SEARCH workers USING COVERING INDEX workers_by_lease (until<?); \
                 SEARCH runs USING INDEX runs_open (phase=?)",
            ),
            (log::LOG_FEED, "SEARCH log USING INDEX log_by_session (session=? AND rowid>? AND rowid<?)"),
            (log::SEGMENT_FEED, "SEARCH segments USING INDEX segments_by_session (session=?)"),
            (MAIL, "SEARCH mail USING INDEX mail_unread (run=? AND position>?)"),
        ];
        for (sql, start) in expected {
            let plan = plan(sql);
            assert!(plan.starts_with(start) && is_indexed(&plan), "{sql}: {plan}");
        }
    }
}
