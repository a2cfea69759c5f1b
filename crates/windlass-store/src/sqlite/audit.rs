//! Whether a file is whole: by SQLite's own account, and by ours. Reads everything and changes nothing.

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
use super::damage;
use super::job::{Phase, State};
use super::keys::Keys;
use super::lineage;
use super::lock;
use super::log::{self, Row, Tails, unsigned};
use super::open;
use super::read::{ReadError, decode, decode_line, text};
use super::refusal::OpenError;
use super::schema::{self, Identity};
use super::seal::{self, Closed};

/// Problems that are told; a file with more than this has one problem.
const TOLD: usize = 100;
/// Runs between two words about how far it is.
const STRIDE: u64 = 256;

/// What a check of a file found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Which file.
    pub path: PathBuf,
    /// How many runs it has.
    pub runs: u64,
    /// How many records their journals have.
    pub records: u64,
    /// What is wrong, a sentence each; at most the first hundred.
    pub problems: Vec<String>,
    /// The names of the keys that secrets in it are sealed with.
    pub keys: BTreeSet<String>,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_fine(&self) -> bool {
        self.problems.is_empty()
    }

    /// Which keys are missing for a file with these contents at `path`, and the way out: they are not in the file, so it can
    /// be whole, and yet not all of it can be read. Nothing if none is missing.
    pub fn missing_keys(&self, path: impl AsRef<Path>) -> Option<String> {
        let keys = Keys::of(&resolved(path.as_ref()));
        let missing = self.keys.iter().filter(|id| !keys.find(id).is_ok_and(|key| key.is_some()));
        let missing: Vec<&str> = missing.map(String::as_str).collect();
        if missing.is_empty() {
            return None;
        }
        let (missing, file) = (missing.join(", "), keys.path().display());
        Some(format!(
            "it has secrets sealed with a key ({missing}) that is not in {file}; put the key file of its original there, or \
             add its line to the one that is there; until then the runs that have those secrets are held and cannot be read"
        ))
    }

    fn tell(&mut self, problem: impl Into<String>) {
        if self.problems.len() < TOLD {
            self.problems.push(problem.into());
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, runs, records, problems, .. } = self;
        write!(f, "{}: {runs} runs with {records} records, ", path.display())?;
        match problems.len() {
            0 => f.write_str("nothing is wrong")?,
            1 => f.write_str("one problem")?,
            TOLD => write!(f, "{TOLD} problems or more")?,
            count => write!(f, "{count} problems")?,
        }
        problems.iter().try_for_each(|problem| write!(f, "\n- {problem}"))
    }
}

/// Checks a whole file, which may be in use: every page, every index, and that every journal is there from its beginning to
/// its end and is what was written. Of a file with an older schema, every page and every index: opening it brings it up to
/// date. Takes as long as reading the file does. `progress` is told now and then how many of how many runs were checked.
pub fn check_file(path: impl AsRef<Path>, mut progress: impl FnMut(u64, u64)) -> Result<Report, OpenError> {
    let path = path.as_ref();
    let failed = |error: rusqlite::Error| OpenError::sql(path, error);
    // The log of a file that is in use is written to, and known to be its own.
    if !matches!(lock::holder(path), Ok(Some(_))) {
        lineage::check(&resolved(path)).map_err(|foreign| foreign.refusal(path))?;
    }
    let mut connection = open::onlooker(path).map_err(failed)?;
    let is_older = match schema::identify(&connection).map_err(failed)? {
        Identity::Windlass(version) if version == schema::VERSION => false,
        Identity::Windlass(found) if found > schema::VERSION => {
            return Err(OpenError::Newer { path: path.to_owned(), found, known: schema::VERSION });
        }
        Identity::Windlass(_) => true,
        Identity::Foreign(found) => {
            return Err(OpenError::NotWindlass { path: path.to_owned(), found: found.to_owned() });
        }
        Identity::Empty => {
            return Err(OpenError::NotWindlass { path: path.to_owned(), found: "it is empty".to_owned() });
        }
    };
    let mut report = Report { path: path.to_owned(), ..Report::default() };
    progress(0, 0);
    // One view of the file, whatever is written meanwhile.
    let view = connection.transaction().map_err(failed)?;
    let keys = Keys::of(&resolved(path));
    let checked = check_pages(&view, &mut report);
    let checked = if is_older {
        checked
    } else {
        checked
            .and_then(|()| check_sums(&view, &mut report))
            .and_then(|()| check_runs(&view, &keys, &mut report, &mut progress))
            .and_then(|()| check_content(&view, &mut report))
    };
    match checked {
        Ok(()) => {}
        // Damage where it is read from is a finding too.
        Err(error) => report.tell(format!("reading it broke off: {error}")),
    }
    Ok(report)
}

/// Every name of a file leads to the same keys.
fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn check_pages(view: &Connection, report: &mut Report) -> rusqlite::Result<()> {
    let mut statement = view.prepare(&format!("PRAGMA integrity_check({TOLD})"))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let found: String = row.get(0)?;
        if found != "ok" {
            report.tell(format!("SQLite says: {found}"));
        }
    }
    Ok(())
}

