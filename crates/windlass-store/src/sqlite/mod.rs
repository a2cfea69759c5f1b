//! The SQLite store.
//!
//! ```text
//! commit ─ encode ─▶ queue ─▶ writer thread: decide, write, one sync ─▶ answers
//!               └─▶ or on the spot, if nobody else writes
//! due, info, journal, feed, mail, list ─▶ read-only connections
//! ```

mod access;
mod audit;
mod backup;
mod blobs;
mod check;
mod checkpoint;
mod damage;
mod decide;
mod desk;
mod fault;
mod job;
mod keys;
mod lineage;
mod list;
mod lock;
mod log;
mod migrate_notes;
mod network;
mod open;
mod outline;
mod pack;
mod place;
mod places;
mod purge;
mod queue;
mod read;
mod refusal;
mod reopen;
mod retention;
mod schema;
mod seal;
mod sentry;
mod sum;
mod table;
#[cfg(test)]
mod tests;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use futures_util::future::BoxFuture;
use windlass_core::run::record::Record;
use windlass_core::run::state::RunInfo;
use windlass_core::store::{
    Answer, Artifacts, Claimant, Claimed, Commit, Counts, Driving, Due, Entry, Filter, Guard, KeyPlace, Mail,
    Mailboxes, Promise, Queries, Store, StoreError, Tidied, Upkeep,
};
use windlass_core::time::Timestamp;
use windlass_core::{RunId, WorkerId};

use check::Check;
use damage::Noticed;
use desk::Desk;
use job::{Job, Write};
use lock::FileLock;
use log::Tails;
use queue::Queue;
use read::Readers;
use retention::Keeper;
use writer::{Others, Writer};

pub use audit::{Report, check_file};
pub use backup::BackupError;
pub use check::Health;
pub use lock::{Claim, Holder, claim, holder};
pub use open::{Durability, Options};
pub use refusal::{OpenError, forbidden};

/// Runs in one SQLite file, which one process owns while the store is open.
///
/// Beside the file `app.db` stand `app.db-wal`, which is part of it and must be kept with it, and `app.db-lock`, which names
/// the owner and may stay for ever. The file must be on a local disk. Other programs cannot read it meanwhile, unless
/// [`Options::shared`] says so; a backup can be read at any time.
///
/// What a record says is secret is sealed, with a key in `app.db-key`, which is made when the first secret comes. It is in
/// no backup. Without it everything works but the runs that have secrets: they are held, and their journals cannot be read
/// ([`StoreError::Sealed`]) until it is back.
///
/// All of these are made readable for whoever runs the process and nobody else.
///
/// Dropping the store writes and answers everything submitted before, then gives the file up.
pub struct SqliteStore {
    path: PathBuf,
    queue: Arc<Queue>,
    readers: Arc<Readers>,
    uploads: blobs::Uploads,
    opening: i64,
    secret: [u8; 32],
    keeper: Keeper,
    check: Check,
    desk: Arc<Desk>,
    /// Whether whoever commits may write by itself.
    here: bool,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// The writer's: it ends with that.
    lock: Weak<FileLock>,
}

