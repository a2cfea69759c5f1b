//! Writing a group: everything that waits, in one transaction with one sync. What comes in meanwhile is the next group. So
//! the disk's latency is paid once a group, not once a commit. Who writes is decided at the desk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rusqlite::wal::CheckpointMode;
use windlass_core::RunId;
use windlass_core::store::{Promise, StoreError, Tidied};
use windlass_core::troubles::Troubles;

use super::access::{self, Access, Link};
use super::blobs;
use super::check::Shared;
use super::checkpoint::{Checkpoints, Next};
use super::damage::Damage;
use super::fault::{Failure, Fault};
use super::job::{Job, Spent, Taken};
use super::lineage;
use super::lock::FileLock;
use super::log::{End, Tails};
use super::open::{Opened, Options};
use super::pack;
use super::place::Place;
use super::queue::Queue;
use super::read::Readers;
use super::reopen::PACE;
use super::schema;
use super::table::{Heads, Sessions, Table, Trouble};

/// Unfinished runs the writer remembers. Beyond that it starts afresh and asks the file, a few microseconds a run.
const HEADS: usize = 65_536;

pub(super) struct Writer {
    queue: Arc<Queue>,
    others: Others,
    place: Place,
    options: Options,
    opening: i64,
    access: Access,
    /// When the file was last opened again, or was tried to be.
    tried: Option<Instant>,
    heads: Heads,
    end: End,
    resting: Vec<RunId>,
    sessions: Sessions,
    /// Prepares what is packed next.
    packer: Option<JoinHandle<()>>,
    /// What was told of its failures.
    packing: Arc<Troubles>,
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
        end.damaged.iter().for_each(|damage| others.check.notice(damage));
        let access = Access::new(Link::new(connection, &place)?, queue.clone(), place.path.clone());
        Ok(Self {
            queue,
            others,
            place,
            options,
            opening,
            access,
            tried: None,
            heads: Heads::default(),
            end,
            resting: Vec::new(),
            sessions: Sessions::default(),
            packer: None,
            packing: Arc::default(),
            checkpoints: Checkpoints::default(),
            _lock: lock,
        })
    }

    /// Opens the file again if it can be had again.
    pub(super) fn prepare(&mut self) {
        if !self.access.is_open() && self.may_try() {
            self.try_again();
        }
    }

    /// How many pages are in the write-ahead log.
    #[cfg(test)]
    pub(super) fn log_pages(&self) -> Option<i32> {
        self.access.link().map(|link| link.pages.load(Ordering::Relaxed))
    }

    /// Meets a fault, without another try before its time.
    #[cfg(test)]
    pub(super) fn meet(&mut self, fault: Fault) {
        self.tried = Some(Instant::now());
        self.give_up(fault);
    }

    /// Forgets what it knows of runs.
    #[cfg(test)]
    pub(super) fn forget(&mut self) {
        self.heads.clear();
    }

    /// Whether the file is open and nothing is to be done but to write.
    pub(super) fn is_at_rest(&self) -> bool {
        let pages = self.access.link().map(|link| link.pages.load(Ordering::Relaxed));
        pages.is_some_and(|pages| self.checkpoints.is_at_rest(pages)) && !self.has_to_pack()
    }

    /// Says that a group was written. All that follows a group without taking time.
    pub(super) fn note(&self) {
        if let Some(link) = self.access.link() {
            self.others.check.committed(link.pages.load(Ordering::Relaxed));
        }
    }

    /// Does what is to be done after a group, and may take a moment.
    pub(super) fn look_after(&mut self) {
        self.look_after_log();
        self.pack();
    }

    /// Closes in good order once everything is written.
    pub(super) fn finish(mut self) {
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
        let Some(link) = self.access.link() else { return };
        let pages = link.pages.load(Ordering::Relaxed);
        self.note();
        // Before any of the log is moved: see `lineage.rs`.
        if self.checkpoints.begins(pages) && !self.stamp() {
            return;
        }
        match self.checkpoints.look(&self.place, &self.options, pages) {
            Next::Nothing => {}
            Next::Rest => self.move_rest(),
            Next::Failed(fault) => self.fail(fault),
        }
    }

    /// Whether the part of the log that is not packed has become long, and nobody is at it.
    fn has_to_pack(&self) -> bool {
        let is_long = self.end.last - self.end.packed > i64::from(self.options.unpacked);
        is_long && self.access.is_open() && self.packer.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Has the oldest part of the log packed if it is time.
    fn pack(&mut self) {
        if !self.has_to_pack() {
            return;
        }
        let unpacked = i64::from(self.options.unpacked);
        // Half of it, so that the rows of runs that go on now are not cut into small pieces.
        let (packed, upto) = (self.end.packed, self.end.packed + (unpacked / 2).max(1));
        let (place, queue, troubles) = (self.place.clone(), self.queue.clone(), self.packing.clone());
        let check = self.others.check.clone();
        let prepare = move || match pack::prepare(&place, packed, upto) {
            Ok(packed) => {
                packed.damaged.iter().for_each(|damage| check.notice(damage));
                let (promise, packing) = Promise::pair();
                let (done, wait) = mpsc::channel::<()>();
                packing.then(move |_| drop(done));
                // Prepared again by a later group if the queue is full.
                drop(queue.push(Job::Pack(packed, promise)));
                let _ = wait.recv();
            }
            // Not a loss: the log is as good as it was, and the next group has it tried again.
            Err(error) => {
                if let Some(untold) = troubles.met(&error.to_string(), access::now()) {
                    tracing::warn!(%error, untold, path = %place.path.display(), "the log could not be packed");
                }
            }
        };
        self.packer = thread::Builder::new().name("windlass-pack".to_owned()).spawn(prepare).ok();
    }

    /// Writes a group. Its answers are to be given, if there are any.
    pub(super) fn write(&mut self, jobs: &mut Vec<Job>) -> Replies {
        if jobs.is_empty() {
            return Replies { replies: Vec::new(), failed: None, spent: Vec::new() };
        }
        let was_open = self.access.is_open();
        let (mut spent, packed) = (Vec::with_capacity(jobs.len()), self.end.packed);
        let (replies, failed) = self.transact(jobs, &mut spent);
        match &failed {
            Some(failure) if was_open => self.fail(failure.fault.clone()),
            Some(_) => {}
            None => {
                self.others.tails.publish(&mut self.end.moved, self.end.last);
                if self.end.packed != packed {
                    self.others.tails.forget(self.end.packed);
                }
                self.forget_heads();
            }
        }
        Replies { replies, failed: failed.map(|failure| failure.told), spent }
    }

    fn forget_heads(&mut self) {
        for run in self.resting.drain(..) {
            if self.heads.get(&run).is_some_and(|head| head.is_at_rest()) {
                self.heads.remove(&run);
            }
        }
        if self.heads.len() > HEADS {
            self.heads.clear();
        }
    }

    /// Does all jobs in one transaction. The answers count only if nothing failed.
    fn transact(&mut self, jobs: &mut Vec<Job>, spent: &mut Spent) -> (Vec<Reply>, Option<Failure>) {
        // One statement is a transaction of its own.
        let single = matches!(jobs[..], [Job::Write(ref write, _)] if write.only_appends());
        let mut failed = self.begin(single).err();
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
            && let Some(link) = self.access.link()
            && let Err(error) = link.run("COMMIT")
        {
            failed = Some(Failure::unknown(&error, &self.place.path));
        }
        (replies, failed)
    }

    /// Opens a transaction, if the file is there. Until this has succeeded, nothing of the group is written. A single
    /// statement needs none.
    fn begin(&mut self, single: bool) -> Result<(), Failure> {
        let place = &self.place;
        let begun = self.access.link_mut().and_then(|link| {
            link.check(place)?;
            match single {
                true => Ok(()),
                false => link.run("BEGIN IMMEDIATE").map_err(|error| Fault::of(&error)),
            }
        });
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
            Trouble::Refused(error) => {
                if let StoreError::Damaged { run, place } = &error {
                    self.others.check.notice(&Damage { run: *run, place: place.clone() });
                }
                error
            }
            Trouble::Sql(error) => failed.insert(Failure::unknown(&error, &self.place.path)).told.clone(),
        })
    }

    /// The file, if it is open, with what is known of it.
    fn table(&mut self) -> Option<Table<'_>> {
        Some(Table {
            connection: &self.access.link()?.connection,
            heads: &mut self.heads,
            end: &mut self.end,
            tails: &self.others.tails,
            resting: &mut self.resting,
            opening: self.opening,
            sessions: &mut self.sessions,
        })
    }

    /// Moves what is left of the log. If that is all of it, the log begins again with the next transaction.
    pub(super) fn move_rest(&mut self) {
        if self.stamp() {
            self.checkpoint(CheckpointMode::PASSIVE);
            self.stamp();
        }
    }

    fn checkpoint(&mut self, mode: CheckpointMode) {
        let Some(link) = self.access.link() else { return };
        let moved = self
            .place
            .check_both(link.log)
            .and_then(|()| link.connection.wal_checkpoint_v2(Some("main"), mode).map_err(|error| Fault::of(&error)));
        match moved {
            // What somebody who reads is still looking at is moved the next time.
            Ok(_) | Err(Fault::Busy) => {}
            // What was answered is safe in the log; but a disk that did not take it once is not built on.
            Err(fault) => self.fail(fault),
        }
    }

    /// Stamps the file, or fails.
    fn stamp(&mut self) -> bool {
        let Some(link) = self.access.link() else { return false };
        let stamped = lineage::stamp(&link.connection, self.options.shared);
        stamped.map_err(|error| self.fail(Fault::of(&error))).is_ok()
    }

    /// Gives up the connection, and goes on at once if that is possible, but not over and over.
    fn fail(&mut self, fault: Fault) {
        self.give_up(fault);
        if self.may_try() {
            self.try_again();
        }
    }

    /// Closing the connection rolls back, and what was remembered may not be what the file says now.
    fn give_up(&mut self, fault: Fault) {
        self.heads.clear();
        self.resting.clear();
        self.sessions.clear();
        self.access.lost(fault);
    }

    /// A disk that fails again right after it was opened again gets a pause. What fails for a reason of its own does not
    /// keep the others waiting.
    fn may_try(&self) -> bool {
        let pause = self.access.outage().is_some_and(|outage| outage.fault.is_of_the_disk());
        !pause || self.tried.is_none_or(|tried| tried.elapsed() >= PACE)
    }

    /// Tries to go on after a failure.
    pub(super) fn try_again(&mut self) {
        let Some(outage) = self.access.outage_mut() else { return };
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
                // They may be connected to files that are not there any more.
                self.others.readers.close();
                end.damaged.iter().for_each(|damage| self.others.check.notice(damage));
                self.end = end;
                self.checkpoints = Checkpoints::default();
                self.access.regained(link);
            }
            Err(fault) => self.access.lost(fault),
        }
    }

    /// Marks the file as closed in good order, as far as it lets us.
    fn close(&mut self) {
        self.try_again();
        let Some(link) = self.access.link() else {
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
