//! The one thread that writes. It takes everything that waits, writes it in one transaction with one sync, and answers
//! each job; what comes in meanwhile is the next group. So the disk's latency is paid once a group, not once a commit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use rusqlite::hooks::Wal;
use rusqlite::wal::CheckpointMode;
use windlass_core::RunId;
use windlass_core::store::{Promise, StoreError, Tidied};

use super::job::{Job, Phase, Taken};
use super::lock::FileLock;
use super::log::{End, Tails};
use super::open::{self, Opened, Options};
use super::pack;
use super::queue::Queue;
use super::table::{Heads, Table, Trouble};

/// Pages in the write-ahead log after which they are moved into the database: 8 MiB. Rarely enough to cost little, often
/// enough that a restart has little to read through.
const CHECKPOINT_PAGES: i32 = 2_048;

/// Unfinished runs the writer remembers. Beyond that it starts afresh and asks the file, a few microseconds a run.
const HEADS: usize = 65_536;

pub(super) struct Writer {
    queue: Arc<Queue>,
    path: PathBuf,
    options: Options,
    opening: i64,
    /// Nothing after a failure, until the file could be opened again.
    link: Option<Link>,
    heads: Heads,
    end: End,
    tails: Arc<Tails>,
    resting: Vec<RunId>,
    /// Prepares what is packed next.
    packer: Option<JoinHandle<()>>,
    /// Released last: whoever takes it next finds the connection closed.
    _lock: FileLock,
}

struct Link {
    connection: Connection,
    /// How long the write-ahead log is, as of the last commit.
    pages: Arc<AtomicI32>,
}

