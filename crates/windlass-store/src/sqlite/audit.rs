//! Checks a whole file: SQLite's integrity check and our own. Reads everything and changes nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, Row as SqlRow};
use serde::de::DeserializeOwned;
use windlass_core::RunId;
use windlass_core::run::record::Record;
use windlass_core::run::state::{Doubt, Park, RunState};
use windlass_core::store::Message;

use super::blobs;
use super::connections;
use super::damage;
use super::job::{EncodedState, RunPhase};
use super::lock;
use super::log::{self, JournalTails, LogRow, unsigned};
use super::open;
use super::open_error::OpenError;
use super::read::{ReadError, decode, decode_line, text};
use super::schema::{self, Identity};
use super::seal::{self, UnsealError};
use super::sealing_keys::SealingKeys;
use super::sessions;
use super::wal_stamp;

/// Problems that are reported. Further ones add no information.
const MAX_PROBLEMS: usize = 100;
/// Runs between two calls of `progress`.
const STRIDE: u64 = 256;

/// The result of checking a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// The file.
    pub path: PathBuf,
    /// The number of runs.
    pub runs: u64,
    /// The number of records in their journals.
    pub records: u64,
    /// The problems, one sentence each; at most the first hundred.
    pub problems: Vec<String>,
    /// The ids of the keys that its secrets are sealed with.
    pub keys: BTreeSet<String>,
}

impl CheckReport {
    /// Whether no problem was found.
    pub fn is_fine(&self) -> bool {
        self.problems.is_empty()
    }

    /// Describes the keys that are missing if this file is at `path`, and what to do. Keys are not part of the file, so
    /// an intact file may still not be completely readable. `None` if no key is missing.
    pub fn missing_keys(&self, path: impl AsRef<Path>) -> Option<String> {
        let keys = SealingKeys::of(&resolved(path.as_ref()));
        let missing = self.keys.iter().filter(|id| !keys.find(id).is_ok_and(|key| key.is_some()));
        let missing: Vec<&str> = missing.map(String::as_str).collect();
        if missing.is_empty() {
            return None;
        }
        let (missing, file) = (missing.join(", "), keys.path().display());
        Some(format!(
            "it has secrets sealed with a key ({missing}) that is not in {file}; put the key file of the original there, \
             or add its line to the existing one; until then the runs with those secrets are held and cannot be read"
        ))
    }

    pub(super) fn add_problem(&mut self, problem: impl Into<String>) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem.into());
        }
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, runs, records, problems, .. } = self;
        write!(f, "{}: {runs} runs with {records} records, ", path.display())?;
        match problems.len() {
            0 => f.write_str("nothing is wrong")?,
            1 => f.write_str("one problem")?,
            MAX_PROBLEMS => write!(f, "{MAX_PROBLEMS} problems or more")?,
            count => write!(f, "{count} problems")?,
        }
        problems.iter().try_for_each(|problem| write!(f, "\n- {problem}"))
    }
}

/// Checks a whole file, which may be in use: every page, every index, every checksum, and that every journal is
/// complete. For a file with an older schema, only every page and every index, because opening it upgrades it. Takes as
/// long as reading the file. `progress` is called with the number of checked runs and of all runs.
pub fn check_file(path: impl AsRef<Path>, mut progress: impl FnMut(u64, u64)) -> Result<CheckReport, OpenError> {
    let path = path.as_ref();
    let failed = |error: rusqlite::Error| OpenError::sql(path, error);
    // The write-ahead log of a file in use changes, and is known to belong to it.
    if !matches!(lock::file_owner(path), Ok(Some(_))) {
        wal_stamp::check(&resolved(path)).map_err(|foreign| foreign.into_open_error(path))?;
    }
    let mut connection = open::observer(path).map_err(failed)?;
    let is_older = match schema::identify(&connection).map_err(failed)? {
        Identity::Windlass(version) if version == schema::VERSION => false,
        Identity::Windlass(found) if found > schema::VERSION => {
            return Err(OpenError::Newer { path: path.to_owned(), found, supported: schema::VERSION });
        }
        Identity::Windlass(_) => true,
        Identity::Foreign(found) => {
            return Err(OpenError::NotWindlass { path: path.to_owned(), found: found.to_owned() });
        }
        Identity::Empty => {
            return Err(OpenError::NotWindlass { path: path.to_owned(), found: "it is empty".to_owned() });
        }
    };
    let mut report = CheckReport { path: path.to_owned(), ..CheckReport::default() };
    progress(0, 0);
    // One snapshot of the file, whatever is written meanwhile.
    let view = connection.transaction().map_err(failed)?;
    let keys = SealingKeys::of(&resolved(path));
    let checked = check_pages(&view, &mut report);
    let checked = if is_older {
        checked
    } else {
        checked
            .and_then(|()| check_sums(&view, &mut report))
            .and_then(|()| check_runs(&view, &keys, &mut report, &mut progress))
            .and_then(|()| check_content(&view, &mut report))
            .and_then(|()| sessions::check_secrets(&view, &keys, &mut report))
            .and_then(|()| connections::check_credentials(&view, &keys, &mut report))
    };
    match checked {
        Ok(()) => {}
        // Damage that stops the check is a problem too.
        Err(error) => report.add_problem(format!("the check stopped early: {error}")),
    }
    Ok(report)
}

