//! The SQLite store.
//!
//! ```text
//! commit ─ encode ─▶ queue ─▶ writer thread: decide, write, one sync ─▶ answers
//!               └─▶ or inline on the caller's thread, if the writer is idle
//! due, info, journal, feed, mail, list ─▶ read-only connections
//! ```

mod audit;
mod backup;
mod blobs;
mod check;
mod checkpoint;
mod checksum;
mod connections;
mod damage;
mod db_file;
mod decide;
mod fault;
mod file_watch;
mod job;
mod key_places;
mod large_values;
mod list;
mod lock;
mod log;
mod missing_run_rows;
mod network;
mod open;
mod open_error;
mod pack;
mod purge;
mod read;
mod reopen;
mod retention;
mod schema;
mod seal;
mod sealing_keys;
mod sessions;
mod shared_writer;
#[cfg(test)]
mod tests;
mod wal_stamp;
mod write_access;
mod write_queue;
mod write_tx;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::future::BoxFuture;
use windlass_core::run::record::Record;
use windlass_core::run::state::RunInfo;
use windlass_core::store::LiveSessions;
use windlass_core::store::{
    Answer, Artifacts, Claimed, ClaimedDue, Commit, Connections, Counts, Driving, Due, Entry, Filter, Guard, KeyPlace,
    Mail, Mailboxes, Promise, Queries, Sessions, Store, StoreClock, StoreError, Tidied, Upkeep,
};
use windlass_core::time::{Clock, Timestamp};
use windlass_core::{RunId, WorkerId};

use check::BackgroundCheck;
use damage::KnownDamage;
use job::{ClaimOutcome, Claimant, Job, Write};
use lock::OwnerLock;
use log::JournalTails;
use read::Readers;
use retention::RetentionScan;
use shared_writer::SharedWriter;
use write_queue::WriteQueue;
use writer::{Writer, WriterDeps};

pub use audit::{CheckReport, check_file};
pub use backup::BackupError;
pub use check::Health;
pub use lock::{FileLock, FileOwner, file_owner, lock_file};
pub use open::{Durability, Options};
pub use open_error::{OpenError, access_problem};

/// Runs in one SQLite file, which one process owns while the store is open.
///
/// Next to `app.db` are `app.db-wal`, which is part of the database and must be kept with it, and `app.db-lock`, which
/// names the owner and is never deleted. The file must be on a local disk. Other programs cannot read it while it is
/// open, unless [`Options::shared`] is set; a backup can be read at any time.
///
/// Values that a record marks as secret are sealed with a key in `app.db-key`, which is created with the first secret
/// and is not part of any backup. Without the key, runs that have secrets are held and their journals cannot be read
/// ([`StoreError::Sealed`]) until the key is back; everything else works.
///
/// All of these files are created readable and writable only by the user who runs the process.
///
/// Dropping the store writes and answers everything that was submitted before, then releases the file.
// Many fields: the threads and caches of one file, each created once.
pub struct SqliteStore {
    path: PathBuf,
    queue: Arc<WriteQueue>,
    readers: Arc<Readers>,
    live: Arc<LiveSessions>,
    uploads: blobs::Uploads,
    opening: i64,
    clock: StoreClock,
    secret: [u8; 32],
    retention: RetentionScan,
    check: BackgroundCheck,
    shared_writer: Arc<SharedWriter>,
    /// Whether a commit may be written on the thread that submits it; see [`Options::inline_writes`].
    inline_writes: bool,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// Owned by the writer, and released with it.
    lock: Weak<OwnerLock>,
}

