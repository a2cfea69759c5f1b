//! The executor as the kernel sees it.

use futures_util::future::BoxFuture;

/// Runs tasks. tokio is one implementation, a test's seeded single-thread executor another.
pub trait Spawn: Send + Sync + 'static {
    /// Runs `task` to its end, concurrently with the caller.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Runs a task that computes for long stretches without yielding, on threads kept for such work, so that it never
    /// stalls the tasks of [`spawn`](Spawn::spawn).
    fn spawn_cpu(&self, task: BoxFuture<'static, ()>);
}
