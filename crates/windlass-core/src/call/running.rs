//! One attempt in progress: polled, timed, cancelled, caught.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::attempt::Attempt;
use super::rules::Rules;
use crate::kernel::Kernel;
use crate::store::ArtifactId;
use crate::time::Clock;
use crate::tool::{Output, ToolResult};

/// How an attempt ended.
pub(crate) enum AttemptEnd {
    /// It returned.
    Returned(ToolResult<Output>),
    /// It panicked with this message.
    Panicked(String),
    /// It ran out of time and was dropped. The message names the limit.
    TimedOut(String),
    /// It was cancelled and dropped.
    Cancelled,
}

pub(crate) struct RunningAttempt<'a> {
    body: BoxFuture<'a, ToolResult<Output>>,
    attempt: Attempt,
    pub(crate) started: u64,
    /// Whether it was polled and is pending.
    pub(crate) is_pending: bool,
    /// Set only for attempts that are pending.
    timers: Option<Box<Timers>>,
    stopping: Option<Box<Stopping>>,
    /// False for an attempt that began after the run was cancelled, as part of cleaning up.
    heeds_cancel: bool,
    span: tracing::Span,
}

struct Timers {
    limit: BoxFuture<'static, ()>,
    limit_is_deadline: bool,
    heartbeat: Option<Heartbeat>,
}

struct Heartbeat {
    every: Duration,
    timer: BoxFuture<'static, ()>,
    seen: u64,
}

/// The attempt was asked to stop, and its grace period runs.
struct Stopping {
    grace: BoxFuture<'static, ()>,
    timed_out: Option<String>,
}

impl<'a> RunningAttempt<'a> {
    pub(crate) fn new(
        body: BoxFuture<'a, ToolResult<Output>>,
        attempt: Attempt,
        started: u64,
        heeds_cancel: bool,
    ) -> Self {
        let span = tracing::debug_span!(
            "attempt",
            run = %attempt.run(),
            path = %attempt.path(),
            name = attempt.name(),
            number = attempt.number()
        );
        Self { body, attempt, started, is_pending: false, timers: None, stopping: None, heeds_cancel, span }
    }

    /// The connections that it has read, with the revisions of their credentials.
    pub(crate) fn into_used_connections(self) -> Vec<(Arc<str>, u64)> {
        self.attempt.used_connections()
    }

    /// Artifacts that the outcome may refer to.
    pub(crate) fn vouched(&self) -> Vec<ArtifactId> {
        self.attempt.vouched()
    }

    /// Polls the body and its limits. `left` is the time until the call's deadline.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        kernel: &Kernel,
        rules: &Rules,
        left: impl FnOnce() -> Option<Duration>,
        cancelled: bool,
    ) -> Poll<AttemptEnd> {
        if let Poll::Ready(ended) = self.poll_body(cx, kernel) {
            return Poll::Ready(ended);
        }
        if self.stopping.is_none() {
            let overdue = self.poll_timers(cx, &*kernel.env.clock, rules, left());
            if overdue.is_some() || (cancelled && self.heeds_cancel) {
                self.attempt.cancel();
                let grace = kernel.env.clock.sleep(rules.grace);
                self.stopping = Some(Box::new(Stopping { grace, timed_out: overdue }));
                // The body may wait for nothing but the cancellation.
                if let Poll::Ready(ended) = self.poll_body(cx, kernel) {
                    return Poll::Ready(ended);
                }
            }
        }
        let Some(stopping) = &mut self.stopping else { return Poll::Pending };
        std::task::ready!(stopping.grace.poll_unpin(cx));
        Poll::Ready(match stopping.timed_out.take() {
            Some(message) => AttemptEnd::TimedOut(message),
            None => AttemptEnd::Cancelled,
        })
    }

    fn poll_body(&mut self, cx: &mut Context<'_>, kernel: &Kernel) -> Poll<AttemptEnd> {
        let _watched = kernel.watchdog.enter(&self.attempt);
        let _span = self.span.enter();
        let body = &mut self.body;
        match std::panic::catch_unwind(AssertUnwindSafe(|| body.poll_unpin(cx))) {
            Ok(Poll::Ready(mut result)) => {
                self.attempt.redact(&mut result);
                Poll::Ready(AttemptEnd::Returned(result))
            }
            Ok(Poll::Pending) => Poll::Pending,
            Err(panic) => Poll::Ready(AttemptEnd::Panicked(self.attempt.redact_text(&panic_message(&*panic)))),
        }
    }

    /// The message of the limit that was exceeded, if one was.
    fn poll_timers(
        &mut self,
        cx: &mut Context<'_>,
        clock: &dyn Clock,
        rules: &Rules,
        left: Option<Duration>,
    ) -> Option<String> {
        let attempt = &self.attempt;
        let timers = self.timers.get_or_insert_with(|| Box::new(Timers::start(clock, rules, left, attempt)));
        if timers.limit.poll_unpin(cx).is_ready() {
            return Some(if timers.limit_is_deadline {
                format!("the deadline of {:?} passed", rules.deadline.unwrap_or_default())
            } else {
                format!("the attempt took longer than {:?}", rules.timeout)
            });
        }
        let heartbeat = timers.heartbeat.as_mut()?;
        while heartbeat.timer.poll_unpin(cx).is_ready() {
            let beats = attempt.beats();
            if beats == heartbeat.seen {
                return Some(format!("no heartbeat for {:?}", heartbeat.every));
            }
            heartbeat.seen = beats;
            heartbeat.timer = clock.sleep(heartbeat.every);
        }
        None
    }
}

