//! Files of sessions: rows that refer to blobs.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use rusqlite::{Connection, OptionalExtension, Row, params};
use windlass_core::limits;
use windlass_core::store::{
    Access, ArtifactId, FileChange, FileEncoding, FileInfo, FilePlan, FileQuery, FileTree, FileUsage, Files,
    SessionPath, SessionRefusal, SessionVerdict, StoreError, decide_file_change,
};
use windlass_core::time::Timestamp;

use super::super::SqliteStore;
use super::super::blobs;
use super::super::checksum;
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

/// Selects the columns that [`file_of`] reads.
macro_rules! select_files {
    ($($which:literal),+) => {
        concat!(
            "SELECT session, path, parent, blob, size, encoded, readonly, created, updated, sum,
                    (SELECT digest FROM blobs WHERE blobs.id = files.blob)
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

/// The files of a session, for a write of `by`.
struct SessionTree<'c> {
    connection: &'c Connection,
    session: i64,
    by: Access,
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
        Ok(usage(self.connection, self.session)?)
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
        let tree = SessionTree { connection: self.connection, session: session.id, by };
        let plan = match decide_file_change(&tree, change, job.at)? {
            Ok(plan) => plan,
            Err(refusal) => return Ok(Err(SessionRefusal::File(refusal))),
        };
        let answer = plan.answer.clone();
        self.apply_file_plan(plan, (session.id, &job.session), job.at)?;
        Ok(Ok(answer))
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
