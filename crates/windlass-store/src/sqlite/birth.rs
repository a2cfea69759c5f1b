//! Runs whose own row is not written yet.
//!
//! The row of a run, and its places in the indexes, are pages that only the first and the last commit of a run write. A run
//! that is neither a turn nor a child is at first nothing but rows in the log: the first one notes who was born, and the last
//! one how it ended. Rows of runs come later, those of many that ended in one group, or when somebody needs one: because a
//! commit says more of the run than that its journal grows or that it ended, or because somebody asks which runs there are.
//! Whoever asks for one run is answered from memory. So nobody who looks sees the difference, the first and the last step of
//! a run write no more than the ones in between, and most runs have their row written once, when it is complete.
//!
//! After a crash such runs are found by what the log notes, behind the mark up to which it is packed, and their rows are
//! written before anything else.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row as SqlRow};
use rustc_hash::FxHashMap;
use windlass_core::run::state::{Ending, RunInfo, RunState};
use windlass_core::store::{Creation, Guard, Turn};
use windlass_core::time::Timestamp;
use windlass_core::{RunId, WorkerId};

use super::job::{State, Write};
use super::log::{self, Journal, Tail, unsigned};
use super::note;
use super::read;
use super::table::{self, Row};

/// Runs that may be born like this say where: `log.note`.
pub(super) const DDL: &str = "ALTER TABLE log ADD COLUMN note TEXT;";

/// So many runs that ended wait for their rows before those are written. They share pages and a transaction then, and it
/// takes a millisecond.
pub(super) const MANY: usize = 256;

/// So many that go on have none before they get them too: writing all of them at once must not take long.
const MOST: usize = 4_096;

/// What the row of such a run will say.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Birth {
    pub(super) run: RunId,
    pub(super) tool: Arc<str>,
    pub(super) at: Timestamp,
    pub(super) epoch: u64,
    pub(super) worker: u64,
    pub(super) key: Option<Arc<str>>,
    /// Its name, for whoever asks. The log has the number that stands for it.
    pub(super) session: Option<Arc<str>>,
    pub(super) end: Option<End>,
}

/// How such a run ended, and when: with the last record of the commit that says so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct End {
    pub(super) at: Timestamp,
    pub(super) ending: Ending,
}

impl Birth {
    /// The run that a commit creates, if its row may come later: nobody waits for its turn or its end.
    pub(super) fn of(write: &Write) -> Option<Self> {
        let Guard::Owner { run, epoch, .. } = write.guard else { return None };
        let Creation { tool, at, worker, key, session, turn, parent, known: _ } = write.create.as_ref()?;
        if *turn != Turn::No || parent.is_some() || !write.is_plain() {
            return None;
        }
        let (tool, key, session, end) = (tool.clone(), key.clone(), session.clone(), End::of(write));
        Some(Self { run, tool, at: *at, epoch, worker: worker.number(), key, session, end })
    }

    fn state(&self) -> RunState {
        match self.end {
            Some(End { ending, .. }) => RunState::Finished { ending },
            None => RunState::Running,
        }
    }

    /// Writes the row of a run that was born during this opening of the file, and has this journal.
    fn write(&self, connection: &Connection, opening: i64, journal: &Journal) -> rusqlite::Result<()> {
        let worker = WorkerId::from_number(self.worker);
        let (tool, key) = (self.tool.clone(), self.key.clone());
        let creation = Creation { tool, at: self.at, worker, key, ..Creation::default() };
        let state = State::encode(&self.state());
        let row = Row {
            run: self.run,
            epoch: self.epoch,
            creation: &creation,
            state: &state.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?,
            session: journal.session,
            turn: false,
            wake: None,
            tail: journal.tail,
            ended: self.end.map(|end| end.at),
        };
        table::insert(connection, journal.run, opening, &row)
    }

    /// What its row would tell.
    pub(super) fn info(&self) -> RunInfo {
        RunInfo {
            run: self.run,
            tool: self.tool.clone(),
            created: self.at,
            state: self.state(),
            doubts: Vec::new(),
            parks: Vec::new(),
            epoch: self.epoch,
            generation: 0,
            session: self.session.clone(),
            parent: None,
            ended: self.end.map(|end| end.at),
        }
    }
}

