//! Decides whether a commit is accepted, before anything is changed.

use std::sync::Arc;

use super::super::{Change, Commit, Creation, Guard, Message, StoreError, Turn};
use super::Inner;
use crate::id::RunId;
use crate::run::state::RunState;
use crate::time::Timestamp;

/// What to do with a commit that is not refused.
#[derive(PartialEq)]
pub(super) enum CommitCheck {
    New,
    /// It was written before; answer it the same way.
    Repeated,
}

impl Inner {
    pub(super) fn check(&self, commit: &Commit) -> Result<CommitCheck, StoreError> {
        let Guard::Owner { run, epoch, expected_seq } = commit.guard else {
            self.check_outsider(&commit.changes)?;
            self.check_creations(&commit.changes, None)?;
            let started = || {
                commit.changes.iter().filter_map(|change| match change {
                    Change::Start { run, creation, .. } if !self.runs.contains_key(run) => Some((*run, creation)),
                    _ => None,
                })
            };
            self.refuse_closed_sessions(started().map(|(_, creation)| creation))?;
            self.refuse_full_sessions(started())?;
            self.check_refs(&commit.changes, None)?;
            return Ok(CommitCheck::New);
        };
        let creation = commit.changes.iter().find_map(|change| match change {
            Change::Create(creation) => Some(creation),
            _ => None,
        });
        if creation.is_some_and(|creation| creation.turn == Turn::Queue) {
            return Err(StoreError::Invalid("a run that is driven at once cannot wait for its turn".to_owned()));
        }
        let current = match (self.runs.get(&run), creation) {
            (None, None) => return Err(StoreError::NoSuchRun(run)),
            (None, Some(_)) => 0,
            (Some(entry), _) if entry.epoch != epoch => {
                return Err(StoreError::Stale { run, epoch, current: entry.epoch });
            }
            (Some(entry), _) if entry.summary => return Err(StoreError::Finished(run)),
            (Some(entry), _) if entry.repeats(expected_seq, creation, &commit.changes) => {
                return Ok(CommitCheck::Repeated);
            }
            (Some(entry), _) => entry.records.len() as u64,
        };
        if current != expected_seq || (creation.is_some() && self.runs.contains_key(&run)) {
            return Err(StoreError::WrongSequence { run, expected: expected_seq, current });
        }
        self.check_creations(&commit.changes, creation.map(|creation| (run, creation)))?;
        self.refuse_closed_sessions(creation.into_iter())?;
        let ends = |change: &Change| matches!(change, Change::State(RunState::Finished { .. }));
        if !commit.changes.iter().any(ends) {
            self.refuse_full_sessions(creation.map(|creation| (run, creation)).into_iter())?;
        }
        self.check_refs(&commit.changes, Some(run))?;
        Ok(CommitCheck::New)
    }

    fn check_outsider(&self, changes: &[Change]) -> Result<(), StoreError> {
        let mut keys = Vec::new();
        for change in changes {
            match change {
                Change::Mail { run, message, dedupe } => {
                    if let Some(dedupe) = dedupe {
                        if keys.contains(&(*run, dedupe)) {
                            return Err(StoreError::Duplicate { run: *run, dedupe: dedupe.clone() });
                        }
                        keys.push((*run, dedupe));
                    }
                    let starts = |other: &Change| matches!(other, Change::Start { run: other, .. } if other == run);
                    if self.runs.contains_key(run) || !changes.iter().any(starts) {
                        self.check_mail(*run, message, dedupe.as_ref())?;
                    }
                }
                Change::Start { .. } | Change::Refer { .. } => {}
                _ => {
                    let why = "a commit without an owner's epoch may only write to mailboxes and start runs";
                    return Err(StoreError::Invalid(why.to_owned()));
                }
            }
        }
        Ok(())
    }

