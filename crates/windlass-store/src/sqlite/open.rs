//! Opening the file: what is refused, and how connections are set up.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use windlass_core::store::Retention;

use super::lock::{self, FileLock};
use super::place::{Place, private};
use super::refusal::OpenError;
use super::schema::{self, Identity};
use super::{check, lineage, network, refusal, reopen};

/// How long a statement waits for a lock. Our own connections never make one another wait; this is for other programs
/// that look into the file.
pub(super) const BUSY: Duration = Duration::from_secs(5);

/// How long somebody who only wants to know whose file it is waits. Whoever has it open now has it open for long.
const GLANCE: Duration = Duration::from_millis(250);

/// What is left of the write-ahead log after a spike; more is given back to the file system.
const LOG_KEPT: i64 = 64 << 20;

/// The writer's page cache in KiB: the inner pages of the indexes and the tails of the tables of some thousand runs.
const CACHE_KIB: i64 = 16 << 10;

/// What an answered commit survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Everything: the process being killed, the system crashing, the power going out. Every group of commits is synced
    /// before it is answered.
    #[default]
    Full,
    /// The process being killed, at any time. After a power cut or a crash of the system the file is intact, but
    /// commits that were answered may be missing: usually those of the last half minute, at worst all since the last
    /// checkpoint. A run then goes on from an earlier point, so that **an effect that was recorded, or intended, may
    /// happen a second time**. For work where that is harmless, in exchange for commits that do not wait for the disk.
    Relaxed,
}

/// How a file is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// What an answered commit survives.
    pub durability: Durability,
    /// How many records may lie unpacked at the end of the log, about. A restart looks through them.
    pub unpacked: u32,
    /// How long finished runs are kept.
    pub retention: Retention,
    /// Whether a commit may be written by the thread that submits it, while nobody else writes and the disk is fast: a run
    /// that works alone is spared two changes of threads a step. For callers that can be held up for a sync, such as one
    /// of several threads of an executor.
    pub here: bool,
    /// Whether other programs may read the file while it is open. Otherwise SQLite keeps it to this process, which spares
    /// every commit six locks and other programs are told that the file is locked.
    pub shared: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            unpacked: 32_768,
            retention: Retention::default(),
            here: false,
            shared: false,
        }
    }
}

impl From<Durability> for Options {
    fn from(durability: Durability) -> Self {
        Self { durability, ..Self::default() }
    }
}

/// An open file that this process owns.
pub(super) struct Opened {
    pub(super) lock: Arc<FileLock>,
    pub(super) connection: Connection,
    /// The file's place without links in it, so that every name of it leads to the same lock.
    pub(super) place: Place,
    /// Counts how often the file was opened.
    pub(super) opening: i64,
    /// What reply keys are signed with.
    pub(super) secret: [u8; 32],
    /// Whether whoever had it open before closed it in good order.
    pub(super) clean: bool,
}

pub(super) fn open(path: &Path, options: &Options) -> Result<Opened, OpenError> {
    let path = resolve(path)?;
    if let Some(kind) = path.parent().and_then(network::kind) {
        return Err(OpenError::Network { path, kind });
    }
    if let Some(problem) = refusal::denied(&path) {
        return Err(OpenError::NoAccess { path, problem });
    }
    let failed = |error: rusqlite::Error| OpenError::sql(&path, error);
    // Looked at before the lock is taken, so that no lock file appears beside a stranger's database, …
    match identify(&path).and_then(|identity| accept(&path, &identity)) {
        Ok(()) => {}
        // Whoever has it open keeps it to itself. If that is one of us, the lock says which.
        Err(OpenError::InUse { .. }) if lock::is_there(&path) => {}
        // With the log of another file it may look like anything.
        Err(error) => return Err(lineage::check(&path).map_or_else(|foreign| foreign.refusal(&path), |()| error)),
    }
    let lock = Arc::new(lock::take(&path)?);
    lineage::check(&path).map_err(|foreign| foreign.refusal(&path))?;
    // … and again under the lock, because its last owner may have created or upgraded it meanwhile.
    let identity = identify(&path)?;
    accept(&path, &identity)?;
    if !path.exists() {
        // What SQLite makes beside it gets its mode.
        private().write(true).create_new(true).open(&path).map_err(|error| OpenError::io(&path, error))?;
    }
    let mut connection = writer(&path, options).map_err(failed)?;
    // Emptied whoever left it, and before anything is appended to it: see `reopen.rs`.
    reopen::empty_log(&connection).map_err(|fault| OpenError::fault(&path, fault))?;
    let is_new = match identity {
        Identity::Empty => schema::create(&mut connection).map(|()| true).map_err(failed)?,
        Identity::Windlass(version) if version < schema::VERSION => {
            schema::migrate(&mut connection, version).map(|()| true).map_err(failed)?
        }
        Identity::Windlass(_) | Identity::Foreign(_) => false,
    };
    if is_new {
        // The file itself has its first stamp before there is a log that has to have it.
        reopen::empty_log(&connection).map_err(|fault| OpenError::fault(&path, fault))?;
    }
    schema::check_own_row(&connection).map_err(failed)?;
    let clean = schema::is_clean(&connection).map_err(failed)?;
    if !clean {
        check::at_once(&connection).map_err(|problem| OpenError::damaged(&path, problem))?;
    }
    // The first that is written to the log; but nothing is written to a file that is refused.
    lineage::stamp(&connection, options.shared).map_err(failed)?;
    let (opening, secret) = schema::count_opening(&mut connection).map_err(failed)?;
    Ok(Opened { lock, connection, place: Place::of(path, options), opening, secret, clean })
}