impl End {
    /// How the run of a plain commit ends with it, if it does.
    pub(super) fn of(write: &Write) -> Option<Self> {
        let ending = write.state.as_ref()?.ending?;
        Some(Self { at: write.records.at?, ending })
    }
}

/// The runs whose rows are not written yet, as the writer sees them, with what its transaction has changed.
#[derive(Default)]
pub(super) struct Young {
    /// By the number of the run, so that rows are written in the order of their table.
    runs: BTreeMap<i64, Birth>,
    /// Those that have keys.
    keys: FxHashMap<Arc<str>, RunId>,
    /// How many of them have ended.
    ended: usize,
    changed: Vec<Changed>,
}

/// A run that has no row, with its number, or has one now.
pub(super) enum Changed {
    Young(i64, Birth),
    Grown(Birth),
}

impl Young {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(super) fn has(&self, id: i64) -> bool {
        self.runs.contains_key(&id)
    }

    /// Whether it is time to write rows.
    pub(super) fn are_many(&self) -> bool {
        self.ended >= MANY || self.are_too_many()
    }

    /// Whether it is time to write those of runs that go on, too.
    pub(super) fn are_too_many(&self) -> bool {
        self.runs.len() >= MOST
    }

    pub(super) fn bear(&mut self, id: i64, birth: Birth) {
        self.ended += usize::from(birth.end.is_some());
        if let Some(key) = &birth.key {
            self.keys.insert(key.clone(), birth.run);
        }
        self.changed.push(Changed::Young(id, birth.clone()));
        self.runs.insert(id, birth);
    }

    pub(super) fn keyed(&self, key: &str) -> Option<RunId> {
        self.keys.get(key).copied()
    }

    pub(super) fn end(&mut self, id: i64, end: End) {
        let Some(birth) = self.runs.get_mut(&id) else { return };
        self.ended += usize::from(birth.end.is_none());
        // It ends once, whatever is said of it later.
        let at = birth.end.map_or(end.at, |first| first.at);
        birth.end = Some(End { at, ..end });
        self.changed.push(Changed::Young(id, birth.clone()));
    }

    /// The runs that have ended, or all of them.
    pub(super) fn ids(&self, all: bool) -> Vec<i64> {
        self.runs.iter().filter(|(_, birth)| all || birth.end.is_some()).map(|(id, _)| *id).collect()
    }

    pub(super) fn run(&self, id: i64) -> Option<RunId> {
        self.runs.get(&id).map(|birth| birth.run)
    }

    /// Writes the row of a run that has this journal now. True if it has ended.
    pub(super) fn write(&mut self, connection: &Connection, opening: i64, journal: &Journal) -> rusqlite::Result<bool> {
        let Some(birth) = self.runs.remove(&journal.run) else { return Ok(false) };
        let has_ended = birth.end.is_some();
        self.ended -= usize::from(has_ended);
        if let Some(key) = &birth.key {
            self.keys.remove(key);
        }
        birth.write(connection, opening, journal)?;
        self.changed.push(Changed::Grown(birth));
        Ok(has_ended)
    }

    /// What to tell those who read, once it is committed.
    pub(super) fn changed(&mut self) -> std::vec::Drain<'_, Changed> {
        self.changed.drain(..)
    }

    /// Their rows are written when the file is opened again.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Selects the numbers of runs whose rows are still to come.
macro_rules! young {
    () => {
        "SELECT run FROM log WHERE position > (SELECT packed FROM file) AND seq = 0 AND note IS NOT NULL
             AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = log.run)"
    };
}
pub(super) use young;

/// Rows of the log whose run has none.
const ROWLESS: &str = log::hot!(
    "WHERE position > (SELECT packed FROM file) AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = log.run)
     ORDER BY position"
);

/// What the log says of a run that has no row.
#[derive(Default)]
struct Found {
    birth: Option<Birth>,
    ending: Option<Ending>,
    /// When its last record up to there was written.
    ended: Option<Timestamp>,
    session: Option<i64>,
    tail: Tail,
    /// Whether one of its rows is not what was written, so that nothing here can be relied on.
    damaged: bool,
}

