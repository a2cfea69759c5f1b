//! Housekeeping: what a store keeps no longer goes a little at a time, behind the commits of runs that go on.

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
    /// Tidies the store now and then until this runtime is shut down.
    pub(crate) fn begin_tidying(self: &Arc<Self>, every: Duration) {
        self.every(every, |kernel| async move {
            match kernel.tidy().await {
                Ok(Tidied { summarized: 0, removed: 0, .. }) => {}
                Ok(done) => tracing::info!(summarized = done.summarized, removed = done.removed, "tidied up"),
                // Not a loss: what is kept too long is tried again the next time.
                Err(error) => drop(kernel.troubled(None, "the store cannot be tidied", &error)),
            }
        });
    }

    /// Slices until there is nothing more to do, with pauses as long as they were: housekeeping takes at most half of the
    /// store's time.
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
    /// Lets go of everything the store keeps no longer by now; see [`Retention`](crate::store::Retention). Happens by itself
    /// now and then where [`Config::tidy_every`](crate::Config::tidy_every) says so. Dropping the future leaves the rest for
    /// the next time.
    pub async fn tidy(&self) -> Result<Tidied> {
        Ok(self.kernel.tidy().await?)
    }

    /// Forgets one finished run at once; see [`Upkeep::purge`](crate::store::Upkeep::purge).
    pub async fn purge(&self, run: RunId) -> Result<()> {
        let kernel = &self.kernel;
        Ok(kernel.store.purge(run, kernel.env.clock.now()).await?)
    }
}
