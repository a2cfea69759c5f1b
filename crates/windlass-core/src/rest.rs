//! Runs at rest: in the store and nowhere else. They are taken up again when somebody writes to them or their time
//! comes; whoever waits for their end waits here. A run at rest that nobody waits for costs this process nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;

use crate::id::RunId;
use crate::kernel::Kernel;
use crate::limits;
use crate::roster::Cause;
use crate::run::Run;
use crate::run::drive::{Completion, RunEnd};
use crate::run::state::RunState;
use crate::store::{Change, Commit, Guard, Message, StoreError};
use crate::time::Timestamp;
use crate::tool::ToolError;
use crate::troubles::Troubles;

#[derive(Default)]
pub(crate) struct Rest {
    alarm: Mutex<Alarm>,
    /// What was told of a store that fails: every run meets that.
    troubles: Troubles,
}

/// When the next suspended run is due.
#[derive(Default)]
struct Alarm {
    at: Option<Timestamp>,
    /// The task that waits for it, if there is one.
    task: Option<Waker>,
    running: bool,
}

/// Waits for the end of a run, however often it rests until then.
struct Outlasting<'k> {
    kernel: &'k Kernel,
    run: RunId,
    completion: Arc<Completion>,
}

impl Drop for Outlasting<'_> {
    fn drop(&mut self) {
        self.kernel.roster.unwait(self.run, &self.completion);
    }
}

impl Kernel {
    /// Waits until a run at rest has ended or is held, however often it is taken up until then, or until this runtime has
    /// nothing more to do with it.
    pub(crate) async fn outlast(self: &Arc<Self>, run: RunId) -> Result<(), StoreError> {
        let completion = self.roster.wait(run);
        let waits = Outlasting { kernel: self, run, completion };
        // It may have ended before anybody was known to wait.
        let info = self.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        if is_over(&info.state) || self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.lease.look_around() {
            None => {
                waits.completion.wait().await;
            }
            // Another worker may take it up, and nobody here would be told.
            Some(look) => {
                futures_util::future::select(waits.completion.wait(), self.env.clock.sleep(look)).await;
            }
        }
        Ok(())
    }

    /// This runtime has nothing more to do with any run.
    pub(crate) fn forget_all(&self) {
        self.roster.clear().into_iter().for_each(|told| self.tell(told, &RunEnd::Elsewhere));
        if let Some(task) = self.rest.alarm.lock().task.take() {
            task.wake();
        }
        self.reach.watchers.over();
    }

    /// A run was suspended: nothing that came for it meanwhile may be lost.
    pub(crate) fn after_suspension(self: &Arc<Self>, run: &Arc<Run>, wake: Option<Timestamp>) {
        if let Some(wake) = wake {
            self.set_alarm(wake);
        }
        if self.admission.keys.has_news(run.id) {
            return self.nudge(run.id);
        }
        let (kernel, id, seen) = (self.clone(), run.id, run.with(|machine| machine.seen()));
        self.env.spawn.spawn(Box::pin(async move {
            match kernel.store.mail(id, seen).await {
                Ok(mail) if mail.is_empty() => {}
                Ok(_) => kernel.nudge(id),
                Err(error) => {
                    kernel.troubled(Some(id), "a mailbox cannot be read", &error);
                    kernel.nudge(id);
                }
            }
        }));
    }

