//! Jobs against the file, inside the transaction of their group. Each is decided first and written then; only a
//! decided job writes, so that a refused one leaves nothing behind.

mod claim;
mod create;
mod mail;

pub(super) use create::{KEYED, Row, Sessions, insert};
pub(super) use mail::KNOWN;

use rusqlite::{Connection, OptionalExtension, params};
use rustc_hash::FxHashMap;
use windlass_core::RunId;
use windlass_core::store::{Guard, StoreError};
use windlass_core::time::Timestamp;

use super::blobs;
use super::decide::{self, AT_ONCE, Head, Owner, Verdict};
use super::job::{Letter, Phase, Start, State, Write};
use super::log::{self, End, Tail, Tails, signed, unsigned};
use super::places;
use super::read::{self, ReadError};
use super::retention;
use super::sum::{run_is_sound, run_sum};

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
    pub(super) end: &'a mut End,
    pub(super) tails: &'a Tails,
    /// Runs that hardly anybody asks for soon: forgotten after the group, and found in the file by whoever does.
    pub(super) resting: &'a mut Vec<RunId>,
    pub(super) opening: i64,
    pub(super) sessions: &'a mut Sessions,
}

impl Table<'_> {
    pub(super) fn write(&mut self, write: &Write) -> Result<(), Trouble> {
        let owner = match write.guard {
            Guard::Owner { run, epoch, expected_seq } => Some(Owner { run, epoch, expected_seq }),
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
                return self.compare(owner, &head, write);
            }
        }
        let starts = self.check_creations(write, owner)?;
        let letters = self.check_mail(write, owner, &starts)?;
        let refers = blobs::check(self.connection, write, owner.map(|owner| owner.run), &starts)?;
        // Nothing is refused from here on. A refusal now would leave half a commit behind, so the group fails instead.
        self.apply(write, owner, &starts, &letters).map_err(|trouble| match trouble {
            Trouble::Refused(_) => Trouble::Sql(rusqlite::Error::QueryReturnedNoRows),
            Trouble::Sql(error) => Trouble::Sql(error),
        })?;
        Ok(blobs::refer(self.connection, &refers)?)
    }

    fn apply(
        &mut self,
        write: &Write,
        owner: Option<Owner>,
        starts: &[&Start],
        letters: &[&Letter],
    ) -> Result<(), Trouble> {
        if let Some(owner) = owner {
            self.change(owner, write)?;
        }
        for start in starts {
            self.start(start)?;
        }
        for letter in letters {
            self.deliver(letter)?;
        }
        Ok(())
    }

    /// What is known of a run, from memory or else from the file.
    pub(super) fn head(&mut self, run: RunId) -> Result<Option<&mut Head>, Trouble> {
        // Two look-ups, because the borrow checker does not see that the first one's miss ends its borrow.
        if !self.heads.contains_key(&run) {
            if Some(run) > self.end.newest {
                return Ok(None);
            }
            let Some(head) = load(self.connection, self.tails, run)? else { return Ok(None) };
            self.heads.insert(run, head);
        }
        Ok(self.heads.get_mut(&run))
    }

    /// Whether an earlier commit wrote exactly this one. Then it has its answer; nothing is written again.
    fn compare(&mut self, owner: Owner, head: &Head, write: &Write) -> Result<(), Trouble> {
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
        if write.records.is_empty() {
            return Ok(());
        }
        let rows =
            log::rows(self.connection, head.id, head.tail, owner.expected_seq, 1).map_err(|error| match error {
                ReadError::Sql(error) if !read::is_damage(&error) => Trouble::Sql(error),
                error => Trouble::Refused(error.told(Some(owner.run))),
            })?;
        let same = |row: &log::Row| row.seq == owner.expected_seq && row.body == write.records.text.body;
        if rows.unwrap_or_default().first().is_some_and(same) { Ok(()) } else { Err(different()) }
    }

    /// Writes what an owner's commit says about its own run.
    fn change(&mut self, owner: Owner, write: &Write) -> Result<(), Trouble> {
        let connection = self.connection;
        if let Some(creation) = &write.create {
            let head = self.create(owner, creation, write)?;
            self.heads.insert(owner.run, head);
        }
        let Some(head) = self.heads.get_mut(&owner.run) else { return Err(StoreError::NoSuchRun(owner.run).into()) };
        set_facts(connection, head, write)?;
        if let Some(list) = &write.places {
            places::set(connection, head.id, list)?;
        }
        head.tail = self.end.append(connection, &head.journal(), &write.records)?;
        mail::consume(connection, head, &write.consumed)?;
        if let Some(state) = &write.state {
            let ends_turn = head.turn && state.phase == Phase::Finished;
            head.phase = state.phase;
            if write.create.is_none() {
                let ended = retention::ended(connection, head, write)?;
                set_state(connection, head, state, ended)?;
            }
            self.end.saved(head.id);
            if ends_turn {
                next_turn(connection, head)?;
            }
        }
        if head.is_at_rest() {
            self.resting.push(owner.run);
        }
        Ok(())
    }
}

