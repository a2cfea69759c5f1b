//! The way to the writer thread: bounded, first in first out, taken whole.

use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use windlass_core::store::StoreError;

use super::job::{Job, Spent};
use super::reopen::PACE;

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    jobs: usize,
    bytes: usize,
    patience: Duration,
    /// How often the writer looks up while nothing is taken.
    pace: Duration,
}

/// The writer takes all that waits at once, so a full queue means that this much came in during one group, which takes
/// a few milliseconds: whoever submits to a full queue is held back until the writer comes round. That is the
/// back-pressure. It has an end, because the thread that is held back may be one the writer's answers need; a disk that
/// has not moved by then is as good as gone, and the commit is refused with nothing written.
pub(super) const BOUNDS: Bounds =
    Bounds { jobs: 8_192, bytes: 64 << 20, patience: Duration::from_millis(100), pace: PACE };

/// Commits that were written and wait for somebody to free them, and how large those may be. Whatever is beyond is freed by
/// the writer.
const SPENT: usize = 256;
const SPENT_BYTES: usize = 4_096;

const PANICKED: &str = "the store takes no commits: its writer panicked, and the log of this process says where; start this \
                        process again; nothing that was accepted is lost";

pub(super) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
    taken: Condvar,
    bounds: Bounds,
}

#[derive(Default)]
struct State {
    jobs: Vec<Job>,
    bytes: usize,
    /// See [`Queue::give_back`].
    spent: Spent,
    closed: bool,
    /// Why nothing is taken, while that is so.
    refusal: Option<String>,
    /// The writer's own thread, on which answers run. It must not wait for itself.
    writer: Option<ThreadId>,
}

