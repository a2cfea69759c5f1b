//! Opens the file: which files are refused, and how connections are configured.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use windlass_core::store::Retention;

use super::db_file::{DbFile, owner_only};
use super::lock::{self, OwnerLock};
use super::open_error::OpenError;
use super::schema::{self, Identity};
use super::{check, network, open_error, reopen, wal_stamp};

/// How long a statement waits for a lock. Connections of this process never block each other; this is for other
/// programs that read the file.
pub(super) const BUSY_WAIT: Duration = Duration::from_secs(5);

/// How long an observer waits for a lock. A process that has the file open usually keeps it open for long.
const OBSERVER_WAIT: Duration = Duration::from_millis(250);

/// Maximum size of the write-ahead log that is kept after a spike. The rest is returned to the file system.
const WAL_BYTES_KEPT: i64 = 64 << 20;

/// The writer's page cache in KiB: the inner pages of the indexes and the last pages of the tables for some thousand
/// runs.
const CACHE_KIB: i64 = 16 << 10;

/// What an answered commit survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// A killed process, a system crash and a power failure. Every group of commits is synced before it is answered.
    #[default]
    Full,
    /// A killed process, at any time. After a power failure or a system crash the file is intact, but answered commits
    /// may be missing: usually those of the last half minute, at worst all since the last checkpoint. A run then
    /// continues from an earlier point, so **an effect that was recorded or intended may happen a second time**. Use it
    /// for work where that is harmless; commits then do not wait for the disk.
    Relaxed,
}

/// Options for opening a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// What an answered commit survives.
    pub durability: Durability,
    /// Approximate number of unpacked records at the end of the log. A restart reads through them.
    pub unpacked: u32,
    /// How long finished runs are kept.
    pub retention: Retention,
    /// Whether a commit may be written on the thread that submits it, while the writer is idle and the disk is fast.
    /// That saves two thread switches per step for a run that works alone. For callers that may block for a sync, such
    /// as one of several threads of an executor.
    pub inline_writes: bool,
    /// Whether other programs may read the file while it is open. Otherwise SQLite locks it for this process, which
    /// saves six locks per commit; other programs get the error "database is locked".
    pub shared: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            unpacked: 32_768,
            retention: Retention::default(),
            inline_writes: false,
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
pub(super) struct OpenedFile {
    pub(super) lock: Arc<OwnerLock>,
    pub(super) connection: Connection,
    /// The file, with symbolic links resolved, so that every path to it leads to the same lock.
    pub(super) db_file: DbFile,
    /// How many times the file was opened, including this time.
    pub(super) opening: i64,
    /// The secret that signs reply keys.
    pub(super) secret: [u8; 32],
    /// Whether the previous owner closed the file cleanly.
    pub(super) clean: bool,
}

pub(super) fn open(path: &Path, options: &Options) -> Result<OpenedFile, OpenError> {
    let path = resolve(path)?;
    if let Some(kind) = path.parent().and_then(network::network_kind) {
        return Err(OpenError::Network { path, kind });
    }
    if let Some(problem) = open_error::permission_problem(&path) {
        return Err(OpenError::NoAccess { path, problem });
    }
    let failed = |error: rusqlite::Error| OpenError::sql(&path, error);
    // Identified before the lock is taken, so that no lock file is created next to the database of another program, …
    match identify(&path).and_then(|identity| accept(&path, &identity)) {
        Ok(()) => {}
        // Another process has it locked. If that is a Windlass process, the lock file names it.
        Err(OpenError::InUse { .. }) if lock::exists(&path) => {}
        // With a foreign write-ahead log the file may look like anything.
        Err(error) => {
            return Err(wal_stamp::check(&path).map_or_else(|foreign| foreign.into_open_error(&path), |()| error));
        }
    }
    let lock = Arc::new(lock::acquire(&path)?);
    wal_stamp::check(&path).map_err(|foreign| foreign.into_open_error(&path))?;
    // … and again under the lock, because the previous owner may have created or upgraded it meanwhile.
    let identity = identify(&path)?;
    accept(&path, &identity)?;
    if !path.exists() {
        // Files that SQLite creates next to it get the same mode.
        owner_only().write(true).create_new(true).open(&path).map_err(|error| OpenError::io(&path, error))?;
    }
    let mut connection = writer(&path, options).map_err(failed)?;
    // Emptied before anything is appended to it: see `reopen.rs`.
    reopen::empty_wal(&connection).map_err(|fault| OpenError::fault(&path, fault))?;
    let is_new = match identity {
        Identity::Empty => schema::create(&mut connection).map(|()| true).map_err(failed)?,
        Identity::Windlass(version) if version < schema::VERSION => {
            schema::migrate(&mut connection, version).map(|()| true).map_err(failed)?
        }
        Identity::Windlass(_) | Identity::Foreign(_) => false,
    };
    if is_new {
        // The first stamp must be in the file itself before a log can contain it.
        reopen::empty_wal(&connection).map_err(|fault| OpenError::fault(&path, fault))?;
    }
    schema::check_own_row(&connection).map_err(failed)?;
    let clean = schema::is_clean(&connection).map_err(failed)?;
    if !clean {
        check::quick_check(&connection).map_err(|problem| OpenError::damaged(&path, problem))?;
    }
    // The first write to the log. Nothing is written to a file that is refused.
    wal_stamp::stamp(&connection, options.shared).map_err(failed)?;
    let (opening, secret) = schema::count_opening(&mut connection).map_err(failed)?;
    Ok(OpenedFile { lock, connection, db_file: DbFile::of(path, options), opening, secret, clean })
}

