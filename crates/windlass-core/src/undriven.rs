//! Runs that this process does not drive at the moment: it finds those that are due and takes them up, waits for their
//! end, writes messages to them, and restores their places in the key queues. A suspended run without waiters has no task
//! and no entry in the roster.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use serde_json::Value;

use crate::drives::DriveScope;
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::limits;
use crate::roster::TakeUpCause;
use crate::run::Run;
use crate::run::drive::{Completion, RunEnd};
use crate::run::state::{RunInfo, RunState};
use crate::store::{Change, Commit, Filter, Guard, Message, OnChange, StoreError};
use crate::time::Timestamp;
use crate::tool::ToolError;
use crate::troubles::Troubles;

#[derive(Default)]
pub(crate) struct UndrivenRuns {
    due_timer: Mutex<DueTimer>,
    /// Limits the log lines about store failures, which every run meets at once.
    troubles: Troubles,
    /// Claims of due runs whose answers are outstanding.
    claiming: AtomicUsize,
    /// Whether a task looks for runs that are claimed by this worker and not driven.
    is_looking: AtomicBool,
    /// The store calls this when something was written. The store holds it weakly, so dropping it here ends the calls.
    pub(crate) on_change: Mutex<Option<OnChange>>,
    /// Whether the unfinished runs of the store have got back their places in the key queues.
    are_places_restored: futures_util::lock::Mutex<bool>,
    /// Runs whose end other runs wait for.
    pub(crate) awaited: AwaitedRuns,
}

/// Unfinished runs whose end a run of this process waits for, which may be suspended by then.
#[derive(Default)]
pub(crate) struct AwaitedRuns {
    runs: Mutex<FxHashSet<RunId>>,
    /// Whether there is any, to skip the lock at the end of every run.
    any: AtomicBool,
}

impl AwaitedRuns {
    pub(crate) fn insert(&self, run: RunId) {
        self.runs.lock().insert(run);
        self.any.store(true, Ordering::Release);
    }

    /// Whether the run was awaited. True only once.
    pub(crate) fn remove(&self, run: RunId) -> bool {
        self.any.load(Ordering::Acquire) && self.runs.lock().remove(&run)
    }
}

/// The timer for the next suspended run that is due.
#[derive(Default)]
struct DueTimer {
    at: Option<Timestamp>,
    /// Wakes the task that waits for the timer, if there is one.
    task: Option<Waker>,
    running: bool,
}

/// Waits for the end of a run, however often the run is suspended until then.
struct EndWaiter<'k> {
    kernel: &'k Kernel,
    run: RunId,
    completion: Arc<Completion>,
}

impl Drop for EndWaiter<'_> {
    fn drop(&mut self) {
        self.kernel.roster.remove_waiter(self.run, &self.completion);
    }
}

impl Kernel {
    /// Waits until a suspended run has ended or is held, however often it is taken up until then, or until this runtime
    /// is shut down.
    pub(crate) async fn wait_for_end(self: &Arc<Self>, run: RunId) -> Result<(), StoreError> {
        let completion = self.roster.add_waiter(run);
        let waits = EndWaiter { kernel: self, run, completion };
        // The run may have ended before this waiter was registered.
        let info = self.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        if is_over(&info.state) || self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.lease.poll_interval() {
            None => {
                waits.completion.wait().await;
            }
            // Another worker may take up the run, and would not notify this process.
            Some(look) => {
                futures_util::future::select(waits.completion.wait(), self.env.clock.sleep(look)).await;
            }
        }
        Ok(())
    }

    /// Forgets all runs at shutdown, and notifies everything that waits for them.
    pub(crate) fn forget_all(&self) {
        self.roster.clear().into_iter().for_each(|waiters| self.notify_waiters(waiters, &RunEnd::Elsewhere));
        if let Some(task) = self.undriven.due_timer.lock().task.take() {
            task.wake();
        }
        self.reach.watchers.wake_all();
    }

