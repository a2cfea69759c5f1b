//! Waiting for the end of any run. The store tells this run when the other one finishes, and this run then reads the
//! outcome from the store. A spawned run needs none of this: it reports its end to its parent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::id::RunId;
use crate::run::drive::Completion;
use crate::run::record::{Event, Record, Recorded};
use crate::run::state::{Blocked, Park, RunInfo, RunState};
use crate::run::{Awake, Registration, Run};
use crate::store::{Change, Commit, Guard, Message, StoreError};
use crate::tool::ToolError;

/// The most runs that are searched for a cycle of waits. A longer chain is not refused.
const LONGEST_CHAIN: usize = 64;

/// Finds out when a run ends.
pub(crate) struct RunWatch {
    run: Arc<Run>,
    awaited: RunId,
    /// Whether only the end of the run can end the wait, so that it must not be part of a cycle.
    is_blocking: bool,
    /// Whether the run existed when the wait began.
    was_found: bool,
    state: WatchState,
    waiter: EndNotice,
    registration: Registration,
    /// Keeps this run from being suspended while the store is asked.
    awake: Awake,
}

enum WatchState {
    /// This run must be in the store before the other one can notify it.
    Durable,
    Asked(BoxFuture<'static, Result<Option<Recorded>, StoreError>>),
    /// The other run has not ended, and notifies this one when it does.
    Registered,
    /// The store failed, so this run is reloaded.
    Over,
}

impl RunWatch {
    pub(crate) fn new(run: &Arc<Run>, awaited: RunId, is_blocking: bool, was_found: bool) -> Self {
        Self {
            run: run.clone(),
            awaited,
            is_blocking,
            was_found,
            state: WatchState::Durable,
            waiter: EndNotice::new(run, awaited),
            registration: Registration::default(),
            awake: Awake::default(),
        }
    }

    /// Ready with the result if the run has ended, with `None` if it has not and will notify this run. Pending while
    /// the store is asked.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Recorded>> {
        // Registered first, so that every later event wakes it.
        self.registration.register(&self.run, cx);
        loop {
            match &mut self.state {
                WatchState::Durable => {
                    self.awake.set(&self.run, true);
                    let (is_stored, mark) =
                        self.run.with(|machine| (machine.outbox().is_stored(), machine.outbox().written()));
                    if !self.run.is_durable(mark) || !is_stored {
                        return Poll::Pending;
                    }
                    let (run, awaited) = (self.run.clone(), self.awaited);
                    self.state = WatchState::Asked(Box::pin(ask(run, awaited, self.is_blocking, self.was_found)));
                }
                WatchState::Asked(answer) => match std::task::ready!(answer.poll_unpin(cx)) {
                    Ok(Some(result)) => {
                        self.state = WatchState::Over;
                        return Poll::Ready(Some(result));
                    }
                    Ok(None) => {
                        self.was_found = true;
                        self.state = WatchState::Registered;
                    }
                    // A body never sees a store failure: the journal is reloaded, and replay decides.
                    Err(error) => {
                        self.state = WatchState::Over;
                        self.run.failed(error);
                        return Poll::Pending;
                    }
                },
                WatchState::Registered => {
                    let is_told = self.run.with(|machine| machine.is_told_over(self.awaited));
                    if !is_told && self.waiter.poll(cx).is_pending() {
                        self.awake.set(&self.run, false);
                        return Poll::Ready(None);
                    }
                    self.waiter = EndNotice::new(&self.run, self.awaited);
                    self.state = WatchState::Durable;
                }
                WatchState::Over => return Poll::Pending,
            }
        }
    }
}

/// Completes when this process stops driving a run.
struct EndNotice {
    run: Arc<Run>,
    awaited: RunId,
    completion: Arc<Completion>,
}

impl EndNotice {
    fn new(run: &Arc<Run>, awaited: RunId) -> Self {
        Self { run: run.clone(), awaited, completion: run.kernel.roster.add_waiter(awaited) }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.completion.wait()).poll(cx).map(drop)
    }
}

impl Drop for EndNotice {
    fn drop(&mut self) {
        self.run.kernel.roster.remove_waiter(self.awaited, &self.completion);
    }
}