    /// Writes to a run for another one. The mailbox takes it once. The inner result is what the other one is told.
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
                Ok(Err(ToolError::rejected("run_over", format!("{error}: it takes nothing any more"))))
            }
            Err(error) => Err(error),
        }
    }

    /// Checks a signal against what the run's tool declared. The inner result is for whoever sends it.
    pub(crate) async fn check_signal(
        &self,
        run: RunId,
        name: &str,
        value: &Value,
    ) -> Result<Result<(), ToolError>, StoreError> {
        let Some(info) = self.store.info(run).await? else {
            return Ok(Err(ToolError::rejected("run_over", format!("there is no run {run}"))));
        };
        let Some(tool) = self.env.toolbox.recorded(&info.tool, &self.layers_of(run).await?) else {
            let message = format!("the tool `{}` of run {run} is not registered here", info.tool);
            return Ok(Err(ToolError::unavailable(message)));
        };
        Ok(tool.channels().check_signal(&tool.spec().name, name, value))
    }

    /// Warns that the store failed, once per cause for all runs that meet it. Returns the text that names the trouble.
    pub(crate) fn troubled(&self, run: Option<RunId>, what: &str, error: &StoreError) -> String {
        let trouble = format!("{what}: {error}");
        let now = std::time::Duration::from_nanos(self.env.clock.ticks());
        match (self.rest.troubles.met(&trouble, now), run) {
            (Some(untold), Some(run)) => tracing::warn!(%run, untold, "{trouble}"),
            (Some(untold), None) => tracing::warn!(untold, "{trouble}"),
            (None, _) => {}
        }
        trouble
    }

    /// Logs the end of a trouble, if its beginning was logged.
    pub(crate) fn trouble_over(&self, trouble: Option<String>) {
        if let Some(trouble) = trouble
            && let Some(untold) = self.rest.troubles.over(&trouble)
        {
            tracing::warn!(untold, "recovered from: {trouble}");
        }
    }

    /// Makes sure that suspended runs are looked for at this time.
    pub(crate) fn set_alarm(self: &Arc<Self>, at: Timestamp) {
        let mut alarm = self.rest.alarm.lock();
        if alarm.at.is_some_and(|set| set <= at) && alarm.running {
            return;
        }
        alarm.at = Some(at);
        if let Some(task) = alarm.task.take() {
            task.wake();
        }
        if !std::mem::replace(&mut alarm.running, true) {
            let kernel = Arc::downgrade(self);
            let clock = self.env.clock.clone();
            self.env.spawn.spawn(Box::pin(async move {
                loop {
                    let Some(strong) = kernel.upgrade() else { return };
                    if strong.closed.load(Ordering::Acquire) {
                        return;
                    }
                    let Some(at) = strong.rest.next_alarm() else { return };
                    // The wall clock may jump, as a laptop's does that slept: it is looked at now and then.
                    let timer = clock.sleep(at.since(clock.now()).min(limits::ALARM_LOOK));
                    let rung = Ringing { kernel: kernel.clone(), at, timer };
                    drop(strong);
                    if rung.await {
                        let Some(strong) = kernel.upgrade() else { return };
                        strong.take_up_due().await;
                    }
                }
            }));
        }
    }

    /// Has every run taken up that is due.
    pub(crate) fn look_for_due(self: &Arc<Self>) {
        let kernel = self.clone();
        self.env.spawn.spawn(Box::pin(async move { kernel.take_up_due().await }));
    }

    /// Takes up every run that is due, a bounded number at a time, and sets the alarm for the next.
    pub(crate) async fn take_up_due(self: &Arc<Self>) {
        let mut before = Vec::new();
        while self.drives && !self.closed.load(Ordering::Acquire) {
            let due = match self.store.due(self.env.clock.now(), limits::TAKEN_UP_AT_ONCE).await {
                Ok(due) => due,
                Err(error) => {
                    self.troubled(None, "suspended runs cannot be looked for", &error);
                    return self.set_alarm(self.env.clock.now() + limits::LOOK_AGAIN);
                }
            };
            // What is listed again was not taken: it is not its turn, or somebody else has it.
            let fresh: Vec<RunId> = due.runs.iter().filter(|run| !before.contains(*run)).copied().collect();
            if fresh.is_empty() {
                due.next.into_iter().for_each(|next| self.set_alarm(next));
                return;
            }
            for run in &fresh {
                // One after the other, so that a thousand runs that are due together do not keep new calls waiting.
                // An error is tried again by the task that met it.
                drop(self.take_up(*run, Cause::Left).await);
            }
            before = due.runs;
            self.room().await;
        }
    }

    /// A pause in which new calls get their turn; a longer one while all attempts there may be are under way.
    pub(crate) async fn room(&self) {
        self.env.clock.sleep(limits::TAKE_UP_PAUSE).await;
        for _ in 0..limits::TAKE_UP_PATIENCE {
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

impl Rest {
    fn next_alarm(&self) -> Option<Timestamp> {
        let mut alarm = self.alarm.lock();
        alarm.running = alarm.at.is_some();
        alarm.at
    }

    /// Polled until the alarm is set to another time.
    fn is_changed(&self, at: Timestamp, cx: &Context<'_>) -> bool {
        let mut alarm = self.alarm.lock();
        alarm.task = Some(cx.waker().clone());
        alarm.at != Some(at)
    }

    fn rang(&self, at: Timestamp) {
        let mut alarm = self.alarm.lock();
        if alarm.at == Some(at) {
            alarm.at = None;
        }
    }
}

/// Waits for the alarm; true once it rings, false if it was set to another time, or if it is time to look at the clock.
struct Ringing {
    kernel: std::sync::Weak<Kernel>,
    at: Timestamp,
    timer: BoxFuture<'static, ()>,
}

impl Future for Ringing {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let Some(kernel) = self.kernel.upgrade() else { return Poll::Ready(false) };
        if kernel.closed.load(Ordering::Acquire) || kernel.rest.is_changed(self.at, cx) {
            return Poll::Ready(false);
        }
        std::task::ready!(self.timer.poll_unpin(cx));
        let rings = kernel.env.clock.now() >= self.at;
        if rings {
            kernel.rest.rang(self.at);
        }
        Poll::Ready(rings)
    }
}
