//! Decides about writes to session files, the same way in every store.

use super::super::{ArtifactId, SessionAnswer};
use super::{FileChange, FileExpectation, FileInfo, FileLimits, FileRefusal, FileUsage, SessionPath};
use crate::time::Timestamp;

/// The files of a session, as a store has them at the moment of a write.
pub trait FileTree {
    /// The store's own error.
    type Error;

    /// The file or directory at this path. Never asked for the root.
    fn file(&self, path: &SessionPath) -> Result<Option<FileInfo>, Self::Error>;

    /// What is below a directory, in the order of the paths, at most `limit`.
    fn below(&self, directory: &SessionPath, limit: usize) -> Result<Vec<FileInfo>, Self::Error>;

    /// What all files take.
    fn usage(&self) -> Result<FileUsage, Self::Error>;

    /// Whether the content is in the store and the writer may read it.
    fn may_read(&self, content: ArtifactId) -> Result<bool, Self::Error>;
}

/// What a store changes for a write that was not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlan {
    /// Rows that are added or replaced.
    pub put: Vec<FileInfo>,
    /// Paths of the rows that are removed.
    pub remove: Vec<SessionPath>,
    /// The answer.
    pub answer: SessionAnswer,
}

/// The decision about a write.
type Decision<E> = Result<Result<FilePlan, FileRefusal>, E>;

/// Decides about a write to the files of an open session. The outer error is the store's own.
pub fn decide_file_change<T: FileTree>(tree: &T, change: &FileChange, at: Timestamp) -> Decision<T::Error> {
    match change {
        FileChange::Write { path, content, encoding, expect, limits } => {
            let file = FileInfo {
                path: path.clone(),
                content: Some(content.id),
                size: content.size,
                encoding: *encoding,
                is_readonly: false,
                created: at,
                updated: at,
            };
            write(tree, file, *expect, *limits, at)
        }
        FileChange::Delete { path, recursive, expect } => delete(tree, path, *recursive, *expect),
        FileChange::CreateDirectory { path, limits } => create_directory(tree, path, *limits, at),
        FileChange::Protect { path, readonly } => protect(tree, path, *readonly, at),
    }
}

/// Directories above `path` that do not exist, or the file that stands in the way.
fn missing_directories<T: FileTree>(
    tree: &T,
    path: &SessionPath,
    at: Timestamp,
) -> Result<Result<Vec<FileInfo>, FileRefusal>, T::Error> {
    let mut missing = Vec::new();
    for above in path.ancestors() {
        match tree.file(&above)? {
            Some(found) if found.is_directory() => {}
            Some(found) => return Ok(Err(FileRefusal::NotDirectory { path: found.path })),
            None => missing.push(FileInfo::directory(above, at)),
        }
    }
    Ok(Ok(missing))
}

fn stale(path: &SessionPath, expect: FileExpectation, current: Option<&FileInfo>) -> Option<FileRefusal> {
    let content = current.and_then(|file| file.content);
    let is_met = match expect {
        FileExpectation::Any => true,
        FileExpectation::Missing => current.is_none(),
        FileExpectation::Content(expected) => content == Some(expected),
    };
    (!is_met).then(|| FileRefusal::Stale { path: path.clone(), current: content })
}