    /// Refuses new runs in closed sessions, and in those of other principals. Not called for runs that an owner starts: they belong to the work of a run
    /// that is there already.
    fn refuse_closed_sessions<'c>(&self, creations: impl Iterator<Item = &'c Creation>) -> Result<(), StoreError> {
        for creation in creations {
            let Some(session) = &creation.session else { continue };
            if creation.own_session && !self.sessions.admits(session, creation) {
                return Err(StoreError::NoSession { session: session.clone() });
            }
            if self.sessions.is_closed(session) {
                return Err(StoreError::SessionClosed { session: session.clone() });
            }
        }
        Ok(())
    }

    /// Refuses new runs in sessions that have as many unfinished runs as they may have. Not called for runs that an
    /// owner starts.
    fn refuse_full_sessions<'c>(
        &self,
        creations: impl Iterator<Item = (RunId, &'c Creation)>,
    ) -> Result<(), StoreError> {
        let mut before: Vec<(&Arc<str>, RunId)> = Vec::new();
        for (run, creation) in creations {
            let Some(session) = &creation.session else { continue };
            let more: Vec<RunId> = before.iter().filter(|(other, _)| *other == session).map(|(_, run)| *run).collect();
            if let Some((most, oldest)) = self.sessions.full(session, creation.most, more.len()) {
                let run = oldest.or(more.first().copied()).unwrap_or(run);
                return Err(StoreError::SessionFull { session: session.clone(), most, run });
            }
            before.push((session, run));
        }
        Ok(())
    }

    /// Refuses a turn while the session has one that is not over.
    pub(super) fn refuse_turn(&self, session: &Arc<str>) -> Result<(), StoreError> {
        self.sessions.turn(session).map_or(Ok(()), |turn| Err(self.busy(session, turn)))
    }

    /// Refuses a turn that has to wait for earlier turns.
    pub(super) fn refuse_early(&self, session: &Arc<str>, run: RunId) -> Result<(), StoreError> {
        self.sessions.turn_before(session, run).map_or(Ok(()), |turn| Err(self.busy(session, turn)))
    }

    fn busy(&self, session: &Arc<str>, turn: RunId) -> StoreError {
        let since = self.runs.get(&turn).map_or(Timestamp::default(), |entry| entry.created);
        StoreError::Busy { session: session.clone(), turn, since }
    }

    /// Refuses new runs whose key or turn is taken, by an existing run or by one that the same commit creates before
    /// it.
    fn check_creations(&self, changes: &[Change], own: Option<(RunId, &Creation)>) -> Result<(), StoreError> {
        if let Some((_, creation)) = own {
            self.check_creation(creation, &[])?;
        }
        let mut starts = changes
            .iter()
            .filter_map(|change| match change {
                Change::Start { run, creation, .. } => Some((*run, creation)),
                _ => None,
            })
            .peekable();
        if starts.peek().is_none() {
            return Ok(());
        }
        let mut before: Vec<(RunId, &Creation)> = own.into_iter().collect();
        for (run, creation) in starts {
            if !self.runs.contains_key(&run) && !before.iter().any(|(other, _)| *other == run) {
                self.check_creation(creation, &before)?;
                before.push((run, creation));
            }
        }
        Ok(())
    }

    pub(super) fn check_creation(&self, creation: &Creation, before: &[(RunId, &Creation)]) -> Result<(), StoreError> {
        if let Some(key) = &creation.key {
            let same = before.iter().find(|(_, other)| other.key.as_ref() == Some(key)).map(|(run, _)| run);
            if let Some(taken) = same.or_else(|| self.keys.get(key)) {
                return Err(StoreError::KeyTaken { run: *taken });
            }
            if let Some(run) = self.removed_run_of(key) {
                return Err(StoreError::KeySpent { run });
            }
        }
        if let (Some(session), Turn::Refuse) = (&creation.session, creation.turn) {
            let is_turn = |other: &Creation| other.session.as_ref() == Some(session) && other.turn != Turn::No;
            if let Some((turn, other)) = before.iter().find(|(_, other)| is_turn(other)) {
                return Err(StoreError::Busy { session: session.clone(), turn: *turn, since: other.at });
            }
            self.refuse_turn(session)?;
        }
        Ok(())
    }

    /// Checks whether a run accepts a message.
    pub(super) fn check_mail(
        &self,
        run: RunId,
        message: &Message,
        dedupe: Option<&Arc<str>>,
    ) -> Result<(), StoreError> {
        self.runs.get(&run).ok_or(StoreError::NoSuchRun(run))?.refuse_mail(run, message, dedupe)
    }
}

/// The order in which the changes of one commit are applied: the run before its generation, the generation before its
/// records, all data of the run before its state, and the run before the references and messages it sends.
pub(super) fn change_order(change: &Change) -> u8 {
    match change {
        Change::Create(_) => 0,
        Change::Continue => 1,
        Change::Append(_) => 2,
        Change::Doubts(_)
        | Change::Parks(_)
        | Change::Keys(_)
        | Change::Leave(_)
        | Change::Examined(_)
        | Change::Consumed(_)
        | Change::Outcomes { .. } => 3,
        Change::State(_) => 4,
        Change::Start { .. } => 5,
        // A run must exist before it refers to something.
        Change::Refer { .. } => 6,
        Change::Mail { .. } | Change::Post { .. } | Change::Tools { .. } | Change::Edit { .. } => 7,
    }
}