/// Every row that has a checksum. A row that no longer says which run it is of is named by its place.
fn check_sums(view: &Connection, report: &mut Report) -> rusqlite::Result<()> {
    report.problems.extend(schema::misshapen(view)?);
    let found = damage::find(view, TOLD)?;
    found.iter().for_each(|damage| report.tell(damage.sentence()));
    Ok(())
}

/// Content is what its name says.
fn check_content(view: &Connection, report: &mut Report) -> rusqlite::Result<()> {
    for (name, problem) in blobs::damaged(view)? {
        report.tell(format!("the content {name} {problem}"));
    }
    Ok(())
}

fn check_runs(
    view: &Connection,
    keys: &Keys,
    report: &mut Report,
    progress: &mut impl FnMut(u64, u64),
) -> rusqlite::Result<()> {
    let tails = Tails::default();
    tails.rebuild(view)?;
    let number = |sql: &str| view.query_row(sql, [], |row| row.get::<_, i64>(0)).map(unsigned);
    let all = number("SELECT count(*) FROM runs")?;
    let mut statement = view.prepare(RUNS)?;
    let mut rows = statement.query([])?;
    let mut places = 0;
    while let Some(row) = rows.next()? {
        let run = Checked::read(row)?;
        run.check_row(row, report);
        places += run.check_journal((view, keys), &tails, report)?;
        run.check_mail(view, report)?;
        report.runs += 1;
        if report.runs.is_multiple_of(STRIDE) {
            progress(report.runs, all);
        }
    }
    progress(report.runs, all);
    let pieces = number("SELECT (SELECT count(*) FROM segments) + (SELECT count(*) FROM log)")?;
    if pieces != places {
        report.tell(format!("{pieces} pieces of journals are in the file, and the journals of its runs have {places}"));
    }
    let strays = [
        ("messages are for runs that are not there", "mail WHERE run NOT IN (SELECT id FROM runs)"),
        (
            "runs are of a session that has no name",
            "runs WHERE session IS NOT NULL AND session NOT IN (SELECT id FROM sessions)",
        ),
        ("references to content are of runs that are not there", "refs WHERE run NOT IN (SELECT id FROM runs)"),
        (
            "references are to content that is not there",
            "refs WHERE blob NOT IN (SELECT id FROM blobs WHERE digest IS NOT NULL)",
        ),
        ("pieces are of content that is not there", "pieces WHERE blob NOT IN (SELECT id FROM blobs)"),
        ("keys of runs that are gone are taken by others", "tombstones JOIN runs ON runs.key = tombstones.key"),
    ];
    for (what, which) in strays {
        let count = number(&format!("SELECT count(*) FROM {which}"))?;
        if count > 0 {
            report.tell(format!("{count} {what}"));
        }
    }
    Ok(())
}

const RUNS: &str = "SELECT id, run, phase, summary, tail, length, ended, examined, state, doubts, parks, base FROM runs
    ORDER BY id";

/// A run that is checked.
struct Checked {
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

impl Checked {
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

    fn tell(&self, report: &mut Report, problem: impl fmt::Display) {
        report.tell(format!("run {}: {problem}", self.run));
    }

    fn check_row(&self, row: &SqlRow<'_>, report: &mut Report) {
        let phase = Phase::from_number(self.phase);
        let state = text(row, 8).map_err(ReadError::from).and_then(|state| Ok(decode::<RunState>(state)?));
        match state.map(|state| State::encode(&state).ok().map(|state| state.phase)) {
            Ok(state) if state == phase && phase.is_some() => {}
            Ok(_) => self.tell(report, format_args!("its state is not of phase {}", self.phase)),
            Err(error) => self.tell(report, format_args!("its state cannot be read: {error}")),
        }
        check_list::<Doubt>(row, 9).err().into_iter().for_each(|error| {
            self.tell(report, format_args!("its doubts cannot be read: {error}"));
        });
        check_list::<Park>(row, 10).err().into_iter().for_each(|error| {
            self.tell(report, format_args!("what it waits for cannot be read: {error}"));
        });
        if self.ended.is_some() && phase != Some(Phase::Finished) {
            self.tell(report, "it has an end and is not finished");
        }
        if self.summary != 0 && phase != Some(Phase::Finished) {
            self.tell(report, "its journal is gone, or going, and it is not finished");
        }
    }

