//! The stages between the request for a call and its first attempt that a program adds: `before` middleware, the check
//! of the arguments, the tool's `prepare`. Their result is recorded before anything is attempted, so that an attempt
//! after a crash sees the same bytes. A call without such stages skips this module.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, select};
use serde_json::Value;

use super::attempt::{Attempt, Call, Origin};
use super::batch::Barrier;
use super::child::{CallFuture, ToolSource};
use super::middleware::{BeforeOutcome, MiddlewareCall};
use super::operation::Operation;
use super::plan::{self, Scope};
use super::request::ToolCall;
use super::running::panic_message;
use crate::id::RunId;
use crate::kernel::Kernel;
use crate::limits;
use crate::path::Path;
use crate::policy::{EffectivePolicy, EnteredCall};
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

    /// Refuses rewritten arguments that do not fit the tool, and a payload that is too large.
    fn checked(self, tool: &Tool, name: &str) -> ToolResult<Self> {
        if self.answer.is_some() {
            return Ok(self);
        }
        if let Some(args) = &self.args {
            check_rewritten(name, args)?;
            tool.contract()?.check_arguments(args)?;
        }
        let most = limits::ARGUMENT_BYTES;
        if self.payload.as_ref().is_some_and(|payload| size::check(payload, most).is_err()) {
            let message = format!("`prepare` of `{name}` froze more than {most} bytes; freeze a reference instead");
            return Err(ToolError::internal(message));
        }
        Ok(self)
    }
}

/// Rewritten arguments have the same size limit as the original ones.
fn check_rewritten(name: &str, args: &Value) -> ToolResult<()> {
    let too_large = || ToolError::invalid("", format!("the rewritten arguments of `{name}` are too large"));
    size::check(args, limits::ARGUMENT_BYTES).map_err(|_| too_large())
}

fn too_slow(limit: Duration) -> ToolError {
    ToolError::TimedOut { message: format!("preparing the call took longer than {limit:?}") }
}

/// How long `prepare` may take: as long as one attempt.
fn time_limit(policy: &EffectivePolicy) -> Duration {
    policy.deadline.map_or(policy.timeout, |deadline| deadline.min(policy.timeout))
}

/// Asks the tool's `prepare` about a call that is not made. The answer is true if `prepare` answers the call itself;
/// otherwise the call has the arguments that it would run with.
pub(crate) async fn ask(kernel: &Kernel, entered: &mut EnteredCall, session: Option<Arc<str>>) -> ToolResult<bool> {
    let Some(prepare) = entered.tool.preparer().cloned() else { return Ok(false) };
    entered.unprepared = false;
    let (limit, spec) = (time_limit(&entered.policy), entered.tool.spec());
    let origin = Origin {
        run: RunId::from_bytes([0; 16]),
        generation: 0,
        session,
        attribution: Some(Arc::new(entered.for_whom.clone())),
        reach: kernel.reach.clone(),
        home: Weak::new(),
        lasts: limit,
        effect: spec.effect,
    };
    let attempt = Attempt::new(origin, Path::root(), spec.name.clone(), 1, 1);
    let call = Call::new(attempt, spec.id.clone(), entered.call.args.clone(), entered.call.id.clone());
    let body = AssertUnwindSafe(async move { prepare.prepare(call).await }).catch_unwind();
    let preparation = match select(Box::pin(body), kernel.env.clock.sleep(limit)).await {
        Either::Left((Ok(preparation), _)) => preparation?,
        Either::Left((Err(panic), _)) => {
            let correlation = format!("the check of `{}`", spec.name);
            tracing::error!(correlation, "`prepare` panicked: {}", panic_message(&*panic));
            return Err(ToolError::Panicked { correlation });
        }
        Either::Right(_) => return Err(too_slow(limit)),
    };
    let Preparation { args, answer, .. } = preparation.checked(&entered.tool, &spec.name)?;
    if let Some(args) = args {
        entered.call.args = Arc::new(args);
    }
    Ok(answer.is_some())
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
        let (since, heeds_cancel) = (run.kernel.env.clock.ticks(), run.heeds_cancel(&operation.path));
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
        if let Some(error) = self.run.cancellation(&operation.path, self.heeds_cancel) {
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
        let call = Call::new(attempt.clone(), spec.id.clone(), self.call.args.clone(), self.call.id.clone())
            .in_scope(self.scope.layered());
        // Entered inside the first poll, where a panic is caught.
        let body = Box::pin(async move { prepare.prepare(call).await });
        let limit = time_limit(&self.policy);
        PrepareStage::Prepare(operation, Box::new(PrepareWork { body, attempt, limit, timer: None }))
    }

    /// Takes over rewritten arguments.
    fn rewrite(&mut self, operation: &Operation, args: Arc<Value>) -> ToolResult<()> {
        if !Arc::ptr_eq(&args, &self.call.args) {
            check_rewritten(&operation.name, &args)?;
            self.call.args = args;
        }
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
        if let Some(error) = self.run.cancellation(work.attempt.path(), self.heeds_cancel) {
            return Poll::Ready(Err(error));
        }
        let timer = work.timer.get_or_insert_with(|| self.run.kernel.env.clock.sleep(work.limit));
        std::task::ready!(timer.poll_unpin(cx));
        Poll::Ready(Err(too_slow(work.limit)))
    }

    fn panicked(&self, attempt: &Attempt, message: &str) -> ToolError {
        let correlation = format!("{}:{}", attempt.run(), attempt.path());
        tracing::error!(correlation, name = attempt.name(), "`prepare` panicked: {message}");
        ToolError::Panicked { correlation }
    }

    fn prepared(&mut self, operation: Operation, preparation: ToolResult<Preparation>) -> PrepareStage {
        let checked = preparation.and_then(|preparation| preparation.checked(&self.tool, &operation.name));
        match checked {
            Ok(Preparation { answer: Some(output), .. }) => self.answer(operation, output),
            Ok(Preparation { args, payload, .. }) => {
                if let Some(args) = args {
                    self.call.args = Arc::new(args);
                }
                self.go(operation, payload.map(Arc::new), true)
            }
            Err(error) => self.refuse(operation, error),
        }
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