impl SqliteStore {
    /// Opens the file with [`Durability::Full`], creating it if it does not exist.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_with(path, Options::default())
    }

    /// Opens the file, creating it if it does not exist.
    pub fn open_with(path: impl AsRef<Path>, options: impl Into<Options>) -> Result<Self, OpenError> {
        let options = options.into();
        let opened = open::open(path.as_ref(), &options)?;
        let (path, opening, secret) = (opened.db_file.path.clone(), opened.opening, opened.secret);
        let queue = Arc::new(WriteQueue::new(write_queue::LIMITS));
        blobs::schedule_orphan_cleanup(&opened.connection, &queue, opening)
            .map_err(|error| OpenError::failed(&path, error))?;
        let tails = Arc::new(JournalTails::default());
        let retention = RetentionScan::new(options.retention, opening);
        let known_damage = Arc::new(KnownDamage::default());
        let readers = Arc::new(Readers::new(opened.db_file.clone(), tails.clone(), known_damage.clone()));
        let check = BackgroundCheck::start(&opened.db_file, opened.clean, known_damage)
            .map_err(|error| OpenError::failed(&path, error))?;
        let live = Arc::new(LiveSessions::default());
        let deps = WriterDeps { readers: readers.clone(), tails, check: check.state(), live: live.clone() };
        let lock = Arc::downgrade(&opened.lock);
        let writer = Writer::new(opened, options, queue.clone(), deps).map_err(|error| OpenError::sql(&path, error))?;
        let (shared_writer, inline_writes) =
            (Arc::new(SharedWriter::new(writer, queue.clone())), options.inline_writes);
        let worker = shared_writer.clone();
        let writer = thread::Builder::new()
            .name("windlass-sqlite".to_owned())
            .spawn(move || worker.run())
            .map_err(|error| OpenError::failed(&path, error))?;
        let uploads = blobs::Uploads::default();
        let writer = Mutex::new(Some(writer));
        let clock = StoreClock::default();
        Ok(Self {
            path,
            queue,
            readers,
            live,
            uploads,
            opening,
            clock,
            secret,
            retention,
            check,
            shared_writer,
            inline_writes,
            writer,
            lock,
        })
    }

    /// Writes and answers everything that was submitted before, then releases the file.
    fn end(&self) {
        self.queue.close();
        self.check.stop();
        // Before the writer's connection is closed: SQLite deletes the write-ahead log when the last connection closes.
        self.readers.close();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            // A callback on the writer's own thread may drop the last reference to the store. That thread ends by
            // itself.
            && writer.thread().id() != thread::current().id()
            && writer.join().is_err()
        {
            tracing::error!(path = %self.path.display(), "the writer thread of the store panicked");
        }
    }

    /// Writes a commit inline on this thread if possible, and queues it otherwise.
    fn submit(&self, write: Write, promise: Promise<()>) -> Result<(), StoreError> {
        let may = self.inline_writes && matches!(write.guard, Guard::Owner { .. });
        let job = Job::Write(write.into(), promise);
        let left = if may { self.shared_writer.write_inline(job) } else { Some(job) };
        left.map_or(Ok(()), |job| self.queue.push(job))
    }

    /// Queues a job for the writer and waits for its result.
    async fn ask<T>(&self, job: impl FnOnce(Promise<T>) -> Job) -> Result<T, StoreError> {
        let (promise, ticket) = Promise::pair();
        self.queue.push(job(promise))?;
        ticket.await
    }

    /// The contents of a claimed run. Read after the epoch was raised, when no earlier owner can append any more.
    fn claimed(&self, run: RunId, taken: ClaimOutcome) -> Result<Claimed, StoreError> {
        let contents = self.readers.contents(run)?;
        Ok(Claimed {
            epoch: taken.epoch,
            generation: contents.generation,
            seq: contents.end,
            records: contents.records,
            mail: contents.mail,
            mailed: contents.mailed,
            owners_dead: taken.owners_dead,
            was_running: taken.was_running,
            places: Vec::new(),
            orderly: taken.orderly,
            last: taken.last,
            turn: taken.turn,
            session: contents.session,
            principal: contents.principal,
            cause: contents.cause,
            parent: contents.parent,
            sealed: contents.sealed,
            damaged: contents.damaged.map(|damage| damage.location),
        })
    }

    /// The state of the store: whether it accepts commits, and whether its file is known to be damaged.
    pub fn health(&self) -> Health {
        self.queue.refusal().map_or_else(|| self.check.health(&self.path), Health::Unavailable)
    }

    /// Checks the whole file while the store is in use; see [`check_file`]. From then on [`Self::health`] reports the
    /// result. If the check finds no problem, damage that was recorded before is forgotten.
    pub fn check(&self, progress: impl FnMut(u64, u64)) -> Result<CheckReport, OpenError> {
        let report = check_file(&self.path, progress)?;
        self.check.set_result(&report.problems);
        Ok(report)
    }

    /// Writes the address of this process into the lock file, for processes that find the database in use. `None`
    /// removes it. It is removed when the store closes.
    pub fn announce(&self, address: Option<&str>) -> std::io::Result<()> {
        if address.is_some_and(|address| address.contains('\n')) {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "the address contains a line break"));
        }
        let closed = || std::io::Error::other("the store is closed");
        self.lock.upgrade().ok_or_else(closed)?.announce(address)
    }

    /// The file with the keys that secrets are sealed with, if it exists. It is created with the first secret.
    pub fn key_file(&self) -> Option<&Path> {
        Some(self.readers.keys().path()).filter(|path| path.exists())
    }

    /// The path of the file, with symbolic links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Driving for SqliteStore {
    fn commit(&self, commit: Commit) -> Answer<()> {
        let (promise, ticket) = Promise::pair();
        match Write::encode(commit, self.readers.keys()).and_then(|write| self.submit(write, promise)) {
            Ok(()) => Answer::Wait(ticket),
            Err(error) => Answer::Ready(Err(error)),
        }
    }

    /// Dropping the future may leave the epoch raised, as if the claimant had died right after the claim.
    fn claim(&self, run: RunId, worker: WorkerId) -> BoxFuture<'_, Result<Claimed, StoreError>> {
        let by = Claimant { worker, now: self.clock.now() };
        Box::pin(async move {
            let taken = self.ask(|promise| Job::Claim(run, by, promise)).await?;
            self.claimed(run, taken)
        })
    }

    fn claim_due(&self, worker: WorkerId, limit: usize) -> BoxFuture<'_, Result<ClaimedDue, StoreError>> {
        let by = Claimant { worker, now: self.clock.now() };
        Box::pin(async move {
            // Most calls find no due run. These need not wait for the writer.
            let due = self.readers.due(by.now, limit.min(1), self.opening)?;
            if due.runs.is_empty() {
                return Ok(ClaimedDue { runs: Vec::new(), next: due.next });
            }
            let found = self.ask(|promise| Job::ClaimDue(by, limit, promise)).await?;
            let claimed = |(run, taken): (RunId, Result<ClaimOutcome, _>)| {
                (run, taken.and_then(|taken| self.claimed(run, taken)))
            };
            let runs = found.into_iter().map(claimed).collect();
            Ok(ClaimedDue { runs, next: self.readers.next_wake(by.now).unwrap_or(due.next) })
        })
    }

    fn release(&self, run: RunId, epoch: u64) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.ask(move |promise| Job::Release(run, epoch, promise)))
    }

    fn renew(&self, worker: WorkerId, lease: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        let until = self.clock.now() + lease;
        Box::pin(self.ask(move |promise| Job::Renew(worker, until, promise)))
    }

    fn key_places(&self) -> BoxFuture<'_, Result<Vec<(RunId, KeyPlace)>, StoreError>> {
        Box::pin(async move { self.readers.key_places() })
    }

    fn mail_of_many(&self, runs: Vec<(RunId, u64)>) -> BoxFuture<'_, Result<Mailboxes, StoreError>> {
        Box::pin(async move { self.readers.mail_of_many(&runs) })
    }

    fn mail(&self, run: RunId, after: u64) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>> {
        Box::pin(async move { self.readers.mail(run, after) })
    }
}

