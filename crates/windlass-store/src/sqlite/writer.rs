//! Writing a group: everything that waits, in one transaction with one sync. What comes in meanwhile is the next group. So
//! the disk's latency is paid once a group, not once a commit. Who writes is decided at the desk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rusqlite::Connection;
use rusqlite::hooks::Wal;
use rusqlite::wal::CheckpointMode;
use windlass_core::RunId;
use windlass_core::store::{Promise, StoreError, Tidied};

use super::birth::Young;
use super::blobs;
use super::check::Shared;
use super::checkpoint::{Checkpoints, Next};
use super::fault::{Failure, Fault};
use super::job::{Job, Spent, Taken};
use super::lock::FileLock;
use super::log::{End, Tails};
use super::open::{Opened, Options};
use super::pack;
use super::place::{FileId, Place};
use super::queue::Queue;
use super::read::Readers;
use super::reopen::{Outage, PACE};
use super::schema;
use super::sentry::Sentry;
use super::table::{Heads, Sessions, Table, Trouble};

/// Unfinished runs the writer remembers. Beyond that it starts afresh and asks the file, a few microseconds a run.
const HEADS: usize = 65_536;

pub(super) struct Writer {
    queue: Arc<Queue>,
    others: Others,
    place: Place,
    options: Options,
    opening: i64,
    link: Result<Link, Outage>,
    /// When the file was last opened again, or was tried to be.
    tried: Option<Instant>,
    heads: Heads,
    end: End,
    resting: Vec<RunId>,
    young: Young,
    sessions: Sessions,
    /// Prepares what is packed next.
    packer: Option<JoinHandle<()>>,
    checkpoints: Checkpoints,
    /// Released last: whoever takes it next finds the connection closed.
    _lock: Arc<FileLock>,
}

/// What the writer shares with others that have the file open in this process.
pub(super) struct Others {
    pub(super) readers: Arc<Readers>,
    pub(super) tails: Arc<Tails>,
    pub(super) check: Arc<Shared>,
}

pub(super) struct Link {
    pub(super) connection: Connection,
    /// How long the write-ahead log is, as of the last commit.
    pages: Arc<AtomicI32>,
    /// Which file the log is.
    log: FileId,
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
    fn check(&mut self, place: &Place) -> Result<(), Fault> {
        if self.sentry.suspects() { place.check_both(self.log) } else { Ok(()) }
    }

    /// Runs a statement that is the same every time, without reading it anew.
    fn run(&self, statement: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(statement)?.execute([]).map(drop)
    }
}

/// An answer that is held back until the group is on disk.
enum Reply {
    Unit(Promise<()>, Result<(), StoreError>),
    Taken(Promise<Taken>, Result<Taken, StoreError>),
    Blob(Promise<blobs::Done>, Result<blobs::Done, StoreError>),
    Tidied(Promise<Tidied>, Result<Tidied, StoreError>),
}

impl Reply {
    /// Answers, with the group's failure if it failed: even a refusal may rest on what was not written.
    fn give(self, failed: Option<&StoreError>) {
        // Callbacks of strangers run here. One that panics must not take the writer with it.
        let outcome = catch_unwind(AssertUnwindSafe(|| match (self, failed) {
            (Self::Unit(promise, result), None) => promise.answer(result),
            (Self::Taken(promise, result), None) => promise.answer(result),
            (Self::Blob(promise, result), None) => promise.answer(result),
            (Self::Tidied(promise, result), None) => promise.answer(result),
            (Self::Unit(promise, _), Some(error)) => promise.answer(Err(error.clone())),
            (Self::Taken(promise, _), Some(error)) => promise.answer(Err(error.clone())),
            (Self::Blob(promise, _), Some(error)) => promise.answer(Err(error.clone())),
            (Self::Tidied(promise, _), Some(error)) => promise.answer(Err(error.clone())),
        }));
        if outcome.is_err() {
            tracing::error!("a callback that waited for a commit panicked");
        }
    }
}

/// The answers of a group, and why it failed if it did.
pub(super) struct Replies {
    replies: Vec<Reply>,
    failed: Option<StoreError>,
    pub(super) spent: Spent,
}

impl Replies {
    pub(super) fn give(self) {
        for reply in self.replies {
            reply.give(self.failed.as_ref());
        }
    }
}