impl Link {
    fn new(mut connection: Connection) -> rusqlite::Result<Self> {
        let pages = Arc::new(AtomicI32::new(0));
        let counter = pages.clone();
        // Takes the place of SQLite's own checkpoints, which would come before the answers of a group, not after.
        connection.wal_hook(Some(move |_: &mut Wal, pages| {
            counter.store(pages, Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(Self { connection, pages })
    }
}

/// An answer that is held back until the group is on disk.
enum Reply {
    Unit(Promise<()>, Result<(), StoreError>),
    Taken(Promise<Taken>, Result<Taken, StoreError>),
    Tidied(Promise<Tidied>, Result<Tidied, StoreError>),
}

impl Reply {
    /// Answers, with the group's failure if it failed: even a refusal may rest on what was not written.
    fn give(self, failed: Option<&StoreError>) {
        // Callbacks of strangers run here. One that panics must not take the writer with it.
        let outcome = catch_unwind(AssertUnwindSafe(|| match (self, failed) {
            (Self::Unit(promise, result), None) => promise.answer(result),
            (Self::Taken(promise, result), None) => promise.answer(result),
            (Self::Tidied(promise, result), None) => promise.answer(result),
            (Self::Unit(promise, _), Some(error)) => promise.answer(Err(error.clone())),
            (Self::Taken(promise, _), Some(error)) => promise.answer(Err(error.clone())),
            (Self::Tidied(promise, _), Some(error)) => promise.answer(Err(error.clone())),
        }));
        if outcome.is_err() {
            tracing::error!("a callback that waited for a commit panicked");
        }
    }
}

/// Closes the queue however the writer ends, so that nobody waits for a thread that is gone.
struct Abandon(Arc<Queue>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl Writer {
    pub(super) fn new(
        opened: Opened,
        options: Options,
        queue: Arc<Queue>,
        tails: Arc<Tails>,
    ) -> rusqlite::Result<Self> {
        let Opened { lock, connection, path, opening, .. } = opened;
        let end = tails.rebuild(&connection)?;
        let link = Some(Link::new(connection)?);
        let (heads, resting, packer) = (Heads::default(), Vec::new(), None);
        Ok(Self { queue, path, options, opening, link, heads, end, tails, resting, packer, _lock: lock })
    }

    /// Works until the queue is closed and empty.
    pub(super) fn run(mut self) {
        let _abandon = Abandon(self.queue.clone());
        self.queue.serve();
        let mut jobs = Vec::new();
        while self.queue.take(&mut jobs) {
            self.group(&mut jobs);
            if self.link.as_ref().is_some_and(|link| link.pages.load(Ordering::Relaxed) >= CHECKPOINT_PAGES) {
                self.checkpoint(CheckpointMode::PASSIVE);
            }
            self.pack();
        }
        if let Some(packer) = self.packer.take() {
            // Its connection must not be the last one. What it prepared is refused, and prepared again another day.
            drop(packer.join());
        }
        self.checkpoint(CheckpointMode::TRUNCATE);
    }

    /// Has the oldest part of the log packed if the part that is not has become long.
    fn pack(&mut self) {
        let unpacked = i64::from(self.options.unpacked);
        let is_long = self.end.last - self.end.packed > unpacked;
        if !is_long || self.packer.as_ref().is_some_and(|packer| !packer.is_finished()) {
            return;
        }
        // Half of it, so that the rows of runs that go on now are not cut into small pieces.
        let (packed, upto) = (self.end.packed, self.end.packed + (unpacked / 2).max(1));
        let (path, queue) = (self.path.clone(), self.queue.clone());
        let prepare = move || match pack::prepare(&path, packed, upto) {
            Ok(packed) => {
                let (promise, packing) = Promise::pair();
                let (done, wait) = mpsc::channel::<()>();
                packing.then(move |_| drop(done));
                // Prepared again by a later group if the queue is full.
                drop(queue.push(Job::Pack(packed, promise)));
                let _ = wait.recv();
            }
            // Not a loss: the log is as good as it was, and the next group has it tried again.
            Err(error) => tracing::warn!(%error, path = %path.display(), "the log could not be packed"),
        };
        self.packer = thread::Builder::new().name("windlass-pack".to_owned()).spawn(prepare).ok();
    }

    pub(super) fn group(&mut self, jobs: &mut Vec<Job>) {
        let (replies, failed) = self.transact(jobs);
        if let Some(error) = &failed {
            tracing::error!(%error, jobs = replies.len(), "a group of commits failed");
            // Closing the connection rolls back. What was remembered may not be what the file says now.
            self.link = None;
            self.heads.clear();
            self.resting.clear();
        } else {
            self.tails.publish(&mut self.end.moved);
            self.tails.forget(self.end.packed);
            self.forget_heads();
        }
        for reply in replies {
            reply.give(failed.as_ref());
        }
    }

    fn forget_heads(&mut self) {
        for run in self.resting.drain(..) {
            if self.heads.get(&run).is_some_and(|head| matches!(head.phase, Phase::Finished | Phase::Suspended)) {
                self.heads.remove(&run);
            }
        }
        if self.heads.len() > HEADS {
            self.heads.clear();
        }
    }

    /// Does all jobs in one transaction. The answers count only if nothing failed.
    fn transact(&mut self, jobs: &mut Vec<Job>) -> (Vec<Reply>, Option<StoreError>) {
        let mut failed = self.begin().err();
        let mut replies = Vec::with_capacity(jobs.len());
        for job in jobs.drain(..) {
            replies.push(match job {
                Job::Write(write, promise) => Reply::Unit(promise, self.one(&mut failed, |table| table.write(&write))),
                Job::Claim(run, by, promise) => {
                    Reply::Taken(promise, self.one(&mut failed, |table| table.claim(run, by)))
                }
                Job::Renew(worker, until, promise) => {
                    Reply::Unit(promise, self.one(&mut failed, |table| table.renew(worker, until)))
                }
                Job::Release(run, epoch, promise) => {
                    Reply::Unit(promise, self.one(&mut failed, |table| table.release(run, epoch)))
                }
                Job::Tidy(chores, promise) => {
                    Reply::Tidied(promise, self.one(&mut failed, |table| table.tidy(&chores)))
                }
                Job::Purge(run, now, promise) => {
                    Reply::Tidied(promise, self.one(&mut failed, |table| table.purge(run, now)))
                }
                Job::Pack(packed, promise) => Reply::Unit(promise, self.one(&mut failed, |table| table.pack(&packed))),
            });
        }
        if failed.is_none()
            && let Some(link) = &self.link
            && let Err(error) = link.connection.execute_batch("COMMIT")
        {
            failed = Some(unknown(&error));
        }
        (replies, failed)
    }

    /// Opens the file again if need be, and a transaction.
    fn begin(&mut self) -> Result<(), StoreError> {
        let link = match self.link.take() {
            Some(link) => link,
            None => self.reopen().map_err(|error| {
                StoreError::Unavailable(format!("{} cannot be opened again: {error}", self.path.display()))
            })?,
        };
        let link = self.link.insert(link);
        link.connection.execute_batch("BEGIN IMMEDIATE").map_err(|error| unknown(&error))
    }

    fn reopen(&mut self) -> rusqlite::Result<Link> {
        let connection = open::writer(&self.path, &self.options)?;
        self.end = self.tails.rebuild(&connection)?;
        Link::new(connection)
    }

    fn one<T>(
        &mut self,
        failed: &mut Option<StoreError>,
        work: impl FnOnce(&mut Table<'_>) -> Result<T, Trouble>,
    ) -> Result<T, StoreError> {
        if let Some(error) = failed {
            return Err(error.clone());
        }
        let Some(link) = &self.link else { return Err(StoreError::Unavailable("it is closed".to_owned())) };
        let mut table = Table {
            connection: &link.connection,
            heads: &mut self.heads,
            end: &mut self.end,
            tails: &self.tails,
            resting: &mut self.resting,
            opening: self.opening,
        };
        work(&mut table).map_err(|trouble| match trouble {
            Trouble::Refused(error) => error,
            Trouble::Sql(error) => failed.insert(unknown(&error)).clone(),
        })
    }

    fn checkpoint(&self, mode: CheckpointMode) {
        let Some(link) = &self.link else { return };
        // Not a loss: what is not moved now is safe where it is, and is moved the next time.
        if let Err(error) = link.connection.wal_checkpoint_v2(Some("main"), mode) {
            tracing::warn!(%error, path = %self.path.display(), "a checkpoint failed");
        }
    }
}

fn unknown(error: &rusqlite::Error) -> StoreError {
    StoreError::Unknown(error.to_string())
}
