//! Files of sessions: rows that refer to blobs.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use rusqlite::{Connection, OptionalExtension, Row, params};
use windlass_core::RunId;
use windlass_core::limits;
use windlass_core::store::{
    Access, ArtifactId, FileChange, FileEdit, FileEncoding, FileInfo, FileLimits, FilePlan, FileQuery, FileRefusal,
    FileTree, FileUsage, Files, RefusedEdit, SessionAnswer, SessionPath, SessionRefusal, SessionVerdict, StoreError,
    decide_file_change, refuse_session_write,
};
use windlass_core::time::Timestamp;

use super::super::SqliteStore;
use super::super::blobs;
use super::super::checksum;
use super::super::decide::RunHead;
use super::super::job::RunPhase;
use super::super::log::{signed, unsigned};
use super::super::read::{ReadError, Readers, size};
use super::super::write_tx::{JobError, WriteTx};
use super::{SessionJob, StoredSession};

/// - `files.parent` is the directory that the file is in, for lists of directories.
/// - `files.blob` is the content; null for a directory.
pub(in crate::sqlite) const DDL: &str = "
CREATE TABLE files (
    session  INTEGER NOT NULL,
    path     TEXT NOT NULL,
    parent   TEXT NOT NULL,
    blob     INTEGER,
    size     INTEGER NOT NULL,
    encoded  INTEGER NOT NULL,
    readonly INTEGER NOT NULL,
    created  INTEGER NOT NULL,
    updated  INTEGER NOT NULL,
    sum      INTEGER NOT NULL,
    PRIMARY KEY (session, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX files_by_parent ON files (session, parent, path);
CREATE INDEX files_by_size ON files (session, size);
CREATE INDEX files_by_blob ON files (blob) WHERE blob IS NOT NULL;
";

/// Selects damaged rows.
pub(in crate::sqlite) const DAMAGED: &str = "SELECT NULL, 'the file ' || path || ' of session ' ||
    coalesce((SELECT name FROM sessions WHERE id = session), session) FROM files
    WHERE sum != windlass_sum(session, path, parent, blob, size, encoded, readonly, created, updated)";

/// Selects the columns that [`file_of`] reads. The hash of a content whose row is damaged is null.
macro_rules! select_files {
    ($($which:literal),+) => {
        concat!(
            "SELECT session, path, parent, blob, size, encoded, readonly, created, updated, sum,
                    (SELECT digest FROM blobs WHERE blobs.id = files.blob AND (blobs.sum IS NULL
                        OR blobs.sum = windlass_sum(blobs.digest, blobs.size, blobs.opening, blobs.media_type)))
             FROM files ",
            $($which),+
        )
    };
}

pub(super) const FILE: &str = select_files!("WHERE session = ?1 AND path = ?2");

/// `?2` and `?3` are the first and the last text that a path below the directory can have, `?4` a path before the list.
pub(super) const BELOW: &str =
    select_files!("WHERE session = ?1 AND path > max(?2, ?4) AND path < ?3 ORDER BY path LIMIT ?5");

pub(super) const CHILDREN: &str =
    select_files!("INDEXED BY files_by_parent WHERE session = ?1 AND parent = ?2 AND path > ?3 ORDER BY path LIMIT ?4");

pub(super) const USAGE: &str = "SELECT coalesce(sum(size), 0), count(*) FROM files WHERE session = ?1";

const PUT: &str =
    "INSERT OR REPLACE INTO files (session, path, parent, blob, size, encoded, readonly, created, updated, sum)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, windlass_sum(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9))";

const REMOVE: &str = "DELETE FROM files WHERE session = ?1 AND path = ?2 RETURNING blob";

/// Reads the columns of `select_files!`. The inner error is damage.
fn file_of(row: &Row<'_>) -> rusqlite::Result<Result<FileInfo, StoreError>> {
    let text: String = row.get(1)?;
    let damaged = || Err(StoreError::Damaged { run: None, place: format!("the file {text:?} of a session") });
    if !checksum::is_intact(row, 9)? {
        return Ok(damaged());
    }
    let content = row.get::<_, Option<[u8; 32]>>(10)?.map(ArtifactId::from_bytes);
    let Ok(path) = SessionPath::parse(&text) else { return Ok(damaged()) };
    if row.get::<_, Option<i64>>(3)?.is_some() != content.is_some() {
        return Ok(damaged());
    }
    let encoding = if row.get(5)? { FileEncoding::Base64 } else { FileEncoding::Text };
    Ok(Ok(FileInfo {
        path,
        content,
        size: unsigned(row.get(4)?),
        encoding,
        is_readonly: row.get(6)?,
        created: Timestamp::from_micros(row.get(7)?),
        updated: Timestamp::from_micros(row.get(8)?),
    }))
}

fn find(
    connection: &Connection,
    session: i64,
    path: &SessionPath,
) -> rusqlite::Result<Option<Result<FileInfo, StoreError>>> {
    connection.prepare_cached(FILE)?.query_row(params![session, path.as_str()], file_of).optional()
}

fn list(
    connection: &Connection,
    session: i64,
    query: &FileQuery,
) -> rusqlite::Result<Vec<Result<FileInfo, StoreError>>> {
    let after = query.after.as_ref().map_or("", SessionPath::as_str);
    let most = size(query.limit);
    if !query.recursive {
        let mut statement = connection.prepare_cached(CHILDREN)?;
        let rows = statement.query_map(params![session, query.directory.as_str(), after, most], file_of)?;
        return rows.collect();
    }
    let first = query.directory.prefix();
    // The character after `/`.
    let last = format!("{}0", &first[..first.len() - 1]);
    let mut statement = connection.prepare_cached(BELOW)?;
    let rows = statement.query_map(params![session, first, last, after, most], file_of)?;
    rows.collect()
}

fn usage(connection: &Connection, session: i64) -> rusqlite::Result<FileUsage> {
    let read = |row: &Row<'_>| Ok(FileUsage { bytes: unsigned(row.get(0)?), count: unsigned(row.get(1)?) });
    connection.prepare_cached(USAGE)?.query_row([session], read)
}

/// Changes of files that an owner makes together with its own changes.
pub(in crate::sqlite) struct OutcomeEdits {
    pub(in crate::sqlite) session: Arc<str>,
    pub(in crate::sqlite) at: Timestamp,
    pub(in crate::sqlite) edits: Vec<FileEdit>,
    pub(in crate::sqlite) key: Arc<str>,
}

/// The files of a session, for a write of `by`.
struct SessionTree<'c> {
    connection: &'c Connection,
    session: i64,
    by: Access,
    /// What reserved edits add.
    reserved: FileUsage,
}

impl FileTree for SessionTree<'_> {
    type Error = JobError;

    fn file(&self, path: &SessionPath) -> Result<Option<FileInfo>, JobError> {
        Ok(find(self.connection, self.session, path)?.transpose()?)
    }

    fn below(&self, directory: &SessionPath, limit: usize) -> Result<Vec<FileInfo>, JobError> {
        let query = FileQuery { directory: directory.clone(), recursive: true, after: None, limit };
        let found = list(self.connection, self.session, &query)?;
        Ok(found.into_iter().collect::<Result<_, _>>()?)
    }

    fn usage(&self) -> Result<FileUsage, JobError> {
        let used = usage(self.connection, self.session)?;
        Ok(FileUsage { bytes: used.bytes + self.reserved.bytes, count: used.count + self.reserved.count })
    }

    fn may_read(&self, content: ArtifactId) -> Result<bool, JobError> {
        Ok(blobs::readable(self.connection, &content, &self.by)?.is_some())
    }
}