impl Timers {
    fn start(clock: &dyn Clock, rules: &Rules, left: Option<Duration>, attempt: &Attempt) -> Self {
        let limit_is_deadline = left.is_some_and(|left| left < rules.timeout);
        let limit = left.map_or(rules.timeout, |left| left.min(rules.timeout));
        Self {
            limit: clock.sleep(limit),
            limit_is_deadline,
            heartbeat: rules.heartbeat.map(|every| Heartbeat {
                every,
                timer: clock.sleep(every),
                seen: attempt.beats(),
            }),
        }
    }
}

pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

/// Runs an attempt on the threads for CPU-bound bodies. Dropping the future does not stop a body that never yields;
/// [`Attempt::is_on_thread`] tells whether it is still running.
pub(crate) fn on_cpu_thread(
    kernel: &Kernel,
    body: BoxFuture<'static, ToolResult<Output>>,
    attempt: Attempt,
) -> BoxFuture<'static, ToolResult<Output>> {
    let (promise, ticket) = crate::store::Promise::pair();
    let watchdog = kernel.watchdog.clone();
    let (abandon_on_drop, alive) = (AbandonOnDrop(attempt.clone()), attempt.clone());
    alive.set_on_thread(true);
    {
        let mut attempts = kernel.on_threads.lock();
        attempts.retain(Attempt::is_on_thread);
        attempts.push(alive.clone());
    }
    kernel.env.spawn.spawn_cpu(Box::pin(async move {
        let mut body = body;
        let mut dropped = attempt.dropped();
        let ended = std::future::poll_fn(move |cx| {
            // Also checked before the first poll, because its caller may be gone by the time it gets a thread.
            if dropped.poll_unpin(cx).is_ready() {
                return Poll::Ready(None);
            }
            let _watched = watchdog.enter_expected(&attempt);
            match std::panic::catch_unwind(AssertUnwindSafe(|| body.poll_unpin(cx))) {
                Ok(Poll::Ready(result)) => Poll::Ready(Some(Ok(result))),
                Ok(Poll::Pending) => Poll::Pending,
                Err(panic) => Poll::Ready(Some(Err(panic))),
            }
        })
        .await;
        alive.set_on_thread(false);
        if let Some(ended) = ended {
            promise.answer(Ok(ended));
        }
    }));
    Box::pin(async move {
        let _leash = abandon_on_drop;
        match ticket.await {
            Ok(Ok(result)) => result,
            // Caught again in the same place as the panics of all other bodies.
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            // The executor dropped it. It is not known how far it got, so it has no outcome and runs into its timeout.
            Err(_) => std::future::pending().await,
        }
    })
}

/// Held by the future that waits for an attempt. Dropping it ends the body on the CPU thread once that yields.
struct AbandonOnDrop(Attempt);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}
