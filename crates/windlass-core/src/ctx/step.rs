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
use super::{Ctx, OpGuard, decode};
use crate::call::Attempt;
use crate::call::commands::ReadyCommand;
use crate::call::execute::{AttemptSource, Execution};
use crate::call::operation::{Operation, RecordState};
use crate::call::queue::AttemptQueue;
use crate::call::rules::Rules;
use crate::path::Path;
use crate::run::Run;
use crate::run::record::{Asked, OpKind, Recorded};
use crate::time::Timestamp;
use crate::tool::spec::{OnDoubt, Retry};
use crate::tool::{Effect, Output, Reconciled, ToolError, ToolResult, to_output};
use crate::value::size;

/// A step that is not part of a body yet, for [`Ctx::steps_all`].
#[must_use = "a step does nothing until it is given to `ctx.steps_all(…)` and that is awaited"]
pub struct Step<'c, F, T> {
    name: Arc<str>,
    f: F,
    /// Starts an attempt of `f`. Erases the type of its future, so that a wrong one is reported where the step is made.
    attempt: fn(&mut F, Attempt) -> BoxFuture<'c, ToolResult<Output>>,
    rules: Rules,
    input: Option<Result<Value, serde_json::Error>>,
    kind: OpKind,
    undo: Option<UndoPlan>,
    reconcile: Option<Box<dyn ReconcileStep + 'c>>,
    decode: Decode<T>,
}

/// Finds out whether attempts of a step happened. Not a closure type: with the lifetime in its signature, a step would
/// have to live exactly as long as its body.
trait ReconcileStep: Send {
    fn reconcile<'a>(&mut self, attempt: Attempt) -> BoxFuture<'a, ToolResult<Reconciled<Output>>>
    where
        Self: 'a;
}

/// A closure as the `reconcile` of a step.
struct ReconcileFn<G, Fut> {
    f: G,
    future: PhantomData<fn() -> Fut>,
}

impl<T, G, Fut> ReconcileStep for ReconcileFn<G, Fut>
where
    T: Serialize + 'static,
    G: FnMut(Attempt) -> Fut + Send,
    Fut: Future<Output = ToolResult<Reconciled<T>>> + Send,
{
    fn reconcile<'a>(&mut self, attempt: Attempt) -> BoxFuture<'a, ToolResult<Reconciled<Output>>>
    where
        Self: 'a,
    {
        let found = (self.f)(attempt);
        Box::pin(async move { encode_found(found.await?) })
    }
}

/// Decodes what the journal has of a step; `None` holds the run.
type Decode<T> = fn(&Run, &Path, &Recorded) -> Option<ToolResult<T>>;

/// What the closure of a step returns: a [`ToolResult`] of a value that can be journaled.
#[diagnostic::on_unimplemented(
    message = "the closure of a step cannot return `{Self}`: it must return `ToolResult<T>`, where `T` implements \
               `Serialize` and `Deserialize`",
    label = "the closure of this step returns another type",
    note = "to pass another error on, use `?` and end with `Ok`: `|_| async {{ Ok(work().await?) }}`; every \
            `std::error::Error` converts into a `ToolError` that the model does not read",
    note = "for an error that the model reads: `.map_err(|error| ToolError::failed(error.to_string()))`",
    note = "a step that cannot fail ends with `Ok(value)`; for a value of your own type, add \
            `#[derive(serde::Serialize, serde::Deserialize)]` to that type"
)]
pub trait StepOutput {
    /// The value of a step that succeeded.
    type Value: DeserializeOwned + 'static;

    #[doc(hidden)]
    fn encode(self) -> ToolResult<Output>;
}

// Without this attribute the compiler reports the missing trait of the value alone, without the notes above.
#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + 'static> StepOutput for ToolResult<T> {
    type Value = T;

    fn encode(self) -> ToolResult<Output> {
        to_output(self?)
    }
}

/// What a step with this future returns when it succeeds.
pub(super) type ValueOf<Fut> = <<Fut as Future>::Output as StepOutput>::Value;

