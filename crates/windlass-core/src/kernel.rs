//! One runtime: its parts, and what it is asked from outside of a run.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use crate::admit::Admission;
use crate::call::loops::sessions::SessionLoops;
use crate::call::{Attempt, Reach};
use crate::driver::Live;
use crate::env::Env;
use crate::id::RunId;
use crate::path::Path;
use crate::rest::Rest;
use crate::roster::Roster;
use crate::store::Store;
use crate::watchdog::Watchdog;
use crate::worker::Lease;

/// One runtime.
pub(crate) struct Kernel {
    /// What its runs read.
    pub(crate) env: Env,
    /// What its attempts queue for.
    pub(crate) admission: Admission,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) lease: Lease,
    /// The runs this process has to do with.
    pub(crate) roster: Roster<Live>,
    /// When the next suspended run is due, and what was told of a store that fails.
    pub(crate) rest: Rest,
    pub(crate) reach: Arc<Reach>,
    pub(crate) watchdog: Watchdog,
    /// What sessions were told lately.
    pub(crate) loops: SessionLoops,
    /// Attempts on threads of their own, which may outlive the call that waited for them, and the taking up of their run.
    pub(crate) on_threads: Mutex<Vec<Attempt>>,
    /// Whether runs are driven here; see [`Config::drives`](crate::Config::drives).
    pub(crate) drives: bool,
    pub(crate) closed: AtomicBool,
}

impl Kernel {
    /// Whether a thread that cannot be interrupted is still at an attempt of this operation.
    pub(crate) fn is_on_thread(&self, run: RunId, path: &Path) -> bool {
        let mut attempts = self.on_threads.lock();
        attempts.retain(Attempt::is_on_thread);
        attempts.iter().any(|attempt| attempt.run() == run && attempt.path() == path)
    }
}
