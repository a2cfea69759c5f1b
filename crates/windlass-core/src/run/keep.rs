//! Keys over a crash: whoever had one when the process died has it before anyone else queues for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::history::History;
use super::record::Record;
use crate::admit::{KeyTurn, Keys};
use crate::call::rules::key_of;
use crate::id::RunId;
use crate::path::Path;
use crate::tool::Toolbox;
use crate::tool::spec::Concurrency;

/// Places in keys' queues, kept for operations that will ask for them when their run is driven again.
#[derive(Default)]
pub(crate) struct Kept(Mutex<BTreeMap<(RunId, Path), KeyTurn>>);

impl Kept {
    /// Queues for what the operations of this journal held: durable bodies that were entered, calls that may have
    /// happened, and calls whose answer is pending. Below a body that holds a key, no other call can have it.
    pub(crate) fn keep(&self, keys: &Arc<Keys>, toolbox: &Toolbox, run: RunId, journal: Vec<Record>) {
        let mut held: Vec<(Path, Arc<str>)> = Vec::new();
        for (path, asked, args) in History::fold(journal).holders() {
            let Some(tool) = toolbox.recorded(&asked.name, &asked.layers) else { continue };
            let Some(key) = key_of(&tool, args.unwrap_or_default()) else { continue };
            let above =
                |(other, own): &(Path, Arc<str>)| *own == key && path.positions().starts_with(other.positions());
            if held.iter().any(above) {
                continue;
            }
            if let Ok(turn) = keys.request(key.clone(), None) {
                self.0.lock().insert((run, path.clone()), turn.of(run, &path));
                held.push((path, key));
            }
        }
    }

    /// The place kept for this operation.
    pub(crate) fn take(&self, run: RunId, path: &Path) -> Option<KeyTurn> {
        let mut kept = self.0.lock();
        if kept.is_empty() { None } else { kept.remove(&(run, path.clone())) }
    }

    /// Nobody drives the run any more.
    pub(crate) fn forget(&self, run: RunId) {
        let mut kept = self.0.lock();
        if !kept.is_empty() {
            kept.retain(|(other, _), _| *other != run);
        }
    }
}

/// Whether any tool has a key: without one no journal need be read for them.
pub(crate) fn has_keys(toolbox: &Toolbox) -> bool {
    toolbox.anywhere().iter().any(|tool| matches!(tool.spec().guards.concurrency, Concurrency::Keyed(_)))
}