/// A step for [`Ctx::steps_all`].
pub fn step<'c, F, Fut>(name: impl Into<Arc<str>>, f: F) -> Step<'c, F, ValueOf<Fut>>
where
    F: FnMut(Attempt) -> Fut + Send + 'c,
    Fut: Future<Output: StepOutput> + Send + 'c,
{
    Step {
        name: name.into(),
        f,
        attempt: |f, attempt| {
            let attempt = f(attempt);
            Box::pin(async move { attempt.await.encode() })
        },
        rules: Rules::default(),
        input: None,
        kind: OpKind::Step,
        undo: None,
        reconcile: None,
        decode: decode::<ValueOf<Fut>>,
    }
}

/// Settings that a step and a step of a context have in common.
macro_rules! settings {
    () => {
        /// Its attempts change nothing. They may be repeated, and may run before earlier operations are durable.
        pub fn readonly(self) -> Self {
            self.rules(|rules| rules.effect = Effect::Readonly)
        }

        /// Its attempts may be repeated with the same [`key`](Attempt::key).
        pub fn idempotent(self) -> Self {
            self.rules(|rules| rules.effect = Effect::Idempotent)
        }

        /// What it returns is a secret: the body gets it, also after a restart, but it is sealed in the file and shown
        /// nowhere.
        pub fn secret(self) -> Self {
            self.rules(|rules| rules.secret = true)
        }

        /// Lets failed attempts be repeated. Without [`readonly`](Self::readonly) or [`idempotent`](Self::idempotent)
        /// only failures made with [`ToolError::retryable`] are.
        pub fn retry(self, retry: Retry) -> Self {
            self.rules(|rules| rules.retry = Some(retry))
        }

        /// Sets how long one attempt may take.
        pub fn timeout(self, timeout: Duration) -> Self {
            self.rules(|rules| rules.timeout = timeout)
        }

        /// Sets how long the step may take in all, including its retries and the time in which no process drives the
        /// run. Unlike a timeout of one attempt, it ends a step between attempts without a doubt.
        pub fn deadline(self, deadline: Duration) -> Self {
            self.rules(|rules| rules.deadline = Some(deadline))
        }

        /// Lets an attempt time out that does not call [`heartbeat`](Attempt::heartbeat) or
        /// [`progress`](Attempt::progress) for this long.
        pub fn heartbeat(self, heartbeat: Duration) -> Self {
            self.rules(|rules| rules.heartbeat = Some(heartbeat))
        }

        /// Sets how long an attempt may continue after it was asked to stop; see [`Attempt::cancelled`].
        pub fn grace(self, grace: Duration) -> Self {
            self.rules(|rules| rules.grace = grace)
        }

        /// Sets what happens to a doubt that neither a message nor [`reconcile`](Self::reconcile) settles.
        pub fn on_doubt(self, policy: OnDoubt) -> Self {
            self.rules(|rules| rules.on_doubt = policy)
        }
    };
}

impl<'c, F, T> Step<'c, F, T> {
    settings!();

    /// Adds an input to the step's identity: a body that asks for the same step with another input diverges.
    pub fn input(mut self, input: &impl Serialize) -> Self {
        self.input = Some(serde_json::to_value(input));
        self
    }

