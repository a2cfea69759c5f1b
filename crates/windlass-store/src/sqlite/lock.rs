//! One process owns the file.
//!
//! The lock is the operating system's, on a file beside the database: it ends with the process however that ends, so
//! holding it proves that every earlier owner is dead. The file's content only helps others to find the owner: who it is,
//! and in a second line where it answers, if it does. It is never deleted: whoever deletes a lock file races with whoever is
//! taking it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use super::place::{beside, private};
use super::refusal::OpenError;

/// Together a quarter of a second: far longer than a fork takes, and a person who opens a file twice does not notice.
const TRIES: u32 = 25;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// Held until dropped.
#[derive(Debug)]
pub(super) struct FileLock {
    file: File,
    /// How long the line about the owner is.
    owner: u64,
}

impl FileLock {
    /// Says where the owner answers, or that it does not any more.
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

/// What the line about the address begins with.
const ADDRESS: &str = "address ";

/// Who has a database open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process, if it could be told.
    pub pid: Option<u32>,
    /// Where it answers, if it announced that.
    pub address: Option<String>,
}

/// Who has the database at `path` open; nobody if nobody has, or if it is not there.
pub fn holder(path: impl AsRef<Path>) -> io::Result<Option<Holder>> {
    let path = path.as_ref();
    // Every name of a file leads to the same lock.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut file = match fs::OpenOptions::new().read(true).open(beside(&path, "-lock")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    // Shared, and let go of at once: whoever opens the file meanwhile tries again, and others may look at the same time.
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => {
            let written = Written::read(&mut file);
            Ok(Some(Holder { pid: written.pid, address: written.address }))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// A place of a database that no process can open, until this is dropped.
#[derive(Debug)]
#[must_use = "dropped, it keeps the file no longer"]
pub struct Claim {
    _lock: FileLock,
}

/// Keeps the database at `path` from every process, so that its files can be replaced; it need not be there. Refused while
/// one has it open.
pub fn claim(path: impl AsRef<Path>) -> Result<Claim, OpenError> {
    Ok(Claim { _lock: take(&super::open::resolve(path.as_ref())?)? })
}

/// Whether there is a lock beside the database, held or not: one of us had it open before.
pub(super) fn is_there(path: &Path) -> bool {
    beside(path, "-lock").exists()
}

/// Takes the lock of the database at `path`, or says who has it.
pub(super) fn take(path: &Path) -> Result<FileLock, OpenError> {
    let failed = |error: io::Error| OpenError::io(path, error);
    let lock = beside(path, "-lock");
    let mut file = private().read(true).write(true).create(true).truncate(false).open(lock).map_err(failed)?;
    match patiently(|| file.try_lock()) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(in_use(path, &mut file)),
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    file.set_len(0).map_err(failed)?;
    let holder = format!("{} {} {}\n", std::process::id(), now().unwrap_or_default(), program());
    file.write_all(holder.as_bytes()).map_err(failed)?;
    Ok(FileLock { file, owner: holder.len() as u64 })
}

/// A lock that was just let go may seem to be held a moment longer: a child that another thread of this process forked
/// meanwhile has a share in it until it becomes another program.
fn patiently(take: impl Fn() -> Result<(), TryLockError>) -> Result<(), TryLockError> {
    for _ in 0..TRIES {
        match take() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(BETWEEN_TRIES),
            taken => return taken,
        }
    }
    take()
}

fn in_use(path: &Path, file: &mut File) -> OpenError {
    let Written { pid, since, program, address } = Written::read(file);
    let since = since.map(|word| format!(" since {word}")).unwrap_or_default();
    let program = program.map(|word| format!(" ({word})")).unwrap_or_default();
    let holder = match pid {
        Some(pid) if pid == std::process::id() => {
            format!("this process ({pid}) has had it open{since}; open it once and share that store")
        }
        Some(pid) => format!("process {pid}{program} has had it open{since}; stop that process, or use another file"),
        None => "another process has it open; stop that process, or use another file".to_owned(),
    };
    OpenError::InUse { path: path.to_owned(), pid, holder, address }
}

/// What a lock file says of its owner.
struct Written {
    pid: Option<u32>,
    since: Option<String>,
    program: Option<String>,
    address: Option<String>,
}

impl Written {
    /// Some systems keep others from reading a locked file, and its owner may be about to write: then nobody is named.
    fn read(file: &mut File) -> Self {
        let mut text = String::new();
        let _ = file.read_to_string(&mut text);
        // A line without its end is still being written.
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

/// What people call this program.
fn program() -> String {
    let path = std::env::current_exe().ok();
    path.as_deref().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
}

/// The time as people read it. SQLite knows the calendar, so this crate does not have to.
fn now() -> rusqlite::Result<String> {
    Connection::open_in_memory()?.query_row("SELECT strftime('%Y-%m-%dT%H:%M:%SZ')", [], |row| row.get(0))
}
