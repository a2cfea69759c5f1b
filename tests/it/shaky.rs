//! A store that fails where commits are not concerned: reads, claims, renewals.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use windlass::record::Record;
use windlass::{Filter, RunId, RunInfo, Store, StoreError, Timestamp};
use windlass_core::WorkerId;
use windlass_core::spawn::Spawn;
use windlass_core::store::{Answer, Claimant, Claimed, Commit, Due, Entry, Mail, Promise};
use windlass_core::testing::Sim;
use windlass_core::time::Clock;

/// A store whose reads, claims or renewals fail so many times.
pub(crate) struct Shaky {
    inner: Arc<dyn Store>,
    /// Reads of mail that do not fail yet.
    pub(crate) readable: AtomicU32,
    pub(crate) mail: AtomicU32,
    /// Claims that happen, and whose answer is lost.
    pub(crate) claim: AtomicU32,
    pub(crate) renew: AtomicU32,
    /// Answers to claims take this long on their way.
    pub(crate) slow: parking_lot::Mutex<Option<(Sim, Duration)>>,
    /// The next commits take this long on their way there.
    pub(crate) slow_commits: parking_lot::Mutex<VecDeque<(Sim, Duration)>>,
    /// The next look at a run's row takes this long on its way there, and this long on its way back.
    pub(crate) slow_look: parking_lot::Mutex<Option<(Sim, [Duration; 2])>>,
    /// Until when leases were taken.
    pub(crate) leases: parking_lot::Mutex<Vec<Timestamp>>,
}

impl Shaky {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            readable: 0.into(),
            mail: 0.into(),
            claim: 0.into(),
            renew: 0.into(),
            slow: Default::default(),
            slow_commits: Default::default(),
            slow_look: Default::default(),
            leases: Default::default(),
        })
    }

    fn fails(count: &AtomicU32) -> Option<StoreError> {
        let less = |left: u32| left.checked_sub(1);
        let failed = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
        failed.then(|| StoreError::Unknown("shaky".to_owned()))
    }
}

impl Store for Shaky {
    fn commit(&self, commit: Commit) -> Answer<()> {
        let slow = self.slow_commits.lock().pop_front();
        let Some((sim, time)) = slow else { return self.inner.commit(commit) };
        let ((promise, ticket), inner, clock) = (Promise::pair(), self.inner.clone(), sim.clone());
        sim.spawn(Box::pin(async move {
            clock.sleep(time).await;
            promise.answer(inner.commit(commit).get().await);
        }));
        Answer::Wait(ticket)
    }

    fn claim(&self, run: RunId, by: Claimant) -> BoxFuture<'_, Result<Claimed, StoreError>> {
        Box::pin(async move {
            let claimed = self.inner.claim(run, by).await;
            let slow = self.slow.lock().clone();
            if let Some((sim, time)) = slow {
                sim.sleep(time).await;
            }
            Self::fails(&self.claim).map_or(claimed, Err)
        })
    }

    fn release(&self, run: RunId, epoch: u64) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.release(run, epoch)
    }

    fn renew(&self, worker: WorkerId, until: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
        match Self::fails(&self.renew) {
            Some(error) => Box::pin(std::future::ready(Err(error))),
            None => {
                self.leases.lock().push(until);
                self.inner.renew(worker, until)
            }
        }
    }

    fn due(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Due, StoreError>> {
        self.inner.due(now, limit)
    }

    fn info(&self, run: RunId) -> BoxFuture<'_, Result<Option<RunInfo>, StoreError>> {
        let slow = self.slow_look.lock().take();
        Box::pin(async move {
            let Some((sim, [there, back])) = slow else { return self.inner.info(run).await };
            sim.sleep(there).await;
            let info = self.inner.info(run).await;
            sim.sleep(back).await;
            info
        })
    }

    fn journal(&self, run: RunId, from: u64) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        self.inner.journal(run, from)
    }

    fn feed(&self, session: Arc<str>, after: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Entry>, StoreError>> {
        self.inner.feed(session, after, limit)
    }

    fn mail(&self, run: RunId, after: u64) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>> {
        let fails = if Self::fails(&self.readable).is_some() { None } else { Self::fails(&self.mail) };
        match fails {
            Some(error) => Box::pin(std::future::ready(Err(error))),
            None => self.inner.mail(run, after),
        }
    }

    fn list(
        &self,
        filter: Filter,
        after: Option<RunId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<RunInfo>, StoreError>> {
        self.inner.list(filter, after, limit)
    }

    fn artifacts(&self) -> &dyn windlass::Artifacts {
        self.inner.artifacts()
    }

    fn secret(&self) -> [u8; 32] {
        self.inner.secret()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}
