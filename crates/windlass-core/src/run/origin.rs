//! Where a forked run comes from, and which part of each body still belongs to its original.
//!
//! A body derives values from its run's identity: random numbers, UUIDs, the run's id, the keys of open waits. Such a
//! value may be part of the input of an operation that was copied. So these values are derived from the original until
//! the body has passed its last copied operation, and from the fork itself afterwards. Records alone decide that, so a
//! fork that is entered again gets the same values.

use rustc_hash::FxHashMap;

use super::machine::Machine;
use crate::id::RunId;
use crate::path::Path;

/// The runs that made a fork's copied records, the oldest first. A fork of a fork has two.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    list: Vec<Origin>,
    /// Records that followed the headers so far.
    records: u32,
}

#[derive(Clone, Debug)]
struct Origin {
    run: RunId,
    generation: u32,
    /// This many records after the headers were copied from it.
    copied: u32,
    /// For each body, the last operation that was copied.
    last: FxHashMap<Path, u32>,
}

impl Origins {
    pub(crate) fn forked(&mut self, run: RunId, generation: u32, copied: u32) {
        self.list.push(Origin { run, generation, copied, last: FxHashMap::default() });
    }

    /// Whether the run is no fork.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Counts a record that follows the headers.
    pub(crate) fn note(&mut self, path: &Path) {
        if self.list.is_empty() {
            return;
        }
        self.records = self.records.saturating_add(1);
        let (Some(body), Some(index)) = (path.parent(), path.positions().last()) else { return };
        for origin in self.list.iter_mut().filter(|origin| self.records <= origin.copied) {
            let last = origin.last.entry(body.clone()).or_insert(*index);
            *last = (*last).max(*index);
        }
    }

    /// The run and generation whose identity a body uses before the operation at `next`; `None` if that is its own run.
    pub(crate) fn at(&self, body: &Path, next: u32) -> Option<(RunId, u32)> {
        let covers = |origin: &&Origin| origin.last.get(body).is_some_and(|last| *last >= next);
        self.list.iter().find(covers).map(|origin| (origin.run, origin.generation))
    }

    /// Whether some of the records were made by this run.
    pub(crate) fn include(&self, run: RunId) -> bool {
        self.list.iter().any(|origin| origin.run == run)
    }
}

impl Machine {
    pub(crate) fn take_origins(&mut self) -> Origins {
        self.history.get_mut().map(|history| std::mem::take(&mut history.origins)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w10_a_body_uses_its_originals_identity_until_it_passes_the_last_copied_operation() {
        let run = |n| RunId::from_bytes([n; 16]);
        let mut origins = Origins::default();
        origins.forked(run(1), 0, 2);
        origins.forked(run(2), 7, 4);
        for path in ["/", "0", "1", "1/3", "2"] {
            origins.note(&path.parse().unwrap());
        }
        let root = Path::root();
        assert_eq!(origins.at(&root, 0), Some((run(1), 0)), "the oldest made it");
        assert_eq!(origins.at(&root, 1), Some((run(2), 7)));
        assert_eq!(origins.at(&root, 2), None, "what follows the copies is its own");
        assert_eq!(origins.at(&"1".parse().unwrap(), 3), Some((run(2), 7)));
        assert_eq!(origins.at(&"1".parse().unwrap(), 4), None);
        assert_eq!(origins.at(&"2".parse().unwrap(), 0), None);
    }
}
