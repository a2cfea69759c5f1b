//! Artifacts as users see them: written bit by bit, read bit by bit, never whole in memory unless somebody asks for that.

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
    /// It is larger than the runtime takes.
    #[error(
        "the artifact is larger than {limit} bytes, which is the most this runtime stores; split it, keep it elsewhere and \
         pass its address on, or raise `artifact_bytes`"
    )]
    TooLarge {
        /// The most.
        limit: u64,
    },
    /// It is larger than whoever reads it whole can bear.
    #[error("artifact of {size} bytes is too large to read whole within {limit}; read it piece by piece")]
    TooLargeToHold {
        /// How large it is.
        size: u64,
        /// What was to be held.
        limit: usize,
    },
    /// It is not there, or not for whoever asks.
    #[error("there is no artifact {0} here; it may have been collected, or belong to another session")]
    Missing(ArtifactId),
    /// The attempt that stores or reads it is over.
    #[error("the attempt is over, and with it what it stores and reads")]
    Over,
    /// The store failed. Attempts never see this: their run is taken up again from its journal.
    #[error(transparent)]
    Store(StoreError),
}

impl ArtifactError {
    /// What a tool is told that passes it on with `?`.
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

/// Where artifacts are stored and read, and on whose behalf.
struct Door {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    limit: u64,
    by: Access,
    /// How long what was stored is kept although nobody refers to it.
    keep: Duration,
    /// The attempt on whose behalf it is, and its run.
    attempt: Option<(Attempt, Arc<Run>)>,
}

impl Door {
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

    /// What the caller is told of a store's error. An attempt is told nothing of a failure: its run stops, the journal is
    /// reloaded, and replay decides.
    async fn told(&self, error: StoreError) -> ArtifactError {
        match (error, &self.attempt) {
            (StoreError::NoArtifact { artifact }, _) => ArtifactError::Missing(artifact),
            (error @ StoreError::Invalid(_), _) | (error, None) => ArtifactError::Store(error),
            (error, Some((_, run))) => {
                run.failed(error);
                std::future::pending().await
            }
        }
    }

    /// The outcome of the attempt may refer to it.
    fn vouch(&self, artifact: ArtifactId) {
        if let Some((attempt, _)) = &self.attempt {
            attempt.vouch(artifact);
        }
    }
}

/// An artifact that is being stored. Holds one piece ([`limits::ARTIFACT_PIECE`]) in memory, whatever its size.
///
/// Dropping it gives the upload up; what was written of it is collected. Nobody sees anything of it before
/// [`finish`](ArtifactWriter::finish).
#[must_use = "nothing is stored until it is finished"]
pub struct ArtifactWriter {
    /// Nothing if the attempt was over before it began.
    door: Option<Door>,
    media_type: String,
    name: Option<String>,
    size: u64,
    buffer: Vec<u8>,
    upload: Option<Upload>,
}

impl ArtifactWriter {
    fn new(door: Option<Door>, media_type: impl Into<String>) -> Self {
        Self { door, media_type: media_type.into(), name: None, size: 0, buffer: Vec::new(), upload: None }
    }

    /// Names it.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Most bytes it may have: a caller that knows how many it will be need not begin.
    pub fn limit(&self) -> u64 {
        self.door.as_ref().map_or(0, |door| door.limit)
    }

    /// Adds bytes. Waits for the store whenever a piece is full, so a fast source is held back by a slow disk. After an
    /// error, or if the future is dropped, there is nothing to do but to drop the writer.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), ArtifactError> {
        let limit = self.door.as_ref().ok_or(ArtifactError::Over)?.limit;
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

    /// Ends it: the artifact is durable when this returns. It is kept as long as the outcome of this attempt, or whatever
    /// else refers to it, and for [`limits::ARTIFACT_GRACE`] if nothing does.
    pub async fn finish(mut self) -> Result<Artifact, ArtifactError> {
        if !self.buffer.is_empty() {
            self.send().await?;
        }
        let upload = self.begun().await?;
        let door = self.door.as_ref().ok_or(ArtifactError::Over)?;
        let finished = door.store.artifacts().finish(upload, self.media_type.as_str().into()).await;
        self.upload = None;
        let stored = match finished {
            Ok(stored) => stored,
            Err(error) => return Err(door.told(error).await),
        };
        door.vouch(stored.id);
        // Whoever adds also clears up a little, so that what failed attempts leave cannot pile up.
        if let Err(error) = door.store.artifacts().sweep(door.clock.now(), limits::ARTIFACT_SWEEP).await {
            tracing::warn!("artifacts that nobody needs are not collected now: {error}");
        }
        let (media_type, name) = (std::mem::take(&mut self.media_type), self.name.take());
        Ok(Artifact { media_type, name, data: Data::Stored(stored) })
    }

    async fn begun(&mut self) -> Result<Upload, ArtifactError> {
        if let Some(upload) = self.upload {
            return Ok(upload);
        }
        let door = self.door.as_ref().ok_or(ArtifactError::Over)?;
        let until = door.clock.now() + door.keep;
        match door.store.artifacts().begin(door.by.clone(), until).await {
            Ok(upload) => Ok(*self.upload.insert(upload)),
            Err(error) => Err(door.told(error).await),
        }
    }

