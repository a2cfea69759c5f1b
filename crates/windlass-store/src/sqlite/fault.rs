//! Why the file accepts no commits: the cause and the remedy.

use std::path::Path;

use rusqlite::ErrorCode;
use windlass_core::store::StoreError;

/// A fault that keeps the file from being written, classified by its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Full,
    ReadOnly,
    /// The file was deleted or moved.
    Missing,
    /// Another file is at its path.
    Replaced,
    /// The write-ahead log was deleted.
    WalMissing,
    /// The write-ahead log next to the file belongs to another file.
    ForeignWal,
    /// Another program keeps reading or writing the file.
    Busy,
    NoAccess(String),
    Damaged(String),
    /// Reading, writing or syncing failed.
    Disk(String),
    Other(String),
}

impl Fault {
    pub(super) fn of(error: &rusqlite::Error) -> Self {
        let message = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full,
            Some(ErrorCode::ReadOnly) => Self::ReadOnly,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => Self::NoAccess(message),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(message),
            Some(ErrorCode::SystemIoFailure) => Self::Disk(message),
            _ => Self::Other(message),
        }
    }

    /// Whether the connection is the last reference to the file or its write-ahead log, so that it must stay open.
    pub(super) fn keeps_connection(&self) -> bool {
        matches!(self, Self::Missing | Self::Replaced | Self::WalMissing)
    }

    /// Whether reopening the file at once would meet the same fault.
    pub(super) fn is_disk_fault(&self) -> bool {
        matches!(self, Self::Full | Self::ReadOnly | Self::Busy | Self::NoAccess(_) | Self::Disk(_))
    }

    /// Whether a full disk may be the cause: many operations fail there with other errors.
    pub(super) fn may_be_full_disk(&self) -> bool {
        matches!(self, Self::Full | Self::NoAccess(_) | Self::Disk(_) | Self::Other(_))
    }

    /// The message for callers and operators: cause and remedy.
    pub(super) fn sentence(&self, path: &Path) -> String {
        let (cause, remedy) = self.cause_and_remedy();
        format!("{} takes no commits: {cause}; {remedy}", path.display())
    }

    /// The cause, without the remedy.
    pub(super) fn cause(&self) -> String {
        self.cause_and_remedy().0
    }

    fn cause_and_remedy(&self) -> (String, &'static str) {
        match self {
            Self::Full => (
                "its disk is full".to_owned(),
                "free some space, and it goes on by itself; nothing that was accepted is lost",
            ),
            Self::ReadOnly => (
                "the file, or its file system, is read-only".to_owned(),
                "make it writable, and it goes on by itself; nothing that was accepted is lost",
            ),
            Self::Missing => (
                "it was deleted or moved away while it was open".to_owned(),
                "move it back, and it goes on by itself; everything that was accepted is in the moved file",
            ),
            Self::Replaced => (
                "another file was put at its path while it was open".to_owned(),
                "move the original back, and it goes on by itself, or restart this process to use the new file; \
                 nothing was written to the new file",
            ),
            Self::WalMissing => (
                "its write-ahead log (the file that ends in -wal) was deleted while it was open".to_owned(),
                "its content is copied into the file first, then it goes on by itself",
            ),
            Self::ForeignWal => (
                "the write-ahead log next to it (the file that ends in -wal) belongs to another file".to_owned(),
                "move that log away, and it goes on by itself; nothing that was accepted is lost",
            ),
            Self::Busy => (
                "another program keeps reading or writing it".to_owned(),
                "close that program, and it goes on by itself; nothing that was accepted is lost",
            ),
            Self::NoAccess(message) => (
                format!("it cannot be opened any more ({message})"),
                "check that this user may read and write it and its directory, and it goes on by itself; nothing that \
                 was accepted is lost",
            ),
            Self::Damaged(message) => (
                format!("it is damaged ({message})"),
                "stop this process, keep a copy of the file, and restore it from a backup",
            ),
            Self::Disk(message) => (
                format!("reading, writing or syncing it failed ({message})"),
                "check the disk, the quota, the limit on the size of files, and whether its file system has become \
                 read-only; it is tried again every second, and nothing that was accepted is lost",
            ),
            Self::Other(message) => {
                (message.clone(), "it is tried again every second; nothing that was accepted is lost")
            }
        }
    }
}

/// A failure of a whole group.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    /// The error for every job of the group.
    pub(super) error: StoreError,
}

impl Failure {
    /// A failure before anything of the group was written.
    pub(super) fn before(fault: Fault, path: &Path) -> Self {
        let error = StoreError::Unavailable(fault.sentence(path));
        Self { fault, error }
    }

    /// A failure after which it is unknown whether the group was written.
    pub(super) fn unknown(error: &rusqlite::Error, path: &Path) -> Self {
        let fault = Fault::of(error);
        Self { fault, error: StoreError::Unknown(format!("writing {}: {error}", path.display())) }
    }
}
