//! The store's side of session files: a tree of files and directories for each session.
//!
//! A file is a row with the hash of its content. The content itself is an artifact: equal contents are stored once, and
//! kept for as long as a file or a run refers to them.

mod decide;
mod path;
mod stage;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

pub use decide::{FilePlan, FileTree, decide_file_change};
pub use path::{BadSessionPath, SessionPath};
pub use stage::{EditedContent, FileEdit, FileReservations, RefusedEdit};

use super::{ArtifactId, StoreError, Stored};
use crate::id::RunId;
use crate::limits;
use crate::time::Timestamp;

/// A file or directory of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Its path.
    pub path: SessionPath,
    /// The hash of its content; `None` for a directory.
    pub content: Option<ArtifactId>,
    /// Its number of bytes; zero for a directory.
    pub size: u64,
    /// Whether its content is text.
    pub encoding: FileEncoding,
    /// Whether writes to it are refused.
    pub is_readonly: bool,
    /// When it was created.
    pub created: Timestamp,
    /// When it was last written.
    pub updated: Timestamp,
}

impl FileInfo {
    /// Its last name; empty for the root.
    pub fn name(&self) -> &str {
        self.path.name()
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.content.is_none()
    }

    /// A directory that is created now.
    pub(crate) fn directory(path: SessionPath, at: Timestamp) -> Self {
        let encoding = FileEncoding::Text;
        Self { path, content: None, size: 0, encoding, is_readonly: false, created: at, updated: at }
    }
}

/// How the content of a file is written in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileEncoding {
    /// As text.
    #[default]
    Text,
    /// In Base64: it has a NUL byte within the first [`limits::TEXT_PROBE`] bytes.
    Base64,
}

impl FileEncoding {
    /// The encoding of content that begins with these bytes.
    pub fn of(start: &[u8]) -> Self {
        let probe = &start[..start.len().min(limits::TEXT_PROBE)];
        if probe.contains(&0) { Self::Base64 } else { Self::Text }
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Base64 => "base64",
        }
    }
}

/// What a write requires of the file at its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileExpectation {
    /// Nothing.
    #[default]
    Any,
    /// There is no file.
    Missing,
    /// The file has this content.
    Content(ArtifactId),
}

/// The limits for the files of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Bytes of all files of a session.
    pub session_bytes: u64,
    /// Files and directories of a session.
    pub count: u64,
}

impl Default for FileLimits {
    fn default() -> Self {
        Self {
            file_bytes: limits::SESSION_FILE_BYTES,
            session_bytes: limits::SESSION_FILES_BYTES,
            count: limits::SESSION_FILES,
        }
    }
}

/// What the files of a session take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileUsage {
    /// Bytes of all files.
    pub bytes: u64,
    /// Files and directories.
    pub count: u64,
}

/// A write to the files of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileChange {
    /// Creates or replaces a file, and creates the directories above it.
    Write {
        /// Its path.
        path: SessionPath,
        /// Its content, which is in the store already and which the writer may read.
        content: Stored,
        /// The encoding of the content.
        encoding: FileEncoding,
        /// What is required of the current file.
        expect: FileExpectation,
        /// The limits that apply.
        limits: FileLimits,
    },
    /// Deletes a file or directory. Not an error if there is none.
    Delete {
        /// Its path.
        path: SessionPath,
        /// Whether a directory is deleted with everything in it.
        recursive: bool,
        /// What is required of the current file.
        expect: FileExpectation,
    },
    /// Creates a directory and those above it. Not an error if it exists.
    CreateDirectory {
        /// Its path.
        path: SessionPath,
        /// The limits that apply.
        limits: FileLimits,
    },
    /// Sets whether writes to a file are refused.
    Protect {
        /// Its path.
        path: SessionPath,
        /// Whether they are.
        readonly: bool,
    },
}

impl FileChange {
    /// The path it is about.
    pub fn path(&self) -> &SessionPath {
        match self {
            Self::Write { path, .. }
            | Self::Delete { path, .. }
            | Self::CreateDirectory { path, .. }
            | Self::Protect { path, .. } => path,
        }
    }
}

