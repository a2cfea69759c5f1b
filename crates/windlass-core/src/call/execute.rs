//! The life of one operation that makes attempts: an atomic call or a step. A state machine that is polled; it is boxed
//! and spawned only if it has to wait.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::attempt::{Attempt, Origin, idempotency_key};
use super::batch::Barrier;
use super::commands::{self, Ready};
use super::doubt::Doubting;
use super::key::waits_for_key;
use super::operation::Operation;
use super::queue::{Queue, Stage};
use super::rules::Rules;
use super::running::{Ended, Running, panic_message};
use super::stopwatch::Stopwatch;
use super::wait::Wait;
use crate::path::Path;
use crate::run::machine::Past;
use crate::run::record::{DoubtCause, Event, Finished, Record, Settled, Settler, Told};
use crate::run::replay::Decision;
use crate::run::spent::{Earlier, Spent};
use crate::run::state::{Blocked, Hold};
use crate::run::{Awake, Registration, Run};
use crate::time::{Times, Timestamp};
use crate::tool::{Effect, Output, Reconciled, ToolError, ToolResult, Toolbox};
use crate::value::digest::Encoder;

/// Makes the attempts of an operation.
pub(crate) trait Source<'a>: Send {
    /// Starts an attempt.
    fn attempt(&mut self, run: &Run, attempt: Attempt) -> BoxFuture<'a, ToolResult<Output>>;

    /// Asks whether attempts under this key happened; `None` if nobody knows how to find out.
    fn reconcile(&mut self, attempt: Attempt) -> Option<BoxFuture<'a, ToolResult<Reconciled<Output>>>>;

    /// What the body is told instead of the result, where a check or middleware has something else to say.
    fn told(&self, _run: &Run, _path: &Path, _result: &ToolResult<Output>) -> Option<ToolResult<Output>> {
        None
    }

    /// The last attempt returned, with an output or without.
    fn ended(&self, _run: &Run, _path: &Path, _well: bool) {}

    /// What is to happen together with the outcome.
    fn commands(&self, _run: &Run, _path: &Path, _output: &Output, _at: Timestamp) -> Result<Vec<Ready>, ToolError> {
        Ok(Vec::new())
    }

    /// What the names in its commands are resolved in.
    fn toolbox<'t>(&'t self, run: &'t Run) -> &'t Toolbox {
        &run.kernel.env.toolbox
    }

    /// Who ended it instead of an attempt.
    fn settled(&mut self) -> Option<Settled> {
        None
    }

    /// Whether it touches the outside at all. If not, nothing of it can be in doubt, whatever class it was asked under.
    const ACTS: bool = true;
}

pub(crate) struct Execution<'a, S> {
    pub(crate) run: Arc<Run>,
    pub(crate) op: Operation,
    pub(crate) rules: Rules,
    pub(crate) source: S,
    pub(crate) queue: Queue,
    pub(crate) attempt: u32,
    pub(crate) registration: Registration,
    /// Asked for before any operation was told of a cancellation; what is asked for later cleans up.
    pub(super) heeds_cancel: bool,
    pub(super) phase: Phase<'a>,
    pub(super) clock: Stopwatch,
    awake: Awake,
}

