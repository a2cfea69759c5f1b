//! Whether the file can be written: one state with two transitions. Both update the queue, which refuses or accepts
//! jobs accordingly and wakes the writer's thread; that thread tries to reopen a file that failed. So it does not
//! matter which thread met the fault.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::hooks::Wal;
use windlass_core::troubles::Troubles;

use super::db_file::{DbFile, FileId};
use super::fault::Fault;
use super::file_watch::FileWatch;
use super::reopen::Outage;
use super::write_queue::WriteQueue;

/// The time since the first call, for rate limiting of log messages.
pub(super) fn now() -> Duration {
    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    FIRST.elapsed()
}

pub(super) struct WriteConnection {
    pub(super) sqlite: Connection,
    /// The pages in the write-ahead log after the last commit.
    pub(super) pages: Arc<AtomicI32>,
    /// The id of the write-ahead log.
    pub(super) wal: FileId,
    watch: FileWatch,
}

impl WriteConnection {
    pub(super) fn new(mut connection: Connection, db_file: &DbFile) -> rusqlite::Result<Self> {
        let pages = Arc::new(AtomicI32::new(0));
        let counter = pages.clone();
        // Replaces SQLite's automatic checkpoints, which would run before the answers of a group are sent.
        connection.wal_hook(Some(move |_: &mut Wal, pages| {
            counter.store(pages, Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(Self { sqlite: connection, pages, wal: db_file.wal_id(), watch: FileWatch::of(db_file) })
    }

    /// Checks that the file and its write-ahead log are those that were opened.
    pub(super) fn check(&mut self, db_file: &DbFile) -> Result<(), Fault> {
        if self.watch.needs_check() { db_file.check_with_wal(self.wal) } else { Ok(()) }
    }

    /// Runs a fixed statement, which is parsed once.
    pub(super) fn run(&self, statement: &str) -> rusqlite::Result<()> {
        self.sqlite.prepare_cached(statement)?.execute([]).map(drop)
    }
}

pub(super) struct WriteAccess {
    state: Result<WriteConnection, Outage>,
    queue: Arc<WriteQueue>,
    path: PathBuf,
    troubles: Troubles,
    /// When the file started to fail.
    since: Option<Instant>,
}

impl WriteAccess {
    pub(super) fn new(conn: WriteConnection, queue: Arc<WriteQueue>, path: PathBuf) -> Self {
        Self { state: Ok(conn), queue, path, troubles: Troubles::new(), since: None }
    }

    pub(super) fn is_open(&self) -> bool {
        self.state.is_ok()
    }

    pub(super) fn conn(&self) -> Option<&WriteConnection> {
        self.state.as_ref().ok()
    }

    pub(super) fn conn_mut(&mut self) -> Result<&mut WriteConnection, Fault> {
        self.state.as_mut().map_err(|outage| outage.fault.clone())
    }

    /// The current outage, if the file cannot be written.
    pub(super) fn outage(&self) -> Option<&Outage> {
        self.state.as_ref().err()
    }

    pub(super) fn outage_mut(&mut self) -> Option<&mut Outage> {
        self.state.as_mut().err()
    }

    /// Records a fault. The connection is closed, unless it is the last reference to the file.
    pub(super) fn set_failed(&mut self, fault: Fault) {
        let sentence = fault.sentence(&self.path);
        if let Some(untold) = self.troubles.met(&fault.cause(), now()) {
            tracing::error!(untold, "{sentence}");
        }
        self.since.get_or_insert_with(Instant::now);
        self.state = match std::mem::replace(&mut self.state, Err(Outage::new(fault.clone()))) {
            Ok(conn) => Err(Outage::of(fault, conn)),
            Err(outage) => Err(Outage { fault, ..outage }),
        };
        self.queue.refuse(Some(sentence));
    }

    /// Records that the file works again.
    pub(super) fn set_open(&mut self, conn: WriteConnection) {
        self.state = Ok(conn);
        let seconds = self.since.take().map_or(0, |since| since.elapsed().as_secs());
        if let Some(untold) = self.troubles.all_over() {
            // At the level of warnings, so that it is shown where the failure was.
            tracing::warn!(seconds, untold, path = %self.path.display(), "the file is open again and accepts commits");
        }
        self.queue.refuse(None);
    }
}
