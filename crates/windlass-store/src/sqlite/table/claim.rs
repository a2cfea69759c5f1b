//! Owners: who takes a run, who gives it up, and how long a worker is trusted to be alive.

use std::sync::Arc;

use rusqlite::{OptionalExtension, params};
use windlass_core::run::state::RunState;
use windlass_core::store::{Claimant, StoreError};
use windlass_core::time::Timestamp;
use windlass_core::{RunId, WorkerId};

use super::super::decide::Head;
use super::super::job::{Phase, State, Taken};
use super::super::log::signed;
use super::{Table, Trouble};

/// What the file says of the last owner.
struct Last {
    worker: i64,
    /// Whether it died with an earlier opening of the file: the lock on the file proves it.
    dead: bool,
    orderly: bool,
    /// Whether all owners before it were dead, or had ended well, when it claimed.
    clean: bool,
}

pub(super) const FIRST_TURN: &str = "SELECT id, run, (SELECT name FROM sessions WHERE sessions.id = runs.session)
    FROM runs WHERE session = ?1 AND turn IS NOT NULL ORDER BY id LIMIT 1";

impl Table<'_> {
    /// Raises the run's epoch for a new owner.
    pub(in crate::sqlite) fn claim(&mut self, run: RunId, by: Claimant) -> Result<Taken, Trouble> {
        let head = self.head(run)?.ok_or(StoreError::NoSuchRun(run))?.clone();
        if head.phase == Phase::Finished {
            return Err(StoreError::Finished(run).into());
        }
        let last = self.last_owner(&head)?;
        let claimant = by.worker.number().cast_signed();
        if head.phase == Phase::Running && last.worker != claimant && !last.dead && !last.orderly {
            self.refuse_leased(run, last.worker, by.now)?;
        }
        if head.phase == Phase::Queued && head.turn {
            self.refuse_early(&head)?;
        }
        // An owner from this opening may still have attempts running right here, unless it ended well.
        let owners_dead = last.dead || (last.orderly && last.clean);
        let epoch = head.epoch + 1;
        let running = State::encode(&RunState::Running)?;
        let sql =
            "UPDATE runs SET epoch = ?2, opening = ?3, worker = ?4, orderly = 0, clean = ?5, phase = ?6, state = ?7,
                          wake = NULL
                   WHERE id = ?1";
        self.connection.prepare_cached(sql)?.execute(params![
            head.id,
            signed(epoch),
            self.opening,
            claimant,
            owners_dead,
            running.phase as i64,
            running.body
        ])?;
        self.heads.insert(run, Head { epoch, phase: Phase::Running, ..head.clone() });
        let turn = head.turn;
        let worker = WorkerId::from_number(last.worker.cast_unsigned());
        Ok(Taken { epoch, owners_dead, orderly: last.orderly, last: worker, turn })
    }

    fn last_owner(&self, head: &Head) -> rusqlite::Result<Last> {
        let mut statement =
            self.connection.prepare_cached("SELECT worker, opening, orderly, clean FROM runs WHERE id = ?1")?;
        statement.query_row([head.id], |row| {
            let dead = row.get::<_, i64>(1)? != self.opening;
            Ok(Last { worker: row.get(0)?, dead, orderly: row.get(2)?, clean: row.get(3)? })
        })
    }

    fn refuse_leased(&self, run: RunId, worker: i64, now: Timestamp) -> Result<(), Trouble> {
        let until: Option<i64> = self
            .connection
            .prepare_cached("SELECT until FROM workers WHERE id = ?1")?
            .query_row([worker], |row| row.get(0))
            .optional()?;
        match until.map(Timestamp::from_micros) {
            Some(until) if until > now => Err(StoreError::Leased { run, until }.into()),
            _ => Ok(()),
        }
    }

    /// Refuses a turn that has turns before it.
    fn refuse_early(&self, head: &Head) -> Result<(), Trouble> {
        let (id, turn, session) = self.connection.prepare_cached(FIRST_TURN)?.query_row([head.session], |row| {
            Ok((row.get::<_, i64>(0)?, RunId::from_bytes(row.get(1)?), row.get::<_, Arc<str>>(2)?))
        })?;
        if id == head.id { Ok(()) } else { Err(StoreError::Busy { session, turn }.into()) }
    }

    pub(in crate::sqlite) fn release(&mut self, run: RunId, epoch: u64) -> Result<(), Trouble> {
        let connection = self.connection;
        if let Some(head) = self.head(run)?
            && head.epoch == epoch
        {
            connection.prepare_cached("UPDATE runs SET orderly = 1 WHERE id = ?1")?.execute([head.id])?;
        }
        Ok(())
    }

    pub(in crate::sqlite) fn renew(&mut self, worker: WorkerId, until: Timestamp) -> Result<(), Trouble> {
        self.connection
            .prepare_cached("INSERT INTO workers (id, until) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET until = ?2")?
            .execute(params![worker.number().cast_signed(), until.as_micros()])?;
        Ok(())
    }
}