impl Writer {
    pub(super) fn new(opened: Opened, options: Options, queue: Arc<Queue>, others: Others) -> rusqlite::Result<Self> {
        let Opened { lock, connection, place, opening, .. } = opened;
        let end = others.tails.rebuild(&connection)?;
        others.readers.nursery.begin(end.last);
        let link = Ok(Link::new(connection, &place)?);
        Ok(Self {
            queue,
            others,
            place,
            options,
            opening,
            link,
            tried: None,
            heads: Heads::default(),
            end,
            resting: Vec::new(),
            young: Young::default(),
            sessions: Sessions::default(),
            packer: None,
            checkpoints: Checkpoints::default(),
            _lock: lock,
        })
    }

    /// Opens the file again if it can be had again.
    pub(super) fn prepare(&mut self) {
        if self.link.is_err() && self.may_try() {
            self.try_again();
        }
    }

    /// How many pages are in the write-ahead log.
    #[cfg(test)]
    pub(super) fn log_pages(&self) -> Option<i32> {
        self.link.as_ref().ok().map(|link| link.pages.load(Ordering::Relaxed))
    }

    /// Forgets what it knows of runs that have a row.
    #[cfg(test)]
    pub(super) fn forget(&mut self) {
        self.heads.retain(|_, head| self.young.has(head.id));
    }

    /// Whether the file is open.
    pub(super) fn is_open(&self) -> bool {
        self.link.is_ok()
    }

    /// Whether the file is open and nothing is to be done but to write.
    pub(super) fn is_at_rest(&self) -> bool {
        let pages = self.link.as_ref().map(|link| link.pages.load(Ordering::Relaxed));
        pages.is_ok_and(|pages| self.checkpoints.is_at_rest(pages)) && !self.has_to_pack()
    }

    /// Says that a group was written. All that follows a group without taking time.
    pub(super) fn note(&self) {
        if let Ok(link) = &self.link {
            self.others.check.committed(link.pages.load(Ordering::Relaxed));
        }
    }

    /// Does what is to be done after a group, and may take a moment.
    pub(super) fn look_after(&mut self) {
        self.look_after_log();
        self.pack();
    }

    /// Writes the rows of runs that have none yet. Whether all of them have.
    pub(super) fn settle(&mut self) -> bool {
        self.write(&mut Vec::new()).give();
        self.is_open()
    }

    /// Closes in good order once everything is written.
    pub(super) fn finish(mut self) {
        self.settle();
        if let Next::Failed(fault) = self.checkpoints.end() {
            self.fail(fault);
        }
        if let Some(packer) = self.packer.take() {
            // Its connection must not be the last one. What it prepared is refused, and prepared again another day.
            drop(packer.join());
        }
        self.close();
    }

    fn look_after_log(&mut self) {
        let Ok(link) = &self.link else { return };
        let pages = link.pages.load(Ordering::Relaxed);
        self.note();
        match self.checkpoints.look(&self.place, &self.options, pages) {
            Next::Nothing => {}
            Next::Rest => self.checkpoint(CheckpointMode::PASSIVE),
            Next::Failed(fault) => {
                tracing::error!(error = fault.sentence(&self.place.path), "a checkpoint failed");
                self.fail(fault);
            }
        }
    }

