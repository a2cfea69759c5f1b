//! Artifacts for users: written and read in pieces, never whole in memory unless the caller asks for that.

use std::sync::Arc;
use std::time::Duration;

use crate::call::Attempt;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::limits;
use crate::run::Run;
use crate::runtime::Runtime;
use crate::store::{Access, ArtifactId, Store, StoreError, Swept, Upload};
use crate::time::Clock;
use crate::tool::{Artifact, Data, ToolError};

/// Why an artifact was not stored or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArtifactError {
    /// It is larger than the runtime's limit.
    #[error(
        "the artifact is larger than {limit} bytes, which is the most this runtime stores; split it, keep it elsewhere and \
         pass its address on, or raise `artifact_bytes`"
    )]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// It is larger than the reader's limit for reading it whole.
    #[error("artifact of {size} bytes is too large to read whole within {limit}; read it piece by piece")]
    TooLargeToHold {
        /// Its size in bytes.
        size: u64,
        /// The reader's limit in bytes.
        limit: usize,
    },
    /// It does not exist, or the reader has no access to it.
    #[error("artifact {0} does not exist here; it may have been collected, or it belongs to another session")]
    Missing(ArtifactId),
    /// The attempt that stores or reads it has ended.
    #[error("the attempt has ended, and its artifacts can no longer be written or read; finish them before it returns")]
    Over,
    /// The store failed. Attempts never see this: their run is taken up again from its journal.
    #[error(transparent)]
    Store(StoreError),
}

impl ArtifactError {
    /// The error of a tool that passes it on with `?`.
    pub(crate) fn for_tool(&self) -> ToolError {
        ToolError::failed(self.to_string())
    }
}

impl From<ArtifactError> for Error {
    fn from(error: ArtifactError) -> Self {
        match error {
            ArtifactError::Store(error) => Self::Store(error),
            ArtifactError::Missing(artifact) => Self::Store(StoreError::NoArtifact { artifact }),
            ArtifactError::TooLarge { .. } | ArtifactError::TooLargeToHold { .. } => Self::TooLarge(error.to_string()),
            ArtifactError::Over => Self::Conflict(error.to_string()),
        }
    }
}

/// Stores and reads artifacts on behalf of a reader or writer.
struct ArtifactClient {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    limit: u64,
    by: Access,
    /// How long a stored artifact is kept without references.
    keep: Duration,
    /// The attempt it acts for, and its run.
    attempt: Option<(Attempt, Arc<Run>)>,
}

impl ArtifactClient {
    fn of(kernel: &Kernel, by: Access) -> Self {
        Self {
            store: kernel.store.clone(),
            clock: kernel.env.clock.clone(),
            limit: kernel.env.limits.artifact_bytes,
            by,
            keep: limits::ARTIFACT_GRACE,
            attempt: None,
        }
    }

    fn of_attempt(attempt: &Attempt) -> Option<Self> {
        let run = attempt.home()?;
        let keep = limits::ARTIFACT_GRACE.saturating_add(attempt.lasts());
        Some(Self { keep, attempt: Some((attempt.clone(), run.clone())), ..Self::of(&run.kernel, Access::Run(run.id)) })
    }

    /// Turns a store's error into the caller's. An attempt never sees a store failure: its run stops, the journal is
    /// reloaded, and replay decides.
    async fn error_for_caller(&self, error: StoreError) -> ArtifactError {
        match (error, &self.attempt) {
            (StoreError::NoArtifact { artifact }, _) => ArtifactError::Missing(artifact),
            (error @ StoreError::Invalid(_), _) | (error, None) => ArtifactError::Store(error),
            (error, Some((_, run))) => {
                run.failed(error);
                std::future::pending().await
            }
        }
    }

    /// Allows the outcome of the attempt to refer to the artifact.
    fn vouch(&self, artifact: ArtifactId) {
        if let Some((attempt, _)) = &self.attempt {
            attempt.vouch(artifact);
        }
    }
}

/// The media type of the contents of session files.
const FILE_TYPE: &str = "application/octet-stream";

/// An artifact that is being stored. Holds one piece ([`limits::ARTIFACT_PIECE`]) in memory, whatever its size.
///
/// Dropping it abandons the upload, and the bytes written so far are collected. The artifact becomes visible with
/// [`finish`](ArtifactWriter::finish), not before.
#[must_use = "nothing is stored until it is finished"]
pub struct ArtifactWriter {
    /// `None` if the attempt had ended before the writer was made.
    client: Option<ArtifactClient>,
    media_type: String,
    name: Option<String>,
    size: u64,
    buffer: Vec<u8>,
    upload: Option<Upload>,
}

impl ArtifactWriter {
    fn new(client: Option<ArtifactClient>, media_type: impl Into<String>) -> Self {
        Self { client, media_type: media_type.into(), name: None, size: 0, buffer: Vec::new(), upload: None }
    }

