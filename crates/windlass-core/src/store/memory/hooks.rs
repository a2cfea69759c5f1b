//! Notifies the runtimes that share the store when something was written for a run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::super::{Change, Commit, Guard, OnChange};
use crate::id::RunId;
use crate::run::state::RunState;

type Hook = Weak<dyn Fn(RunId) + Send + Sync>;

/// The callbacks that runtimes registered with `on_change`.
#[derive(Default)]
pub(super) struct ChangeHooks {
    all: Mutex<Vec<Hook>>,
    /// Whether there is any callback, to skip the work for a store that only one runtime uses.
    any: AtomicBool,
}

impl ChangeHooks {
    pub(super) fn add(&self, tell: &OnChange) {
        let mut all = self.all.lock();
        all.retain(|hook| hook.strong_count() > 0);
        all.push(Arc::downgrade(tell));
        self.any.store(true, Ordering::Release);
    }

    /// The runs that another worker may have to look at once this commit is written.
    pub(super) fn touched(&self, commit: &Commit) -> Vec<RunId> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let of = |change: &Change| match (change, commit.guard) {
            (Change::Mail { run, .. } | Change::Start { run, .. }, _) => Some(*run),
            (
                Change::State(RunState::Queued | RunState::Suspended { .. } | RunState::Finished { .. }),
                Guard::Owner { run, .. },
            ) => Some(run),
            _ => None,
        };
        commit.changes.iter().filter_map(of).collect()
    }

    /// Calls the callbacks. Must be called without a lock on the store, because a callback may use the store.
    pub(super) fn notify(&self, touched: &[RunId]) {
        if touched.is_empty() {
            return;
        }
        let all: Vec<OnChange> = self.all.lock().iter().filter_map(Weak::upgrade).collect();
        touched.iter().for_each(|run| all.iter().for_each(|tell| tell(*run)));
    }
}
