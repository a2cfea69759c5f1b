//! Driving the runs of this process: from the first poll to the moment they are let go of, whatever that follows from.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use crate::kernel::Kernel;
use crate::path::Path;
use crate::roster::{Cause, Next};
use crate::run::Run;
use crate::run::drive::{Completion, Drive, RunEnd};
use crate::run::machine::{Machine, Stop};
use crate::store::StoreError;

/// A run this process drives.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) run: Arc<Run>,
    pub(crate) completion: Arc<Completion>,
}

impl Live {
    pub(crate) fn new(run: &Arc<Run>) -> Self {
        Self { run: run.clone(), completion: Arc::default() }
    }
}

impl Kernel {
    /// Polls a run once here and now; only if it has to wait does it become a task of its own.
    pub(crate) async fn drive(self: &Arc<Self>, mut drive: Drive) -> RunEnd {
        let (mut task, live) = self.born(&drive);
        match std::future::poll_fn(|cx| Poll::Ready(drive.poll(cx))).await {
            Poll::Ready(end) => {
                drop((drive, live));
                task.let_go(&end);
                end
            }
            Poll::Pending => {
                let Live { completion, .. } = live;
                Driven { drive: Box::new(drive), task }.detach(self);
                completion.wait().await
            }
        }
    }

    /// Tells the store of a new run before anything of it is done, and gives it a task of its own. Returns the error of a
    /// store that took nothing because it is overloaded.
    pub(crate) fn accept(self: &Arc<Self>, drive: Drive) -> Result<Live, StoreError> {
        let (task, live) = self.born(&drive);
        let mut driven = Driven { drive: Box::new(drive), task };
        driven.drive.accept();
        if let Some(Stop::Reload(error)) = driven.drive.run.with(|machine| machine.stop().cloned())
            && matches!(*error, StoreError::Unavailable(_))
        {
            driven.end(&RunEnd::Elsewhere);
            return Err(*error);
        }
        driven.detach(self);
        Ok(live)
    }

    /// A new run, driven by the task that waits for it.
    pub(crate) fn here(self: &Arc<Self>, drive: Box<Drive>) -> Here {
        let (task, live) = self.born(&drive);
        Here { kernel: self.clone(), live, driven: Some(Driven { drive, task }) }
    }

    /// From now on this process is known to drive the new run: mail for it is told to it, from its first commit on.
    fn born(self: &Arc<Self>, drive: &Drive) -> (DriveTask, Live) {
        let live = Live::new(&drive.run);
        self.roster.born(drive.run.id, live.clone());
        (self.driven(&live), live)
    }

    fn driven(self: &Arc<Self>, live: &Live) -> DriveTask {
        if self.closed.load(Ordering::Acquire) {
            // Shut down meanwhile, perhaps before this run was among the live ones.
            live.run.with(Machine::release);
        }
        DriveTask { driven: Some((self.clone(), live.clone())) }
    }

    /// A run that was taken up is driven from now on. It is polled once, so that what it does first is done when this
    /// returns, and has a task of its own.
    pub(crate) async fn drive_taken(self: &Arc<Self>, drive: Drive) -> Live {
        let live = Live::new(&drive.run);
        let mut driven = Driven { task: self.driven(&live), drive: Box::new(drive) };
        if let Some(settled) = self.roster.taken(live.run.id, live.clone()) {
            settled.complete(RunEnd::Elsewhere);
        }
        match std::future::poll_fn(|cx| Poll::Ready(driven.drive.poll(cx))).await {
            Poll::Ready(end) => driven.end(&end),
            Poll::Pending => driven.detach(self),
        }
        live
    }

    /// What follows the end of driving a run.
    fn let_go(self: &Arc<Self>, live: &Live, end: &RunEnd) {
        let (run, id) = (&live.run, live.run.id);
        let stop = run.with(|machine| machine.stop().cloned());
        let goes_on = self.drives && !self.closed.load(Ordering::Acquire);
        let next = match (end, &stop) {
            _ if !goes_on => Next::Over,
            (RunEnd::Unknown(_) | RunEnd::Continued, _) | (RunEnd::Elsewhere, Some(Stop::Lapsed)) => Next::TakeUp,
            (RunEnd::Suspended { .. }, _) => Next::Rest,
            _ => Next::Over,
        };
        let is_owner = |other: &Live| Arc::ptr_eq(&other.completion, &live.completion);
        // What stops for a while keeps its places in the queues of keys. The next generation queues anew.
        if !run.keeps_places() {
            run.leave_queues_below(&Path::root());
        }
        self.tell(self.roster.let_go(id, is_owner, next), end);
        match (end, stop) {
            _ if !goes_on => {}
            (RunEnd::Unknown(_), _) => self.taking_up(id, Cause::Reload),
            (RunEnd::Continued, _) => self.taking_up(id, Cause::Unowned),
            (RunEnd::Elsewhere, Some(Stop::Lapsed)) => self.take_up_with_a_lease(id),
            (RunEnd::Suspended { wake }, _) => self.after_suspension(run, *wake),
            // The new owner may have suspended the run before mail was told to this one: the store knows what is due.
            (RunEnd::Elsewhere, Some(Stop::Lost)) => self.look_for_due(),
            (RunEnd::Finished(told), _) if run.session.is_some() => {
                self.loop_ended(run.session.as_ref(), id, told);
                // The next turn of its session may be due.
                self.look_for_due();
            }
            _ => {}
        }
    }
}

/// A run that this process is known to drive.
struct Driven {
    /// Large, and handed on more than once.
    drive: Box<Drive>,
    task: DriveTask,
}

impl Driven {
    fn end(mut self, end: &RunEnd) {
        // The drive is gone by the time a waiter is told that it ended.
        drop(self.drive);
        self.task.let_go(end);
    }

    /// Gives it a task of its own.
    fn detach(mut self, kernel: &Kernel) {
        kernel.env.spawn.spawn(Box::pin(async move {
            let end = std::future::poll_fn(|cx| self.drive.poll(cx)).await;
            self.end(&end);
        }));
    }
}

/// The end of a run, for the task that drives it by waiting for it: no other task has to be made, run and woken. If this is
/// dropped before, the run goes on as a task of its own. It must be polled until then, as everything that others may wait
/// for.
pub(crate) struct Here {
    kernel: Arc<Kernel>,
    live: Live,
    driven: Option<Driven>,
}

impl Here {
    pub(crate) fn live(&self) -> Live {
        self.live.clone()
    }
}

impl Future for Here {
    type Output = RunEnd;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RunEnd> {
        let Some(driven) = &mut self.driven else { return Poll::Pending };
        let Poll::Ready(end) = driven.drive.poll(cx) else { return Poll::Pending };
        if let Some(driven) = self.driven.take() {
            driven.end(&end);
        }
        Poll::Ready(end)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        if let Some(driven) = self.driven.take() {
            driven.detach(&self.kernel);
        }
    }
}

/// Makes sure that the waiters of a run are told, even if the executor drops its task.
struct DriveTask {
    driven: Option<(Arc<Kernel>, Live)>,
}

impl DriveTask {
    fn let_go(&mut self, end: &RunEnd) {
        let Some((kernel, live)) = self.driven.take() else { return };
        kernel.let_go(&live, end);
        let Live { run, completion } = live;
        // A waiter may open the store again as soon as it is told.
        drop((kernel, run));
        // Most calls are over at their first poll, and then nothing else has it.
        if Arc::strong_count(&completion) > 1 {
            completion.complete(end.clone());
        }
    }
}

impl Drop for DriveTask {
    fn drop(&mut self) {
        self.let_go(&RunEnd::Elsewhere);
    }
}
