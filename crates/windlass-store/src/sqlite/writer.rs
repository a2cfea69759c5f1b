//! Writes groups of jobs: everything that is queued, in one transaction with one sync. Jobs that arrive meanwhile form
//! the next group, so the disk's latency is paid once per group, not once per commit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rusqlite::wal::CheckpointMode;
use windlass_core::RunId;
use windlass_core::store::{
    ConnectionAnswer, FileReservations, LiveSessions, Promise, SessionVerdict, StoreError, Tidied,
};
use windlass_core::troubles::Troubles;

use super::blobs;
use super::check::CheckState;
use super::checkpoint::{CheckpointStep, Checkpoints};
use super::damage::Damage;
use super::db_file::DbFile;
use super::fault::{Failure, Fault};
use super::job::{ClaimOutcome, DueClaim, Job, SpentWrites};
use super::lock::OwnerLock;
use super::log::{JournalTails, LogEnd};
use super::open::{OpenedFile, Options};
use super::pack;
use super::purge::SLICE_ROWS;
use super::read::Readers;
use super::reopen::RETRY_INTERVAL;
use super::schema;
use super::sessions;
use super::wal_stamp;
use super::write_access::{self, WriteAccess, WriteConnection};
use super::write_queue::WriteQueue;
use super::write_tx::{JobError, RunHeads, Sessions, WriteTx};

/// Unfinished runs that the writer keeps in memory. Beyond that the cache is cleared and runs are read from the file
/// again, a few microseconds each.
const MAX_HEADS: usize = 65_536;

pub(super) struct Writer {
    queue: Arc<WriteQueue>,
    deps: WriterDeps,
    db_file: DbFile,
    options: Options,
    opening: i64,
    access: WriteAccess,
    /// When the writer last tried to reopen the file.
    last_reopen: Option<Instant>,
    heads: RunHeads,
    end: LogEnd,
    cold_runs: Vec<RunId>,
    sessions: Sessions,
    reserved: FileReservations,
    /// The thread that prepares the next segments.
    packer: Option<JoinHandle<()>>,
    /// Failures of packing that were already logged.
    pack_failures: Arc<Troubles>,
    checkpoints: Checkpoints,
    /// Released last, so that the next owner finds the connection closed.
    _lock: Arc<OwnerLock>,
}

/// What the writer shares with the other users of the file in this process.
pub(super) struct WriterDeps {
    pub(super) readers: Arc<Readers>,
    pub(super) tails: Arc<JournalTails>,
    pub(super) check: Arc<CheckState>,
    pub(super) live: Arc<LiveSessions>,
}

/// An answer that is sent once the group is on disk.
enum Reply {
    Unit(Promise<()>, Result<(), StoreError>),
    Claim(Promise<ClaimOutcome>, Result<ClaimOutcome, StoreError>),
    DueClaims(Promise<Vec<DueClaim>>, Result<Vec<DueClaim>, StoreError>),
    Blob(Promise<blobs::BlobOutcome>, Result<blobs::BlobOutcome, StoreError>),
    Tidied(Promise<Tidied>, Result<Tidied, StoreError>),
    Session(Promise<SessionVerdict>, Result<SessionVerdict, StoreError>),
    Connection(Promise<ConnectionAnswer>, Result<ConnectionAnswer, StoreError>),
}

impl Reply {
    /// Sends the answer, or the group's failure: if the group failed, even a refusal may depend on data that was not
    /// written.
    fn send(self, failed: Option<&StoreError>) {
        // Callbacks run here. A panic in one must not stop the writer.
        let outcome = catch_unwind(AssertUnwindSafe(|| match (self, failed) {
            (Self::Unit(promise, result), None) => promise.answer(result),
            (Self::Claim(promise, result), None) => promise.answer(result),
            (Self::DueClaims(promise, result), None) => promise.answer(result),
            (Self::Blob(promise, result), None) => promise.answer(result),
            (Self::Tidied(promise, result), None) => promise.answer(result),
            (Self::Session(promise, result), None) => promise.answer(result),
            (Self::Connection(promise, result), None) => promise.answer(result),
            (Self::Unit(promise, _), Some(error)) => promise.answer(Err(error.clone())),
            (Self::Claim(promise, _), Some(error)) => promise.answer(Err(error.clone())),
            (Self::DueClaims(promise, _), Some(error)) => promise.answer(Err(error.clone())),
            (Self::Blob(promise, _), Some(error)) => promise.answer(Err(error.clone())),
            (Self::Tidied(promise, _), Some(error)) => promise.answer(Err(error.clone())),
            (Self::Session(promise, _), Some(error)) => promise.answer(Err(error.clone())),
            (Self::Connection(promise, _), Some(error)) => promise.answer(Err(error.clone())),
        }));
        if outcome.is_err() {
            tracing::error!("a callback panicked while it handled the answer to a commit");
        }
    }
}

