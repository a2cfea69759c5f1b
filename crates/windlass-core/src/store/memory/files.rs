//! The files of sessions in memory.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Bound;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::super::{
    Access, ArtifactId, FileChange, FileEdit, FileInfo, FileLimits, FilePlan, FileQuery, FileRefusal, FileTree,
    FileUsage, Files, RefusedEdit, SessionAccess, SessionAnswer, SessionChange, SessionOperation, SessionPath,
    SessionVerdict, StoreError, decide_file_change, refuse_session_write,
};
use super::{Inner, MemoryStore, ready};
use crate::id::RunId;
use crate::limits;
use crate::time::Timestamp;

type FileMap = BTreeMap<SessionPath, FileInfo>;

/// The files of a session, for a write of `by`.
struct SessionTree<'s> {
    inner: &'s Inner,
    files: &'s FileMap,
    by: Access,
    /// What reserved edits add.
    reserved: FileUsage,
}

/// What is below a directory, in order.
fn below<'f>(files: &'f FileMap, directory: &'f SessionPath) -> impl Iterator<Item = &'f FileInfo> {
    // Paths that start with the directory's own may be in between: `/a`, `/a b`, `/a/b`.
    let after = files.range((Bound::Excluded(directory), Bound::Unbounded)).map(|(_, file)| file);
    let first = directory.as_str().to_owned();
    after.take_while(move |file| file.path.as_str().starts_with(&first)).filter(|file| file.path.is_below(directory))
}

fn usage(files: &FileMap) -> FileUsage {
    FileUsage { bytes: files.values().map(|file| file.size).sum(), count: files.len() as u64 }
}

impl FileTree for SessionTree<'_> {
    type Error = Infallible;

    fn file(&self, path: &SessionPath) -> Result<Option<FileInfo>, Infallible> {
        Ok(self.files.get(path).cloned())
    }

    fn below(&self, directory: &SessionPath, limit: usize) -> Result<Vec<FileInfo>, Infallible> {
        Ok(below(self.files, directory).take(limit).cloned().collect())
    }

    fn usage(&self) -> Result<FileUsage, Infallible> {
        let used = usage(self.files);
        Ok(FileUsage { bytes: used.bytes + self.reserved.bytes, count: used.count + self.reserved.count })
    }

    fn may_read(&self, content: ArtifactId) -> Result<bool, Infallible> {
        Ok(self.inner.may_read(content, &self.by))
    }
}

impl Inner {
    /// Decides about a write to a file of an open session and applies it.
    pub(super) fn change_file(
        &mut self,
        session: &Arc<str>,
        at: Timestamp,
        change: &FileChange,
        by: Option<RunId>,
    ) -> Result<SessionAnswer, FileRefusal> {
        self.void_reservations(session);
        self.reserved.refuse(session, change.path())?;
        let reserved = self.reserved.reserved(session);
        let by = by.map_or_else(|| Access::Session(session.clone()), Access::Run);
        self.change_unreserved(session, at, change, (by, reserved))
    }

    fn change_unreserved(
        &mut self,
        session: &Arc<str>,
        at: Timestamp,
        change: &FileChange,
        (by, reserved): (Access, FileUsage),
    ) -> Result<SessionAnswer, FileRefusal> {
        let Some(found) = self.sessions.all.get(session) else {
            return Err(FileRefusal::Missing { path: change.path().clone() });
        };
        let tree = SessionTree { inner: self, files: &found.row.files, by, reserved };
        let Ok(decided) = decide_file_change(&tree, change, at);
        let FilePlan { put, remove, answer } = decided?;
        let until = at + limits::ARTIFACT_GRACE;
        let Some(found) = self.sessions.all.get_mut(session) else { return Ok(answer) };
        found.row.kept = true;
        let mut dropped = Vec::new();
        for file in put {
            // Before the old content is dropped, which may be the same.
            file.content.into_iter().for_each(|content| self.artifacts.add_file(content, session));
            dropped.extend(found.row.files.insert(file.path.clone(), file));
        }
        dropped.extend(remove.iter().filter_map(|path| found.row.files.remove(path)));
        for content in dropped.iter().filter_map(|file| file.content) {
            self.artifacts.remove_file(content, session, Some(until));
        }
        Ok(answer)
    }

    /// Ends the reservations of runs that have another owner by now, or have ended.
    fn void_reservations(&mut self, session: &str) {
        for (run, epoch) in self.reserved.runs(session) {
            if self.runs.get(&run).is_none_or(|row| row.epoch != epoch || row.is_finished()) {
                self.reserved.void(session, run, epoch);
            }
        }
    }

