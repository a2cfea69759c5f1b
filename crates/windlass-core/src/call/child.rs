//! A call that can be polled: an atomic one, a durable one, or one that ended before it began.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use serde_json::Value;

use super::approve::GuardedCall;
use super::attempt::{Attempt, Call};
use super::commands::{self, ReadyCommand};
use super::durable::DurableCall;
use super::execute::{AttemptSource, Execution};
use super::middleware::MiddlewareCall;
use super::operation::Operation;
use super::prepare::Preparing;
use super::queue::AttemptQueue;
use super::rules::Rules;
use super::running::on_cpu_thread;
use crate::path::Path;
use crate::run::Run;
use crate::run::record::{OpOutcome, Settled};
use crate::run::secrets::Places;
use crate::run::spent::EarlierTime;
use crate::time::Timestamp;
use crate::tool::narrate::Phase;
use crate::tool::{Body, Effect, Output, Reconciled, Tool, ToolError, ToolResult, Toolbox};

pub(crate) enum CallFuture {
    /// Refused before its first attempt. The refusal is recorded like any outcome.
    Refused(Box<Execution<'static, Refusal>>),
    /// Answered before its first attempt, by middleware or by the tool's `prepare`.
    Answered(Box<Execution<'static, ReadyAnswer>>),
    /// In middleware or `prepare`.
    Preparing(Box<Preparing>),
    /// It needs a connection or an approval first.
    Guarded(Box<GuardedCall>),
    Atomic(Execution<'static, ToolSource>),
    Durable(Box<DurableCall>),
    /// The run is held because of it.
    Held,
}

impl CallFuture {
    pub(crate) fn refused(run: Arc<Run>, operation: Operation, error: ToolError) -> Self {
        Self::refuse(run, operation, Refusal { error: Some(error), by: None })
    }

    /// Like [`refused`](Self::refused), but by a person, who is recorded with it.
    pub(crate) fn refused_by(run: Arc<Run>, operation: Operation, by: Settled, error: ToolError) -> Self {
        Self::refuse(run, operation, Refusal { error: Some(error), by: Some(by) })
    }

    fn refuse(run: Arc<Run>, operation: Operation, refusal: Refusal) -> Self {
        Self::Refused(Box::new(Execution::new(run, operation, passive(), refusal, AttemptQueue::default())))
    }

    /// Ends with this output as if the tool had returned it.
    pub(crate) fn answered(run: Arc<Run>, operation: Operation, output: Output, source: ToolSource) -> Self {
        let answer = ReadyAnswer { output: Some(output), source };
        Self::Answered(Box::new(Execution::new(run, operation, passive(), answer, AttemptQueue::default())))
    }

    /// Sets when it was asked for, and whether it has waited since.
    pub(crate) fn asked_at(mut self, ticks: u64, waited: bool) -> Self {
        match &mut self {
            Self::Refused(execution) => execution.asked_at(ticks, waited),
            Self::Answered(execution) => execution.asked_at(ticks, waited),
            Self::Atomic(execution) => execution.asked_at(ticks, waited),
            Self::Durable(entry) => entry.asked_at(ticks),
            Self::Guarded(guarded) => guarded.asked_at(ticks),
            Self::Preparing(_) | Self::Held => {}
        }
        self
    }

    /// Adds time that had passed before it was asked for here.
    pub(crate) fn after(mut self, earlier: EarlierTime) -> Self {
        match &mut self {
            Self::Refused(execution) => execution.after(earlier),
            Self::Answered(execution) => execution.after(earlier),
            Self::Preparing(preparing) => preparing.after(earlier),
            Self::Guarded(guarded) => guarded.after(earlier),
            Self::Atomic(execution) => execution.after(earlier),
            Self::Durable(entry) => entry.after(earlier),
            Self::Held => {}
        }
        self
    }

    /// Records that it was asked for, before it is polled.
    pub(crate) fn accept(&mut self) {
        match self {
            Self::Refused(execution) => execution.accept(),
            Self::Answered(execution) => execution.accept(),
            Self::Preparing(preparing) => preparing.accept(),
            Self::Guarded(guarded) => guarded.accept(),
            Self::Atomic(execution) => execution.accept(),
            Self::Durable(entry) => entry.accept(),
            Self::Held => {}
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<OpOutcome> {
        match self {
            Self::Refused(execution) => execution.poll(cx),
            Self::Answered(execution) => execution.poll(cx),
            Self::Preparing(preparing) => preparing.poll(cx),
            Self::Guarded(guarded) => guarded.poll(cx),
            Self::Atomic(execution) => execution.poll(cx),
            Self::Durable(entry) => entry.poll(cx),
            Self::Held => Poll::Pending,
        }
    }
}

/// The rules of calls that have no effect outside.
fn passive() -> Rules {
    Rules { effect: Effect::Readonly, never_retry: true, ..Rules::default() }
}

/// An attempt that fails at once, with an error known beforehand.
pub(crate) struct Refusal {
    error: Option<ToolError>,
    by: Option<Settled>,
}

impl AttemptSource<'static> for Refusal {
    fn attempt(&mut self, _: &Run, _: Attempt) -> BoxFuture<'static, ToolResult<Output>> {
        let error = self.error.take().unwrap_or_else(|| ToolError::unavailable("refused"));
        Box::pin(std::future::ready(Err(error)))
    }

    fn reconcile(&mut self, _: Attempt) -> Option<BoxFuture<'static, ToolResult<Reconciled<Output>>>> {
        None
    }

    fn settled(&mut self) -> Option<Settled> {
        self.by.take()
    }

    const ACTS: bool = false;
}

/// An attempt that returns at once, with an output known beforehand.
pub(crate) struct ReadyAnswer {
    output: Option<Output>,
    source: ToolSource,
}

impl AttemptSource<'static> for ReadyAnswer {
    fn attempt(&mut self, _: &Run, _: Attempt) -> BoxFuture<'static, ToolResult<Output>> {
        let output = self.output.take().ok_or_else(|| ToolError::unavailable("answered before"));
        Box::pin(std::future::ready(output))
    }

