//! A call that can be polled: an atomic one, a durable one, or one that ended before it began.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use serde_json::Value;

use super::attempt::{Attempt, Call};
use super::commands::{self, Ready};
use super::durable::Entry;
use super::execute::{Execution, Operation, Source, Told};
use super::queue::Queue;
use super::rules::Rules;
use super::running::on_cpu_thread;
use crate::path::Path;
use crate::run::Run;
use crate::time::Timestamp;
use crate::tool::narrate::Phase;
use crate::tool::{Body, Output, Reconciled, Tool, ToolError, ToolResult};

pub(crate) enum CallFuture {
    /// Refused before its first attempt; the refusal is recorded like any outcome.
    Refused(Box<Execution<'static, Refusal>>),
    Atomic(Execution<'static, ToolSource>),
    Durable(Box<Entry>),
    /// The run is held on account of it.
    Held,
}

impl CallFuture {
    pub(crate) fn refused(run: Arc<Run>, operation: Operation, error: ToolError) -> Self {
        let rules = Rules { effect: crate::tool::Effect::Readonly, never_retry: true, ..Rules::default() };
        Self::Refused(Box::new(Execution::new(run, operation, rules, Refusal(Some(error)), Queue::default())))
    }

    /// Records that it was asked for, before it is polled.
    pub(crate) fn accept(&mut self) {
        match self {
            Self::Refused(execution) => execution.op.accept(&execution.run),
            Self::Atomic(execution) => execution.op.accept(&execution.run),
            Self::Durable(entry) => entry.accept(),
            Self::Held => {}
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Told> {
        match self {
            Self::Refused(execution) => execution.poll(cx),
            Self::Atomic(execution) => execution.poll(cx),
            Self::Durable(entry) => entry.poll(cx),
            Self::Held => Poll::Pending,
        }
    }
}

/// An attempt that fails at once, with an error known beforehand.
pub(crate) struct Refusal(Option<ToolError>);

impl Source<'static> for Refusal {
    fn attempt(&mut self, _: &Run, _: Attempt) -> BoxFuture<'static, ToolResult<Output>> {
        let error = self.0.take().unwrap_or_else(|| ToolError::unavailable("refused"));
        Box::pin(std::future::ready(Err(error)))
    }

    fn reconcile(&mut self, _: Attempt) -> Option<BoxFuture<'static, ToolResult<Reconciled<Output>>>> {
        None
    }

    fn check(&self, _: &Output) -> Result<(), ToolError> {
        Ok(())
    }
}

/// Attempts of an atomic tool.
pub(crate) struct ToolSource {
    pub(crate) tool: Arc<Tool>,
    pub(crate) args: Arc<Value>,
    pub(crate) id: Option<Arc<str>>,
}

impl ToolSource {
    /// Tells people what happens, where somebody listens.
    fn narrate(&self, run: &Run, path: &Path, phase: Phase) {
        if self.tool.spec().about.narration.is_empty() || !tracing::enabled!(tracing::Level::INFO) {
            return;
        }
        if let Some(line) = self.tool.narrate(&run.kernel.locale, phase, &self.args) {
            tracing::info!(run = %run.id, %path, "{line}");
        }
    }

    fn call(&self, attempt: Attempt) -> Call {
        Call::new(attempt, self.tool.spec().id.clone(), self.args.clone(), self.id.clone())
    }
}

impl Source<'static> for ToolSource {
    fn attempt(&mut self, run: &Run, attempt: Attempt) -> BoxFuture<'static, ToolResult<Output>> {
        self.narrate(run, attempt.path(), Phase::Start);
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

    fn check(&self, output: &Output) -> Result<(), ToolError> {
        check_output(&self.tool, output)
    }

    fn ended_well(&self, run: &Run, path: &Path) {
        self.narrate(run, path, Phase::End);
    }

    fn commands(&self, run: &Run, path: &Path, output: &Output, at: Timestamp) -> Result<Vec<Ready>, ToolError> {
        commands::ready(run, &run.kernel.toolbox, &self.tool, path, output, at)
    }
}

/// An output that breaks the tool's own promise is hidden from the body like any internal error; the record keeps it.
pub(crate) fn check_output(tool: &Tool, output: &Output) -> Result<(), ToolError> {
    let Err(violations) = tool.contract()?.check_output(&output.value) else { return Ok(()) };
    let places: Vec<String> = violations.iter().map(|v| format!("{}: {}", v.pointer, v.message)).collect();
    let name = &tool.spec().name;
    Err(ToolError::internal(format!("the output of `{name}` does not fit its own schema: {}", places.join("; "))))
}
