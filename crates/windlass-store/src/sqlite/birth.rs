//! Runs whose own row is not written yet.
//!
//! The row of a run, and its places in the indexes, are pages that only the first and the last commit of a run write. A run
//! that is created while nobody else has anything to write is at first nothing but rows in the log, the first of which says
//! who was born. Its row comes with the next group that is anything else than more records of the same run, and before
//! anybody reads: so whoever looks never sees the difference, and the first step of a run writes no more than the next.
//!
//! There is at most one such run. Its number is the highest, and the log ends with a row of it. After a crash it is found by
//! that, and its row is written before anything else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use rusqlite::{Connection, OptionalExtension};
use serde::{Deserialize, Serialize};
use windlass_core::run::state::RunState;
use windlass_core::store::{Creation, Guard, StoreError, Turn};
use windlass_core::time::Timestamp;
use windlass_core::{RunId, WorkerId};

use super::desk::Desk;
use super::job::{State, Write};
use super::log::{Tail, unsigned};
use super::table::{self, Row};

/// Runs that may be born like this say where: `log.birth`.
pub(super) const DDL: &str = "ALTER TABLE log ADD COLUMN birth TEXT;";

/// What the row of such a run will say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Birth {
    run: RunId,
    tool: Arc<str>,
    at: Timestamp,
    epoch: u64,
    worker: u64,
    /// The opening of the file during which it was born.
    opening: i64,
}

impl Birth {
    /// The run that a commit creates, if its row may come later: nothing but its id leads to it.
    pub(super) fn of(write: &Write, opening: i64) -> Option<Self> {
        let Guard::Owner { run, epoch, .. } = write.guard else { return None };
        let Creation { tool, at, worker, key, session, turn, parent, known } = write.create.as_ref()?;
        let found_otherwise = key.is_some() || session.is_some() || *turn != Turn::No || parent.is_some();
        if found_otherwise || !known || !write.is_plain() || write.records.is_empty() {
            return None;
        }
        Some(Self { run, tool: tool.clone(), at: *at, epoch, worker: worker.number(), opening })
    }

    pub(super) fn text(&self) -> Result<String, StoreError> {
        serde_json::to_string(self).map_err(|error| StoreError::Invalid(format!("it cannot be encoded: {error}")))
    }

    /// Writes the row.
    fn write(&self, connection: &Connection, id: i64, tail: Tail) -> rusqlite::Result<()> {
        let worker = WorkerId::from_number(self.worker);
        let creation = Creation { tool: self.tool.clone(), at: self.at, worker, ..Creation::default() };
        let state =
            State::encode(&RunState::Running).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        let row = Row {
            run: self.run,
            epoch: self.epoch,
            creation: &creation,
            state: &state,
            session: None,
            turn: false,
            wake: None,
            tail,
            ended: None,
        };
        table::insert(connection, id, self.opening, &row)
    }
}

/// The run whose row is not written yet.
pub(super) struct Young {
    pub(super) id: i64,
    pub(super) birth: Birth,
}

impl Young {
    pub(super) fn is(&self, run: RunId) -> bool {
        self.birth.run == run
    }

    pub(super) fn run(&self) -> RunId {
        self.birth.run
    }

    /// Writes its row, now that its journal ends there.
    pub(super) fn write(&self, connection: &Connection, tail: Tail) -> rusqlite::Result<()> {
        self.birth.write(connection, self.id, tail)
    }
}

/// Tells those who read that a row is to be written first, and has it written.
#[derive(Default)]
pub(super) struct Nursery {
    young: AtomicBool,
    desk: OnceLock<Weak<Desk>>,
}

impl Nursery {
    pub(super) fn open(&self, desk: &Arc<Desk>) {
        // Set once, where the store is opened.
        let _ = self.desk.set(Arc::downgrade(desk));
    }

    pub(super) fn tell(&self, young: bool) {
        self.young.store(young, Ordering::Release);
    }

    /// Returns when every run that was answered for has its row, or the file takes none.
    pub(super) fn settle(&self) {
        if self.young.load(Ordering::Acquire)
            && let Some(desk) = self.desk.get().and_then(Weak::upgrade)
        {
            desk.settle();
        }
    }
}

/// The row with which the log ends.
const LAST: &str = "SELECT run, position, seq + count FROM log ORDER BY position DESC LIMIT 1";

/// The highest number of a run that has a row, or had one.
const HIGHEST: &str = "SELECT max(runs, (SELECT coalesce(max(id), 0) FROM runs)) FROM file";

/// Writes the row of the run that had none when the file was last written to, if there is one.
pub(super) fn write_down(connection: &Connection) -> rusqlite::Result<()> {
    let last = connection.query_row(LAST, [], |row| {
        Ok((row.get::<_, i64>(0)?, Tail { position: row.get(1)?, end: unsigned(row.get(2)?) }))
    });
    let Some((id, tail)) = last.optional()? else { return Ok(()) };
    let highest: i64 = connection.query_row(HIGHEST, [], |row| row.get(0))?;
    if id <= highest {
        return Ok(());
    }
    match birth(connection, tail.position)? {
        Some(birth) => birth.write(connection, id, tail),
        // Whoever looks through the file says what is wrong with it.
        None => Ok(()),
    }
}

/// What the first row of a journal says that ends there.
fn birth(connection: &Connection, tail: i64) -> rusqlite::Result<Option<Birth>> {
    let mut statement = connection.prepare("SELECT previous, birth FROM log WHERE position = ?1")?;
    let mut place = tail;
    loop {
        let row = statement.query_row([place], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1)?)));
        match row.optional()? {
            None => return Ok(None),
            Some((_, Some(birth))) => return Ok(serde_json::from_str(&birth).ok()),
            Some((0, None)) => return Ok(None),
            Some((previous, None)) => place = previous,
        }
    }
}