impl SqliteStore {
    /// Opens the file, creating it if it is not there, with [`Durability::Full`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_with(path, Options::default())
    }

    /// Opens the file, creating it if it is not there.
    pub fn open_with(path: impl AsRef<Path>, options: impl Into<Options>) -> Result<Self, OpenError> {
        let options = options.into();
        let opened = open::open(path.as_ref(), &options)?;
        let (path, opening, secret) = (opened.place.path.clone(), opened.opening, opened.secret);
        let queue = Arc::new(Queue::new(queue::BOUNDS));
        blobs::tidy(&opened.connection, &queue, opening).map_err(|error| OpenError::failed(&path, error))?;
        let tails = Arc::new(Tails::default());
        let keeper = Keeper::new(options.retention, opening);
        let noticed = Arc::new(Noticed::default());
        let readers = Arc::new(Readers::new(opened.place.clone(), tails.clone(), noticed.clone()));
        let check =
            Check::start(&opened.place, opened.clean, noticed).map_err(|error| OpenError::failed(&path, error))?;
        let others = Others { readers: readers.clone(), tails, check: check.shared() };
        let lock = Arc::downgrade(&opened.lock);
        let writer =
            Writer::new(opened, options, queue.clone(), others).map_err(|error| OpenError::sql(&path, error))?;
        let (desk, here) = (Arc::new(Desk::new(writer, queue.clone())), options.here);
        let at_desk = desk.clone();
        let writer = thread::Builder::new()
            .name("windlass-sqlite".to_owned())
            .spawn(move || at_desk.serve())
            .map_err(|error| OpenError::failed(&path, error))?;
        let uploads = blobs::Uploads::default();
        let writer = Mutex::new(Some(writer));
        Ok(Self { path, queue, readers, uploads, opening, secret, keeper, check, desk, here, writer, lock })
    }

    /// Writes and answers everything submitted before, then gives the file up.
    fn end(&self) {
        self.queue.close();
        self.check.stop();
        // First, so that the writer's connection is the last one, whose end tidies the file.
        self.readers.close();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            // The last owner of the store may be a callback on the writer's own thread; that ends by itself.
            && writer.thread().id() != thread::current().id()
            && writer.join().is_err()
        {
            tracing::error!(path = %self.path.display(), "the writer of the store had panicked");
        }
    }

    /// Writes a commit on this thread if that may be, or hands it over.
    fn submit(&self, write: Write, promise: Promise<()>) -> Result<(), StoreError> {
        let may = self.here && matches!(write.guard, Guard::Owner { .. });
        let job = Job::Write(write.into(), promise);
        let left = if may { self.desk.write_here(job) } else { Some(job) };
        left.map_or(Ok(()), |job| self.queue.push(job))
    }

    /// Has the writer do a job that is answered with a value.
    async fn ask<T>(&self, job: impl FnOnce(Promise<T>) -> Job) -> Result<T, StoreError> {
        let (promise, ticket) = Promise::pair();
        self.queue.push(job(promise))?;
        ticket.await
    }

    /// How the store is: whether it takes commits, and whether its file is whole as far as is known.
    pub fn health(&self) -> Health {
        self.queue.refusal().map_or_else(|| self.check.found(&self.path), Health::Unavailable)
    }

    /// Checks the whole file while work goes on; see [`check_file`]. What it finds is what [`Self::health`] tells from then on,
    /// and if it finds nothing, damage that was noticed before is forgotten.
    pub fn check(&self, progress: impl FnMut(u64, u64)) -> Result<Report, OpenError> {
        let report = check_file(&self.path, progress)?;
        self.check.conclude(&report.problems);
        Ok(report)
    }

    /// Says beside the file where its owner answers, for whoever finds it in use; `None` takes that back. It ends with the
    /// store.
    pub fn announce(&self, address: Option<&str>) -> std::io::Result<()> {
        if address.is_some_and(|address| address.contains('\n')) {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "an address is one line"));
        }
        let closed = || std::io::Error::other("the store is closed");
        self.lock.upgrade().ok_or_else(closed)?.announce(address)
    }

    /// Where the keys are that secrets are sealed with, if there were any secrets yet.
    pub fn key_file(&self) -> Option<&Path> {
        Some(self.readers.keys().path()).filter(|path| path.exists())
    }

    /// Where the file is, its links followed.
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

    /// Dropping the future may leave the epoch raised, as if the claimant had died right after.
    fn claim(&self, run: RunId, by: Claimant) -> BoxFuture<'_, Result<Claimed, StoreError>> {
        Box::pin(async move {
            let taken = self.ask(|promise| Job::Claim(run, by, promise)).await?;
            // Read after the epoch was raised, when no earlier owner can add to it any more.
            let contents = self.readers.contents(run)?;
            Ok(Claimed {
                epoch: taken.epoch,
                generation: contents.generation,
                seq: contents.end,
                records: contents.records,
                mail: contents.mail,
                owners_dead: taken.owners_dead,
                orderly: taken.orderly,
                last: taken.last,
                turn: taken.turn,
                session: contents.session,
                parent: contents.parent,
                sealed: contents.sealed,
                damaged: contents.damaged.map(|damage| damage.place),
            })
        })
    }

    fn release(&self, run: RunId, epoch: u64) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.ask(move |promise| Job::Release(run, epoch, promise)))
    }

    fn renew(&self, worker: WorkerId, until: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.ask(move |promise| Job::Renew(worker, until, promise)))
    }

    fn due(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Due, StoreError>> {
        Box::pin(async move { self.readers.due(now, limit, self.opening) })
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
        Box::pin(async move { self.readers.told(run, &dedupe) })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts, StoreError>> {
        Box::pin(async move { self.readers.counts() })
    }
}

impl Upkeep for SqliteStore {
    fn tidy(&self, now: Timestamp) -> BoxFuture<'_, Result<Tidied, StoreError>> {
        Box::pin(async move {
            let found = self.readers.glance(None, |connection| self.keeper.look(connection, now))?;
            let done = match found.chores.is_empty() {
                true => Tidied::default(),
                false => self.ask(|promise| Job::Tidy(found.chores, promise)).await?,
            };
            Ok(self.keeper.after(found.next, done))
        })
    }

    fn purge(&self, run: RunId, now: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            // A long journal goes in slices, so that no commit waits for all of it.
            while self.ask(|promise| Job::Purge(run, now, promise)).await?.more {}
            Ok(())
        })
    }

    /// Waits, blocking its thread, for what is queued and for one checkpoint.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.end() })
    }
}

impl Store for SqliteStore {
    fn artifacts(&self) -> &dyn Artifacts {
        self
    }

    fn secret(&self) -> [u8; 32] {
        self.secret
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
