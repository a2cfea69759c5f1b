//! The store's artifact API: writes go through the writer, reads use separate connections.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use rusqlite::Connection;
use windlass_core::store::{Access, ArtifactId, Artifacts, Promise, StoreError, Stored, Swept, Upload};
use windlass_core::time::Timestamp;

use super::super::SqliteStore;
use super::super::job::Job;
use super::super::read::ReadError;
use super::super::write_queue::WriteQueue;
use super::{BlobJob, BlobOutcome, access, find, find_orphan, metadata, read_at};

/// Queues jobs that delete orphans of earlier openings, slice by slice, between other jobs.
pub(in crate::sqlite) fn schedule_orphan_cleanup(
    connection: &Connection,
    queue: &Arc<WriteQueue>,
    opening: i64,
) -> rusqlite::Result<()> {
    if find_orphan(connection, opening)?.is_some() {
        next_slice(queue.clone());
    }
    Ok(())
}

fn next_slice(queue: Arc<WriteQueue>) {
    let (promise, ticket) = Promise::pair();
    // If the queue is full or closed, the next opening or sweep continues.
    if queue.push(Job::Blob(BlobJob::DeleteOrphans, promise)).is_ok() {
        ticket.then(move |done| {
            if let Ok(BlobOutcome::Swept(Swept { more: true, .. })) = done {
                next_slice(queue);
            }
        });
    }
}

fn unexpected() -> StoreError {
    StoreError::Unknown("the writer sent an answer of another kind".to_owned())
}

impl SqliteStore {
    async fn step(&self, step: BlobJob) -> Result<BlobOutcome, StoreError> {
        self.ask(|promise| Job::Blob(step, promise)).await
    }

    /// The blob, if this accessor may read it.
    fn readable(connection: &Connection, artifact: ArtifactId, by: &Access) -> Result<i64, ReadError> {
        let missing = || ReadError::Refused(StoreError::NoArtifact { artifact });
        let blob = find(connection, &artifact)?.ok_or_else(missing)?;
        if access::may_read(connection, blob, by, None)? { Ok(blob) } else { Err(missing()) }
    }
}

impl Artifacts for SqliteStore {
    fn begin(&self, by: Access, until: Timestamp) -> BoxFuture<'_, Result<Upload, StoreError>> {
        Box::pin(std::future::ready(Ok(self.uploads.begin(by, until))))
    }

    /// Compresses on the calling thread.
    fn append(&self, upload: Upload, piece: Vec<u8>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let step = self.uploads.submit(upload, piece)?;
            let BlobOutcome::Written(blob) = self.step(step).await? else { return Err(unexpected()) };
            self.uploads.written(upload, blob);
            Ok(())
        })
    }

    fn finish(&self, upload: Upload, media_type: Arc<str>) -> BoxFuture<'_, Result<Stored, StoreError>> {
        Box::pin(async move {
            let (step, stored) = self.uploads.end(upload, media_type)?;
            self.step(step).await?;
            Ok(stored)
        })
    }

    /// The written part becomes an orphan at once, or after this opening if the queue is full.
    fn abandon(&self, upload: Upload) {
        let Some(step) = self.uploads.abandon(upload) else { return };
        // The answer is not needed.
        let (promise, _ticket) = Promise::pair();
        if let Err(error) = self.queue.push(Job::Blob(step, promise)) {
            tracing::debug!(%error, "an abandoned upload is deleted after the next opening");
        }
    }

    fn size(&self, artifact: ArtifactId, by: Access) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            self.readers.with_reader(None, |connection| {
                let transaction = connection.transaction()?;
                let blob = Self::readable(&transaction, artifact, &by)?;
                Ok(metadata(&transaction, blob)?.0)
            })
        })
    }

    fn media_type(&self, artifact: ArtifactId, by: Access) -> BoxFuture<'_, Result<Option<Arc<str>>, StoreError>> {
        Box::pin(async move {
            self.readers.with_reader(None, |connection| {
                let transaction = connection.transaction()?;
                let blob = Self::readable(&transaction, artifact, &by)?;
                Ok(metadata(&transaction, blob)?.1)
            })
        })
    }

    fn read(
        &self,
        artifact: ArtifactId,
        by: Access,
        offset: u64,
        length: usize,
    ) -> BoxFuture<'_, Result<Vec<u8>, StoreError>> {
        Box::pin(async move {
            self.readers.with_reader(None, |connection| {
                // In one snapshot of the file, so that a blob that is deleted meanwhile is read completely.
                let transaction = connection.transaction()?;
                let blob = Self::readable(&transaction, artifact, &by)?;
                Ok(read_at(&transaction, blob, offset, length)?)
            })
        })
    }

    fn sweep(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        Box::pin(async move {
            let BlobOutcome::Swept(swept) = self.step(BlobJob::Sweep { now, limit }).await? else {
                return Err(unexpected());
            };
            Ok(swept)
        })
    }
}