/// Moved at every turn, so what few operations come to is out of line.
pub(crate) enum Phase<'a> {
    Ask,
    /// A retry is due later.
    Delay(Box<Wait>),
    /// It waits for an answer from outside.
    Parked(Box<Wait>),
    Admit(Stage),
    /// Everything the attempt depends on is on its way to the store.
    Durable(u64),
    Running(Running<'a>),
    Doubt(Box<Doubting<'a>>),
    Over,
}

pub(crate) enum Flow {
    Next,
    Pending,
    Done(Told),
}

// Nothing in it is pinned in place: the futures it holds are boxed.
impl<S> Unpin for Execution<'_, S> {}

impl<'a, S: Source<'a>> Execution<'a, S> {
    pub(crate) fn new(run: Arc<Run>, op: Operation, rules: Rules, source: S, queue: Queue) -> Self {
        let asked = run.kernel.env.clock.ticks();
        let heeds_cancel = !rules.compensates && run.heeds_cancel();
        Self {
            run,
            op,
            rules,
            source,
            queue,
            attempt: 1,
            registration: Registration::default(),
            heeds_cancel,
            phase: Phase::Ask,
            clock: Stopwatch::new(asked),
            awake: Awake::default(),
        }
    }

    /// It was asked for then, and may have waited since; its time and its deadline count from there.
    pub(crate) fn asked_at(&mut self, ticks: u64, waited: bool) {
        self.clock.asked = ticks;
        if waited {
            self.queue.note_wait();
        }
    }

    /// So much of its time had passed before it was asked for here. Its deadline knows nothing of that.
    pub(crate) fn after(&mut self, earlier: Earlier) {
        self.clock.earlier = earlier;
    }

    /// Records that it was asked for. It begins later, and what it records then is not earlier than this.
    pub(crate) fn accept(&mut self) {
        self.op.accept(&self.run);
        self.queue.note_wait();
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Told> {
        loop {
            if self.run.is_stopped() {
                return Poll::Pending;
            }
            match self.advance(cx) {
                Flow::Next => {}
                Flow::Pending => {
                    // Standing still: what is buffered goes to the store meanwhile, so that the run can be seen.
                    if let Some(asked) = self.op.take_asked_when_pending() {
                        self.run.append(&self.op.path, self.run.now(), Some(asked), Event::Accepted);
                    }
                    self.run.pump();
                    self.awake.set(&self.run, !self.is_parked());
                    return Poll::Pending;
                }
                Flow::Done(told) => return Poll::Ready(told),
            }
        }
    }

    fn advance(&mut self, cx: &mut Context<'_>) -> Flow {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Ask => self.ask(),
            Phase::Delay(wait) => self.delay(cx, wait),
            Phase::Parked(wait) => self.parked(cx, wait),
            Phase::Admit(stage) => self.admit(cx, stage),
            Phase::Durable(mark) => self.durable(cx, mark),
            Phase::Running(running) => self.running(cx, running),
            Phase::Doubt(doubting) => self.doubting(cx, doubting),
            Phase::Over => Flow::Pending,
        }
    }

    pub(crate) fn go(&mut self, phase: Phase<'a>) -> Flow {
        self.phase = phase;
        Flow::Next
    }

    pub(crate) fn stay(&mut self, phase: Phase<'a>) -> Flow {
        self.phase = phase;
        Flow::Pending
    }

    /// The journal decides where to go on.
    fn ask(&mut self) -> Flow {
        let Some(asked) = &self.op.asked else { return Flow::Pending };
        let path = &self.op.path;
        let (past, decision) = self.run.with(|machine| machine.ask_past(path, asked));
        self.op.settle_asked(past.is_some());
        let latest = past.as_ref().map(|past| past.at);
        if let Some(Past { since, begun, effect, spent, .. }) = past {
            // The deadline of a call that its batch held back does not count yet.
            let from = begun.or_else(|| self.queue.barrier.is_none().then_some(since));
            self.go_back_to(from, &spent);
            // Loosening a tool does not loosen what was begun when it was strict.
            if S::ACTS {
                self.rules.effect = self.rules.effect.max(effect);
            }
        } else if self.rules.deadline.is_some() {
            self.set_deadline(self.run.at(self.clock.asked));
        }
        match decision {
            Decision::Answer { result, at } => Flow::Done(Told { result, at, times: Times::default() }),
            Decision::Perform { attempt, not_before } => {
                self.attempt = attempt;
                match not_before {
                    Some(until) => self.wait_until(until),
                    None => self.go(Phase::Admit(Stage::first())),
                }
            }
            Decision::InDoubt { attempt, cause, over_by, said, recorded } => {
                self.attempt = attempt;
                let doubting = Doubting::new(cause, over_by).said(said).recorded(latest.filter(|_| recorded));
                self.go(Phase::Doubt(Box::new(doubting)))
            }
            Decision::Park { on, until, attempt } => {
                self.attempt = attempt;
                let since = latest.unwrap_or_else(|| self.run.now());
                self.go(Phase::Parked(Box::new(Wait::new(on, until, since))))
            }
            Decision::Granted(_) => self.go(Phase::Admit(Stage::first())),
            Decision::Enter => {
                self.run.hold(Hold::changed_body(&self.op.path, "a durable body that was entered", "an atomic one"));
                Flow::Pending
            }
            // Held by the machine, or left alone by it; nobody polls this again.
            Decision::Diverged(_) | Decision::Checked(_) => Flow::Pending,
        }
    }

    /// The deadline counts from when it began, and its time from when it was asked for, whatever happened to the process or
    /// the run meanwhile.
    fn go_back_to(&mut self, began: Option<Timestamp>, spent: &Spent) {
        let now = self.run.at(self.clock.asked);
        self.set_deadline(began.unwrap_or(now));
        self.clock.earlier = spent.by(now);
        self.queue.note_wait();
    }

    fn set_deadline(&mut self, from: Timestamp) {
        self.clock.deadline = self.rules.deadline.map(|deadline| from + deadline);
    }

    pub(super) fn wait_until(&mut self, until: Timestamp) -> Flow {
        let wait = Wait::new(Blocked::Retry, Some(until), self.run.now());
        self.go(Phase::Delay(Box::new(wait)))
    }

    /// Key, turn, the tool's own limits, permit: in this order.
    fn admit(&mut self, cx: &mut Context<'_>, stage: Stage) -> Flow {
        let lane = &self.rules.lane;
        match self.queue.poll(cx, stage, (&self.run, &self.op.path), lane) {
            Ok(Poll::Ready(())) => self.stop_waiting_for_key(),
            Err(cycle) => return self.finish(Err(ToolError::unavailable(cycle))),
            Ok(Poll::Pending) => return self.queued(cx),
        }
        if self.run.kernel.closed.load(std::sync::atomic::Ordering::Acquire) {
            // Shutting down: whoever opens the store next makes the attempt.
            self.queue.release();
            return self.stay(Phase::Over);
        }
        if let Some(error) = self.run.cancellation(self.heeds_cancel) {
            return self.finish(Err(error));
        }
        if self.left().is_some_and(|left| left.is_zero()) {
            return self.finish(Err(self.deadline_passed()));
        }
        self.prepare()
    }

    /// Waits for its turn, within the deadline.
    fn queued(&mut self, cx: &mut Context<'_>) -> Flow {
        if let Some(left) = self.left()
            && self.queue.is_overdue(cx, &*self.run.kernel.env.clock, left)
        {
            self.stop_waiting_for_key();
            return self.finish(Err(self.deadline_passed()));
        }
        self.registration.register(&self.run, cx);
        if let Some(error) = self.run.cancellation(self.heeds_cancel) {
            self.stop_waiting_for_key();
            return self.finish(Err(error));
        }
        if let Some(key) = self.queue.awaited_key() {
            let park = waits_for_key(&self.run, &self.op, key, self.clock.deadline);
            self.run.with(|machine| machine.park(park));
            self.run.note_wait();
        }
        self.stay(Phase::Admit(Stage::first()))
    }

    fn stop_waiting_for_key(&self) {
        if self.rules.lane.key.is_some() {
            self.run.with(|machine| machine.unpark(&self.op.path));
        }
    }

    fn deadline_passed(&self) -> ToolError {
        let deadline = self.rules.deadline.unwrap_or_default();
        ToolError::TimedOut { message: format!("the call's deadline of {deadline:?} passed before it could start") }
    }

    /// Makes durable what must be before the attempt leaves the process.
    fn prepare(&mut self) -> Flow {
        // Before anything says that it may have happened: an attempt that is not begun leaves no doubt.
        if self.has_lost_its_lease() {
            return self.stay(Phase::Over);
        }
        let suspect = self.run.suspect();
        let attempt = self.attempt;
        let event = match self.rules.effect {
            Effect::Once if S::ACTS && self.run.with(|machine| machine.must_ask_about(&self.op.path)) => {
                let over_by = self.run.now();
                return self.go(Phase::Doubt(Box::new(Doubting::new(DoubtCause::Restored, over_by))));
            }
            Effect::Once => {
                let now = self.run.at(self.ticks());
                let stop_by = now + self.rules.timeout;
                self.clock.stop_by = Some(stop_by);
                let event = Event::Intended { attempt, over_by: stop_by + self.rules.grace };
                let mark = self.append_at(now, event);
                return self.go(Phase::Durable(mark));
            }
            // What does not act kills nobody; announced, a refusal would look like an attempt that was let through.
            _ if suspect && S::ACTS => Event::Attempting { attempt },
            Effect::Readonly => return self.start(self.ticks()),
            Effect::Idempotent if self.run.with(|machine| machine.outbox().exists()) => {
                let mark = self.run.with(|machine| machine.outbox().written());
                return self.go(Phase::Durable(mark));
            }
            Effect::Idempotent => Event::Attempting { attempt },
        };
        let mark = self.append(event);
        self.go(Phase::Durable(mark))
    }

    fn durable(&mut self, cx: &mut Context<'_>, mark: u64) -> Flow {
        if !self.run.is_durable(mark) {
            self.queue.note_wait();
            self.registration.register(&self.run, cx);
            if !self.run.has_durable(mark) {
                return self.stay(Phase::Durable(mark));
            }
        }
        // Cancelled while it waited: it did not begin, and need not.
        if let Some(error) = self.run.cancellation(self.heeds_cancel) {
            return self.finish(Err(error));
        }
        let ticks = self.ticks();
        if self.is_overdue(ticks) { self.intend_again() } else { self.start(ticks) }
    }

    /// A reading of the ticks. Nothing pending so far: the one made when the call was asked for still holds.
    fn ticks(&self) -> u64 {
        if self.queue.waited() { self.run.kernel.env.clock.ticks() } else { self.clock.asked }
    }

    /// Whether others may take the attempt for over: this process stood still for so long. No zombie doubles.
    fn is_overdue(&self, ticks: u64) -> bool {
        // One that has not waited for anything was begun, or goes on, where it was intended.
        let is_over = |stop_by| self.run.at(ticks) >= stop_by + self.rules.grace;
        self.queue.waited() && self.clock.stop_by.is_some_and(is_over)
    }

    /// It did not begin in its time; whether it still may is for the store to say, which knows whose run it is.
    fn intend_again(&mut self) -> Flow {
        let (attempt, by) = (self.attempt, Settler::Tool);
        self.append(Event::Settled { attempt, by, reason: "it was not begun in its time".to_owned() });
        self.attempt += 1;
        self.prepare()
    }

    fn start(&mut self, started: u64) -> Flow {
        // The last moment at which nothing has left the process.
        if self.has_lost_its_lease() {
            return self.stay(Phase::Over);
        }
        // The body around it may have been dropped while this was polled on another thread.
        if self.queue.barrier.as_ref().is_some_and(Barrier::is_dropped) {
            return self.stay(Phase::Over);
        }
        let (path, name) = (self.op.path.clone(), self.op.name.clone());
        let origin = Origin { lasts: self.rules.timeout, effect: self.rules.effect, ..self.run.origin() };
        let attempt = Attempt::new(origin, path, name, self.attempt, self.rules.attempts());
        let heeds_cancel = self.heeds_cancel;
        let (source, run) = (&mut self.source, &self.run);
        let body = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| source.attempt(run, attempt.clone())));
        match body {
            Ok(body) => self.go(Phase::Running(Running::new(body, attempt, started, heeds_cancel))),
            Err(panic) => self.conclude(started, Ended::Panicked(panic_message(&*panic))),
        }
    }

    /// Whether others may take this worker for dead; if so it has no part in the run any more.
    fn has_lost_its_lease(&self) -> bool {
        let is_over = self.run.kernel.lease.is_over(&*self.run.kernel.env.clock);
        if is_over {
            self.run.lose();
        }
        is_over
    }

    fn running(&mut self, cx: &mut Context<'_>, mut running: Running<'a>) -> Flow {
        // One that starts now was looked at a moment ago.
        if running.is_pending && self.clock.stop_by.is_some() && self.is_overdue(self.ticks()) {
            let started = running.started;
            drop(running);
            return self.conclude(started, Ended::TimedOut("the process stood still beyond its time".to_owned()));
        }
        let cancelled = self.run.is_cancelled();
        match running.poll(cx, &self.run.kernel, &self.rules, || self.left(), cancelled) {
            Poll::Ready(ended) => {
                let started = running.started;
                // An answer that comes later is not the attempt's to vouch for.
                if matches!(&ended, Ended::Returned(Ok(output)) if output.later.is_none()) {
                    self.run.vouch(&self.op.path, running.vouched());
                }
                drop(running);
                self.conclude(started, ended)
            }
            Poll::Pending => {
                running.is_pending = true;
                self.queue.note_wait();
                self.registration.register(&self.run, cx);
                if self.run.is_cancelled() != cancelled {
                    return self.go(Phase::Running(running));
                }
                self.stay(Phase::Running(running))
            }
        }
    }

    /// Time until the deadline, or until the attempt must be over to keep what its intent says.
    fn left(&self) -> Option<Duration> {
        let end = self.clock.deadline.into_iter().chain(self.clock.stop_by).min()?;
        Some(end.since(self.run.now()))
    }

    fn conclude(&mut self, started: u64, ended: Ended) -> Flow {
        let now = self.run.kernel.env.clock.ticks();
        self.clock.ran(started, now);
        // When all it set off is over, as its intent says, even if the body has returned before.
        let set_off = self.clock.stop_by.take().map_or(self.run.at(now), |stop_by| stop_by + self.rules.grace);
        let doubt = |cause| Phase::Doubt(Box::new(Doubting::new(cause, self.run.at(now))));
        let error = match ended {
            Ended::Returned(Ok(Output { later: Some(later), .. })) => return self.park(later),
            Ended::Returned(Ok(output)) => {
                self.source.ended(&self.run, &self.op.path, true);
                return self.finish_at(now, Ok(output), None);
            }
            // What it set off may still go on elsewhere: that it did not happen is believed when its time is over.
            Ended::Returned(Err(ToolError::InDoubt { reason })) if S::ACTS && self.rules.effect == Effect::Once => {
                let said: Arc<str> = crate::tool::view::bounded(reason.into()).into();
                let doubting = Doubting::new(DoubtCause::Unclear, set_off).said(Some(said));
                return self.go(Phase::Doubt(Box::new(doubting)));
            }
            Ended::Returned(Err(error)) => error,
            Ended::Panicked(message) => self.panicked(&message),
            Ended::TimedOut(_) if self.rules.effect == Effect::Once => {
                let phase = doubt(DoubtCause::TimedOut);
                return self.go(phase);
            }
            // The body is told by its next operation: this one may have happened.
            Ended::Cancelled if self.rules.effect == Effect::Once => {
                let phase = doubt(DoubtCause::Cancelled);
                return self.go(phase);
            }
            Ended::TimedOut(message) => ToolError::TimedOut { message },
            Ended::Cancelled => self.run.with(|machine| machine.cancellation()),
        };
        let error = self.seal(error);
        match self.rules.retry_after(&error, self.attempt, self.jitter()) {
            Some(delay) => self.retry(now, error, delay),
            None => {
                self.source.ended(&self.run, &self.op.path, false);
                let settled = self.source.settled();
                self.finish_at(now, Err(error), settled)
            }
        }
    }

    /// Records the failure and when the next attempt is due; nothing but the key is held meanwhile.
    fn retry(&mut self, now: u64, error: ToolError, delay: Duration) -> Flow {
        let retry_at = self.run.at(now) + delay;
        if self.clock.deadline.is_some_and(|deadline| retry_at > deadline) {
            return self.finish_at(now, Err(error), None);
        }
        let attempt = self.attempt;
        self.append(Event::Failed { attempt, error: Arc::new(error), retry_at });
        self.queue.release_but_key();
        self.attempt += 1;
        self.wait_until(retry_at)
    }

    fn panicked(&self, message: &str) -> ToolError {
        let correlation = self.correlation();
        tracing::error!(correlation, name = %self.op.name, "the body panicked: {message}");
        ToolError::Panicked { correlation }
    }

    fn seal(&self, error: ToolError) -> ToolError {
        seal(error, &self.op.name, || self.correlation())
    }

    fn correlation(&self) -> String {
        format!("{}:{}:{}", self.run.id, self.op.path, self.attempt)
    }

    /// Between 0 and 1, the same whenever this attempt of this run fails.
    fn jitter(&self) -> f64 {
        let mut encoder = Encoder::new();
        encoder.text(&self.correlation());
        f64::from(encoder.finish().prefix()) / f64::from(u32::MAX)
    }

    pub(crate) fn append(&mut self, event: Event) -> u64 {
        self.append_at(self.run.now(), event)
    }

    pub(super) fn append_at(&mut self, at: Timestamp, event: Event) -> u64 {
        let asked = self.op.asked.take();
        self.run.append(&self.op.path, at, asked, event)
    }

    pub(crate) fn finish(&mut self, result: ToolResult<Output>) -> Flow {
        let now = self.run.kernel.env.clock.ticks();
        self.finish_at(now, result, None)
    }

    /// Records the raw outcome and what the body is told, together.
    pub(crate) fn finish_at(&mut self, ticks: u64, mut result: ToolResult<Output>, settled: Option<Settled>) -> Flow {
        self.queue.release_but_key();
        if let Ok(Err(error)) = result.as_ref().map(|output| output.shallow(&self.op.name)) {
            result = Err(error);
        }
        if let Ok(output) = &mut result
            && !output.commands.is_empty()
        {
            commands::mark_secrets(self.source.toolbox(&self.run), output);
        }
        let mut told = self.source.told(&self.run, &self.op.path, &result);
        let commands = match &result {
            // Also if the body is told something else: what is recorded is that it happened.
            Ok(output) if !output.commands.is_empty() => {
                let at = self.run.at(ticks);
                let ready = self.source.commands(&self.run, &self.op.path, output, at);
                ready.unwrap_or_else(|error| {
                    told = Some(Err(error));
                    Vec::new()
                })
            }
            _ => Vec::new(),
        };
        let told = told.map(|told| told.map(Arc::new).map_err(|error| Arc::new(self.seal(error))));
        let times = self.clock.times(ticks);
        let result = result.map(Arc::new).map_err(Arc::new);
        let finished = Finished { result, told, attempts: self.attempt, times, settled: settled.map(Box::new) };
        let answer = finished.answer();
        let at = self.run.at(ticks);
        let asked = self.op.asked.take();
        if commands.is_empty() {
            self.run.append(&self.op.path, at, asked, Event::Finished(finished));
        } else {
            let record = Record { path: self.op.path.clone(), at, asked, event: Event::Finished(finished) };
            let key = idempotency_key(self.run.id, self.run.generation, &self.op.path);
            self.run.with(|machine| {
                machine.append(record);
                commands::commit(machine, &self.op.path, commands, &key);
            });
        }
        self.queue.release();
        Flow::Done(Told { result: answer, at, times })
    }
}

/// Gives a hidden failure its correlation id and logs its whole chain; bounds the text of the others.
pub(crate) fn seal(mut error: ToolError, name: &str, correlation: impl FnOnce() -> String) -> ToolError {
    match &mut error {
        // One that came up from a child keeps the child's id.
        ToolError::Internal(internal) if internal.correlation.is_empty() => {
            internal.correlation = correlation();
            let chain = internal.chain().join(": ");
            tracing::error!(correlation = internal.correlation, name, "internal error: {chain}");
        }
        ToolError::Failed { message, .. } | ToolError::Unavailable { message } => {
            if let std::borrow::Cow::Owned(cut) = crate::tool::view::bounded(message.as_str().into()) {
                *message = cut;
            }
        }
        _ => {}
    }
    error
}