/// The path with its links followed. A file that is not there yet is named below its directory.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, OpenError> {
    if let Ok(found) = path.canonicalize() {
        return Ok(found);
    }
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let Some(name) = path.file_name() else {
        return Err(OpenError::NotWindlass { path: path.to_owned(), found: "it names no file".to_owned() });
    };
    match directory.canonicalize() {
        Ok(directory) => Ok(directory.join(name)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(OpenError::MissingDirectory { path: path.to_owned(), directory: directory.to_owned() })
        }
        Err(error) => Err(OpenError::io(path, error)),
    }
}

fn identify(path: &Path) -> Result<Identity, OpenError> {
    if path.is_dir() {
        return Ok(Identity::Foreign("it is a directory"));
    }
    if !path.exists() {
        return Ok(Identity::Empty);
    }
    let identity = onlooker(path).and_then(|connection| schema::identify(&connection));
    identity.map_err(|error| OpenError::sql(path, error))
}

fn accept(path: &Path, identity: &Identity) -> Result<(), OpenError> {
    match *identity {
        Identity::Foreign(found) => Err(OpenError::NotWindlass { path: path.to_owned(), found: found.to_owned() }),
        Identity::Windlass(found) if found > schema::VERSION => {
            Err(OpenError::Newer { path: path.to_owned(), found, known: schema::VERSION })
        }
        Identity::Windlass(_) | Identity::Empty => Ok(()),
    }
}

/// The connection that writes.
pub(super) fn writer(path: &Path, options: &Options) -> rusqlite::Result<Connection> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, keeper(options.shared))?;
    // Space that is freed can be given back in small pieces. Takes effect in an empty file, and would be written to any
    // other, before anybody knows whether that may be written to.
    if connection.pragma_query_value(None, "page_count", |row| row.get::<_, i64>(0))? == 0 {
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    }
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        let why = "its file system cannot share memory between connections (a network drive?); use a local disk";
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN);
        return Err(rusqlite::Error::SqliteFailure(code, Some(why.to_owned())));
    }
    let synchronous = match options.durability {
        Durability::Full => "FULL",
        Durability::Relaxed => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    // On macOS an ordinary sync leaves data in the drive's cache.
    connection.pragma_update(None, "fullfsync", options.durability == Durability::Full)?;
    // What is deleted is overwritten where its page is written anyway, so that purging a run leaves nothing of it behind
    // in pages that other runs share.
    connection.pragma_update(None, "secure_delete", "FAST")?;
    connection.pragma_update(None, "journal_size_limit", LOG_KEPT)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    Ok(connection)
}

/// A connection of the file's owner that only reads. It could write, as far as the file is concerned: a connection to a file
/// that is opened for reading has locks of its own, and giving those up would give up the owner's.
pub(super) fn reader(path: &Path, shared: bool) -> rusqlite::Result<Connection> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, keeper(shared))?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// A connection of somebody who does not own the file, or not yet, and only reads.
pub(super) fn onlooker(path: &Path) -> rusqlite::Result<Connection> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, None)?;
    connection.busy_timeout(GLANCE)?;
    Ok(connection)
}

/// The part of SQLite that keeps a file to one process, and its locks in memory. All connections of the process must use it.
fn keeper(shared: bool) -> Option<&'static CStr> {
    (cfg!(unix) && !shared).then_some(c"unix-excl")
}

/// Never creates the file: one that is gone must not come back empty.
fn connect(path: &Path, flags: OpenFlags, keeper: Option<&CStr>) -> rusqlite::Result<Connection> {
    // Each connection is used by one thread at a time, so SQLite need not lock it again.
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = match keeper {
        Some(keeper) => Connection::open_with_flags_and_vfs(path, flags, keeper)?,
        None => Connection::open_with_flags(path, flags)?,
    };
    connection.busy_timeout(BUSY)?;
    schema::add_functions(&connection)?;
    // Otherwise a statement with a bound LIMIT is planned anew whenever it is used.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // The default holds 16; the writer alone uses more than that.
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}
