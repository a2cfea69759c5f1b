//! Removes what commands left in their temporary folders, on a thread of its own: how long that takes is up to them.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;

use parking_lot::{Condvar, Mutex};

use super::remove::remove;

/// Things a command may leave that are removed at once. It takes a millisecond.
const AT_ONCE: usize = 64;

/// Folders that may wait. Beyond that, attempts that leave another one wait until there is room, so that the disk is not filled
/// faster than cleaned.
const ROOM: usize = 256;

/// A folder to be removed, and what to do once it is gone.
pub(crate) struct Job {
    folder: PathBuf,
    then: Box<dyn FnOnce() + Send>,
}

/// What waits, and whether there is a thread that sees to it.
static JOBS: Mutex<(VecDeque<Job>, bool)> = Mutex::new((VecDeque::new(), false));
static CAME: Condvar = Condvar::new();

/// Whether an attempt that leaves another folder has to wait.
pub(crate) fn is_full() -> bool {
    JOBS.lock().0.len() >= ROOM
}

/// Removes a folder: at once if there is little in it, else as soon as can be. Then `then` is done; never if it cannot be removed,
/// which is logged.
pub(crate) fn remove_soon(folder: PathBuf, then: impl FnOnce() + Send + 'static) {
    if let Some(job) = remove_now(folder, then) {
        job.leave();
    }
}

/// Removes a folder if there is little in it. What is left to do otherwise.
pub(crate) fn remove_now(folder: PathBuf, then: impl FnOnce() + Send + 'static) -> Option<Job> {
    match remove(&folder, AT_ONCE) {
        Ok(true) => then(),
        Ok(false) => return Some(Job { folder, then: Box::new(then) }),
        Err(error) => told(&folder, &error),
    }
    None
}

impl Job {
    /// Leaves it to the thread that cleans up.
    pub(crate) fn leave(self) {
        let mut jobs = JOBS.lock();
        if !jobs.1 {
            let started = std::thread::Builder::new().name("windlass-cleaner".to_owned()).spawn(clean);
            if let Err(error) = started {
                return told(&self.folder, &error);
            }
            jobs.1 = true;
        }
        jobs.0.push_back(self);
        CAME.notify_one();
    }
}

fn clean() {
    loop {
        let Job { folder, then } = {
            let mut jobs = JOBS.lock();
            loop {
                match jobs.0.pop_front() {
                    Some(job) => break job,
                    None => CAME.wait(&mut jobs),
                }
            }
        };
        match remove(&folder, usize::MAX) {
            Ok(_) => then(),
            Err(error) => told(&folder, &error),
        }
    }
}

fn told(folder: &std::path::Path, error: &io::Error) {
    tracing::warn!(folder = %folder.display(), "what a command left in its temporary folder cannot be removed: {error}");
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Keeps the cleaner from whatever comes after it, until the sender is dropped.
    pub(crate) fn hold_up() -> std::sync::mpsc::Sender<()> {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = std::sync::mpsc::channel::<()>();
        let then = Box::new(move || {
            begin.send(()).unwrap();
            let _ = ended.recv();
        });
        Job { folder: "/nowhere/at-all".into(), then }.leave();
        begun.recv().unwrap();
        end
    }

    /// Leaves it no room. Nothing is there to be removed.
    pub(crate) fn fill_up() {
        while !is_full() {
            Job { folder: "/nowhere/at-all".into(), then: Box::new(|| {}) }.leave();
        }
    }
}
