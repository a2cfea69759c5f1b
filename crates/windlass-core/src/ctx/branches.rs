//! Branches of a durable body: several bodies side by side, each with a context of its own.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;

use super::calls::{Decoder, all_values, enter_group};
use super::step::{StepOutput, ValueOf};
use super::undo::compensate;
use super::{Ctx, OpGuard};
use crate::call::Attempt;
use crate::call::durable::Frame;
use crate::call::execute::seal;
use crate::call::hidden;
use crate::call::plan::Scope;
use crate::call::running::panic_message;
use crate::path::Path;
use crate::run::record::{Asked, Event, Finished, OpKind, OpOutcome};
use crate::run::replay::Decision;
use crate::run::state::Hold;
use crate::run::{Registration, Run};
use crate::time::{Times, Timestamp};
use crate::tool::{Effect, Output, Tool, ToolError, ToolResult};

/// One branch of a body; see [`branch`] and [`Ctx::branches`].
#[must_use = "a branch does nothing until it is awaited: write `ctx.branches(…).await?`"]
pub struct Branch<'c, T> {
    name: Arc<str>,
    body: BranchBody<'c>,
    output: PhantomData<fn() -> T>,
}

type BranchBody<'c> = Box<dyn FnOnce(Ctx) -> BoxFuture<'c, ToolResult<Output>> + Send + 'c>;

/// A branch for [`Ctx::branches`]. Its name is part of the journal, like that of a step.
pub fn branch<'c, F, Fut>(name: impl Into<Arc<str>>, f: F) -> Branch<'c, ValueOf<Fut>>
where
    F: FnOnce(Ctx) -> Fut + Send + 'c,
    Fut: Future<Output: StepOutput> + Send + 'c,
{
    let body = |ctx| -> BoxFuture<'c, ToolResult<Output>> { Box::pin(async move { f(ctx).await.encode() }) };
    Branch { name: name.into(), body: Box::new(body), output: PhantomData }
}

/// Several branches with one type of value (an array or vector) or with several (a tuple).
pub trait BranchSet<'c> {
    /// Their values.
    type Values;
    /// Their results.
    type Results;

    #[doc(hidden)]
    fn parts(self) -> Vec<BranchPart<'c>>;

    #[doc(hidden)]
    fn decode(results: Decoder<'_>) -> Option<Self::Results>;

    #[doc(hidden)]
    fn values(results: Self::Results) -> ToolResult<Self::Values>;
}

/// A branch, whatever the type of its value.
#[doc(hidden)]
pub struct BranchPart<'c> {
    name: Arc<str>,
    body: BranchBody<'c>,
}

impl<'c, T> From<Branch<'c, T>> for BranchPart<'c> {
    fn from(branch: Branch<'c, T>) -> Self {
        Self { name: branch.name, body: branch.body }
    }
}

impl<'c, T: DeserializeOwned + 'static> BranchSet<'c> for Vec<Branch<'c, T>> {
    type Values = Vec<T>;
    type Results = Vec<ToolResult<T>>;

    fn parts(self) -> Vec<BranchPart<'c>> {
        self.into_iter().map(Into::into).collect()
    }

    fn decode(mut results: Decoder<'_>) -> Option<Self::Results> {
        results.rest()
    }

    fn values(results: Self::Results) -> ToolResult<Vec<T>> {
        results.into_iter().collect()
    }
}

impl<'c, T: DeserializeOwned + 'static, const N: usize> BranchSet<'c> for [Branch<'c, T>; N] {
    type Values = [T; N];
    type Results = [ToolResult<T>; N];

    fn parts(self) -> Vec<BranchPart<'c>> {
        self.into_iter().map(Into::into).collect()
    }

    fn decode(mut results: Decoder<'_>) -> Option<Self::Results> {
        results.rest()?.try_into().ok()
    }

    fn values(results: Self::Results) -> ToolResult<[T; N]> {
        all_values(results)
    }
}

