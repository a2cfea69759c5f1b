//! Creation of runs: by their owner, or queued for a worker.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use rustc_hash::FxHashMap;
use windlass_core::RunId;
use windlass_core::run::state::RunState;
use windlass_core::store::{Creation, SessionAccess, SessionSettings, SessionTools, StoreError, Turn, most_unfinished};
use windlass_core::time::Timestamp;

use super::super::checksum::{run_checksum, run_is_intact};
use super::super::decide::{self, AT_ONCE, NEVER, OwnerGuard, RunHead};
use super::super::job::{EncodedState, Records, RunPhase, Start, Write};
use super::super::log::{JournalTail, signed};
use super::super::sessions::{self, KnownSession};
use super::{JobError, WriteTx, damaged_row};

impl WriteTx<'_> {
    /// Refuses creations whose key or turn is taken, and returns the runs to start that do not exist yet.
    pub(super) fn check_creations<'w>(
        &mut self,
        write: &'w Write,
        owner: Option<OwnerGuard>,
    ) -> Result<Vec<&'w Start>, JobError> {
        let own = owner.map(|owner| owner.run);
        let created = own.zip(write.create.as_ref());
        if let Some((run, creation)) = created {
            self.check_creation(run, creation, &[])?;
            self.refuse_closed_session(creation)?;
            if !write.finishes() {
                self.refuse_full_session(run, creation, &[])?;
            }
        }
        if write.starts.is_empty() {
            return Ok(Vec::new());
        }
        let mut starts: Vec<&Start> = Vec::new();
        let mut before: Vec<(RunId, &Creation)> = created.into_iter().collect();
        for start in &write.starts {
            let known = own == Some(start.run) || before.iter().any(|(run, _)| *run == start.run);
            if known || self.head(start.run)?.is_some() {
                continue;
            }
            self.check_creation(start.run, &start.creation, &before)?;
            match &start.creation.session {
                // What an owner starts belongs to the work of a run that is there already, so it is not refused. Damage
                // must be found before anything is written.
                Some(session) if owner.is_some() => drop(self.known_session(session)?),
                _ => {
                    self.refuse_closed_session(&start.creation)?;
                    self.refuse_full_session(start.run, &start.creation, &before)?;
                }
            }
            before.push((start.run, &start.creation));
            starts.push(start);
        }
        Ok(starts)
    }

    /// `before` are the earlier creations of the same commit.
    fn check_creation(&self, run: RunId, creation: &Creation, before: &[(RunId, &Creation)]) -> Result<(), JobError> {
        if let Some(key) = &creation.key {
            let taken = before.iter().find(|(_, other)| other.key.as_ref() == Some(key)).map(|(run, _)| *run);
            let taken = if taken.is_some() { taken } else { self.keyed(key)? };
            if let Some(taken) = taken {
                return Err(StoreError::KeyTaken { run: taken }.into());
            }
            if let Some(run) = self.tombstone(key)? {
                return Err(StoreError::KeySpent { run }.into());
            }
        }
        if let (Some(session), Turn::Refuse) = (&creation.session, creation.turn) {
            let is_turn = |other: &Creation| other.session.as_ref() == Some(session) && other.turn != Turn::No;
            let turn = before.iter().find(|(_, other)| is_turn(other)).map(|(run, other)| (*run, other.at));
            let turn = if turn.is_some() { turn } else { self.turn(session)? };
            if let Some((turn, since)) = turn.filter(|(turn, _)| *turn != run) {
                return Err(StoreError::Busy { session: session.clone(), turn, since }.into());
            }
        }
        Ok(())
    }

    /// Refuses a new run in a session that is closed, or that must belong to the run's principal and does not.
    fn refuse_closed_session(&mut self, creation: &Creation) -> Result<(), JobError> {
        let Some(session) = &creation.session else { return Ok(()) };
        let Some(known) = self.known_session(session)? else { return Ok(()) };
        if creation.own_session {
            let (principal, owner) = (creation.principal.as_ref(), known.owner.as_ref());
            let is_opened = || sessions::is_opened(self.connection, session);
            if principal != owner && (owner.is_some() || !SessionAccess::admits(principal, owner, is_opened()?)) {
                return Err(StoreError::NoSession { session: session.clone() }.into());
            }
        }
        match known.is_closed {
            true => Err(StoreError::SessionClosed { session: session.clone() }.into()),
            false => Ok(()),
        }
    }

    fn known_session(&mut self, name: &Arc<str>) -> Result<Option<KnownSession>, JobError> {
        let mut known = self.sessions.get(name);
        if known.is_none() {
            known = KnownSession::find(self.connection, name)?;
            known.iter().for_each(|known| self.sessions.remember(name, known.clone()));
        }
        Ok(known)
    }

    /// Refuses a run in a session that has as many unfinished runs as it may have. `before` are the earlier creations of
    /// the same commit.
    fn refuse_full_session(
        &mut self,
        run: RunId,
        creation: &Creation,
        before: &[(RunId, &Creation)],
    ) -> Result<(), JobError> {
        let (Some(session), Some(most)) = (&creation.session, creation.most) else { return Ok(()) };
        let known = self.known_session(session)?;
        let own = known.as_ref().and_then(|known| known.most);
        let settings = SessionSettings { unfinished_runs: own, ..Default::default() };
        let Some(most) = most_unfinished(&settings, Some(most)) else { return Ok(()) };
        let in_session = |(_, other): &&(RunId, &Creation)| other.session.as_ref() == Some(session);
        let more = before.iter().filter(in_session).count() as u64;
        let count = match &known {
            Some(known) => sessions::count_unfinished(self.connection, known.id, most)?,
            None => 0,
        };
        if count + more < most {
            return Ok(());
        }
        let oldest = match known {
            Some(known) => sessions::unfinished(self.connection, known.id, 1)?.pop(),
            None => None,
        };
        let run = oldest.or(before.iter().find(in_session).map(|(run, _)| *run)).unwrap_or(run);
        Err(StoreError::SessionFull { session: session.clone(), most, run }.into())
    }

    pub(in crate::sqlite) fn keyed(&self, key: &str) -> Result<Option<RunId>, JobError> {
        let mut statement = self.connection.prepare_cached(RUN_BY_KEY)?;
        let found = statement.query_row([key], |row| Ok((RunId::from_bytes(row.get(0)?), row.get(1)?))).optional()?;
        match found {
            Some((run, false)) => Err(damaged_row(run).into()),
            found => Ok(found.map(|(run, _)| run)),
        }
    }

    /// The oldest unfinished turn of a session, and when it was created.
    pub(in crate::sqlite) fn turn(&self, session: &str) -> rusqlite::Result<Option<(RunId, Timestamp)>> {
        let mut statement = self.connection.prepare_cached(OPEN_TURN)?;
        let turn = |row: &rusqlite::Row<'_>| Ok((RunId::from_bytes(row.get(0)?), Timestamp::from_micros(row.get(1)?)));
        statement.query_row([session], turn).optional()
    }

    pub(super) fn create(
        &mut self,
        owner: OwnerGuard,
        creation: &Creation,
        write: &Write,
    ) -> Result<RunHead, JobError> {
        let running;
        let state = match &write.state {
            Some(state) => state,
            None => {
                running = EncodedState::encode(&RunState::Running)?;
                &running
            }
        };
        let session = self.session(creation)?;
        let turn = is_turn(creation) && state.phase != RunPhase::Finished;
        let wake = decide::wake(state, false);
        let tail = self.end.after(JournalTail::default(), &write.records);
        let ended = (state.phase == RunPhase::Finished).then(|| write.records.at.unwrap_or(creation.at));
        self.insert(&RunRow { run: owner.run, epoch: owner.epoch, creation, state, session, turn, wake, tail, ended })
    }

    /// Queues a run without an owner.
    pub(in crate::sqlite) fn start(
        &mut self,
        run: RunId,
        creation: &Creation,
        records: &Records,
    ) -> Result<(), JobError> {
        let turn = is_turn(creation);
        let waits = match &creation.session {
            Some(session) if turn => self.turn(session)?.is_some(),
            _ => false,
        };
        let wake = Some(if waits { NEVER } else { AT_ONCE });
        let state = &EncodedState::encode(&RunState::Queued)?;
        let session = self.session(creation)?;
        let tail = self.end.after(JournalTail::default(), records);
        let ended = None;
        let head = self.insert(&RunRow { run, epoch: 0, creation, state, session, turn, wake, tail, ended })?;
        self.end.append(self.connection, &head.journal(), records)?;
        self.end.saved(head.id);
        Ok(())
    }

    /// Inserts the row of a run. The returned head has no journal yet.
    fn insert(&mut self, row: &RunRow<'_>) -> Result<RunHead, JobError> {
        let RunRow { epoch, state, session, turn, .. } = *row;
        let id = self.end.number(row.run);
        insert(self.connection, id, self.opening, row)?;
        Ok(RunHead { session, turn, ..RunHead::new(id, epoch, state.phase) })
    }

    /// The number of a new run's session.
    fn session(&mut self, creation: &Creation) -> Result<Option<i64>, JobError> {
        let Some(name) = &creation.session else { return Ok(None) };
        if let Some(known) = self.known_session(name)? {
            return Ok(Some(known.id));
        }
        // The session belongs to the principal of its first run.
        let owner = creation.principal.clone();
        let id = sessions::insert(self.connection, name, creation.at, false, owner.as_deref())?;
        self.sessions.remember(name, KnownSession { id, is_closed: false, owner, most: None });
        Ok(Some(id))
    }
}

