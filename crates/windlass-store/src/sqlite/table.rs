//! Jobs against the file, inside the transaction of their group. Each is decided first and written then; only a
//! decided job writes, so that a refused one leaves nothing behind.

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};
use rustc_hash::FxHashMap;
use windlass_core::RunId;
use windlass_core::run::state::RunState;
use windlass_core::store::{Guard, StoreError};

use super::decide::{self, Head, Owner, Verdict};
use super::job::{Letter, Phase, State, Taken, Write};
use super::read;

/// What the writer knows of runs without asking the file.
pub(super) type Heads = FxHashMap<RunId, Head>;

/// Why a job was not done.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It alone is refused.
    Refused(StoreError),
    /// Its whole group failed.
    Sql(rusqlite::Error),
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

/// The file under an open transaction, with what is known of it.
pub(super) struct Table<'a> {
    pub(super) connection: &'a Connection,
    pub(super) heads: &'a mut Heads,
    pub(super) opening: i64,
}

impl Table<'_> {
    pub(super) fn write(&mut self, write: &Write) -> Result<(), Trouble> {
        let Guard::Owner { run, epoch, expected_seq } = write.guard else {
            self.check_mail(&write.mail, None)?;
            return Ok(self.deliver(&write.mail)?);
        };
        let owner = Owner { run, epoch, expected_seq };
        let head = self.head(run)?;
        let verdict = decide::owner(head.as_deref(), owner, write.create.is_some(), !write.records.is_empty())?;
        if verdict == Verdict::Compare
            && let Some(head) = head
        {
            let head = head.clone();
            return self.compare(owner, &head, write);
        }
        self.check_mail(&write.mail, Some(run))?;
        self.change(owner, write)?;
        Ok(self.deliver(&write.mail)?)
    }

    /// Raises the run's epoch for a new owner.
    pub(super) fn claim(&mut self, run: RunId) -> Result<Taken, Trouble> {
        let opening = self.opening;
        let connection = self.connection;
        let head = self.head(run)?.ok_or(StoreError::NoSuchRun(run))?;
        if head.phase == Phase::Finished {
            return Err(StoreError::Finished(run).into());
        }
        let running = State::encode(&RunState::Running)?;
        let (last_opening, orderly): (i64, bool) = connection
            .prepare_cached("SELECT opening, orderly FROM runs WHERE id = ?1")?
            .query_row([head.id], |row| Ok((row.get(0)?, row.get(1)?)))?;
        head.epoch += 1;
        connection
            .prepare_cached("UPDATE runs SET epoch = ?2, opening = ?3, orderly = 0 WHERE id = ?1")?
            .execute(params![head.id, signed(head.epoch), opening])?;
        if head.phase == Phase::Held {
            head.phase = Phase::Running;
            set_state(connection, head.id, &running)?;
        }
        // An owner from an earlier opening died with its process: the lock on the file proves it. One from this opening
        // may still have attempts running right here.
        Ok(Taken { epoch: head.epoch, owners_dead: last_opening != opening, orderly })
    }

    pub(super) fn release(&mut self, run: RunId, epoch: u64) -> Result<(), Trouble> {
        let connection = self.connection;
        if let Some(head) = self.head(run)?
            && head.epoch == epoch
        {
            connection.prepare_cached("UPDATE runs SET orderly = 1 WHERE id = ?1")?.execute([head.id])?;
        }
        Ok(())
    }

    /// What is known of a run, from memory or else from the file.
    fn head(&mut self, run: RunId) -> Result<Option<&mut Head>, Trouble> {
        // Two look-ups, because the borrow checker does not see that the first one's miss ends its borrow.
        if !self.heads.contains_key(&run) {
            let Some(head) = load(self.connection, run)? else { return Ok(None) };
            self.heads.insert(run, head);
        }
        Ok(self.heads.get_mut(&run))
    }

    /// Refuses mail its addressee does not take. An owner's mail to its own run is not asked about.
    fn check_mail(&mut self, mail: &[Letter], owned: Option<RunId>) -> Result<(), Trouble> {
        for letter in mail.iter().filter(|letter| owned != Some(letter.run)) {
            let head = self.head(letter.run)?;
            decide::mail(letter.run, head.as_deref(), letter.settles.as_ref())?;
        }
        Ok(())
    }

    fn deliver(&mut self, mail: &[Letter]) -> rusqlite::Result<()> {
        for letter in mail {
            let connection = self.connection;
            let head = match self.head(letter.run) {
                Ok(Some(head)) => head,
                // Checked before: the addressee is there and readable.
                Ok(None) | Err(Trouble::Refused(_)) => return Err(rusqlite::Error::QueryReturnedNoRows),
                Err(Trouble::Sql(error)) => return Err(error),
            };
            head.mail += 1;
            connection
                .prepare_cached("INSERT INTO mail (run, position, body) VALUES (?1, ?2, ?3)")?
                .execute(params![head.id, signed(head.mail), letter.body])?;
            if head.phase == Phase::Finished
                && let Some((path, attempt)) = &letter.settles
            {
                // Nobody drives the run any more: the settlement itself closes the doubt, and stays as its annotation.
                head.doubts.retain(|doubt| doubt.path != *path || doubt.attempt != *attempt);
                let rest = if head.doubts.is_empty() { None } else { encode_doubts(&head.doubts) };
                connection
                    .prepare_cached("UPDATE runs SET doubts = ?2 WHERE id = ?1")?
                    .execute(params![head.id, rest])?;
            }
        }
        Ok(())
    }

    /// Whether an earlier commit wrote exactly this one. Then it has its answer; nothing is written again.
    fn compare(&self, owner: Owner, head: &Head, write: &Write) -> Result<(), Trouble> {
        let different = || Trouble::from(decide::out_of_sequence(owner, head));
        if let Some(create) = &write.create {
            let created = self
                .connection
                .prepare_cached("SELECT tool = ?2 AND created = ?3 FROM runs WHERE id = ?1")?
                .query_row(params![head.id, create.tool, create.at.as_micros()], |row| row.get::<_, bool>(0))?;
            if !created {
                return Err(different());
            }
        }
        let mut statement = self
            .connection
            .prepare_cached("SELECT body FROM log WHERE run = ?1 AND seq >= ?2 ORDER BY seq LIMIT ?3")?;
        let count = i64::try_from(write.records.len()).unwrap_or(i64::MAX);
        let mut rows = statement.query(params![head.id, signed(owner.expected_seq), count])?;
        for record in &write.records {
            let same = match rows.next()? {
                Some(row) => row.get_ref(0)?.as_bytes().map_err(rusqlite::Error::from)? == record.as_bytes(),
                None => false,
            };
            if !same {
                return Err(different());
            }
        }
        Ok(())
    }

    /// Writes what an owner's commit says about its own run.
    fn change(&mut self, owner: Owner, write: &Write) -> Result<(), Trouble> {
        let connection = self.connection;
        if write.create.is_some() {
            let head = self.create(owner, write)?;
            self.heads.insert(owner.run, head);
        }
        let Some(head) = self.heads.get_mut(&owner.run) else { return Err(StoreError::NoSuchRun(owner.run).into()) };
        if !write.records.is_empty() {
            let mut insert: CachedStatement<'_> =
                connection.prepare_cached("INSERT INTO log (run, seq, body) VALUES (?1, ?2, ?3)")?;
            for record in &write.records {
                insert.execute(params![head.id, signed(head.seq), record])?;
                head.seq += 1;
            }
        }
        if let Some(doubts) = &write.doubts {
            connection
                .prepare_cached("UPDATE runs SET doubts = ?2 WHERE id = ?1")?
                .execute(params![head.id, doubts.body])?;
            head.doubts.clone_from(&doubts.list);
        }
        if let Some(examined) = write.examined {
            // Never back, and never beyond the latest message: that would lose the next one.
            connection
                .prepare_cached("UPDATE runs SET examined = max(examined, ?2) WHERE id = ?1")?
                .execute(params![head.id, signed(examined.min(head.mail))])?;
        }
        if let Some(state) = &write.state {
            head.phase = state.phase;
            if write.create.is_none() {
                set_state(connection, head.id, state)?;
            }
        }
        if head.phase == Phase::Finished {
            // Hardly anybody asks for it again; whoever does finds it in the file.
            self.heads.remove(&owner.run);
        }
        Ok(())
    }

    fn create(&self, owner: Owner, write: &Write) -> Result<Head, Trouble> {
        let Some(create) = &write.create else { return Err(StoreError::NoSuchRun(owner.run).into()) };
        let running = State::encode(&RunState::Running)?;
        let state = write.state.as_ref().unwrap_or(&running);
        self.connection
            .prepare_cached(
                "INSERT INTO runs (run, tool, created, epoch, opening, phase, state) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute(params![
                owner.run.as_bytes(),
                create.tool,
                create.at.as_micros(),
                signed(owner.epoch),
                self.opening,
                state.phase as i64,
                state.body
            ])?;
        let id = self.connection.last_insert_rowid();
        Ok(Head { id, epoch: owner.epoch, seq: 0, mail: 0, phase: state.phase, doubts: Vec::new() })
    }
}

