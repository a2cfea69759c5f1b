//! The queue of the writer: bounded, first in first out, drained as a whole.

use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use windlass_core::store::StoreError;

use super::job::{Job, SpentWrites};
use super::reopen::RETRY_INTERVAL;

/// Limits of the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueLimits {
    jobs: usize,
    bytes: usize,
    max_wait: Duration,
    /// How often the writer tries to reopen the file while jobs are refused.
    retry_interval: Duration,
}

/// The writer drains the whole queue at once, so a full queue means that this many jobs arrived during one group, which
/// takes a few milliseconds. A caller that submits to a full queue waits until the writer drains it; that is the
/// back-pressure. The wait is bounded, because the blocked thread may be one that the writer's answers need. If the
/// disk has made no progress by then, the commit is refused and nothing is written.
pub(super) const LIMITS: QueueLimits =
    QueueLimits { jobs: 8_192, bytes: 64 << 20, max_wait: Duration::from_millis(100), retry_interval: RETRY_INTERVAL };

/// How many written commits are kept for submitting threads to free, and how large one of them may be. The writer frees
/// the rest.
const MAX_SPENT: usize = 256;
const MAX_SPENT_BYTES: usize = 4_096;

const PANICKED: &str = "the store takes no commits: its writer panicked (the log of this process has the details); \
                        restart this process; nothing that was accepted is lost";

pub(super) struct WriteQueue {
    state: Mutex<QueueState>,
    filled: Condvar,
    drained: Condvar,
    limits: QueueLimits,
}

#[derive(Default)]
struct QueueState {
    jobs: Vec<Job>,
    bytes: usize,
    /// See [`WriteQueue::recycle`].
    spent: SpentWrites,
    closed: bool,
    /// Why jobs are refused, while they are.
    refusal: Option<String>,
    /// The writer's thread, on which callbacks run. It must not wait for itself.
    writer: Option<ThreadId>,
}

impl WriteQueue {
    pub(super) fn new(limits: QueueLimits) -> Self {
        Self { state: Mutex::default(), filled: Condvar::new(), drained: Condvar::new(), limits }
    }

    /// Queues a job. Waits for a bounded time if the queue is full, except for jobs that reduce the load: an owner that
    /// releases runs because of overload must not be refused because of overload.
    pub(super) fn push(&self, job: Job) -> Result<(), StoreError> {
        let bytes = job.bytes();
        let mut state = self.state.lock();
        let may_wait = !job.skips_backpressure() && state.writer != Some(thread::current().id());
        if may_wait && state.refusal.is_none() && self.is_full(&state, bytes) {
            let until = Instant::now() + self.limits.max_wait;
            while self.is_full(&state, bytes) && !state.closed && state.refusal.is_none() {
                if self.drained.wait_until(&mut state, until).timed_out() {
                    break;
                }
            }
            if state.refusal.is_none() && self.is_full(&state, bytes) {
                let waiting = state.jobs.len();
                return Err(unavailable(&format!("the disk is too slow: {waiting} commits are queued")));
            }
        }
        if state.closed {
            return Err(unavailable("the store's writer has stopped"));
        }
        if let Some(why) = &state.refusal {
            return Err(StoreError::Unavailable(why.clone()));
        }
        state.jobs.push(job);
        state.bytes += bytes;
        let spent = state.spent.pop();
        drop(state);
        self.filled.notify_one();
        drop(spent);
        Ok(())
    }

    /// A job that is larger than the queue is accepted when the queue is empty.
    fn is_full(&self, state: &QueueState, bytes: usize) -> bool {
        !state.jobs.is_empty() && (state.jobs.len() >= self.limits.jobs || state.bytes + bytes > self.limits.bytes)
    }

    /// Registers the current thread as the writer's.
    pub(super) fn set_writer_thread(&self) {
        self.state.lock().writer = Some(thread::current().id());
    }

    /// Waits until there are jobs or, while jobs are refused, until it is time to try the file again. Both are read
    /// from the state, so it does not matter which thread set the refusal. Returns false once the queue is closed and
    /// empty.
    pub(super) fn wait(&self) -> bool {
        let mut until = None;
        let mut state = self.state.lock();
        while state.jobs.is_empty() {
            if state.closed {
                return false;
            }
            if state.refusal.is_none() {
                until = None;
                self.filled.wait(&mut state);
                continue;
            }
            let until = *until.get_or_insert_with(|| Instant::now() + self.limits.retry_interval);
            if self.filled.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        true
    }

    /// Swaps all queued jobs into the empty `jobs`.
    pub(super) fn take(&self, jobs: &mut Vec<Job>) {
        let mut state = self.state.lock();
        std::mem::swap(&mut state.jobs, jobs);
        state.bytes = 0;
        drop(state);
        self.drained.notify_all();
    }

    /// Keeps written commits for submitting threads to free. If the writer freed them all, it would contend with those
    /// threads for the allocator.
    pub(super) fn recycle(&self, spent: &mut SpentWrites) {
        let mut state = self.state.lock();
        let room = MAX_SPENT.saturating_sub(state.spent.len());
        let small = spent.extract_if(.., |write| write.bytes() <= MAX_SPENT_BYTES);
        state.spent.extend(small.take(room));
    }

    /// Whether the queue is empty and accepts jobs.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.jobs.is_empty() && !state.closed && state.refusal.is_none()
    }

