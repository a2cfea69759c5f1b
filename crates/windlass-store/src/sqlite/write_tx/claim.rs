//! Ownership of runs: claims, releases and leases.

use rusqlite::{OptionalExtension, params};
use windlass_core::run::state::RunState;
use windlass_core::store::StoreError;
use windlass_core::time::Timestamp;
use windlass_core::{RunId, WorkerId};

use super::super::decide::RunHead;
use super::super::job::{ClaimOutcome, Claimant, DueClaim, EncodedState, RunPhase};
use super::super::log::signed;
use super::super::read;
use super::{JobError, WriteTx};

/// The last owner, as stored in the file.
struct LastOwner {
    worker: i64,
    /// Whether it died with an earlier opening of the file, which the lock on the file proves.
    dead: bool,
    orderly: bool,
    /// Whether all owners before it were dead, or had released the run, when it claimed.
    clean: bool,
}

pub(super) const FIRST_TURN: &str =
    "SELECT id, run, (SELECT name FROM sessions WHERE sessions.id = runs.session), created
    FROM runs WHERE session = ?1 AND turn IS NOT NULL ORDER BY id LIMIT 1";

impl WriteTx<'_> {
    /// Raises the run's epoch for a new owner.
    pub(in crate::sqlite) fn claim(&mut self, run: RunId, by: Claimant) -> Result<ClaimOutcome, JobError> {
        let head = self.head(run)?.ok_or(StoreError::NoSuchRun(run))?.clone();
        if head.phase == RunPhase::Finished {
            return Err(StoreError::Finished(run).into());
        }
        let last = self.last_owner(&head)?;
        let claimant = by.worker.number().cast_signed();
        let was_running = head.phase == RunPhase::Running;
        if was_running && last.worker != claimant && !last.dead && !last.orderly {
            self.refuse_leased(run, last.worker, by.now)?;
        }
        if head.phase == RunPhase::Queued && head.turn {
            self.refuse_unless_first_turn(&head)?;
        }
        // An owner of this opening may still have attempts running in this process, unless it released the run.
        let owners_dead = last.dead || (last.orderly && last.clean);
        let epoch = head.epoch + 1;
        let running = EncodedState::encode(&RunState::Running)?;
        let died = was_running && !last.orderly && (last.dead || last.worker != claimant);
        let sql =
            "UPDATE runs SET epoch = ?2, opening = ?3, worker = ?4, orderly = 0, clean = ?5, phase = ?6, state = ?7,
                          wake = NULL, deaths = deaths + ?8
                   WHERE id = ?1";
        self.connection.prepare_cached(sql)?.execute(params![
            head.id,
            signed(epoch),
            self.opening,
            claimant,
            owners_dead,
            running.phase as i64,
            running.body,
            died
        ])?;
        self.heads.insert(run, RunHead { epoch, phase: RunPhase::Running, ..head.clone() });
        let turn = head.turn;
        let worker = WorkerId::from_number(last.worker.cast_unsigned());
        Ok(ClaimOutcome { epoch, owners_dead, was_running, orderly: last.orderly, last: worker, turn })
    }

    /// Claims due runs. A run that cannot be claimed stays due, and does not hide other due runs.
    pub(in crate::sqlite) fn claim_due(&mut self, by: Claimant, limit: usize) -> Result<Vec<DueClaim>, JobError> {
        let (mut found, mut refused) = (Vec::new(), 0);
        while found.len() < limit {
            let except = by.worker.number().cast_signed();
            let due = read::due(self.connection, by.now, (refused, limit - found.len()), self.opening, Some(except))?;
            if due.is_empty() {
                break;
            }
            for run in due {
                match self.claim(run, by) {
                    Ok(taken) => found.push((run, Ok(taken))),
                    Err(JobError::Refused(error)) => {
                        refused += 1;
                        found.push((run, Err(error)));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(found)
    }

    fn last_owner(&self, head: &RunHead) -> rusqlite::Result<LastOwner> {
        let mut statement =
            self.connection.prepare_cached("SELECT worker, opening, orderly, clean FROM runs WHERE id = ?1")?;
        statement.query_row([head.id], |row| {
            let dead = row.get::<_, i64>(1)? != self.opening;
            Ok(LastOwner { worker: row.get(0)?, dead, orderly: row.get(2)?, clean: row.get(3)? })
        })
    }

    fn refuse_leased(&self, run: RunId, worker: i64, now: Timestamp) -> Result<(), JobError> {
        let until: Option<i64> = self
            .connection
            .prepare_cached("SELECT until FROM workers WHERE id = ?1")?
            .query_row([worker], |row| row.get(0))
            .optional()?;
        match until.map(Timestamp::from_micros) {
            Some(until) if until > now => Err(StoreError::Leased { run, left: until.since(now) }.into()),
            _ => Ok(()),
        }
    }

    /// Refuses a turn that is not the first of its session.
    fn refuse_unless_first_turn(&self, head: &RunHead) -> Result<(), JobError> {
        let first = |row: &rusqlite::Row<'_>| {
            let busy = StoreError::Busy {
                session: row.get(2)?,
                turn: RunId::from_bytes(row.get(1)?),
                since: Timestamp::from_micros(row.get(3)?),
            };
            Ok((row.get::<_, i64>(0)?, busy))
        };
        let (id, busy) = self.connection.prepare_cached(FIRST_TURN)?.query_row([head.session], first)?;
        if id == head.id { Ok(()) } else { Err(busy.into()) }
    }

    pub(in crate::sqlite) fn release(&mut self, run: RunId, epoch: u64) -> Result<(), JobError> {
        let connection = self.connection;
        if let Some(head) = self.head(run)?
            && head.epoch == epoch
        {
            connection.prepare_cached("UPDATE runs SET orderly = 1 WHERE id = ?1")?.execute([head.id])?;
        }
        Ok(())
    }

    pub(in crate::sqlite) fn renew(&mut self, worker: WorkerId, until: Timestamp) -> Result<(), JobError> {
        self.connection
            .prepare_cached("INSERT INTO workers (id, until) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET until = ?2")?
            .execute(params![worker.number().cast_signed(), until.as_micros()])?;
        Ok(())
    }
}