/// The writer's cache of sessions.
#[derive(Default)]
pub(in crate::sqlite) struct Sessions {
    known: FxHashMap<Arc<str>, KnownSession>,
    /// The tools that sessions show after the current group.
    shown: Vec<(Arc<str>, SessionTools)>,
}

/// Beyond this size the cache is cleared.
const MAX_SESSIONS: usize = 4_096;

impl Sessions {
    fn get(&self, name: &str) -> Option<KnownSession> {
        self.known.get(name).cloned()
    }

    fn remember(&mut self, name: &Arc<str>, known: KnownSession) {
        if self.known.len() >= MAX_SESSIONS {
            self.clear();
        }
        self.known.insert(name.clone(), known);
    }

    /// Reads a session again when it is needed.
    pub(in crate::sqlite) fn forget(&mut self, name: &str) {
        self.known.remove(name);
    }

    pub(in crate::sqlite) fn clear(&mut self) {
        self.known.clear();
    }

    /// Notes which tools a session shows as soon as the group is written.
    pub(in crate::sqlite) fn show_tools(&mut self, name: Arc<str>, tools: SessionTools) {
        self.shown.push((name, tools));
    }

    /// The tools that sessions show after the group.
    pub(in crate::sqlite) fn take_shown(&mut self) -> Vec<(Arc<str>, SessionTools)> {
        std::mem::take(&mut self.shown)
    }
}