impl Found {
    fn see(&mut self, row: &SqlRow<'_>) -> rusqlite::Result<()> {
        self.damaged |= !log::is_sound(row)?;
        let seq = unsigned(row.get(2)?);
        self.tail = Tail { position: row.get(0)?, end: seq.saturating_add(unsigned(row.get(3)?)) };
        self.session = row.get(5)?;
        let Some(noted) = row.get_ref(7)?.as_str_or_null().unwrap_or(None).and_then(note::read) else { return Ok(()) };
        self.birth = self.birth.take().or(noted.birth);
        if noted.ending.is_some() {
            let last = row.get_ref(6)?.as_str().unwrap_or_default().lines().last().unwrap_or_default();
            self.ended = self.ended.or(read::decode(last).ok().map(|log::At { at }| at));
            self.ending = noted.ending;
        }
        Ok(())
    }

    /// Nothing without a birth.
    fn born(self, id: i64) -> Option<Born> {
        let birth = self.birth?;
        let end = self.ending.map(|ending| End { at: self.ended.unwrap_or(birth.at), ending });
        let journal = Journal { run: id, session: self.session, tail: self.tail };
        Some(Born { birth: Birth { end, ..birth }, journal, damaged: self.damaged })
    }
}

/// A run that has no row in the file.
pub(super) struct Born {
    pub(super) birth: Birth,
    pub(super) journal: Journal,
    /// Whether its journal is not what was written, so that its row cannot be relied on either.
    pub(super) damaged: bool,
}

/// The run whose journal has a row there, by what its first row notes.
pub(super) fn run_at(view: &Connection, position: i64) -> rusqlite::Result<Option<RunId>> {
    let mut statement = view.prepare_cached("SELECT previous, note FROM log WHERE position = ?1")?;
    let (mut place, mut first) = (position, None);
    while place != 0 {
        let row = statement.query_row([place], |row| Ok((row.get(0)?, row.get::<_, Option<String>>(1)?))).optional()?;
        let Some((previous, note)) = row else { return Ok(None) };
        (place, first) = (previous, note);
    }
    Ok(first.as_deref().and_then(note::read).and_then(|noted| noted.birth).map(|birth| birth.run))
}

/// The runs that have no row in the file, in the order of their numbers. Of records without a birth, whoever looks through the
/// file says what is wrong with them.
pub(super) fn find(connection: &Connection) -> rusqlite::Result<Vec<Born>> {
    // Whoever closes a file in good order leaves none; a copy of one says the same of itself, whatever was copied.
    if connection.query_row("SELECT clean AND NOT copy FROM file", [], |row| row.get(0))? {
        return Ok(Vec::new());
    }
    let mut found: BTreeMap<i64, Found> = BTreeMap::new();
    let mut statement = connection.prepare(ROWLESS)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        found.entry(row.get(1)?).or_default().see(row)?;
    }
    Ok(found.into_iter().filter_map(|(id, found)| found.born(id)).collect())
}

/// Writes the rows of runs that had none when the file was last written to.
pub(super) fn write_down(connection: &Connection) -> rusqlite::Result<()> {
    let young = find(connection)?;
    if young.is_empty() {
        return Ok(());
    }
    // Whoever opened the file before wrote down those that were born earlier.
    let opening = connection.query_row("SELECT openings FROM file", [], |row| row.get(0))?;
    let transaction = connection.unchecked_transaction()?;
    let mut taken = transaction.prepare("SELECT 1 FROM runs WHERE run = ?1 OR key = ?2")?;
    for Born { birth, journal, damaged } in young {
        if damaged && taken.exists(rusqlite::params![birth.run.as_bytes(), birth.key])? {
            // Not its own name, nor its key. Its records are of no run, and a check says so.
            continue;
        }
        birth.write(&transaction, opening, &journal)?;
        if damaged {
            // No row has this checksum: it stays damaged.
            transaction.execute("UPDATE runs SET sum = -1 WHERE id = ?1", [journal.run])?;
        }
    }
    drop(taken);
    transaction.commit()
}
