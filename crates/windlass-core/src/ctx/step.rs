//! Steps: named pieces of work inside a durable body.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::undo::UndoPlan;
use super::{Ctx, Guard};
use crate::call::Attempt;
use crate::call::commands::Ready;
use crate::call::execute::{Execution, Source};
use crate::call::operation::{Operation, Written};
use crate::call::queue::Queue;
use crate::call::rules::Rules;
use crate::path::Path;
use crate::run::Run;
use crate::run::record::{Asked, OpKind};
use crate::time::Timestamp;
use crate::tool::spec::{OnDoubt, Retry};
use crate::tool::{Effect, Output, Reconciled, ToolError, ToolResult, to_output};
use crate::value::size;

/// A step that is not part of a body yet: what [`Ctx::steps_all`] takes.
#[must_use = "a step does nothing until it is awaited"]
pub struct Step<F> {
    name: Arc<str>,
    f: F,
    rules: Rules,
    input: Option<Result<Value, serde_json::Error>>,
    kind: OpKind,
    undo: Option<UndoPlan>,
}

/// A step for [`Ctx::steps_all`].
pub fn step<F, Fut>(name: impl Into<Arc<str>>, f: F) -> Step<F>
where
    F: FnMut(Attempt) -> Fut,
{
    Step { name: name.into(), f, rules: Rules::default(), input: None, kind: OpKind::Step, undo: None }
}

/// Settings a step and a step of a context have alike.
macro_rules! settings {
    () => {
        /// Its attempts change nothing: they may be repeated, and may run before what came before is durable.
        pub fn readonly(self) -> Self {
            self.rules(|rules| rules.effect = Effect::Readonly)
        }

        /// Its attempts may be repeated with the same [`key`](Attempt::key).
        pub fn idempotent(self) -> Self {
            self.rules(|rules| rules.effect = Effect::Idempotent)
        }

        /// Lets failed attempts be repeated.
        pub fn retry(self, retry: Retry) -> Self {
            self.rules(|rules| rules.retry = Some(retry))
        }

        /// How long one attempt may take.
        pub fn timeout(self, timeout: Duration) -> Self {
            self.rules(|rules| rules.timeout = timeout)
        }

        /// What happens to a doubt that nobody settles.
        pub fn on_doubt(self, policy: OnDoubt) -> Self {
            self.rules(|rules| rules.on_doubt = policy)
        }
    };
}

impl<F> Step<F> {
    settings!();

    /// Enters the step's identity: a body that asks for the same step with another input diverges.
    pub fn input(mut self, input: &impl Serialize) -> Self {
        self.input = Some(serde_json::to_value(input));
        self
    }

    /// How to undo it, with what it returned: done, in reverse order, if the body fails after this step succeeded. The
    /// compensation is a step too, `once` like every step: see [`undo_idempotent`](Step::undo_idempotent).
    pub fn undo<T, G, Fut>(mut self, undo: G) -> Self
    where
        T: DeserializeOwned + 'static,
        G: FnMut(T, Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = ToolResult<()>> + Send + 'static,
    {
        self.undo = Some(UndoPlan::new(undo));
        self
    }

    /// The same, for a compensation whose attempts may be repeated with the same key.
    pub fn undo_idempotent<T, G, Fut>(self, undo: G) -> Self
    where
        T: DeserializeOwned + 'static,
        G: FnMut(T, Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = ToolResult<()>> + Send + 'static,
    {
        let mut step = self.undo(undo);
        if let Some(plan) = &mut step.undo {
            plan.effect = Effect::Idempotent;
        }
        step
    }

    pub(super) fn take_undo(&mut self) -> Option<(Arc<str>, UndoPlan)> {
        Some((self.name.clone(), self.undo.take()?))
    }

    fn rules(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(&mut self.rules);
        self
    }

    /// The step at its place in a run.
    pub(super) fn begin<'c, Fut, T>(self, run: Arc<Run>, path: Path) -> Execution<'c, StepSource<F, T>>
    where
        F: FnMut(Attempt) -> Fut + Send + 'c,
        Fut: Future<Output = ToolResult<T>> + Send + 'c,
        T: Serialize + 'static,
    {
        let (input, broken) = match self.input {
            Some(Ok(value)) => match size::shallow(&value, "its input") {
                Ok(()) => (Some(Arc::new(value)), None),
                Err(problem) => (None, Some(ToolError::failed(problem))),
            },
            Some(Err(error)) => (None, Some(ToolError::from(error))),
            None => (None, None),
        };
        let asked = Asked::operation(self.kind, self.name, input, self.rules.effect);
        let source = StepSource { f: self.f, broken, output: PhantomData };
        Execution::new(run, Operation::new(path, asked, Written::No), self.rules, source, Queue::default())
    }
}

/// Attempts of a step.
pub(crate) struct StepSource<F, T> {
    f: F,
    /// An input that cannot be written down fails the step.
    broken: Option<ToolError>,
    output: PhantomData<fn() -> T>,
}

impl<'c, F, Fut, T> Source<'c> for StepSource<F, T>
where
    F: FnMut(Attempt) -> Fut + Send + 'c,
    Fut: Future<Output = ToolResult<T>> + Send + 'c,
    T: Serialize + 'static,
{
    fn attempt(&mut self, _: &Run, attempt: Attempt) -> BoxFuture<'c, ToolResult<Output>> {
        if let Some(error) = self.broken.take() {
            return Box::pin(std::future::ready(Err(error)));
        }
        let attempt = (self.f)(attempt);
        Box::pin(async move { to_output(attempt.await?) })
    }

    fn reconcile(&mut self, _: Attempt) -> Option<BoxFuture<'c, ToolResult<Reconciled<Output>>>> {
        None
    }

