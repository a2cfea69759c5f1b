//! Workers: several runtimes that share a store. Each owns its runs by a lease that it renews; when a lease is over,
//! another worker takes the runs over, and everything the old owner still writes is refused.
//!
//! Polling is the truth here, as everywhere: what one worker writes, another sees at its next look.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::id::{RunId, WorkerId};
use crate::kernel::Kernel;
use crate::limits;
use crate::roster::Cause;
use crate::store::StoreError;
use crate::time::Clock;

/// The lease of this worker.
pub(crate) struct Lease {
    /// Owns the runs this process drives.
    pub(crate) worker: WorkerId,
    /// How long it lasts unless it is renewed. Nothing where one process owns the store: then nobody waits for anybody.
    pub(crate) length: Option<Duration>,
    /// By the ticks of this process: when it is over unless the store took a renewal.
    over: AtomicU64,
}

impl Lease {
    pub(crate) fn new(worker: WorkerId, length: Option<Duration>) -> Self {
        // A worker that never renewed has nothing to lose.
        Self { worker, length, over: AtomicU64::new(u64::MAX) }
    }

    /// Three looks in a lease: two may fail before anybody suffers.
    pub(crate) fn look(&self) -> Option<Duration> {
        self.length.map(|length| length / 3)
    }

    /// How often it looks for what other workers wrote.
    pub(crate) fn look_around(&self) -> Option<Duration> {
        self.look().map(|look| look.min(limits::LOOK_AROUND))
    }

    pub(crate) fn is_over(&self, clock: &dyn Clock) -> bool {
        self.length.is_some() && clock.ticks() >= self.over.load(Ordering::Acquire)
    }
}

impl Kernel {
    /// Renews the lease, and goes on renewing it until this runtime is shut down. An error says that there is none: others
    /// would take this worker for dead while it takes itself for alive.
    pub(crate) async fn begin_lease(self: &Arc<Self>) -> Result<(), StoreError> {
        let Some(look) = self.lease.look() else { return Ok(()) };
        self.renew().await?;
        // Apart from each other: however much there is to look at, the lease does not wait for it.
        self.every(look, |kernel| async move {
            if let Err(error) = kernel.renew().await {
                kernel.troubled(None, "the lease was not renewed", &error);
            }
        });
        self.every(look.min(limits::LOOK_AROUND), |kernel| async move { kernel.look_around().await });
        Ok(())
    }

    /// Does something now and then until this runtime is shut down.
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

    /// A run was let go of because its lease was over, and the caller may take it up again: once there is a lease, unless
    /// another worker has it by then.
    pub(crate) fn take_up_with_a_lease(self: &Arc<Self>, run: RunId) {
        let (look, kernel) = (self.lease.look().unwrap_or_default(), self.clone());
        self.env.spawn.spawn(Box::pin(async move {
            while kernel.lease.is_over(&*kernel.env.clock) && !kernel.closed.load(Ordering::Acquire) {
                kernel.env.clock.sleep(look).await;
            }
            kernel.taking_up(run, Cause::Reload);
        }));
    }

    async fn renew(self: &Arc<Self>) -> Result<(), StoreError> {
        let Some(length) = self.lease.length else { return Ok(()) };
        // Counted from before the request: whatever it took, nobody else counts from earlier.
        let (now, ticks) = (self.env.clock.now(), self.env.clock.ticks());
        self.store.renew(self.lease.worker, now + length).await?;
        let nanos = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        self.lease.over.store(ticks.saturating_add(nanos), Ordering::Release);
        Ok(())
    }

    /// What others wrote meanwhile: mail for runs of this worker, runs that are due, runs whose worker is gone.
    async fn look_around(self: &Arc<Self>) {
        let live = self.roster.all_live();
        for runs in live.chunks(limits::TAKEN_UP_AT_ONCE) {
            let seen = runs.iter().map(|live| (live.run.id, live.run.with(|machine| machine.seen()))).collect();
            match self.store.mail_of_many(seen).await {
                Ok(mail) => {
                    for (id, mail) in mail {
                        runs.iter().filter(|live| live.run.id == id).for_each(|live| live.run.deliver(mail.clone()));
                    }
                }
                // Read again at the next look.
                Err(error) => drop(self.troubled(None, "mailboxes cannot be read", &error)),
            }
        }
        self.take_up_due().await;
    }
}
