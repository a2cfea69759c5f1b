//! The writer, shared by its own thread and by callers that write a commit inline.
//!
//! Queueing a commit and being woken by its answer costs more than half of the time that a fast disk needs for the
//! sync. With many concurrent runs that cost is paid once per group, but a single run pays it for every step. So a
//! commit may be written inline, on the thread that submits it, while the writer is idle and
//! [`Options::inline_writes`](super::Options::inline_writes) allows it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::job::Job;
use super::write_queue::WriteQueue;
use super::writer::Writer;

/// Consecutive commits that callers may write inline. The next one is queued, which runs the maintenance after a group
/// and shows whether other callers write too. Runs yield to the other tasks of their thread much more often than this.
const MAX_INLINE_COMMITS: u8 = 128;

/// After this many consecutive groups of one commit, the next commit may be written inline.
const SINGLE_COMMIT_GROUPS: u32 = 2;

/// Callers do not write inline if a group takes longer than this. Tests do not depend on the speed of their disk.
const FAST_GROUP: Duration = if cfg!(test) { Duration::MAX } else { Duration::from_millis(1) };

pub(super) struct SharedWriter {
    /// `None` once the file is closed.
    writer: Mutex<Option<Writer>>,
    queue: Arc<WriteQueue>,
    /// Answers are being sent. An inline write at this time could be answered before earlier commits.
    answering: AtomicBool,
    /// How many commits may be written inline before the next one is queued. Accessed only while `writer` is locked.
    inline_left: AtomicU8,
}

impl SharedWriter {
    pub(super) fn new(writer: Writer, queue: Arc<WriteQueue>) -> Self {
        Self {
            writer: Mutex::new(Some(writer)),
            queue,
            answering: AtomicBool::new(false),
            inline_left: AtomicU8::new(0),
        }
    }

    /// Writes queued jobs until the queue is closed and empty, then closes the file. Runs on the writer's thread.
    pub(super) fn run(&self) {
        let _close_on_exit = CloseOnExit(&self.queue);
        self.queue.set_writer_thread();
        let mut jobs = Vec::new();
        let mut single_commit_groups = 0_u32;
        while self.queue.wait() {
            let mut writer_guard = self.writer.lock();
            let Some(writer) = writer_guard.as_mut() else { break };
            // Drained while the writer is locked, so that an inline write never overtakes jobs that were queued before
            // it.
            self.queue.take(&mut jobs);
            let (count, begun) = (jobs.len(), Instant::now());
            writer.reopen_if_due();
            let mut replies = writer.write(&mut jobs);
            self.queue.recycle(&mut replies.spent);
            single_commit_groups =
                if count == 1 && begun.elapsed() < FAST_GROUP { single_commit_groups + 1 } else { 0 };
            writer.maintain();
            self.inline_left.store(
                if single_commit_groups >= SINGLE_COMMIT_GROUPS { MAX_INLINE_COMMITS } else { 0 },
                Ordering::Relaxed,
            );
            self.answer(writer_guard, || replies.send());
        }
        let writer = self.writer.lock().take();
        if let Some(writer) = writer {
            writer.shut_down();
        }
    }

    /// Writes a job on this thread if the writer is idle; otherwise returns it.
    pub(super) fn write_inline(&self, job: Job) -> Option<Job> {
        let Some(mut writer_guard) = self.writer.try_lock() else { return Some(job) };
        let Some(writer) = writer_guard.as_mut() else { return Some(job) };
        if !self.may_write_inline(writer) {
            return Some(job);
        }
        match catch_unwind(AssertUnwindSafe(|| writer.write(&mut vec![job]))) {
            Ok(replies) => {
                writer.report_commit();
                self.answer(writer_guard, || replies.send());
            }
            Err(_) => self.panicked(writer_guard),
        }
        None
    }

    /// Drops the writer after a panic, so that a half-written group is never committed.
    fn panicked(&self, mut writer_guard: MutexGuard<'_, Option<Writer>>) {
        tracing::error!("the store's writer panicked during an inline commit");
        let writer = writer_guard.take();
        // Unlocked first: callbacks of abandoned jobs may submit again.
        drop(writer_guard);
        drop(writer);
        self.queue.abandon(true);
    }

    /// Whether the next commit would be written inline.
    #[cfg(test)]
    pub(super) fn writes_inline(&self) -> bool {
        self.is_idle() && self.inline_left.load(Ordering::Relaxed) > 1
    }

    /// Whether every queued job is written and answered.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        !self.answering.load(Ordering::Acquire) && self.queue.is_idle()
    }

    /// Simulates a fault, as if reopening the file had failed just now.
    #[cfg(test)]
    pub(super) fn simulate_fault(&self, fault: super::fault::Fault) {
        if let Some(writer) = self.writer.lock().as_mut() {
            writer.simulate_fault(fault);
        }
    }

    /// Simulates a panic during an inline write.
    #[cfg(test)]
    pub(super) fn simulate_panic(&self) {
        self.panicked(self.writer.lock());
    }

    /// Copies the write-ahead log into the file, as after many commits.
    #[cfg(test)]
    pub(super) fn checkpoint(&self) {
        if let Some(writer) = self.writer.lock().as_mut() {
            writer.checkpoint_rest();
        }
    }

    /// The number of pages in the write-ahead log.
    #[cfg(test)]
    pub(super) fn wal_pages(&self) -> Option<i32> {
        self.writer.lock().as_ref().and_then(Writer::wal_pages)
    }

    fn may_write_inline(&self, writer: &Writer) -> bool {
        if self.answering.load(Ordering::Acquire) || !self.queue.is_idle() || !writer.is_idle() {
            return false;
        }
        let inline_left = self.inline_left.load(Ordering::Relaxed);
        self.inline_left.store(inline_left.saturating_sub(1), Ordering::Relaxed);
        inline_left > 0
    }

    /// Sends answers after the writer is unlocked: they run callbacks, which may submit a commit or drop the store.
    fn answer(&self, writer_guard: MutexGuard<'_, Option<Writer>>, give: impl FnOnce()) {
        self.answering.store(true, Ordering::Release);
        drop(writer_guard);
        give();
        self.answering.store(false, Ordering::Release);
    }
}

/// Closes the queue however the writer thread ends, so that no caller waits for a thread that is gone.
struct CloseOnExit<'a>(&'a WriteQueue);

impl Drop for CloseOnExit<'_> {
    fn drop(&mut self) {
        self.0.abandon(std::thread::panicking());
    }
}
