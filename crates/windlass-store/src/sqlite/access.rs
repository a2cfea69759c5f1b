//! Whether the file can be written: one state, with two ways to change it. Both say so to those who submit, and wake the
//! writer's thread, which tries a file that failed until it works again. So it does not matter which thread meets a fault.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::hooks::Wal;
use windlass_core::troubles::Troubles;

use super::fault::Fault;
use super::place::{FileId, Place};
use super::queue::Queue;
use super::reopen::Outage;
use super::sentry::Sentry;

/// The time since this process first asked, for what is told of troubles.
pub(super) fn now() -> Duration {
    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    FIRST.elapsed()
}

pub(super) struct Link {
    pub(super) connection: Connection,
    /// How long the write-ahead log is, as of the last commit.
    pub(super) pages: Arc<AtomicI32>,
    /// Which file the log is.
    pub(super) log: FileId,
    sentry: Sentry,
}

impl Link {
    pub(super) fn new(mut connection: Connection, place: &Place) -> rusqlite::Result<Self> {
        let pages = Arc::new(AtomicI32::new(0));
        let counter = pages.clone();
        // Takes the place of SQLite's own checkpoints, which would come before the answers of a group, not after.
        connection.wal_hook(Some(move |_: &mut Wal, pages| {
            counter.store(pages, Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(Self { connection, pages, log: place.log_id(), sentry: Sentry::of(place) })
    }

    /// Whether the file and its log are those that were opened.
    pub(super) fn check(&mut self, place: &Place) -> Result<(), Fault> {
        if self.sentry.suspects() { place.check_both(self.log) } else { Ok(()) }
    }

    /// Runs a statement that is the same every time, without reading it anew.
    pub(super) fn run(&self, statement: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(statement)?.execute([]).map(drop)
    }
}

pub(super) struct Access {
    state: Result<Link, Outage>,
    queue: Arc<Queue>,
    path: PathBuf,
    troubles: Troubles,
    /// When the file began to fail.
    since: Option<Instant>,
}

impl Access {
    pub(super) fn new(link: Link, queue: Arc<Queue>, path: PathBuf) -> Self {
        Self { state: Ok(link), queue, path, troubles: Troubles::new(), since: None }
    }

    pub(super) fn is_open(&self) -> bool {
        self.state.is_ok()
    }

    pub(super) fn link(&self) -> Option<&Link> {
        self.state.as_ref().ok()
    }

    pub(super) fn link_mut(&mut self) -> Result<&mut Link, Fault> {
        self.state.as_mut().map_err(|outage| outage.fault.clone())
    }

    /// What keeps the file from being written, while that is so.
    pub(super) fn outage(&self) -> Option<&Outage> {
        self.state.as_ref().err()
    }

    pub(super) fn outage_mut(&mut self) -> Option<&mut Outage> {
        self.state.as_mut().err()
    }

    /// The file fails, for the first time or still. The connection is given up, unless it is the last thing that leads to
    /// the file.
    pub(super) fn lost(&mut self, fault: Fault) {
        let sentence = fault.sentence(&self.path);
        if let Some(untold) = self.troubles.met(&fault.cause(), now()) {
            tracing::error!(untold, "{sentence}");
        }
        self.since.get_or_insert_with(Instant::now);
        self.state = match std::mem::replace(&mut self.state, Err(Outage::new(fault.clone()))) {
            Ok(link) => Err(Outage::of(fault, link)),
            Err(outage) => Err(Outage { fault, ..outage }),
        };
        self.queue.refuse(Some(sentence));
    }

    /// The file works again.
    pub(super) fn regained(&mut self, link: Link) {
        self.state = Ok(link);
        let seconds = self.since.take().map_or(0, |since| since.elapsed().as_secs());
        if let Some(untold) = self.troubles.all_over() {
            // As loud as what it takes back.
            tracing::warn!(seconds, untold, path = %self.path.display(), "the file is open again, and takes commits");
        }
        self.queue.refuse(None);
    }
}