impl Queue {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { state: Mutex::default(), filled: Condvar::new(), taken: Condvar::new(), bounds }
    }

    /// Hands a job to the writer. Waits a little if too much is waiting already, unless the job ends work: whoever lets
    /// go of runs because there is too much to do is not told that there is too much to do.
    pub(super) fn push(&self, job: Job) -> Result<(), StoreError> {
        let bytes = job.bytes();
        let mut state = self.state.lock();
        let may_wait = !job.ends_work() && state.writer != Some(thread::current().id());
        if may_wait && state.refusal.is_none() && self.is_full(&state, bytes) {
            let until = Instant::now() + self.bounds.patience;
            while self.is_full(&state, bytes) && !state.closed && state.refusal.is_none() {
                if self.taken.wait_until(&mut state, until).timed_out() {
                    break;
                }
            }
            if state.refusal.is_none() && self.is_full(&state, bytes) {
                let waiting = state.jobs.len();
                return Err(unavailable(&format!("the disk does not keep up: {waiting} commits wait for it")));
            }
        }
        if state.closed {
            return Err(unavailable("its writer has stopped"));
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

    /// A job that is too big for the queue is taken when nothing else waits.
    fn is_full(&self, state: &State, bytes: usize) -> bool {
        !state.jobs.is_empty() && (state.jobs.len() >= self.bounds.jobs || state.bytes + bytes > self.bounds.bytes)
    }

    /// Says which thread takes.
    pub(super) fn serve(&self) {
        self.state.lock().writer = Some(thread::current().id());
    }

    /// Waits until there is something to do: jobs to take or, while none are taken, a file to be tried again. The end of
    /// the wait follows from the state, so it does not matter which thread found out that none can be taken. False once the queue is closed and empty.
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
            let until = *until.get_or_insert_with(|| Instant::now() + self.bounds.pace);
            if self.filled.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        true
    }

    /// Swaps everything that waits into the empty `jobs`.
    pub(super) fn take(&self, jobs: &mut Vec<Job>) {
        let mut state = self.state.lock();
        std::mem::swap(&mut state.jobs, jobs);
        state.bytes = 0;
        drop(state);
        self.taken.notify_all();
    }

    /// Takes commits that were written, for whoever submits the next ones to free. Threads that free what others allocated
    /// fight with them over it, and the writer would free everything.
    pub(super) fn give_back(&self, spent: &mut Spent) {
        let mut state = self.state.lock();
        let room = SPENT.saturating_sub(state.spent.len());
        let small = spent.extract_if(.., |write| write.bytes() <= SPENT_BYTES);
        state.spent.extend(small.take(room));
    }

    /// Whether nothing waits and jobs are taken.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.jobs.is_empty() && !state.closed && state.refusal.is_none()
    }

    /// Refuses every job from now on, for this reason; or takes them again. What waits is the writer's to answer.
    pub(super) fn refuse(&self, why: Option<String>) {
        self.state.lock().refusal = why;
        // The taker too: it may wait without end for jobs that are refused from now on.
        self.filled.notify_one();
        self.taken.notify_all();
    }

    /// Why nothing is taken, while that is so.
    pub(super) fn refusal(&self) -> Option<String> {
        self.state.lock().refusal.clone()
    }

    /// Takes no more jobs. What waits is still done.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_one();
        self.taken.notify_all();
    }

    /// Closes, and answers what waits with "unknown": no thread is left to take it. If the writer `panicked`, later commits are
    /// told so.
    pub(super) fn abandon(&self, panicked: bool) {
        self.close();
        if panicked {
            self.refuse(Some(PANICKED.to_owned()));
        }
        // Dropped outside the lock: an answer may come back here.
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

    use windlass_core::store::{Claimant, Commit, Guard, Promise};
    use windlass_core::time::Timestamp;
    use windlass_core::{RunId, WorkerId};

    use super::super::job::Write;
    use super::super::keys::Keys;
    use super::*;

    fn job() -> Job {
        let by = Claimant { worker: WorkerId::from_number(1), now: Timestamp::default() };
        Job::Claim(RunId::from_bytes([1; 16]), by, Promise::pair().0)
    }

    fn bounded(jobs: usize, bytes: usize) -> Queue {
        Queue::new(Bounds { jobs, bytes, patience: Duration::ZERO, pace: Duration::ZERO })
    }

    #[test]
    fn a_full_queue_refuses_and_says_so() {
        for queue in [bounded(2, usize::MAX), bounded(100, 2 * job().bytes())] {
            queue.push(job()).unwrap();
            queue.push(job()).unwrap();
            let refused = queue.push(job()).unwrap_err().to_string();
            assert!(refused.contains("2 commits wait") && refused.contains("nothing was written"), "{refused}");
            let mut jobs = Vec::new();
            queue.take(&mut jobs);
            assert_eq!(jobs.len(), 2);
            queue.push(job()).unwrap();
        }
    }

    #[test]
    fn a_full_queue_still_takes_what_ends_work() {
        let queue = bounded(1, usize::MAX);
        queue.push(job()).unwrap();
        assert!(queue.push(job()).is_err());
        queue.push(Job::Release(RunId::from_bytes([1; 16]), 1, Promise::pair().0)).unwrap();
    }

    #[test]
    fn a_job_bigger_than_the_queue_is_taken_when_it_is_alone() {
        bounded(2, 1).push(job()).unwrap();
    }

    #[test]
    fn what_was_written_is_freed_by_those_who_submit_unless_it_is_large() {
        let written = |bytes: usize| {
            let commit = Commit { guard: Guard::Outsider, changes: Vec::new() };
            let mut write = Write::encode(commit, &Keys::of(Path::new("app.db"))).unwrap();
            write.records.text.body = "x".repeat(bytes);
            Box::new(write)
        };
        let queue = bounded(SPENT * 4, usize::MAX);
        let mut spent = vec![written(1), written(SPENT_BYTES + 1), written(2)];
        queue.give_back(&mut spent);
        assert_eq!((spent.len(), queue.state.lock().spent.len()), (1, 2));
        queue.push(job()).unwrap();
        assert_eq!(queue.state.lock().spent.len(), 1);
        queue.give_back(&mut (0..2 * SPENT).map(|_| written(1)).collect());
        assert_eq!(queue.state.lock().spent.len(), SPENT);
    }

    #[test]
    fn the_writer_never_waits_for_itself() {
        let queue = bounded(1, usize::MAX);
        queue.serve();
        queue.push(job()).unwrap();
        queue.push(job()).unwrap();
    }

    #[test]
    fn a_closed_queue_is_emptied_and_takes_nothing_more() {
        let queue = bounded(2, usize::MAX);
        queue.push(job()).unwrap();
        queue.close();
        assert!(queue.push(job()).is_err());
        assert!(queue.wait());
        queue.take(&mut Vec::new());
        assert!(!queue.wait());
    }

    #[test]
    fn a_queue_refuses_at_once_while_it_is_told_to_and_its_taker_looks_up_now_and_then() {
        let queue = bounded(1, usize::MAX);
        queue.push(job()).unwrap();
        queue.refuse(Some("the disk is full".to_owned()));
        assert_eq!(queue.push(job()), Err(StoreError::Unavailable("the disk is full".to_owned())));
        let mut jobs = Vec::new();
        assert!(queue.wait());
        queue.take(&mut jobs);
        assert_eq!(jobs.len(), 1, "what waited is the writer's to answer");
        jobs.clear();
        assert!(queue.wait());
        queue.take(&mut jobs);
        assert!(jobs.is_empty());
        queue.refuse(None);
        queue.push(job()).unwrap();
    }

    #[test]
    fn w08_a_taker_that_waits_for_jobs_looks_up_when_another_thread_has_them_refused() {
        let queue = bounded(1, usize::MAX);
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| queue.wait());
            queue.refuse(Some("the disk is full".to_owned()));
            assert!(taker.join().unwrap());
        });
    }
}
