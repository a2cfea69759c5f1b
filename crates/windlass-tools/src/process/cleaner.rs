//! Removes what commands left in their temporary folders, on a thread of its own: how long that takes is up to them.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;

use parking_lot::{Condvar, Mutex};

use super::remove::remove;

/// Things a command may leave that are removed at once. It takes a millisecond.
const AT_ONCE: usize = 64;

/// Folders that may wait. Beyond that, attempts wait until there is room, so that the disk is not filled faster than cleaned.
const ROOM: usize = 256;

/// A folder, and what to do once it is gone.
type Job = (PathBuf, Box<dyn FnOnce() + Send>);

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
    match remove(&folder, AT_ONCE) {
        Ok(true) => then(),
        Ok(false) => {
            if let Err(error) = leave(folder.clone(), Box::new(then)) {
                told(&folder, &error);
            }
        }
        Err(error) => told(&folder, &error),
    }
}

fn leave(folder: PathBuf, then: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    let mut jobs = JOBS.lock();
    if !jobs.1 {
        std::thread::Builder::new().name("windlass-cleaner".to_owned()).spawn(clean)?;
        jobs.1 = true;
    }
    jobs.0.push_back((folder, then));
    CAME.notify_one();
    Ok(())
}

fn clean() {
    loop {
        let (folder, then) = {
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
