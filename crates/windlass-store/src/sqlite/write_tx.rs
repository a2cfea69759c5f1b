//! Runs jobs within the transaction of their group. Each job is decided before it writes anything, so that a refused
//! job leaves nothing behind.

mod claim;
mod create;
mod mail;

pub(super) use create::{RUN_BY_KEY, RunRow, Sessions, insert};
pub(super) use mail::HAS_DEDUPE_KEY;

use rusqlite::{Connection, OptionalExtension, params};
use rustc_hash::FxHashMap;
use windlass_core::RunId;
use windlass_core::store::{FileReservations, Guard, StoreError};
use windlass_core::time::Timestamp;

use super::blobs;
use super::checksum::{run_checksum, run_is_intact};
use super::decide::{self, AT_ONCE, OwnerGuard, RunHead, Verdict};
use super::job::{EncodedState, PendingMessage, RunPhase, Start, Write};
use super::key_places;
use super::log::{self, JournalTail, JournalTails, LogEnd, signed, unsigned};
use super::read::{self, ReadError};
use super::retention;
use super::sessions;

/// Run heads that the writer has in memory.
pub(super) type RunHeads = FxHashMap<RunId, RunHead>;

/// Why a job failed.
#[derive(Debug)]
pub(super) enum JobError {
    /// Only this job is refused.
    Refused(StoreError),
    /// The whole group fails.
    Sql(rusqlite::Error),
}

impl From<rusqlite::Error> for JobError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for JobError {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

/// An open transaction, with the writer's caches.
pub(super) struct WriteTx<'a> {
    pub(super) connection: &'a Connection,
    pub(super) heads: &'a mut RunHeads,
    pub(super) end: &'a mut LogEnd,
    pub(super) tails: &'a JournalTails,
    /// Runs whose heads are cold. They are dropped from the cache after the group.
    pub(super) cold_runs: &'a mut Vec<RunId>,
    pub(super) opening: i64,
    pub(super) sessions: &'a mut Sessions,
    /// Paths of session files that are about to be changed with an outcome.
    pub(super) reserved: &'a mut FileReservations,
}