    /// A run was suspended. Takes care of everything that arrived for it meanwhile.
    pub(crate) fn after_suspension(self: &Arc<Self>, run: &Arc<Run>, wake: Option<Timestamp>) {
        if let Some(wake) = wake {
            self.set_due_timer(wake);
        }
        if self.admission.keys.has_unnoticed_key(run.id) {
            return self.take_up_for_key(run.id);
        }
        self.look_for_due();
    }

    /// Writes a message to a run on behalf of another run. The mailbox deduplicates it. The inner result is for the
    /// sending run.
    pub(crate) async fn write_to(
        self: &Arc<Self>,
        run: RunId,
        message: Message,
        dedupe: Arc<str>,
    ) -> Result<Result<(), ToolError>, StoreError> {
        if let Message::Signal { name, value } = &message
            && let Err(error) = self.check_signal(run, name, value).await?
        {
            return Ok(Err(error));
        }
        let changes = vec![Change::Mail { run, message, dedupe: Some(dedupe) }];
        match self.store.commit(Commit { guard: Guard::Outsider, changes }).get().await {
            Ok(()) | Err(StoreError::Duplicate { .. }) => {
                self.nudge(run);
                Ok(Ok(()))
            }
            Err(error @ (StoreError::Finished(_) | StoreError::NoSuchRun(_))) => {
                Ok(Err(ToolError::rejected("run_over", format!("{error}; it accepts no messages any more"))))
            }
            Err(error) => Err(error),
        }
    }

    /// Checks a signal against the channels that the run's tool declares. The inner result is for the sender.
    pub(crate) async fn check_signal(
        &self,
        run: RunId,
        name: &str,
        value: &Value,
    ) -> Result<Result<(), ToolError>, StoreError> {
        let Some(info) = self.store.info(run).await? else {
            return Ok(Err(ToolError::rejected("run_over", format!("there is no run {run}"))));
        };
        let Some(tool) = self.env.toolbox.recorded(&info.tool, &self.layers_of(run).await?, info.session.as_ref())
        else {
            let message = format!("the tool `{}` of run {run} is not registered here", info.tool);
            return Ok(Err(ToolError::unavailable(message)));
        };
        Ok(tool.channels().check_signal(&tool.spec().name, name, value))
    }

    /// Logs that the store failed, rate-limited per cause across all runs. Returns the text that identifies the cause.
    pub(crate) fn report_store_failure(&self, run: Option<RunId>, what: &str, error: &StoreError) -> String {
        let trouble = format!("{what}: {error}");
        let now = std::time::Duration::from_nanos(self.env.clock.ticks());
        match (self.undriven.troubles.met(&trouble, now), run) {
            (Some(suppressed), Some(run)) => tracing::warn!(%run, suppressed, "{trouble}"),
            (Some(suppressed), None) => tracing::warn!(suppressed, "{trouble}"),
            (None, _) => {}
        }
        trouble
    }

    /// Logs the end of a failure if its beginning was logged.
    pub(crate) fn report_recovery(&self, trouble: Option<String>) {
        if let Some(trouble) = trouble
            && let Some(suppressed) = self.undriven.troubles.over(&trouble)
        {
            tracing::warn!(suppressed, "recovered from: {trouble}");
        }
    }

