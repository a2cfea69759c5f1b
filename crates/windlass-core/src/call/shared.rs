//! What an operation requests from admission that several workers share: a key, permission to wait for the end of a
//! run, or a slot for an attempt. The store decides, and answers later.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::limits;
use crate::path::Path;
use crate::run::{Awake, Registration, Run};
use crate::store::{SharedAdmission, Slot, SlotRequest, Store, StoreError, Verdict, WaitRequest, Wants};

/// A request for a key, or for permission to wait, and the wait for its answer.
pub(crate) struct SharedWait {
    run: Arc<Run>,
    path: Path,
    wants: Wants,
    held: Vec<Arc<str>>,
    state: AskState,
    registration: Registration,
    /// Keeps the run from being suspended while the store is asked.
    awake: Awake,
}

enum AskState {
    /// Waits until everything before the request is durable, because another worker must be able to find the operation
    /// that has the place.
    Durable,
    Asked(BoxFuture<'static, Result<Verdict, StoreError>>),
    Queued,
    Granted,
    /// Refused, or the run has stopped.
    Over,
}

impl SharedWait {
    pub(crate) fn new(run: &Arc<Run>, path: &Path, wants: Wants, held: Vec<Arc<str>>) -> Self {
        Self {
            run: run.clone(),
            path: path.clone(),
            wants,
            held,
            state: AskState::Durable,
            registration: Registration::default(),
            awake: Awake::default(),
        }
    }

    pub(crate) fn is_queued(&self) -> bool {
        matches!(self.state, AskState::Queued)
    }

    /// Ready once it is granted. An error names a cycle. While this is pending, the caller must record that the
    /// operation was asked for; otherwise its run would never be in the store.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        // Registered first, so that every later event wakes it.
        self.registration.register(&self.run, cx);
        loop {
            match &mut self.state {
                AskState::Durable => {
                    let (is_stored, mark) =
                        self.run.with(|machine| (machine.outbox().is_stored(), machine.outbox().written()));
                    if !self.run.is_durable(mark) || !is_stored {
                        self.awake.set(&self.run, true);
                        return Poll::Pending;
                    }
                    self.state = AskState::Asked(self.request());
                }
                AskState::Asked(request) => {
                    self.awake.set(&self.run, true);
                    let verdict = std::task::ready!(request.poll_unpin(cx));
                    self.state = AskState::Over;
                    match verdict {
                        Ok(Verdict::Granted) => {
                            self.run.with(|machine| machine.take_granted(&self.path));
                            self.state = AskState::Granted;
                        }
                        Ok(Verdict::Queued) => self.state = AskState::Queued,
                        Ok(Verdict::Refused(cycle)) => return Poll::Ready(Err(cycle)),
                        // A body never sees a store failure: the journal is reloaded, and the request is repeated.
                        Err(error) => {
                            self.run.failed(error);
                            return Poll::Pending;
                        }
                    }
                }
                AskState::Queued if self.run.with(|machine| machine.take_granted(&self.path)) => {
                    self.state = AskState::Granted;
                }
                AskState::Queued => {
                    self.awake.set(&self.run, false);
                    return Poll::Pending;
                }
                AskState::Granted => {
                    self.awake.set(&self.run, false);
                    return Poll::Ready(Ok(()));
                }
                AskState::Over => return Poll::Pending,
            }
        }
    }

    fn request(&self) -> BoxFuture<'static, Result<Verdict, StoreError>> {
        let request = WaitRequest {
            run: self.run.id,
            epoch: self.run.with(|machine| machine.outbox().epoch()),
            path: self.path.clone(),
            wants: self.wants.clone(),
            held: self.held.clone(),
        };
        let store = self.run.kernel.store.clone();
        Box::pin(async move { shared(&*store)?.request(request).await })
    }

    /// Withdraws a request in flight. It may reach the store after the commit that gives up the place, so it needs a
    /// withdrawal of its own.
    pub(crate) fn withdraw_if_asked(&mut self) {
        if let AskState::Asked(request) = std::mem::replace(&mut self.state, AskState::Over) {
            let (store, run, path) = (self.run.kernel.store.clone(), self.run.clone(), self.path.clone());
            self.run.kernel.env.spawn.spawn(Box::pin(async move {
                if request.await.is_err() {
                    return;
                }
                until_done(&run, || async { shared(&*store)?.withdraw(run.id, path.clone()).await }).await;
            }));
        }
    }

    /// The operation no longer waits for the end of a run.
    pub(crate) fn withdraw(&mut self) {
        let (store, run, path) = (self.run.kernel.store.clone(), self.run.clone(), self.path.clone());
        self.withdraw_if_asked();
        self.run.kernel.env.spawn.spawn(Box::pin(async move {
            until_done(&run, || async { shared(&*store)?.withdraw(run.id, path.clone()).await }).await;
        }));
    }
}

