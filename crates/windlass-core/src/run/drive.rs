//! Drives one run from its first poll to its end, however it ends.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::machine::Stop;
use super::record::{Event, Finished, OpOutcome};
use super::state::{Ending, Hold};
use super::{Registration, Run};
use crate::call::batch::Batch;
use crate::call::child::CallFuture;
use crate::call::loops::{self, CountedCalls};
use crate::limits::CLEAN_UP;
use crate::path::Path;
use crate::store::StoreError;
use crate::time::{Times, Timestamp};
use crate::tool::{Output, ToolError};

/// What a run consists of at its root.
pub(crate) enum Root {
    Call(CallFuture),
    Batch(Batch),
}

impl Root {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Vec<OpOutcome>> {
        match self {
            Self::Call(call) => call.poll(cx).map(|outcome| vec![outcome]),
            Self::Batch(batch) => batch.poll(cx),
        }
    }
}

/// How driving a run ended.
#[derive(Clone, Debug)]
pub(crate) enum RunEnd {
    /// It has its outcome, durably.
    Finished(Vec<OpOutcome>),
    /// It is held.
    Held(Hold),
    /// The store failed. The journal decides what happened.
    Unknown(StoreError),
    /// It only waits, and exists only in the store.
    Suspended {
        /// When its earliest timer is due.
        wake: Option<Timestamp>,
    },
    /// It continues in its next generation.
    Continued,
    /// Another process drives it, or will.
    Elsewhere,
}

impl RunEnd {
    /// Whether the run continues by itself, without this drive.
    pub(crate) fn continues_later(&self) -> bool {
        matches!(self, Self::Suspended { .. } | Self::Continued)
    }
}

pub(crate) struct Drive {
    pub(crate) run: Arc<Run>,
    root: Option<Root>,
    phase: DrivePhase,
    registration: Registration,
    /// The root calls whose outcomes count in the session.
    counted: CountedCalls,
    clean_up: Option<BoxFuture<'static, ()>>,
    /// Runs while the run only waits. When it ends, the run is suspended.
    idle: Option<BoxFuture<'static, ()>>,
}

enum DrivePhase {
    Body,
    /// Everything is recorded. It must be durable before a waiter is notified.
    Flush(u64, Vec<OpOutcome>),
    Over,
}

impl Drive {
    pub(crate) fn new(run: Arc<Run>, root: Root) -> Self {
        let mut drive = Self::stopped(run);
        drive.root = Some(root);
        drive
    }

    /// Sets the root calls whose outcomes count in the session.
    pub(crate) fn counting(mut self, calls: CountedCalls) -> Self {
        self.counted = calls;
        self
    }

    /// A run that is stopped already, such as one that was held when it was claimed.
    pub(crate) fn stopped(run: Arc<Run>) -> Self {
        Self {
            run,
            root: None,
            phase: DrivePhase::Body,
            registration: Registration::default(),
            counted: CountedCalls::new(),
            clean_up: None,
            idle: None,
        }
    }

    /// A run whose end was recorded without its body. It must be durable before a waiter is notified.
    pub(crate) fn ended(run: Arc<Run>, mark: u64, outcomes: Vec<OpOutcome>) -> Self {
        let mut drive = Self::stopped(run);
        drive.phase = DrivePhase::Flush(mark, outcomes);
        drive
    }

