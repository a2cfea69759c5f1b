//! Drives the runs of this process, from the first poll until this process stops driving them, and decides what
//! follows.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use crate::kernel::Kernel;
use crate::path::Path;
use crate::roster::{NextStep, TakeUpCause};
use crate::run::Run;
use crate::run::drive::{Completion, Drive, RunEnd};
use crate::run::machine::{Machine, Stop};
use crate::store::StoreError;

/// A run that this process drives.
#[derive(Clone)]
pub(crate) struct DrivenRun {
    pub(crate) run: Arc<Run>,
    pub(crate) completion: Arc<Completion>,
}

impl DrivenRun {
    pub(crate) fn new(run: &Arc<Run>) -> Self {
        Self { run: run.clone(), completion: Arc::default() }
    }

    /// The epoch under which it is driven.
    pub(crate) fn epoch(&self) -> u64 {
        self.run.with(|machine| machine.outbox().epoch())
    }
}

impl Kernel {
    /// Polls a run once in the caller's task. The run gets a task of its own only if it has to wait.
    pub(crate) async fn drive(self: &Arc<Self>, mut drive: Drive) -> RunEnd {
        let (mut task, driven) = self.register_new(&drive);
        match std::future::poll_fn(|cx| Poll::Ready(drive.poll(cx))).await {
            Poll::Ready(end) => {
                drop((drive, driven));
                task.finish(&end);
                end
            }
            Poll::Pending => {
                let DrivenRun { completion, .. } = driven;
                RegisteredDrive { drive: Box::new(drive), task }.detach(self);
                completion.wait().await
            }
        }
    }

    /// Writes a new run to the store before any of its work is done, and gives it a task of its own. Returns the
    /// store's error if the store is overloaded and took nothing.
    pub(crate) fn accept(self: &Arc<Self>, drive: Drive) -> Result<DrivenRun, StoreError> {
        let mut inline = self.drive_inline(Box::new(drive));
        inline.accept();
        inline.refusal().map_or_else(|| Ok(inline.driven()), Err)
    }

    /// The same, and waits until the store has the run: an attempt that may run ahead of its record must not run before
    /// the run's key is taken. If the future is dropped, the run continues.
    pub(crate) async fn accept_durably(self: &Arc<Self>, drive: Drive) -> Result<DrivenRun, StoreError> {
        let mut inline = self.drive_inline(Box::new(drive));
        inline.accept();
        inline.driven.run.flush().await;
        inline.refusal().map_or_else(|| Ok(inline.driven()), Err)
    }

    /// A new run that is driven by the task that waits for it.
    pub(crate) fn drive_inline(self: &Arc<Self>, drive: Box<Drive>) -> InlineDrive {
        let (task, driven) = self.register_new(&drive);
        InlineDrive { kernel: self.clone(), driven, registered: Some(RegisteredDrive { drive, task }) }
    }

    /// Registers a new run as driven here, so that mail is delivered to it from its first commit on.
    fn register_new(self: &Arc<Self>, drive: &Drive) -> (DriveTask, DrivenRun) {
        let driven = DrivenRun::new(&drive.run);
        self.roster.register_new(drive.run.id, driven.clone());
        (self.drive_task(&driven), driven)
    }

    fn drive_task(self: &Arc<Self>, driven: &DrivenRun) -> DriveTask {
        if self.closed.load(Ordering::Acquire) {
            // The runtime was shut down meanwhile, perhaps before this run was registered.
            driven.run.with(Machine::release);
        }
        DriveTask { registered: Some((self.clone(), driven.clone())) }
    }

    /// Drives a run that was taken up. It is polled once before this returns, so its first actions are done by then,
    /// and gets a task of its own if it has to wait.
    pub(crate) async fn drive_taken_up(self: &Arc<Self>, drive: Drive) -> DrivenRun {
        let driven = DrivenRun::new(&drive.run);
        let mut registered = RegisteredDrive { task: self.drive_task(&driven), drive: Box::new(drive) };
        let taken = self.roster.taken_up(driven.run.id, driven.clone(), driven.epoch());
        if let Some(settled) = taken.settled {
            settled.complete(RunEnd::Elsewhere);
        }
        if taken.is_superseded {
            driven.run.lose();
        }
        match std::future::poll_fn(|cx| Poll::Ready(registered.drive.poll(cx))).await {
            Poll::Ready(end) => registered.end(&end),
            Poll::Pending => registered.detach(self),
        }
        driven
    }

