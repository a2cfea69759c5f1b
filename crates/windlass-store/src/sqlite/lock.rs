//! One process owns the file.
//!
//! The lock is the operating system's, on a file beside the database: it ends with the process however that ends, so
//! holding it proves that every earlier owner is dead. The file's content only helps people. It is never deleted:
//! whoever deletes a lock file races with whoever is taking it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use super::place::beside;
use super::refusal::OpenError;

/// Together a quarter of a second: far longer than a fork takes, and a person who opens a file twice does not notice.
const TRIES: u32 = 25;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// Held until dropped.
#[derive(Debug)]
pub(super) struct FileLock {
    _file: File,
}

/// Takes the lock of the database at `path`, or says who has it.
pub(super) fn take(path: &Path) -> Result<FileLock, OpenError> {
    let failed = |error: io::Error| OpenError::io(path, error);
    let lock = beside(path, "-lock");
    let mut file =
        fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(lock).map_err(failed)?;
    match patiently(|| file.try_lock()) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(in_use(path, &mut file)),
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    file.set_len(0).map_err(failed)?;
    let holder = format!("{} {} {}\n", std::process::id(), now().unwrap_or_default(), program());
    file.write_all(holder.as_bytes()).map_err(failed)?;
    Ok(FileLock { _file: file })
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
    let mut text = String::new();
    // Some systems keep others from reading a locked file, and its owner may be about to write: then nobody is named.
    let _ = file.read_to_string(&mut text);
    let mut words = text.trim_end().splitn(3, ' ');
    let pid = words.next().and_then(|word| word.parse::<u32>().ok());
    let since = words.next().map(|word| format!(" since {word}")).unwrap_or_default();
    let program = words.next().map(|word| format!(" ({word})")).unwrap_or_default();
    let holder = match pid {
        Some(pid) if pid == std::process::id() => {
            format!("this process ({pid}) has had it open{since}; open it once and share that store")
        }
        Some(pid) => format!("process {pid}{program} has had it open{since}; stop that process, or use another file"),
        None => "another process has it open; stop that process, or use another file".to_owned(),
    };
    OpenError::InUse { path: path.to_owned(), pid, holder }
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
