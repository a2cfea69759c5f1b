//! Runs at rest: in the store and nowhere else. They are taken up again when somebody writes to them or their time
//! comes; whoever waits for their end waits here. A run at rest that nobody waits for costs this process nothing.

use std::collections::BTreeMap;
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
use crate::run::Run;
use crate::run::drive::{Completion, RunEnd};
use crate::run::machine::TakenUp;
use crate::run::state::RunState;
use crate::store::{Change, Commit, Guard, Message, StoreError};
use crate::time::Timestamp;
use crate::tool::ToolError;

#[derive(Default)]
pub(crate) struct Rest {
    /// Whoever waits for the end of a run, however often it is suspended until then.
    waiting: Mutex<BTreeMap<RunId, Arc<Completion>>>,
    /// Runs that are being taken up, and whether and how somebody asked for that again meanwhile.
    waking: Mutex<BTreeMap<RunId, Option<Again>>>,
    /// Runs that are claimed, or about to be, and not driven yet; how often.
    taking: Mutex<BTreeMap<RunId, usize>>,
    alarm: Mutex<Alarm>,
}

/// How a run is to be taken up once more; see [`Kernel::wake_up_as`].
type Again = Option<TakenUp>;

/// When the next suspended run is due.
#[derive(Default)]
struct Alarm {
    at: Option<Timestamp>,
    /// The task that waits for it, if there is one.
    task: Option<Waker>,
    running: bool,
}

/// Waits for the end of a run at rest.
struct Outlasting<'k> {
    kernel: &'k Kernel,
    run: RunId,
    completion: Arc<Completion>,
}

impl Drop for Outlasting<'_> {
    fn drop(&mut self) {
        let mut waiting = self.kernel.rest.waiting.lock();
        // The map's and this one: nobody else waits.
        if waiting.get(&self.run).is_some_and(|other| Arc::ptr_eq(other, &self.completion))
            && Arc::strong_count(&self.completion) == 2
        {
            waiting.remove(&self.run);
        }
    }
}

/// Held while a run is claimed and not driven yet: to everybody else it looks like somebody else's.
pub(crate) struct Taking<'k> {
    kernel: &'k Kernel,
    run: RunId,
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        {
            let mut taking = self.kernel.rest.taking.lock();
            match taking.get_mut(&self.run) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(taking.remove(&self.run)),
            }
        }
        // Nobody drives it here: whoever waits for it looks for themselves.
        if !self.kernel.live.lock().contains_key(&self.run) {
            self.kernel.ended(self.run, &RunEnd::Elsewhere);
        }
    }
}

