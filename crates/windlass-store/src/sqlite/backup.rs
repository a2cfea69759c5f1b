//! Copies of the file that are whole, taken while work goes on, and what becomes of the runs when one is opened.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use futures_util::future::BoxFuture;
use rusqlite::{Connection, params};
use windlass_core::store::{Message, Promise};

use super::place::private;
use super::{SqliteStore, damage, lineage, open, schema};

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// Something has the name already. It was not changed.
    #[error("{path} is there already, and a backup overwrites nothing; name another file", path = .path.display())]
    Exists {
        /// What is there.
        path: PathBuf,
    },
    /// The file is damaged, and a copy of it would be. Nothing is left of it.
    #[error(
        "{path} is damaged ({problem}), and a backup would be; keep the backups there are, and look into it with \
         `windlass doctor`", path = .path.display()
    )]
    Damaged {
        /// The file that should have been copied.
        path: PathBuf,
        /// What was found.
        problem: String,
    },
    /// It could not be written. Nothing is left of it.
    #[error("cannot back up to {path}: {why}", path = .path.display())]
    Failed {
        /// Where it should have been.
        path: PathBuf,
        /// Who said what.
        why: String,
    },
}

impl SqliteStore {
    /// Writes a copy of the file as it is at one moment, while work goes on. It appears under its name when it is whole and
    /// on disk.
    ///
    /// Opening a backup restores it. Whatever happened after it was taken is not in it, and the outside world has seen it
    /// all the same: every `once` attempt that an unfinished run may have made since is in doubt, and all reply keys handed
    /// out so far are void. What was started after it is unknown to it, and so are the keys it was started under. The
    /// process that had the original must be gone for good by then. A copy taken by other means is not known as one.
    ///
    /// The keys that secrets are sealed with are not in it ([`Self::key_file`]): with a copy of them, what it has can be read
    /// in full, and without one everything but the runs that have secrets.
    ///
    /// Dropping the future does not stop it. A process that dies leaves a file whose name ends in `.partial`.
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
    // Gone already if the file has its name now.
    let left = fs::remove_file(&partial);
    done.map_err(|problem| match problem {
        Problem::Exists => BackupError::Exists { path: to.to_owned() },
        Problem::Damaged(problem) => BackupError::Damaged { path: from.to_owned(), problem },
        Problem::Failed(why) => {
            let left = left.err().filter(|error| error.kind() != io::ErrorKind::NotFound);
            let left = left.map(|error| format!(" (and {} is left: {error})", partial.display())).unwrap_or_default();
            BackupError::Failed { path: to.to_owned(), why: format!("{why}{left}") }
        }
    })
}

pub(super) enum Problem {
    Exists,
    Damaged(String),
    Failed(String),
}

impl From<rusqlite::Error> for Problem {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A name beside the target that nobody else writes to.
fn partial(to: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{}.partial", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    to.with_file_name(name)
}

/// One view of the file, copied row by row: readers see no half commit, and the writer does not wait for them.
fn write(from: &Path, partial: &Path) -> Result<(), Problem> {
    let Some(name) = partial.to_str() else {
        return Err(Problem::Failed("SQLite takes only names that are Unicode".to_owned()));
    };
    // SQLite would make it readable for others; one that is empty it takes as it is.
    private().write(true).create_new(true).open(partial)?;
    open::onlooker(from)?.execute("VACUUM INTO ?1", [name])?;
    let copy = Connection::open(partial)?;
    schema::add_functions(&copy)?;
    // In the copy, which has all that the original had and keeps no log from beginning again.
    if let Some(damage) = damage::find(&copy, 1)?.first() {
        return Err(Problem::Damaged(damage.sentence()));
    }
    // Whatever the original is doing, nobody has to look through this one.
    copy.execute("UPDATE file SET copy = 1, clean = 1", [])?;
    copy.execute(lineage::ANEW, [])?;
    copy.close().map_err(|(_, error)| error)?;
    File::options().write(true).open(partial)?.sync_all()?;
    Ok(())
}

/// Gives the file its name, unless somebody else has it by now.
pub(super) fn publish(partial: &Path, to: &Path) -> Result<(), Problem> {
    match fs::hard_link(partial, to) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(Problem::Exists),
        // Some file systems have no links.
        Err(_) if to.symlink_metadata().is_err() => fs::rename(partial, to)?,
        Err(_) => return Err(Problem::Exists),
    }
    #[cfg(unix)]
    if let Some(directory) = to.canonicalize()?.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

/// A backup that is opened becomes a file of its own: with a new secret, and with word to every unfinished run that what it
/// did since is not in its journal. They are told when they are taken up; none is woken for it.
pub(super) fn restore(transaction: &Connection) -> rusqlite::Result<()> {
    let sql = "UPDATE file SET copy = 0, secret = randomblob(32) WHERE copy = 1";
    if transaction.execute(sql, [])? == 0 {
        return Ok(());
    }
    let unwritable = |error: serde_json::Error| rusqlite::Error::ToSqlConversionFailure(error.into());
    let message = serde_json::to_string(&Message::Restored).map_err(unwritable)?;
    let told = transaction.execute(
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
    tracing::warn!(runs = told, "a backup was opened: what unfinished runs may have done since is in doubt");
    Ok(())
}
