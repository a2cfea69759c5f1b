//! The clock of a simulated worker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::testing::sim::Sim;
use crate::time::{Clock, Timestamp};

/// The shared clock as one worker reads it. With a planted bug, it does not count the time in which its worker stood
/// still.
pub(super) struct WorkerClock {
    sim: Sim,
    /// How far it is behind, in nanoseconds.
    behind: AtomicU64,
}

impl WorkerClock {
    pub(super) fn new(sim: Sim) -> Self {
        Self { sim, behind: AtomicU64::new(0) }
    }

    /// Puts it this many nanoseconds further behind.
    pub(super) fn lag(&self, nanos: u64) {
        self.behind.fetch_add(nanos, Ordering::Relaxed);
    }

    fn behind(&self) -> u64 {
        self.behind.load(Ordering::Relaxed)
    }
}

impl Clock for WorkerClock {
    fn now(&self) -> Timestamp {
        let micros = i64::try_from(self.behind() / 1_000).unwrap_or(i64::MAX);
        Timestamp::from_micros(self.sim.now().as_micros().saturating_sub(micros))
    }

    fn ticks(&self) -> u64 {
        self.sim.ticks().saturating_sub(self.behind())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.sim.sleep(duration)
    }
}