    /// Only whoever settles a doubt about the step could have thought of any.
    fn commands(&self, _: &Run, _: &Path, output: &Output, _: Timestamp) -> Result<Vec<Ready>, ToolError> {
        output.clone().plain("a step").map(|_| Vec::new())
    }
}

/// A step of a context; see [`Ctx::step`].
#[must_use = "a step does nothing until it is awaited"]
pub struct CtxStep<'c, F> {
    ctx: &'c mut Ctx,
    step: Step<F>,
}

impl<'c, F> CtxStep<'c, F> {
    pub(super) fn new(ctx: &'c mut Ctx, step: Step<F>) -> Self {
        Self { ctx, step }
    }

    settings!();

    /// Enters the step's identity: a body that asks for the same step with another input diverges.
    pub fn input(mut self, input: &impl Serialize) -> Self {
        self.step = self.step.input(input);
        self
    }

    /// How to undo it, with what it returned: done, in reverse order, if the body fails after this step succeeded. The
    /// compensation is a step too, `once` like every step: see [`undo_idempotent`](CtxStep::undo_idempotent). It is not
    /// cut short by a cancellation, but by the end of the time for cleaning up.
    pub fn undo<T, G, Fut>(mut self, undo: G) -> Self
    where
        T: DeserializeOwned + 'static,
        G: FnMut(T, Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = ToolResult<()>> + Send + 'static,
    {
        self.step = self.step.undo(undo);
        self
    }

    /// The same, for a compensation whose attempts may be repeated with the same key.
    pub fn undo_idempotent<T, G, Fut>(mut self, undo: G) -> Self
    where
        T: DeserializeOwned + 'static,
        G: FnMut(T, Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = ToolResult<()>> + Send + 'static,
    {
        self.step = self.step.undo_idempotent(undo);
        self
    }

    pub(super) fn compensating(self, effect: Effect) -> Self {
        self.rules(|rules| {
            rules.effect = effect;
            rules.compensates = true;
        })
    }

    pub(super) fn of_kind(mut self, kind: OpKind) -> Self {
        self.step.kind = kind;
        self
    }

    fn rules(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        self.step = self.step.rules(change);
        self
    }
}

impl<'c, F, Fut, T> IntoFuture for CtxStep<'c, F>
where
    F: FnMut(Attempt) -> Fut + Send + 'c,
    Fut: Future<Output = ToolResult<T>> + Send + 'c,
    T: Serialize + DeserializeOwned + 'static,
{
    type Output = ToolResult<T>;
    type IntoFuture = StepFuture<'c, F, T>;

    fn into_future(self) -> Self::IntoFuture {
        StepFuture { ctx: self.ctx, state: State::Built(Some(self.step)) }
    }
}

/// A step that is awaited.
pub struct StepFuture<'c, F, T> {
    ctx: &'c mut Ctx,
    state: State<'c, F, T>,
}

enum State<'c, F, T> {
    Built(Option<Step<F>>),
    Started(Execution<'c, StepSource<F, T>>, Guard, Option<(Arc<str>, UndoPlan)>),
    Over,
}

// Nothing in it is pinned in place: the futures it holds are boxed.
impl<F, T> Unpin for StepFuture<'_, F, T> {}

impl<'c, F, Fut, T> Future for StepFuture<'c, F, T>
where
    F: FnMut(Attempt) -> Fut + Send + 'c,
    Fut: Future<Output = ToolResult<T>> + Send + 'c,
    T: Serialize + DeserializeOwned + 'static,
{
    type Output = ToolResult<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        // Taken out by itself: a step that is started is much larger than one that is not.
        if let State::Built(step) = &mut this.state
            && let Some(mut step) = step.take()
        {
            let name = step.name.clone();
            let (path, guard) = this.ctx.next(step.kind, name);
            let undo = step.take_undo();
            this.state = State::Started(step.begin(this.ctx.run.clone(), path), guard, undo);
        }
        let State::Started(execution, guard, undo) = &mut this.state else { return Poll::Pending };
        let told = std::task::ready!(execution.poll(cx));
        guard.over();
        this.ctx.remember_undo(undo.take(), &told);
        let path = execution.op.path.clone();
        this.state = State::Over;
        match this.ctx.answer_at(&path, &told) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}
