//! Why the file takes no commits: the cause, and the way out.

use std::path::Path;

use rusqlite::ErrorCode;
use windlass_core::store::StoreError;

/// What keeps the file from being written, split by what somebody does about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Full,
    ReadOnly,
    /// It is not at its place any more.
    Gone,
    /// Another file is at its place.
    Replaced,
    /// Its write-ahead log was deleted.
    LogGone,
    /// The write-ahead log beside it is not its own.
    ForeignLog,
    /// Somebody else reads or writes it without end.
    Busy,
    NoAccess(String),
    Damaged(String),
    /// Reading, writing or syncing failed.
    Disk(String),
    Other(String),
}

impl Fault {
    pub(super) fn of(error: &rusqlite::Error) -> Self {
        let said = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full,
            Some(ErrorCode::ReadOnly) => Self::ReadOnly,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => Self::NoAccess(said),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(said),
            Some(ErrorCode::SystemIoFailure) => Self::Disk(said),
            _ => Self::Other(said),
        }
    }

    /// Whether the connection is the last thing that leads to the file or its log. Then it is kept.
    pub(super) fn is_misplaced(&self) -> bool {
        matches!(self, Self::Gone | Self::Replaced | Self::LogGone)
    }

    /// Whether it would be back at once if only the file was opened again.
    pub(super) fn is_of_the_disk(&self) -> bool {
        matches!(self, Self::Full | Self::ReadOnly | Self::Busy | Self::NoAccess(_) | Self::Disk(_))
    }

    /// Whether a full disk may be behind it: much fails there in other words.
    pub(super) fn may_be_for_want_of_room(&self) -> bool {
        matches!(self, Self::Full | Self::NoAccess(_) | Self::Disk(_) | Self::Other(_))
    }

    /// What is told to whoever wants to write, and to whoever looks after the store.
    pub(super) fn sentence(&self, path: &Path) -> String {
        let (cause, way_out) = self.words();
        format!("{} takes no commits: {cause}; {way_out}", path.display())
    }

    /// What happened, without the way out.
    pub(super) fn cause(&self) -> String {
        self.words().0
    }

    fn words(&self) -> (String, &'static str) {
        match self {
            Self::Full => (
                "its disk is full".to_owned(),
                "free some space, and it goes on by itself; nothing that was accepted is lost",
            ),
            Self::ReadOnly => (
                "the file, or its file system, is read-only".to_owned(),
                "make it writable, and it goes on by itself; nothing that was accepted is lost",
            ),
            Self::Gone => (
                "it was deleted or moved away while it was open".to_owned(),
                "move it back, and it goes on by itself; all that was accepted is in the file that was moved",
            ),
            Self::Replaced => (
                "another file was put in its place while it was open".to_owned(),
                "move the first one back, and it goes on by itself, or start this process again to use the new one; \
                 nothing was written to that",
            ),
            Self::LogGone => (
                "its write-ahead log (the file that ends in -wal) was deleted while it was open".to_owned(),
                "what was in it is moved into the file first, then it goes on by itself",
            ),
            Self::ForeignLog => (
                "the write-ahead log beside it (the file that ends in -wal) is not its own".to_owned(),
                "move that log away, and it goes on by itself; nothing that was accepted is lost",
            ),
            Self::Busy => (
                "another program reads or writes it without end".to_owned(),
                "close that program, and it goes on by itself; nothing that was accepted is lost",
            ),
            Self::NoAccess(said) => (
                format!("it cannot be opened any more ({said})"),
                "check that this user may read and write it and its directory, and it goes on by itself; nothing that \
                 was accepted is lost",
            ),
            Self::Damaged(said) => (
                format!("it is damaged ({said})"),
                "stop this process, keep a copy of what is there, and restore the file from a backup",
            ),
            Self::Disk(said) => (
                format!("reading, writing or syncing it failed ({said})"),
                "check the disk, the quota, the limit on the size of files, and whether its file system has become \
                 read-only; it is tried again every second, and nothing that was accepted is lost",
            ),
            Self::Other(said) => (said.clone(), "it is tried again every second; nothing that was accepted is lost"),
        }
    }
}

/// A failure of a whole group.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    /// What everybody in the group is told.
    pub(super) told: StoreError,
}

impl Failure {
    /// Nothing of the group was written.
    pub(super) fn before(fault: Fault, path: &Path) -> Self {
        let told = StoreError::Unavailable(fault.sentence(path));
        Self { fault, told }
    }

    /// Nobody can tell whether the group was written.
    pub(super) fn unknown(error: &rusqlite::Error, path: &Path) -> Self {
        let told = StoreError::Unknown(format!("writing {}: {error}", path.display()));
        Self { fault: Fault::of(error), told }
    }
}
