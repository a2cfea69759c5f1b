//! What drives one run from its first poll to its end, whatever that is.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::machine::Stop;
use super::record::{Event, Finished, Told};
use super::state::{Ending, Hold};
use super::{Registration, Run};
use crate::call::batch::Batch;
use crate::call::child::CallFuture;
use crate::limits::CLEAN_UP;
use crate::path::Path;
use crate::store::StoreError;
use crate::time::{Times, Timestamp};
use crate::tool::{Output, ToolError};

/// What a run is made of at its root.
pub(crate) enum Root {
    Call(CallFuture),
    Batch(Batch),
}

impl Root {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Vec<Told>> {
        match self {
            Self::Call(call) => call.poll(cx).map(|told| vec![told]),
            Self::Batch(batch) => batch.poll(cx),
        }
    }
}

/// How driving a run ended.
#[derive(Clone, Debug)]
pub(crate) enum RunEnd {
    /// It has its outcome, durably.
    Finished(Vec<Told>),
    /// It is held.
    Held(Hold),
    /// The store failed; the journal will decide.
    Unknown(StoreError),
    /// All it does is wait; it is in the store and nowhere else.
    Suspended {
        /// When its earliest timer is due.
        wake: Option<Timestamp>,
    },
    /// It goes on in its next generation.
    Continued,
    /// Somebody else drives it, or will.
    Elsewhere,
}

impl RunEnd {
    /// Whether the run goes on by itself, without this drive.
    pub(crate) fn is_rest(&self) -> bool {
        matches!(self, Self::Suspended { .. } | Self::Continued)
    }
}

pub(crate) struct Drive {
    pub(crate) run: Arc<Run>,
    root: Option<Root>,
    phase: Phase,
    registration: Registration,
    clean_up: Option<BoxFuture<'static, ()>>,
    /// Runs while all the run does is wait; at its end the run is suspended.
    idle: Option<BoxFuture<'static, ()>>,
}

enum Phase {
    Body,
    /// Everything is said; it must become durable before anyone is told.
    Flush(u64, Vec<Told>),
    Over,
}

impl Drive {
    pub(crate) fn new(run: Arc<Run>, root: Root) -> Self {
        let registration = Registration::default();
        Self { run, root: Some(root), phase: Phase::Body, registration, clean_up: None, idle: None }
    }

    /// A run that is stopped already, such as one held when it was claimed.
    pub(crate) fn stopped(run: Arc<Run>) -> Self {
        Self { run, root: None, phase: Phase::Body, registration: Registration::default(), clean_up: None, idle: None }
    }

    /// A run whose end was said without its body; it must become durable before a waiter is told.
    pub(crate) fn ended(run: Arc<Run>, mark: u64, told: Vec<Told>) -> Self {
        let mut drive = Self::stopped(run);
        drive.phase = Phase::Flush(mark, told);
        drive
    }