macro_rules! branch_tuples {
    ($(($($name:ident),+))+) => {$(
        impl<'c, $($name: DeserializeOwned + 'static),+> BranchSet<'c> for ($(Branch<'c, $name>,)+) {
            type Values = ($($name,)+);
            type Results = ($(ToolResult<$name>,)+);

            #[allow(non_snake_case)]
            fn parts(self) -> Vec<BranchPart<'c>> {
                let ($($name,)+) = self;
                vec![$($name.into()),+]
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

branch_tuples! { (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, F) }

impl Ctx {
    /// Runs several branches side by side: an array, vector or tuple of [`branch`](fn@branch)es. Each gets a context of
    /// its own, so that its operations are recorded apart from those of the others, whatever their order in time. All of
    /// them run to their end; the first error in order is returned. Use [`BranchesAll::settled`] to see each result.
    ///
    /// A branch that fails undoes what it did itself, like a body. A branch that succeeded is not undone by the failure
    /// of another one.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass_core::{ctx::{Ctx, branch}, tool::ToolResult};
    /// # async fn body(ctx: &mut Ctx) -> ToolResult<String> {
    /// let later = branch("later", |mut ctx: Ctx| async move {
    ///     ctx.sleep(Duration::from_secs(60)).await?;
    ///     Ok("a minute later".to_owned())
    /// });
    /// let asked = branch("asked", |mut ctx: Ctx| async move { ctx.wait::<String>("manager").await });
    /// let (later, word) = ctx.branches((later, asked)).await?;
    /// # Ok(later + &word)
    /// # }
    /// ```
    pub fn branches<'c, S: BranchSet<'c>>(&'c mut self, set: S) -> BranchesAll<'c, S> {
        BranchesAll { ctx: self, set }
    }
}

/// Several branches; see [`Ctx::branches`].
#[must_use = "branches do nothing until they are awaited: write `ctx.branches(…).await?`"]
pub struct BranchesAll<'c, S> {
    ctx: &'c mut Ctx,
    set: S,
}

impl<'c, S: BranchSet<'c>> BranchesAll<'c, S> {
    /// Each branch's own result, instead of the first error.
    pub fn settled(self) -> BranchesSettled<'c, S> {
        BranchesSettled { ctx: self.ctx, state: GroupState::Built(self.set.parts()), set: PhantomData }
    }
}

impl<'c, S: BranchSet<'c> + 'c> IntoFuture for BranchesAll<'c, S>
where
    S::Results: Send,
{
    type Output = ToolResult<S::Values>;
    type IntoFuture = BoxFuture<'c, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let settled = self.settled();
        Box::pin(async move { S::values(settled.await) })
    }
}

/// Several branches, each with its own result; see [`BranchesAll::settled`].
#[must_use = "branches do nothing until they are awaited"]
pub struct BranchesSettled<'c, S> {
    ctx: &'c mut Ctx,
    state: GroupState<'c>,
    set: PhantomData<fn() -> S>,
}

enum GroupState<'c> {
    Built(Vec<BranchPart<'c>>),
    Started(Vec<Slot<'c>>, Path, OpGuard),
    Over,
}

enum Slot<'c> {
    Running(RunningBranch<'c>),
    Done(OpOutcome),
}

impl<S> Unpin for BranchesSettled<'_, S> {}

impl<'c, S: BranchSet<'c>> Future for BranchesSettled<'c, S> {
    type Output = S::Results;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let GroupState::Built(_) = this.state
            && let GroupState::Built(parts) = std::mem::replace(&mut this.state, GroupState::Over)
        {
            let Some((path, guard, new)) = enter_group(this.ctx, OpKind::Branches, parts.len()) else {
                return Poll::Pending;
            };
            if new.is_some() {
                this.ctx.run.append(&path, this.ctx.run.now(), new, Event::Entered);
            }
            let begin = |(index, part)| Slot::Running(RunningBranch::new(this.ctx, path.child(index), part));
            let slots = (0u32..).zip(parts).map(begin).collect();
            this.state = GroupState::Started(slots, path, guard);
        }
        let GroupState::Started(slots, path, guard) = &mut this.state else { return Poll::Pending };
        let mut pending = false;
        for slot in slots.iter_mut() {
            if this.ctx.run.is_stopped() {
                return Poll::Pending;
            }
            if let Slot::Running(branch) = slot {
                match branch.poll(cx) {
                    Poll::Ready(outcome) => *slot = Slot::Done(outcome),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            return Poll::Pending;
        }
        guard.over();
        let finished = std::mem::take(slots).into_iter();
        let outcomes: Vec<OpOutcome> =
            finished.filter_map(|slot| if let Slot::Done(outcome) = slot { Some(outcome) } else { None }).collect();
        let path = path.clone();
        this.state = GroupState::Over;
        this.ctx.note_answers(&outcomes);
        let decoder = Decoder { run: &this.ctx.run, path: &path, outcomes: outcomes.into_iter().enumerate() };
        match S::decode(decoder) {
            Some(results) => Poll::Ready(results),
            None => Poll::Pending,
        }
    }
}

/// The body of one branch: entered, entered again after a crash, left with an outcome.
struct RunningBranch<'c> {
    run: Arc<Run>,
    path: Path,
    name: Arc<str>,
    scope: Scope,
    tool: Arc<Tool>,
    frame: Arc<Frame>,
    phase: BranchPhase<'c>,
    /// The ticks of the clock when it was entered here.
    entered: u64,
    registration: Registration,
}