/// Every path to a file leads to the same keys.
fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn check_pages(view: &Connection, report: &mut CheckReport) -> rusqlite::Result<()> {
    let mut statement = view.prepare(&format!("PRAGMA integrity_check({MAX_PROBLEMS})"))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let found: String = row.get(0)?;
        if found != "ok" {
            report.add_problem(format!("SQLite reports: {found}"));
        }
    }
    Ok(())
}

/// Checks every row that has a checksum. Damage is named by its position if the run is unknown.
fn check_sums(view: &Connection, report: &mut CheckReport) -> rusqlite::Result<()> {
    report.problems.extend(schema::schema_problem(view)?);
    let found = damage::find(view, MAX_PROBLEMS)?;
    found.iter().for_each(|damage| report.add_problem(damage.sentence()));
    Ok(())
}

/// Checks that content matches its digest.
fn check_content(view: &Connection, report: &mut CheckReport) -> rusqlite::Result<()> {
    for (name, problem) in blobs::damaged(view)? {
        report.add_problem(format!("the content {name} {problem}"));
    }
    Ok(())
}

fn check_runs(
    view: &Connection,
    keys: &SealingKeys,
    report: &mut CheckReport,
    progress: &mut impl FnMut(u64, u64),
) -> rusqlite::Result<()> {
    let tails = JournalTails::default();
    tails.rebuild(view)?;
    let number = |sql: &str| view.query_row(sql, [], |row| row.get::<_, i64>(0)).map(unsigned);
    let all = number("SELECT count(*) FROM runs")?;
    let mut statement = view.prepare(RUNS)?;
    let mut rows = statement.query([])?;
    let mut linked_parts = 0;
    while let Some(row) = rows.next()? {
        let run = AuditedRun::read(row)?;
        run.check_row(row, report);
        linked_parts += run.check_journal((view, keys), &tails, report)?;
        run.check_mail(view, keys, report)?;
        report.runs += 1;
        if report.runs.is_multiple_of(STRIDE) {
            progress(report.runs, all);
        }
    }
    progress(report.runs, all);
    let pieces = number("SELECT (SELECT count(*) FROM segments) + (SELECT count(*) FROM log)")?;
    if pieces != linked_parts {
        report.add_problem(format!(
            "the file has {pieces} parts of journals, and the journals of its runs have {linked_parts}"
        ));
    }
    let strays = [
        ("messages are for runs that do not exist", "mail WHERE run NOT IN (SELECT id FROM runs)"),
        (
            "runs belong to a session that does not exist",
            "runs WHERE session IS NOT NULL AND session NOT IN (SELECT id FROM sessions)",
        ),
        ("references to content belong to runs that do not exist", "refs WHERE run NOT IN (SELECT id FROM runs)"),
        (
            "references are to content that does not exist",
            "refs WHERE blob NOT IN (SELECT id FROM blobs WHERE digest IS NOT NULL)",
        ),
        ("pieces belong to content that does not exist", "pieces WHERE blob NOT IN (SELECT id FROM blobs)"),
        ("messages belong to a session that does not exist", "messages WHERE session NOT IN (SELECT id FROM sessions)"),
        (
            "values belong to a session that does not exist",
            "session_data WHERE session NOT IN (SELECT id FROM sessions)",
        ),
        ("files belong to a session that does not exist", "files WHERE session NOT IN (SELECT id FROM sessions)"),
        (
            "files have content that does not exist",
            "files WHERE blob IS NOT NULL AND blob NOT IN (SELECT id FROM blobs WHERE digest IS NOT NULL)",
        ),
        ("answers belong to runs that do not exist", "verdicts WHERE run NOT IN (SELECT id FROM runs)"),
        (
            "open sessions lack some of their messages",
            "sessions WHERE closed IS NULL
             AND messages != (SELECT count(*) FROM messages WHERE messages.session = sessions.id)",
        ),
        ("keys of removed runs are used by other runs", "tombstones JOIN runs ON runs.key = tombstones.key"),
    ];
    for (what, which) in strays {
        let count = number(&format!("SELECT count(*) FROM {which}"))?;
        if count > 0 {
            report.add_problem(format!("{count} {what}"));
        }
    }
    Ok(())
}