/// A row of `runs` to insert.
pub(in crate::sqlite) struct RunRow<'a> {
    pub(in crate::sqlite) run: RunId,
    pub(in crate::sqlite) epoch: u64,
    pub(in crate::sqlite) creation: &'a Creation,
    pub(in crate::sqlite) state: &'a EncodedState,
    pub(in crate::sqlite) session: Option<i64>,
    pub(in crate::sqlite) turn: bool,
    pub(in crate::sqlite) wake: Option<i64>,
    /// The tail that its journal will have.
    pub(in crate::sqlite) tail: JournalTail,
    pub(in crate::sqlite) ended: Option<Timestamp>,
}

/// Inserts a row of `runs`.
pub(in crate::sqlite) fn insert(
    connection: &Connection,
    id: i64,
    opening: i64,
    row: &RunRow<'_>,
) -> rusqlite::Result<()> {
    let RunRow { run, epoch, creation, state, session, turn, wake, tail, ended } = *row;
    let sql = "INSERT INTO runs (id, run, tool, created, epoch, opening, worker, orderly, phase, state, wake, key,
                                 session, turn, parent_run, parent_path, tail, length, ended, principal, cause, mail, sum)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, 0,
                       windlass_sum(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 1, ?9, ?10, ?11, ?12, ?13,
                                    (SELECT name FROM sessions WHERE id = ?13), ?14, ?15, ?16, 0, 0, 0, NULL, NULL, 0,
                                    ?17, ?18, ?19, 0, 0)
                       + iif(?20 IS NULL AND ?21 IS NULL, 0, windlass_sum(?20, ?21)))";
    let parent = creation.parent.as_deref();
    connection.prepare_cached(sql)?.execute(params![
        id,
        run.as_bytes(),
        creation.tool,
        creation.at.as_micros(),
        signed(epoch),
        opening,
        creation.worker.number().cast_signed(),
        state.phase.is_orderly(),
        state.phase as i64,
        state.body,
        wake,
        creation.key,
        session,
        turn.then_some(1),
        parent.map(|(run, _)| run.as_bytes()),
        parent.map(|(_, path)| path.to_string()),
        tail.position,
        signed(tail.length),
        ended.map(Timestamp::as_micros),
        creation.principal,
        creation.cause,
    ])?;
    Ok(())
}

/// The run with a key, and whether its row is intact.
pub(in crate::sqlite) const RUN_BY_KEY: &str = concat!("SELECT run, ", run_is_intact!(), " FROM runs WHERE key = ?1");

pub(super) const OPEN_TURN: &str = "SELECT run, created FROM runs
    WHERE session = (SELECT id FROM sessions WHERE name = ?1) AND turn IS NOT NULL ORDER BY id LIMIT 1";

fn is_turn(creation: &Creation) -> bool {
    creation.session.is_some() && creation.turn != Turn::No
}