    /// Sends what is in the buffer.
    async fn send(&mut self) -> Result<(), ArtifactError> {
        let upload = self.begun().await?;
        let door = self.door.as_ref().ok_or(ArtifactError::Over)?;
        let piece = std::mem::take(&mut self.buffer);
        match door.store.artifacts().append(upload, piece).await {
            Ok(()) => Ok(()),
            Err(error) => Err(door.told(error).await),
        }
    }
}

impl Drop for ArtifactWriter {
    fn drop(&mut self) {
        if let (Some(upload), Some(door)) = (self.upload.take(), &self.door) {
            door.store.artifacts().abandon(upload);
        }
    }
}

/// An artifact that is being read, at most a piece ([`limits::ARTIFACT_PIECE`]) at a time.
pub struct ArtifactReader {
    source: Source,
    size: u64,
    at: u64,
}

enum Source {
    Inline(Arc<[u8]>),
    Stored(ArtifactId, Door),
}

impl ArtifactReader {
    async fn open(door: Option<Door>, artifact: &Artifact) -> Result<Self, ArtifactError> {
        let stored = match &artifact.data {
            Data::Inline(bytes) => {
                return Ok(Self { source: Source::Inline(bytes.clone()), size: bytes.len() as u64, at: 0 });
            }
            Data::Stored(stored) => stored,
        };
        let door = door.ok_or(ArtifactError::Over)?;
        let size = match door.store.artifacts().size(stored.id, door.by.clone()).await {
            Ok(size) => size,
            Err(error) => return Err(door.told(error).await),
        };
        door.vouch(stored.id);
        Ok(Self { source: Source::Stored(stored.id, door), size, at: 0 })
    }

    /// How many bytes the artifact has.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What it was said to be when it was stored first; nothing where that was not kept.
    pub async fn media_type(&self) -> Result<Option<Arc<str>>, ArtifactError> {
        match &self.source {
            Source::Inline(_) => Ok(None),
            Source::Stored(id, door) => match door.store.artifacts().media_type(*id, door.by.clone()).await {
                Ok(media_type) => Ok(media_type),
                Err(error) => Err(door.told(error).await),
            },
        }
    }

    /// The next bytes, from the beginning on; nothing at the end. Dropping the future loses none of them.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ArtifactError> {
        if self.at >= self.size {
            return Ok(None);
        }
        let bytes = self.read_at(self.at, limits::ARTIFACT_PIECE).await?;
        self.at += bytes.len() as u64;
        Ok(Some(bytes))
    }

    /// `length` bytes from `offset` on: fewer at the end, and at most [`limits::ARTIFACT_PIECE`].
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>, ArtifactError> {
        match &self.source {
            Source::Inline(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let length = length.min(limits::ARTIFACT_PIECE).min(bytes.len() - start);
                Ok(bytes[start..start + length].to_vec())
            }
            Source::Stored(id, door) => match door.store.artifacts().read(*id, door.by.clone(), offset, length).await {
                Ok(bytes) => Ok(bytes),
                Err(error) => Err(door.told(error).await),
            },
        }
    }

    /// All of it, if it has no more than `limit` bytes.
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
    /// Stores an artifact as it comes into being, for the outcome of this attempt to refer to. In a durable body this is
    /// done in a step.
    ///
    /// The artifact is durable before the outcome is: once the outcome is recorded, what it mentions is there, as long as
    /// the run is. An artifact that no outcome mentions is collected after a while.
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
        ArtifactWriter::new(Door::of_attempt(self), media_type)
    }

    /// Reads an artifact that this run may read: one that it, its session or a run it spawned refers to; without a
    /// session, one that its family refers to. Knowing the name of another session's is not enough. The outcome of this
    /// attempt may refer to it too.
    pub async fn open_artifact(&self, artifact: &Artifact) -> Result<ArtifactReader, ArtifactError> {
        ArtifactReader::open(Door::of_attempt(self), artifact).await
    }
}

impl Runtime {
    /// Stores an artifact for a session from outside, for a run of it to be started with
    /// ([`start_with`](Runtime::start_with)) within [`limits::ARTIFACT_GRACE`]; that run keeps it from then on.
    pub fn new_artifact(&self, session: impl Into<Arc<str>>, media_type: impl Into<String>) -> ArtifactWriter {
        ArtifactWriter::new(Some(Door::of(self.kernel(), Access::Session(session.into()))), media_type)
    }

    /// Reads an artifact on somebody's behalf: a session's, a run's, or as the owner of the store, who may read
    /// everything.
    pub async fn open_artifact(&self, artifact: &Artifact, by: Access) -> Result<ArtifactReader> {
        Ok(ArtifactReader::open(Some(Door::of(self.kernel(), by)), artifact).await?)
    }

    /// Collects a slice of the artifacts that nobody needs any more; says whether there is more to collect.
    pub async fn sweep_artifacts(&self) -> Result<Swept> {
        let kernel = self.kernel();
        Ok(kernel.store.artifacts().sweep(kernel.env.clock.now(), limits::ARTIFACT_SWEEP).await?)
    }
}
