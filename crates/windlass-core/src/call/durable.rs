//! The life of a durable body: entered, entered again after a crash, left with an outcome. It holds nothing but the key
//! it declared.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;

use super::attempt::Attempt;
use super::child::{broken_promise, narrate};
use super::execute::seal;
use super::hidden;
use super::key::{KeyClaim, waits_for_key};
use super::loops::Loops;
use super::middleware::MiddlewareCall;
use super::operation::Operation;
use super::plan::Scope;
use super::request::ToolCall;
use super::rules::key_of;
use super::running::panic_message;
use crate::ctx::Ctx;
use crate::ctx::undo::{Undo, compensate};
use crate::limits;
use crate::path::Path;
use crate::run::record::{Event, Finished, OpOutcome};
use crate::run::replay::Decision;
use crate::run::spent::{EarlierTime, nanos};
use crate::run::state::Hold;
use crate::run::{Registration, Run};
use crate::time::{Times, Timestamp};
use crate::tool::narrate::Phase as NarrationPhase;
use crate::tool::{Body, Output, Tool, ToolError, ToolResult};

/// What a body's context, its operations and its execution share.
pub(crate) struct Frame {
    pub(crate) run: Arc<Run>,
    /// The path of the body.
    pub(crate) path: Path,
    /// The position of the next operation.
    pub(crate) next: AtomicU32,
    /// The body has ended. It did not abandon the operations that are dropped with it.
    ended: AtomicBool,
    /// The body waits in an operation.
    busy: AtomicBool,
    /// How to undo what the body did, in the order it was done.
    pub(crate) undos: Mutex<Vec<Undo>>,
    /// What the tool's `prepare` froze.
    pub(crate) prepared: Option<Arc<Value>>,
    pub(crate) loops: Mutex<Loops>,
}

impl Frame {
    pub(crate) fn new(run: Arc<Run>, path: Path, prepared: Option<Arc<Value>>) -> Self {
        Self {
            run,
            path,
            next: AtomicU32::new(0),
            ended: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            undos: Mutex::default(),
            prepared,
            loops: Mutex::default(),
        }
    }

    pub(crate) fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Release);
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    /// Notes that the body has ended, so that operations dropped with it do not count as abandoned.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

pub(crate) struct DurableCall {
    run: Arc<Run>,
    op: Operation,
    tool: Arc<Tool>,
    call: ToolCall,
    scope: Scope,
    frame: Arc<Frame>,
    phase: BodyPhase,
    timing: BodyTiming,
    heeds_cancel: bool,
    registration: Registration,
    /// Whether a batch may have held it back before it began.
    in_batch: bool,
}

struct BodyTiming {
    asked: u64,
    /// The time that had passed before it was asked for here.
    earlier: EarlierTime,
    entered: Option<u64>,
    /// When the body was first entered, according to the journal.
    began: Option<Timestamp>,
    deadline: Option<Deadline>,
}

/// When the body must have ended.
struct Deadline {
    at: Timestamp,
    timer: BoxFuture<'static, ()>,
    /// When to check again whether the wall clock has jumped past the deadline.
    look: BoxFuture<'static, ()>,
}

enum BodyPhase {
    Ask,
    /// Waits for its declared key.
    Key {
        key: KeyClaim,
        again: bool,
    },
    Body {
        body: BoxFuture<'static, ToolResult<Output>>,
        label: Attempt,
        key: Option<KeyClaim>,
    },
    Over,
}

impl DurableCall {
    pub(crate) fn new(
        run: Arc<Run>,
        op: Operation,
        tool: Arc<Tool>,
        call: ToolCall,
        scope: Scope,
        prepared: Option<Arc<Value>>,
    ) -> Self {
        let asked = run.kernel.env.clock.ticks();
        let heeds_cancel = run.heeds_cancel(&op.path);
        let frame = Arc::new(Frame::new(run.clone(), op.path.clone(), prepared));
        Self {
            run,
            op,
            tool,
            call,
            scope,
            frame,
            phase: BodyPhase::Ask,
            timing: BodyTiming { asked, earlier: EarlierTime::default(), entered: None, began: None, deadline: None },
            heeds_cancel,
            registration: Registration::default(),
            in_batch: false,
        }
    }

    /// Marks a call in a batch: its time begins when it does, not when the batch was accepted.
    pub(crate) fn in_batch(mut self, in_batch: bool) -> Self {
        self.in_batch = in_batch;
        self
    }

