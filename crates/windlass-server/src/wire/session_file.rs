//! Session files.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::time::Time;

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A file.
    File,
    /// A directory.
    Directory,
}

/// A file or directory of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// Its path, from the root `/` on.
    pub path: String,
    /// Whether it is a file or a directory.
    pub kind: FileKind,
    /// Hash of a file's content: `b3:` and 64 hexadecimal digits. It is also its `ETag`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Size in bytes; 0 for a directory.
    pub size: u64,
    /// `text`, or `base64` for a file that has a NUL byte near its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
    /// Whether writes to it are refused.
    pub readonly: bool,
    /// When it was created.
    pub created: Time,
    /// When it was last written.
    pub updated: Time,
}

/// A page of files and directories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FilePage {
    /// The files and directories, in the order of their paths.
    pub files: Vec<FileEntry>,
    /// `after` of the next page. The last page has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A line that matches a search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileLine {
    /// Path of the file.
    pub path: String,
    /// Number of the line, from 1 on.
    pub line: u64,
    /// The line, or its beginning if it is long.
    pub text: String,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileSearch {
    /// The lines that match, by path and line.
    pub matches: Vec<FileLine>,
    /// Whether everything was searched. If not, a limit was reached: search fewer files.
    pub complete: bool,
    /// Number of files that were searched.
    pub files: u64,
    /// Number of files that were not searched because they are not text.
    pub binary: u64,
}
