//! Removes what a store need not keep, a little at a time, so that the commits of runs do not wait for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Runtime;
use crate::error::Result;
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::limits;
use crate::store::{StoreError, Tidied};

impl Kernel {
    /// Removes old runs at this interval, until the runtime is shut down.
    pub(crate) fn begin_retention(self: &Arc<Self>, every: Duration) {
        self.every(every, |kernel| async move {
            match kernel.tidy().await {
                Ok(Tidied { summarized: 0, removed: 0, .. }) => {}
                Ok(done) => tracing::info!(summarized = done.summarized, removed = done.removed, "removed old runs"),
                // Nothing is lost: it is tried again at the next interval.
                Err(error) => {
                    drop(kernel.report_store_failure(None, "old runs could not be removed from the store", &error))
                }
            }
        });
    }

    /// Removes slices until nothing is left to do. Pauses as long as each slice took, so that this takes at most half
    /// of the store's time.
    pub(crate) async fn tidy(&self) -> std::result::Result<Tidied, StoreError> {
        let mut all = Tidied::default();
        while !self.closed.load(Ordering::Acquire) {
            let began = self.env.clock.ticks();
            let done = self.store.tidy(self.env.clock.now()).await?;
            all.summarized += done.summarized;
            all.removed += done.removed;
            if !done.more {
                break;
            }
            let took = Duration::from_nanos(self.env.clock.ticks().saturating_sub(began));
            self.env.clock.sleep(took.max(limits::TIDY_PAUSE)).await;
        }
        Ok(all)
    }
}

impl Runtime {
    /// Removes everything that the store need not keep by now; see [`Retention`](crate::store::Retention). This happens
    /// periodically if [`Config::tidy_every`](crate::Config::tidy_every) is set. Dropping the future leaves the rest
    /// for the next time.
    pub async fn tidy(&self) -> Result<Tidied> {
        Ok(self.kernel.tidy().await?)
    }

    /// Removes one finished run now; see [`Upkeep::purge`](crate::store::Upkeep::purge).
    pub async fn purge(&self, run: RunId) -> Result<()> {
        let kernel = &self.kernel;
        Ok(kernel.store.purge(run, kernel.env.clock.now()).await?)
    }
}
