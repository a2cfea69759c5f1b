//! Removes the temporary folders of commands on a separate thread, because a command decides how long that takes.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;

use parking_lot::{Condvar, Mutex};

use super::remove::remove;

/// Entries that are removed at once, on the caller's thread. It takes about a millisecond.
const INLINE_LIMIT: usize = 64;

/// Folders that may be queued. With a full queue, an attempt that leaves another one waits, so that the disk is not
/// filled faster than it is cleaned.
const QUEUE_LIMIT: usize = 256;

/// A folder to be removed, and what to do once it is gone.
pub(crate) struct Job {
    folder: PathBuf,
    then: Box<dyn FnOnce() + Send>,
}

/// The queue, and whether the thread that empties it was started.
static JOBS: Mutex<(VecDeque<Job>, bool)> = Mutex::new((VecDeque::new(), false));
static JOB_ADDED: Condvar = Condvar::new();

/// Whether the queue is full: an attempt that leaves another folder has to wait.
pub(crate) fn is_full() -> bool {
    JOBS.lock().0.len() >= QUEUE_LIMIT
}

/// Removes a folder: at once if it has few entries, otherwise in the background. Calls `then` once it is gone. If it
/// cannot be removed, that is logged and `then` is not called.
pub(crate) fn remove_soon(folder: PathBuf, then: impl FnOnce() + Send + 'static) {
    if let Some(job) = remove_now(folder, then) {
        job.enqueue();
    }
}

/// Removes a folder if it has few entries; otherwise returns the job to be queued.
pub(crate) fn remove_now(folder: PathBuf, then: impl FnOnce() + Send + 'static) -> Option<Job> {
    match remove(&folder, INLINE_LIMIT) {
        Ok(true) => then(),
        Ok(false) => return Some(Job { folder, then: Box::new(then) }),
        Err(error) => log_failure(&folder, &error),
    }
    None
}

impl Job {
    /// Queues it for the cleaner thread.
    pub(crate) fn enqueue(self) {
        let mut jobs = JOBS.lock();
        if !jobs.1 {
            let started = std::thread::Builder::new().name("windlass-cleaner".to_owned()).spawn(clean);
            if let Err(error) = started {
                return log_failure(&self.folder, &error);
            }
            jobs.1 = true;
        }
        jobs.0.push_back(self);
        JOB_ADDED.notify_one();
    }
}

fn clean() {
    loop {
        let Job { folder, then } = {
            let mut jobs = JOBS.lock();
            loop {
                match jobs.0.pop_front() {
                    Some(job) => break job,
                    None => JOB_ADDED.wait(&mut jobs),
                }
            }
        };
        match remove(&folder, usize::MAX) {
            Ok(_) => then(),
            Err(error) => log_failure(&folder, &error),
        }
    }
}

fn log_failure(folder: &std::path::Path, error: &io::Error) {
    tracing::warn!(folder = %folder.display(), "the temporary folder of a command cannot be removed: {error}");
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Blocks the cleaner thread until the sender is dropped.
    pub(crate) fn block_cleaner() -> std::sync::mpsc::Sender<()> {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = std::sync::mpsc::channel::<()>();
        let then = Box::new(move || {
            begin.send(()).unwrap();
            let _ = ended.recv();
        });
        Job { folder: "/nowhere/at-all".into(), then }.enqueue();
        begun.recv().unwrap();
        end
    }

    /// Fills the queue with folders that do not exist.
    pub(crate) fn fill_queue() {
        while !is_full() {
            Job { folder: "/nowhere/at-all".into(), then: Box::new(|| {}) }.enqueue();
        }
    }
}
