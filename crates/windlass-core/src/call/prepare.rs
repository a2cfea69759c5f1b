//! The stages between the request for a call and its first attempt that a program adds: `before` middleware, the check
//! of the arguments, the tool's `prepare`. Their result is recorded before anything is attempted, so that an attempt
//! after a crash sees the same bytes. A call without such stages skips this module.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::attempt::{Attempt, Call};
use super::batch::Barrier;
use super::child::{CallFuture, ToolSource};
use super::middleware::{BeforeOutcome, MiddlewareCall};
use super::operation::Operation;
use super::plan::{self, Scope};
use super::request::ToolCall;
use super::running::panic_message;
use crate::limits;
use crate::policy::EffectivePolicy;
use crate::run::record::{Event, OpOutcome, Prepared};
use crate::run::spent::EarlierTime;
use crate::run::{Awake, Registration, Run};
use crate::tool::{Output, Tool, ToolError, ToolResult};
use crate::value::size;

/// The answer of a tool's `prepare` about a call: continue, perhaps with other arguments or with a payload that is
/// frozen for the attempts, or finish with an output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preparation {
    pub(super) args: Option<Value>,
    pub(super) payload: Option<Value>,
    pub(super) answer: Option<Output>,
}

impl Preparation {
    /// Continues as asked.
    pub fn go() -> Self {
        Self::default()
    }

    /// Continues with a payload that every attempt sees as [`Call::prepared`], even after a crash.
    pub fn freeze(payload: impl Into<Value>) -> Self {
        Self { payload: Some(payload.into()), ..Self::default() }
    }

    /// Continues with other arguments, which are checked again.
    #[must_use]
    pub fn with_args(mut self, args: impl Into<Value>) -> Self {
        self.args = Some(args.into());
        self
    }

    /// Executes nothing: this is the outcome.
    pub fn answer(output: impl Into<Output>) -> Self {
        Self { answer: Some(output.into()), ..Self::default() }
    }
}

/// A call that is being prepared, and afterwards the call it became.
// Many fields: what the stages before the first attempt hand to one another.
pub(crate) struct Preparing {
    run: Arc<Run>,
    scope: Scope,
    barrier: Option<Barrier>,
    tool: Arc<Tool>,
    call: ToolCall,
    policy: EffectivePolicy,
    since: u64,
    /// The time that had passed before `since`.
    earlier: EarlierTime,
    heeds_cancel: bool,
    waited: bool,
    registration: Registration,
    awake: Awake,
    stage: PrepareStage,
}

enum PrepareStage {
    Before(Operation),
    Prepare(Operation, Box<PrepareWork>),
    Ready(CallFuture),
    Over,
}

/// The tool's `prepare` in progress.
struct PrepareWork {
    body: BoxFuture<'static, ToolResult<Preparation>>,
    attempt: Attempt,
    limit: Duration,
    /// Set only if `prepare` is pending.
    timer: Option<BoxFuture<'static, ()>>,
}

impl Preparing {
    pub(crate) fn new(
        run: Arc<Run>,
        scope: Scope,
        barrier: Option<Barrier>,
        operation: Operation,
        tool: Arc<Tool>,
        call: ToolCall,
    ) -> Self {
        let (since, heeds_cancel) = (run.kernel.env.clock.ticks(), run.heeds_cancel());
        let (registration, awake, stage) = (Registration::default(), Awake::default(), PrepareStage::Before(operation));
        let policy = EffectivePolicy::of(&run.kernel.env.policy, tool.spec(), call.limits.as_deref());
        Self {
            run,
            scope,
            barrier,
            tool,
            call,
            policy,
            since,
            earlier: EarlierTime::default(),
            heeds_cancel,
            waited: false,
            registration,
            awake,
            stage,
        }
    }

    pub(crate) fn after(&mut self, earlier: EarlierTime) {
        self.earlier = earlier;
    }

