//! Where the file is, and whether the file at that place is still the one that was opened. Whoever has a file open may
//! write to it long after it was deleted, and nobody would ever find what was written.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::fault::Fault;
use super::open::{self, Options};

/// After a disk was full, this much must be free before anything is accepted: room for a group of the usual size.
/// Otherwise a last free page would let runs begin what the next commit cannot record, over and over.
pub(super) const ROOM: u64 = 1 << 20;

/// What tells files apart that had the same name. Nothing where the system does not say.
pub(super) type FileId = Option<(u64, u64)>;

#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    /// The write-ahead log beside it.
    log: PathBuf,
    file: FileId,
    /// Whether other programs may read it.
    shared: bool,
}

impl Place {
    /// The place of a file that was just opened.
    pub(super) fn of(path: PathBuf, options: &Options) -> Self {
        Self { log: beside(&path, "-wal"), file: id(&path), path, shared: options.shared }
    }

    /// The write-ahead log.
    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    /// Which file the write-ahead log is, for a connection that was just opened.
    pub(super) fn log_id(&self) -> FileId {
        id(&self.log)
    }

    /// Whether the file is the one that was opened. One look at the file system, about a microsecond.
    pub(super) fn check(&self) -> Result<(), Fault> {
        match (self.file, id(&self.path)) {
            (None, _) => Ok(()),
            (opened, found) if opened == found => Ok(()),
            (_, None) => Err(Fault::Gone),
            (_, Some(_)) => Err(Fault::Replaced),
        }
    }

    /// The same for the file and for the log that a connection writes to.
    pub(super) fn check_both(&self, log: FileId) -> Result<(), Fault> {
        self.check()?;
        if log.is_some() && id(&self.log) != log { Err(Fault::LogGone) } else { Ok(()) }
    }

    /// A connection that only reads this very file.
    pub(super) fn reader(&self) -> Result<Connection, Fault> {
        let connection = open::reader(&self.path, self.shared).map_err(|error| Fault::of(&error))?;
        self.check()?;
        Ok(connection)
    }

    /// Whether its disk has room for more than a last page.
    pub(super) fn has_room(&self) -> bool {
        free(&self.path).is_none_or(|free| free >= ROOM)
    }
}

/// How many bytes are free on the disk of a file, which need not be there; nothing where the system does not say.
#[cfg(unix)]
pub(super) fn free(path: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(path).or_else(|error| path.parent().map_or(Err(error), rustix::fs::statvfs)).ok()?;
    // A file system that does not say how large it is does not say what is free either.
    (disk.f_blocks != 0).then(|| disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(not(unix))]
pub(super) fn free(_: &Path) -> Option<u64> {
    None
}

/// For files that are made here: nobody but whoever runs this process may read them. The mode of a file that is there is
/// its owner's affair and stays as it is.
pub(super) fn private() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// The path with something added to its last part.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Asks for nothing but what tells files apart. Whoever asks for a file's times makes the system note the next write more
/// exactly, and then every sync of the log has to write its times too: half again as much work for the disk.
#[cfg(target_os = "linux")]
fn id(path: &Path) -> FileId {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::INO).ok()?;
    let device = (u64::from(found.stx_dev_major) << 32) | u64::from(found.stx_dev_minor);
    Some((device, found.stx_ino))
}

#[cfg(all(unix, not(target_os = "linux")))]
fn id(path: &Path) -> FileId {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn id(_: &Path) -> FileId {
    None
}