impl Kernel {
    /// The run is being taken up until the guard is dropped.
    pub(crate) fn taking(&self, run: RunId) -> Taking<'_> {
        *self.rest.taking.lock().entry(run).or_default() += 1;
        Taking { kernel: self, run }
    }

    /// Waits until a run at rest has ended or is held, however often it is taken up until then, or until this runtime has
    /// nothing more to do with it.
    pub(crate) async fn outlast(self: &Arc<Self>, run: RunId) -> Result<(), StoreError> {
        let completion = self.rest.waiting.lock().entry(run).or_default().clone();
        let waits = Outlasting { kernel: self, run, completion };
        // It may have ended before anybody was known to wait.
        let info = self.store.info(run).await?.ok_or(StoreError::NoSuchRun(run))?;
        if is_over(&info.state) || self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.lease.look() {
            None => {
                waits.completion.wait().await;
            }
            // Another worker may take it up, and nobody here would be told.
            Some(look) => {
                futures_util::future::select(waits.completion.wait(), self.clock.sleep(look)).await;
            }
        }
        Ok(())
    }

    /// Whether the run is being taken up.
    pub(crate) fn is_waking(&self, run: RunId) -> bool {
        self.rest.waking.lock().contains_key(&run) || self.rest.taking.lock().contains_key(&run)
    }

    /// This runtime has nothing more to do with any run.
    pub(crate) fn forget_all(&self) {
        let waiting = std::mem::take(&mut *self.rest.waiting.lock());
        waiting.into_values().for_each(|completion| completion.complete(RunEnd::Elsewhere));
        if let Some(task) = self.rest.alarm.lock().task.take() {
            task.wake();
        }
        self.reach.watchers.over();
    }

    /// Tells whoever waits how a run ended.
    pub(crate) fn ended(&self, run: RunId, end: &RunEnd) {
        let waiting = self.rest.waiting.lock().remove(&run);
        if let Some(completion) = waiting {
            completion.complete(end.clone());
        }
    }

    /// A run was suspended: nothing that came for it meanwhile may be lost.
    pub(crate) fn after_suspension(self: &Arc<Self>, run: &Arc<Run>, wake: Option<Timestamp>) {
        if let Some(wake) = wake {
            self.set_alarm(wake);
        }
        self.wake_for_mail(run.id, run.with(|machine| machine.seen()));
    }

    /// A run was let go of because somebody else has it. Whoever wrote to it meanwhile may have told the wrong one; and if
    /// the right one has suspended it by now, nobody else looks.
    pub(crate) fn after_supersession(self: &Arc<Self>, run: RunId) {
        if !self.closed.load(Ordering::Acquire) {
            self.wake_for_mail(run, 0);
        }
    }

    /// Takes up a run at rest if it has mail after that.
    fn wake_for_mail(self: &Arc<Self>, run: RunId, seen: u64) {
        let kernel = self.clone();
        self.spawn.spawn(Box::pin(async move {
            match kernel.store.mail(run, seen).await {
                Ok(mail) if mail.is_empty() => {}
                Ok(_) => kernel.wake_up(run),
                Err(error) => {
                    tracing::warn!(%run, "its mailbox cannot be read: {error}");
                    kernel.wake_up(run);
                }
            }
        }));
    }

    /// Takes up a run at rest. Mail that comes while that happens is seen.
    pub(crate) fn wake_up(self: &Arc<Self>, run: RunId) {
        self.wake_up_as(run, None);
    }

    /// The same for a run that is known to be nobody's, whatever its row says.
    pub(crate) fn wake_up_as(self: &Arc<Self>, run: RunId, how: Option<TakenUp>) {
        if self.closed.load(Ordering::Acquire) || !self.drives {
            return;
        }
        let again = match self.rest.waking.lock().entry(run) {
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                // Whoever knows that the run is nobody's may not be overruled by whoever does not.
                let known = entry.get().flatten();
                entry.insert(Some(how.or(known)));
                true
            }
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(None);
                false
            }
        };
        if !again {
            let kernel = self.clone();
            self.spawn.spawn(Box::pin(async move { kernel.waking(run, how).await }));
        }
    }

    /// Somebody wrote to the run.
    pub(crate) fn nudge(self: &Arc<Self>, run: RunId) {
        match self.notify(run) {
            Some(live) => self.spawn.spawn(Box::pin(async move { live.run.look_for_mail().await })),
            None => self.wake_up(run),
        }
    }

    /// Writes to a run for another one. The mailbox takes it once. The inner result is what the other one is told.
    pub(crate) async fn tell(
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
        let Some(tool) = self.toolbox.by_id(&info.tool) else {
            let message = format!("the tool `{}` of run {run} is not registered here", info.tool);
            return Ok(Err(ToolError::unavailable(message)));
        };
        Ok(tool.channels().check_signal(&tool.spec().name, name, value))
    }

    async fn waking(self: &Arc<Self>, run: RunId, how: Again) {
        let mut how = how;
        loop {
            if let Err(error) = self.take_up_rested(run, how).await {
                tracing::warn!(%run, "the run cannot be taken up yet: {error}");
                // It may have been claimed all the same, for nobody who knows of it.
                how = how.or(Some(TakenUp::Woken));
                // Whoever woke it will not do so again.
                self.clock.sleep(limits::LOOK_AGAIN).await;
                continue;
            }
            match self.woken(run) {
                Some(again) => how = again,
                None => return,
            }
        }
    }

    /// The run was taken up, or is not to be; returns whether and how somebody asked for that again meanwhile.
    fn woken(&self, run: RunId) -> Option<Again> {
        let again = {
            let mut waking = self.rest.waking.lock();
            let again = waking.insert(run, None).flatten();
            if again.is_none() {
                waking.remove(&run);
            }
            again
        };
        // Nobody drives it here: whoever waits for it looks for themselves.
        if again.is_none() && !self.live.lock().contains_key(&run) {
            self.ended(run, &RunEnd::Elsewhere);
        }
        again
    }

    /// Takes up a run that was found, unless somebody is at it: two owners in one process would be one too many.
    async fn take_up_found(self: &Arc<Self>, run: RunId) {
        match self.rest.waking.lock().entry(run) {
            std::collections::btree_map::Entry::Occupied(_) => return,
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert(None),
        };
        let how = Some(TakenUp::Found);
        let again = match self.take_up_rested(run, how).await {
            Ok(()) => self.woken(run),
            Err(error) => {
                tracing::warn!(%run, "the run cannot be taken up: {error}");
                Some(how)
            }
        };
        if let Some(how) = again {
            let kernel = self.clone();
            self.spawn.spawn(Box::pin(async move { kernel.waking(run, how).await }));
        }
    }

    async fn take_up_rested(self: &Arc<Self>, run: RunId, how: Option<TakenUp>) -> Result<(), StoreError> {
        if how == Some(TakenUp::Woken) {
            self.until_let_go(run).await;
        }
        if self.live.lock().contains_key(&run) || self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let how = match (self.store.info(run).await?.map(|info| info.state), how) {
            (Some(RunState::Queued | RunState::Suspended { .. }), _) => TakenUp::Woken,
            // Somebody here may be about to drive it since it was looked for, or drive it.
            (Some(RunState::Running), Some(TakenUp::Found)) if self.rest.taking.lock().contains_key(&run) => {
                return Ok(());
            }
            (Some(RunState::Running), Some(how)) if !self.live.lock().contains_key(&run) => how,
            _ => return Ok(()),
        };
        match self.take_up(run, how).await {
            // Somebody else was faster, or it is not its turn yet.
            Err(
                StoreError::Finished(_)
                | StoreError::NoSuchRun(_)
                | StoreError::Stale { .. }
                | StoreError::Leased { .. }
                | StoreError::Busy { .. },
            ) => Ok(()),
            taken => taken.map(|_| ()),
        }
    }

    /// Whoever says that a run is nobody's was its owner. If it is driven here all the same, that is by somebody who was
    /// superseded, and will hear of it.
    async fn until_let_go(&self, run: RunId) {
        let live = self.live.lock().get(&run).cloned();
        if let Some(live) = live {
            live.completion.wait().await;
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
            let clock = self.clock.clone();
            self.spawn.spawn(Box::pin(async move {
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

    /// Takes up every run that is due, a bounded number at a time, and sets the alarm for the next.
    pub(crate) async fn take_up_due(self: &Arc<Self>) {
        let mut before = Vec::new();
        while self.drives && !self.closed.load(Ordering::Acquire) {
            let due = match self.store.due(self.clock.now(), limits::TAKEN_UP_AT_ONCE).await {
                Ok(due) => due,
                Err(error) => {
                    tracing::warn!("suspended runs cannot be looked for: {error}");
                    return self.set_alarm(self.clock.now() + limits::LOOK_AGAIN);
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
                self.take_up_found(*run).await;
            }
            before = fresh;
            self.room().await;
        }
    }

    /// A pause in which new calls get their turn; a longer one while all attempts there may be are under way.
    pub(crate) async fn room(&self) {
        self.clock.sleep(limits::TAKE_UP_PAUSE).await;
        for _ in 0..limits::TAKE_UP_PATIENCE {
            if !self.permits.is_full() || self.closed.load(Ordering::Acquire) {
                return;
            }
            self.clock.sleep(limits::TAKE_UP_PAUSE).await;
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
        let rings = kernel.clock.now() >= self.at;
        if rings {
            kernel.rest.rang(self.at);
        }
        Poll::Ready(rings)
    }
}