/// A slot for one attempt. Dropping it releases the slot.
pub(crate) struct SharedSlot {
    run: Arc<Run>,
    request: SlotRequest,
    state: SlotState,
    registration: Registration,
}

enum SlotState {
    Asked(BoxFuture<'static, Result<Slot, StoreError>>),
    /// Asked again after a while, or at the next event of the run.
    Queued(BoxFuture<'static, ()>),
    /// Waits for the tool's rate limit.
    Paced(BoxFuture<'static, ()>),
    Granted,
}

impl SharedSlot {
    pub(crate) fn new(run: &Arc<Run>, request: SlotRequest) -> Self {
        let state = SlotState::Asked(enter(run, &request));
        Self { run: run.clone(), request, state, registration: Registration::default() }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.registration.register(&self.run, cx);
        let clock = &self.run.kernel.env.clock;
        if let SlotState::Queued(_) = self.state {
            self.state = SlotState::Asked(enter(&self.run, &self.request));
        }
        loop {
            self.state = match &mut self.state {
                SlotState::Asked(asked) => match std::task::ready!(asked.poll_unpin(cx)) {
                    Ok(Slot::Granted(wait)) if wait.is_zero() => SlotState::Granted,
                    Ok(Slot::Granted(wait)) => SlotState::Paced(clock.sleep(wait)),
                    Ok(Slot::Queued) => SlotState::Queued(clock.sleep(limits::WORKER_POLL)),
                    Err(error) => {
                        self.run.kernel.report_store_failure(
                            Some(self.run.id),
                            "the request for an attempt slot failed",
                            &error,
                        );
                        SlotState::Queued(clock.sleep(limits::STORE_RETRY))
                    }
                },
                SlotState::Queued(timer) => {
                    std::task::ready!(timer.poll_unpin(cx));
                    SlotState::Asked(enter(&self.run, &self.request))
                }
                SlotState::Paced(timer) => {
                    std::task::ready!(timer.poll_unpin(cx));
                    SlotState::Granted
                }
                SlotState::Granted => return Poll::Ready(()),
            }
        }
    }
}

impl Drop for SharedSlot {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut self.state, SlotState::Granted);
        let (run, worker, slot) = (self.run.clone(), self.request.worker, self.request.slot);
        self.run.kernel.env.spawn.spawn(Box::pin(async move {
            // A request in flight may reach the store after this one.
            if let SlotState::Asked(asked) = state {
                drop(asked.await);
            }
            let store = &run.kernel.store;
            until_done(&run, || async { shared(&**store)?.leave(worker, slot).await }).await;
        }));
    }
}

fn enter(run: &Run, request: &SlotRequest) -> BoxFuture<'static, Result<Slot, StoreError>> {
    let (store, request) = (run.kernel.store.clone(), request.clone());
    Box::pin(async move { shared(&*store)?.enter(request).await })
}

fn shared(store: &dyn Store) -> Result<&dyn SharedAdmission, StoreError> {
    store.admission().ok_or_else(|| StoreError::Invalid("the store does not support shared admission".to_owned()))
}

/// Repeats a release until the store accepts it, because no other worker can get what a worker with a lease still
/// holds.
async fn until_done<F>(run: &Run, ask: impl Fn() -> F)
where
    F: Future<Output = Result<(), StoreError>>,
{
    while let Err(error) = ask().await {
        run.kernel.report_store_failure(Some(run.id), "a place in a queue could not be released", &error);
        if run.kernel.closed.load(Ordering::Acquire) {
            return;
        }
        run.kernel.env.clock.sleep(limits::STORE_RETRY).await;
    }
}
