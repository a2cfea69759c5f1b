//! The session files of a durable body: reads and writes, each an operation in the journal.

use std::future::IntoFuture;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::session::{CtxSession, stopped, unexpected, write};
use crate::artifacts::{ArtifactError, ArtifactWriter};
use crate::call::Attempt;
use crate::limits;
use crate::run::record::OpKind;
use crate::run::state::Hold;
use crate::runtime::file_error;
use crate::session::files::{FileError, FileView, range};
use crate::session::grep::{Grep, GrepResult};
use crate::store::{
    Access, ArtifactId, FileChange, FileEncoding, FileExpectation, FileInfo, FileLimits, SessionAnswer, SessionChange,
    SessionPath, StoreError, Stored,
};
use crate::tool::{Artifact, ToolError, ToolResult};

/// The files of the session that a durable body belongs to; see [`CtxSession::files`].
///
/// Each method is an operation. A write is made once, under the idempotency key of the operation, and a refusal is an
/// error with a [code](ToolError::code) such as `file_stale`. A read records which content it saw, not the bytes; the
/// store keeps that content for as long as it keeps the run, so a body that is entered again reads the same bytes,
/// whatever was written meanwhile. To read or write a large file in pieces, use a step: an attempt reads it with
/// [`Attempt::session`], and stores an artifact that [`write_artifact`](CtxFiles::write_artifact) makes a file.
pub struct CtxFiles<'c> {
    session: CtxSession<'c>,
}

/// What a read of a file is recorded as.
#[derive(Serialize, Deserialize)]
struct FileRead {
    file: Option<FileInfo>,
    /// Named like in an artifact, so that the run refers to the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    artifact: Option<ArtifactId>,
}

/// What a body writes into a file.
#[derive(Clone)]
enum NewContent {
    Bytes(Arc<[u8]>),
    Stored(Stored),
}

impl<'c> CtxSession<'c> {
    /// The files of the session.
    pub fn files(self) -> CtxFiles<'c> {
        CtxFiles { session: self }
    }
}