    fn reconcile(&mut self, _: Attempt) -> Option<BoxFuture<'static, ToolResult<Reconciled<Output>>>> {
        None
    }

    fn replacement(&self, run: &Run, path: &Path, result: &ToolResult<Output>) -> Option<ToolResult<Output>> {
        self.source.replacement(run, path, result)
    }

    fn mark_secrets(&self, output: &mut Output) {
        self.source.mark_secrets(output);
    }

    fn commands(&self, run: &Run, path: &Path, output: &Output, at: Timestamp) -> Result<Vec<ReadyCommand>, ToolError> {
        self.source.commands(run, path, output, at)
    }

    fn toolbox<'t>(&'t self, run: &'t Run) -> &'t Toolbox {
        self.source.toolbox(run)
    }

    const ACTS: bool = false;
}

/// Attempts of an atomic tool.
pub(crate) struct ToolSource {
    pub(crate) tool: Arc<Tool>,
    pub(crate) args: Arc<Value>,
    pub(crate) id: Option<Arc<str>>,
    /// What the tool's `prepare` froze.
    pub(crate) payload: Option<Arc<Value>>,
    /// The toolbox of the call's scope, if that has layers.
    pub(crate) layered: Option<Toolbox>,
}

impl ToolSource {
    fn call(&self, attempt: Attempt) -> Call {
        let (id, payload) = (self.id.clone(), self.payload.clone());
        let scope = self.layered.clone();
        Call::new(attempt, self.tool.spec().id.clone(), self.args.clone(), id).with_prepared(payload).in_scope(scope)
    }
}

impl AttemptSource<'static> for ToolSource {
    fn attempt(&mut self, run: &Run, attempt: Attempt) -> BoxFuture<'static, ToolResult<Output>> {
        // Later attempts are not announced.
        if attempt.number() == 1 {
            narrate(&self.tool, run, attempt.path(), Phase::Start, &self.args);
        }
        let Body::Atomic(body) = self.tool.body() else {
            return Box::pin(std::future::ready(Err(ToolError::unavailable("a durable body has no attempts"))));
        };
        if !self.tool.spec().hints.cpu_bound {
            return body.attempt(self.call(attempt));
        }
        // Starting the body is its first computation, so that too happens on the CPU thread.
        let (body, call) = (body.clone(), self.call(attempt.clone()));
        on_cpu_thread(&run.kernel, Box::pin(async move { body.attempt(call).await }), attempt)
    }

    fn reconcile(&mut self, attempt: Attempt) -> Option<BoxFuture<'static, ToolResult<Reconciled<Output>>>> {
        self.tool.reconciler().map(|reconciler| reconciler.reconcile(self.call(attempt)))
    }

    fn replacement(&self, run: &Run, path: &Path, result: &ToolResult<Output>) -> Option<ToolResult<Output>> {
        let middleware_call = MiddlewareCall::in_run(run, path, &self.tool, &self.args, self.id.as_deref());
        middleware_call.after(result, broken_promise(&self.tool, result))
    }

    fn toolbox<'t>(&'t self, run: &'t Run) -> &'t Toolbox {
        self.layered.as_ref().unwrap_or(&run.kernel.env.toolbox)
    }

    fn narrate(&self, run: &Run, path: &Path, phase: Phase) {
        narrate(&self.tool, run, path, phase, &self.args);
    }

    fn mark_secrets(&self, output: &mut Output) {
        // A process that did not know the tool may have marked all of a settled outcome.
        output.secrets = Places::default();
        self.tool.mark_secrets(output);
    }

    fn commands(&self, run: &Run, path: &Path, output: &Output, at: Timestamp) -> Result<Vec<ReadyCommand>, ToolError> {
        commands::ready(run, self.toolbox(run), &self.tool, path, output, at)
    }
}

/// Logs the tool's narration, if it has one and the log level includes it.
pub(crate) fn narrate(tool: &Tool, run: &Run, path: &Path, phase: Phase, args: &Value) {
    if tool.spec().about.narration.is_empty() || !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    if let Some(line) = tool.narrate(&run.kernel.env.locale, phase, args) {
        tracing::info!(run = %run.id, %path, "{line}");
    }
}

/// Hides an output that does not fit the tool's own schema behind an internal error; the record keeps the output.
pub(crate) fn broken_promise(tool: &Tool, result: &ToolResult<Output>) -> Option<ToolResult<Output>> {
    check_output(tool, result.as_ref().ok()?).err().map(Err)
}

fn check_output(tool: &Tool, output: &Output) -> Result<(), ToolError> {
    let Err(violations) = tool.contract()?.check_output(&output.value) else { return Ok(()) };
    let places: Vec<String> = violations.iter().map(|v| format!("{}: {}", v.pointer, v.message)).collect();
    let name = &tool.spec().name;
    Err(ToolError::internal(format!("the output of `{name}` does not fit its own schema: {}", places.join("; "))))
}
