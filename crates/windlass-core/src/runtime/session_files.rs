//! Session files from outside of a run: read, written and deleted.

use std::sync::Arc;

use super::{Runtime, Session};
use crate::artifacts::{ArtifactError, ArtifactWriter};
use crate::limits;
use crate::session::files::{FileError, FileView};
use crate::store::{
    Access, FileChange, FileEncoding, FileExpectation, FileInfo, FileRefusal, SessionAccess, SessionAnswer,
    SessionChange, SessionPath, SessionRefusal, SessionWrite, StoreError, Stored,
};
use crate::tool::Artifact;

/// The files of a session; see [`Session::files`]. What only reads is in [`FileView`].
///
/// What is written is durable when the method returns. Dropping the future of a write may leave it written.
#[derive(Clone)]
pub struct SessionFiles {
    view: FileView,
    runtime: Runtime,
    session: Arc<str>,
    access: SessionAccess,
}

impl std::ops::Deref for SessionFiles {
    type Target = FileView;

    fn deref(&self) -> &FileView {
        &self.view
    }
}

impl Session {
    /// Its files: a tree of its own, which no path leaves. `/workspace` is an alias of its root `/`.
    ///
    /// ```
    /// # use windlass_core::{Session, Result};
    /// # use windlass_core::store::FileExpectation;
    /// async fn edit(session: Session) -> Result<()> {
    ///     let files = session.files();
    ///     let file = files.write("notes/rome.md", "# Rome").await?;
    ///     let Some(content) = file.content else { return Ok(()) };
    ///     files.write_if("notes/rome.md", FileExpectation::Content(content), "# Rome\nNight train").await?;
    ///     assert_eq!(files.read("/workspace/notes/rome.md").await?.unwrap(), b"# Rome\nNight train");
    ///     Ok(())
    /// }
    /// ```
    pub fn files(&self) -> SessionFiles {
        let (runtime, session, access) = (self.runtime.clone(), self.name.clone(), self.access.clone());
        let view = FileView::new(runtime.kernel.store.clone(), session.clone());
        SessionFiles { view, runtime, session, access }
    }
}

impl SessionFiles {
    /// Writes a file, whether or not there is one, and creates the directories above it. Returns the file as it is now.
    pub async fn write(&self, path: &str, content: impl AsRef<[u8]>) -> Result<FileInfo, FileError> {
        self.write_if(path, FileExpectation::Any, content).await
    }

    /// Writes a file if the current one is as expected. A file that is not is refused with [`FileRefusal::Stale`], which
    /// names its current hash.
    pub async fn write_if(
        &self,
        path: &str,
        expect: FileExpectation,
        content: impl AsRef<[u8]>,
    ) -> Result<FileInfo, FileError> {
        let mut writer = self.writer(path, expect)?;
        writer.write(content.as_ref()).await?;
        writer.finish().await
    }

    /// Writes a file in pieces, of which one is in memory at a time. The file appears, or is replaced, when the writer
    /// is [finished](FileWriter::finish).
    pub fn writer(&self, path: &str, expect: FileExpectation) -> Result<FileWriter, FileError> {
        let path = SessionPath::parse(path)?;
        let limit = self.runtime.kernel.env.limits.files.file_bytes;
        let artifact = ArtifactWriter::for_file(&self.runtime.kernel, self.session.clone(), limit);
        Ok(FileWriter { files: self.clone(), path, expect, artifact, start: Vec::new() })
    }

    /// Makes an artifact that is in the store already the content of a file.
    pub async fn write_artifact(
        &self,
        path: &str,
        expect: FileExpectation,
        artifact: &Artifact,
    ) -> Result<FileInfo, FileError> {
        let path = SessionPath::parse(path)?;
        let Some(content) = artifact.stored_content() else {
            return self.write_if(path.as_str(), expect, artifact.bytes().unwrap_or_default()).await;
        };
        let by = Access::Session(self.session.clone());
        let start = self.runtime.kernel.store.artifacts().read(content.id, by, 0, limits::TEXT_PROBE).await;
        let start = start.map_err(|error| match error {
            StoreError::NoArtifact { artifact } => {
                FileError::refused(&self.session, FileRefusal::NoContent { content: artifact })
            }
            error => error.into(),
        })?;
        Ok(self.replace(path, content, FileEncoding::of(&start), expect).await?.0)
    }

    /// Deletes a file or an empty directory. Returns whether there was one.
    pub async fn delete(&self, path: &str) -> Result<bool, FileError> {
        self.remove(path, false, FileExpectation::Any).await
    }