const RUNS: &str = "SELECT id, run, phase, summary, tail, length, ended, examined, state, doubts, parks, base FROM runs
    ORDER BY id";

/// The row of a run that is checked.
struct AuditedRun {
    id: i64,
    run: RunId,
    phase: i64,
    summary: i64,
    tail: i64,
    length: i64,
    ended: Option<i64>,
    examined: i64,
    base: i64,
}

impl AuditedRun {
    fn read(row: &SqlRow<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            run: RunId::from_bytes(row.get(1)?),
            phase: row.get(2)?,
            summary: row.get(3)?,
            tail: row.get(4)?,
            length: row.get(5)?,
            ended: row.get(6)?,
            examined: row.get(7)?,
            base: row.get(11)?,
        })
    }

    fn add_problem(&self, report: &mut CheckReport, problem: impl fmt::Display) {
        report.add_problem(format!("run {}: {problem}", self.run));
    }

    fn check_row(&self, row: &SqlRow<'_>, report: &mut CheckReport) {
        let phase = RunPhase::from_number(self.phase);
        let state = text(row, 8).map_err(ReadError::from).and_then(|state| Ok(decode::<RunState>(state)?));
        match state.map(|state| EncodedState::encode(&state).ok().map(|state| state.phase)) {
            Ok(state) if state == phase && phase.is_some() => {}
            Ok(_) => self.add_problem(report, format_args!("its state does not match its phase {}", self.phase)),
            Err(error) => self.add_problem(report, format_args!("its state cannot be read: {error}")),
        }
        check_list::<Doubt>(row, 9).err().into_iter().for_each(|error| {
            self.add_problem(report, format_args!("its doubts cannot be read: {error}"));
        });
        check_list::<Park>(row, 10).err().into_iter().for_each(|error| {
            self.add_problem(report, format_args!("its waits cannot be read: {error}"));
        });
        if self.ended.is_some() && phase != Some(RunPhase::Finished) {
            self.add_problem(report, "it has an end time, but is not finished");
        }
        if self.summary != 0 && phase != Some(RunPhase::Finished) {
            self.add_problem(report, "its journal is removed or being removed, but it is not finished");
        }
    }

    /// Follows the journal from its end to its start. Returns the number of its parts.
    fn check_journal(
        &self,
        (view, keys): (&Connection, &SealingKeys),
        tails: &JournalTails,
        report: &mut CheckReport,
    ) -> rusqlite::Result<u64> {
        let hot = tails.get(self.id).filter(|_| self.summary == 0);
        let (mut position, end) = hot.map_or((self.tail, unsigned(self.length)), |tail| (tail.position, tail.length));
        if unsigned(self.length) > end {
            self.add_problem(report, format_args!("its row counts {} records, but the log has {end}", self.length));
        }
        // A journal that is being removed has no end.
        let mut expected = (self.summary == 0).then_some(end);
        if self.summary == 0 && unsigned(self.base) > end {
            self.add_problem(
                report,
                format_args!("its generation starts at record {}, after the end of its journal", self.base),
            );
        }
        if self.summary == 2 && position != 0 {
            self.add_problem(report, "its journal should be removed");
        }
        let mut pieces = 0;
        while position != 0 {
            let Some(piece) = AuditedPart::read(view, position)? else {
                self.add_problem(
                    report,
                    format_args!("the part of its journal that ends at position {position} is missing"),
                );
                return Ok(pieces);
            };
            pieces += 1;
            self.check_piece((view, keys), &piece, position, expected, report);
            report.records += u64::from(piece.count);
            expected = Some(piece.seq);
            if piece.previous >= position {
                self.add_problem(report, format_args!("the part before position {position} has a later position"));
                return Ok(pieces);
            }
            position = piece.previous;
        }
        if let Some(missing @ 1..) = expected {
            self.add_problem(report, format_args!("the first {missing} records of its journal are missing"));
        }
        Ok(pieces)
    }

    fn check_piece(
        &self,
        (view, keys): (&Connection, &SealingKeys),
        piece: &AuditedPart,
        position: i64,
        expected: Option<u64>,
        report: &mut CheckReport,
    ) {
        if piece.run != self.id {
            self.add_problem(report, format_args!("the part of its journal at position {position} is another run's"));
        }
        let end = piece.seq + u64::from(piece.count);
        if let Some(expected) = expected.filter(|expected| *expected != end) {
            self.add_problem(
                report,
                format_args!("a part of its journal should end at record {expected}, but ends at {end}"),
            );
        }
        let rows = match &piece.rows {
            Ok(rows) => rows,
            Err(error) => return self.add_problem(report, format_args!("position {position}: {error}")),
        };
        let lines: Vec<(u64, &str)> = rows.iter().flat_map(LogRow::lines).collect();
        let counted = rows.iter().map(|row| row.count).sum::<u32>();
        if lines.len() as u64 != u64::from(piece.count) || counted != piece.count {
            let (count, found) = (piece.count, lines.len());
            self.add_problem(report, format_args!("position {position} should have {count} records, but has {found}"));
        }
        for (seq, line) in lines {
            match decode_line::<Record>(view, line) {
                Ok(record) => self.check_secrets(keys, seq, record, report),
                Err(error) => self.add_problem(report, format_args!("record {seq} cannot be read: {error}")),
            }
        }
    }

    /// A missing key is reported once for the whole file.
    fn check_secrets(&self, keys: &SealingKeys, seq: u64, mut record: Record, report: &mut CheckReport) {
        if !record.has_secrets() {
            return;
        }
        report.keys.extend(seal::key_ids(&mut record));
        match seal::open(keys, self.run, &mut record) {
            Ok(()) | Err(UnsealError::Missing(_)) => {}
            Err(closed) => {
                let why = closed.sentence(keys);
                self.add_problem(report, format_args!("the secrets of record {seq} cannot be opened: {why}"));
            }
        }
    }

    fn check_mailed(&self, keys: &SealingKeys, position: i64, mut message: Message, report: &mut CheckReport) {
        report.keys.extend(seal::key_ids_of(&mut message));
        match seal::open_message(keys, self.run, &mut message) {
            Ok(()) | Err(UnsealError::Missing(_)) => {}
            Err(closed) => {
                let why = closed.sentence(keys);
                self.add_problem(report, format_args!("the secrets of its message {position} cannot be opened: {why}"));
            }
        }
    }

    fn check_mail(&self, view: &Connection, keys: &SealingKeys, report: &mut CheckReport) -> rusqlite::Result<()> {
        let mut statement = view.prepare_cached("SELECT position, body FROM mail WHERE run = ?1 ORDER BY position")?;
        let mut rows = statement.query([self.id])?;
        let mut latest = 0;
        while let Some(row) = rows.next()? {
            latest += 1;
            let position: i64 = row.get(0)?;
            if position != latest {
                self.add_problem(report, format_args!("its message {latest} is missing"));
                latest = position;
            }
            let body = row.get_ref(1)?.as_str_or_null().map_err(rusqlite::Error::from)?;
            match body.map(|body| decode_line::<Message>(view, body)) {
                Some(Ok(message)) if message.has_secrets() => self.check_mailed(keys, position, message, report),
                Some(Err(error)) => {
                    self.add_problem(report, format_args!("its message {position} cannot be read: {error}"));
                }
                _ => {}
            }
        }
        if self.examined > latest && self.summary == 0 {
            self.add_problem(
                report,
                format_args!("it has examined {} messages, but has received {latest}", self.examined),
            );
        }
        Ok(())
    }
}