impl<'c> CtxFiles<'c> {
    /// The file or directory at this path; `None` if there is none.
    pub fn stat(self, path: &str) -> BoxFuture<'c, ToolResult<Option<FileInfo>>> {
        let parsed = SessionPath::parse(path);
        self.read_recorded("stat_file", &json!(path), move |view, _| {
            let parsed = parsed.clone();
            Box::pin(async move { view.find(&parsed?).await })
        })
    }

    /// What is in a directory; see [`FileView::list`].
    pub fn list(self, directory: &str, after: Option<&str>, limit: usize) -> BoxFuture<'c, ToolResult<Vec<FileInfo>>> {
        let (directory, after) = (directory.to_owned(), after.map(str::to_owned));
        let input = json!({"directory": directory, "after": after, "limit": limit});
        self.read_recorded("list_files", &input, move |view, _| {
            let (directory, after) = (directory.clone(), after.clone());
            Box::pin(async move { view.list(&directory, after.as_deref(), limit).await })
        })
    }

    /// Searches the text files for a regular expression; see [`FileView::grep`]. The matches are recorded.
    pub fn grep(self, search: Grep) -> BoxFuture<'c, ToolResult<GrepResult>> {
        let input = json!(search);
        self.read_recorded("grep_files", &input, move |view, _| {
            let search = search.clone();
            Box::pin(async move { view.grep(&search).await })
        })
    }

    /// The content of a file; `None` if there is none. The bytes are in memory as a whole.
    pub fn read(self, path: &str) -> BoxFuture<'c, ToolResult<Option<Vec<u8>>>> {
        self.read_content(path, 0, usize::MAX)
    }

    /// The bytes of a file from `offset` on, at most `length`; `None` if there is no file.
    pub fn read_range(self, path: &str, offset: u64, length: usize) -> BoxFuture<'c, ToolResult<Option<Vec<u8>>>> {
        self.read_content(path, offset, length)
    }

    fn read_content(self, path: &str, offset: u64, length: usize) -> BoxFuture<'c, ToolResult<Option<Vec<u8>>>> {
        let (run, at, target) = (self.session.ctx.run.clone(), self.session.next_path(), self.session.target());
        let parsed = SessionPath::parse(path);
        let input = json!({"path": path, "offset": offset, "length": length});
        let found = self.read_recorded("read_file", &input, move |view, attempt| {
            let parsed = parsed.clone();
            Box::pin(async move {
                let file = view.open(parsed?.as_str()).await?.map(|reader| reader.file().clone());
                let artifact = file.as_ref().and_then(|file| file.content);
                artifact.into_iter().for_each(|content| attempt.vouch(content));
                Ok(FileRead { file, artifact })
            })
        });
        Box::pin(async move {
            let FileRead { file: Some(file), artifact: Some(content) } = found.await? else { return Ok(None) };
            let by = Access::Run(run.id);
            match range(&*run.kernel.store, content, &by, offset, length).await {
                Ok(bytes) => Ok(Some(bytes)),
                Err(StoreError::NoArtifact { .. }) => {
                    run.hold(Hold::FileGone { path: at, session: target?.session, file: file.path });
                    std::future::pending().await
                }
                Err(error) => stopped(&run, error).await,
            }
        })
    }

    /// Writes a file, whether or not there is one, and creates the directories above it.
    pub fn write(self, path: &str, content: impl AsRef<[u8]>) -> BoxFuture<'c, ToolResult<FileInfo>> {
        self.write_if(path, FileExpectation::Any, content)
    }

    /// Writes a file if the current one is as expected. One that is not is an error with the code `file_stale`.
    pub fn write_if(
        self,
        path: &str,
        expect: FileExpectation,
        content: impl AsRef<[u8]>,
    ) -> BoxFuture<'c, ToolResult<FileInfo>> {
        self.write_content(path, expect, NewContent::Bytes(content.as_ref().into()))
    }

    /// Makes an artifact that this run may read the content of a file.
    pub fn write_artifact(
        self,
        path: &str,
        expect: FileExpectation,
        artifact: &Artifact,
    ) -> BoxFuture<'c, ToolResult<FileInfo>> {
        let content = match artifact.stored_content() {
            Some(stored) => NewContent::Stored(stored),
            None => NewContent::Bytes(artifact.bytes().unwrap_or_default().into()),
        };
        self.write_content(path, expect, content)
    }

    fn write_content(
        self,
        path: &str,
        expect: FileExpectation,
        content: NewContent,
    ) -> BoxFuture<'c, ToolResult<FileInfo>> {
        let id = match &content {
            NewContent::Bytes(bytes) => ArtifactId::of(bytes),
            NewContent::Stored(stored) => stored.id,
        };
        let input = json!({"path": path, "content": id, "expect": expect});
        let written = self.change("write_file", path, &input, move |path, attempt, session, limits| {
            let content = content.clone();
            Box::pin(async move {
                let (content, encoding) = content.store(&attempt, &session, &path, limits).await?;
                Ok(FileChange::Write { path, content, encoding, expect, limits })
            })
        });
        Box::pin(async move {
            match written.await? {
                SessionAnswer::FileWritten { file, .. } => Ok(file),
                answer => Err(unexpected(&answer)),
            }
        })
    }

    /// Deletes a file or an empty directory. Returns whether there was one.
    pub fn delete(self, path: &str) -> BoxFuture<'c, ToolResult<bool>> {
        self.remove(path, false)
    }

    /// Deletes a file, or a directory with everything in it. Returns whether there was one.
    pub fn delete_recursive(self, path: &str) -> BoxFuture<'c, ToolResult<bool>> {
        self.remove(path, true)
    }

    fn remove(self, path: &str, recursive: bool) -> BoxFuture<'c, ToolResult<bool>> {
        let input = json!({"path": path, "recursive": recursive});
        let deleted = self.change("delete_file", path, &input, move |path, _, _, _| {
            let change = FileChange::Delete { path, recursive, expect: FileExpectation::Any };
            Box::pin(std::future::ready(Ok(change)))
        });
        Box::pin(async move { Ok(matches!(deleted.await?, SessionAnswer::Deleted { existed: true })) })
    }

    /// Creates a directory and those above it. Returns whether it is new.
    pub fn create_directory(self, path: &str) -> BoxFuture<'c, ToolResult<bool>> {
        let created = self.change("create_directory", path, &json!(path), |path, _, _, limits| {
            Box::pin(std::future::ready(Ok(FileChange::CreateDirectory { path, limits })))
        });
        Box::pin(async move { Ok(matches!(created.await?, SessionAnswer::DirectoryCreated { created: true })) })
    }

    /// Writes under the idempotency key of the operation. `prepare` stores what the change needs.
    fn change<F>(
        self,
        name: &'static str,
        path: &str,
        input: &Value,
        prepare: F,
    ) -> BoxFuture<'c, ToolResult<SessionAnswer>>
    where
        F: Fn(SessionPath, Attempt, Arc<str>, FileLimits) -> BoxFuture<'static, ToolResult<FileChange>> + Send + 'c,
    {
        let (target, input) = (self.session.target(), self.session.input(input.clone()));
        let path = SessionPath::parse(path);
        let step = self.session.ctx.step(name, move |attempt| {
            let key = attempt.key();
            let prepared = target.clone().and_then(|target| {
                let path = path.clone().map_err(FileError::from)?;
                let limits = target.run.kernel.env.limits.files;
                Ok((prepare(path, attempt, target.session.clone(), limits), target))
            });
            async move {
                let (prepared, target) = prepared?;
                let change = SessionChange::File(prepared.await?);
                match write(&target, change, key).await {
                    Ok(result) => result,
                    Err(error) => stopped(&target.run, error).await,
                }
            }
        });
        Box::pin(step.idempotent().input(&input).of_kind(OpKind::Session).into_future())
    }

    fn read_recorded<T, F>(self, name: &'static str, input: &Value, read: F) -> BoxFuture<'c, ToolResult<T>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        F: Fn(FileView, Attempt) -> BoxFuture<'static, Result<T, FileError>> + Send + 'c,
    {
        let (target, input) = (self.session.target(), self.session.input(input.clone()));
        let step = self.session.ctx.step(name, move |attempt| {
            let found = target.clone().map(|target| {
                let view = FileView::new(target.run.kernel.store.clone(), target.session.clone());
                (read(view, attempt), target)
            });
            async move {
                let (found, target) = found?;
                // A file that the outcome of an earlier call writes is in the store once that outcome is.
                target.run.flush().await;
                let reading = async {
                    match found.await {
                        Err(FileError::Store(error)) => Err(error),
                        other => Ok(other),
                    }
                };
                Ok(target.reached(reading).await??)
            }
        });
        Box::pin(step.readonly().input(&input).of_kind(OpKind::Session).into_future())
    }
}

