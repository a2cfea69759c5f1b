//! A store that fails outside of commits: reads, claims, renewals.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::Timestamp;
use windlass::store::{Store, StoreError};
use windlass_core::spawn::Spawn;
use windlass_core::store::{Answer, Commit, Promise};
use windlass_core::testing::{Around, Asked, Request, Sim};
use windlass_core::time::Clock;

/// A store whose reads, claims or renewals fail this many times.
pub(crate) struct Shaky {
    inner: Arc<dyn Store>,
    /// Reads of mail that succeed first.
    pub(crate) readable: AtomicU32,
    pub(crate) mail: AtomicU32,
    /// Claims that happen, but whose answer is lost.
    pub(crate) claim: AtomicU32,
    pub(crate) renew: AtomicU32,
    /// Delay of the answers to claims.
    pub(crate) slow: parking_lot::Mutex<Option<(Sim, Duration)>>,
    /// Delay of the next commits before they are made.
    pub(crate) slow_commits: parking_lot::Mutex<VecDeque<(Sim, Duration)>>,
    /// Delay of the next read of a run's row, before and after the read.
    pub(crate) slow_look: parking_lot::Mutex<Option<(Sim, [Duration; 2])>>,
    /// When leases were renewed, by this clock.
    pub(crate) leases: parking_lot::Mutex<Vec<Timestamp>>,
    pub(crate) clock: parking_lot::Mutex<Option<Sim>>,
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
            clock: Default::default(),
        })
    }

    fn fails(count: &AtomicU32) -> Option<StoreError> {
        let less = |left: u32| left.checked_sub(1);
        let failed = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
        failed.then(|| StoreError::Unknown("shaky".to_owned()))
    }
}

impl Around for Shaky {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

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

    fn ask<'a, T: Send + 'a>(
        &'a self,
        request: Request,
        ask: impl FnOnce(&'a dyn Store) -> Asked<'a, T> + Send + 'a,
    ) -> Asked<'a, T> {
        let failed = |error| -> Asked<'a, T> { Box::pin(std::future::ready(Err(error))) };
        match request {
            Request::Claim | Request::ClaimDue => Box::pin(async move {
                let claimed = ask(&*self.inner).await;
                let slow = self.slow.lock().clone();
                if let Some((sim, time)) = slow {
                    sim.sleep(time).await;
                }
                Self::fails(&self.claim).map_or(claimed, Err)
            }),
            Request::Renew(_) => match Self::fails(&self.renew) {
                Some(error) => failed(error),
                None => {
                    self.leases.lock().extend(self.clock.lock().as_ref().map(|clock| clock.now()));
                    ask(&*self.inner)
                }
            },
            Request::Info => {
                let slow = self.slow_look.lock().take();
                let Some((sim, [there, back])) = slow else { return ask(&*self.inner) };
                Box::pin(async move {
                    sim.sleep(there).await;
                    let info = ask(&*self.inner).await;
                    sim.sleep(back).await;
                    info
                })
            }
            Request::Mail => {
                let fails = if Self::fails(&self.readable).is_some() { None } else { Self::fails(&self.mail) };
                fails.map_or_else(|| ask(&*self.inner), failed)
            }
            _ => ask(&*self.inner),
        }
    }
}
