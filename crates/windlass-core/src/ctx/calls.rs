//! Child calls of a durable body: one, or several at once.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use serde::de::DeserializeOwned;

use super::undo::UndoPlan;
use super::{Ctx, OpGuard, decode};
use crate::call::ToolCall;
use crate::call::batch::{Batch, has_begun, was_skipped};
use crate::call::child::CallFuture;
use crate::call::loops::{LoopKey, limit};
use crate::call::operation::{Operation, RecordState};
use crate::call::plan::{CallSite, asked, plan_in, resolve};
use crate::path::Path;
use crate::run::Run;
use crate::run::record::{Asked, OpKind, OpOutcome};
use crate::run::replay::Decision;
use crate::tool::{Effect, ToolError, ToolResult};

/// One child call; see [`Ctx::call`].
#[must_use = "a call does nothing until it is awaited: write `ctx.call(…).await?`"]
pub struct CallOne<'c, T> {
    ctx: &'c mut Ctx,
    state: OneState,
    /// Identifies the call for loop detection.
    key: Option<LoopKey>,
    output: PhantomData<fn() -> T>,
}

enum OneState {
    Built(ToolCall),
    Started(CallFuture, Path, OpGuard),
    Over,
}

impl<'c, T> CallOne<'c, T> {
    pub(super) fn new(ctx: &'c mut Ctx, call: ToolCall<T>) -> Self {
        Self { ctx, state: OneState::Built(call.untyped().bounded()), key: None, output: PhantomData }
    }
}

impl<T> Unpin for CallOne<'_, T> {}

impl<T: DeserializeOwned + 'static> Future for CallOne<'_, T> {
    type Output = ToolResult<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let OneState::Built(_) = this.state
            && let OneState::Built(call) = std::mem::replace(&mut this.state, OneState::Over)
        {
            let (path, guard) = this.ctx.next(OpKind::Call, call.tool.as_str().into());
            let scope = &this.ctx.scope;
            this.key = LoopKey::of(&call);
            let refusal = this.ctx.refusal(&mut this.key);
            let future = match refusal {
                Some(error) if !has_begun(&this.ctx.run, &path) => {
                    let layers = scope.toolbox.layers().and(&call.layers);
                    let tool = scope.toolbox.with_layers(&call.layers).ok();
                    let tool = tool.and_then(|toolbox| resolve(&toolbox.snapshot(), &call.tool).cloned());
                    let asked = asked(&call, tool.as_ref(), &layers);
                    CallFuture::refused(
                        this.ctx.run.clone(),
                        Operation::new(path.clone(), asked, RecordState::No),
                        error,
                    )
                }
                _ => {
                    let site = CallSite::inside(path.clone());
                    plan_in(&this.ctx.run, scope, &scope.toolbox.snapshot(), site, call)
                }
            };
            this.state = OneState::Started(future, path, guard);
        }
        let OneState::Started(future, path, guard) = &mut this.state else { return Poll::Pending };
        let outcome = std::task::ready!(future.poll(cx));
        guard.over();
        let path = path.clone();
        this.state = OneState::Over;
        this.ctx.note_call(this.key.take(), &outcome);
        match this.ctx.answer_at(&path, &outcome) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

/// Several calls of one type (an array or vector) or of several (a tuple).
pub trait CallSet {
    /// Their values.
    type Values;
    /// Their results.
    type Results;

    /// The calls, in order.
    fn into_calls(self) -> Vec<ToolCall>;

    #[doc(hidden)]
    fn decode(results: Decoder<'_>) -> Option<Self::Results>;

    #[doc(hidden)]
    fn values(results: Self::Results) -> ToolResult<Self::Values>;
}

/// Hands out recorded results in order, decoded.
pub struct Decoder<'r> {
    pub(super) run: &'r Run,
    pub(super) path: &'r Path,
    pub(super) outcomes: std::iter::Enumerate<std::vec::IntoIter<OpOutcome>>,
}

impl Decoder<'_> {
    pub(super) fn next<T: DeserializeOwned + 'static>(&mut self) -> Option<ToolResult<T>> {
        let (index, outcome) = self.outcomes.next()?;
        decode(self.run, &self.path.child(index as u32), &outcome.result)
    }

    pub(super) fn rest<T: DeserializeOwned + 'static>(&mut self) -> Option<Vec<ToolResult<T>>> {
        let mut results = Vec::with_capacity(self.outcomes.len());
        while self.outcomes.len() > 0 {
            results.push(self.next()?);
        }
        Some(results)
    }
}