    /// Deletes a file if it is as expected.
    pub async fn delete_if(&self, path: &str, expect: FileExpectation) -> Result<bool, FileError> {
        self.remove(path, false, expect).await
    }

    /// Deletes a file, or a directory with everything in it. Returns whether there was one.
    pub async fn delete_recursive(&self, path: &str) -> Result<bool, FileError> {
        self.remove(path, true, FileExpectation::Any).await
    }

    /// Creates a directory and those above it. Returns whether it is new.
    pub async fn create_directory(&self, path: &str) -> Result<bool, FileError> {
        let limits = self.runtime.kernel.env.limits.files;
        let created = self.change(FileChange::CreateDirectory { path: SessionPath::parse(path)?, limits }).await?;
        Ok(matches!(created, SessionAnswer::DirectoryCreated { created: true }))
    }

    /// Sets whether a file can be written and deleted.
    pub async fn set_readonly(&self, path: &str, readonly: bool) -> Result<(), FileError> {
        self.change(FileChange::Protect { path: SessionPath::parse(path)?, readonly }).await.map(drop)
    }

    async fn remove(&self, path: &str, recursive: bool, expect: FileExpectation) -> Result<bool, FileError> {
        let change = FileChange::Delete { path: SessionPath::parse(path)?, recursive, expect };
        Ok(matches!(self.change(change).await?, SessionAnswer::Deleted { existed: true }))
    }

    async fn replace(
        &self,
        path: SessionPath,
        content: Stored,
        encoding: FileEncoding,
        expect: FileExpectation,
    ) -> Result<(FileInfo, bool), FileError> {
        let limits = self.runtime.kernel.env.limits.files;
        match self.change(FileChange::Write { path, content, encoding, expect, limits }).await? {
            SessionAnswer::FileWritten { file, created } => Ok((file, created)),
            answer => Err(StoreError::Unknown(format!("the store answered {answer:?} to the write of a file")).into()),
        }
    }

    async fn change(&self, change: FileChange) -> Result<SessionAnswer, FileError> {
        let kernel = &self.runtime.kernel;
        let (session, at, access) = (self.session.clone(), kernel.env.clock.now(), self.access.clone());
        let write = SessionWrite {
            session,
            at,
            change: SessionChange::File(change),
            by: None,
            access,
            starter: Default::default(),
        };
        let verdict = kernel.store.sessions().write_session(write).await?;
        let refused = |refusal: SessionRefusal| FileError::Refused { session: self.session.clone(), refusal };
        verdict.map_err(refused)
    }
}

/// A file that is being written from outside of a run. Holds one piece ([`limits::ARTIFACT_PIECE`]) in memory, whatever
/// its size. Dropping it leaves the file as it was.
#[must_use = "nothing is written until it is finished"]
pub struct FileWriter {
    files: SessionFiles,
    path: SessionPath,
    expect: FileExpectation,
    artifact: ArtifactWriter,
    /// The bytes that decide whether the content is text.
    start: Vec<u8>,
}

impl FileWriter {
    /// The largest number of bytes the file may have.
    pub fn limit(&self) -> u64 {
        self.artifact.limit()
    }

    /// Adds bytes. Waits for the store whenever a piece is full. After an error, or if the future is dropped, the writer
    /// can only be dropped.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        let room = limits::TEXT_PROBE.saturating_sub(self.start.len());
        self.start.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.artifact.write(bytes).await.map_err(|error| file_error(error, &self.files.session, &self.path))
    }

    /// Writes the file, which is durable when this returns.
    pub async fn finish(self) -> Result<FileInfo, FileError> {
        Ok(self.finish_created().await?.0)
    }

    /// Like [`finish`](FileWriter::finish), and whether there was no file before.
    pub async fn finish_created(self) -> Result<(FileInfo, bool), FileError> {
        let Self { files, path, expect, artifact, start } = self;
        let stored = artifact.finish().await.map_err(|error| file_error(error, &files.session, &path))?;
        let Some(content) = stored.stored_content() else {
            return Err(StoreError::Unknown("the store returned no content".to_owned()).into());
        };
        files.replace(path, content, FileEncoding::of(&start), expect).await
    }
}

/// The error of a file whose content could not be stored.
pub(crate) fn file_error(error: ArtifactError, session: &Arc<str>, path: &SessionPath) -> FileError {
    match error {
        ArtifactError::TooLarge { limit } => {
            FileError::refused(session, FileRefusal::FileBytes { path: path.clone(), limit })
        }
        ArtifactError::Missing(content) => FileError::refused(session, FileRefusal::NoContent { content }),
        ArtifactError::Store(error) => FileError::Store(error),
        error => FileError::Store(StoreError::Invalid(error.to_string())),
    }
}
