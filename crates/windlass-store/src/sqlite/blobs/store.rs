//! Artifacts as the store offers them: writes by way of the writer, reads on connections of their own.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use rusqlite::Connection;
use windlass_core::store::{Access, ArtifactId, Artifacts, Promise, StoreError, Stored, Swept, Upload};
use windlass_core::time::Timestamp;

use super::super::SqliteStore;
use super::super::job::Job;
use super::super::queue::Queue;
use super::super::read::ReadError;
use super::{Done, Step, about, access, find, left_over, read_at};

/// Has the writer clear what earlier openings left, slice by slice, between whatever else it does.
pub(in crate::sqlite) fn tidy(connection: &Connection, queue: &Arc<Queue>, opening: i64) -> rusqlite::Result<()> {
    if left_over(connection, opening)?.is_some() {
        next_slice(queue.clone());
    }
    Ok(())
}

fn next_slice(queue: Arc<Queue>) {
    let (promise, ticket) = Promise::pair();
    // A queue that is full or closed has better things to do; the next opening, or a sweep, goes on with it.
    if queue.push(Job::Blob(Step::Tidy, promise)).is_ok() {
        ticket.then(move |done| {
            if let Ok(Done::Swept(Swept { more: true, .. })) = done {
                next_slice(queue);
            }
        });
    }
}

fn unexpected() -> StoreError {
    StoreError::Unknown("the writer answered something else".to_owned())
}

impl SqliteStore {
    async fn step(&self, step: Step) -> Result<Done, StoreError> {
        self.ask(|promise| Job::Blob(step, promise)).await
    }

    /// The blob, if it is there for whoever asks.
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

    /// Compresses where it is called.
    fn append(&self, upload: Upload, piece: Vec<u8>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let step = self.uploads.submit(upload, piece)?;
            let Done::Written(blob) = self.step(step).await? else { return Err(unexpected()) };
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

    /// What is written of it is a left-over at once, unless the queue is full: then it is one of this opening.
    fn abandon(&self, upload: Upload) {
        let Some(step) = self.uploads.abandon(upload) else { return };
        // Nobody waits for the answer.
        let (promise, _ticket) = Promise::pair();
        if let Err(error) = self.queue.push(Job::Blob(step, promise)) {
            tracing::debug!(%error, "an upload that was given up is collected after the next opening");
        }
    }

    fn size(&self, artifact: ArtifactId, by: Access) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            self.readers.glance(None, |connection| {
                let transaction = connection.transaction()?;
                let blob = Self::readable(&transaction, artifact, &by)?;
                Ok(about(&transaction, blob)?.0)
            })
        })
    }

    fn media_type(&self, artifact: ArtifactId, by: Access) -> BoxFuture<'_, Result<Option<Arc<str>>, StoreError>> {
        Box::pin(async move {
            self.readers.glance(None, |connection| {
                let transaction = connection.transaction()?;
                let blob = Self::readable(&transaction, artifact, &by)?;
                Ok(about(&transaction, blob)?.1)
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
            self.readers.glance(None, |connection| {
                // In one view of the file: what is collected meanwhile is there to the end.
                let transaction = connection.transaction()?;
                let blob = Self::readable(&transaction, artifact, &by)?;
                Ok(read_at(&transaction, blob, offset, length)?)
            })
        })
    }

    fn sweep(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        Box::pin(async move {
            let Done::Swept(swept) = self.step(Step::Sweep { now, limit }).await? else { return Err(unexpected()) };
            Ok(swept)
        })
    }
}
