//! The files of a session, as programs and attempts read them.

use std::sync::Arc;

use super::grep::{self, Grep, GrepResult};
use crate::error::Error;
use crate::limits;
use crate::store::{
    Access, ArtifactId, BadSessionPath, FileInfo, FileQuery, FileRefusal, FileUsage, SessionPath, SessionRefusal,
    Store, StoreError,
};
use crate::tool::ToolError;

/// Why a session file was not read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The path is not valid.
    #[error(transparent)]
    Path(#[from] BadSessionPath),
    /// The pattern of a search is not valid.
    #[error("{0}")]
    Pattern(String),
    /// The session or its files do not allow it.
    #[error("{}", refusal.sentence(session))]
    Refused {
        /// The session.
        session: Arc<str>,
        /// Why.
        refusal: SessionRefusal,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl FileError {
    pub(crate) fn refused(session: &Arc<str>, refusal: FileRefusal) -> Self {
        Self::Refused { session: session.clone(), refusal: SessionRefusal::File(refusal) }
    }

    /// Why a file was refused, if that is the reason.
    pub fn refusal(&self) -> Option<&FileRefusal> {
        match self {
            Self::Refused { refusal: SessionRefusal::File(refusal), .. } => Some(refusal),
            _ => None,
        }
    }

    /// The error of a tool that passes it on with `?`. A failure of the store is not shown to the model.
    pub(crate) fn for_tool(&self) -> ToolError {
        match self {
            Self::Path(_) | Self::Pattern(_) => ToolError::failed(self.to_string()),
            Self::Refused { session, refusal } => ToolError::rejected(refusal.code(), refusal.sentence(session)),
            Self::Store(error) => ToolError::internal(error.clone()),
        }
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Path(_) | FileError::Pattern(_) => Self::Invalid(error.to_string()),
            FileError::Refused { session, refusal } => refusal.into_error(&session),
            FileError::Store(error) => Self::Store(error),
        }
    }
}

/// Reads the files of a session, as they are when a method is called. Paths are those of [`SessionPath`].
#[derive(Clone)]
pub struct FileView {
    store: Arc<dyn Store>,
    session: Arc<str>,
}

impl FileView {
    pub(crate) fn new(store: Arc<dyn Store>, session: Arc<str>) -> Self {
        Self { store, session }
    }

    /// The file or directory at this path; `None` if there is none.
    pub async fn stat(&self, path: &str) -> Result<Option<FileInfo>, FileError> {
        self.find(&SessionPath::parse(path)?).await
    }

    pub(crate) async fn find(&self, path: &SessionPath) -> Result<Option<FileInfo>, FileError> {
        Ok(self.store.sessions().file(self.session.clone(), path.clone()).await?)
    }

    /// What is in a directory, in the order of the names, at most `limit` and at most [`limits::FILE_PAGE`]: the
    /// entries after the path `after`, or from the first on.
    ///
    /// # Errors
    ///
    /// [`FileRefusal::Missing`] if there is no such directory, [`FileRefusal::NotDirectory`] if it is a file.
    pub async fn list(&self, directory: &str, after: Option<&str>, limit: usize) -> Result<Vec<FileInfo>, FileError> {
        self.entries(directory, after, limit, false).await
    }

    /// Like [`list`](FileView::list), with everything below the directory, in the order of the paths.
    pub async fn tree(&self, directory: &str, after: Option<&str>, limit: usize) -> Result<Vec<FileInfo>, FileError> {
        self.entries(directory, after, limit, true).await
    }

    async fn entries(
        &self,
        directory: &str,
        after: Option<&str>,
        limit: usize,
        recursive: bool,
    ) -> Result<Vec<FileInfo>, FileError> {
        let directory = SessionPath::parse(directory)?;
        let after = after.map(SessionPath::parse).transpose()?;
        self.query(FileQuery { directory, recursive, after, limit: limit.min(limits::FILE_PAGE) }).await
    }

    pub(crate) async fn query(&self, query: FileQuery) -> Result<Vec<FileInfo>, FileError> {
        let directory = query.directory.clone();
        let listed = self.store.sessions().list_files(self.session.clone(), query).await?;
        if listed.is_empty() && !directory.is_root() {
            match self.find(&directory).await? {
                Some(found) if found.is_directory() => {}
                Some(found) => return Err(self.refused(FileRefusal::NotDirectory { path: found.path })),
                None => return Err(self.refused(FileRefusal::Missing { path: directory })),
            }
        }
        Ok(listed)
    }

    /// What the files take of the session's limits.
    pub async fn usage(&self) -> Result<FileUsage, FileError> {
        Ok(self.store.sessions().file_usage(self.session.clone()).await?)
    }

    /// Opens a file for reading; `None` if there is none. The reader sees the content that the file has now, whatever
    /// is written meanwhile.
    ///
    /// # Errors
    ///
    /// [`FileRefusal::IsDirectory`].
    pub async fn open(&self, path: &str) -> Result<Option<FileReader>, FileError> {
        match self.find(&SessionPath::parse(path)?).await? {
            Some(file) => self.reader(file).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn reader(&self, file: FileInfo) -> Result<FileReader, FileError> {
        let Some(content) = file.content else {
            return Err(self.refused(FileRefusal::IsDirectory { path: file.path }));
        };
        let (store, by) = (self.store.clone(), Access::Session(self.session.clone()));
        Ok(FileReader { content: ContentReader { store, by, content, size: file.size, at: 0 }, file })
    }

    /// Opens a content that a file of this session has or had, by its hash, such as one that an outcome names. The
    /// session can read it for [`limits::ARTIFACT_GRACE`] after the file was replaced, and while a run of it is kept
    /// that refers to it.
    pub async fn open_content(&self, content: ArtifactId) -> Result<ContentReader, FileError> {
        let by = Access::Session(self.session.clone());
        match self.store.artifacts().size(content, by.clone()).await {
            Ok(size) => Ok(ContentReader { store: self.store.clone(), by, content, size, at: 0 }),
            Err(StoreError::NoArtifact { artifact }) => Err(self.refused(FileRefusal::NoContent { content: artifact })),
            Err(error) => Err(error.into()),
        }
    }

    /// The whole content of a file; `None` if there is none. Use [`open`](FileView::open) for large ones.
    pub async fn read(&self, path: &str) -> Result<Option<Vec<u8>>, FileError> {
        match self.open(path).await? {
            Some(reader) => reader.whole().await.map(Some),
            None => Ok(None),
        }
    }

    /// The bytes of a file from `offset` on, at most `length`; `None` if there is no file.
    pub async fn read_range(&self, path: &str, offset: u64, length: usize) -> Result<Option<Vec<u8>>, FileError> {
        match self.open(path).await? {
            Some(reader) => reader.range(offset, length).await.map(Some),
            None => Ok(None),
        }
    }

    /// Searches the text files for a regular expression; see [`Grep`].
    pub async fn grep(&self, search: &Grep) -> Result<GrepResult, FileError> {
        grep::search(self, search).await
    }

    fn refused(&self, refusal: FileRefusal) -> FileError {
        FileError::refused(&self.session, refusal)
    }
}

/// A file that is being read; see [`ContentReader`].
pub struct FileReader {
    file: FileInfo,
    content: ContentReader,
}

impl FileReader {
    /// The file, as it was when it was opened.
    pub fn file(&self) -> &FileInfo {
        &self.file
    }
}

impl std::ops::Deref for FileReader {
    type Target = ContentReader;

    fn deref(&self) -> &ContentReader {
        &self.content
    }
}

impl std::ops::DerefMut for FileReader {
    fn deref_mut(&mut self) -> &mut ContentReader {
        &mut self.content
    }
}

/// A content that is being read, at most a piece ([`limits::ARTIFACT_PIECE`]) at a time.
pub struct ContentReader {
    store: Arc<dyn Store>,
    by: Access,
    content: ArtifactId,
    size: u64,
    at: u64,
}

impl ContentReader {
    /// Its number of bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The next bytes from the start on, or `None` at the end. Dropping the future loses none of them.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, FileError> {
        if self.at >= self.size {
            return Ok(None);
        }
        let bytes = self.read_at(self.at, limits::ARTIFACT_PIECE).await?;
        self.at += bytes.len() as u64;
        Ok(Some(bytes))
    }

    /// Up to `length` bytes from `offset` on. Fewer at the end, and at most [`limits::ARTIFACT_PIECE`].
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>, FileError> {
        Ok(self.store.artifacts().read(self.content, self.by.clone(), offset, length).await?)
    }

    /// The bytes from `offset` on, at most `length`.
    pub async fn range(&self, offset: u64, length: usize) -> Result<Vec<u8>, FileError> {
        Ok(range(&*self.store, self.content, &self.by, offset, length).await?)
    }

    /// All bytes.
    pub async fn whole(&self) -> Result<Vec<u8>, FileError> {
        self.range(0, usize::MAX).await
    }
}

/// Bytes of a content, of any length.
pub(crate) async fn range(
    store: &dyn Store,
    content: ArtifactId,
    by: &Access,
    mut offset: u64,
    length: usize,
) -> Result<Vec<u8>, StoreError> {
    let mut all = Vec::new();
    while all.len() < length {
        let bytes = store.artifacts().read(content, by.clone(), offset, length - all.len()).await?;
        if bytes.is_empty() {
            break;
        }
        offset += bytes.len() as u64;
        all.extend_from_slice(&bytes);
    }
    Ok(all)
}
