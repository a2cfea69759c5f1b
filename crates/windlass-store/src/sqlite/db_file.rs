//! The database file: its path, and whether the file at that path is still the one that was opened. A process can write
//! to an open file long after it was deleted, and what it writes is lost.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::fault::Fault;
use super::open::{self, Options};

/// After the disk was full, this much must be free before commits are accepted again: room for a typical group.
/// Otherwise runs would start attempts that the next commit cannot record, over and over.
pub(super) const MIN_FREE_BYTES: u64 = 1 << 20;

/// Device and inode number of a file. `None` where the system does not provide them.
pub(super) type FileId = Option<(u64, u64)>;

#[derive(Clone, Debug)]
pub(super) struct DbFile {
    pub(super) path: PathBuf,
    /// The path of the write-ahead log.
    wal: PathBuf,
    file: FileId,
    /// Whether other programs may read the file.
    shared: bool,
}

impl DbFile {
    /// Describes a file that was just opened.
    pub(super) fn of(path: PathBuf, options: &Options) -> Self {
        Self { wal: with_suffix(&path, "-wal"), file: id(&path), path, shared: options.shared }
    }

    /// The path of the write-ahead log.
    pub(super) fn wal(&self) -> &Path {
        &self.wal
    }

    /// The id of the write-ahead log, for a connection that was just opened.
    pub(super) fn wal_id(&self) -> FileId {
        id(&self.wal)
    }

    /// Checks that the file is the one that was opened. One system call, about a microsecond.
    pub(super) fn check(&self) -> Result<(), Fault> {
        match (self.file, id(&self.path)) {
            (None, _) => Ok(()),
            (opened, stat) if opened == stat => Ok(()),
            (_, None) => Err(Fault::Missing),
            (_, Some(_)) => Err(Fault::Replaced),
        }
    }

    /// Checks the file and the write-ahead log that a connection writes to.
    pub(super) fn check_with_wal(&self, wal: FileId) -> Result<(), Fault> {
        self.check()?;
        if wal.is_some() && id(&self.wal) != wal { Err(Fault::WalMissing) } else { Ok(()) }
    }

    /// Opens a read-only connection to this file.
    pub(super) fn reader(&self) -> Result<Connection, Fault> {
        let connection = open::reader(&self.path, self.shared).map_err(|error| Fault::of(&error))?;
        self.check()?;
        Ok(connection)
    }

    /// Whether the disk has at least [`MIN_FREE_BYTES`] free.
    pub(super) fn has_room(&self) -> bool {
        free_bytes(&self.path).is_none_or(|free_bytes| free_bytes >= MIN_FREE_BYTES)
    }
}

/// The free bytes on the disk of a file, which need not exist. `None` where the system does not report it.
#[cfg(unix)]
pub(super) fn free_bytes(path: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(path).or_else(|error| path.parent().map_or(Err(error), rustix::fs::statvfs)).ok()?;
    // A file system that reports no size does not report free space either.
    (disk.f_blocks != 0).then(|| disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(not(unix))]
pub(super) fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// Options for creating files that only the user of this process may access. The mode of an existing file stays as it
/// is.
pub(super) fn owner_only() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// The path with a suffix added to its file name.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Queries only the inode number. Querying a file's times makes the kernel record the time of the next write more
/// precisely, and then every sync of the log also has to write the inode: half again as much work for the disk.
#[cfg(target_os = "linux")]
fn id(path: &Path) -> FileId {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let stat = statx(CWD, path, AtFlags::empty(), StatxFlags::INO).ok()?;
    let device = (u64::from(stat.stx_dev_major) << 32) | u64::from(stat.stx_dev_minor);
    Some((device, stat.stx_ino))
}

#[cfg(all(unix, not(target_os = "linux")))]
fn id(path: &Path) -> FileId {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|stat| (stat.dev(), stat.ino()))
}

#[cfg(not(unix))]
fn id(_: &Path) -> FileId {
    None
}
