//! One attempt in progress: polled, timed, cancelled, caught.

use std::panic::AssertUnwindSafe;
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
pub(crate) enum Ended {
    /// It returned.
    Returned(ToolResult<Output>),
    /// It panicked with this message.
    Panicked(String),
    /// It ran out of time and was dropped; which limit is in the message.
    TimedOut(String),
    /// It was cancelled and dropped.
    Cancelled,
}

pub(crate) struct Running<'a> {
    body: BoxFuture<'a, ToolResult<Output>>,
    attempt: Attempt,
    pub(crate) started: u64,
    /// Whether it was polled and had to wait.
    pub(crate) is_pending: bool,
    /// Only attempts that are pending have timers.
    timers: Option<Box<Timers>>,
    stopping: Option<Box<Stopping>>,
    /// An attempt that began after the run was cancelled is part of cleaning up.
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

/// The token has fired; the grace runs.
struct Stopping {
    grace: BoxFuture<'static, ()>,
    timed_out: Option<String>,
}

impl<'a> Running<'a> {
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

    /// Artifacts that the outcome may refer to.
    pub(crate) fn vouched(&self) -> Vec<ArtifactId> {
        self.attempt.vouched()
    }

    /// Polls the body and whatever limits it. `left` is the time until the call's deadline.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        kernel: &Kernel,
        rules: &Rules,
        left: impl FnOnce() -> Option<Duration>,
        cancelled: bool,
    ) -> Poll<Ended> {
        if let Poll::Ready(ended) = self.poll_body(cx, kernel) {
            return Poll::Ready(ended);
        }
        if self.stopping.is_none() {
            let overdue = self.poll_timers(cx, &*kernel.env.clock, rules, left());
            if overdue.is_some() || (cancelled && self.heeds_cancel) {
                self.attempt.cancel();
                let grace = kernel.env.clock.sleep(rules.grace);
                self.stopping = Some(Box::new(Stopping { grace, timed_out: overdue }));
                // The token may be all the body waits for.
                if let Poll::Ready(ended) = self.poll_body(cx, kernel) {
                    return Poll::Ready(ended);
                }
            }
        }
        let Some(stopping) = &mut self.stopping else { return Poll::Pending };
        std::task::ready!(stopping.grace.poll_unpin(cx));
        Poll::Ready(match stopping.timed_out.take() {
            Some(message) => Ended::TimedOut(message),
            None => Ended::Cancelled,
        })
    }

    fn poll_body(&mut self, cx: &mut Context<'_>, kernel: &Kernel) -> Poll<Ended> {
        let _watched = kernel.watchdog.enter(&self.attempt);
        let _span = self.span.enter();
        let body = &mut self.body;
        match std::panic::catch_unwind(AssertUnwindSafe(|| body.poll_unpin(cx))) {
            Ok(Poll::Ready(result)) => Poll::Ready(Ended::Returned(result)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(panic) => Poll::Ready(Ended::Panicked(panic_message(&*panic))),
        }
    }

    /// The message of the limit that ran out.
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
                format!("the call's deadline of {:?} passed", rules.deadline.unwrap_or_default())
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

/// Runs an attempt on the threads kept for bodies that compute. Dropping the future does not stop a body that never
/// yields; [`Attempt::is_on_thread`] tells whether it is still at it.
pub(crate) fn on_cpu_thread(
    kernel: &Kernel,
    body: BoxFuture<'static, ToolResult<Output>>,
    attempt: Attempt,
) -> BoxFuture<'static, ToolResult<Output>> {
    let (promise, ticket) = crate::store::Promise::pair();
    let watchdog = kernel.watchdog.clone();
    let (leash, alive) = (Leash(attempt.clone()), attempt.clone());
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
            // Also before its first poll: it may have waited for a thread longer than anybody waited for it.
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
        let _leash = leash;
        match ticket.await {
            Ok(Ok(result)) => result,
            // Caught again where every other body's panic is.
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            // The executor dropped it. How far it came nobody knows: not an outcome, it runs out of time.
            Err(_) => std::future::pending().await,
        }
    })
}

/// Held where an attempt is waited for: its end is the end of the body on the other thread, once that yields.
struct Leash(Attempt);

impl Drop for Leash {
    fn drop(&mut self) {
        self.0.let_go();
    }
}