/// The answers of a group, and the failure of the group if there was one.
pub(super) struct Replies {
    replies: Vec<Reply>,
    failed: Option<StoreError>,
    pub(super) spent: SpentWrites,
}

impl Replies {
    pub(super) fn send(self) {
        for reply in self.replies {
            reply.send(self.failed.as_ref());
        }
    }
}

impl Writer {
    pub(super) fn new(
        opened: OpenedFile,
        options: Options,
        queue: Arc<WriteQueue>,
        deps: WriterDeps,
    ) -> rusqlite::Result<Self> {
        let OpenedFile { lock, connection, db_file, opening, .. } = opened;
        let end = deps.tails.rebuild(&connection)?;
        end.damaged.iter().for_each(|damage| deps.check.record(damage));
        let access = WriteAccess::new(WriteConnection::new(connection, &db_file)?, queue.clone(), db_file.path.clone());
        Ok(Self {
            queue,
            deps,
            db_file,
            options,
            opening,
            access,
            last_reopen: None,
            heads: RunHeads::default(),
            end,
            cold_runs: Vec::new(),
            sessions: Sessions::default(),
            reserved: FileReservations::default(),
            packer: None,
            pack_failures: Arc::default(),
            checkpoints: Checkpoints::default(),
            _lock: lock,
        })
    }

    /// Reopens the file after a failure, if it is time to try.
    pub(super) fn reopen_if_due(&mut self) {
        if !self.access.is_open() && self.may_reopen() {
            self.try_reopen();
        }
    }

    /// The number of pages in the write-ahead log.
    #[cfg(test)]
    pub(super) fn wal_pages(&self) -> Option<i32> {
        self.access.conn().map(|conn| conn.pages.load(Ordering::Relaxed))
    }

    /// Simulates a fault that is not retried at once.
    #[cfg(test)]
    pub(super) fn simulate_fault(&mut self, fault: Fault) {
        self.last_reopen = Some(Instant::now());
        self.drop_connection(fault);
    }

    /// Clears the cached run heads.
    #[cfg(test)]
    pub(super) fn forget_heads_for_test(&mut self) {
        self.heads.clear();
    }

    /// Whether the file is open and no maintenance is due.
    pub(super) fn is_idle(&self) -> bool {
        let pages = self.access.conn().map(|conn| conn.pages.load(Ordering::Relaxed));
        pages.is_some_and(|pages| self.checkpoints.is_idle(pages)) && !self.has_to_pack()
    }

    /// Reports a written group to the background check. Cheap enough to do after every group.
    pub(super) fn report_commit(&self) {
        if let Some(conn) = self.access.conn() {
            self.deps.check.committed(conn.pages.load(Ordering::Relaxed));
        }
    }

    /// Runs the maintenance that is due after a group. May take some time.
    pub(super) fn maintain(&mut self) {
        self.maintain_wal();
        self.pack();
    }

    /// Shuts down cleanly once everything is written.
    pub(super) fn shut_down(mut self) {
        if let CheckpointStep::Failed(fault) = self.checkpoints.finish() {
            self.handle_fault(fault);
        }
        if let Some(packer) = self.packer.take() {
            // The packer's connection must not be the last one to close. What it prepared is dropped and prepared again
            // later.
            drop(packer.join());
        }
        self.close();
    }

