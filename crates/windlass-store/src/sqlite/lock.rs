//! The lock that makes one process the owner of the file.
//!
//! It is an operating system lock on a file next to the database. It ends with the process, however that ends, so
//! holding it proves that every earlier owner is dead. The content of the file only helps to find the owner: the first
//! line identifies the process, and an optional second line has its address. The file is never deleted, because
//! deleting it would race with a process that is acquiring the lock.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use super::db_file::{owner_only, with_suffix};
use super::open_error::OpenError;

/// Together a quarter of a second: much longer than a fork takes, and too short for a person to notice.
const TRIES: u32 = 25;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// Held until dropped.
#[derive(Debug)]
pub(super) struct OwnerLock {
    file: File,
    /// The length of the line that identifies the owner.
    owner: u64,
}

impl OwnerLock {
    /// Writes or removes the owner's address.
    pub(super) fn announce(&self, address: Option<&str>) -> io::Result<()> {
        let mut file = &self.file;
        file.set_len(self.owner)?;
        if let Some(address) = address {
            file.seek(SeekFrom::Start(self.owner))?;
            file.write_all(format!("{ADDRESS}{address}\n").as_bytes())?;
        }
        Ok(())
    }
}

/// The prefix of the line with the address.
const ADDRESS: &str = "address ";

/// The process that has a database open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOwner {
    /// The process id, if it is known.
    pub pid: Option<u32>,
    /// The address of the process, if it announced one.
    pub address: Option<String>,
}

/// The process that has the database at `path` open. `None` if no process has, or if the database does not exist.
pub fn file_owner(path: impl AsRef<Path>) -> io::Result<Option<FileOwner>> {
    let path = path.as_ref();
    // Every path to a file leads to the same lock.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut file = match fs::OpenOptions::new().read(true).open(with_suffix(&path, "-lock")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    // A shared lock that is released at once: a process that opens the file meanwhile retries, and other observers are
    // not blocked.
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => {
            let written = LockFileText::read(&mut file);
            Ok(Some(FileOwner { pid: written.pid, address: written.address }))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Keeps every process from opening the database at a path, until it is dropped.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct FileLock {
    _lock: OwnerLock,
}

/// Locks the database at `path`, which need not exist, so that its files can be replaced. Fails while a process has it
/// open.
pub fn lock_file(path: impl AsRef<Path>) -> Result<FileLock, OpenError> {
    Ok(FileLock { _lock: acquire(&super::open::resolve(path.as_ref())?)? })
}

/// Whether a lock file exists, held or not: a Windlass process had the database open before.
pub(super) fn exists(path: &Path) -> bool {
    with_suffix(path, "-lock").exists()
}

/// Acquires the lock of the database at `path`. The error names the process that holds it.
pub(super) fn acquire(path: &Path) -> Result<OwnerLock, OpenError> {
    let failed = |error: io::Error| OpenError::io(path, error);
    let lock = with_suffix(path, "-lock");
    let mut file = owner_only().read(true).write(true).create(true).truncate(false).open(lock).map_err(failed)?;
    match retry_while_held(|| file.try_lock()) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(in_use(path, &mut file)),
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    file.set_len(0).map_err(failed)?;
    let line = format!("{} {} {}\n", std::process::id(), now().unwrap_or_default(), program());
    file.write_all(line.as_bytes()).map_err(failed)?;
    Ok(OwnerLock { file, owner: line.len() as u64 })
}

/// A lock that was just released may appear to be held a moment longer: a child process that another thread forked
/// meanwhile shares it until it executes another program.
fn retry_while_held(take: impl Fn() -> Result<(), TryLockError>) -> Result<(), TryLockError> {
    for _ in 0..TRIES {
        match take() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(BETWEEN_TRIES),
            taken => return taken,
        }
    }
    take()
}

fn in_use(path: &Path, file: &mut File) -> OpenError {
    let LockFileText { pid, since, program, address } = LockFileText::read(file);
    let since = since.map(|word| format!(" since {word}")).unwrap_or_default();
    let program = program.map(|word| format!(" ({word})")).unwrap_or_default();
    let owner = match pid {
        Some(pid) if pid == std::process::id() => {
            format!("this process ({pid}) has had it open{since}; open it once and share that store")
        }
        Some(pid) => format!("process {pid}{program} has had it open{since}; stop that process, or use another file"),
        None => "another process has it open; stop that process, or use another file".to_owned(),
    };
    OpenError::InUse { path: path.to_owned(), pid, owner, address }
}

/// The content of a lock file.
struct LockFileText {
    pid: Option<u32>,
    since: Option<String>,
    program: Option<String>,
    address: Option<String>,
}

impl LockFileText {
    /// Fields are `None` if the file cannot be read while it is locked, or if its owner has not written it yet.
    fn read(file: &mut File) -> Self {
        let mut text = String::new();
        let _ = file.read_to_string(&mut text);
        // A line without a line break is still being written.
        let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let mut words = lines.next().unwrap_or_default().splitn(3, ' ');
        Self {
            pid: words.next().and_then(|word| word.parse().ok()),
            since: words.next().map(str::to_owned),
            program: words.next().map(str::to_owned),
            address: lines.next().and_then(|line| line.strip_prefix(ADDRESS)).map(str::to_owned),
        }
    }
}

/// The file name of this program.
fn program() -> String {
    let path = std::env::current_exe().ok();
    path.as_deref().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
}

/// The current time in ISO 8601. SQLite formats it, so this crate needs no calendar.
fn now() -> rusqlite::Result<String> {
    Connection::open_in_memory()?.query_row("SELECT strftime('%Y-%m-%dT%H:%M:%SZ')", [], |row| row.get(0))
}