    pub(crate) fn accept(&mut self) {
        self.waited = true;
        match &mut self.stage {
            PrepareStage::Before(operation) | PrepareStage::Prepare(operation, _) => operation.accept(&self.run),
            PrepareStage::Ready(call) => call.accept(),
            PrepareStage::Over => {}
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<OpOutcome> {
        loop {
            if self.run.is_stopped() {
                return Poll::Pending;
            }
            self.stage = match std::mem::replace(&mut self.stage, PrepareStage::Over) {
                PrepareStage::Before(operation) => self.before(operation),
                PrepareStage::Prepare(mut operation, mut work) => match self.prepare(cx, &mut work) {
                    Poll::Ready(preparation) => self.prepared(operation, preparation),
                    Poll::Pending => {
                        self.waited = true;
                        operation.accept(&self.run);
                        self.stage = PrepareStage::Prepare(operation, work);
                        self.run.pump();
                        // The tool is working, so the run must not be suspended because another branch only waits.
                        self.awake.set(&self.run, true);
                        return Poll::Pending;
                    }
                },
                PrepareStage::Ready(mut call) => {
                    let polled = call.poll(cx);
                    // The prepared call itself tracks whether it only waits.
                    self.awake.set(&self.run, false);
                    self.stage = PrepareStage::Ready(call);
                    return polled;
                }
                PrepareStage::Over => return Poll::Pending,
            };
        }
    }

    /// The prepared call, whose time counts from when it was asked for.
    fn ready(&self, future: CallFuture) -> PrepareStage {
        PrepareStage::Ready(future.asked_at(self.since, self.waited).after(self.earlier))
    }

    fn refuse(&self, operation: Operation, error: ToolError) -> PrepareStage {
        self.ready(CallFuture::refused(self.run.clone(), operation, error))
    }

    fn answer(&self, operation: Operation, output: Output) -> PrepareStage {
        let (tool, args, id) = (self.tool.clone(), self.call.args.clone(), self.call.id.clone());
        let source = ToolSource { tool, args, id, payload: None, layered: self.scope.layered() };
        self.ready(CallFuture::answered(self.run.clone(), operation, output, source))
    }

    /// Runs middleware, then checks the arguments it left.
    fn before(&mut self, operation: Operation) -> PrepareStage {
        if let Some(error) = self.run.cancellation(self.heeds_cancel) {
            return self.refuse(operation, error);
        }
        let Self { run, tool, call, policy, .. } = &*self;
        let middleware_call = MiddlewareCall::in_run(run, &operation.path, tool, &call.args, call.id.as_deref());
        let entrance = plan::check_asked(tool, call, &operation.path, policy).and_then(|()| middleware_call.before());
        let args = match entrance {
            Ok(BeforeOutcome::Open(args)) => args,
            Ok(BeforeOutcome::Answered(output)) => return self.answer(operation, output),
            Err(error) => return self.refuse(operation, error),
        };
        let checked =
            self.rewrite(&operation, args).and_then(|()| self.tool.contract()?.check_arguments(&self.call.args));
        if let Err(error) = checked {
            return self.refuse(operation, error);
        }
        let Some(prepare) = self.tool.preparer().cloned() else {
            return self.go(operation, None, false);
        };
        let attempt = Attempt::new(self.run.origin(), operation.path.clone(), operation.name.clone(), 1, 1);
        let spec = self.tool.spec();
        let call = Call::new(attempt.clone(), spec.id.clone(), self.call.args.clone(), self.call.id.clone());
        // Entered inside the first poll, where a panic is caught.
        let body = Box::pin(async move { prepare.prepare(call).await });
        let (timeout, deadline) = (self.policy.timeout, self.policy.deadline);
        let limit = deadline.map_or(timeout, |deadline| deadline.min(timeout));
        PrepareStage::Prepare(operation, Box::new(PrepareWork { body, attempt, limit, timer: None }))
    }

    /// Takes over rewritten arguments, within the same size limits as the original ones.
    fn rewrite(&mut self, operation: &Operation, args: Arc<Value>) -> ToolResult<()> {
        if Arc::ptr_eq(&args, &self.call.args) {
            return Ok(());
        }
        let name = &operation.name;
        size::check(&args, limits::ARGUMENT_BYTES)
            .map_err(|_| ToolError::invalid("", format!("the rewritten arguments of `{name}` are too large")))?;
        self.call.args = args;
        Ok(())
    }

    fn prepare(&mut self, cx: &mut Context<'_>, work: &mut PrepareWork) -> Poll<ToolResult<Preparation>> {
        let polled = {
            let _watched = self.run.kernel.watchdog.enter(&work.attempt);
            let body = &mut work.body;
            std::panic::catch_unwind(AssertUnwindSafe(|| body.poll_unpin(cx)))
        };
        match polled {
            Ok(Poll::Ready(mut preparation)) => {
                work.attempt.redact_preparation(&mut preparation);
                return Poll::Ready(preparation);
            }
            Err(panic) => {
                let message = work.attempt.redact_text(&panic_message(&*panic));
                return Poll::Ready(Err(self.panicked(&work.attempt, &message)));
            }
            Ok(Poll::Pending) => {}
        }
        self.registration.register(&self.run, cx);
        if let Some(error) = self.run.cancellation(self.heeds_cancel) {
            return Poll::Ready(Err(error));
        }
        let timer = work.timer.get_or_insert_with(|| self.run.kernel.env.clock.sleep(work.limit));
        std::task::ready!(timer.poll_unpin(cx));
        let message = format!("preparing the call took longer than {:?}", work.limit);
        Poll::Ready(Err(ToolError::TimedOut { message }))
    }

    fn panicked(&self, attempt: &Attempt, message: &str) -> ToolError {
        let correlation = format!("{}:{}", attempt.run(), attempt.path());
        tracing::error!(correlation, name = attempt.name(), "`prepare` panicked: {message}");
        ToolError::Panicked { correlation }
    }

    fn prepared(&mut self, operation: Operation, preparation: ToolResult<Preparation>) -> PrepareStage {
        let Preparation { args, payload, answer } = match preparation {
            Ok(preparation) => preparation,
            Err(error) => return self.refuse(operation, error),
        };
        if let Some(output) = answer {
            return self.answer(operation, output);
        }
        match self.take_over(&operation, args, payload) {
            Ok(payload) => self.go(operation, payload, true),
            Err(error) => self.refuse(operation, error),
        }
    }

    /// Takes over what `prepare` changed. Rewritten arguments are checked again.
    fn take_over(
        &mut self,
        operation: &Operation,
        args: Option<Value>,
        payload: Option<Value>,
    ) -> ToolResult<Option<Arc<Value>>> {
        if let Some(args) = args {
            self.rewrite(operation, Arc::new(args))?;
            self.tool.contract()?.check_arguments(&self.call.args)?;
        }
        let Some(payload) = payload else { return Ok(None) };
        let (name, most) = (&operation.name, limits::ARGUMENT_BYTES);
        size::check(&payload, most).map_err(|_| {
            ToolError::internal(format!(
                "`prepare` of `{name}` froze more than {most} bytes; freeze a reference instead"
            ))
        })?;
        Ok(Some(Arc::new(payload)))
    }

    /// Records what the call became, then lets it continue. The answer of a tool's `prepare` is always recorded, even
    /// if it changed nothing: it must not be asked again, or an attempt might be repeated with other bytes.
    fn go(&mut self, mut operation: Operation, payload: Option<Arc<Value>>, asked_the_tool: bool) -> PrepareStage {
        let rewritten = operation.asked().and_then(|asked| asked.input.as_ref()) != Some(&self.call.args);
        if rewritten || asked_the_tool {
            let args = rewritten.then(|| self.call.args.clone());
            if let Some(args) = &args {
                self.run.with(|machine| machine.rewrote(&operation.path, args));
            }
            let prepared = Prepared::new(args, payload.clone(), &self.tool);
            operation.record(&self.run, Event::Prepared(prepared));
        }
        let (tool, call, policy) = (self.tool.clone(), self.call.clone(), Some(Box::new(self.policy.clone())));
        let ready = plan::ReadyCall { tool, call, payload, barrier: self.barrier.take(), policy };
        self.ready(ready.guarded(&self.run, &self.scope, operation))
    }
}