fn write<T: FileTree>(
    tree: &T,
    mut file: FileInfo,
    expect: FileExpectation,
    limits: FileLimits,
    at: Timestamp,
) -> Decision<T::Error> {
    let path = file.path.clone();
    if path.is_root() {
        return Ok(Err(FileRefusal::IsDirectory { path }));
    }
    let mut put = match missing_directories(tree, &path, at)? {
        Ok(missing) => missing,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let current = tree.file(&path)?;
    if current.as_ref().is_some_and(FileInfo::is_directory) {
        return Ok(Err(FileRefusal::IsDirectory { path }));
    }
    if let Some(refusal) = stale(&path, expect, current.as_ref()) {
        return Ok(Err(refusal));
    }
    if current.as_ref().is_some_and(|current| current.is_readonly) {
        return Ok(Err(FileRefusal::Readonly { path }));
    }
    if file.size > limits.file_bytes {
        return Ok(Err(FileRefusal::FileBytes { path, limit: limits.file_bytes }));
    }
    let usage = tree.usage()?;
    let used = usage.bytes.saturating_sub(current.as_ref().map_or(0, |current| current.size));
    if used.saturating_add(file.size) > limits.session_bytes {
        return Ok(Err(FileRefusal::SessionBytes { limit: limits.session_bytes, used }));
    }
    let added = put.len() as u64 + u64::from(current.is_none());
    if added > 0 && usage.count.saturating_add(added) > limits.count {
        return Ok(Err(FileRefusal::Count { limit: limits.count }));
    }
    if let Some(content) = file.content
        && !tree.may_read(content)?
    {
        return Ok(Err(FileRefusal::NoContent { content }));
    }
    let created = current.is_none();
    file.created = current.map_or(file.created, |current| current.created);
    put.push(file.clone());
    Ok(Ok(FilePlan { put, remove: Vec::new(), answer: SessionAnswer::FileWritten { file, created } }))
}

fn delete<T: FileTree>(tree: &T, path: &SessionPath, recursive: bool, expect: FileExpectation) -> Decision<T::Error> {
    if path.is_root() {
        return Ok(Err(FileRefusal::NotEmpty { path: path.clone() }));
    }
    let current = tree.file(path)?;
    if let Some(refusal) = stale(path, expect, current.as_ref()) {
        return Ok(Err(refusal));
    }
    let Some(current) = current else {
        let answer = SessionAnswer::Deleted { existed: false };
        return Ok(Ok(FilePlan { put: Vec::new(), remove: Vec::new(), answer }));
    };
    let below = match (current.is_directory(), recursive) {
        (false, _) => Vec::new(),
        (true, true) => tree.below(path, usize::MAX)?,
        (true, false) => match tree.below(path, 1)?.is_empty() {
            true => Vec::new(),
            false => return Ok(Err(FileRefusal::NotEmpty { path: path.clone() })),
        },
    };
    if let Some(protected) = std::iter::once(&current).chain(&below).find(|file| file.is_readonly) {
        return Ok(Err(FileRefusal::Readonly { path: protected.path.clone() }));
    }
    let remove = std::iter::once(current).chain(below).map(|file| file.path).collect();
    Ok(Ok(FilePlan { put: Vec::new(), remove, answer: SessionAnswer::Deleted { existed: true } }))
}

fn create_directory<T: FileTree>(
    tree: &T,
    path: &SessionPath,
    limits: FileLimits,
    at: Timestamp,
) -> Decision<T::Error> {
    let existing =
        |created| FilePlan { put: Vec::new(), remove: Vec::new(), answer: SessionAnswer::DirectoryCreated { created } };
    if path.is_root() {
        return Ok(Ok(existing(false)));
    }
    let mut put = match missing_directories(tree, path, at)? {
        Ok(missing) => missing,
        Err(refusal) => return Ok(Err(refusal)),
    };
    match tree.file(path)? {
        Some(found) if found.is_directory() => return Ok(Ok(existing(false))),
        Some(found) => return Ok(Err(FileRefusal::NotDirectory { path: found.path })),
        None => put.push(FileInfo::directory(path.clone(), at)),
    }
    if tree.usage()?.count.saturating_add(put.len() as u64) > limits.count {
        return Ok(Err(FileRefusal::Count { limit: limits.count }));
    }
    Ok(Ok(FilePlan { put, ..existing(true) }))
}

fn protect<T: FileTree>(tree: &T, path: &SessionPath, readonly: bool, at: Timestamp) -> Decision<T::Error> {
    let found = if path.is_root() { None } else { tree.file(path)? };
    Ok(match found {
        Some(found) if found.is_directory() => Err(FileRefusal::IsDirectory { path: path.clone() }),
        Some(found) => {
            let put = vec![FileInfo { is_readonly: readonly, updated: at, ..found }];
            Ok(FilePlan { put, remove: Vec::new(), answer: SessionAnswer::Done })
        }
        None if path.is_root() => Err(FileRefusal::IsDirectory { path: path.clone() }),
        None => Err(FileRefusal::Missing { path: path.clone() }),
    })
}

#[cfg(test)]
mod tests {
    use super::super::FileEncoding;

    #[test]
    fn e15_content_with_an_early_nul_byte_is_not_text() {
        let mut bytes = vec![b'x'; crate::limits::TEXT_PROBE + 1];
        assert_eq!((FileEncoding::of(&bytes), FileEncoding::of(b"")), (FileEncoding::Text, FileEncoding::Text));
        bytes[crate::limits::TEXT_PROBE] = 0;
        assert_eq!(FileEncoding::of(&bytes), FileEncoding::Text, "beyond the part that counts");
        bytes[crate::limits::TEXT_PROBE - 1] = 0;
        assert_eq!(FileEncoding::of(&bytes), FileEncoding::Base64);
    }
}
