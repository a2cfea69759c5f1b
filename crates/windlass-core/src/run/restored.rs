//! A run that comes from a backup of its store. Its journal lacks what it did after the backup. So an operation without
//! a record may have been attempted all the same, and so may those after it, as far as the lost journal went.

use std::collections::BTreeSet;

use super::machine::Machine;
use super::outbox::Started;
use super::record::{Asked, DoubtCause, Event, OpKind, Record, Settler};
use crate::path::Path;
use crate::time::Timestamp;

/// What is known about the lost part of a journal.
#[derive(Debug, Default)]
pub(crate) struct RestoredRun {
    /// Whether the run had another id at that time, and its attempts other keys, by which no tool can find them now.
    renamed: bool,
    /// Groups of parallel operations. That one of them did not happen says nothing about the next.
    groups: BTreeSet<Path>,
    /// Operations that were, or are, in doubt for this reason. They are asked about once.
    doubted: BTreeSet<Path>,
    /// Operations that a tool or a person declared not to have happened. Nothing that comes after them happened.
    absent: Vec<Path>,
}

impl RestoredRun {
    pub(super) fn new(renamed: bool) -> Self {
        Self { renamed, ..Self::default() }
    }

    fn may_have_happened(&self, path: &Path) -> bool {
        !self.absent.iter().any(|absent| absent == path || self.is_after(path, absent))
    }

    fn must_ask_about(&self, path: &Path) -> bool {
        !self.doubted.contains(path) && self.may_have_happened(path)
    }

    /// Whether a body reaches `path` only when the operation at `earlier` has ended.
    fn is_after(&self, path: &Path, earlier: &Path) -> bool {
        let (later, earlier) = (path.positions(), earlier.positions());
        let shared = later.iter().zip(earlier).take_while(|(a, b)| a == b).count();
        let parts = later.get(shared).zip(earlier.get(shared));
        let body = later.iter().take(shared).fold(Path::root(), |path, position| path.child(*position));
        parts.is_some_and(|(later, earlier)| later > earlier) && !self.groups.contains(&body)
    }

    /// Takes a new record into account.
    pub(super) fn note(&mut self, path: &Path, event: &Event) {
        match event {
            Event::Doubted { cause: DoubtCause::Restored, .. } => {
                self.doubted.insert(path.clone());
            }
            // Policy repeats what may have happened. Only a tool or a person can state that it did not.
            Event::Settled { by: Settler::Tool | Settler::Person(_), .. } if self.doubted.contains(path) => {
                self.absent.push(path.clone());
            }
            _ => {}
        }
    }

    /// Notes an operation that a body asks for.
    pub(super) fn asked(&mut self, path: &Path, asked: &Asked) {
        if let OpKind::Batch | OpKind::Steps | OpKind::Branches | OpKind::First = asked.kind {
            self.groups.insert(path.clone());
        }
    }
}

impl Machine {
    /// The run was found in a backup.
    pub(super) fn restore(&mut self, at: Timestamp) {
        self.restored = Some(Box::default());
        self.outbox.append(restored(at, false));
    }

    /// Whether an operation that must not be repeated may have been attempted after the backup, and has not been asked
    /// about yet.
    pub(crate) fn must_ask_about(&self, path: &Path) -> bool {
        self.restored.as_ref().is_some_and(|restored| restored.must_ask_about(path))
    }

    /// Whether the tool could find an attempt of that time, by the key it would have now.
    pub(crate) fn has_old_keys(&self) -> bool {
        self.restored.as_ref().is_none_or(|restored| !restored.renamed)
    }

    /// Marks a run that is started from a part of the journal that may have been lost: that run may have existed
    /// before, under another id.
    pub(crate) fn mark_started(&self, path: &Path, started: &mut Started) {
        if self.restored.as_ref().is_some_and(|restored| restored.may_have_happened(path)) {
            started.records.push(restored(started.creation.at, true));
        }
    }

    /// The same for the next generation of this run.
    pub(super) fn mark_generation(&mut self, at: Timestamp) {
        if let Some(known) = self.restored.as_ref()
            && known.may_have_happened(&Path::root().child(u32::MAX))
        {
            let record = restored(at, known.renamed);
            self.outbox.append(record);
        }
    }
}

fn restored(at: Timestamp, renamed: bool) -> Record {
    Record { path: Path::root(), at, asked: None, event: Event::Restored { renamed } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::Effect;

    fn path(text: &str) -> Path {
        text.parse().unwrap()
    }

    #[test]
    fn w09_operations_after_one_that_did_not_happen_did_not_happen_either() {
        let mut restored = RestoredRun::default();
        let group = Asked::operation(OpKind::Batch, "2".into(), None, Effect::Readonly);
        restored.asked(&path("2"), &group);
        assert!(restored.must_ask_about(&path("0")) && restored.must_ask_about(&path("5")));
        let doubted =
            Event::Doubted { attempt: 1, cause: DoubtCause::Restored, over_by: Timestamp::default(), said: None };
        let settled = |by| Event::Settled { attempt: 1, by, reason: String::new() };
        restored.note(&path("2/1"), &settled(Settler::Tool));
        assert!(restored.may_have_happened(&path("3")), "another doubt's settlement says nothing");
        restored.note(&path("2/1"), &doubted);
        assert!(!restored.must_ask_about(&path("2/1")), "it is asked about once");
        assert!(restored.may_have_happened(&path("2/1")));
        restored.note(&path("2/1"), &settled(Settler::Policy));
        assert!(restored.may_have_happened(&path("3")), "policy does not know");
        restored.note(&path("2/1"), &settled(Settler::Person("ann".into())));
        // (operation, whether it may have happened)
        let table =
            [("0", true), ("1/7", true), ("2/0", true), ("2/1", false), ("2/2", true), ("3", false), ("4/0", false)];
        for (at, expected) in table {
            assert_eq!(restored.may_have_happened(&path(at)), expected, "{at}");
        }
    }
}
