//! Lists of runs in memory.

use super::super::{Counts, Filter};
use super::{Inner, RunRow};
use crate::id::RunId;
use crate::run::state::{RunInfo, RunState};

impl Inner {
    pub(super) fn list(&self, filter: &Filter, after: Option<RunId>, limit: usize) -> Vec<RunInfo> {
        let found = self.sorted(filter);
        let rest = found.into_iter().filter(|(run, _)| after.is_none_or(|after| *run > after));
        rest.take(limit).map(|(run, entry)| entry.info(run)).collect()
    }

    pub(super) fn latest(&self, filter: &Filter, before: Option<RunId>, limit: usize) -> Vec<RunInfo> {
        let found = self.sorted(filter).into_iter().rev();
        let rest = found.filter(|(run, _)| before.is_none_or(|before| *run < before));
        rest.take(limit).map(|(run, entry)| entry.info(run)).collect()
    }

    pub(super) fn keyed(&self, key: &str) -> Option<RunId> {
        self.keys.get(key).copied()
    }

    fn sorted(&self, filter: &Filter) -> Vec<(RunId, &RunRow)> {
        let matching = self.runs.iter().filter(|(_, entry)| entry.matches(filter));
        let mut found: Vec<(RunId, &RunRow)> = matching.map(|(run, entry)| (*run, entry)).collect();
        found.sort_unstable_by_key(|(run, _)| *run);
        found
    }

    pub(super) fn unfinished(&self, limit: u64) -> Counts {
        let unfinished = self.runs.values().filter(|entry| !entry.is_finished());
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Counts { inbox: 0, ..Self::count(unfinished.take(limit)) }
    }

    pub(super) fn counts(&self) -> Counts {
        Self::count(self.runs.values())
    }

    fn count<'a>(runs: impl Iterator<Item = &'a RunRow>) -> Counts {
        let mut counts = Counts::default();
        for entry in runs {
            let count = match entry.state {
                RunState::Queued => &mut counts.queued,
                RunState::Running => &mut counts.running,
                RunState::Suspended { .. } => &mut counts.suspended,
                RunState::Held { .. } => &mut counts.held,
                RunState::Finished { .. } => &mut counts.finished,
            };
            *count += 1;
            counts.inbox += u64::from(entry.matches(&Filter::inbox()));
        }
        counts
    }
}
