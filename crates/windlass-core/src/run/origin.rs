//! Where a forked run comes from, and which part of each body is still its original's.
//!
//! Whatever a body derives from its run's identity (random numbers, uuids, the run's id, the keys of open waits) may have
//! gone into the input of an operation that was copied. So it is derived from the original until the body has passed its
//! last copied operation, and from the fork itself afterwards. That is decided by records alone, so a fork that is entered
//! again draws the same.

use rustc_hash::FxHashMap;

use super::machine::Machine;
use crate::id::RunId;
use crate::path::Path;

/// The runs a fork's copied records were made by, the oldest first: a fork of a fork has two.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    list: Vec<Origin>,
    /// Records that followed the headers so far.
    records: u32,
    /// Runs that an original spawned: this one has their handles and is not their parent.
    children: Vec<RunId>,
}

#[derive(Clone, Debug)]
struct Origin {
    run: RunId,
    generation: u32,
    /// This many records after the headers are copies of its.
    copied: u32,
    /// For each body the last operation that was copied.
    last: FxHashMap<Path, u32>,
}

impl Origins {
    pub(crate) fn forked(&mut self, run: RunId, generation: u32, copied: u32) {
        self.list.push(Origin { run, generation, copied, last: FxHashMap::default() });
    }

    /// A record follows.
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

    /// Whose a body is that asks for the operation at `next` next: a run and its generation; `None` if it is its own.
    pub(crate) fn at(&self, body: &Path, next: u32) -> Option<(RunId, u32)> {
        let covers = |origin: &&Origin| origin.last.get(body).is_some_and(|last| *last >= next);
        self.list.iter().find(covers).map(|origin| (origin.run, origin.generation))
    }

    /// An original spawned this run.
    pub(crate) fn spawned(&mut self, child: RunId) {
        self.children.push(child);
    }

    /// Whether an original spawned this run: it tells only its parent how it ends.
    pub(crate) fn have_child(&self, run: RunId) -> bool {
        self.children.contains(&run)
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
    fn w10_a_body_is_its_originals_until_it_passes_the_last_copied_operation() {
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
