//! Names of operations, for records that are not the first of their path and so lack the name.

use std::sync::Arc;

use super::record::{Asked, Event, OpKind, Record};
use crate::path::Path;

/// Names of operations that were recorded and have not ended.
#[derive(Default)]
pub(super) struct Labels(Vec<(Path, OpKind, Arc<str>)>);

impl Labels {
    /// Keeps the name of an operation that an earlier owner recorded.
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

    /// The kind and name of this record's operation.
    pub(super) fn of(&self, record: &Record) -> Option<(OpKind, Arc<str>)> {
        let asked = record.asked.as_ref().map(|asked| (asked.kind, asked.name.clone()));
        let kept = || self.0.iter().rev().find(|(path, _, _)| *path == record.path);
        asked.or_else(|| kept().map(|(_, kind, name)| (*kind, name.clone())))
    }
}