/// The result of a run that has ended. If it has not, asks it to notify `run`.
async fn ask(
    run: Arc<Run>,
    awaited: RunId,
    is_blocking: bool,
    was_found: bool,
) -> Result<Option<Recorded>, StoreError> {
    let (kernel, store) = (&run.kernel, &run.kernel.store);
    // A run that was started a moment ago may not be in the store yet.
    if let Some(driven) = kernel.roster.driven(awaited).filter(|_| awaited != run.id) {
        driven.run.flush().await;
    }
    let Some(info) = store.info(awaited).await? else { return Ok(Some(missing(awaited, was_found))) };
    if let RunState::Finished { .. } = info.state {
        return outcome(&run, awaited).await.map(Some);
    }
    if is_blocking && let Some(cycle) = cycle(&run, info).await? {
        return Ok(Some(Err(Arc::new(ToolError::unavailable(cycle)))));
    }
    // Noted before the request is written, because the run may end right after that.
    kernel.undriven.awaited.insert(awaited);
    let message = Message::Await { by: run.id };
    let dedupe = Some(format!("await {}", run.id).into());
    let changes = vec![Change::Mail { run: awaited, message, dedupe }];
    match store.commit(Commit { guard: Guard::Outsider, changes }).get().await {
        Ok(()) | Err(StoreError::Duplicate { .. }) => Ok(None),
        Err(StoreError::Finished(_)) => outcome(&run, awaited).await.map(Some),
        Err(StoreError::NoSuchRun(_)) => Ok(Some(missing(awaited, true))),
        Err(error) => Err(error),
    }
}

fn missing(run: RunId, was_found: bool) -> Recorded {
    let (code, message) = if was_found {
        ("run_removed", format!("run {run} was removed before its outcome was read; await it before it is purged"))
    } else {
        ("no_such_run", format!("there is no run {run}, or it was removed; check the id"))
    };
    Err(Arc::new(ToolError::rejected(code, message)))
}

/// The recorded outcome of a run that has ended.
async fn outcome(run: &Run, awaited: RunId) -> Result<Recorded, StoreError> {
    match run.kernel.store.journal(awaited, 0).await {
        Ok(journal) => Ok(root_outcome(&journal).unwrap_or_else(|| missing(awaited, true))),
        Err(StoreError::NoSuchRun(_) | StoreError::JournalGone(_)) => Ok(missing(awaited, true)),
        Err(error) => Err(error),
    }
}

fn root_outcome(journal: &[Record]) -> Option<Recorded> {
    journal.iter().rev().find_map(|record| match &record.event {
        Event::Finished(finished) if record.path.is_root() => Some(finished.answer()),
        _ => None,
    })
}

/// Names the cycle that a wait of `run` would close, as far as the store has the waits of the other runs: those of
/// runs that this process drives are also known to admission, and those of suspended runs only to the store.
async fn cycle(run: &Run, awaited: RunInfo) -> Result<Option<String>, StoreError> {
    let first = awaited.run;
    if first == run.id {
        return Ok(Some(format!("run {first} cannot wait for its own end")));
    }
    let mut chain = vec![first];
    let mut infos = vec![awaited];
    while let Some(info) = infos.pop() {
        for next in blocking(&info.parks) {
            if next == run.id {
                let (own, other) = (run.id, info.run);
                return Ok(Some(format!(
                    "run {own} wants to wait for the end of run {first}, while run {other} waits for the end of run {own}: \
                     neither could ever continue. Wait with a time limit, or in one direction only"
                )));
            }
            if !chain.contains(&next) && chain.len() < LONGEST_CHAIN {
                chain.push(next);
                infos.extend(run.kernel.store.info(next).await?);
            }
        }
    }
    Ok(None)
}

/// The runs whose end a run waits for without an alternative. A branch of a race has others beside it.
fn blocking(parks: &[Park]) -> impl Iterator<Item = RunId> {
    let beside = |park: &Park, other: &Park| park.path != other.path && park.path.parent() == other.path.parent();
    let is_alone = move |park: &&Park| !parks.iter().any(|other| beside(park, other));
    parks.iter().filter(|park| park.until.is_none()).filter(is_alone).filter_map(|park| match park.on {
        Blocked::Child { run } => Some(run),
        _ => None,
    })
}
