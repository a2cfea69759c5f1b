//! Backups: consistent copies of the file that are taken while the store is in use, and the restore that happens when
//! one is opened.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use futures_util::future::BoxFuture;
use rusqlite::{Connection, params};
use windlass_core::store::{Message, Promise};

use super::db_file::owner_only;
use super::{SqliteStore, damage, open, schema, wal_stamp};

/// Why no backup was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// A file with this name exists. It was not changed.
    #[error("{path} exists already, and a backup overwrites nothing; use another name", path = .path.display())]
    Exists {
        /// The existing file.
        path: PathBuf,
    },
    /// The database is damaged, and a copy would be too. The copy was deleted.
    #[error(
        "{path} is damaged ({problem}), and a backup would be too; keep the existing backups, and check the file with \
         `windlass doctor`", path = .path.display()
    )]
    Damaged {
        /// The database.
        path: PathBuf,
        /// What was found.
        problem: String,
    },
    /// The backup could not be written. The partial copy was deleted.
    #[error("cannot back up to {path}: {why}", path = .path.display())]
    Failed {
        /// The path of the backup.
        path: PathBuf,
        /// The cause.
        why: String,
    },
}

impl SqliteStore {
    /// Writes a copy of the file, as of one moment, while the store is in use. The copy appears under its name when it
    /// is complete and on disk.
    ///
    /// Opening a backup restores it. Effects that happened after it was taken are not in it: every `once` attempt that
    /// an unfinished run may have made since is in doubt, and all reply keys that were issued so far are void. Runs
    /// that were started later, and their start keys, are unknown to it. The process that had the original must have
    /// stopped for good by then. A copy that was made in any other way is not recognised as a backup.
    ///
    /// The keys that secrets are sealed with are not in it ([`Self::key_file`]). With a copy of them the backup can be
    /// read completely; without, everything but the runs that have secrets.
    ///
    /// Dropping the future does not stop the backup. A process that dies leaves a file whose name ends in `.partial`.
    pub fn backup(&self, to: impl AsRef<Path>) -> BoxFuture<'static, Result<(), BackupError>> {
        let (from, to) = (self.path.clone(), to.as_ref().to_owned());
        let (promise, ticket) = Promise::pair();
        let target = to.clone();
        let copying = thread::Builder::new().name("windlass-backup".to_owned());
        let copying = copying.spawn(move || promise.answer(Ok(back_up(&from, &target))));
        Box::pin(async move {
            let failed = |why: String| BackupError::Failed { path: to.clone(), why };
            copying.map_err(|error| failed(error.to_string()))?;
            ticket.await.map_err(|error| failed(error.to_string()))?
        })
    }
}

fn back_up(from: &Path, to: &Path) -> Result<(), BackupError> {
    if to.symlink_metadata().is_ok() {
        return Err(BackupError::Exists { path: to.to_owned() });
    }
    let partial = partial(to);
    let done = write(from, &partial).and_then(|()| publish(&partial, to));
    // Already renamed if the copy was published.
    let left = fs::remove_file(&partial);
    done.map_err(|problem| match problem {
        CopyError::Exists => BackupError::Exists { path: to.to_owned() },
        CopyError::Damaged(problem) => BackupError::Damaged { path: from.to_owned(), problem },
        CopyError::Failed(why) => {
            let left = left.err().filter(|error| error.kind() != io::ErrorKind::NotFound);
            let left =
                left.map(|error| format!(" ({} could not be deleted: {error})", partial.display())).unwrap_or_default();
            BackupError::Failed { path: to.to_owned(), why: format!("{why}{left}") }
        }
    })
}

pub(super) enum CopyError {
    Exists,
    Damaged(String),
    Failed(String),
}

impl From<rusqlite::Error> for CopyError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<io::Error> for CopyError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A unique name in the directory of the target.
fn partial(to: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{}.partial", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    to.with_file_name(name)
}

/// Copies one snapshot of the file row by row: the copy has no partial commit, and the writer does not wait.
fn write(from: &Path, partial: &Path) -> Result<(), CopyError> {
    let Some(name) = partial.to_str() else {
        return Err(CopyError::Failed("the path is not valid Unicode, which SQLite requires".to_owned()));
    };
    // Created here, because SQLite would make it readable for other users. SQLite accepts an empty file.
    owner_only().write(true).create_new(true).open(partial)?;
    open::observer(from)?.execute("VACUUM INTO ?1", [name])?;
    let copy = Connection::open(partial)?;
    schema::add_functions(&copy)?;
    // Checked in the copy, which has everything that the original has. Reading the original for so long would keep its
    // log from restarting.
    if let Some(damage) = damage::find(&copy, 1)?.first() {
        return Err(CopyError::Damaged(damage.sentence()));
    }
    // The copy is known to be intact, whatever the state of the original.
    copy.execute("UPDATE file SET copy = 1, clean = 1", [])?;
    copy.execute(wal_stamp::RESET, [])?;
    copy.close().map_err(|(_, error)| error)?;
    File::options().write(true).open(partial)?.sync_all()?;
    Ok(())
}

/// Gives the file its final name, unless another file has that name by now.
pub(super) fn publish(partial: &Path, to: &Path) -> Result<(), CopyError> {
    match fs::hard_link(partial, to) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(CopyError::Exists),
        // Some file systems have no hard links.
        Err(_) if to.symlink_metadata().is_err() => fs::rename(partial, to)?,
        Err(_) => return Err(CopyError::Exists),
    }
    #[cfg(unix)]
    if let Some(directory) = to.canonicalize()?.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

/// Turns a backup that is opened into an independent file: it gets a new secret, and every unfinished run gets a
/// message that its journal may lack what it did since. The runs read it when they are claimed; none is woken by it.
pub(super) fn restore(transaction: &Connection) -> rusqlite::Result<()> {
    let sql = "UPDATE file SET copy = 0, secret = randomblob(32) WHERE copy = 1";
    if transaction.execute(sql, [])? == 0 {
        return Ok(());
    }
    let unwritable = |error: serde_json::Error| rusqlite::Error::ToSqlConversionFailure(error.into());
    let message = serde_json::to_string(&Message::Restored).map_err(unwritable)?;
    let runs = transaction.execute(
        "INSERT INTO mail (run, position, body, sum)
         SELECT id, next, ?1, windlass_sum(id, next, NULL, ?1)
         FROM (SELECT id, 1 + coalesce((SELECT max(position) FROM mail WHERE mail.run = runs.id), 0) AS next
               FROM runs WHERE phase < 4)",
        params![message],
    )?;
    transaction.execute(
        "UPDATE runs SET mail = (SELECT max(position) FROM mail WHERE mail.run = runs.id) WHERE phase < 4",
        [],
    )?;
    tracing::warn!(runs, "opened a backup: what its unfinished runs may have done since then is in doubt");
    Ok(())
}