/// The path with symbolic links resolved. For a file that does not exist yet, those of its directory.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, OpenError> {
    if let Ok(found) = path.canonicalize() {
        return Ok(found);
    }
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let Some(name) = path.file_name() else {
        return Err(OpenError::NotWindlass { path: path.to_owned(), found: "the path names no file".to_owned() });
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
    let identity = observer(path).and_then(|connection| schema::identify(&connection));
    identity.map_err(|error| OpenError::sql(path, error))
}

fn accept(path: &Path, identity: &Identity) -> Result<(), OpenError> {
    match *identity {
        Identity::Foreign(found) => Err(OpenError::NotWindlass { path: path.to_owned(), found: found.to_owned() }),
        Identity::Windlass(found) if found > schema::VERSION => {
            Err(OpenError::Newer { path: path.to_owned(), found, supported: schema::VERSION })
        }
        Identity::Windlass(_) | Identity::Empty => Ok(()),
    }
}

/// Opens the writer's connection.
pub(super) fn writer(path: &Path, options: &Options) -> rusqlite::Result<Connection> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, exclusive_vfs(options.shared))?;
    // Lets the file shrink in small steps. Works only in an empty file; in any other it would be a write, before it is
    // known whether the file may be written.
    if connection.pragma_query_value(None, "page_count", |row| row.get::<_, i64>(0))? == 0 {
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    }
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        let why = "the file system does not support shared memory (is it a network drive?); use a local disk";
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
    // Overwrites deleted content in pages that are written anyway, so that purging a run leaves nothing of it in pages
    // that other runs share.
    connection.pragma_update(None, "secure_delete", "FAST")?;
    connection.pragma_update(None, "journal_size_limit", WAL_BYTES_KEPT)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    Ok(connection)
}

/// Opens a read-only connection for the file's owner. The file itself is opened for writing: closing a file that was
/// opened for reading only would release the owner's locks.
pub(super) fn reader(path: &Path, shared: bool) -> rusqlite::Result<Connection> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, exclusive_vfs(shared))?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// Opens a read-only connection for a process that does not own the file.
pub(super) fn observer(path: &Path) -> rusqlite::Result<Connection> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, None)?;
    connection.busy_timeout(OBSERVER_WAIT)?;
    Ok(connection)
}

/// SQLite's VFS that locks a file for one process and keeps its locks in memory. All connections of the process must
/// use it.
fn exclusive_vfs(shared: bool) -> Option<&'static CStr> {
    (cfg!(unix) && !shared).then_some(c"unix-excl")
}

/// Never creates the file: a deleted file must not come back empty.
fn connect(path: &Path, flags: OpenFlags, exclusive_vfs: Option<&CStr>) -> rusqlite::Result<Connection> {
    // Each connection is used by one thread at a time, so SQLite needs no mutex.
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = match exclusive_vfs {
        Some(exclusive_vfs) => Connection::open_with_flags_and_vfs(path, flags, exclusive_vfs)?,
        None => Connection::open_with_flags(path, flags)?,
    };
    connection.busy_timeout(BUSY_WAIT)?;
    schema::add_functions(&connection)?;
    // Otherwise a statement with a bound LIMIT is planned again each time it is used.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // The default holds 16; the writer alone uses more than that.
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}