    /// Sets how to undo it, with what it returned. If the body fails after this step succeeded, the compensations run
    /// in reverse order. A compensation is a step too, `once` like every step: see
    /// [`undo_idempotent`](Step::undo_idempotent).
    pub fn undo<U, G, Fut>(mut self, undo: G) -> Self
    where
        U: DeserializeOwned + 'static,
        G: FnMut(U, Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = ToolResult<()>> + Send + 'static,
    {
        self.undo = Some(UndoPlan::new(undo));
        self
    }

    /// Like [`undo`](Step::undo), for a compensation whose attempts may be repeated with the same key.
    pub fn undo_idempotent<U, G, Fut>(self, undo: G) -> Self
    where
        U: DeserializeOwned + 'static,
        G: FnMut(U, Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = ToolResult<()>> + Send + 'static,
    {
        let mut step = self.undo(undo);
        if let Some(plan) = &mut step.undo {
            plan.effect = Effect::Idempotent;
        }
        step
    }

    /// Sets the function that settles doubts about the step's attempts. It gets an attempt with the same
    /// [`key`](Attempt::key). "Did not happen" takes effect once the old attempt cannot be running any more. If the
    /// function fails, panics, times out or does not know, [`on_doubt`](Step::on_doubt) decides. A step that is
    /// `readonly` or `idempotent` is never in doubt and does not ask it.
    pub fn reconcile<G, Fut>(mut self, f: G) -> Self
    where
        T: Serialize + 'static,
        G: FnMut(Attempt) -> Fut + Send + 'c,
        Fut: Future<Output = ToolResult<Reconciled<T>>> + Send + 'c,
    {
        self.reconcile = Some(Box::new(ReconcileFn { f, future: PhantomData }));
        self
    }

    pub(super) fn take_undo(&mut self) -> Option<(Arc<str>, UndoPlan)> {
        Some((self.name.clone(), self.undo.take()?))
    }

    fn rules(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(&mut self.rules);
        self
    }

    /// Starts the step at its path in a run.
    pub(super) fn begin(self, run: Arc<Run>, path: Path) -> Execution<'c, StepSource<'c, F>>
    where
        F: Send + 'c,
    {
        let (input, broken) = match self.input {
            Some(Ok(value)) => match size::check_depth(&value, "its input") {
                Ok(()) => (Some(Arc::new(value)), None),
                Err(problem) => (None, Some(ToolError::failed(problem))),
            },
            Some(Err(error)) => (None, Some(ToolError::from(error))),
            None => (None, None),
        };
        let asked = Asked::operation(self.kind, self.name, input, self.rules.effect);
        let source = StepSource { f: self.f, attempt: self.attempt, reconcile: self.reconcile, broken };
        Execution::new(run, Operation::new(path, asked, RecordState::No), self.rules, source, AttemptQueue::default())
    }
}

/// Encodes what the `reconcile` of a step found.
fn encode_found<T: Serialize + 'static>(found: Reconciled<T>) -> ToolResult<Reconciled<Output>> {
    Ok(match found {
        Reconciled::Happened(value) => Reconciled::Happened(to_output(value)?),
        Reconciled::DidNotHappen => Reconciled::DidNotHappen,
        Reconciled::Unknown => Reconciled::Unknown,
    })
}

/// Attempts of a step.
pub(crate) struct StepSource<'c, F> {
    f: F,
    attempt: fn(&mut F, Attempt) -> BoxFuture<'c, ToolResult<Output>>,
    reconcile: Option<Box<dyn ReconcileStep + 'c>>,
    /// The error of an input that cannot be serialized, which fails the step.
    broken: Option<ToolError>,
}

impl<'c, F: Send + 'c> AttemptSource<'c> for StepSource<'c, F> {
    fn attempt(&mut self, _: &Run, attempt: Attempt) -> BoxFuture<'c, ToolResult<Output>> {
        match self.broken.take() {
            Some(error) => Box::pin(std::future::ready(Err(error))),
            None => (self.attempt)(&mut self.f, attempt),
        }
    }

    fn reconcile(&mut self, attempt: Attempt) -> Option<BoxFuture<'c, ToolResult<Reconciled<Output>>>> {
        self.reconcile.as_mut().map(|find| find.reconcile(attempt))
    }

    /// A step cannot have commands. Only an output given by a settlement could contain any.
    fn commands(&self, _: &Run, _: &Path, output: &Output, _: Timestamp) -> Result<Vec<ReadyCommand>, ToolError> {
        output.clone().refuse_atomic_only("a step").map(|_| Vec::new())
    }
}

/// A step of a context; see [`Ctx::step`].
#[must_use = "a step does nothing until it is awaited: write `ctx.step(…).await?`"]
pub struct CtxStep<'c, F, T> {
    ctx: &'c mut Ctx,
    step: Step<'c, F, T>,
}

impl<'c, F, T> CtxStep<'c, F, T> {
    pub(super) fn new(ctx: &'c mut Ctx, step: Step<'c, F, T>) -> Self {
        Self { ctx, step }
    }

    settings!();

    /// Adds an input to the step's identity: a body that asks for the same step with another input diverges.
    pub fn input(mut self, input: &impl Serialize) -> Self {
        self.step = self.step.input(input);
        self
    }