    /// Decides about the changes of an outcome, and reserves those that can be made.
    pub(super) fn stage_files(
        &mut self,
        session: &Arc<str>,
        at: Timestamp,
        (edits, limits): (&[FileEdit], FileLimits),
        by: Option<&SessionOperation>,
    ) -> Result<SessionVerdict, StoreError> {
        let by = by.ok_or_else(|| StoreError::Invalid("only an operation of a run can stage changes".to_owned()))?;
        let change = SessionChange::Stage { edits: Vec::new(), limits };
        if let Err(refusal) =
            refuse_session_write(&change, &SessionAccess::All, self.session_info(session).as_ref(), |_| 0)
        {
            return Ok(Err(refusal));
        }
        self.void_reservations(session);
        self.reserved.release(session, by.run, &by.key);
        let reserved = self.reserved.reserved(session);
        let mut files = self.sessions.all.get(session).map(|found| found.row.files.clone()).unwrap_or_default();
        let (mut made, mut refused) = (Vec::new(), Vec::new());
        for edit in edits {
            let tree = SessionTree { inner: self, files: &files, by: Access::Run(by.run), reserved };
            let decide = || decide_file_change(&tree, &edit.change(limits), at).unwrap_or_else(|never| match never {});
            match self.reserved.refuse(session, &edit.path).and_then(|()| decide()) {
                Ok(FilePlan { put, remove, .. }) => {
                    remove.iter().for_each(|path| drop(files.remove(path)));
                    files.extend(put.into_iter().map(|file| (file.path.clone(), file)));
                    made.push(edit.clone());
                }
                Err(refusal) => refused.push(RefusedEdit { path: edit.path.clone(), refusal }),
            }
        }
        self.reserved.reserve(session, by, made);
        Ok(Ok(SessionAnswer::Staged { refused }))
    }

    /// Makes the changes of an owner's commit.
    pub(super) fn edit_files(
        &mut self,
        session: &Arc<str>,
        at: Timestamp,
        edits: &[FileEdit],
        owner: Option<(RunId, u64)>,
        key: &str,
    ) {
        let Some((run, _)) = owner else { return };
        self.reserved.release(session, run, key);
        if self.sessions.is_closed(session) {
            tracing::warn!(%session, "changes of files were left out of an outcome: the session is closed");
            return;
        }
        for edit in edits {
            let by = (Access::Run(run), FileUsage::default());
            if let Err(refusal) = self.change_unreserved(session, at, &edit.decided(), by) {
                tracing::warn!(%session, "a change of a file was left out of an outcome: {}", refusal.sentence(session));
            }
        }
    }

    /// Removes all files of a session that is purged.
    pub(super) fn drop_files(&mut self, session: &Arc<str>) {
        let Some(found) = self.sessions.all.get_mut(session) else { return };
        for content in std::mem::take(&mut found.row.files).into_values().filter_map(|file| file.content) {
            self.artifacts.remove_file(content, session, None);
        }
    }

    fn list_files(&self, session: &str, query: &FileQuery) -> Vec<FileInfo> {
        let Some(found) = self.sessions.all.get(session) else { return Vec::new() };
        let is_listed = |file: &&FileInfo| {
            (query.recursive || file.path.parent().as_ref() == Some(&query.directory))
                && query.after.as_ref().is_none_or(|after| file.path > *after)
        };
        below(&found.row.files, &query.directory).filter(is_listed).take(query.limit).cloned().collect()
    }

    fn find_file(&self, session: &str, path: SessionPath) -> Option<FileInfo> {
        let found = self.sessions.all.get(session)?;
        if path.is_root() {
            return Some(FileInfo::directory(path, found.row.info.created));
        }
        found.row.files.get(&path).cloned()
    }
}

impl Files for MemoryStore {
    fn file(&self, session: Arc<str>, path: SessionPath) -> BoxFuture<'_, Result<Option<FileInfo>, StoreError>> {
        ready(Ok(self.inner.lock().find_file(&session, path)))
    }

    fn list_files(&self, session: Arc<str>, query: FileQuery) -> BoxFuture<'_, Result<Vec<FileInfo>, StoreError>> {
        ready(Ok(self.inner.lock().list_files(&session, &query)))
    }

    fn file_usage(&self, session: Arc<str>) -> BoxFuture<'_, Result<FileUsage, StoreError>> {
        let inner = self.inner.lock();
        ready(Ok(inner.sessions.all.get(&session).map(|found| usage(&found.row.files)).unwrap_or_default()))
    }
}
