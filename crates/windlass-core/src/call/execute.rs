//! The life of one operation that makes attempts: an atomic call or a step. It is a state machine that is polled, and
//! it is boxed and spawned only if it has to wait.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::attempt::{Attempt, Origin, idempotency_key};
use super::batch::Barrier;
use super::commands::{self, ReadyCommand};
use super::connect::ConnectionUse;
use super::doubt::Doubting;
use super::hidden;
use super::operation::Operation;
use super::queue::{AdmissionGoal, AttemptQueue};
use super::rules::Rules;
use super::running::{AttemptEnd, RunningAttempt, panic_message};
use super::stopwatch::Stopwatch;
use super::wait::ParkWait;
use crate::path::Path;
use crate::run::machine::OpPast;
use crate::run::record::{DoubtCause, Event, Finished, OpOutcome, Record, Settled, Settler};
use crate::run::replay::Decision;
use crate::run::secrets::Places;
use crate::run::spent::{EarlierTime, SpentTime};
use crate::run::state::{Blocked, Hold};
use crate::run::{Awake, Registration, Run};
use crate::time::{Times, Timestamp};
use crate::tool::narrate::Phase;
use crate::tool::{Effect, Output, Reconciled, ToolError, ToolResult, Toolbox};
use crate::value::digest::Encoder;

/// Makes the attempts of an operation.
pub(crate) trait AttemptSource<'a>: Send {
    /// Starts an attempt.
    fn attempt(&mut self, run: &Run, attempt: Attempt) -> BoxFuture<'a, ToolResult<Output>>;

    /// Finds out whether attempts under this key happened; `None` if that cannot be found out.
    fn reconcile(&mut self, attempt: Attempt) -> Option<BoxFuture<'a, ToolResult<Reconciled<Output>>>>;

    /// What the body is told instead of the result, if a check or middleware replaces it.
    fn replacement(&self, _run: &Run, _path: &Path, _result: &ToolResult<Output>) -> Option<ToolResult<Output>> {
        None
    }

    /// Tells people that the call waits, or that its last attempt returned.
    fn narrate(&self, _run: &Run, _path: &Path, _phase: Phase) {}

    /// Marks the secrets in an output.
    fn mark_secrets(&self, _output: &mut Output) {}

    /// The commands that are committed together with the outcome.
    fn commands(
        &self,
        _run: &Run,
        _path: &Path,
        _output: &Output,
        _at: Timestamp,
    ) -> Result<Vec<ReadyCommand>, ToolError> {
        Ok(Vec::new())
    }

    /// The toolbox in which the names in its commands are resolved.
    fn toolbox<'t>(&'t self, run: &'t Run) -> &'t Toolbox {
        &run.kernel.env.toolbox
    }

    /// Who ended it, if that was not an attempt.
    fn settled(&mut self) -> Option<Settled> {
        None
    }

    /// Whether it has effects outside. If not, it can never be in doubt, whatever effect class it was asked for with.
    const ACTS: bool = true;
}

pub(crate) struct Execution<'a, S> {
    pub(crate) run: Arc<Run>,
    pub(crate) op: Operation,
    pub(crate) rules: Rules,
    pub(crate) source: S,
    pub(crate) queue: AttemptQueue,
    pub(crate) attempt: u32,
    pub(crate) registration: Registration,
    /// Whether it was asked for before any operation received a cancellation. Later operations are part of cleaning up.
    pub(super) heeds_cancel: bool,
    pub(super) phase: ExecutionPhase<'a>,
    pub(super) clock: Stopwatch,
    pub(super) connections: ConnectionUse,
    awake: Awake,
}