    /// Writes the run to the store before anything is done, so that others can find it.
    pub(crate) fn accept(&mut self) {
        // The calls of a batch are recorded when it is made.
        if let Some(Root::Call(call)) = &mut self.root {
            call.accept();
        }
        self.run.pump();
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RunEnd> {
        loop {
            if self.run.is_halted() {
                return self.halt(cx);
            }
            match std::mem::replace(&mut self.phase, DrivePhase::Over) {
                DrivePhase::Body => match self.poll_body(cx) {
                    Some((outcomes, ending)) => self.finish(outcomes, ending),
                    None if self.run.is_halted() => {}
                    None => {
                        self.phase = DrivePhase::Body;
                        return Poll::Pending;
                    }
                },
                DrivePhase::Flush(mark, outcomes) => {
                    if self.run.is_durable(mark) {
                        return Poll::Ready(RunEnd::Finished(outcomes));
                    }
                    self.registration.register(&self.run, cx);
                    if self.run.has_durable(mark) {
                        return Poll::Ready(RunEnd::Finished(outcomes));
                    }
                    self.phase = DrivePhase::Flush(mark, outcomes);
                    if !self.run.is_halted() {
                        return Poll::Pending;
                    }
                }
                DrivePhase::Over => return Poll::Pending,
            }
        }
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Option<(Vec<OpOutcome>, Ending)> {
        let root = self.root.as_mut()?;
        if let Poll::Ready(outcomes) = root.poll(cx) {
            let ending = self.ending(&outcomes);
            return (!self.run.is_halted()).then_some((outcomes, ending));
        }
        self.registration.register(&self.run, cx);
        self.run.rebase();
        if self.run.is_cancelled() {
            return self.clean_up_is_over(cx).then(|| (self.cut_off(), Ending::Cancelled));
        }
        self.suspend_if_idle(cx);
        None
    }

    /// Suspends a run that has only waited for a moment, so that it needs no memory.
    fn suspend_if_idle(&mut self, cx: &mut Context<'_>) {
        if !self.run.is_all_parked() || self.run.is_bound_by_keys() {
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
            // Under the lock that every branch needs in order to continue: a branch that is polled from now on finds
            // the run suspended.
            run.with(|machine| run.is_all_parked() && machine.try_suspend(run.now()));
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

    /// The body did not end within its time for cleaning up. It is dropped, and attempts of it that may have happened
    /// stay visible.
    fn cut_off(&mut self) -> Vec<OpOutcome> {
        let reason = format!("cancelled, and not cleaned up within {CLEAN_UP:?}");
        let result = Err(Arc::new(ToolError::Cancelled { reason }));
        let at = self.run.now();
        let outcome = OpOutcome { result, at, times: Times::default() };
        // Operations that are dropped with the body must see the run as stopped.
        self.run.quiesce();
        let all = match self.root.take() {
            Some(Root::Batch(batch)) => batch.cut_off(&outcome),
            _ => vec![outcome.clone()],
        };
        self.run.with(|machine| {
            machine.abandon_below(&Path::root(), at);
            machine.end_around(&Path::root(), &outcome);
        });
        all
    }

    fn finish(&mut self, outcomes: Vec<OpOutcome>, ending: Ending) {
        if let Some(Root::Batch(batch)) = &self.root {
            self.record_batch_end(&outcomes, batch.total(&outcomes));
        }
        let result = match (&self.root, outcomes.as_slice()) {
            (Some(Root::Batch(_)), _) | (_, []) => Ok(Arc::new(Output::default())),
            (_, [outcome, ..]) => outcome.result.clone(),
        };
        let seen = loops::seen(&self.counted, &outcomes);
        let mark = self.run.with(|machine| {
            if !seen.is_empty() {
                machine.outbox().outcomes(self.run.now(), seen);
            }
            machine.finish(ending, &result)
        });
        self.phase = DrivePhase::Flush(mark, outcomes);
    }

    fn ending(&self, outcomes: &[OpOutcome]) -> Ending {
        match (&self.root, outcomes) {
            (Some(Root::Batch(_)), _) => Ending::Ok,
            (_, [OpOutcome { result: Ok(_), .. }]) => Ending::Ok,
            (_, [OpOutcome { result: Err(error), .. }]) if matches!(**error, ToolError::Cancelled { .. }) => {
                Ending::Cancelled
            }
            _ => Ending::Failed,
        }
    }

    fn record_batch_end(&self, outcomes: &[OpOutcome], total: u64) {
        let times = Times { queued: 0, running: total, total };
        let result = Ok(Arc::new(Output::default()));
        let finished = Finished { result, told: None, attempts: 1, times, settled: None };
        let at = outcomes.last().map_or_else(|| self.run.now(), |outcome| outcome.at);
        self.run.append(&Path::root(), at, None, Event::Finished(finished));
    }

    /// Ends the drive of a run that has stopped, once what must be recorded of it is durable.
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
    /// Releases a run that is dropped while it is driven. Its body did not abandon its operations.
    fn drop(&mut self) {
        if self.root.is_some() {
            self.run.with(super::machine::Machine::release);
        }
    }
}

/// Waits for a value that is set once, such as the end of a run.
pub(crate) struct Completion<T = RunEnd>(Mutex<CompletionState<T>>);

struct CompletionState<T> {
    end: Option<T>,
    waiting: Vec<Waker>,
}

impl<T> Default for Completion<T> {
    fn default() -> Self {
        Self(Mutex::new(CompletionState { end: None, waiting: Vec::new() }))
    }
}

impl<T> Completion<T> {
    pub(crate) fn complete(&self, end: T) {
        let waiting = {
            let mut state = self.0.lock();
            state.end = Some(end);
            std::mem::take(&mut state.waiting)
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
        let mut state = self.0.0.lock();
        if let Some(end) = &state.end {
            return Poll::Ready(end.clone());
        }
        if state.waiting.iter().all(|waker| !waker.will_wake(cx.waker())) {
            state.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}
