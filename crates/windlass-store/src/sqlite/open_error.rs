//! Errors of opening a database file.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};

#[cfg(unix)]
use super::db_file::with_suffix;
use super::db_file::{self, MIN_FREE_BYTES};
use super::fault::Fault;

/// Why a database was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The directory of the file does not exist.
    #[error(
        "cannot open {path}: the directory {directory} does not exist; create it first",
        path = .path.display(), directory = .directory.display()
    )]
    MissingDirectory {
        /// The database.
        path: PathBuf,
        /// The directory.
        directory: PathBuf,
    },
    /// Another process owns the file, or this process has it open already.
    #[error("cannot open {path}: {owner}", path = .path.display())]
    InUse {
        /// The database.
        path: PathBuf,
        /// The process that owns it, if it is known.
        pid: Option<u32>,
        /// Which process has it open, since when, and what to do.
        owner: String,
        /// The address of that process, if it announced one; see [`announce`](super::SqliteStore::announce).
        address: Option<String>,
    },
    /// The file is not a Windlass database. It was not changed.
    #[error(
        "{path} is not a Windlass database: {found}; use another path, or move this file away",
        path = .path.display()
    )]
    NotWindlass {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: String,
    },
    /// The file was written by a newer version of Windlass. It was not changed.
    #[error(
        "{path} has schema version {found}, and this build supports versions up to {supported}; update Windlass to \
         open it",
        path = .path.display()
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its schema version.
        found: i32,
        /// The newest version that this build supports.
        supported: i32,
    },
    /// The file is on a network file system, where neither locks nor syncs are reliable.
    #[error(
        "cannot open {path}: it is on a network file system ({kind}), where locks and syncs are not reliable; \
         use a local disk", path = .path.display()
    )]
    Network {
        /// The database.
        path: PathBuf,
        /// The type of the file system.
        kind: String,
    },
    /// This user lacks a permission that is needed.
    #[error(
        "cannot open {path}: {problem}; let this user read and write the file and its directory, or use another \
         path", path = .path.display()
    )]
    NoAccess {
        /// The database.
        path: PathBuf,
        /// What this user may not do.
        problem: String,
    },
    /// The disk is full: there is no space for the file, or for what opening it writes.
    #[error(
        "cannot open {path}: its disk is full ({free_space}); free some space, or use a path on another disk",
        path = .path.display(), free_space = describe_free_space(*.free)
    )]
    NoSpace {
        /// The database.
        path: PathBuf,
        /// The free bytes on the disk, if the system reports them.
        free: Option<u64>,
    },
    /// The file is a Windlass database, and it is damaged.
    #[error(
        "{path} is damaged ({problem}); keep a copy of it with its -wal file, and restore it from a backup",
        path = .path.display()
    )]
    Damaged {
        /// The database.
        path: PathBuf,
        /// What was found.
        problem: String,
    },
    /// The write-ahead log next to the file belongs to another file, or to another state of this file. Neither was
    /// changed.
    #[error(
        "cannot open {path}: {wal} is not its write-ahead log: it belongs to another file, or to another state of this \
         file; put back the log that belongs to it, or restore the file from a backup; if another program has written \
         to the file, let that program close it; without a log the file opens, but lacks the commits of its own log",
        path = .path.display(), wal = .wal.display()
    )]
    ForeignWal {
        /// The database.
        path: PathBuf,
        /// The write-ahead log.
        wal: PathBuf,
    },
    /// The operating system or SQLite returned another error.
    #[error("cannot open {path}: {source}", path = .path.display())]
    Failed {
        /// The database.
        path: PathBuf,
        /// That error.
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl OpenError {
    pub(super) fn failed(path: &Path, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Failed { path: path.to_owned(), source: source.into() }
    }

    /// Converts an error of SQLite.
    pub(super) fn sql(path: &Path, error: rusqlite::Error) -> Self {
        match Fault::of(&error) {
            fault if Self::is_full_disk(path, &fault) => Self::no_space(path),
            Fault::Disk(_) | Fault::Other(_) => Self::failed(path, error),
            fault => Self::fault(path, fault),
        }
    }

    /// Converts a fault.
    pub(super) fn fault(path: &Path, fault: Fault) -> Self {
        match fault {
            fault if Self::is_full_disk(path, &fault) => Self::no_space(path),
            Fault::ReadOnly => Self::no_access(path, "the file is read-only"),
            Fault::NoAccess(message) => Self::no_access(path, &message),
            Fault::Damaged(problem) => Self::damaged(path, problem),
            Fault::Busy => Self::busy(path),
            other => Self::failed(path, other.cause()),
        }
    }

    pub(super) fn damaged(path: &Path, problem: String) -> Self {
        Self::Damaged { path: path.to_owned(), problem }
    }

    /// Converts an error of the operating system.
    pub(super) fn io(path: &Path, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::no_access(path, &error.to_string())
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::no_space(path),
            _ => Self::failed(path, error),
        }
    }

    /// On a full disk other operations fail first, with less specific errors: SQLite cannot extend the files next to
    /// the database.
    fn is_full_disk(path: &Path, fault: &Fault) -> bool {
        let is_full = || {
            db_file::free_bytes(path).is_some_and(|free| free < MIN_FREE_BYTES) && permission_problem(path).is_none()
        };
        *fault == Fault::Full || fault.may_be_full_disk() && is_full()
    }

    fn no_space(path: &Path) -> Self {
        Self::NoSpace { path: path.to_owned(), free: db_file::free_bytes(path) }
    }

    fn busy(path: &Path) -> Self {
        let owner = "another program is reading or writing it; close that program, then open it again".to_owned();
        Self::InUse { path: path.to_owned(), pid: None, owner, address: None }
    }

    /// `message` is used if the file system reports nothing more specific.
    fn no_access(path: &Path, message: &str) -> Self {
        let problem = permission_problem(path).unwrap_or_else(|| message.to_owned());
        Self::NoAccess { path: path.to_owned(), problem }
    }
}