impl WriteTx<'_> {
    pub(super) fn write(&mut self, write: &Write) -> Result<(), JobError> {
        let owner = match write.guard {
            Guard::Owner { run, epoch, expected_seq } => Some(OwnerGuard { run, epoch, expected_seq }),
            Guard::Outsider => None,
        };
        if let Some(owner) = owner {
            let head = self.head(owner.run)?;
            let appends = !write.records.is_empty();
            let verdict = decide::owner(head.as_deref(), owner, write.create.is_some(), appends)?;
            if verdict == Verdict::Compare
                && let Some(head) = head
            {
                let head = head.clone();
                return self.check_resubmission(owner, &head, write);
            }
        }
        let starts = self.check_creations(write, owner)?;
        let messages = self.check_mail(write, owner, &starts)?;
        let refers = blobs::check(self.connection, write, owner.map(|owner| owner.run), &starts)?;
        // Nothing may be refused from here on: a refusal would leave half a commit behind, so it fails the whole group.
        self.apply(write, owner, &starts, &messages).map_err(|error| match error {
            JobError::Refused(_) => JobError::Sql(rusqlite::Error::QueryReturnedNoRows),
            JobError::Sql(error) => JobError::Sql(error),
        })?;
        Ok(blobs::refer(self.connection, &refers)?)
    }

    fn apply(
        &mut self,
        write: &Write,
        owner: Option<OwnerGuard>,
        starts: &[&Start],
        messages: &[&PendingMessage],
    ) -> Result<(), JobError> {
        if let Some(owner) = owner {
            self.apply_to_own_run(owner, write)?;
        }
        for start in starts {
            self.start(start.run, &start.creation, &start.records)?;
        }
        for message in messages {
            self.deliver(message)?;
        }
        self.post_messages(&write.posts)?;
        self.change_tools(&write.tools)?;
        owner.map_or(Ok(()), |owner| self.edit_files(&write.edits, owner.run))
    }

    /// The head of a run, from the cache or from the file.
    pub(super) fn head(&mut self, run: RunId) -> Result<Option<&mut RunHead>, JobError> {
        // Two lookups, because the borrow checker does not see that a miss ends the first borrow.
        if !self.heads.contains_key(&run) {
            if Some(run) > self.end.newest {
                return Ok(None);
            }
            let Some(head) = load(self.connection, self.tails, run)? else { return Ok(None) };
            self.heads.insert(run, head);
        }
        Ok(self.heads.get_mut(&run))
    }

    /// Accepts a commit that was already written, without writing it again. Fails if the journal has other records.
    fn check_resubmission(&mut self, owner: OwnerGuard, head: &RunHead, write: &Write) -> Result<(), JobError> {
        let different = || JobError::from(decide::out_of_sequence(owner, head));
        if let Some(create) = &write.create {
            let created = self
                .connection
                .prepare_cached("SELECT tool = ?2 AND created = ?3 FROM runs WHERE id = ?1")?
                .query_row(params![head.id, create.tool, create.at.as_micros()], |row| row.get::<_, bool>(0))?;
            if !created {
                return Err(different());
            }
        }
        if write.records.is_empty() {
            return Ok(());
        }
        let rows =
            log::rows(self.connection, head.id, head.tail, owner.expected_seq, 1).map_err(|error| match error {
                ReadError::Sql(error) if !read::is_damage(&error) => JobError::Sql(error),
                error => JobError::Refused(error.into_store_error(Some(owner.run))),
            })?;
        let same = |row: &log::LogRow| row.seq == owner.expected_seq && row.body == write.records.text.body;
        if rows.unwrap_or_default().first().is_some_and(same) { Ok(()) } else { Err(different()) }
    }

    /// Writes the changes that an owner's commit makes to its own run.
    fn apply_to_own_run(&mut self, owner: OwnerGuard, write: &Write) -> Result<(), JobError> {
        let connection = self.connection;
        if let Some(creation) = &write.create {
            let head = self.create(owner, creation, write)?;
            self.heads.insert(owner.run, head);
        }
        let Some(head) = self.heads.get_mut(&owner.run) else { return Err(StoreError::NoSuchRun(owner.run).into()) };
        update_columns(connection, head, write)?;
        if let Some(list) = &write.places {
            key_places::set(connection, head.id, list)?;
        }
        head.tail = self.end.append(connection, &head.journal(), &write.records)?;
        mail::consume(connection, head, &write.consumed)?;
        // A run that is created and ends in one commit has made no write to its session.
        if head.session.is_some() && write.create.is_none() && (write.finishes() || write.continues) {
            sessions::forget_verdicts(connection, head.id)?;
        }
        if let (Some(session), Some(outcomes)) = (head.session, &write.outcomes) {
            sessions::add_outcomes(connection, session, outcomes)?;
        }
        if let Some(state) = &write.state {
            let ends_turn = head.turn && state.phase == RunPhase::Finished;
            head.phase = state.phase;
            if write.create.is_none() {
                let ended = retention::ended(connection, head, write)?;
                set_state(connection, head, state, ended)?;
            }
            self.end.saved(head.id);
            if ends_turn {
                wake_next_turn(connection, head)?;
            }
        }
        let may_be_awaited = write.finishes() && head.mail > 0;
        if head.is_cold() {
            self.cold_runs.push(owner.run);
        }
        if may_be_awaited {
            let id = head.id;
            self.notify_awaiting(owner.run, id)?;
        }
        Ok(())
    }
}

/// Writes changes besides state and journal, if there are any. Runs before the journal grows, because a new generation
/// starts where the journal ends now.
fn update_columns(connection: &Connection, head: &mut RunHead, write: &Write) -> rusqlite::Result<()> {
    if write.doubts.is_none() && write.parks.is_none() && write.examined.is_none() && !write.continues {
        return Ok(());
    }
    if let Some(examined) = write.examined {
        // Never backwards, and never beyond the latest message, or the next one would be skipped.
        head.examined = head.examined.max(examined.min(head.mail));
    }
    // A generation without records does not start another one, so that resubmitting the commit that started it changes
    // nothing.
    if write.continues && head.base != head.tail.length {
        head.generation += 1;
        head.base = head.tail.length;
    }
    if let Some(doubts) = &write.doubts {
        head.doubts.clone_from(&doubts.list);
    }
    let doubts = write.doubts.as_ref();
    let parks = write.parks.as_ref();
    let sql = "UPDATE runs SET examined = ?2, generation = ?3, base = ?4, doubts = iif(?5, ?6, doubts),
                      parks = iif(?7, ?8, parks), asks = iif(?7, ?9, asks)
               WHERE id = ?1";
    connection.prepare_cached(sql)?.execute(params![
        head.id,
        signed(head.examined),
        head.generation,
        signed(head.base),
        doubts.is_some(),
        doubts.and_then(|doubts| doubts.body.as_deref()),
        parks.is_some(),
        parks.and_then(|parks| parks.body.as_deref()),
        parks.is_some_and(|parks| parks.asks),
    ])?;
    Ok(())
}