    fn maintain_wal(&mut self) {
        let Some(conn) = self.access.conn() else { return };
        let pages = conn.pages.load(Ordering::Relaxed);
        self.report_commit();
        // Before any of the log is copied into the file: see `wal_stamp.rs`.
        if self.checkpoints.is_due(pages) && !self.stamp() {
            return;
        }
        match self.checkpoints.after_group(&self.db_file, &self.options, pages) {
            CheckpointStep::Nothing => {}
            CheckpointStep::Rest => self.checkpoint_rest(),
            CheckpointStep::Failed(fault) => self.handle_fault(fault),
        }
    }

    /// Whether the unpacked part of the log is too long and no packer is running.
    fn has_to_pack(&self) -> bool {
        let is_long = self.end.last - self.end.packed > i64::from(self.options.unpacked);
        is_long && self.access.is_open() && self.packer.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Starts a thread that packs the oldest part of the log, if that is due.
    fn pack(&mut self) {
        if !self.has_to_pack() {
            return;
        }
        let unpacked = i64::from(self.options.unpacked);
        // Half of it, so that the rows of active runs are not cut into small segments.
        let (packed, upto) = (self.end.packed, self.end.packed + (unpacked / 2).max(1));
        let (db_file, queue, troubles) = (self.db_file.clone(), self.queue.clone(), self.pack_failures.clone());
        let check = self.deps.check.clone();
        let prepare = move || match pack::prepare(&db_file, packed, upto) {
            Ok(packed) => {
                packed.damaged.iter().for_each(|damage| check.record(damage));
                let (promise, packing) = Promise::pair();
                let (done, wait) = mpsc::channel::<()>();
                packing.then(move |_| drop(done));
                // If the queue is full, a later group prepares it again.
                drop(queue.push(Job::Pack(packed, promise)));
                let _ = wait.recv();
            }
            // Nothing is lost: the log is unchanged, and a later group tries again.
            Err(error) => {
                if let Some(untold) = troubles.met(&error.to_string(), write_access::now()) {
                    tracing::warn!(%error, untold, path = %db_file.path.display(), "could not pack the log");
                }
            }
        };
        self.packer = thread::Builder::new().name("windlass-pack".to_owned()).spawn(prepare).ok();
    }

    /// Writes a group. The caller sends the answers.
    pub(super) fn write(&mut self, jobs: &mut Vec<Job>) -> Replies {
        if jobs.is_empty() {
            return Replies { replies: Vec::new(), failed: None, spent: Vec::new() };
        }
        let was_open = self.access.is_open();
        let (mut spent, packed) = (Vec::with_capacity(jobs.len()), self.end.packed);
        let (replies, failed) = self.transact(jobs, &mut spent);
        match &failed {
            Some(failure) if was_open => self.handle_fault(failure.fault.clone()),
            Some(_) => {}
            None => {
                self.deps.tails.publish(&mut self.end.changed_tails, self.end.last);
                if self.end.packed != packed {
                    self.deps.tails.forget(self.end.packed);
                }
                self.forget_heads();
                for (session, tools) in self.sessions.take_shown() {
                    self.deps.live.changed(&session, tools);
                }
            }
        }
        Replies { replies, failed: failed.map(|failure| failure.error), spent }
    }

    fn forget_heads(&mut self) {
        for run in self.cold_runs.drain(..) {
            if self.heads.get(&run).is_some_and(|head| head.is_cold()) {
                self.heads.remove(&run);
            }
        }
        if self.heads.len() > MAX_HEADS {
            self.heads.clear();
        }
    }

    /// Runs all jobs in one transaction. The answers are valid only if nothing failed.
    fn transact(&mut self, jobs: &mut Vec<Job>, spent: &mut SpentWrites) -> (Vec<Reply>, Option<Failure>) {
        // A single statement is a transaction by itself.
        let single = matches!(jobs[..], [Job::Write(ref write, _)] if write.only_appends());
        let mut failed = self.begin(single).err();
        let mut replies = Vec::with_capacity(jobs.len());
        for job in jobs.drain(..) {
            replies.push(match job {
                Job::Write(write, promise) => {
                    let written = self.run_job(&mut failed, |table| table.write(&write));
                    spent.push(write);
                    Reply::Unit(promise, written)
                }
                Job::Claim(run, by, promise) => {
                    Reply::Claim(promise, self.run_job(&mut failed, |table| table.claim(run, by)))
                }
                Job::ClaimDue(by, limit, promise) => {
                    Reply::DueClaims(promise, self.run_job(&mut failed, |table| table.claim_due(by, limit)))
                }
                Job::Renew(worker, until, promise) => {
                    Reply::Unit(promise, self.run_job(&mut failed, |table| table.renew(worker, until)))
                }
                Job::Blob(step, promise) => {
                    let work = |table: &mut WriteTx<'_>| blobs::work(table.connection, table.opening, &step);
                    Reply::Blob(promise, self.run_job(&mut failed, work))
                }
                Job::Release(run, epoch, promise) => {
                    Reply::Unit(promise, self.run_job(&mut failed, |table| table.release(run, epoch)))
                }
                Job::Tidy(work, promise) => {
                    Reply::Tidied(promise, self.run_job(&mut failed, |table| table.tidy(&work)))
                }
                Job::Purge(run, now, promise) => {
                    Reply::Tidied(promise, self.run_job(&mut failed, |table| table.purge(run, now)))
                }
                Job::Session(job, promise) => {
                    Reply::Session(promise, self.run_job(&mut failed, |table| table.write_session(&job)))
                }
                Job::Connection(job, promise) => {
                    Reply::Connection(promise, self.run_job(&mut failed, |table| table.write_connection(&job)))
                }
                Job::PurgeSession(name, promise) => {
                    let work = |table: &mut WriteTx<'_>| table.purge_session(&name, SLICE_ROWS);
                    Reply::Tidied(promise, self.run_job(&mut failed, work))
                }
                Job::Pack(packed, promise) => {
                    Reply::Unit(promise, self.run_job(&mut failed, |table| table.pack(&packed)))
                }
            });
        }
        if failed.is_none()
            && !single
            && let Some(conn) = self.access.conn()
            && let Err(error) = conn.run("COMMIT")
        {
            failed = Some(Failure::unknown(&error, &self.db_file.path));
        }
        (replies, failed)
    }

    /// Begins a transaction, after checking that the file is still in place. Nothing of the group is written before
    /// this succeeds. A single statement needs no explicit transaction.
    fn begin(&mut self, single: bool) -> Result<(), Failure> {
        let db_file = &self.db_file;
        let begun = self.access.conn_mut().and_then(|conn| {
            conn.check(db_file)?;
            match single {
                true => Ok(()),
                false => conn.run("BEGIN IMMEDIATE").map_err(|error| Fault::of(&error)),
            }
        });
        begun.map_err(|fault| Failure::before(fault, &self.db_file.path))
    }

    fn run_job<T>(
        &mut self,
        failed: &mut Option<Failure>,
        work: impl FnOnce(&mut WriteTx<'_>) -> Result<T, JobError>,
    ) -> Result<T, StoreError> {
        if let Some(failure) = failed {
            return Err(failure.error.clone());
        }
        let Some(mut table) = self.table() else {
            return Err(StoreError::Unavailable("the store is closed".to_owned()));
        };
        work(&mut table).map_err(|error| match error {
            JobError::Refused(error) => {
                if let StoreError::Damaged { run, place } = &error {
                    self.deps.check.record(&Damage { run: *run, location: place.clone() });
                }
                error
            }
            JobError::Sql(error) => failed.insert(Failure::unknown(&error, &self.db_file.path)).error.clone(),
        })
    }

    /// The transaction with the writer's caches, if the file is open.
    fn table(&mut self) -> Option<WriteTx<'_>> {
        Some(WriteTx {
            connection: &self.access.conn()?.sqlite,
            heads: &mut self.heads,
            end: &mut self.end,
            tails: &self.deps.tails,
            cold_runs: &mut self.cold_runs,
            opening: self.opening,
            sessions: &mut self.sessions,
            reserved: &mut self.reserved,
        })
    }

    /// Copies the rest of the write-ahead log into the file. If nothing is left, the log restarts with the next
    /// transaction.
    pub(super) fn checkpoint_rest(&mut self) {
        if self.stamp() {
            self.checkpoint(CheckpointMode::PASSIVE);
            self.stamp();
        }
    }

    fn checkpoint(&mut self, mode: CheckpointMode) {
        let Some(conn) = self.access.conn() else { return };
        let result = self
            .db_file
            .check_with_wal(conn.wal)
            .and_then(|()| conn.sqlite.wal_checkpoint_v2(Some("main"), mode).map_err(|error| Fault::of(&error)));
        match result {
            // Pages that a reader still uses are copied by the next checkpoint.
            Ok(_) | Err(Fault::Busy) => {}
            // Answered commits are safe in the log, but a disk that failed once must be verified before it is used
            // again.
            Err(fault) => self.handle_fault(fault),
        }
    }

    /// Stamps the file. Returns false, after handling the fault, if that failed.
    fn stamp(&mut self) -> bool {
        let Some(conn) = self.access.conn() else { return false };
        let stamped = wal_stamp::stamp(&conn.sqlite, self.options.shared);
        stamped.map_err(|error| self.handle_fault(Fault::of(&error))).is_ok()
    }

    /// Drops the connection after a fault, and reopens the file at once unless it failed a moment ago.
    fn handle_fault(&mut self, fault: Fault) {
        self.drop_connection(fault);
        if self.may_reopen() {
            self.try_reopen();
        }
    }

    /// Closes the connection, which rolls back, and clears the caches, which may not match the file any more.
    fn drop_connection(&mut self, fault: Fault) {
        self.heads.clear();
        self.cold_runs.clear();
        self.sessions.clear();
        self.sessions.take_shown();
        self.access.set_failed(fault);
    }

    /// Disk faults are retried at intervals. Other faults are retried at once, so that they do not delay other commits.
    fn may_reopen(&self) -> bool {
        let pause = self.access.outage().is_some_and(|outage| outage.fault.is_disk_fault());
        !pause || self.last_reopen.is_none_or(|tried| tried.elapsed() >= RETRY_INTERVAL)
    }

    /// Tries to reopen the file after a failure.
    pub(super) fn try_reopen(&mut self) {
        let Some(outage) = self.access.outage_mut() else { return };
        self.last_reopen = Some(Instant::now());
        // A check may read for minutes, and the log cannot be emptied while a reader uses it.
        self.deps.check.pause(true);
        let ended = outage.reopen(&self.db_file, &self.options).and_then(|conn| {
            let end = self.deps.tails.rebuild(&conn.sqlite).map_err(|error| Fault::of(&error))?;
            sessions::refresh(&conn.sqlite, &self.deps.live).map_err(|error| Fault::of(&error))?;
            Ok((conn, end))
        });
        self.deps.check.pause(false);
        match ended {
            Ok((conn, end)) => {
                // Idle readers may be connected to files that were replaced.
                self.deps.readers.close();
                end.damaged.iter().for_each(|damage| self.deps.check.record(damage));
                self.end = end;
                self.checkpoints = Checkpoints::default();
                self.access.set_open(conn);
            }
            Err(fault) => self.access.set_failed(fault),
        }
    }

    /// Marks the file as closed cleanly, if it can be written.
    fn close(&mut self) {
        self.try_reopen();
        let Some(conn) = self.access.conn() else {
            tracing::error!(path = %self.db_file.path.display(), "closed the store while its file could not be written");
            return;
        };
        let in_place = self.db_file.check_with_wal(conn.wal);
        let marked = in_place.and_then(|()| match self.deps.check.is_fine() {
            true => schema::mark_clean(&conn.sqlite).map_err(|error| Fault::of(&error)),
            false => Ok(()),
        });
        match marked {
            Ok(()) => self.checkpoint(CheckpointMode::TRUNCATE),
            Err(fault) => {
                tracing::error!(error = fault.sentence(&self.db_file.path), "the store was not closed cleanly")
            }
        }
    }
}