    /// Sets how to undo it, with what it returned. If the body fails after this step succeeded, the compensations run
    /// in reverse order. A compensation is a step too, `once` like every step: see
    /// [`undo_idempotent`](CtxStep::undo_idempotent). A cancellation does not interrupt it, but the end of the time for
    /// cleaning up does.
    pub fn undo<U, G, Fut>(mut self, undo: G) -> Self
    where
        U: DeserializeOwned + 'static,
        G: FnMut(U, Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = ToolResult<()>> + Send + 'static,
    {
        self.step = self.step.undo(undo);
        self
    }

    /// Like [`undo`](CtxStep::undo), for a compensation whose attempts may be repeated with the same key.
    pub fn undo_idempotent<U, G, Fut>(mut self, undo: G) -> Self
    where
        U: DeserializeOwned + 'static,
        G: FnMut(U, Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = ToolResult<()>> + Send + 'static,
    {
        self.step = self.step.undo_idempotent(undo);
        self
    }

    /// Sets the function that settles doubts about the step's attempts; see [`Step::reconcile`].
    ///
    /// ```
    /// # use windlass_core::{ctx::Ctx, tool::{Reconciled, ToolResult}};
    /// # struct Bank;
    /// # impl Bank {
    /// #     async fn charge(&self, _: &str) -> ToolResult<String> { Ok("receipt".to_owned()) }
    /// #     async fn find(&self, _: &str) -> ToolResult<Option<String>> { Ok(None) }
    /// # }
    /// # async fn body(ctx: &mut Ctx, bank: &Bank) -> ToolResult<String> {
    /// ctx.step("charge", |attempt| async move { bank.charge(&attempt.key()).await })
    ///     .reconcile(|attempt| async move {
    ///         Ok(match bank.find(&attempt.key()).await? {
    ///             Some(receipt) => Reconciled::Happened(receipt),
    ///             None => Reconciled::DidNotHappen,
    ///         })
    ///     })
    ///     .await
    /// # }
    /// ```
    pub fn reconcile<G, Fut>(mut self, f: G) -> Self
    where
        T: Serialize + 'static,
        G: FnMut(Attempt) -> Fut + Send + 'c,
        Fut: Future<Output = ToolResult<Reconciled<T>>> + Send + 'c,
    {
        self.step = self.step.reconcile(f);
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

impl<'c, F: Send + 'c, T> IntoFuture for CtxStep<'c, F, T> {
    type Output = ToolResult<T>;
    type IntoFuture = StepFuture<'c, F, T>;

    fn into_future(self) -> Self::IntoFuture {
        StepFuture { ctx: self.ctx, decode: self.step.decode, state: StepState::Built(Some(self.step)) }
    }
}

/// A step that is awaited.
pub struct StepFuture<'c, F, T> {
    ctx: &'c mut Ctx,
    decode: Decode<T>,
    state: StepState<'c, F, T>,
}

enum StepState<'c, F, T> {
    Built(Option<Step<'c, F, T>>),
    Started(Execution<'c, StepSource<'c, F>>, OpGuard, Option<(Arc<str>, UndoPlan)>),
    Over,
}

// Nothing in it is pinned: the futures it holds are boxed.
impl<F, T> Unpin for StepFuture<'_, F, T> {}

impl<'c, F: Send + 'c, T> Future for StepFuture<'c, F, T> {
    type Output = ToolResult<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        // Taken out separately: a started step is much larger than one that is not started.
        if let StepState::Built(step) = &mut this.state
            && let Some(mut step) = step.take()
        {
            let name = step.name.clone();
            let (path, guard) = this.ctx.next(step.kind, name);
            let undo = step.take_undo();
            this.state = StepState::Started(step.begin(this.ctx.run.clone(), path), guard, undo);
        }
        let StepState::Started(execution, guard, undo) = &mut this.state else { return Poll::Pending };
        let outcome = std::task::ready!(execution.poll(cx));
        guard.over();
        this.ctx.remember_undo(undo.take(), &outcome);
        let path = execution.op.path.clone();
        this.state = StepState::Over;
        this.ctx.passed(outcome.at);
        match (this.decode)(&this.ctx.run, &path, &outcome.result) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}