fn set_state(
    connection: &Connection,
    head: &mut RunHead,
    state: &EncodedState,
    ended: Option<Timestamp>,
) -> rusqlite::Result<()> {
    head.turn &= state.phase != RunPhase::Finished;
    let sql = "UPDATE runs SET phase = ?2, state = ?3, wake = ?4, orderly = ?5, turn = ?6, tail = ?7, length = ?8,
                      ended = iif(?2 = 4, coalesce(ended, ?9), NULL)
               WHERE id = ?1";
    connection.prepare_cached(sql)?.execute(params![
        head.id,
        state.phase as i64,
        state.body,
        decide::wake(state, head.mail > head.examined),
        state.phase.is_orderly(),
        head.turn.then_some(1),
        head.tail.position,
        signed(head.tail.length),
        ended.map(Timestamp::as_micros),
    ])?;
    Ok(())
}

const NEXT_TURN: &str = "UPDATE runs SET wake = ?2 WHERE phase = 0 AND id =
    (SELECT id FROM runs WHERE session = ?1 AND turn IS NOT NULL ORDER BY id LIMIT 1)";

/// The turn of this run is over, so the next queued turn of its session is due.
fn wake_next_turn(connection: &Connection, head: &RunHead) -> rusqlite::Result<()> {
    connection.prepare_cached(NEXT_TURN)?.execute(params![head.session, AT_ONCE])?;
    Ok(())
}

const LOAD: &str = concat!(
    "SELECT id, epoch, phase, doubts, examined, generation, base, session, turn IS NOT NULL, tail, length, summary,
            (SELECT coalesce(max(position), 0) FROM mail WHERE mail.run = runs.id), ",
    run_is_intact!(),
    " FROM runs WHERE run = ?1"
);

/// The error for a run whose row is damaged.
pub(super) fn damaged_row(run: RunId) -> StoreError {
    StoreError::Damaged { run: Some(run), place: read::RUN_ROW.to_owned() }
}

fn load(connection: &Connection, tails: &JournalTails, run: RunId) -> Result<Option<RunHead>, JobError> {
    let row = connection
        .prepare_cached(LOAD)?
        .query_row([run.as_bytes()], |row| {
            if !row.get(13)? {
                return Ok(None);
            }
            let id = row.get(0)?;
            let resting = JournalTail { position: row.get(9)?, length: unsigned(row.get(10)?) };
            let head = RunHead {
                id,
                epoch: unsigned(row.get(1)?),
                tail: tails.get(id).unwrap_or(resting),
                mail: unsigned(row.get(12)?),
                examined: unsigned(row.get(4)?),
                phase: RunPhase::Running,
                doubts: Vec::new(),
                generation: row.get(5)?,
                base: unsigned(row.get(6)?),
                session: row.get(7)?,
                turn: row.get(8)?,
                summary: row.get::<_, i64>(11)? != 0,
            };
            Ok(Some((head, row.get::<_, i64>(2)?, row.get::<_, Option<String>>(3)?)))
        })
        .optional();
    // A row that cannot be read fails only the commits of its own run, not the group.
    let row = match row {
        Err(error) if read::is_damage(&error) => return Err(damaged_row(run).into()),
        row => row?,
    };
    let Some(row) = row else { return Ok(None) };
    let (mut head, phase, doubts) = row.ok_or_else(|| damaged_row(run))?;
    head.phase = RunPhase::from_number(phase).ok_or_else(|| damaged_row(run))?;
    if let Some(doubts) = doubts {
        head.doubts = read::decode(&doubts).map_err(|_| damaged_row(run))?;
    }
    Ok(Some(head))
}

#[cfg(test)]
mod tests {
    use super::super::purge;
    use super::super::schema::tests::{is_indexed, plan};
    use super::*;

    #[test]
    fn every_query_of_the_writer_uses_an_index() {
        let expected = [
            (LOAD, "SEARCH runs USING INDEX sqlite_autoindex_runs_1 (run=?)"),
            (RUN_BY_KEY, "SEARCH runs USING INDEX runs_by_key (key=?)"),
            (purge::TOMBSTONE, "SEARCH tombstones USING PRIMARY KEY (key=?)"),
            (create::OPEN_TURN, "SEARCH runs USING INDEX runs_turns (session=?)"),
            (claim::FIRST_TURN, "SEARCH runs USING INDEX runs_turns (session=?)"),
            (NEXT_TURN, "SEARCH runs USING INTEGER PRIMARY KEY (rowid=?)"),
            (mail::UNREAD, "SEARCH mail USING PRIMARY KEY (run=?)"),
            (HAS_DEDUPE_KEY, "SEARCH mail USING COVERING INDEX mail_by_dedupe (run=? AND dedupe=?)"),
        ];
        for (sql, start) in expected {
            let plan = plan(sql);
            assert!(plan.starts_with(start) && is_indexed(&plan), "{sql}: {plan}");
        }
    }
}