    /// Sets when it was asked for. Its time and its deadline count from there.
    pub(crate) fn asked_at(&mut self, ticks: u64) {
        self.timing.asked = ticks;
    }

    /// Adds time that had passed before it was asked for here. The deadline ignores it.
    pub(crate) fn after(&mut self, earlier: EarlierTime) {
        self.timing.earlier = earlier;
    }

    pub(crate) fn accept(&mut self) {
        self.op.accept(&self.run);
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<OpOutcome> {
        loop {
            if self.run.is_stopped() {
                return Poll::Pending;
            }
            match std::mem::replace(&mut self.phase, BodyPhase::Over) {
                BodyPhase::Ask => {
                    if let Some(outcome) = self.ask() {
                        return Poll::Ready(outcome);
                    }
                }
                BodyPhase::Key { mut key, again } => {
                    match key.poll(cx) {
                        Poll::Ready(Ok(())) => {}
                        Poll::Ready(Err(cycle)) => return Poll::Ready(self.leave(ToolError::unavailable(cycle))),
                        Poll::Pending => return self.queued(cx, key, again),
                    }
                    self.run.with(|machine| machine.unpark(&self.op.path));
                    self.enter(Some(key), again);
                }
                BodyPhase::Body { body, label, key } => return self.poll_body(cx, body, label, key),
                BodyPhase::Over => return Poll::Pending,
            }
        }
    }

    /// Waits for its key until the deadline, unless it is cancelled.
    fn queued(&mut self, cx: &mut Context<'_>, key: KeyClaim, again: bool) -> Poll<OpOutcome> {
        self.registration.register(&self.run, cx);
        if self.deadline_passed(cx) {
            return Poll::Ready(self.leave(deadline_passed()));
        }
        // A body that was entered before receives the cancellation in its operations, once it has its key.
        if let Some(error) = self.run.cancellation(&self.op.path, self.heeds_cancel && !again) {
            self.run.with(|machine| machine.unpark(&self.op.path));
            return Poll::Ready(self.finish(Err(error)));
        }
        if let Some(awaited) = key.awaited() {
            let park = waits_for_key(&self.run, &self.op, awaited, None);
            self.run.with(|machine| machine.park(park));
            self.run.note_wait();
        }
        self.phase = BodyPhase::Key { key, again };
        if let Some(asked) = self.op.take_asked_when_pending() {
            self.run.append(&self.op.path, self.run.now(), Some(asked), Event::Accepted);
        }
        self.run.pump();
        Poll::Pending
    }

    /// Returns the recorded outcome, or sets the next phase.
    fn ask(&mut self) -> Option<OpOutcome> {
        let (path, asked) = (&self.op.path, self.op.asked()?);
        let (past, decision) = self.run.with(|machine| machine.ask_past(path, asked));
        let again = match decision {
            Decision::Answer { result, at } => return Some(OpOutcome { result, at, times: Times::default() }),
            Decision::Enter => {
                self.timing.began = past.as_ref().map(|past| past.at);
                true
            }
            // Any other record was written for an atomic body of the same tool, because a durable body is entered
            // before anything else.
            Decision::Perform { .. } => false,
            Decision::Skipped(left) if matches!(*left, Decision::Perform { .. }) => return None,
            Decision::InDoubt { .. } | Decision::Park { .. } | Decision::Granted(_) | Decision::Skipped(_) => {
                let recorded = "an attempt of an atomic body that may have happened";
                self.run.hold(Hold::changed_body(path, recorded, "a durable one"));
                return None;
            }
            // Held by the machine.
            Decision::Diverged(_) => return None,
        };
        self.op.settle_asked(past.is_some());
        if let Some(past) = &past {
            self.timing.earlier = past.spent.by(self.run.at(self.timing.asked));
        }
        if let Some(error) = self.run.cancellation(&self.op.path, self.heeds_cancel && !again) {
            return Some(self.finish(Err(error)));
        }
        let began = past.and_then(|past| if self.in_batch { past.begun } else { Some(past.since) });
        let from = began.unwrap_or_else(|| self.run.at(self.timing.asked));
        let policy = self.run.kernel.env.policy_for(&self.tool, self.call.limits.as_deref());
        if let Some(deadline) = policy.as_deref().unwrap_or_else(|| self.tool.resolved()).deadline {
            let at = from + deadline;
            let timer = self.run.kernel.env.clock.sleep(at.since(self.run.now()));
            let look = self.run.kernel.env.clock.sleep(limits::CLOCK_CHECK);
            self.timing.deadline = Some(Deadline { at, timer, look });
            self.run.with(|machine| machine.deadline(&self.op.path, Some(at)));
        }
        let Some(key) = key_of(&self.tool, &self.call.args, self.run.attribution.as_deref()) else {
            self.enter(None, again);
            return None;
        };
        match KeyClaim::request(&self.run, &self.op.path, key, self.scope.held.as_ref()) {
            Ok(key) => {
                self.scope.held = Some(key.hold(self.scope.held.take()));
                self.phase = BodyPhase::Key { key, again };
                None
            }
            Err(cycle) => Some(self.leave(ToolError::unavailable(cycle))),
        }
    }

    fn enter(&mut self, key: Option<KeyClaim>, again: bool) {
        let ticks = self.run.kernel.env.clock.ticks();
        self.timing.entered = Some(ticks);
        let began = self.timing.began.unwrap_or_else(|| self.run.at(ticks));
        if !again {
            let asked = self.op.take_asked();
            self.run.append(&self.op.path, began, asked, Event::Entered);
            narrate(&self.tool, &self.run, &self.op.path, NarrationPhase::Start, &self.call.args);
        }
        let label = Attempt::new(self.run.origin(), self.op.path.clone(), self.op.name.clone(), 1, 1);
        let Body::Durable(durable) = self.tool.body() else { return };
        let ctx = self.ctx(began);
        let args = self.call.args.clone();
        let durable = durable.clone();
        // Entered inside the first poll, where a panic is caught.
        let body = Box::pin(async move { durable.enter(ctx, args).await });
        self.phase = BodyPhase::Body { body, label, key };
    }

    fn ctx(&self, began: Timestamp) -> Ctx {
        let inside = (self.frame.clone(), self.tool.clone());
        Ctx::new(self.run.clone(), self.op.path.clone(), self.scope.clone(), inside, began)
    }

    /// The compensation of a body that failed, which runs before the body ends; `None` if there is nothing to undo.
    fn compensation(&self, error: &ToolError) -> Option<BoxFuture<'static, ToolResult<Output>>> {
        let undos = std::mem::take(&mut *self.frame.undos.lock());
        if undos.is_empty() {
            return None;
        }
        Some(Box::pin(compensate(self.ctx(self.run.now()), undos, error.clone())))
    }

    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        mut body: BoxFuture<'static, ToolResult<Output>>,
        label: Attempt,
        key: Option<KeyClaim>,
    ) -> Poll<OpOutcome> {
        let polled = {
            let _watched = self.run.kernel.watchdog.enter(&label);
            let _span =
                tracing::debug_span!("body", run = %self.run.id, path = %self.op.path, name = %self.op.name).entered();
            let plain =
                |result: ToolResult<Output>| result.and_then(|output| output.refuse_atomic_only("a durable body"));
            std::panic::catch_unwind(AssertUnwindSafe(|| body.poll_unpin(cx).map(plain)))
        };

        if self.run.is_stopped() {
            return Poll::Pending;
        }
        let polled = match polled {
            Ok(Poll::Ready(Err(error))) => match self.compensation(&error) {
                Some(body) => return self.poll_body(cx, body, label, key),
                None => Ok(Poll::Ready(Err(error))),
            },
            Err(panic) => {
                let error = self.panicked(&panic_message(&*panic));
                match self.compensation(&error) {
                    Some(body) => return self.poll_body(cx, body, label, key),
                    None => Ok(Poll::Ready(Err(error))),
                }
            }
            other => other,
        };
        if !matches!(polled, Ok(Poll::Pending)) {
            let next = self.op.path.child(self.frame.next.load(Ordering::Acquire));
            self.run.with(|machine| machine.returned(&next));
            // A check ignores what the body returned.
            if self.run.is_stopped() || self.run.only_checks {
                return Poll::Pending;
            }
        }
        let result = match polled {
            Ok(Poll::Ready(result)) => result,
            Ok(Poll::Pending) => {
                self.registration.register(&self.run, cx);
                if !self.run.only_checks && self.deadline_passed(cx) {
                    self.frame.end();
                    drop(body);
                    return Poll::Ready(self.leave(deadline_passed()));
                }
                if !self.frame.is_busy() {
                    self.run.hold(Hold::Outside { path: self.op.path.clone() });
                    return Poll::Pending;
                }
                self.phase = BodyPhase::Body { body, label, key };
                return Poll::Pending;
            }
            Err(panic) => Err(self.panicked(&panic_message(&*panic))),
        };
        let outcome = self.finish(result);
        // Dropped after its end is recorded: the key is released once that record is durable.
        drop(key);
        Poll::Ready(outcome)
    }

    /// Ends before the body has returned. Its attempts that may have happened stay visible.
    fn leave(&mut self, error: ToolError) -> OpOutcome {
        let (path, now) = (self.op.path.clone(), self.run.now());
        self.run.with(|machine| machine.abandon_below(&path, now));
        let outcome = self.finish(Err(error));
        self.run.leave_queues_below(&path);
        outcome
    }

    fn deadline_passed(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(Deadline { at, timer, look }) = &mut self.timing.deadline else { return false };
        if timer.poll_unpin(cx).is_ready() {
            return true;
        }
        while look.poll_unpin(cx).is_ready() {
            self.run.rebase();
            if *at <= self.run.now() {
                return true;
            }
            *look = self.run.kernel.env.clock.sleep(limits::CLOCK_CHECK);
        }
        false
    }

    fn correlation(&self) -> String {
        format!("{}:{}", self.run.id, self.op.path)
    }

    fn panicked(&self, message: &str) -> ToolError {
        let correlation = self.correlation();
        hidden::log(&correlation, &self.op.name, format_args!("the durable body panicked: {message}"));
        ToolError::Panicked { correlation }
    }

    fn finish(&mut self, result: ToolResult<Output>) -> OpOutcome {
        self.frame.end();
        if self.timing.deadline.is_some() {
            self.run.with(|machine| machine.deadline(&self.op.path, None));
        }
        let result = match result.as_ref().map(|output| output.check_depth(&self.op.name)) {
            Ok(Err(error)) => Err(error),
            _ => result,
        };
        let mut result = result.map_err(|error| self.seal(error));
        let phrase = if result.is_ok() { NarrationPhase::End } else { NarrationPhase::Failure };
        narrate(&self.tool, &self.run, &self.op.path, phrase, &self.call.args);
        let mut told = self.replacement(&result);
        for output in result.iter_mut().chain(told.iter_mut().flat_map(|told| told.iter_mut())) {
            self.tool.mark_secrets(output);
        }
        let told = told.map(|replaced| replaced.map(Arc::new).map_err(|error| Arc::new(self.seal(error))));
        let ticks = self.run.kernel.env.clock.ticks();
        let times = self.times(ticks);
        let result = result.map(Arc::new).map_err(Arc::new);
        let finished = Finished { result, told, attempts: 1, times, settled: None };
        let (answer, at) = (finished.answer(), self.run.at(ticks));
        let asked = self.op.take_asked();
        self.run.append(&self.op.path, at, asked, Event::Finished(finished));
        OpOutcome { result: answer, at, times }
    }

    /// A body runs from its entry to its end, whatever its operations wait for. They have times of their own.
    fn times(&self, ticks: u64) -> Times {
        let BodyTiming { asked, earlier, entered, began, .. } = &self.timing;
        let since = |entered: u64| ticks.saturating_sub(entered);
        let before = |entered: u64| began.map_or(0, |began| nanos(self.run.at(entered).since(began)));
        let running = entered.map_or(0, |entered| since(entered).saturating_add(before(entered)));
        earlier.and(since(*asked), running)
    }

    fn replacement(&self, result: &ToolResult<Output>) -> Option<ToolResult<Output>> {
        let Self { run, tool, call, .. } = self;
        let middleware_call = MiddlewareCall::in_run(run, &self.op.path, tool, &call.args, call.id.as_deref());
        middleware_call.after(result, broken_promise(tool, result))
    }

    fn seal(&self, error: ToolError) -> ToolError {
        seal(error, &self.op.name, || self.correlation())
    }
}

fn deadline_passed() -> ToolError {
    ToolError::TimedOut { message: "the call's deadline passed".to_owned() }
}

impl Drop for DurableCall {
    fn drop(&mut self) {
        self.frame.end();
    }
}
