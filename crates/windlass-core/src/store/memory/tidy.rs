//! Removes runs that ended long ago, and runs that an operator purges.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::super::{Cutoffs, StoreError, Tidied, Upkeep};
use super::{Inner, MemoryStore, RunRow, ready};
use crate::id::RunId;
use crate::limits;
use crate::time::Timestamp;

/// The most runs that one call summarises, and the most that it removes.
const SLICE: usize = 64;

/// Marks the key of a removed run as taken.
pub(super) struct Tombstone {
    pub(super) run: RunId,
    since: Timestamp,
}

impl Inner {
    pub(super) fn tidy(&mut self, now: Timestamp) -> Tidied {
        let due = self.retention.cutoffs(now);
        let summaries = self.ended_by(due.full, |entry| !entry.summary && self.may_lose_journal(entry));
        for run in &summaries {
            self.summarize(*run);
        }
        let removals = self.ended_by(due.summary, |entry| entry.summary && !self.is_parent_kept(entry));
        for run in &removals {
            self.remove(*run, now);
        }
        self.free_keys(due);
        let emptied = self.empty_closed_sessions(due.sessions, SLICE);
        let swept = self.artifacts.sweep(now, limits::ARTIFACT_SWEEP);
        let (summarized, removed) = (summaries.len(), removals.len());
        // A removed run may have been the only reason to keep others.
        Tidied { summarized, removed, more: summarized + removed + emptied > 0 || swept.more }
    }

    /// Runs that ended at or before `by`, the oldest first.
    fn ended_by(&self, by: Option<Timestamp>, may: impl Fn(&RunRow) -> bool) -> Vec<RunId> {
        let Some(by) = by else { return Vec::new() };
        let ended = |entry: &RunRow| entry.ended.filter(|ended| *ended <= by && may(entry));
        let mut due: Vec<(Timestamp, RunId)> =
            self.runs.iter().filter_map(|(run, entry)| Some((ended(entry)?, *run))).collect();
        due.sort_unstable();
        due.into_iter().take(SLICE).map(|(_, run)| run).collect()
    }

    fn may_lose_journal(&self, entry: &RunRow) -> bool {
        let parent = entry.parent.as_ref().and_then(|parent| self.runs.get(&parent.0));
        entry.doubts.is_empty() && parent.is_none_or(|parent| parent.summary)
    }

    fn is_parent_kept(&self, entry: &RunRow) -> bool {
        entry.parent.as_ref().is_some_and(|parent| self.runs.contains_key(&parent.0))
    }

    fn summarize(&mut self, run: RunId) {
        let Some(entry) = self.runs.get_mut(&run) else { return };
        self.finished_records = self.finished_records.saturating_sub(entry.records.len());
        entry.summarize();
        self.artifacts.forget(run);
        if let Some(session) = entry.session.clone() {
            self.sessions.forget(&session, run);
        }
    }

    fn remove(&mut self, run: RunId, now: Timestamp) {
        let Some(entry) = self.runs.remove(&run) else { return };
        self.finished.retain(|other| *other != run);
        if let Some(key) = entry.key {
            self.keys.remove(&key);
            self.tombstones.insert(key, Tombstone { run, since: now });
        }
        if let Some(session) = entry.session {
            self.sessions.remove_run(&session);
        }
    }

    fn free_keys(&mut self, due: Cutoffs) {
        if let Some(by) = due.keys {
            self.tombstones.retain(|_, tombstone| tombstone.since > by);
        }
    }

    /// The removed run that this key belonged to.
    pub(super) fn removed_run_of(&self, key: &Arc<str>) -> Option<RunId> {
        self.tombstones.get(key).map(|tombstone| tombstone.run)
    }

    pub(super) fn purge(&mut self, run: RunId, now: Timestamp) -> Result<(), StoreError> {
        let entry = self.runs.get(&run).ok_or(StoreError::NoSuchRun(run))?;
        if !entry.is_finished() {
            return Err(StoreError::Unfinished(run));
        }
        if !entry.doubts.is_empty() {
            return Err(StoreError::Doubted(run));
        }
        self.summarize(run);
        self.remove(run, now);
        Ok(())
    }
}

impl Upkeep for MemoryStore {
    fn tidy(&self, now: Timestamp) -> BoxFuture<'_, Result<Tidied, StoreError>> {
        ready(Ok(self.inner.lock().tidy(now)))
    }

    fn purge(&self, run: RunId, now: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
        ready(self.inner.lock().purge(run, now))
    }

    /// Does nothing: other runtimes may share the store and continue to use it.
    fn close(&self) -> BoxFuture<'_, ()> {
        ready(())
    }
}