    /// Does what follows when a run is no longer driven.
    fn stopped_driving(self: &Arc<Self>, driven: &DrivenRun, end: &RunEnd) {
        let (run, id) = (&driven.run, driven.run.id);
        let stop = run.with(|machine| machine.stop().cloned());
        let keeps_driving = self.drives.any() && !self.closed.load(Ordering::Acquire);
        let next = match (end, &stop) {
            _ if !keeps_driving => NextStep::Forget,
            (RunEnd::Unknown(_) | RunEnd::Continued, _) | (RunEnd::Elsewhere, Some(Stop::Lapsed)) => NextStep::TakeUp,
            (RunEnd::Suspended { .. }, _) => NextStep::Suspend,
            _ => NextStep::Forget,
        };
        let is_owner = |other: &DrivenRun| Arc::ptr_eq(&other.completion, &driven.completion);
        // A run that stops for a while keeps its places in the key queues. The next generation queues again.
        if !run.keeps_places() {
            run.leave_queues_below(&Path::root());
        }
        let (next_step, waiters) = self.roster.stop_driving(id, is_owner, driven.epoch(), next);
        self.notify_waiters(waiters, end);
        if matches!(end, RunEnd::Finished(_)) && self.undriven.awaited.remove(id) && keeps_driving {
            // Suspended runs that waited for its end are due.
            self.look_for_due();
        }
        match (end, stop) {
            _ if !keeps_driving => {}
            _ if next_step != next => self.start_taking_up(id, TakeUpCause::Undriven),
            (RunEnd::Unknown(_), _) => self.start_taking_up(id, TakeUpCause::Reload),
            (RunEnd::Continued, _) => self.start_taking_up(id, TakeUpCause::Undriven),
            (RunEnd::Elsewhere, Some(Stop::Lapsed)) => self.take_up_after_renewal(id),
            (RunEnd::Suspended { wake }, _) => self.after_suspension(run, *wake),
            // The new owner may have suspended the run before this owner was told of its mail. The store knows what is
            // due.
            (RunEnd::Elsewhere, Some(Stop::Lost)) => self.look_for_due(),
            // The next turn of the session may be due.
            (RunEnd::Finished(_), _) if run.session.is_some() => self.look_for_due(),
            _ => {}
        }
    }
}

/// A run that is registered as driven by this process.
struct RegisteredDrive {
    /// Boxed, because it is large and is moved more than once.
    drive: Box<Drive>,
    task: DriveTask,
}

impl RegisteredDrive {
    fn end(mut self, end: &RunEnd) {
        // The drive is dropped before the waiters are notified.
        drop(self.drive);
        self.task.finish(end);
    }

    /// Gives it a task of its own.
    fn detach(mut self, kernel: &Kernel) {
        kernel.env.spawn.spawn(Box::pin(async move {
            let end = std::future::poll_fn(|cx| self.drive.poll(cx)).await;
            self.end(&end);
        }));
    }
}

/// Drives a run in the task that waits for its end, which saves spawning, scheduling and waking another task. If this
/// is dropped before the run ends, the run continues in a task of its own. Until then it must be polled, because others
/// may wait for the run.
pub(crate) struct InlineDrive {
    kernel: Arc<Kernel>,
    driven: DrivenRun,
    registered: Option<RegisteredDrive>,
}

impl InlineDrive {
    pub(crate) fn driven(&self) -> DrivenRun {
        self.driven.clone()
    }

    fn accept(&mut self) {
        if let Some(registered) = &mut self.registered {
            registered.drive.accept();
        }
    }

    /// Why the store did not take the run, if it is overloaded: then there is nothing to drive.
    fn refusal(&mut self) -> Option<StoreError> {
        let Some(Stop::Reload(error)) = self.driven.run.with(|machine| machine.stop().cloned()) else { return None };
        if !matches!(*error, StoreError::Unavailable(_)) {
            return None;
        }
        if let Some(registered) = self.registered.take() {
            registered.end(&RunEnd::Elsewhere);
        }
        Some(*error)
    }
}

impl Future for InlineDrive {
    type Output = RunEnd;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RunEnd> {
        let Some(registered) = &mut self.registered else { return Poll::Pending };
        let Poll::Ready(end) = registered.drive.poll(cx) else { return Poll::Pending };
        if let Some(registered) = self.registered.take() {
            registered.end(&end);
        }
        Poll::Ready(end)
    }
}

impl Drop for InlineDrive {
    fn drop(&mut self) {
        if let Some(registered) = self.registered.take() {
            registered.detach(&self.kernel);
        }
    }
}

/// Makes sure that the waiters of a run are notified, even if the executor drops the task.
struct DriveTask {
    registered: Option<(Arc<Kernel>, DrivenRun)>,
}

impl DriveTask {
    fn finish(&mut self, end: &RunEnd) {
        let Some((kernel, driven)) = self.registered.take() else { return };
        kernel.stopped_driving(&driven, end);
        let DrivenRun { run, completion } = driven;
        // A waiter may open the store again as soon as it is notified, so everything that holds the store is dropped
        // first.
        drop((kernel, run));
        // Most calls end at their first poll, and then no one else holds the completion.
        if Arc::strong_count(&completion) > 1 {
            completion.complete(end.clone());
        }
    }
}

impl Drop for DriveTask {
    fn drop(&mut self) {
        self.finish(&RunEnd::Elsewhere);
    }
}