    /// The content of a file that is written to a session from outside.
    pub(crate) fn for_file(kernel: &Kernel, session: Arc<str>, limit: u64) -> Self {
        Self::new(Some(ArtifactClient { limit, ..ArtifactClient::of(kernel, Access::Session(session)) }), FILE_TYPE)
    }

    /// The content of a file that an attempt writes to its session. `None` for the client if the attempt has ended.
    pub(crate) fn for_file_of(attempt: &Attempt, session: Arc<str>, limit: u64) -> Self {
        let client = ArtifactClient::of_attempt(attempt);
        Self::new(client.map(|client| ArtifactClient { limit, by: Access::Session(session), ..client }), FILE_TYPE)
    }

    /// Names it.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The largest number of bytes it may have. A caller that knows the size in advance can check it before it starts.
    pub fn limit(&self) -> u64 {
        self.client.as_ref().map_or(0, |client| client.limit)
    }

    /// Adds bytes. Waits for the store whenever a piece is full, so a slow disk slows down a fast source. After an
    /// error, or if the future is dropped, the writer can only be dropped.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), ArtifactError> {
        let limit = self.client.as_ref().ok_or(ArtifactError::Over)?.limit;
        self.size = self.size.saturating_add(bytes.len() as u64);
        if self.size > limit {
            return Err(ArtifactError::TooLarge { limit });
        }
        while !bytes.is_empty() {
            if self.buffer.len() == limits::ARTIFACT_PIECE {
                self.send().await?;
            }
            let room = limits::ARTIFACT_PIECE - self.buffer.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Completes the artifact, which is durable when this returns. It is kept as long as the outcome of this attempt,
    /// or anything else, refers to it, and for [`limits::ARTIFACT_GRACE`] if nothing does.
    pub async fn finish(mut self) -> Result<Artifact, ArtifactError> {
        if !self.buffer.is_empty() {
            self.send().await?;
        }
        let upload = self.begin_upload().await?;
        let client = self.client.as_ref().ok_or(ArtifactError::Over)?;
        let finished = client.store.artifacts().finish(upload, self.media_type.as_str().into()).await;
        self.upload = None;
        let stored = match finished {
            Ok(stored) => stored,
            Err(error) => return Err(client.error_for_caller(error).await),
        };
        client.vouch(stored.id);
        // Every writer also collects a little, so that leftovers of failed attempts cannot accumulate.
        if let Err(error) = client.store.artifacts().sweep(client.clock.now(), limits::ARTIFACT_SWEEP).await {
            tracing::warn!("unreferenced artifacts could not be collected now: {error}");
        }
        let (media_type, name) = (std::mem::take(&mut self.media_type), self.name.take());
        Ok(Artifact { media_type, name, data: Data::Stored(stored) })
    }

    async fn begin_upload(&mut self) -> Result<Upload, ArtifactError> {
        if let Some(upload) = self.upload {
            return Ok(upload);
        }
        let client = self.client.as_ref().ok_or(ArtifactError::Over)?;
        let until = client.clock.now() + client.keep;
        match client.store.artifacts().begin(client.by.clone(), until).await {
            Ok(upload) => Ok(*self.upload.insert(upload)),
            Err(error) => Err(client.error_for_caller(error).await),
        }
    }

    /// Sends the buffered bytes to the store.
    async fn send(&mut self) -> Result<(), ArtifactError> {
        let upload = self.begin_upload().await?;
        let client = self.client.as_ref().ok_or(ArtifactError::Over)?;
        let piece = std::mem::take(&mut self.buffer);
        match client.store.artifacts().append(upload, piece).await {
            Ok(()) => Ok(()),
            Err(error) => Err(client.error_for_caller(error).await),
        }
    }
}

impl Drop for ArtifactWriter {
    fn drop(&mut self) {
        if let (Some(upload), Some(client)) = (self.upload.take(), &self.client) {
            client.store.artifacts().abandon(upload);
        }
    }
}

/// An artifact that is being read, at most a piece ([`limits::ARTIFACT_PIECE`]) at a time.
pub struct ArtifactReader {
    source: ReadSource,
    size: u64,
    at: u64,
}

enum ReadSource {
    Inline(Arc<[u8]>),
    Stored(ArtifactId, ArtifactClient),
}

impl ArtifactReader {
    async fn open(client: Option<ArtifactClient>, artifact: &Artifact) -> Result<Self, ArtifactError> {
        let stored = match &artifact.data {
            Data::Inline(bytes) => {
                return Ok(Self { source: ReadSource::Inline(bytes.clone()), size: bytes.len() as u64, at: 0 });
            }
            Data::Stored(stored) => stored,
        };
        let client = client.ok_or(ArtifactError::Over)?;
        let size = match client.store.artifacts().size(stored.id, client.by.clone()).await {
            Ok(size) => size,
            Err(error) => return Err(client.error_for_caller(error).await),
        };
        client.vouch(stored.id);
        Ok(Self { source: ReadSource::Stored(stored.id, client), size, at: 0 })
    }