    /// Tells the store of the run before anything is done, so that others can find it.
    pub(crate) fn accept(&mut self) {
        if let Some(Root::Call(call)) = &mut self.root {
            call.accept();
            self.run.pump();
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RunEnd> {
        loop {
            if self.run.is_halted() {
                return self.halt(cx);
            }
            match std::mem::replace(&mut self.phase, Phase::Over) {
                Phase::Body => match self.poll_body(cx) {
                    Some((told, ending)) => self.finish(told, ending),
                    None if self.run.is_halted() => {}
                    None => {
                        self.phase = Phase::Body;
                        return Poll::Pending;
                    }
                },
                Phase::Flush(mark, told) => {
                    if self.run.is_durable(mark) {
                        return Poll::Ready(RunEnd::Finished(told));
                    }
                    self.registration.register(&self.run, cx);
                    if self.run.has_durable(mark) {
                        return Poll::Ready(RunEnd::Finished(told));
                    }
                    self.phase = Phase::Flush(mark, told);
                    if !self.run.is_halted() {
                        return Poll::Pending;
                    }
                }
                Phase::Over => return Poll::Pending,
            }
        }
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Option<(Vec<Told>, Ending)> {
        let root = self.root.as_mut()?;
        if let Poll::Ready(told) = root.poll(cx) {
            let ending = self.ending(&told);
            return (!self.run.is_halted()).then_some((told, ending));
        }
        self.registration.register(&self.run, cx);
        self.run.rebase();
        if self.run.is_cancelled() {
            return self.clean_up_is_over(cx).then(|| (self.cut_off(), Ending::Cancelled));
        }
        self.suspend_if_idle(cx);
        None
    }

    /// A run that only waits, and has done so for a moment, needs nobody in memory.
    fn suspend_if_idle(&mut self, cx: &mut Context<'_>) {
        if !self.run.is_asleep() || self.run.is_bound_by_keys() {
            self.idle = None;
            return self.run.wake_when_unpolled(cx);
        }
        let (run, kernel) = (&self.run, &self.run.kernel);
        let over = kernel.env.limits.suspend_after.is_zero()
            || self
                .idle
                .get_or_insert_with(|| kernel.env.clock.sleep(kernel.env.limits.suspend_after))
                .poll_unpin(cx)
                .is_ready();
        if over {
            self.idle = None;
            // Under the lock that every branch needs to go on: one that is polled from now on finds the run suspended.
            run.with(|machine| run.is_asleep() && machine.try_suspend(run.now()));
        }
    }

    fn clean_up_is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let run = &self.run;
        let timer = self.clean_up.get_or_insert_with(|| {
            let since = run.with(|machine| machine.cancelled_at());
            let end = since.unwrap_or_else(|| run.now()) + CLEAN_UP;
            run.kernel.env.clock.sleep(end.since(run.now()))
        });
        timer.poll_unpin(cx).is_ready()
    }

    /// The body did not end within its time for cleaning up: it is dropped, and what it may have done stays visible.
    fn cut_off(&mut self) -> Vec<Told> {
        let reason = format!("cancelled, and not cleaned up within {CLEAN_UP:?}");
        let result = Err(Arc::new(ToolError::Cancelled { reason }));
        let at = self.run.now();
        let told = Told { result, at, times: Times::default() };
        // The run must look stopped to the operations that are dropped with it.
        self.run.quiesce();
        let all = match self.root.take() {
            Some(Root::Batch(batch)) => batch.cut_off(&told),
            _ => vec![told.clone()],
        };
        self.run.with(|machine| {
            machine.abandon_below(&Path::root(), at);
            machine.end_around(&Path::root(), &told);
        });
        all
    }

    fn finish(&mut self, told: Vec<Told>, ending: Ending) {
        if let Some(Root::Batch(batch)) = &self.root {
            self.record_batch_end(&told, batch.total(&told));
        }
        let result = match (&self.root, told.as_slice()) {
            (Some(Root::Batch(_)), _) | (_, []) => Ok(Arc::new(Output::default())),
            (_, [told, ..]) => told.result.clone(),
        };
        let mark = self.run.with(|machine| machine.finish(ending, &result));
        self.phase = Phase::Flush(mark, told);
    }

    fn ending(&self, told: &[Told]) -> Ending {
        match (&self.root, told) {
            (Some(Root::Batch(_)), _) => Ending::Ok,
            (_, [Told { result: Ok(_), .. }]) => Ending::Ok,
            (_, [Told { result: Err(error), .. }]) if matches!(**error, ToolError::Cancelled { .. }) => {
                Ending::Cancelled
            }
            _ => Ending::Failed,
        }
    }

    fn record_batch_end(&self, told: &[Told], total: u64) {
        let times = Times { queued: 0, running: total, total };
        let result = Ok(Arc::new(Output::default()));
        let finished = Finished { result, told: None, attempts: 1, times, settled: None };
        let at = told.last().map_or_else(|| self.run.now(), |told| told.at);
        self.run.append(&Path::root(), at, None, Event::Finished(finished));
    }

    /// Nobody drives the run any further; what must be said of it is said.
    fn halt(&mut self, cx: &mut Context<'_>) -> Poll<RunEnd> {
        self.root = None;
        let stop = self.run.with(|machine| machine.stop().cloned());
        match stop {
            Some(Stop::Held(hold)) => {
                let mark = self.run.with(|machine| machine.outbox().written());
                self.registration.register(&self.run, cx);
                if self.run.is_durable(mark) {
                    tracing::warn!(run = %self.run.id, "held: {hold}");
                    return Poll::Ready(RunEnd::Held(*hold));
                }
                match self.run.with(|machine| machine.stop().cloned()) {
                    Some(Stop::Held(_)) => Poll::Pending,
                    _ => self.halt(cx),
                }
            }
            Some(Stop::Suspended { wake }) => self.flushed(cx, RunEnd::Suspended { wake }),
            Some(Stop::Continued) => self.flushed(cx, RunEnd::Continued),
            Some(Stop::Reload(error)) => Poll::Ready(RunEnd::Unknown(*error)),
            Some(Stop::Lost | Stop::Lapsed | Stop::Released) | None => Poll::Ready(RunEnd::Elsewhere),
        }
    }
}

impl Drive {
    /// Ends like this once everything is durable.
    fn flushed(&mut self, cx: &mut Context<'_>, end: RunEnd) -> Poll<RunEnd> {
        let mark = self.run.with(|machine| machine.outbox().written());
        self.registration.register(&self.run, cx);
        if self.run.is_durable(mark) {
            return Poll::Ready(end);
        }
        match self.run.with(|machine| machine.stop().cloned()) {
            Some(Stop::Suspended { .. } | Stop::Continued) => Poll::Pending,
            _ => self.halt(cx),
        }
    }
}

impl Drop for Drive {
    /// Whoever drops a run in the middle lets go of it; its operations were not abandoned by the body.
    fn drop(&mut self) {
        if self.root.is_some() {
            self.run.with(super::machine::Machine::release);
        }
    }
}

/// Where something is waited for that comes once, such as the end of a run.
pub(crate) struct Completion<T = RunEnd>(Mutex<Ends<T>>);

struct Ends<T> {
    end: Option<T>,
    waiting: Vec<Waker>,
}

impl<T> Default for Completion<T> {
    fn default() -> Self {
        Self(Mutex::new(Ends { end: None, waiting: Vec::new() }))
    }
}

impl<T> Completion<T> {
    pub(crate) fn complete(&self, end: T) {
        let waiting = {
            let mut ends = self.0.lock();
            ends.end = Some(end);
            std::mem::take(&mut ends.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn wait(self: &Arc<Self>) -> WaitEnd<T> {
        WaitEnd(self.clone())
    }
}

pub(crate) struct WaitEnd<T = RunEnd>(Arc<Completion<T>>);

impl<T: Clone> Future for WaitEnd<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut ends = self.0.0.lock();
        if let Some(end) = &ends.end {
            return Poll::Ready(end.clone());
        }
        if ends.waiting.iter().all(|waker| !waker.will_wake(cx.waker())) {
            ends.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}