impl NewContent {
    /// Stores the content, if it is not stored yet. A failure of the store stops the run.
    async fn store(
        self,
        attempt: &Attempt,
        session: &Arc<str>,
        path: &SessionPath,
        limits: FileLimits,
    ) -> ToolResult<(Stored, FileEncoding)> {
        let refused = |error: ArtifactError| ToolError::from(file_error(error, session, path));
        match self {
            Self::Bytes(bytes) => {
                let limit = limits.file_bytes;
                if bytes.len() as u64 > limit {
                    return Err(refused(ArtifactError::TooLarge { limit }));
                }
                let mut writer = ArtifactWriter::for_file_of(attempt, session.clone(), limit);
                writer.write(&bytes).await.map_err(refused)?;
                let stored = writer.finish().await.map_err(refused)?.stored_content();
                let stored = stored.ok_or_else(|| ToolError::internal("the store returned no content"))?;
                Ok((stored, FileEncoding::of(&bytes)))
            }
            Self::Stored(stored) => {
                let artifact = Artifact::stored("application/octet-stream", stored);
                let reader = attempt.open_artifact(&artifact).await.map_err(refused)?;
                let start = reader.read_at(0, limits::TEXT_PROBE).await.map_err(refused)?;
                Ok((Stored { id: stored.id, size: reader.size() }, FileEncoding::of(&start)))
            }
        }
    }
}
