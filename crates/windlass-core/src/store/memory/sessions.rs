//! Sessions in memory: their turns, and the order of their records.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::super::{Creation, Entry as FeedRecord, SessionSettings, SessionVerdict, most_unfinished};
use super::Inner;
use super::session_rows::SessionRow;
use crate::id::RunId;
use crate::time::Timestamp;
use crate::tool::LiveSessions;

#[derive(Default)]
pub(super) struct Sessions {
    pub(super) all: BTreeMap<Arc<str>, Session>,
    /// The position of the latest record of any session.
    position: u64,
    /// The verdicts on writes of unfinished runs, by the key of the operation.
    pub(super) verdicts: BTreeMap<RunId, Vec<(Arc<str>, SessionVerdict)>>,
    pub(super) live: LiveSessions,
}

#[derive(Default)]
pub(super) struct Session {
    pub(super) row: SessionRow,
    /// Runs that are kept, whatever their state.
    runs: usize,
    /// Those that have not ended.
    pub(super) unfinished: BTreeSet<RunId>,
    /// Turns that are not over; the first one is current.
    turns: VecDeque<RunId>,
    /// Records as position, run and sequence number.
    log: VecDeque<(u64, RunId, u64)>,
}

impl Sessions {
    pub(super) fn turn(&self, session: &str) -> Option<RunId> {
        self.all.get(session)?.turns.front().copied()
    }

    pub(super) fn is_turn(&self, session: &str, run: RunId) -> bool {
        self.all.get(session).is_some_and(|session| session.turns.contains(&run))
    }

    pub(super) fn is_busy(&self, session: &str) -> bool {
        self.turn(session).is_some()
    }

    /// The turn that a run has to wait for.
    pub(super) fn turn_before(&self, session: &str, run: RunId) -> Option<RunId> {
        let turns = &self.all.get(session)?.turns;
        turns.front().copied().filter(|turn| *turn != run && turns.contains(&run))
    }

    /// The limit of unfinished runs and the oldest of them, if the session has reached it with `more` besides.
    pub(super) fn full(&self, session: &str, most: Option<u64>, more: usize) -> Option<(u64, Option<RunId>)> {
        let found = self.all.get(session);
        let default = SessionSettings::default();
        let most = most_unfinished(found.map_or(&default, |found| &found.row.info.settings), most)?;
        let unfinished = found.map(|found| &found.unfinished);
        let count = unfinished.map_or(0, BTreeSet::len) + more;
        (count as u64 >= most).then(|| (most, unfinished.and_then(|runs| runs.first().copied())))
    }

    /// Adds a run. It begins a session that does not exist yet, which belongs to the principal of the run.
    pub(super) fn add_run(&mut self, session: &Arc<str>, run: RunId, creation: &Creation) {
        let found = self.all.entry(session.clone()).or_insert_with(|| {
            let mut session = Session::created(creation.at);
            session.row.info.owner = creation.principal.clone();
            session
        });
        found.runs += 1;
        found.unfinished.insert(run);
    }

    /// A run is no longer kept. The session goes with its last run, unless something else of it is kept.
    pub(super) fn remove_run(&mut self, session: &str) {
        let Some(found) = self.all.get_mut(session) else { return };
        found.runs = found.runs.saturating_sub(1);
        if found.runs == 0 && !found.row.kept {
            self.all.remove(session);
        }
    }

    pub(super) fn add_turn(&mut self, session: &Arc<str>, run: RunId) {
        self.all.entry(session.clone()).or_default().turns.push_back(run);
    }

    /// Ends a run, and its turn if it is one. Returns the next turn if the ended one was current.
    pub(super) fn end_run(&mut self, session: &str, run: RunId) -> Option<RunId> {
        let found = self.all.get_mut(session)?;
        found.unfinished.remove(&run);
        let turns = &mut found.turns;
        let index = turns.iter().position(|turn| *turn == run)?;
        turns.remove(index);
        turns.front().copied().filter(|_| index == 0)
    }

    pub(super) fn log(&mut self, session: &Arc<str>, run: RunId, seqs: Range<u64>) {
        let log = &mut self.all.entry(session.clone()).or_default().log;
        for seq in seqs {
            self.position += 1;
            log.push_back((self.position, run, seq));
        }
    }

    /// The records after `position`.
    pub(super) fn after(&self, session: &str, position: u64) -> impl Iterator<Item = (u64, RunId, u64)> {
        let log = self.all.get(session).map(|session| &session.log);
        let start = log.map_or(0, |log| log.partition_point(|(at, _, _)| *at <= position));
        log.into_iter().flat_map(move |log| log.range(start..).copied())
    }

    /// Removes the records of a run that is no longer kept.
    pub(super) fn forget(&mut self, session: &str, run: RunId) {
        if let Some(found) = self.all.get_mut(session) {
            found.log.retain(|(_, other, _)| *other != run);
        }
    }
}

impl Session {
    pub(super) fn created(at: Timestamp) -> Self {
        let mut session = Self::default();
        session.row.info.created = at;
        session
    }

    pub(super) fn has_runs(&self) -> bool {
        self.runs > 0
    }
}

impl Inner {
    pub(super) fn feed(&self, session: &str, after: u64, limit: usize) -> Vec<FeedRecord> {
        let logged = |(position, run, seq): (u64, RunId, u64)| {
            let records = &self.runs.get(&run)?.records;
            let record = records.get(usize::try_from(seq).ok()?)?.clone();
            Some(FeedRecord { position, run, seq, record })
        };
        self.sessions.after(session, after).filter_map(logged).take(limit).collect()
    }
}
