//! Changes of files that are made together with the outcome of a call.
//!
//! The outcome names the changes that are not made, so they are decided about before it is recorded. From then until its
//! commit, the store reserves the paths: other writes to them are refused. A reservation is kept in memory only. It ends
//! with the commit, and is void once the run has another owner or has ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::super::{ArtifactId, SessionOperation, Stored};
use super::{FileChange, FileEncoding, FileExpectation, FileLimits, FileRefusal, SessionPath};
use crate::id::RunId;

/// A change of one file, made with the outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEdit {
    /// The file.
    pub path: SessionPath,
    /// The content that the attempt began with; `None` if there was no file. The change is made only if the file still
    /// has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ArtifactId>,
    /// The new content; `None` deletes the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<EditedContent>,
}

/// The content that an edit gives a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditedContent {
    /// Its hash.
    pub hash: ArtifactId,
    /// Its number of bytes.
    pub size: u64,
    /// Its encoding.
    pub encoding: FileEncoding,
}

/// An edit that is not made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedEdit {
    /// The file.
    pub path: SessionPath,
    /// Why.
    pub refusal: FileRefusal,
}

impl FileEdit {
    /// The edit as a write to the session.
    pub fn change(&self, limits: FileLimits) -> FileChange {
        let expect = self.base.map_or(FileExpectation::Missing, FileExpectation::Content);
        let path = self.path.clone();
        match self.content {
            Some(EditedContent { hash, size, encoding }) => {
                FileChange::Write { path, content: Stored { id: hash, size }, encoding, expect, limits }
            }
            None => FileChange::Delete { path, recursive: false, expect },
        }
    }

    /// The edit as a write that was decided about before.
    pub fn decided(&self) -> FileChange {
        self.change(FileLimits { file_bytes: u64::MAX, session_bytes: u64::MAX, count: u64::MAX })
    }
}

/// The paths that stores reserve for outcomes, by session.
#[derive(Default)]
pub struct FileReservations(BTreeMap<Arc<str>, Vec<Reservation>>);

struct Reservation {
    run: RunId,
    epoch: u64,
    key: Arc<str>,
    edits: Vec<FileEdit>,
}

impl FileReservations {
    /// The runs that have reserved paths of a session, with their epochs.
    pub fn runs(&self, session: &str) -> Vec<(RunId, u64)> {
        self.0.get(session).into_iter().flatten().map(|one| (one.run, one.epoch)).collect()
    }

    /// Reserves the paths of these edits for an operation.
    pub fn reserve(&mut self, session: &Arc<str>, by: &SessionOperation, edits: Vec<FileEdit>) {
        let SessionOperation { run, epoch, key } = by.clone();
        self.release(session, run, &key);
        if !edits.is_empty() {
            self.0.entry(session.clone()).or_default().push(Reservation { run, epoch, key, edits });
        }
    }

    /// Ends the reservation of an operation.
    pub fn release(&mut self, session: &str, run: RunId, key: &str) {
        self.retain(session, |one| one.run != run || *one.key != *key);
    }

    /// Ends the reservations of a run under an epoch.
    pub fn void(&mut self, session: &str, run: RunId, epoch: u64) {
        self.retain(session, |one| one.run != run || one.epoch != epoch);
    }

    fn retain(&mut self, session: &str, keep: impl Fn(&Reservation) -> bool) {
        let Some(all) = self.0.get_mut(session) else { return };
        all.retain(keep);
        if all.is_empty() {
            self.0.remove(session);
        }
    }

    /// Refuses a write that could change whether a reserved edit can be made: to its path, above it or below it.
    pub fn refuse(&self, session: &str, path: &SessionPath) -> Result<(), FileRefusal> {
        let touches = |edit: &FileEdit| edit.path == *path || edit.path.is_below(path) || path.is_below(&edit.path);
        let all = self.0.get(session).into_iter().flatten();
        match all.into_iter().find(|one| one.edits.iter().any(touches)) {
            Some(one) => Err(FileRefusal::Busy { path: path.clone(), run: one.run }),
            None => Ok(()),
        }
    }

    /// Bytes and files that reserved edits may add.
    pub fn reserved(&self, session: &str) -> super::FileUsage {
        let edits = self.0.get(session).into_iter().flatten().flat_map(|one| &one.edits);
        let added = edits.filter_map(|edit| edit.content.map(|content| (content.size, edit.base.is_none())));
        added.fold(super::FileUsage::default(), |sum, (size, is_new)| super::FileUsage {
            bytes: sum.bytes.saturating_add(size),
            count: sum.count + u64::from(is_new),
        })
    }
}