    /// Follows the journal from its end to its beginning; returns in how many pieces it lies.
    fn check_journal(
        &self,
        (view, keys): (&Connection, &Keys),
        tails: &Tails,
        report: &mut Report,
    ) -> rusqlite::Result<u64> {
        let hot = tails.get(self.id).filter(|_| self.summary == 0);
        let (mut place, end) = hot.map_or((self.tail, unsigned(self.length)), |tail| (tail.position, tail.end));
        if unsigned(self.length) > end {
            self.tell(report, format_args!("its row counts {} records, and the log has {end}", self.length));
        }
        // Of one that is going, the end is missing.
        let mut expected = (self.summary == 0).then_some(end);
        if self.summary == 0 && unsigned(self.base) > end {
            self.tell(report, format_args!("its generation begins at record {}, after its end", self.base));
        }
        if self.summary == 2 && place != 0 {
            self.tell(report, "its journal should be gone");
        }
        let mut pieces = 0;
        while place != 0 {
            let Some(piece) = Piece::read(view, place)? else {
                self.tell(report, format_args!("the part of its journal that ends at position {place} is missing"));
                return Ok(pieces);
            };
            pieces += 1;
            self.check_piece((view, keys), &piece, place, expected, report);
            report.records += u64::from(piece.count);
            expected = Some(piece.seq);
            if piece.previous >= place {
                self.tell(report, format_args!("what stands before position {place} does not come before it"));
                return Ok(pieces);
            }
            place = piece.previous;
        }
        if let Some(missing @ 1..) = expected {
            self.tell(report, format_args!("the first {missing} records of its journal are missing"));
        }
        Ok(pieces)
    }

    fn check_piece(
        &self,
        (view, keys): (&Connection, &Keys),
        piece: &Piece,
        place: i64,
        expected: Option<u64>,
        report: &mut Report,
    ) {
        if piece.run != self.id {
            self.tell(report, format_args!("the part of its journal at position {place} is another run's"));
        }
        let end = piece.seq + u64::from(piece.count);
        if let Some(expected) = expected.filter(|expected| *expected != end) {
            self.tell(report, format_args!("its journal goes on at record {expected}, and before that ends at {end}"));
        }
        let rows = match &piece.rows {
            Ok(rows) => rows,
            Err(error) => return self.tell(report, format_args!("position {place}: {error}")),
        };
        let lines: Vec<(u64, &str)> = rows.iter().flat_map(Row::lines).collect();
        let counted = rows.iter().map(|row| row.count).sum::<u32>();
        if lines.len() as u64 != u64::from(piece.count) || counted != piece.count {
            let (count, found) = (piece.count, lines.len());
            self.tell(report, format_args!("position {place} should have {count} records, and has {found}"));
        }
        for (seq, line) in lines {
            match decode_line::<Record>(view, line) {
                Ok(record) => self.check_secrets(keys, seq, record, report),
                Err(error) => self.tell(report, format_args!("record {seq} cannot be read: {error}")),
            }
        }
    }

    /// A key that is missing is told once, for the whole file.
    fn check_secrets(&self, keys: &Keys, seq: u64, mut record: Record, report: &mut Report) {
        if !record.has_secrets() {
            return;
        }
        report.keys.extend(seal::needs(&mut record));
        match seal::open(keys, self.run, &mut record) {
            Ok(()) | Err(Closed::Missing(_)) => {}
            Err(closed) => {
                let why = closed.sentence(keys);
                self.tell(report, format_args!("the secrets of record {seq} cannot be opened: {why}"));
            }
        }
    }

    fn check_mail(&self, view: &Connection, report: &mut Report) -> rusqlite::Result<()> {
        let mut statement = view.prepare_cached("SELECT position, body FROM mail WHERE run = ?1 ORDER BY position")?;
        let mut rows = statement.query([self.id])?;
        let mut latest = 0;
        while let Some(row) = rows.next()? {
            latest += 1;
            let position: i64 = row.get(0)?;
            if position != latest {
                self.tell(report, format_args!("its message {latest} is missing"));
                latest = position;
            }
            let body = row.get_ref(1)?.as_str_or_null().map_err(rusqlite::Error::from)?;
            if let Some(Err(error)) = body.map(|body| decode_line::<Message>(view, body)) {
                self.tell(report, format_args!("its message {position} cannot be read: {error}"));
            }
        }
        if self.examined > latest && self.summary == 0 {
            self.tell(report, format_args!("it has examined {} messages, and has had {latest}", self.examined));
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
struct Piece {
    run: i64,
    seq: u64,
    count: u32,
    previous: i64,
    rows: Result<Vec<Row>, ReadError>,
}

impl Piece {
    fn read(view: &Connection, place: i64) -> rusqlite::Result<Option<Self>> {
        let head = |row: &SqlRow<'_>| -> rusqlite::Result<(i64, u64, u32, i64)> {
            Ok((row.get(0)?, unsigned(row.get(1)?), row.get(2)?, row.get(3)?))
        };
        let hot = view
            .prepare_cached("SELECT run, seq, count, previous, body FROM log WHERE position = ?1")?
            .query_row([place], |row| {
                let (run, seq, count, previous) = head(row)?;
                let rows = row.get(4).map(|body| vec![Row { position: place, seq, count, body }]);
                Ok(Self { run, seq, count, previous, rows: rows.map_err(ReadError::from) })
            })
            .optional()?;
        if hot.is_some() {
            return Ok(hot);
        }
        view.prepare_cached("SELECT run, seq, count, previous, body FROM segments WHERE position = ?1")?
            .query_row([place], |row| {
                let (run, seq, count, previous) = head(row)?;
                let rows = log::unpack(seq, row.get_ref(4)?.as_blob().map_err(rusqlite::Error::from)?);
                Ok(Self { run, seq, count, previous, rows })
            })
            .optional()
    }
}
