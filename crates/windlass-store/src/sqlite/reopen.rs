//! Recovery from a failure without a restart.
//!
//! **Pages are not trusted after a failed sync.** A group whose sync failed may still be complete in the page cache:
//! the next process to open the file finds its frames in the write-ahead log, with valid checksums, and treats them as
//! committed. But the kernel has given up writing them and reports that only once; the next sync succeeds without them.
//! A commit appended after them would be acknowledged, and after a power failure it would be behind a hole, where it is
//! never read. So before anything new is accepted, the file is reopened and a checkpoint that empties the log must
//! succeed: it writes every page of the log into the database, syncs the database, and restarts the log. Until then the
//! store stays unavailable. A log that exists when the file is opened is handled the same way, because its owner may
//! have died after a failed sync.

use std::time::Duration;

use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use super::db_file::DbFile;
use super::fault::Fault;
use super::open::{self, Options};
use super::schema;
use super::wal_stamp;
use super::write_access::WriteConnection;

/// How often a failed file is tried again: soon enough for waiting callers, rarely enough to cost nothing.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How long to wait for active readers. If they take longer, the next attempt waits again.
const READER_WAIT: Duration = Duration::from_millis(100);

/// The state between a failure and a successful reopen.
pub(super) struct Outage {
    pub(super) fault: Fault,
    /// The connection to a file or write-ahead log that was moved or deleted. Closing it would lose the file.
    pub(super) kept_connection: Option<WriteConnection>,
}

impl Outage {
    pub(super) fn new(fault: Fault) -> Self {
        Self { fault, kept_connection: None }
    }

    /// Closes the connection, unless it is the last reference to the file.
    pub(super) fn of(fault: Fault, conn: WriteConnection) -> Self {
        let kept_connection = fault.keeps_connection().then_some(conn);
        Self { fault, kept_connection }
    }

    /// Reopens the file. It counts as open only after a successful write.
    pub(super) fn reopen(&mut self, db_file: &DbFile, options: &Options) -> Result<WriteConnection, Fault> {
        // Copies the log into the file wherever the file is now, so that the file is complete and a replacement at its
        // path does not inherit its log.
        let emptied = self.kept_connection.as_ref().map_or(Ok(()), |conn| empty_wal(&conn.sqlite));
        db_file.check()?;
        emptied?;
        self.kept_connection = None;
        // On a full disk other operations fail too, with less specific errors.
        if self.fault.may_be_full_disk() && !db_file.has_room() {
            return Err(Fault::Full);
        }
        wal_stamp::check(&db_file.path).map_err(wal_stamp::ForeignWal::into_fault)?;
        let fault = |error: rusqlite::Error| Fault::of(&error);
        let connection = open::writer(&db_file.path, options).map_err(fault)?;
        db_file.check()?;
        empty_wal(&connection)?;
        wal_stamp::stamp(&connection, options.shared).map_err(fault)?;
        schema::touch(&connection).map_err(fault)?;
        WriteConnection::new(connection, db_file).map_err(fault)
    }
}

/// Copies the whole write-ahead log into the database, syncs it, and empties the log.
pub(super) fn empty_wal(connection: &Connection) -> Result<(), Fault> {
    let emptied = connection
        .busy_timeout(READER_WAIT)
        .and_then(|()| connection.wal_checkpoint_v2(Some("main"), CheckpointMode::TRUNCATE))
        .and_then(|_| connection.busy_timeout(open::BUSY_WAIT));
    emptied.map_err(|error| Fault::of(&error))
}
