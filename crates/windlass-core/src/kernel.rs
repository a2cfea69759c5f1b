//! The kernel: the parts of one runtime, and the requests that come from outside of a run.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use crate::admit::Admission;
use crate::call::{Attempt, Reach};
use crate::driver::DrivenRun;
use crate::drives::DriveScope;
use crate::env::Env;
use crate::id::RunId;
use crate::path::Path;
use crate::roster::Roster;
use crate::store::Store;
use crate::undriven::UndrivenRuns;
use crate::watchdog::Watchdog;
use crate::worker::Lease;

/// The parts of one runtime.
pub(crate) struct Kernel {
    /// What its runs read: clock, executor, toolbox, policy, limits.
    pub(crate) env: Env,
    /// What attempts queue for before they start.
    pub(crate) admission: Admission,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) lease: Lease,
    /// The runs that this process drives, takes up or waits for.
    pub(crate) roster: Roster<DrivenRun>,
    /// What is kept about runs that this process does not drive now, and the log limiter for store failures.
    pub(crate) undriven: UndrivenRuns,
    pub(crate) reach: Arc<Reach>,
    pub(crate) watchdog: Watchdog,
    /// Attempts on CPU threads. They may outlive the call that waited for them, and even the time this process drives
    /// their run.
    pub(crate) on_threads: Mutex<Vec<Attempt>>,
    /// Which runs are driven here; see [`Config::drives`](crate::Config::drives).
    pub(crate) drives: DriveScope,
    pub(crate) closed: AtomicBool,
}

impl Kernel {
    /// Whether a CPU thread, which cannot be interrupted, still executes an attempt of this operation.
    pub(crate) fn is_on_thread(&self, run: RunId, path: &Path) -> bool {
        let mut attempts = self.on_threads.lock();
        attempts.retain(Attempt::is_on_thread);
        attempts.iter().any(|attempt| attempt.run() == run && attempt.path() == path)
    }
}
