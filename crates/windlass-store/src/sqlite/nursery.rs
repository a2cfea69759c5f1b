//! What those who read know of runs that have no row yet.

use std::sync::{Arc, OnceLock, Weak};

use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use windlass_core::RunId;
use windlass_core::run::state::RunInfo;

use super::birth::{Birth, Changed, Young};
use super::desk::Desk;

#[derive(Default)]
pub(super) struct Nursery {
    known: RwLock<Known>,
    desk: OnceLock<Weak<Desk>>,
}

/// The runs without a row, as of the last commit.
#[derive(Default)]
struct Known {
    /// With their numbers.
    young: FxHashMap<RunId, (i64, Birth)>,
    keys: FxHashMap<Arc<str>, RunId>,
}

impl Known {
    fn take(&mut self, change: Changed) {
        match change {
            Changed::Young(id, birth) => {
                if let Some(key) = &birth.key {
                    self.keys.insert(key.clone(), birth.run);
                }
                self.young.insert(birth.run, (id, birth));
            }
            Changed::Grown(birth) => {
                if let Some(key) = &birth.key {
                    self.keys.remove(key);
                }
                self.young.remove(&birth.run);
            }
        }
    }
}

impl Nursery {
    pub(super) fn open(&self, desk: &Arc<Desk>) {
        // Set once, where the store is opened.
        let _ = self.desk.set(Arc::downgrade(desk));
    }

    /// Makes known what is committed.
    pub(super) fn publish(&self, young: &mut Young) {
        let mut changed = young.changed().peekable();
        if changed.peek().is_none() {
            return;
        }
        let mut known = self.known.write();
        changed.for_each(|change| known.take(change));
    }

    /// The file was opened again: every run in it has its row.
    pub(super) fn clear(&self) {
        *self.known.write() = Known::default();
    }

    /// The number of a run that has no row.
    pub(super) fn number(&self, run: RunId) -> Option<i64> {
        self.known.read().young.get(&run).map(|(id, _)| *id)
    }

    /// The run without a row that has this key.
    pub(super) fn keyed(&self, key: &str) -> Option<RunId> {
        self.known.read().keys.get(key).copied()
    }

    /// What the row of a run will tell.
    pub(super) fn info(&self, run: RunId) -> Option<RunInfo> {
        self.known.read().young.get(&run).map(|(_, birth)| birth.info())
    }

    /// Returns when every run that was answered for has its row, or the file takes none.
    pub(super) fn settle(&self) {
        if !self.known.read().young.is_empty()
            && let Some(desk) = self.desk.get().and_then(Weak::upgrade)
        {
            desk.settle();
        }
    }
}