/// Moved at every step, so the data of rare phases is boxed.
pub(crate) enum ExecutionPhase<'a> {
    Ask,
    /// A retry is due later.
    Delay(Box<ParkWait>),
    /// It waits for an answer from outside.
    Parked(Box<ParkWait>),
    Admit(AdmissionGoal),
    /// What the attempt depends on is being written to the store.
    Durable(u64),
    Running(RunningAttempt<'a>),
    Doubt(Box<Doubting<'a>>),
    Over,
}

pub(crate) enum Flow {
    Next,
    Pending,
    Done(OpOutcome),
}

// Nothing in it is pinned: the futures it holds are boxed.
impl<S> Unpin for Execution<'_, S> {}

impl<'a, S: AttemptSource<'a>> Execution<'a, S> {
    pub(crate) fn new(run: Arc<Run>, op: Operation, rules: Rules, source: S, queue: AttemptQueue) -> Self {
        let asked = run.kernel.env.clock.ticks();
        let heeds_cancel = !rules.compensates && run.heeds_cancel(&op.path);
        Self {
            run,
            op,
            rules,
            source,
            queue,
            attempt: 1,
            registration: Registration::default(),
            heeds_cancel,
            phase: ExecutionPhase::Ask,
            clock: Stopwatch::new(asked),
            connections: ConnectionUse::default(),
            awake: Awake::default(),
        }
    }

    /// Sets when it was asked for, and whether it has waited since. Its time and its deadline count from there.
    pub(crate) fn asked_at(&mut self, ticks: u64, waited: bool) {
        self.clock.asked = ticks;
        if waited {
            self.queue.note_wait();
        }
    }

    /// Adds time that had passed before it was asked for here. The deadline ignores it.
    pub(crate) fn after(&mut self, earlier: EarlierTime) {
        self.clock.earlier = earlier;
    }

    /// Records that it was asked for. It begins later, and what it records then must not be earlier than this.
    pub(crate) fn accept(&mut self) {
        self.op.accept(&self.run);
        self.queue.note_wait();
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<OpOutcome> {
        loop {
            if self.run.is_stopped() {
                return Poll::Pending;
            }
            match self.advance(cx) {
                Flow::Next => {}
                Flow::Pending => {
                    // While it is pending, the buffered records go to the store, so that the run can be seen.
                    if let Some(asked) = self.op.take_asked_when_pending() {
                        self.run.append(&self.op.path, self.run.now(), Some(asked), Event::Accepted);
                    }
                    self.op.announce(&self.run);
                    self.run.pump();
                    self.awake.set(&self.run, !self.is_parked());
                    return Poll::Pending;
                }
                Flow::Done(outcome) => return Poll::Ready(outcome),
            }
        }
    }

    fn advance(&mut self, cx: &mut Context<'_>) -> Flow {
        match std::mem::replace(&mut self.phase, ExecutionPhase::Over) {
            ExecutionPhase::Ask => self.ask(),
            ExecutionPhase::Delay(wait) => self.delay(cx, wait),
            ExecutionPhase::Parked(wait) => self.parked(cx, wait),
            ExecutionPhase::Admit(goal) => self.admit(cx, goal),
            ExecutionPhase::Durable(mark) => self.durable(cx, mark),
            ExecutionPhase::Running(running) => self.running(cx, running),
            ExecutionPhase::Doubt(doubting) => self.doubting(cx, doubting),
            ExecutionPhase::Over => Flow::Pending,
        }
    }

    pub(crate) fn go(&mut self, phase: ExecutionPhase<'a>) -> Flow {
        self.phase = phase;
        Flow::Next
    }

    pub(crate) fn stay(&mut self, phase: ExecutionPhase<'a>) -> Flow {
        self.phase = phase;
        Flow::Pending
    }

    /// Asks the journal where to continue.
    fn ask(&mut self) -> Flow {
        let Some(asked) = &self.op.asked else { return Flow::Pending };
        let path = &self.op.path;
        let (past, decision) = self.run.with(|machine| machine.ask_past(path, asked));
        self.op.settle_asked(past.is_some());
        let latest = past.as_ref().map(|past| past.at);
        if let Some(OpPast { since, begun, effect, spent, .. }) = past {
            // The deadline of a call that its batch held back has not started yet.
            let from = begun.or_else(|| self.queue.barrier.is_none().then_some(since));
            self.go_back_to(from, &spent);
            // Loosening a tool's effect class does not loosen attempts that were begun under the strict one.
            if S::ACTS {
                self.rules.effect = self.rules.effect.max(effect);
            }
        } else if self.rules.deadline.is_some() {
            self.set_deadline(self.run.at(self.clock.asked));
        }
        match decision {
            Decision::Answer { result, at } => Flow::Done(OpOutcome { result, at, times: Times::default() }),
            Decision::Perform { attempt, not_before } => {
                self.attempt = attempt;
                match not_before {
                    Some(until) => self.wait_until(until),
                    None => self.go(ExecutionPhase::Admit(AdmissionGoal::Attempt)),
                }
            }
            Decision::InDoubt { attempt, cause, over_by, said, recorded } => {
                self.attempt = attempt;
                let doubting = Doubting::new(cause, over_by).said(said).recorded(latest.filter(|_| recorded));
                self.go(ExecutionPhase::Doubt(Box::new(doubting)))
            }
            Decision::Park { on, until, attempt } => {
                self.attempt = attempt;
                let since = latest.unwrap_or_else(|| self.run.now());
                self.park_again(ParkWait::new(on, until, since))
            }
            Decision::Granted(_) => self.go(ExecutionPhase::Admit(AdmissionGoal::Attempt)),
            Decision::Enter => {
                self.run.hold(Hold::changed_body(&self.op.path, "a durable body that was entered", "an atomic one"));
                Flow::Pending
            }
            // Held or skipped by the machine, and not polled again.
            Decision::Diverged(_) | Decision::Skipped(_) => Flow::Pending,
        }
    }

    /// Restores the deadline, which counts from when the operation began, and its time, which counts from when it was
    /// asked for, whatever happened to the process or the run meanwhile.
    fn go_back_to(&mut self, began: Option<Timestamp>, spent: &SpentTime) {
        let now = self.run.at(self.clock.asked);
        self.set_deadline(began.unwrap_or(now));
        self.clock.earlier = spent.by(now);
        self.queue.note_wait();
    }

    pub(super) fn set_deadline(&mut self, from: Timestamp) {
        self.clock.deadline = self.rules.deadline.map(|deadline| from + deadline);
    }

    pub(super) fn wait_until(&mut self, until: Timestamp) -> Flow {
        let wait = ParkWait::new(Blocked::Retry, Some(until), self.run.now());
        self.go(ExecutionPhase::Delay(Box::new(wait)))
    }

    /// Queues for key, turn, the tool's own limits and permit, in this order.
    fn admit(&mut self, cx: &mut Context<'_>, goal: AdmissionGoal) -> Flow {
        let lane = &self.rules.lane;
        match self.queue.poll(cx, goal, (&self.run, &self.op.path, self.attempt), lane) {
            Ok(Poll::Ready(())) => self.stop_waiting_for_key(),
            Err(refused) => return self.finish(Err(refused)),
            Ok(Poll::Pending) => return self.queued(cx),
        }
        if self.run.kernel.closed.load(std::sync::atomic::Ordering::Acquire) {
            // The runtime shuts down. The next process that opens the store makes the attempt.
            self.queue.release();
            return self.stay(ExecutionPhase::Over);
        }
        if let Some(error) = self.run.cancellation(&self.op.path, self.heeds_cancel) {
            return self.finish(Err(error));
        }
        if self.left().is_some_and(|left| left.is_zero()) {
            return self.finish(Err(self.deadline_passed()));
        }
        self.prepare()
    }

    pub(super) fn deadline_passed(&self) -> ToolError {
        let deadline = self.rules.deadline.unwrap_or_default();
        ToolError::TimedOut { message: format!("the deadline of {deadline:?} passed before it could start") }
    }

    /// Records what must be durable before the attempt leaves the process.
    fn prepare(&mut self) -> Flow {
        // Checked before the intent is recorded: an attempt that does not begin must leave no doubt.
        if self.has_lost_its_lease() {
            return self.stay(ExecutionPhase::Over);
        }
        // A deadline counts from the first attempt on, also in the next process, which must know when that was.
        let is_timed = self.rules.deadline.is_some() && self.op.is_unrecorded();
        let (attempt, must_record) = (self.attempt, self.run.must_announce_attempt() || is_timed);
        let event = match self.rules.effect {
            Effect::Once if S::ACTS && self.run.with(|machine| machine.must_ask_about(&self.op.path)) => {
                let over_by = self.run.now();
                return self.go(ExecutionPhase::Doubt(Box::new(Doubting::new(DoubtCause::Restored, over_by))));
            }
            Effect::Once => {
                let now = self.run.at(self.ticks());
                let stop_by = now + self.rules.timeout;
                self.clock.stop_by = Some(stop_by);
                let event = Event::Intended { attempt, over_by: stop_by + self.rules.grace };
                let mark = self.append_at(now, event);
                return self.go(ExecutionPhase::Durable(mark));
            }
            // An operation without effects cannot kill the process. If a refusal were announced, it would look like an
            // attempt that was allowed.
            _ if must_record && S::ACTS => Event::Attempting { attempt },
            Effect::Readonly => return self.start(self.ticks()),
            Effect::Idempotent if self.run.with(|machine| machine.outbox().exists()) => {
                let mark = self.run.with(|machine| machine.outbox().written());
                return self.go(ExecutionPhase::Durable(mark));
            }
            Effect::Idempotent => Event::Attempting { attempt },
        };
        let mark = self.append(event);
        self.go(ExecutionPhase::Durable(mark))
    }

    fn durable(&mut self, cx: &mut Context<'_>, mark: u64) -> Flow {
        if !self.run.is_durable(mark) {
            self.queue.note_wait();
            self.registration.register(&self.run, cx);
            if !self.run.has_durable(mark) {
                return self.stay(ExecutionPhase::Durable(mark));
            }
        }
        // Cancelled while it waited, so it does not begin.
        if let Some(error) = self.run.cancellation(&self.op.path, self.heeds_cancel) {
            return self.finish(Err(error));
        }
        let ticks = self.ticks();
        if self.is_overdue(ticks) { self.intend_again() } else { self.start(ticks) }
    }

    /// A tick reading. If nothing was pending so far, the reading from when the call was asked for is still exact.
    fn ticks(&self) -> u64 {
        if self.queue.waited() { self.run.kernel.env.clock.ticks() } else { self.clock.asked }
    }

    /// Whether this process stood still so long that others may consider the attempt over. It must not run beside its
    /// successor.
    fn is_overdue(&self, ticks: u64) -> bool {
        // An attempt that has waited for nothing starts at the time of its intent.
        let is_over = |stop_by| self.run.at(ticks) >= stop_by + self.rules.grace;
        self.queue.waited() && self.clock.stop_by.is_some_and(is_over)
    }

    /// Records a new intent: the attempt did not begin in its time. The store decides whether it still may, because it
    /// knows the run's owner.
    fn intend_again(&mut self) -> Flow {
        let (attempt, by) = (self.attempt, Settler::Tool);
        self.append(Event::Settled { attempt, by, reason: "it did not begin in its time".to_owned() });
        self.attempt += 1;
        self.prepare()
    }

    fn start(&mut self, started: u64) -> Flow {
        // The last check before anything leaves the process.
        if self.has_lost_its_lease() {
            return self.stay(ExecutionPhase::Over);
        }
        // The body around it may have been dropped while another thread polled this.
        if self.queue.barrier.as_ref().is_some_and(Barrier::is_dropped) {
            return self.stay(ExecutionPhase::Over);
        }
        let (path, name) = (self.op.path.clone(), self.op.name.clone());
        let origin = Origin { lasts: self.rules.timeout, effect: self.rules.effect, ..self.run.origin() };
        let attempt = Attempt::new(origin, path, name, self.attempt, self.rules.attempts());
        let heeds_cancel = self.heeds_cancel;
        let (source, run) = (&mut self.source, &self.run);
        let body = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| source.attempt(run, attempt.clone())));
        match body {
            Ok(body) => self.go(ExecutionPhase::Running(RunningAttempt::new(body, attempt, started, heeds_cancel))),
            Err(panic) => self.conclude(started, AttemptEnd::Panicked(panic_message(&*panic))),
        }
    }

    /// Whether the lease expired, so that others may consider this worker dead. If so, it stops driving the run.
    fn has_lost_its_lease(&self) -> bool {
        let is_over = self.run.kernel.lease.is_over(&*self.run.kernel.env.clock);
        if is_over {
            self.run.lose();
        }
        is_over
    }

    fn running(&mut self, cx: &mut Context<'_>, mut running: RunningAttempt<'a>) -> Flow {
        // An attempt that starts now was checked a moment ago.
        if running.is_pending && self.clock.stop_by.is_some() && self.is_overdue(self.ticks()) {
            let started = running.started;
            drop(running);
            return self.conclude(
                started,
                AttemptEnd::TimedOut("the process stood still for longer than the attempt may take".to_owned()),
            );
        }
        let cancelled = self.run.is_cancelled_at(&self.op.path);
        match running.poll(cx, &self.run.kernel, &self.rules, || self.left(), cancelled) {
            Poll::Ready(ended) => {
                let started = running.started;
                // If the answer comes later, this attempt cannot vouch for its artifacts.
                if matches!(&ended, AttemptEnd::Returned(Ok(output)) if output.later.is_none()) {
                    self.run.vouch(&self.op.path, running.vouched());
                }
                self.connections.used = running.into_used_connections();
                self.conclude(started, ended)
            }
            Poll::Pending => {
                running.is_pending = true;
                self.queue.note_wait();
                self.registration.register(&self.run, cx);
                if self.run.is_cancelled_at(&self.op.path) != cancelled {
                    return self.go(ExecutionPhase::Running(running));
                }
                self.stay(ExecutionPhase::Running(running))
            }
        }
    }

    /// The time until the deadline, or until the attempt must be over to keep the promise of its intent.
    pub(super) fn left(&self) -> Option<Duration> {
        let end = self.clock.deadline.into_iter().chain(self.clock.stop_by).min()?;
        Some(end.since(self.run.now()))
    }

    fn conclude(&mut self, started: u64, ended: AttemptEnd) -> Flow {
        let now = self.run.kernel.env.clock.ticks();
        self.clock.ran(started, now);
        self.queue.report_target(&ended, now);
        // When everything the attempt started is over according to its intent, even if the body has returned before.
        let set_off = self.clock.stop_by.take().map_or(self.run.at(now), |stop_by| stop_by + self.rules.grace);
        let doubt = |cause| ExecutionPhase::Doubt(Box::new(Doubting::new(cause, self.run.at(now))));
        let error = match ended {
            AttemptEnd::Returned(Ok(Output { later: Some(later), .. })) => return self.park(later),
            AttemptEnd::Returned(Ok(output)) => {
                self.source.narrate(&self.run, &self.op.path, Phase::End);
                return self.finish_at(now, Ok(output), None);
            }
            // Work it started may still go on elsewhere, so "did not happen" is accepted only after its time is over.
            AttemptEnd::Returned(Err(ToolError::InDoubt { reason }))
                if S::ACTS && self.rules.effect == Effect::Once =>
            {
                let said: Arc<str> = crate::tool::view::bounded(reason.into()).into();
                let doubting = Doubting::new(DoubtCause::Unclear, set_off).said(Some(said));
                return self.go(ExecutionPhase::Doubt(Box::new(doubting)));
            }
            AttemptEnd::Returned(Err(ToolError::ConnectionRequired { provider })) if S::ACTS => {
                return self.connect((started, now), provider);
            }
            AttemptEnd::Returned(Err(error)) => error,
            AttemptEnd::Panicked(message) => self.panicked(&message),
            AttemptEnd::TimedOut(_) if self.rules.effect == Effect::Once => {
                let phase = doubt(DoubtCause::TimedOut);
                return self.go(phase);
            }
            // The body receives the cancellation in its next operation, because this one may have happened.
            AttemptEnd::Cancelled if self.rules.effect == Effect::Once => {
                let phase = doubt(DoubtCause::Cancelled);
                return self.go(phase);
            }
            AttemptEnd::TimedOut(message) => ToolError::TimedOut { message },
            AttemptEnd::Cancelled => self.run.told_to_stop(&self.op.path),
        };
        let error = self.seal(error);
        match self.rules.retry_after(&error, self.attempt, self.jitter()) {
            Some(delay) => self.retry(now, error, delay),
            None => {
                self.source.narrate(&self.run, &self.op.path, Phase::Failure);
                let settled = self.source.settled();
                self.finish_at(now, Err(error), settled)
            }
        }
    }

    /// Records the failure and the time of the next attempt. Only the key is held meanwhile.
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
        hidden::log(&correlation, &self.op.name, format_args!("the body panicked: {message}"));
        ToolError::Panicked { correlation }
    }

    fn seal(&self, error: ToolError) -> ToolError {
        seal(error, &self.op.name, || self.correlation())
    }

    fn correlation(&self) -> String {
        format!("{}:{}:{}", self.run.id, self.op.path, self.attempt)
    }

    /// Between 0 and 1, and always the same for this attempt of this run.
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

    /// Records the raw outcome and what the body is told, in one record.
    pub(crate) fn finish_at(&mut self, ticks: u64, mut result: ToolResult<Output>, settled: Option<Settled>) -> Flow {
        self.queue.release_but_key();
        if let Ok(Err(error)) = result.as_ref().map(|output| output.check_depth(&self.op.name)) {
            result = Err(error);
        }
        if let Ok(output) = &mut result
            && !output.commands.is_empty()
        {
            commands::mark_secrets(self.source.toolbox(&self.run), output);
        }
        let mut replacement = self.source.replacement(&self.run, &self.op.path, &result);
        let commands = match &result {
            // The commands are carried out even if the body is told something else, because the record says that the
            // effect happened.
            Ok(output) if !output.commands.is_empty() => {
                let at = self.run.at(ticks);
                let ready = self.source.commands(&self.run, &self.op.path, output, at);
                ready.unwrap_or_else(|error| {
                    replacement = Some(Err(error));
                    Vec::new()
                })
            }
            _ => Vec::new(),
        };
        for output in result.iter_mut().chain(replacement.iter_mut().flat_map(|told| told.iter_mut())) {
            self.source.mark_secrets(output);
            if self.rules.secret {
                output.secrets = Places::whole(&output.value);
            }
        }
        let told = replacement.map(|replaced| replaced.map(Arc::new).map_err(|error| Arc::new(self.seal(error))));
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
        Flow::Done(OpOutcome { result: answer, at, times })
    }
}

/// Gives an internal error its correlation id and logs its whole chain. Bounds the text of other errors.
pub(crate) fn seal(mut error: ToolError, name: &str, correlation: impl FnOnce() -> String) -> ToolError {
    match &mut error {
        // An error that came up from a child keeps the child's id.
        ToolError::Internal(internal) if internal.correlation.is_empty() => {
            internal.correlation = correlation();
            let chain = internal.chain().join(": ");
            hidden::log(&internal.correlation, name, format_args!("internal error: {chain}"));
        }
        error => error.bound(),
    }
    error
}