    /// Makes sure that due runs are looked for at this time.
    pub(crate) fn set_due_timer(self: &Arc<Self>, at: Timestamp) {
        let mut due_timer = self.undriven.due_timer.lock();
        if due_timer.at.is_some_and(|set| set <= at) && due_timer.running {
            return;
        }
        due_timer.at = Some(at);
        if let Some(task) = due_timer.task.take() {
            task.wake();
        }
        if !std::mem::replace(&mut due_timer.running, true) {
            let kernel = Arc::downgrade(self);
            let clock = self.env.clock.clone();
            self.env.spawn.spawn(Box::pin(async move {
                loop {
                    let Some(strong) = kernel.upgrade() else { return };
                    if strong.closed.load(Ordering::Acquire) {
                        return;
                    }
                    let Some(at) = strong.undriven.next_due_time() else { return };
                    // The wall clock may jump, for instance after a laptop slept, so it is checked at intervals.
                    let timer = clock.sleep(at.since(clock.now()).min(limits::CLOCK_CHECK));
                    let due = DueTimerWait { kernel: kernel.clone(), at, timer };
                    drop(strong);
                    if due.await {
                        let Some(strong) = kernel.upgrade() else { return };
                        strong.take_up_due().await;
                    }
                }
            }));
        }
    }

    /// Takes up every run that is due. Several calls in a row lead to one request to the store.
    pub(crate) fn look_for_due(self: &Arc<Self>) {
        if self.drives.any() && !self.closed.load(Ordering::Acquire) {
            self.set_due_timer(self.env.clock.now());
        }
    }

    /// Claims and drives every run that is due, a bounded number at a time, and sets the timer for the next one.
    pub(crate) async fn take_up_due(self: &Arc<Self>) {
        if let DriveScope::Own(_) = self.drives {
            return self.take_up_own_due().await;
        }
        while self.drives.any() && !self.closed.load(Ordering::Acquire) {
            self.undriven.claiming.fetch_add(1, Ordering::AcqRel);
            let due = match self.restore_places().await {
                Ok(()) => self.store.claim_due(self.lease.worker, limits::CLAIM_BATCH).await,
                Err(error) => Err(error),
            };
            let due = match due {
                Ok(due) => due,
                Err(error) => {
                    self.undriven.claiming.fetch_sub(1, Ordering::AcqRel);
                    self.report_store_failure(None, "due runs could not be claimed", &error);
                    return self.look_for_undriven();
                }
            };
            let claimed_any = due.runs.iter().any(|(_, claimed)| claimed.is_ok());
            due.runs.into_iter().for_each(|(run, claimed)| self.take_up_claimed(run, claimed));
            self.undriven.claiming.fetch_sub(1, Ordering::AcqRel);
            if !claimed_any {
                return due.next.into_iter().for_each(|next| self.set_due_timer(self.env.clock.now() + next));
            }
            // A thousand runs that are due together must not delay new calls.
            self.pause_for_new_calls().await;
        }
    }

    /// The same for a runtime that drives only its own runs: the others stay unclaimed, however long they are due.
    async fn take_up_own_due(self: &Arc<Self>) {
        let due = match self.store.due(usize::MAX).await {
            Ok(due) => due,
            Err(error) => {
                self.report_store_failure(None, "due runs could not be listed", &error);
                return self.set_due_timer(self.env.clock.now() + limits::STORE_RETRY);
            }
        };
        due.runs.into_iter().for_each(|run| self.take_up_for(run, TakeUpCause::Key));
        due.next.into_iter().for_each(|next| self.set_due_timer(self.env.clock.now() + next));
    }

    /// Restores the places of unfinished runs in the key queues, once, before any of them continues. Does nothing where
    /// several workers share the store: there, the worker that drives a run holds its places.
    pub(crate) async fn restore_places(self: &Arc<Self>) -> Result<(), StoreError> {
        if self.lease.length.is_some() {
            return Ok(());
        }
        let mut are_places_restored = self.undriven.are_places_restored.lock().await;
        if !*are_places_restored {
            let mut places = self.store.key_places().await?;
            places.retain(|(run, _)| self.roster.driven(*run).is_none());
            *are_places_restored = true;
            drop(are_places_restored);
            self.admission.keys.restore(places).into_iter().for_each(|run| self.take_up_for_key(run));
        }
        Ok(())
    }

