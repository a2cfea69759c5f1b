//! What operations are called whose first record is not the one that needs the name.

use std::sync::Arc;

use super::record::{Asked, Event, OpKind, Record};
use crate::path::Path;

/// Names of operations that were recorded and have not ended.
#[derive(Default)]
pub(super) struct Labels(Vec<(Path, OpKind, Arc<str>)>);

impl Labels {
    /// The journal knows the operation from before.
    pub(super) fn keep(&mut self, path: &Path, asked: &Asked) {
        self.0.push((path.clone(), asked.kind, asked.name.clone()));
    }

    pub(super) fn note(&mut self, record: &Record) {
        match (&record.event, &record.asked) {
            (Event::Finished(_), _) => {
                if !self.0.is_empty() {
                    self.0.retain(|(path, _, _)| *path != record.path);
                }
            }
            // An intent names the operation itself.
            (Event::Entered | Event::Intended { .. }, _) | (_, None) => {}
            (_, Some(asked)) => self.keep(&record.path, asked),
        }
    }

    /// What the operation of this record is.
    pub(super) fn of(&self, record: &Record) -> Option<(OpKind, Arc<str>)> {
        let asked = record.asked.as_ref().map(|asked| (asked.kind, asked.name.clone()));
        let kept = || self.0.iter().rev().find(|(path, _, _)| *path == record.path);
        asked.or_else(|| kept().map(|(_, kind, name)| (*kind, name.clone())))
    }
}