impl Queries for SqliteStore {
    fn due(&self, limit: usize) -> BoxFuture<'_, Result<Due, StoreError>> {
        Box::pin(async move { self.readers.due(self.clock.now(), limit, self.opening) })
    }

    fn info(&self, run: RunId) -> BoxFuture<'_, Result<Option<RunInfo>, StoreError>> {
        Box::pin(async move { self.readers.info(run) })
    }

    fn journal(&self, run: RunId, from: u64) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        Box::pin(async move { self.readers.journal(run, from) })
    }

    fn page(&self, run: RunId, from: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        Box::pin(async move { self.readers.page(run, from, limit) })
    }

    fn feed(&self, session: Arc<str>, after: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Entry>, StoreError>> {
        Box::pin(async move { self.readers.feed(&session, after, limit) })
    }

    fn list(
        &self,
        filter: Filter,
        after: Option<RunId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<RunInfo>, StoreError>> {
        Box::pin(async move { self.readers.list(&filter, after, limit) })
    }

    fn latest(
        &self,
        filter: Filter,
        before: Option<RunId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<RunInfo>, StoreError>> {
        Box::pin(async move { self.readers.latest(&filter, before, limit) })
    }

    fn keyed(&self, key: Arc<str>) -> BoxFuture<'_, Result<Option<RunId>, StoreError>> {
        Box::pin(async move { self.readers.keyed(&key) })
    }

    fn told(&self, run: RunId, dedupe: Arc<str>) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move { self.readers.has_message(run, &dedupe) })
    }

    fn unfinished(&self, limit: u64) -> BoxFuture<'_, Result<Counts, StoreError>> {
        Box::pin(async move { self.readers.unfinished(limit) })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts, StoreError>> {
        Box::pin(async move { self.readers.counts() })
    }
}

impl Upkeep for SqliteStore {
    fn tidy(&self, now: Timestamp) -> BoxFuture<'_, Result<Tidied, StoreError>> {
        Box::pin(async move {
            let found = self.readers.with_reader(None, |connection| self.retention.next_slice(connection, now))?;
            let done = match found.work.is_empty() {
                true => Tidied::default(),
                false => self.ask(|promise| Job::Tidy(found.work, promise)).await?,
            };
            Ok(self.retention.finish_slice(found.next, done))
        })
    }

    fn purge(&self, run: RunId, now: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            // A long journal is removed in slices, so that commits do not wait for all of it.
            while self.ask(|promise| Job::Purge(run, now, promise)).await?.more {}
            Ok(())
        })
    }

    /// Blocks its thread until the queue is empty and one checkpoint is done.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.end() })
    }
}

impl Store for SqliteStore {
    fn artifacts(&self) -> &dyn Artifacts {
        self
    }

    fn sessions(&self) -> &dyn Sessions {
        self
    }

    fn connections(&self) -> &dyn Connections {
        self
    }

    fn secret(&self) -> [u8; 32] {
        self.secret
    }

    fn use_clock(&self, clock: Arc<dyn Clock>) {
        self.clock.set(clock);
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}