    /// Looks for runs that this worker owns and nothing drives: a claim of due runs failed, and may have claimed some
    /// all the same.
    fn look_for_undriven(self: &Arc<Self>) {
        if self.undriven.is_looking.swap(true, Ordering::AcqRel) {
            return;
        }
        let kernel = self.clone();
        self.env.spawn.spawn(Box::pin(async move {
            while !kernel.closed.load(Ordering::Acquire) {
                kernel.env.clock.sleep(limits::STORE_RETRY).await;
                // Cleared before the list is read, because a claim that fails during the read may be missing from the
                // list.
                kernel.undriven.is_looking.store(false, Ordering::Release);
                match kernel.owned_runs().await {
                    Ok(runs) => {
                        runs.into_iter().for_each(|(run, epoch)| kernel.take_up_after_lost_answer(run, Some(epoch)));
                        return kernel.take_up_due().await;
                    }
                    Err(error) => drop(kernel.report_store_failure(None, "runs could not be listed", &error)),
                }
                if kernel.undriven.is_looking.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        }));
    }

    /// Runs that the store lists as owned by this worker, and the epochs of their latest claims.
    async fn owned_runs(&self) -> Result<Vec<(RunId, u64)>, StoreError> {
        let (mut runs, mut after) = (Vec::new(), None);
        loop {
            let page = self.store.list(Filter::running(), after, limits::CLAIM_BATCH).await?;
            let Some(last) = page.last() else { return Ok(runs) };
            after = Some(last.run);
            let is_owned = |info: &&RunInfo| info.worker == self.lease.worker;
            runs.extend(page.iter().filter(is_owned).map(|info| (info.run, info.epoch)));
        }
    }

    /// Pauses so that new calls get their turn. The pause is longer while all attempt permits are in use.
    pub(crate) async fn pause_for_new_calls(&self) {
        self.env.clock.sleep(limits::TAKE_UP_PAUSE).await;
        for _ in 0..limits::TAKE_UP_PAUSES {
            if !self.admission.permits.is_full() || self.closed.load(Ordering::Acquire) {
                return;
            }
            self.env.clock.sleep(limits::TAKE_UP_PAUSE).await;
        }
    }
}

fn is_over(state: &RunState) -> bool {
    matches!(state, RunState::Finished { .. } | RunState::Held { .. })
}

impl UndrivenRuns {
    /// Whether runs may have been claimed that the roster does not list yet.
    pub(crate) fn is_claiming(&self) -> bool {
        self.claiming.load(Ordering::Acquire) > 0
    }

    fn next_due_time(&self) -> Option<Timestamp> {
        let mut due_timer = self.due_timer.lock();
        due_timer.running = due_timer.at.is_some();
        due_timer.at
    }

    /// Whether the timer was set to another time than `at`. Registers the task to be woken when it is.
    fn is_changed(&self, at: Timestamp, cx: &Context<'_>) -> bool {
        let mut due_timer = self.due_timer.lock();
        due_timer.task = Some(cx.waker().clone());
        due_timer.at != Some(at)
    }

    fn clear_due_timer(&self, at: Timestamp) {
        let mut due_timer = self.due_timer.lock();
        if due_timer.at == Some(at) {
            due_timer.at = None;
        }
    }
}

/// Waits for the timer. Resolves to true when it is due, and to false when it was set to another time or the wall clock
/// should be checked again.
struct DueTimerWait {
    kernel: std::sync::Weak<Kernel>,
    at: Timestamp,
    timer: BoxFuture<'static, ()>,
}

impl Future for DueTimerWait {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let Some(kernel) = self.kernel.upgrade() else { return Poll::Ready(false) };
        if kernel.closed.load(Ordering::Acquire) || kernel.undriven.is_changed(self.at, cx) {
            return Poll::Ready(false);
        }
        std::task::ready!(self.timer.poll_unpin(cx));
        let is_due = kernel.env.clock.now() >= self.at;
        if is_due {
            kernel.undriven.clear_due_timer(self.at);
        }
        Poll::Ready(is_due)
    }
}
