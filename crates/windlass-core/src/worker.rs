//! Workers: several runtimes that share a store. Each owns its runs under a lease that it renews. When a lease expires,
//! another worker takes over the runs, and the store refuses whatever the old owner still writes.
//!
//! Polling is authoritative here as everywhere: a worker sees what another one wrote at its next poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::id::{RunId, WorkerId};
use crate::kernel::Kernel;
use crate::limits;
use crate::roster::TakeUpCause;
use crate::store::{OnChange, StoreError};
use crate::time::Clock;

/// The lease of this worker.
pub(crate) struct Lease {
    /// The owner of the runs that this process drives.
    pub(crate) worker: WorkerId,
    /// How long the lease lasts without renewal. `None` where a single process owns the store.
    pub(crate) length: Option<Duration>,
    /// The expiry in ticks of this process, unless the store accepts a renewal first.
    over: AtomicU64,
}

impl Lease {
    pub(crate) fn new(worker: WorkerId, length: Option<Duration>) -> Self {
        // A worker that has not renewed yet owns nothing that it could lose.
        Self { worker, length, over: AtomicU64::new(u64::MAX) }
    }

    /// A third of the lease: two renewals may fail before the lease expires.
    pub(crate) fn renew_interval(&self) -> Option<Duration> {
        self.length.map(|length| length / 3)
    }

    /// How often this worker polls for what other workers wrote.
    pub(crate) fn poll_interval(&self) -> Option<Duration> {
        self.renew_interval().map(|renew| renew.min(limits::WORKER_POLL))
    }

    pub(crate) fn is_over(&self, clock: &dyn Clock) -> bool {
        self.length.is_some() && clock.ticks() >= self.over.load(Ordering::Acquire)
    }
}

impl Kernel {
    /// Renews the lease, and keeps renewing it until this runtime is shut down. An error means that there is no lease:
    /// the other workers would consider this worker dead while it considers itself alive.
    pub(crate) async fn begin_lease(self: &Arc<Self>) -> Result<(), StoreError> {
        let (Some(renew), Some(poll)) = (self.lease.renew_interval(), self.lease.poll_interval()) else {
            return Ok(());
        };
        self.renew().await?;
        // Two separate tasks, so that a long poll does not delay the renewal.
        self.every(renew, |kernel| async move {
            if let Err(error) = kernel.renew().await {
                kernel.report_store_failure(None, "the lease could not be renewed", &error);
            }
        });
        self.every(poll, |kernel| async move { kernel.poll_store().await });
        self.listen();
        Ok(())
    }

    /// Reacts at once to change notifications of the store. They are hints: whatever they miss is found at the next
    /// poll.
    fn listen(self: &Arc<Self>) {
        let kernel = Arc::downgrade(self);
        let tell: OnChange = Arc::new(move |run| {
            let Some(kernel) = kernel.upgrade().filter(|kernel| !kernel.closed.load(Ordering::Acquire)) else { return };
            kernel.nudge(run);
        });
        self.store.on_change(&tell);
        *self.undriven.on_change.lock() = Some(tell);
    }

    /// Repeats some work at this interval until the runtime is shut down.
    pub(crate) fn every<F>(self: &Arc<Self>, pause: Duration, work: impl Fn(Arc<Self>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (kernel, clock) = (Arc::downgrade(self), self.env.clock.clone());
        self.env.spawn.spawn(Box::pin(async move {
            loop {
                clock.sleep(pause).await;
                let Some(kernel) = kernel.upgrade().filter(|kernel| !kernel.closed.load(Ordering::Acquire)) else {
                    return;
                };
                work(kernel).await;
            }
        }));
    }

    /// Takes up a run again after its lease expired. Waits for a new lease first, and takes up the run unless another
    /// worker owns it by then.
    pub(crate) fn take_up_after_renewal(self: &Arc<Self>, run: RunId) {
        let (renew, kernel) = (self.lease.renew_interval().unwrap_or_default(), self.clone());
        self.env.spawn.spawn(Box::pin(async move {
            while kernel.lease.is_over(&*kernel.env.clock) && !kernel.closed.load(Ordering::Acquire) {
                kernel.env.clock.sleep(renew).await;
            }
            kernel.start_taking_up(run, TakeUpCause::Reload);
        }));
    }

    async fn renew(self: &Arc<Self>) -> Result<(), StoreError> {
        let Some(length) = self.lease.length else { return Ok(()) };
        // Counted from before the request: however long that took, the store cannot count from earlier.
        let ticks = self.env.clock.ticks();
        self.store.renew(self.lease.worker, length).await?;
        let nanos = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        self.lease.over.store(ticks.saturating_add(nanos), Ordering::Release);
        Ok(())
    }

    /// Polls for what others wrote: mail for the runs of this worker, runs that are due, runs whose worker is gone.
    async fn poll_store(self: &Arc<Self>) {
        let driven = self.roster.all_driven();
        for runs in driven.chunks(limits::CLAIM_BATCH) {
            let seen = runs.iter().map(|driven| (driven.run.id, driven.run.with(|machine| machine.seen()))).collect();
            match self.store.mail_of_many(seen).await {
                Ok(mail) => {
                    for (id, mail) in mail {
                        runs.iter()
                            .filter(|driven| driven.run.id == id)
                            .for_each(|driven| driven.run.deliver(mail.clone()));
                    }
                }
                // It is read again at the next poll.
                Err(error) => drop(self.report_store_failure(None, "mailboxes could not be read", &error)),
            }
        }
        self.look_for_due();
    }
}