impl WriteTx<'_> {
    /// Decides about a write to a file of an open session and applies it.
    pub(super) fn change_file(
        &mut self,
        job: &SessionJob,
        change: &FileChange,
        session: &StoredSession,
    ) -> Result<SessionVerdict, JobError> {
        let by = match &job.by {
            Some(operation) => Access::Run(operation.run),
            None => Access::Session(job.session.clone()),
        };
        self.void_reservations(&job.session)?;
        if let Err(refusal) = self.reserved.refuse(&job.session, change.path()) {
            return Ok(Err(SessionRefusal::File(refusal)));
        }
        let reserved = self.reserved.reserved(&job.session);
        let changed = self.change_unreserved((session.id, &job.session), change, job.at, (by, reserved))?;
        Ok(changed.map_err(SessionRefusal::File))
    }

    fn change_unreserved(
        &self,
        (session, name): (i64, &str),
        change: &FileChange,
        at: Timestamp,
        (by, reserved): (Access, FileUsage),
    ) -> Result<Result<SessionAnswer, FileRefusal>, JobError> {
        let tree = SessionTree { connection: self.connection, session, by, reserved };
        let plan = match decide_file_change(&tree, change, at)? {
            Ok(plan) => plan,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let answer = plan.answer.clone();
        self.apply_file_plan(plan, (session, name), at)?;
        Ok(Ok(answer))
    }

    /// Ends the reservations of runs that have another owner by now, or have ended.
    fn void_reservations(&mut self, session: &str) -> Result<(), JobError> {
        for (run, epoch) in self.reserved.runs(session) {
            let is_current = |head: &mut RunHead| head.epoch == epoch && head.phase != RunPhase::Finished;
            if !self.head(run)?.is_some_and(is_current) {
                self.reserved.void(session, run, epoch);
            }
        }
        Ok(())
    }

    /// Decides about the changes of an outcome, and reserves those that can be made. Writes nothing.
    pub(super) fn stage_files(
        &mut self,
        job: &SessionJob,
        (edits, limits): (&[FileEdit], FileLimits),
        found: Option<&StoredSession>,
    ) -> Result<SessionVerdict, JobError> {
        let none = || StoreError::Invalid("only an operation of a run can stage changes".to_owned());
        let by = job.by.as_ref().ok_or_else(none)?;
        if let Err(refusal) = refuse_session_write(&job.change, &job.access, found.map(|session| &session.info), |_| 0)
        {
            return Ok(Err(refusal));
        }
        let Some(session) = found else { return Ok(Err(SessionRefusal::Missing)) };
        self.void_reservations(&job.session)?;
        self.reserved.release(&job.session, by.run, &by.key);
        let reserved = self.reserved.reserved(&job.session);
        // Each change is decided about as if those before it had been made.
        self.connection.execute_batch("SAVEPOINT stage")?;
        let (mut made, mut refused) = (Vec::new(), Vec::new());
        let mut decide = |edit: &FileEdit| -> Result<(), JobError> {
            let decided = match self.reserved.refuse(&job.session, &edit.path) {
                Ok(()) => {
                    let access = (Access::Run(by.run), reserved);
                    self.change_unreserved((session.id, &job.session), &edit.change(limits), job.at, access)?.map(drop)
                }
                Err(refusal) => Err(refusal),
            };
            match decided {
                Ok(()) => made.push(edit.clone()),
                Err(refusal) => refused.push(RefusedEdit { path: edit.path.clone(), refusal }),
            }
            Ok(())
        };
        let decided = edits.iter().try_for_each(&mut decide);
        self.connection.execute_batch("ROLLBACK TO stage; RELEASE stage")?;
        decided?;
        self.reserved.reserve(&job.session, by, made);
        Ok(Ok(SessionAnswer::Staged { refused }))
    }

    /// Makes the changes of an owner's commit.
    pub(in crate::sqlite) fn edit_files(&mut self, all: &[OutcomeEdits], run: RunId) -> Result<(), JobError> {
        for OutcomeEdits { session, at, edits, key } in all {
            self.reserved.release(session, run, key);
            let Some(found) = StoredSession::find(self.connection, session)?.transpose()? else { continue };
            if found.info.closed.is_some() {
                tracing::warn!(%session, "changes of files were left out of an outcome: the session is closed");
                continue;
            }
            for edit in edits {
                let by = (Access::Run(run), FileUsage::default());
                let changed = self.change_unreserved((found.id, session), &edit.decided(), *at, by)?;
                if let Err(refusal) = changed {
                    let why = refusal.sentence(session);
                    tracing::warn!(%session, "a change of a file was left out of an outcome: {why}");
                }
            }
        }
        Ok(())
    }

    fn apply_file_plan(&self, plan: FilePlan, session: (i64, &str), at: Timestamp) -> Result<(), JobError> {
        let (connection, (id, name)) = (self.connection, session);
        let mut dropped = Vec::new();
        for path in plan.remove {
            let blob: Option<Option<i64>> = connection
                .prepare_cached(REMOVE)?
                .query_row(params![id, path.as_str()], |row| row.get(0))
                .optional()?;
            dropped.extend(blob.flatten());
        }
        for file in plan.put {
            let blob = match file.content {
                Some(content) => {
                    let missing = StoreError::NoArtifact { artifact: content };
                    Some(blobs::readable(connection, &content, &Access::Owner)?.ok_or(missing)?)
                }
                None => None,
            };
            let sql = "SELECT blob FROM files WHERE session = ?1 AND path = ?2 AND blob IS NOT ?3";
            let replaced: Option<Option<i64>> = connection
                .prepare_cached(sql)?
                .query_row(params![id, file.path.as_str(), blob], |row| row.get(0))
                .optional()?;
            dropped.extend(replaced.flatten());
            let parent = file.path.parent().unwrap_or_else(SessionPath::root);
            connection.prepare_cached(PUT)?.execute(params![
                id,
                file.path.as_str(),
                parent.as_str(),
                blob,
                signed(file.size),
                file.encoding == FileEncoding::Base64,
                file.is_readonly,
                file.created.as_micros(),
                file.updated.as_micros(),
            ])?;
        }
        for blob in dropped {
            blobs::release(connection, blob, Some((name, at + limits::ARTIFACT_GRACE)))?;
        }
        connection.prepare_cached("UPDATE sessions SET kept = 1 WHERE id = ?1 AND kept = 0")?.execute([id])?;
        Ok(())
    }

    /// Removes up to `rows` files of a closed session. Their contents go at once, unless something else refers to them.
    pub(super) fn remove_files(&self, session: i64, rows: usize) -> rusqlite::Result<usize> {
        let sql = "DELETE FROM files WHERE session = ?1
                   AND path IN (SELECT path FROM files WHERE session = ?1 LIMIT ?2) RETURNING blob";
        let mut statement = self.connection.prepare_cached(sql)?;
        let removed: Vec<Option<i64>> =
            statement.query_map(params![session, size(rows)], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        for blob in removed.iter().flatten() {
            blobs::release(self.connection, *blob, None)?;
        }
        Ok(removed.len())
    }
}

impl Readers {
    fn with_session<T: Default>(
        &self,
        session: &str,
        read: impl FnOnce(&Connection, StoredSession) -> Result<T, ReadError>,
    ) -> Result<T, StoreError> {
        self.with_reader(None, |connection| {
            // One snapshot, so that a list is of one moment.
            let view = connection.transaction()?;
            match StoredSession::find(&view, session)? {
                Some(found) => read(&view, found.map_err(ReadError::Refused)?),
                None => Ok(T::default()),
            }
        })
    }
}

impl Files for SqliteStore {
    fn file(&self, session: Arc<str>, path: SessionPath) -> BoxFuture<'_, Result<Option<FileInfo>, StoreError>> {
        Box::pin(async move {
            self.readers.with_session(&session, |view, found| {
                if path.is_root() {
                    return Ok(Some(root(found.info.created)));
                }
                find(view, found.id, &path)?.transpose().map_err(ReadError::Refused)
            })
        })
    }

    fn list_files(&self, session: Arc<str>, query: FileQuery) -> BoxFuture<'_, Result<Vec<FileInfo>, StoreError>> {
        Box::pin(async move {
            self.readers.with_session(&session, |view, found| {
                let files = list(view, found.id, &query)?;
                files.into_iter().collect::<Result<_, _>>().map_err(ReadError::Refused)
            })
        })
    }

    fn file_usage(&self, session: Arc<str>) -> BoxFuture<'_, Result<FileUsage, StoreError>> {
        Box::pin(async move { self.readers.with_session(&session, |view, found| Ok(usage(view, found.id)?)) })
    }
}

fn root(created: Timestamp) -> FileInfo {
    FileInfo {
        path: SessionPath::root(),
        content: None,
        size: 0,
        encoding: FileEncoding::Text,
        is_readonly: false,
        created,
        updated: created,
    }
}