    /// Refuses every job from now on for this reason, or accepts jobs again. Jobs that are already queued are answered
    /// by the writer.
    pub(super) fn refuse(&self, why: Option<String>) {
        self.state.lock().refusal = why;
        // The writer thread too: it may be waiting for jobs that are now refused.
        self.filled.notify_one();
        self.drained.notify_all();
    }

    /// Why jobs are refused, while they are.
    pub(super) fn refusal(&self) -> Option<String> {
        self.state.lock().refusal.clone()
    }

    /// Accepts no more jobs. Queued jobs are still run.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_one();
        self.drained.notify_all();
    }

    /// Closes the queue and answers queued jobs with "unknown", because no thread is left to run them. If the writer
    /// `panicked`, later commits are refused with that reason.
    pub(super) fn abandon(&self, panicked: bool) {
        self.close();
        if panicked {
            self.refuse(Some(PANICKED.to_owned()));
        }
        // Dropped outside the lock: a callback may submit again.
        let jobs = std::mem::take(&mut self.state.lock().jobs);
        drop(jobs);
    }
}

fn unavailable(why: &str) -> StoreError {
    StoreError::Unavailable(format!("{why}; nothing was written"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use windlass_core::store::{Commit, Guard, Promise};
    use windlass_core::time::Timestamp;
    use windlass_core::{RunId, WorkerId};

    use super::super::job::Write;
    use super::super::sealing_keys::SealingKeys;
    use super::*;

    fn job() -> Job {
        let by = super::super::job::Claimant { worker: WorkerId::from_number(1), now: Timestamp::default() };
        Job::Claim(RunId::from_bytes([1; 16]), by, Promise::pair().0)
    }

    fn limited(jobs: usize, bytes: usize) -> WriteQueue {
        WriteQueue::new(QueueLimits { jobs, bytes, max_wait: Duration::ZERO, retry_interval: Duration::ZERO })
    }

    #[test]
    fn a_full_queue_refuses_a_job_with_the_reason() {
        for queue in [limited(2, usize::MAX), limited(100, 2 * job().bytes())] {
            queue.push(job()).unwrap();
            queue.push(job()).unwrap();
            let refused = queue.push(job()).unwrap_err().to_string();
            assert!(refused.contains("2 commits are queued") && refused.contains("nothing was written"), "{refused}");
            let mut jobs = Vec::new();
            queue.take(&mut jobs);
            assert_eq!(jobs.len(), 2);
            queue.push(job()).unwrap();
        }
    }

    #[test]
    fn a_full_queue_still_accepts_jobs_that_reduce_the_load() {
        let queue = limited(1, usize::MAX);
        queue.push(job()).unwrap();
        assert!(queue.push(job()).is_err());
        queue.push(Job::Release(RunId::from_bytes([1; 16]), 1, Promise::pair().0)).unwrap();
    }

    #[test]
    fn a_job_larger_than_the_queue_is_accepted_when_the_queue_is_empty() {
        limited(2, 1).push(job()).unwrap();
    }

    #[test]
    fn submitting_threads_free_written_commits_unless_they_are_large() {
        let written = |bytes: usize| {
            let commit = Commit { guard: Guard::Outsider, changes: Vec::new() };
            let mut write = Write::encode(commit, &SealingKeys::of(Path::new("app.db"))).unwrap();
            write.records.text.body = "x".repeat(bytes);
            Box::new(write)
        };
        let queue = limited(MAX_SPENT * 4, usize::MAX);
        let mut spent = vec![written(1), written(MAX_SPENT_BYTES + 1), written(2)];
        queue.recycle(&mut spent);
        assert_eq!((spent.len(), queue.state.lock().spent.len()), (1, 2));
        queue.push(job()).unwrap();
        assert_eq!(queue.state.lock().spent.len(), 1);
        queue.recycle(&mut (0..2 * MAX_SPENT).map(|_| written(1)).collect());
        assert_eq!(queue.state.lock().spent.len(), MAX_SPENT);
    }

    #[test]
    fn the_writer_never_waits_for_itself() {
        let queue = limited(1, usize::MAX);
        queue.set_writer_thread();
        queue.push(job()).unwrap();
        queue.push(job()).unwrap();
    }

    #[test]
    fn a_closed_queue_is_drained_and_accepts_no_more_jobs() {
        let queue = limited(2, usize::MAX);
        queue.push(job()).unwrap();
        queue.close();
        assert!(queue.push(job()).is_err());
        assert!(queue.wait());
        queue.take(&mut Vec::new());
        assert!(!queue.wait());
    }

    #[test]
    fn a_refusing_queue_rejects_jobs_at_once_and_wakes_its_writer_at_intervals() {
        let queue = limited(1, usize::MAX);
        queue.push(job()).unwrap();
        queue.refuse(Some("the disk is full".to_owned()));
        assert_eq!(queue.push(job()), Err(StoreError::Unavailable("the disk is full".to_owned())));
        let mut jobs = Vec::new();
        assert!(queue.wait());
        queue.take(&mut jobs);
        assert_eq!(jobs.len(), 1, "the writer answers queued jobs");
        jobs.clear();
        assert!(queue.wait());
        queue.take(&mut jobs);
        assert!(jobs.is_empty());
        queue.refuse(None);
        queue.push(job()).unwrap();
    }

    #[test]
    fn w08_a_waiting_writer_wakes_when_another_thread_makes_the_queue_refuse_jobs() {
        let queue = limited(1, usize::MAX);
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| queue.wait());
            queue.refuse(Some("the disk is full".to_owned()));
            assert!(taker.join().unwrap());
        });
    }
}
