//! Uploads: the state of those in progress, and the writer's jobs for them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::{Connection, params};
use windlass_core::limits;
use windlass_core::store::{Access, ArtifactHasher, StoreError, Stored, Swept, Upload, check_piece, no_upload};
use windlass_core::time::Timestamp;

use super::super::write_tx::JobError;
use super::piece::Piece;
use super::{NO_OPENING, access, claim, delete_orphans, find, sweep};

/// A job for the writer.
pub(in crate::sqlite) enum BlobJob {
    /// Writes a piece. The first piece of an upload has no blob yet.
    Piece {
        blob: Option<i64>,
        number: i64,
        piece: Piece,
    },
    Finish {
        blob: Option<i64>,
        stored: Stored,
        media_type: Arc<str>,
        by: Access,
        until: Timestamp,
    },
    Abandon {
        blob: i64,
    },
    Sweep {
        now: Timestamp,
        limit: usize,
    },
    /// Deletes orphans, independent of the time.
    DeleteOrphans,
}

impl BlobJob {
    /// The size of its content.
    pub(in crate::sqlite) fn bytes(&self) -> usize {
        if let Self::Piece { piece, .. } = self { piece.body.len() } else { 0 }
    }
}

/// The result of a job.
#[derive(Clone, Copy, Debug)]
pub(in crate::sqlite) enum BlobOutcome {
    /// The blob of the upload.
    Written(i64),
    Swept(Swept),
}

/// Runs one job within the transaction of its group.
pub(in crate::sqlite) fn work(connection: &Connection, opening: i64, step: &BlobJob) -> Result<BlobOutcome, JobError> {
    match step {
        BlobJob::Piece { blob, number, piece } => {
            let blob = open(connection, *blob, opening)?;
            super::insert_piece(connection, blob, *number, piece)?;
            Ok(BlobOutcome::Written(blob))
        }
        BlobJob::Finish { blob, stored, media_type, by, until } => {
            let own = open(connection, *blob, opening)?;
            // The same content may already exist.
            let existing = find(connection, &stored.id)?;
            match existing {
                Some(_) => discard(connection, own)?,
                None => name(connection, own, stored)?,
            }
            let blob = existing.unwrap_or(own);
            connection.prepare_cached(SET_MEDIA_TYPE)?.execute(params![blob, media_type])?;
            for holder in by.holders() {
                claim(connection, blob, &access::holder(&holder), *until)?;
            }
            Ok(BlobOutcome::Written(blob))
        }
        BlobJob::Abandon { blob } => {
            discard(connection, *blob)?;
            Ok(BlobOutcome::Written(*blob))
        }
        BlobJob::Sweep { now, limit } => Ok(BlobOutcome::Swept(sweep(connection, *now, opening, *limit)?)),
        BlobJob::DeleteOrphans => Ok(BlobOutcome::Swept(delete_orphans(connection, opening, limits::ARTIFACT_SWEEP)?)),
    }
}

const IS_OPEN: &str = "SELECT EXISTS (SELECT 1 FROM blobs WHERE id = ?1 AND digest IS NULL AND opening = ?2)";

const SET_MEDIA_TYPE: &str = "UPDATE blobs SET media_type = ?2 WHERE id = ?1 AND media_type IS NULL";

/// The blob of an upload: a new one for its first job. Fails if the upload is over.
fn open(connection: &Connection, blob: Option<i64>, opening: i64) -> Result<i64, JobError> {
    let Some(blob) = blob else {
        connection
            .prepare_cached("INSERT INTO blobs (size, opening, sum) VALUES (0, ?1, windlass_sum(NULL, 0, ?1, NULL))")?
            .execute([opening])?;
        return Ok(connection.last_insert_rowid());
    };
    let open: bool = connection.prepare_cached(IS_OPEN)?.query_row([blob, opening], |row| row.get(0))?;
    if open { Ok(blob) } else { Err(no_upload().into()) }
}

/// Names the complete content, so that it can be found.
fn name(connection: &Connection, blob: i64, stored: &Stored) -> rusqlite::Result<()> {
    let size = i64::try_from(stored.size).unwrap_or(i64::MAX);
    let sql = "UPDATE blobs SET digest = ?2, size = ?3, opening = NULL WHERE id = ?1";
    connection.prepare_cached(sql)?.execute(params![blob, stored.id.as_bytes(), size])?;
    Ok(())
}

fn discard(connection: &Connection, blob: i64) -> rusqlite::Result<()> {
    let sql = "UPDATE blobs SET opening = ?2 WHERE id = ?1 AND digest IS NULL";
    connection.prepare_cached(sql)?.execute([blob, NO_OPENING])?;
    Ok(())
}

/// The uploads of this process. Beginning one writes nothing; its blob is created with its first piece.
#[derive(Default)]
pub(in crate::sqlite) struct Uploads(Mutex<OpenUploads>);

#[derive(Default)]
struct OpenUploads {
    last: u64,
    all: HashMap<Upload, UploadState>,
}

struct UploadState {
    by: Access,
    until: Timestamp,
    hasher: ArtifactHasher,
    size: u64,
    blob: Option<i64>,
    /// Pieces that were submitted, and how many of them are written.
    submitted: i64,
    written: i64,
}

impl Uploads {
    pub(super) fn begin(&self, by: Access, until: Timestamp) -> Upload {
        let mut open = self.0.lock();
        open.last += 1;
        let upload = Upload(open.last);
        let hasher = ArtifactHasher::default();
        open.all.insert(upload, UploadState { by, until, hasher, size: 0, blob: None, submitted: 0, written: 0 });
        upload
    }

    /// The job that writes the next piece.
    pub(super) fn submit(&self, upload: Upload, piece: Vec<u8>) -> Result<BlobJob, StoreError> {
        let (blob, number) = {
            let mut open = self.0.lock();
            let state = open.all.get_mut(&upload).ok_or_else(no_upload)?;
            check_piece(state.size, piece.len())?;
            state.check_all_written()?;
            state.hasher.update(&piece);
            state.size += piece.len() as u64;
            state.submitted += 1;
            (state.blob, state.submitted - 1)
        };
        Ok(BlobJob::Piece { blob, number, piece: Piece::new(piece) })
    }

    pub(super) fn written(&self, upload: Upload, blob: i64) {
        if let Some(state) = self.0.lock().all.get_mut(&upload) {
            state.written += 1;
            state.blob = Some(blob);
        }
    }

    /// Finishes an upload, if all its pieces are written.
    pub(super) fn end(&self, upload: Upload, media_type: Arc<str>) -> Result<(BlobJob, Stored), StoreError> {
        let mut open = self.0.lock();
        open.all.get(&upload).ok_or_else(no_upload)?.check_all_written()?;
        let UploadState { by, until, hasher, size, blob, .. } = open.all.remove(&upload).ok_or_else(no_upload)?;
        let stored = Stored { id: hasher.finish(), size };
        Ok((BlobJob::Finish { blob, stored, media_type, by, until }, stored))
    }

    /// Abandons an upload. Returns the job that discards its blob, if there is one.
    pub(super) fn abandon(&self, upload: Upload) -> Option<BlobJob> {
        let blob = self.0.lock().all.remove(&upload)?.blob?;
        Some(BlobJob::Abandon { blob })
    }
}

impl UploadState {
    fn check_all_written(&self) -> Result<(), StoreError> {
        if self.written == self.submitted {
            return Ok(());
        }
        Err(StoreError::Invalid("an earlier piece of the upload was not written; abandon the upload".to_owned()))
    }
}
