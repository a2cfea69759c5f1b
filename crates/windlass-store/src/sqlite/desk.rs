//! Who writes a group: the writer's own thread, or whoever submits a commit while nobody else has anything to write.
//!
//! Handing a commit over and being woken by its answer costs more than half of what a fast disk takes for the sync. With
//! many runs at once that is paid once a group; a run that works alone pays it for every step. So a lone commit may be
//! written where it stands, if the store was told that its callers can be held up for a moment.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::job::Job;
use super::queue::Queue;
use super::writer::Writer;

/// Commits in a row that a caller writes itself. The next one is handed over, which shows whether it is still alone, and
/// does what is to be done after a group. Runs let the other tasks of their thread go first much more often.
const TURNS: u8 = 128;

/// After so many groups of one commit in a row the next one is thought to be alone too.
const LONE: u32 = 2;

/// A disk that takes longer than this for a group is not waited for by callers. Tests do not depend on how quick theirs is.
const QUICK: Duration = if cfg!(test) { Duration::MAX } else { Duration::from_millis(1) };

pub(super) struct Desk {
    /// Nothing once the file is given up.
    writer: Mutex<Option<Writer>>,
    queue: Arc<Queue>,
    /// Answers are being given: whoever wrote now could be answered before those who came first.
    answering: AtomicBool,
    /// How many commits callers may write themselves before the next one is handed over. Touched only at the desk.
    turns: AtomicU8,
}

impl Desk {
    pub(super) fn new(writer: Writer, queue: Arc<Queue>) -> Self {
        Self { writer: Mutex::new(Some(writer)), queue, answering: AtomicBool::new(false), turns: AtomicU8::new(0) }
    }

    /// Writes what is handed over until the queue is closed and empty, then closes the file.
    pub(super) fn serve(&self) {
        let _abandon = Abandon(&self.queue);
        self.queue.serve();
        let mut jobs = Vec::new();
        let mut lone = 0_u32;
        while self.queue.wait() {
            let mut desk = self.writer.lock();
            let Some(writer) = desk.as_mut() else { break };
            // Taken at the desk: whoever comes there later finds everything that was handed over before it written.
            self.queue.take(&mut jobs);
            let (count, begun) = (jobs.len(), Instant::now());
            writer.prepare();
            let mut replies = writer.write(&mut jobs);
            self.queue.give_back(&mut replies.spent);
            lone = if count == 1 && begun.elapsed() < QUICK { lone + 1 } else { 0 };
            writer.look_after();
            self.turns.store(if lone >= LONE { TURNS } else { 0 }, Ordering::Relaxed);
            self.answer(desk, || replies.give());
        }
        let writer = self.writer.lock().take();
        if let Some(writer) = writer {
            writer.finish();
        }
    }

    /// Writes a job on this thread if nobody else has anything to write; otherwise returns it.
    pub(super) fn write_here(&self, job: Job) -> Option<Job> {
        let Some(mut desk) = self.writer.try_lock() else { return Some(job) };
        let Some(writer) = desk.as_mut() else { return Some(job) };
        if !self.may_write_here(writer) {
            return Some(job);
        }
        match catch_unwind(AssertUnwindSafe(|| writer.write(&mut vec![job]))) {
            Ok(replies) => {
                writer.note();
                self.answer(desk, || replies.give());
            }
            Err(_) => self.panicked(desk),
        }
        None
    }

    /// A panic must not leave a half-written group for the next one to commit.
    fn panicked(&self, mut desk: MutexGuard<'_, Option<Writer>>) {
        tracing::error!("the writer of the store panicked");
        let writer = desk.take();
        // Whoever is told that nothing comes any more may come back here.
        drop(desk);
        drop(writer);
        self.queue.abandon(true);
    }

    /// Whether the next commit is written by whoever submits it.
    #[cfg(test)]
    pub(super) fn writes_here(&self) -> bool {
        self.is_free() && self.turns.load(Ordering::Relaxed) > 1
    }

    /// Whether everything that was handed over is written, and everybody is answered.
    #[cfg(test)]
    pub(super) fn is_free(&self) -> bool {
        !self.answering.load(Ordering::Acquire) && self.queue.is_idle()
    }

    /// Meets a fault on this thread, as if the file had been tried again just now.
    #[cfg(test)]
    pub(super) fn meet(&self, fault: super::fault::Fault) {
        if let Some(writer) = self.writer.lock().as_mut() {
            writer.meet(fault);
        }
    }

    /// Does what is done when a caller that writes panics.
    #[cfg(test)]
    pub(super) fn panic_at_the_desk(&self) {
        self.panicked(self.writer.lock());
    }

    /// Moves the write-ahead log into the file, as is done after many commits.
    #[cfg(test)]
    pub(super) fn move_log(&self) {
        if let Some(writer) = self.writer.lock().as_mut() {
            writer.move_rest();
        }
    }

    /// How many pages are in the write-ahead log.
    #[cfg(test)]
    pub(super) fn log_pages(&self) -> Option<i32> {
        self.writer.lock().as_ref().and_then(Writer::log_pages)
    }

    fn may_write_here(&self, writer: &Writer) -> bool {
        if self.answering.load(Ordering::Acquire) || !self.queue.is_idle() || !writer.is_at_rest() {
            return false;
        }
        let turns = self.turns.load(Ordering::Relaxed);
        self.turns.store(turns.saturating_sub(1), Ordering::Relaxed);
        turns > 0
    }

    /// Gives answers once the desk is free: they run what strangers wrote, which may come back here, or end the store.
    fn answer(&self, desk: MutexGuard<'_, Option<Writer>>, give: impl FnOnce()) {
        self.answering.store(true, Ordering::Release);
        drop(desk);
        give();
        self.answering.store(false, Ordering::Release);
    }
}

/// Closes the queue however the writer ends, so that nobody waits for a thread that is gone.
struct Abandon<'a>(&'a Queue);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.0.abandon(std::thread::panicking());
    }
}