    /// Whether the part of the log that is not packed has become long, and nobody is at it.
    fn has_to_pack(&self) -> bool {
        let is_long = self.end.last - self.end.packed > i64::from(self.options.unpacked);
        is_long && self.link.is_ok() && self.packer.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Has the oldest part of the log packed if it is time.
    fn pack(&mut self) {
        if !self.has_to_pack() {
            return;
        }
        // Whatever is packed is of a run that has a row.
        self.settle();
        let unpacked = i64::from(self.options.unpacked);
        // Half of it, so that the rows of runs that go on now are not cut into small pieces.
        let (packed, upto) = (self.end.packed, self.end.packed + (unpacked / 2).max(1));
        let (place, queue) = (self.place.clone(), self.queue.clone());
        let prepare = move || match pack::prepare(&place, packed, upto) {
            Ok(packed) => {
                let (promise, packing) = Promise::pair();
                let (done, wait) = mpsc::channel::<()>();
                packing.then(move |_| drop(done));
                // Prepared again by a later group if the queue is full.
                drop(queue.push(Job::Pack(packed, promise)));
                let _ = wait.recv();
            }
            // Not a loss: the log is as good as it was, and the next group has it tried again.
            Err(error) => tracing::warn!(%error, path = %place.path.display(), "the log could not be packed"),
        };
        self.packer = thread::Builder::new().name("windlass-pack".to_owned()).spawn(prepare).ok();
    }

    /// Writes a group, or the rows that are still to come if there is nothing else. Its answers are to be given, if there are
    /// any.
    pub(super) fn write(&mut self, jobs: &mut Vec<Job>) -> Replies {
        if jobs.is_empty() && self.young.is_empty() {
            return Replies { replies: Vec::new(), failed: None, spent: Vec::new() };
        }
        let was_open = self.link.is_ok();
        let (mut spent, packed) = (Vec::with_capacity(jobs.len()), self.end.packed);
        let (replies, failed) = self.transact(jobs, &mut spent);
        match &failed {
            Some(failure) if was_open => {
                tracing::error!(error = %failure.told, jobs = replies.len(), "a group of commits failed");
                self.fail(failure.fault.clone());
            }
            Some(_) => {}
            None => {
                self.others.tails.publish(&mut self.end.moved);
                if self.end.packed != packed {
                    self.others.tails.forget(self.end.packed);
                }
                self.others.readers.nursery.publish(&mut self.young, self.end.last);
                self.forget_heads();
            }
        }
        Replies { replies, failed: failed.map(|failure| failure.told), spent }
    }

    fn forget_heads(&mut self) {
        for run in self.resting.drain(..) {
            if self.heads.get(&run).is_some_and(|head| head.is_at_rest() && !self.young.has(head.id)) {
                self.heads.remove(&run);
            }
        }
        if self.heads.len() > HEADS {
            // A run without a row could not be asked for again.
            self.heads.retain(|_, head| self.young.has(head.id));
        }
    }

    /// Does all jobs in one transaction. The answers count only if nothing failed.
    fn transact(&mut self, jobs: &mut Vec<Job>, spent: &mut Spent) -> (Vec<Reply>, Option<Failure>) {
        // One statement is a transaction of its own.
        let single = self.is_single(jobs);
        let mut failed = self.begin(single).err();
        if jobs.is_empty() || self.young.are_many() {
            let all = jobs.is_empty() || self.young.are_too_many();
            // A failure fails the group.
            drop(self.one(&mut failed, |table| Ok(table.raise_many(all)?)));
        }
        let mut replies = Vec::with_capacity(jobs.len());
        for job in jobs.drain(..) {
            replies.push(match job {
                Job::Write(write, promise) => {
                    let written = self.one(&mut failed, |table| table.write(&write));
                    spent.push(write);
                    Reply::Unit(promise, written)
                }
                Job::Claim(run, by, promise) => {
                    Reply::Taken(promise, self.one(&mut failed, |table| table.claim(run, by)))
                }
                Job::Renew(worker, until, promise) => {
                    Reply::Unit(promise, self.one(&mut failed, |table| table.renew(worker, until)))
                }
                Job::Blob(step, promise) => {
                    let work = |table: &mut Table<'_>| blobs::work(table.connection, table.opening, &step);
                    Reply::Blob(promise, self.one(&mut failed, work))
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
            && !single
            && let Ok(link) = &self.link
            && let Err(error) = link.run("COMMIT")
        {
            failed = Some(Failure::unknown(&error, &self.place.path));
        }
        (replies, failed)
    }

    /// Whether all there is to do is to add one row to the log.
    fn is_single(&mut self, jobs: &[Job]) -> bool {
        match jobs {
            [Job::Write(write, _)] if !self.young.are_many() => {
                write.only_appends() || self.table().is_some_and(|table| table.takes_note(write))
            }
            _ => false,
        }
    }

    /// Opens a transaction, if the file is there. Until this has succeeded, nothing of the group is written. A single
    /// statement needs none.
    fn begin(&mut self, single: bool) -> Result<(), Failure> {
        let begun = match &mut self.link {
            Ok(link) => link.check(&self.place).and_then(|()| match single {
                true => Ok(()),
                false => link.run("BEGIN IMMEDIATE").map_err(|error| Fault::of(&error)),
            }),
            Err(outage) => Err(outage.fault.clone()),
        };
        begun.map_err(|fault| Failure::before(fault, &self.place.path))
    }

    fn one<T>(
        &mut self,
        failed: &mut Option<Failure>,
        work: impl FnOnce(&mut Table<'_>) -> Result<T, Trouble>,
    ) -> Result<T, StoreError> {
        if let Some(failure) = failed {
            return Err(failure.told.clone());
        }
        let Some(mut table) = self.table() else { return Err(StoreError::Unavailable("it is closed".to_owned())) };
        work(&mut table).map_err(|trouble| match trouble {
            Trouble::Refused(error) => error,
            Trouble::Sql(error) => failed.insert(Failure::unknown(&error, &self.place.path)).told.clone(),
        })
    }

    /// The file, if it is open, with what is known of it.
    fn table(&mut self) -> Option<Table<'_>> {
        Some(Table {
            connection: &self.link.as_ref().ok()?.connection,
            heads: &mut self.heads,
            end: &mut self.end,
            tails: &self.others.tails,
            resting: &mut self.resting,
            opening: self.opening,
            young: &mut self.young,
            bears: !self.options.shared,
            sessions: &mut self.sessions,
        })
    }

    fn checkpoint(&mut self, mode: CheckpointMode) {
        let Ok(link) = &self.link else { return };
        let moved = self
            .place
            .check_both(link.log)
            .and_then(|()| link.connection.wal_checkpoint_v2(Some("main"), mode).map_err(|error| Fault::of(&error)));
        match moved {
            // What somebody who reads is still looking at is moved the next time.
            Ok(_) | Err(Fault::Busy) => {}
            // What was answered is safe in the log; but a disk that did not take it once is not built on.
            Err(fault) => {
                tracing::error!(error = fault.sentence(&self.place.path), "a checkpoint failed");
                self.fail(fault);
            }
        }
    }

    /// Gives up the connection: closing it rolls back, and what was remembered may not be what the file says now. Goes
    /// on at once if that is possible, but not over and over.
    fn fail(&mut self, fault: Fault) {
        self.heads.clear();
        self.resting.clear();
        // Their rows are written when the file is opened again.
        self.young.clear();
        self.sessions.clear();
        let link = std::mem::replace(&mut self.link, Err(Outage::new(fault))).ok();
        if let (Err(outage), Some(link)) = (&mut self.link, link) {
            outage.give_up(link);
        }
        if self.may_try() {
            self.try_again();
        }
        self.tell();
    }

    /// A disk that fails again right after it was opened again gets a pause. What fails for a reason of its own does not
    /// keep the others waiting.
    fn may_try(&self) -> bool {
        let pause = self.link.as_ref().is_err_and(|outage| outage.fault.is_of_the_disk());
        !pause || self.tried.is_none_or(|tried| tried.elapsed() >= PACE)
    }

    /// Tries to go on after a failure.
    pub(super) fn try_again(&mut self) {
        let Err(outage) = &mut self.link else { return };
        self.tried = Some(Instant::now());
        // A check reads for minutes, and a log that somebody reads cannot be emptied.
        self.others.check.pause(true);
        let ended = outage.end(&self.place, &self.options).and_then(|link| {
            let end = self.others.tails.rebuild(&link.connection).map_err(|error| Fault::of(&error))?;
            Ok((link, end))
        });
        self.others.check.pause(false);
        match ended {
            Ok((link, end)) => {
                tracing::info!(path = %self.place.path.display(), "the file is open again");
                // They may be connected to files that are not there any more.
                self.others.readers.close();
                self.others.readers.nursery.begin(end.last);
                (self.link, self.end) = (Ok(link), end);
                self.checkpoints = Checkpoints::default();
            }
            Err(fault) => {
                if outage.fault != fault {
                    tracing::error!(error = fault.sentence(&self.place.path), "the file cannot be opened again");
                }
                outage.fault = fault;
            }
        }
        self.tell();
    }

    /// Tells whoever submits whether the file takes commits.
    fn tell(&self) {
        self.queue.refuse(self.link.as_ref().err().map(|outage| outage.fault.sentence(&self.place.path)));
    }

    /// Marks the file as closed in good order, as far as it lets us.
    fn close(&mut self) {
        self.try_again();
        let Ok(link) = &self.link else {
            tracing::error!(path = %self.place.path.display(), "closed while the file takes no commits");
            return;
        };
        let placed = self.place.check_both(link.log);
        let marked = placed.and_then(|()| match self.others.check.is_fine() {
            true => schema::mark_clean(&link.connection).map_err(|error| Fault::of(&error)),
            false => Ok(()),
        });
        match marked {
            Ok(()) => self.checkpoint(CheckpointMode::TRUNCATE),
            Err(fault) => tracing::error!(error = fault.sentence(&self.place.path), "not closed in good order"),
        }
    }
}