    /// How many bytes the artifact has.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The media type given when it was first stored, or `None` if that was not kept.
    pub async fn media_type(&self) -> Result<Option<Arc<str>>, ArtifactError> {
        match &self.source {
            ReadSource::Inline(_) => Ok(None),
            ReadSource::Stored(id, client) => match client.store.artifacts().media_type(*id, client.by.clone()).await {
                Ok(media_type) => Ok(media_type),
                Err(error) => Err(client.error_for_caller(error).await),
            },
        }
    }

    /// The next bytes from the start on, or `None` at the end. Dropping the future loses none of them.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ArtifactError> {
        if self.at >= self.size {
            return Ok(None);
        }
        let bytes = self.read_at(self.at, limits::ARTIFACT_PIECE).await?;
        self.at += bytes.len() as u64;
        Ok(Some(bytes))
    }

    /// Up to `length` bytes from `offset` on. Fewer at the end, and at most [`limits::ARTIFACT_PIECE`].
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>, ArtifactError> {
        match &self.source {
            ReadSource::Inline(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let length = length.min(limits::ARTIFACT_PIECE).min(bytes.len() - start);
                Ok(bytes[start..start + length].to_vec())
            }
            ReadSource::Stored(id, client) => {
                match client.store.artifacts().read(*id, client.by.clone(), offset, length).await {
                    Ok(bytes) => Ok(bytes),
                    Err(error) => Err(client.error_for_caller(error).await),
                }
            }
        }
    }

    /// All bytes, if there are no more than `limit`.
    pub async fn whole(mut self, limit: usize) -> Result<Vec<u8>, ArtifactError> {
        if self.size > limit as u64 {
            return Err(ArtifactError::TooLargeToHold { size: self.size, limit });
        }
        self.at = 0;
        let mut all = Vec::new();
        while let Some(bytes) = self.next().await? {
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }
}

impl Attempt {
    /// Stores an artifact as it is produced, for the outcome of this attempt to refer to. In a durable body this is
    /// done in a step.
    ///
    /// The artifact is durable before the outcome is. Once the outcome is recorded, the artifacts it mentions exist for
    /// as long as the run does. An artifact that no outcome mentions is collected after a while.
    ///
    /// ```
    /// # use windlass_core::{call::Call, tool::{Artifact, ToolResult}};
    /// async fn report(call: &Call, rows: u64) -> ToolResult<Artifact> {
    ///     let mut file = call.new_artifact("text/csv").named("report.csv");
    ///     for row in 0..rows {
    ///         file.write(format!("{row}\n").as_bytes()).await?;
    ///     }
    ///     Ok(file.finish().await?)
    /// }
    /// ```
    pub fn new_artifact(&self, media_type: impl Into<String>) -> ArtifactWriter {
        ArtifactWriter::new(ArtifactClient::of_attempt(self), media_type)
    }

    /// Reads an artifact that this run may read: one that the run itself, its session or a run it spawned refers to;
    /// without a session, one that its family of runs refers to. The id alone gives no access to the artifacts of other
    /// sessions. The outcome of this attempt may refer to the artifact too.
    pub async fn open_artifact(&self, artifact: &Artifact) -> Result<ArtifactReader, ArtifactError> {
        ArtifactReader::open(ArtifactClient::of_attempt(self), artifact).await
    }
}

impl Runtime {
    /// Stores an artifact for a session from outside. A run of that session must be started with it
    /// ([`start_with`](Runtime::start_with)) within [`limits::ARTIFACT_GRACE`]; the run keeps it from then on.
    pub fn new_artifact(&self, session: impl Into<Arc<str>>, media_type: impl Into<String>) -> ArtifactWriter {
        self.new_artifact_by(Access::Session(session.into()), media_type)
    }

    /// Like [`new_artifact`](Runtime::new_artifact), on behalf of any holder.
    pub fn new_artifact_by(&self, by: Access, media_type: impl Into<String>) -> ArtifactWriter {
        ArtifactWriter::new(Some(ArtifactClient::of(self.kernel(), by)), media_type)
    }

    /// Reads an artifact with the access of a session, of a run, or of the store's owner, who may read everything.
    pub async fn open_artifact(&self, artifact: &Artifact, by: Access) -> Result<ArtifactReader> {
        Ok(ArtifactReader::open(Some(ArtifactClient::of(self.kernel(), by)), artifact).await?)
    }

    /// Collects a bounded number of unreferenced artifacts. The result says whether there are more.
    pub async fn sweep_artifacts(&self) -> Result<Swept> {
        let kernel = self.kernel();
        Ok(kernel.store.artifacts().sweep(kernel.env.clock.now(), limits::ARTIFACT_SWEEP).await?)
    }
}
