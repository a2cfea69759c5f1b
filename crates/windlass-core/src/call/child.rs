//! A call that can be polled: an atomic one, a durable one, or one that ended before it began.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use serde_json::Value;

use super::approve::Guarded;
use super::attempt::{Attempt, Call};
use super::commands::{self, Ready};
use super::durable::Entry;
use super::execute::{Execution, Source};
use super::middleware::Passing;
use super::operation::Operation;
use super::prepare::Preparing;
use super::queue::Queue;
use super::rules::Rules;
use super::running::on_cpu_thread;
use crate::path::Path;
use crate::run::Run;
use crate::run::record::{Settled, Told};
use crate::run::spent::Earlier;
use crate::time::Timestamp;
use crate::tool::narrate::Phase;
use crate::tool::{Body, Effect, Output, Reconciled, Tool, ToolError, ToolResult, Toolbox};

pub(crate) enum CallFuture {
    /// Refused before its first attempt; the refusal is recorded like any outcome.
    Refused(Box<Execution<'static, Refusal>>),
    /// Answered before its first attempt, by middleware or by the tool's `prepare`.
    Answered(Box<Execution<'static, Answer>>),
    /// On its way through middleware and `prepare`.
    Preparing(Box<Preparing>),
    /// It must be connected or approved first.
    Guarded(Box<Guarded>),
    Atomic(Execution<'static, ToolSource>),
    Durable(Box<Entry>),
    /// The run is held on account of it.
    Held,
}

impl CallFuture {
    pub(crate) fn refused(run: Arc<Run>, operation: Operation, error: ToolError) -> Self {
        Self::refuse(run, operation, Refusal { error: Some(error), by: None })
    }

    /// The same by a person, which is recorded with it.
    pub(crate) fn refused_by(run: Arc<Run>, operation: Operation, by: Settled, error: ToolError) -> Self {
        Self::refuse(run, operation, Refusal { error: Some(error), by: Some(by) })
    }

    fn refuse(run: Arc<Run>, operation: Operation, refusal: Refusal) -> Self {
        Self::Refused(Box::new(Execution::new(run, operation, passive(), refusal, Queue::default())))
    }

    /// Ends with this output as if the tool had returned it.
    pub(crate) fn answered(run: Arc<Run>, operation: Operation, output: Output, source: ToolSource) -> Self {
        let answer = Answer { output: Some(output), source };
        Self::Answered(Box::new(Execution::new(run, operation, passive(), answer, Queue::default())))
    }

    /// It was asked for then, and may have waited since.
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

    /// So much of its time had passed before it was asked for here.
    pub(crate) fn after(mut self, earlier: Earlier) -> Self {
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

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Told> {
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

/// The rules of what touches nothing outside.
fn passive() -> Rules {
    Rules { effect: Effect::Readonly, never_retry: true, ..Rules::default() }
}

/// An attempt that fails at once, with an error known beforehand.
pub(crate) struct Refusal {
    error: Option<ToolError>,
    by: Option<Settled>,
}

impl Source<'static> for Refusal {
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
pub(crate) struct Answer {
    output: Option<Output>,
    source: ToolSource,
}

impl Source<'static> for Answer {
    fn attempt(&mut self, _: &Run, _: Attempt) -> BoxFuture<'static, ToolResult<Output>> {
        let output = self.output.take().ok_or_else(|| ToolError::unavailable("answered before"));
        Box::pin(std::future::ready(output))
    }

    fn reconcile(&mut self, _: Attempt) -> Option<BoxFuture<'static, ToolResult<Reconciled<Output>>>> {
        None
    }

    fn told(&self, run: &Run, path: &Path, result: &ToolResult<Output>) -> Option<ToolResult<Output>> {
        self.source.told(run, path, result)
    }

    fn commands(&self, run: &Run, path: &Path, output: &Output, at: Timestamp) -> Result<Vec<Ready>, ToolError> {
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
    /// What the call's own scope resolves names in, where that is a layer.
    pub(crate) layered: Option<Toolbox>,
}

impl ToolSource {
    fn call(&self, attempt: Attempt) -> Call {
        let (id, payload) = (self.id.clone(), self.payload.clone());
        Call::new(attempt, self.tool.spec().id.clone(), self.args.clone(), id).with_prepared(payload)
    }
}

impl Source<'static> for ToolSource {
    fn attempt(&mut self, run: &Run, attempt: Attempt) -> BoxFuture<'static, ToolResult<Output>> {
        // An attempt after the first is news to nobody.
        if attempt.number() == 1 {
            narrate(&self.tool, run, attempt.path(), Phase::Start, &self.args);
        }
        let Body::Atomic(body) = self.tool.body() else {
            return Box::pin(std::future::ready(Err(ToolError::unavailable("a durable body has no attempts"))));
        };
        if !self.tool.spec().hints.cpu_bound {
            return body.attempt(self.call(attempt));
        }
        // Starting the body is its first computation: that too happens on the other thread.
        let (body, call) = (body.clone(), self.call(attempt.clone()));
        on_cpu_thread(&run.kernel, Box::pin(async move { body.attempt(call).await }), attempt)
    }

    fn reconcile(&mut self, attempt: Attempt) -> Option<BoxFuture<'static, ToolResult<Reconciled<Output>>>> {
        self.tool.reconciler().map(|reconciler| reconciler.reconcile(self.call(attempt)))
    }

    fn told(&self, run: &Run, path: &Path, result: &ToolResult<Output>) -> Option<ToolResult<Output>> {
        let passing = Passing { run, path, tool: &self.tool, args: &self.args, id: self.id.as_deref() };
        passing.after(result, broken_promise(&self.tool, result))
    }

    fn toolbox<'t>(&'t self, run: &'t Run) -> &'t Toolbox {
        self.layered.as_ref().unwrap_or(&run.kernel.env.toolbox)
    }

    fn ended(&self, run: &Run, path: &Path, well: bool) {
        narrate(&self.tool, run, path, if well { Phase::End } else { Phase::Failure }, &self.args);
    }

    fn commands(&self, run: &Run, path: &Path, output: &Output, at: Timestamp) -> Result<Vec<Ready>, ToolError> {
        commands::ready(run, self.toolbox(run), &self.tool, path, output, at)
    }
}

/// Tells people what happens, where somebody listens.
pub(crate) fn narrate(tool: &Tool, run: &Run, path: &Path, phase: Phase, args: &Value) {
    if tool.spec().about.narration.is_empty() || !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    if let Some(line) = tool.narrate(&run.kernel.env.locale, phase, args) {
        tracing::info!(run = %run.id, %path, "{line}");
    }
}

/// An output that breaks the tool's own promise is hidden from the body like any internal error; the record keeps it.
pub(crate) fn broken_promise(tool: &Tool, result: &ToolResult<Output>) -> Option<ToolResult<Output>> {
    check_output(tool, result.as_ref().ok()?).err().map(Err)
}

fn check_output(tool: &Tool, output: &Output) -> Result<(), ToolError> {
    let Err(violations) = tool.contract()?.check_output(&output.value) else { return Ok(()) };
    let places: Vec<String> = violations.iter().map(|v| format!("{}: {}", v.pointer, v.message)).collect();
    let name = &tool.spec().name;
    Err(ToolError::internal(format!("the output of `{name}` does not fit its own schema: {}", places.join("; "))))
}
