//! Why a file is not opened.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};

use super::fault::Fault;
#[cfg(unix)]
use super::place::beside;
use super::place::{self, ROOM};

/// Why a database was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The directory the file should be in is not there.
    #[error("cannot open {path}: the directory {directory} does not exist; create it first", path = .path.display(), directory = .directory.display())]
    MissingDirectory {
        /// The database.
        path: PathBuf,
        /// The directory.
        directory: PathBuf,
    },
    /// One process owns the file, and it is another, or this one already.
    #[error("cannot open {path}: {holder}", path = .path.display())]
    InUse {
        /// The database.
        path: PathBuf,
        /// The process that owns it, if it could be told.
        pid: Option<u32>,
        /// Who has it, since when, and what to do.
        holder: String,
        /// Where that process answers, if it announced that; see [`announce`](super::SqliteStore::announce).
        address: Option<String>,
    },
    /// The file is something else. It was not changed.
    #[error("{path} is not a Windlass database: {found}; name another file, or move this one away", path = .path.display())]
    NotWindlass {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: String,
    },
    /// A newer Windlass wrote the file. It was not changed.
    #[error(
        "{path} has schema version {found}, and this build knows versions up to {known}: update Windlass to open it",
        path = .path.display()
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its schema version.
        found: i32,
        /// The newest this build knows.
        known: i32,
    },
    /// The file is on another machine's disk, where neither locks nor syncs can be relied on.
    #[error(
        "cannot open {path}: it is on a network file system ({kind}), where locks and syncs do not hold what they \
         promise; use a local disk", path = .path.display()
    )]
    Network {
        /// The database.
        path: PathBuf,
        /// What the system calls the file system.
        kind: String,
    },
    /// This user may not do what is needed.
    #[error(
        "cannot open {path}: {problem}; let this user read and write the file and its directory, or name a file \
         elsewhere", path = .path.display()
    )]
    NoAccess {
        /// The database.
        path: PathBuf,
        /// What this user may not do.
        problem: String,
    },
    /// There is no room for the file, or for what opening it writes.
    #[error(
        "cannot open {path}: its disk is full ({room}); free some space, or name a file on another disk",
        path = .path.display(), room = room(*.free)
    )]
    NoSpace {
        /// The database.
        path: PathBuf,
        /// How many bytes are free there, if the system says so.
        free: Option<u64>,
    },
    /// The file is ours and cannot be read as what it should be.
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
    /// The write-ahead log beside the file is the log of another file, or of another state of this one. Neither was changed.
    #[error(
        "cannot open {path}: {log} is not its write-ahead log: it belongs to another file, or to another state of this one; \
         put back the log that belongs to it, or restore the file from a backup; if another program has written to the \
         file, let that program close it; without a log the file opens, but lacks what its own log held", path = .path.display(), log = .log.display()
    )]
    ForeignLog {
        /// The database.
        path: PathBuf,
        /// What lies beside it.
        log: PathBuf,
    },
    /// The operating system or SQLite refused.
    #[error("cannot open {path}: {source}", path = .path.display())]
    Failed {
        /// The database.
        path: PathBuf,
        /// What they said.
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl OpenError {
    pub(super) fn failed(path: &Path, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Failed { path: path.to_owned(), source: source.into() }
    }

    /// What SQLite says, in words that help.
    pub(super) fn sql(path: &Path, error: rusqlite::Error) -> Self {
        match Fault::of(&error) {
            fault if Self::is_for_want_of_room(path, &fault) => Self::no_space(path),
            Fault::Disk(_) | Fault::Other(_) => Self::failed(path, error),
            fault => Self::fault(path, fault),
        }
    }

    /// The same for what SQLite said already.
    pub(super) fn fault(path: &Path, fault: Fault) -> Self {
        match fault {
            fault if Self::is_for_want_of_room(path, &fault) => Self::no_space(path),
            Fault::ReadOnly => Self::no_access(path, "the file is read-only"),
            Fault::NoAccess(said) => Self::no_access(path, &said),
            Fault::Damaged(problem) => Self::damaged(path, problem),
            Fault::Busy => Self::busy(path),
            other => Self::failed(path, other.cause()),
        }
    }

    pub(super) fn damaged(path: &Path, problem: String) -> Self {
        Self::Damaged { path: path.to_owned(), problem }
    }

    /// What the operating system says, in words that help.
    pub(super) fn io(path: &Path, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::no_access(path, &error.to_string())
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::no_space(path),
            _ => Self::failed(path, error),
        }
    }

    /// On a full disk other things fail first, and say less: what SQLite keeps beside the file cannot be made longer.
    fn is_for_want_of_room(path: &Path, fault: &Fault) -> bool {
        let is_full = || place::free(path).is_some_and(|free| free < ROOM) && denied(path).is_none();
        *fault == Fault::Full || fault.may_be_for_want_of_room() && is_full()
    }

    fn no_space(path: &Path) -> Self {
        Self::NoSpace { path: path.to_owned(), free: place::free(path) }
    }

    fn busy(path: &Path) -> Self {
        let holder = "another program is reading or writing it; close that program, then open it again".to_owned();
        Self::InUse { path: path.to_owned(), pid: None, holder, address: None }
    }

    /// `said`: what to say if the file system does not tell more.
    fn no_access(path: &Path, said: &str) -> Self {
        let problem = denied(path).unwrap_or_else(|| said.to_owned());
        Self::NoAccess { path: path.to_owned(), problem }
    }
}

/// How much room there is, for a person.
fn room(free: Option<u64>) -> String {
    match free {
        None => "it is not known how much is free".to_owned(),
        Some(free) if free < ROOM => format!("{} KiB are free, and it needs {} KiB", free >> 10, ROOM >> 10),
        Some(free) => format!("{} MiB are free; a quota may be used up", free >> 20),
    }
}

/// Why this user cannot open the database at `path`, or make it, as far as the file system says: nothing is opened.
pub fn forbidden(path: impl AsRef<Path>) -> Option<String> {
    match super::open::resolve(path.as_ref()) {
        Ok(path) => denied(&path),
        Err(OpenError::MissingDirectory { directory, .. }) => {
            Some(format!("the directory {} does not exist", directory.display()))
        }
        Err(error) => Some(error.to_string()),
    }
}

/// What this user may not do with the file, or with those beside it. Asked without opening any: closing a file gives up
/// all locks that this process has on it, and SQLite would leave files beside it that nobody may write.
#[cfg(unix)]
pub(super) fn denied(path: &Path) -> Option<String> {
    use rustix::fs::{Access, access};
    use rustix::io::Errno;
    let directory = path.parent()?;
    let may = |path: &Path, how: Access, what: &str| match access(path, how) {
        Err(Errno::ACCESS) => Some(format!("this user may not {what} {}", path.display())),
        Err(Errno::ROFS) => Some("its file system is read-only".to_owned()),
        _ => None,
    };
    let files = ["", "-wal", "-shm", "-lock"].map(|suffix| beside(path, suffix));
    may(directory, Access::WRITE_OK | Access::EXEC_OK, "create files in").or_else(|| {
        let both = [(Access::READ_OK, "read"), (Access::WRITE_OK, "write")];
        files.iter().find_map(|file| both.iter().find_map(|(how, what)| may(file, *how, what)))
    })
}

#[cfg(not(unix))]
pub(super) fn denied(_: &Path) -> Option<String> {
    None
}