/// Writes what changed besides state and journal, if anything did. Comes before the journal grows: a new generation
/// begins where the journal ends now.
fn set_facts(connection: &Connection, head: &mut Head, write: &Write) -> rusqlite::Result<()> {
    if write.doubts.is_none() && write.parks.is_none() && write.examined.is_none() && !write.continues {
        return Ok(());
    }
    if let Some(examined) = write.examined {
        // Never back, and never beyond the latest message: that would lose the next one.
        head.examined = head.examined.max(examined.min(head.mail));
    }
    // A generation that has no records is continued by itself: resubmitting the commit that began it changes nothing.
    if write.continues && head.base != head.tail.end {
        head.generation += 1;
        head.base = head.tail.end;
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
    head: &mut Head,
    state: &State,
    ended: Option<Timestamp>,
) -> rusqlite::Result<()> {
    head.turn &= state.phase != Phase::Finished;
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
        signed(head.tail.end),
        ended.map(Timestamp::as_micros),
    ])?;
    Ok(())
}

const NEXT_TURN: &str = "UPDATE runs SET wake = ?2 WHERE phase = 0 AND id =
    (SELECT id FROM runs WHERE session = ?1 AND turn IS NOT NULL ORDER BY id LIMIT 1)";

/// The turn of this run is over: whoever waits first in its session is due.
fn next_turn(connection: &Connection, head: &Head) -> rusqlite::Result<()> {
    connection.prepare_cached(NEXT_TURN)?.execute(params![head.session, AT_ONCE])?;
    Ok(())
}

const LOAD: &str = concat!(
    "SELECT id, epoch, phase, doubts, examined, generation, base, session, turn IS NOT NULL, tail, length, summary,
            (SELECT coalesce(max(position), 0) FROM mail WHERE mail.run = runs.id), ",
    run_is_sound!(),
    " FROM runs WHERE run = ?1"
);

/// The row of a run that is not what was written.
pub(super) fn damaged_row(run: RunId) -> StoreError {
    StoreError::Damaged { run: Some(run), place: read::ROW.to_owned() }
}

fn load(connection: &Connection, tails: &Tails, run: RunId) -> Result<Option<Head>, Trouble> {
    let row = connection
        .prepare_cached(LOAD)?
        .query_row([run.as_bytes()], |row| {
            if !row.get(13)? {
                return Ok(None);
            }
            let id = row.get(0)?;
            let resting = Tail { position: row.get(9)?, end: unsigned(row.get(10)?) };
            let head = Head {
                id,
                epoch: unsigned(row.get(1)?),
                tail: tails.get(id).unwrap_or(resting),
                mail: unsigned(row.get(12)?),
                examined: unsigned(row.get(4)?),
                phase: Phase::Running,
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
    // A row that cannot be read refuses its own run's commits, not those of the others in the group.
    let row = match row {
        Err(error) if read::is_damage(&error) => return Err(damaged_row(run).into()),
        row => row?,
    };
    let Some(row) = row else { return Ok(None) };
    let (mut head, phase, doubts) = row.ok_or_else(|| damaged_row(run))?;
    head.phase = Phase::from_number(phase).ok_or_else(|| damaged_row(run))?;
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
    fn every_question_of_the_writer_is_answered_by_an_index() {
        let expected = [
            (LOAD, "SEARCH runs USING INDEX sqlite_autoindex_runs_1 (run=?)"),
            (KEYED, "SEARCH runs USING INDEX runs_by_key (key=?)"),
            (purge::SPENT, "SEARCH tombstones USING PRIMARY KEY (key=?)"),
            (create::TURN, "SEARCH runs USING INDEX runs_turns (session=?)"),
            (claim::FIRST_TURN, "SEARCH runs USING INDEX runs_turns (session=?)"),
            (NEXT_TURN, "SEARCH runs USING INTEGER PRIMARY KEY (rowid=?)"),
            (KNOWN, "SEARCH mail USING COVERING INDEX mail_by_dedupe (run=? AND dedupe=?)"),
        ];
        for (sql, start) in expected {
            let plan = plan(sql);
            assert!(plan.starts_with(start) && is_indexed(&plan), "{sql}: {plan}");
        }
    }
}
