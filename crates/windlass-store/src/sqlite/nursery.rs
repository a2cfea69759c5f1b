//! What those who read know of runs that have no row yet.

use std::sync::atomic::{AtomicI64, Ordering};
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
    /// The position of the last record whose run is known.
    last: AtomicI64,
    desk: OnceLock<Weak<Desk>>,
}

/// The runs without a row, as of the last commit.
#[derive(Default)]
struct Known {
    /// With their numbers.
    young: FxHashMap<RunId, (i64, Birth)>,
    numbers: FxHashMap<i64, RunId>,
    keys: FxHashMap<Arc<str>, RunId>,
}

impl Known {
    fn take(&mut self, change: Changed) {
        match change {
            Changed::Young(id, birth) => {
                if let Some(key) = &birth.key {
                    self.keys.insert(key.clone(), birth.run);
                }
                self.numbers.insert(id, birth.run);
                self.young.insert(birth.run, (id, birth));
            }
            Changed::Grown(birth) => {
                if let Some(key) = &birth.key {
                    self.keys.remove(key);
                }
                if let Some((id, _)) = self.young.remove(&birth.run) {
                    self.numbers.remove(&id);
                }
            }
        }
    }
}

impl Nursery {
    pub(super) fn open(&self, desk: &Arc<Desk>) {
        // Set once, where the store is opened.
        let _ = self.desk.set(Arc::downgrade(desk));
    }

    /// The file was opened, or opened again: every run in it has its row.
    pub(super) fn begin(&self, last: i64) {
        *self.known.write() = Known::default();
        self.last.store(last, Ordering::Release);
    }

    /// Makes known what is committed, up to the record at this position.
    pub(super) fn publish(&self, young: &mut Young, last: i64) {
        let mut changed = young.changed().peekable();
        if changed.peek().is_some() {
            let mut known = self.known.write();
            changed.for_each(|change| known.take(change));
        }
        self.last.store(last, Ordering::Release);
    }

    /// The position of the last record whose run is known: whoever shows a record beyond it shows one of a run that cannot be
    /// asked for yet.
    pub(super) fn last(&self) -> i64 {
        self.last.load(Ordering::Acquire)
    }

    /// The number of a run that has no row.
    pub(super) fn number(&self, run: RunId) -> Option<i64> {
        self.known.read().young.get(&run).map(|(id, _)| *id)
    }

    /// The run without a row that has this number.
    pub(super) fn numbered(&self, id: i64) -> Option<RunId> {
        self.known.read().numbers.get(&id).copied()
    }

    /// The run without a row that has this key.
    pub(super) fn keyed(&self, key: &str) -> Option<RunId> {
        self.known.read().keys.get(key).copied()
    }

    /// What the row of a run will tell.
    pub(super) fn info(&self, run: RunId) -> Option<RunInfo> {
        self.known.read().young.get(&run).map(|(_, birth)| birth.info())
    }

    /// Whether one of these workers drives a run that has no row.
    pub(super) fn has_runs_of(&self, workers: &[i64]) -> bool {
        let of_these = |birth: &Birth| workers.contains(&birth.worker.cast_signed());
        !workers.is_empty() && self.known.read().young.values().any(|(_, birth)| of_these(birth))
    }

    /// Returns when every run that was answered for has its row; says why that cannot be.
    pub(super) fn settle(&self) -> Result<(), String> {
        if self.known.read().young.is_empty() {
            return Ok(());
        }
        self.desk.get().and_then(Weak::upgrade).map_or_else(|| Err("it is closed".to_owned()), |desk| desk.settle())
    }
}