impl<T: DeserializeOwned + 'static> CallSet for Vec<ToolCall<T>> {
    type Values = Vec<T>;
    type Results = Vec<ToolResult<T>>;

    fn into_calls(self) -> Vec<ToolCall> {
        self.into_iter().map(ToolCall::untyped).collect()
    }

    fn decode(mut results: Decoder<'_>) -> Option<Self::Results> {
        results.rest()
    }

    fn values(results: Self::Results) -> ToolResult<Vec<T>> {
        results.into_iter().collect()
    }
}

impl<T: DeserializeOwned + 'static, const N: usize> CallSet for [ToolCall<T>; N] {
    type Values = [T; N];
    type Results = [ToolResult<T>; N];

    fn into_calls(self) -> Vec<ToolCall> {
        self.into_iter().map(ToolCall::untyped).collect()
    }

    fn decode(mut results: Decoder<'_>) -> Option<Self::Results> {
        results.rest()?.try_into().ok()
    }

    fn values(results: Self::Results) -> ToolResult<[T; N]> {
        all_values(results)
    }
}

/// All values of an array of results, or the first error in order.
pub(super) fn all_values<T, const N: usize>(results: [ToolResult<T>; N]) -> ToolResult<[T; N]> {
    let values: Vec<T> = results.into_iter().collect::<ToolResult<_>>()?;
    let short = || ToolError::internal("a result of the set is missing");
    values.try_into().map_err(|_| short())
}

macro_rules! call_tuples {
    ($(($($name:ident),+))+) => {$(
        impl<$($name: DeserializeOwned + 'static),+> CallSet for ($(ToolCall<$name>,)+) {
            type Values = ($($name,)+);
            type Results = ($(ToolResult<$name>,)+);

            #[allow(non_snake_case)]
            fn into_calls(self) -> Vec<ToolCall> {
                let ($($name,)+) = self;
                vec![$($name.untyped()),+]
            }

            fn decode(mut results: Decoder<'_>) -> Option<Self::Results> {
                Some(($(results.next::<$name>()?,)+))
            }

            #[allow(non_snake_case)]
            fn values(results: Self::Results) -> ToolResult<Self::Values> {
                let ($($name,)+) = results;
                Ok(($($name?,)+))
            }
        }
    )+};
}

call_tuples! { (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, F) }

/// Several child calls; see [`Ctx::call_all`].
#[must_use = "calls do nothing until they are awaited: write `ctx.call_all(…).await?`"]
pub struct CallAll<'c, S> {
    ctx: &'c mut Ctx,
    calls: S,
    stop_on_failure: bool,
}

impl<'c, S: CallSet> CallAll<'c, S> {
    pub(super) fn new(ctx: &'c mut Ctx, calls: S) -> Self {
        Self { ctx, calls, stop_on_failure: false }
    }

    /// Skips the calls that have not started when one fails: they end as cancelled, with a reason that names the failed
    /// call. Calls that have started are finished and recorded. Which calls overlap is up to their tools: a call that
    /// runs alone (`exclusive`) waits for the calls before it, and holds back those after it.
    pub fn stop_on_failure(mut self) -> Self {
        self.stop_on_failure = true;
        self
    }

    /// Each call's own result, instead of the first error.
    pub fn settled(self) -> CallsSettled<'c, S> {
        let state = AllState::Built(self.calls.into_calls(), self.stop_on_failure);
        CallsSettled { ctx: self.ctx, state, keys: Vec::new(), set: PhantomData }
    }
}

impl<'c, S: CallSet + Send + 'c> IntoFuture for CallAll<'c, S>
where
    S::Results: Send,
{
    type Output = ToolResult<S::Values>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        let settled = self.settled();
        Box::pin(async move { S::values(settled.await) })
    }
}

/// Several child calls, each with its own result; see [`CallAll::settled`].
#[must_use = "calls do nothing until they are awaited"]
pub struct CallsSettled<'c, S> {
    ctx: &'c mut Ctx,
    state: AllState,
    /// Identify the calls for loop detection.
    keys: Vec<Option<LoopKey>>,
    set: PhantomData<fn() -> S>,
}