/// Why a write to a file was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "file", rename_all = "snake_case")]
#[non_exhaustive]
pub enum FileRefusal {
    /// The file has more bytes than a file may have.
    FileBytes {
        /// The path.
        path: SessionPath,
        /// The limit.
        limit: u64,
    },
    /// The files of the session would have too many bytes.
    SessionBytes {
        /// The limit.
        limit: u64,
        /// The bytes without this file.
        used: u64,
    },
    /// The session would have too many files and directories.
    Count {
        /// The limit.
        limit: u64,
    },
    /// The file is not as the write requires.
    Stale {
        /// The path.
        path: SessionPath,
        /// The hash of the current content; `None` if there is no file.
        current: Option<ArtifactId>,
    },
    /// The path is a directory.
    IsDirectory {
        /// The path.
        path: SessionPath,
    },
    /// A name on the way to the path is a file.
    NotDirectory {
        /// The path of that file.
        path: SessionPath,
    },
    /// The directory is not empty.
    NotEmpty {
        /// The path.
        path: SessionPath,
    },
    /// The file is read-only.
    Readonly {
        /// The path.
        path: SessionPath,
    },
    /// There is no such file.
    Missing {
        /// The path.
        path: SessionPath,
    },
    /// The content is not in the store, or the writer may not read it.
    NoContent {
        /// The content.
        content: ArtifactId,
    },
    /// The outcome of another call is about to change the file, or one above or below it.
    Busy {
        /// The path.
        path: SessionPath,
        /// The run of that call.
        run: RunId,
    },
}

impl FileRefusal {
    /// What was refused, why, and what to do.
    pub fn sentence(&self, session: &str) -> String {
        match self {
            Self::FileBytes { path, limit } => {
                format!("the file {path:?} has more than {limit} bytes, which is the limit; split it")
            }
            Self::SessionBytes { limit, used } => format!(
                "the other files of session {session:?} have {used} bytes, and all may have {limit}; delete some first"
            ),
            Self::Count { limit } => {
                format!("session {session:?} has {limit} files and directories, which is the limit; delete some first")
            }
            Self::Stale { path, current: Some(current) } => format!(
                "the file {path:?} has changed: its content is {current} now; read it again and repeat the change"
            ),
            Self::Stale { path, current: None } => {
                format!("the file {path:?} does not exist any more; read the directory again")
            }
            Self::IsDirectory { path } => format!("{path:?} is a directory, not a file; use another path"),
            Self::NotDirectory { path } => format!("{path:?} is a file, not a directory; use another path"),
            Self::NotEmpty { path } => {
                format!("the directory {path:?} is not empty; delete it recursively, or delete its files first")
            }
            Self::Readonly { path } => format!("the file {path:?} is read-only; write to another path"),
            Self::Missing { path } => format!("there is no file {path:?} in session {session:?}"),
            Self::NoContent { content } => format!(
                "there is no content {content} that session {session:?} may read; it may have been deleted, or belong to \
                 another session"
            ),
            Self::Busy { path, run } => {
                format!("the file {path:?} is about to be changed with the outcome of run {run}; try again")
            }
        }
    }

    /// A short name for programs to act on.
    pub fn code(&self) -> &'static str {
        match self {
            Self::FileBytes { .. } => "file_too_large",
            Self::SessionBytes { .. } | Self::Count { .. } => "session_full",
            Self::Stale { .. } => "file_stale",
            Self::IsDirectory { .. } => "is_directory",
            Self::NotDirectory { .. } => "not_directory",
            Self::NotEmpty { .. } => "directory_not_empty",
            Self::Readonly { .. } => "file_readonly",
            Self::Missing { .. } => "file_missing",
            Self::NoContent { .. } => "content_missing",
            Self::Busy { .. } => "file_busy",
        }
    }

    /// The error for a caller outside of a run.
    pub fn into_error(self, session: &str) -> crate::Error {
        let why = self.sentence(session);
        match self {
            Self::FileBytes { .. } => crate::Error::TooLarge(why),
            Self::Missing { .. } | Self::NoContent { .. } => crate::Error::NotFound(why),
            _ => crate::Error::Conflict(why),
        }
    }
}

/// Which files a list has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileQuery {
    /// The directory.
    pub directory: SessionPath,
    /// Whether it has everything below the directory, or only what is directly in it.
    pub recursive: bool,
    /// Only paths after this one.
    pub after: Option<SessionPath>,
    /// The most files it has.
    pub limit: usize,
}

/// The files of a [`Store`](super::Store), read side. Writes are [`SessionChange::File`](super::SessionChange::File).
///
/// The contract, checked by `testing::store_suite`:
/// - the content of a file is kept while a file of any session has it, and for [`limits::ARTIFACT_GRACE`] after the last
///   one has been replaced or deleted, so that a reader that has begun can finish;
/// - a session may read the contents of its files as [`Access::Session`](super::Access::Session), and no other one may;
/// - purging a session removes its files.
pub trait Files: Send + Sync {
    /// The file or directory at this path, if there is one. The root of a session that exists is a directory.
    fn file(&self, session: Arc<str>, path: SessionPath) -> BoxFuture<'_, Result<Option<FileInfo>, StoreError>>;

    /// Files and directories that match, in the order of their paths. None if there is no such directory.
    fn list_files(&self, session: Arc<str>, query: FileQuery) -> BoxFuture<'_, Result<Vec<FileInfo>, StoreError>>;

    /// What the files of a session take.
    fn file_usage(&self, session: Arc<str>) -> BoxFuture<'_, Result<FileUsage, StoreError>>;
}