fn check_list<T: DeserializeOwned>(row: &SqlRow<'_>, column: usize) -> Result<(), ReadError> {
    let list = row.get_ref(column)?.as_str_or_null().map_err(rusqlite::Error::from)?;
    list.map(decode::<Vec<T>>).transpose()?;
    Ok(())
}

/// A row of the log, or a segment.
struct AuditedPart {
    run: i64,
    seq: u64,
    count: u32,
    previous: i64,
    rows: Result<Vec<LogRow>, ReadError>,
}

impl AuditedPart {
    fn read(view: &Connection, position: i64) -> rusqlite::Result<Option<Self>> {
        let head = |row: &SqlRow<'_>| -> rusqlite::Result<(i64, u64, u32, i64)> {
            Ok((row.get(0)?, unsigned(row.get(1)?), row.get(2)?, row.get(3)?))
        };
        let hot = view
            .prepare_cached("SELECT run, seq, count, previous, body FROM log WHERE position = ?1")?
            .query_row([position], |row| {
                let (run, seq, count, previous) = head(row)?;
                let rows = row.get(4).map(|body| vec![LogRow { position, seq, count, body }]);
                Ok(Self { run, seq, count, previous, rows: rows.map_err(ReadError::from) })
            })
            .optional()?;
        if hot.is_some() {
            return Ok(hot);
        }
        view.prepare_cached("SELECT run, seq, count, previous, body FROM segments WHERE position = ?1")?
            .query_row([position], |row| {
                let (run, seq, count, previous) = head(row)?;
                let rows = log::unpack(seq, row.get_ref(4)?.as_blob().map_err(rusqlite::Error::from)?);
                Ok(Self { run, seq, count, previous, rows })
            })
            .optional()
    }
}