enum BranchPhase<'c> {
    Ask(BranchBody<'c>),
    Body(BoxFuture<'c, ToolResult<Output>>, Attempt),
    Over,
}

impl<'c> RunningBranch<'c> {
    fn new(ctx: &Ctx, path: Path, part: BranchPart<'c>) -> Self {
        let frame = Frame::new(ctx.run.clone(), path.clone(), ctx.frame.prepared.clone());
        Self {
            run: ctx.run.clone(),
            path,
            name: part.name,
            scope: ctx.scope.clone(),
            tool: ctx.tool.clone(),
            frame: Arc::new(frame),
            phase: BranchPhase::Ask(part.body),
            entered: 0,
            registration: Registration::default(),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<OpOutcome> {
        loop {
            match std::mem::replace(&mut self.phase, BranchPhase::Over) {
                BranchPhase::Ask(body) => {
                    if let Some(outcome) = self.enter(body) {
                        return Poll::Ready(outcome);
                    }
                }
                BranchPhase::Body(body, label) => return self.poll_body(cx, body, label),
                BranchPhase::Over => return Poll::Pending,
            }
        }
    }

    /// Returns the recorded outcome, or enters the body.
    fn enter(&mut self, body: BranchBody<'c>) -> Option<OpOutcome> {
        let asked = Asked::operation(OpKind::Branch, self.name.clone(), None, Effect::Readonly);
        let (past, decision) = self.run.with(|machine| machine.ask_past(&self.path, &asked));
        let began = match decision {
            Decision::Answer { result, at } => return Some(OpOutcome { result, at, times: Times::default() }),
            Decision::Enter => past.map(|past| past.at),
            Decision::Perform { .. } => None,
            // Held by the machine.
            _ => return None,
        };
        self.entered = self.run.kernel.env.clock.ticks();
        let began = began.unwrap_or_else(|| {
            let now = self.run.at(self.entered);
            self.run.append(&self.path, now, Some(asked), Event::Entered);
            now
        });
        let label = Attempt::new(self.run.origin(), self.path.clone(), self.name.clone(), 1, 1);
        let ctx = self.ctx(began);
        // Entered inside the first poll, where a panic is caught.
        self.phase = BranchPhase::Body(Box::pin(async move { body(ctx).await }), label);
        None
    }

    fn ctx(&self, began: Timestamp) -> Ctx {
        let inside = (self.frame.clone(), self.tool.clone());
        Ctx::new(self.run.clone(), self.path.clone(), self.scope.clone(), inside, began)
    }

    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        mut body: BoxFuture<'c, ToolResult<Output>>,
        label: Attempt,
    ) -> Poll<OpOutcome> {
        let polled = {
            let _watched = self.run.kernel.watchdog.enter(&label);
            std::panic::catch_unwind(AssertUnwindSafe(|| body.poll_unpin(cx)))
        };
        if self.run.is_stopped() {
            return Poll::Pending;
        }
        let result = match polled {
            Ok(Poll::Ready(result)) => result.and_then(|output| output.refuse_atomic_only("a branch")),
            Ok(Poll::Pending) => {
                self.registration.register(&self.run, cx);
                if self.frame.is_busy() {
                    self.phase = BranchPhase::Body(body, label);
                } else {
                    self.run.hold(Hold::Outside { path: self.path.clone() });
                }
                return Poll::Pending;
            }
            Err(panic) => Err(self.panicked(&panic_message(&*panic))),
        };
        if let Err(error) = &result {
            let undos = std::mem::take(&mut *self.frame.undos.lock());
            if !undos.is_empty() {
                let undoing = compensate(self.ctx(self.run.now()), undos, error.clone());
                return self.poll_body(cx, Box::pin(undoing), label);
            }
        }
        let next = self.path.child(self.frame.next.load(Ordering::Acquire));
        self.run.with(|machine| machine.returned(&next));
        // A check ignores what a body returned.
        if self.run.is_stopped() || self.run.only_checks {
            return Poll::Pending;
        }
        Poll::Ready(self.finish(result))
    }

    fn correlation(&self) -> String {
        format!("{}:{}", self.run.id, self.path)
    }

    fn panicked(&self, message: &str) -> ToolError {
        let correlation = self.correlation();
        hidden::log(&correlation, &self.name, format_args!("the branch panicked: {message}"));
        ToolError::Panicked { correlation }
    }

    fn finish(&mut self, result: ToolResult<Output>) -> OpOutcome {
        self.frame.end();
        let result = match result.as_ref().map(|output| output.check_depth(&self.name)) {
            Ok(Err(error)) => Err(error),
            _ => result,
        };
        let seal = |error| seal(error, &self.name, || self.correlation());
        let result = result.map(Arc::new).map_err(|error| Arc::new(seal(error)));
        let ticks = self.run.kernel.env.clock.ticks();
        let running = ticks.saturating_sub(self.entered);
        let times = Times { queued: 0, running, total: running };
        let at = self.run.at(ticks);
        let finished = Finished { result: result.clone(), told: None, attempts: 1, times, settled: None };
        self.run.append(&self.path, at, None, Event::Finished(finished));
        OpOutcome { result, at, times }
    }
}

impl Drop for RunningBranch<'_> {
    fn drop(&mut self) {
        self.frame.end();
    }
}
