//! Implements the executor and clock of the kernel with tokio.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;
use windlass_core::spawn::Spawn;
use windlass_core::time::{Clock, Timestamp};

/// Whether the current tokio runtime can run its other tasks while one of its threads waits for a disk.
pub(crate) fn has_threads_to_spare() -> bool {
    let handle = Handle::current();
    handle.runtime_flavor() == RuntimeFlavor::MultiThread && handle.metrics().num_workers() > 1
}

/// Spawns tasks on the tokio runtime in which it was created.
pub(crate) struct TokioSpawn {
    handle: Handle,
    /// Limits CPU-bound bodies to the number of cores. Further ones wait without a thread.
    cpu: Arc<Semaphore>,
}

impl TokioSpawn {
    pub(crate) fn current() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { handle: Handle::current(), cpu: Arc::new(Semaphore::new(cores)) }
    }
}

impl Spawn for TokioSpawn {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.handle.spawn(task);
    }

    fn spawn_cpu(&self, task: BoxFuture<'static, ()>) {
        let (handle, cpu) = (self.handle.clone(), self.cpu.clone());
        self.handle.spawn(async move {
            // The semaphore is never closed.
            let Ok(permit) = cpu.acquire_owned().await else { return };
            let inner = handle.clone();
            handle.spawn_blocking(move || {
                inner.block_on(task);
                drop(permit);
            });
        });
    }
}

/// The system clock.
pub(crate) struct TokioClock {
    start: Instant,
}

impl TokioClock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    fn ticks(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}