/// Describes the free space.
fn describe_free_space(free: Option<u64>) -> String {
    match free {
        None => "the free space is unknown".to_owned(),
        Some(free) if free < MIN_FREE_BYTES => {
            format!("{} KiB free, {} KiB needed", free >> 10, MIN_FREE_BYTES >> 10)
        }
        Some(free) => format!("{} MiB free; a quota may be exhausted", free >> 20),
    }
}

/// Why this user cannot open or create the database at `path`, as far as the file system reports it. No file is opened.
pub fn access_problem(path: impl AsRef<Path>) -> Option<String> {
    match super::open::resolve(path.as_ref()) {
        Ok(path) => permission_problem(&path),
        Err(OpenError::MissingDirectory { directory, .. }) => {
            Some(format!("the directory {} does not exist", directory.display()))
        }
        Err(error) => Some(error.to_string()),
    }
}

/// The first permission that this user lacks for the file or the files next to it. Queried without opening them:
/// closing a file would release all locks that this process has on it, and SQLite would leave files behind that this
/// user cannot write.
#[cfg(unix)]
pub(super) fn permission_problem(path: &Path) -> Option<String> {
    use rustix::fs::{Access, access};
    use rustix::io::Errno;
    let directory = path.parent()?;
    let may = |path: &Path, how: Access, what: &str| match access(path, how) {
        Err(Errno::ACCESS) => Some(format!("this user may not {what} {}", path.display())),
        Err(Errno::ROFS) => Some("its file system is read-only".to_owned()),
        _ => None,
    };
    let files = ["", "-wal", "-shm", "-lock"].map(|suffix| with_suffix(path, suffix));
    may(directory, Access::WRITE_OK | Access::EXEC_OK, "create files in").or_else(|| {
        let both = [(Access::READ_OK, "read"), (Access::WRITE_OK, "write")];
        files.iter().find_map(|file| both.iter().find_map(|(how, what)| may(file, *how, what)))
    })
}

#[cfg(not(unix))]
pub(super) fn permission_problem(_: &Path) -> Option<String> {
    None
}