enum AllState {
    /// The calls, and whether a failure skips those that have not started.
    Built(Vec<ToolCall>, bool),
    Started(Batch, Path, OpGuard),
    Over,
}

impl<S> Unpin for CallsSettled<'_, S> {}

impl<S: CallSet> Future for CallsSettled<'_, S> {
    type Output = S::Results;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let AllState::Built(..) = this.state
            && let AllState::Built(calls, stop_on_failure) = std::mem::replace(&mut this.state, AllState::Over)
        {
            let Some((path, guard, new)) = enter_group(this.ctx, OpKind::Batch, calls.len()) else {
                return Poll::Pending;
            };
            this.keys = calls.iter().map(LoopKey::of).collect();
            let (run, scope) = (this.ctx.run.clone(), this.ctx.scope.clone());
            let mut batch = Batch::new(run, path.clone(), scope, calls, stop_on_failure);
            if let Some(asked) = new {
                batch.enter(asked);
            }
            for (index, key) in this.keys.iter_mut().enumerate() {
                if let Some(error) = this.ctx.refusal(key) {
                    batch.refuse(index, error);
                }
            }
            this.state = AllState::Started(batch, path, guard);
        }
        let AllState::Started(batch, path, guard) = &mut this.state else { return Poll::Pending };
        if this.ctx.run.is_stopped() {
            return Poll::Pending;
        }
        let outcomes = std::task::ready!(batch.poll(cx));
        guard.over();
        let path = path.clone();
        this.state = AllState::Over;
        this.ctx.note_answers(&outcomes);
        this.keys.drain(..).zip(&outcomes).for_each(|(key, outcome)| this.ctx.note_call(key, outcome));
        let decoder = Decoder { run: &this.ctx.run, path: &path, outcomes: outcomes.into_iter().enumerate() };
        match S::decode(decoder) {
            Some(results) => Poll::Ready(results),
            None => Poll::Pending,
        }
    }
}

/// A group of `count` parallel operations at the next path: its record, which the caller appends, or `None` if the
/// journal has it.
pub(super) fn enter_group(ctx: &mut Ctx, kind: OpKind, count: usize) -> Option<(Path, OpGuard, Option<Asked>)> {
    let name: std::sync::Arc<str> = count.to_string().into();
    let (path, mut guard) = ctx.next(kind, name.clone());
    let asked = Asked::operation(kind, name, None, Effect::Readonly);
    let new = match ctx.run.with(|machine| machine.ask(&path, &asked)) {
        Decision::Perform { .. } => Some(asked),
        Decision::Enter => None,
        // Held by the machine.
        _ => {
            guard.over();
            return None;
        }
    };
    Some((path, guard, new))
}

impl Ctx {
    /// Remembers how to undo what a step did.
    pub(super) fn remember_undo(&mut self, undo: Option<(std::sync::Arc<str>, UndoPlan)>, outcome: &OpOutcome) {
        if let (Some((name, plan)), Ok(output)) = (undo, &outcome.result) {
            self.frame.undos.lock().push(plan.of(&name, output));
        }
    }

    /// Why a call is refused that would only continue a loop; then it is not counted. A call that the journal records
    /// is answered or continued all the same.
    fn refusal(&self, key: &mut Option<LoopKey>) -> Option<ToolError> {
        let limit = |tool: &str| limit(&self.run.kernel.env.policy, &self.scope.toolbox.snapshot(), tool);
        let error = self.frame.loops.lock().refusal(key.as_ref()?, limit)?;
        *key = None;
        Some(error)
    }

    fn note_call(&self, key: Option<LoopKey>, outcome: &OpOutcome) {
        // A skipped call was not made, so it repeats nothing.
        if let Some(key) = key.filter(|_| !was_skipped(&outcome.result)) {
            self.frame.loops.lock().note(&key, &outcome.result);
        }
    }

    /// What the tool's `prepare` froze for this call. It is the same when the body is entered again.
    pub fn prepared(&self) -> Option<&serde_json::Value> {
        self.frame.prepared.as_deref()
    }

    pub(super) fn note_answers(&mut self, outcomes: &[OpOutcome]) {
        if let Some(latest) = outcomes.iter().map(|outcome| outcome.at).max() {
            self.passed(latest);
        }
    }
}