fn load(connection: &Connection, run: RunId) -> Result<Option<Head>, Trouble> {
    let sql = "SELECT id, epoch, phase, doubts,
                      (SELECT coalesce(max(seq) + 1, 0) FROM log WHERE log.run = runs.id),
                      (SELECT coalesce(max(position), 0) FROM mail WHERE mail.run = runs.id)
               FROM runs WHERE run = ?1";
    let row = connection
        .prepare_cached(sql)?
        .query_row([run.as_bytes()], |row| {
            let doubts: Option<String> = row.get(3)?;
            let phase: i64 = row.get(2)?;
            let head = Head {
                id: row.get(0)?,
                epoch: unsigned(row.get(1)?),
                seq: unsigned(row.get(4)?),
                mail: unsigned(row.get(5)?),
                phase: Phase::Running,
                doubts: Vec::new(),
            };
            Ok((head, phase, doubts))
        })
        .optional()?;
    let Some((mut head, phase, doubts)) = row else { return Ok(None) };
    // A row nobody can read refuses its own run's commits, not those of the others in the group.
    let unreadable = |what: String| StoreError::Unavailable(format!("the row of run {run} cannot be read: {what}"));
    head.phase = Phase::from_number(phase).ok_or_else(|| unreadable(format!("there is no phase {phase}")))?;
    if let Some(doubts) = doubts {
        head.doubts = read::decode(&doubts).map_err(|error| unreadable(error.to_string()))?;
    }
    Ok(Some(head))
}

fn set_state(connection: &Connection, id: i64, state: &State) -> rusqlite::Result<()> {
    connection.prepare_cached("UPDATE runs SET phase = ?2, state = ?3 WHERE id = ?1")?.execute(params![
        id,
        state.phase as i64,
        state.body
    ])?;
    Ok(())
}

/// SQLite's integers have a sign. Epochs are checked when a commit comes in, and the rest counts rows of the file.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// What is left of a list that was read from JSON can be written as JSON again.
fn encode_doubts(doubts: &[windlass_core::run::state::Doubt]) -> Option<String> {
    serde_json::to_string(doubts).ok()
}
