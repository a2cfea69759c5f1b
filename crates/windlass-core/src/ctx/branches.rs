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
use super::{Ctx, OpGuard, decode};
use crate::call::Attempt;
use crate::call::durable::Frame;
use crate::call::execute::seal;
use crate::call::hidden;
use crate::call::plan::Scope;
use crate::call::running::panic_message;
use crate::limits::CLEAN_UP;
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

    /// The first branch that succeeds, by its index in the set, and its value; the branches have one type of value. The
    /// others are cancelled: each receives the cancellation in its operation, like the body of a cancelled run, and may
    /// clean up for [`CLEAN_UP`](crate::limits::CLEAN_UP). A `once` attempt that was under way may be in doubt, and is
    /// settled without this body; runs that a branch spawned continue. Returns when all of them have ended. If none
    /// succeeds, the error is that of the first branch in order.
    pub fn any<T>(self) -> BranchesAny<'c, T>
    where
        S: BranchSet<'c, Values: AsRef<[T]>>,
    {
        BranchesAny { ctx: self.ctx, state: GroupState::Built(self.set.parts()), output: PhantomData }
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
    Started(Group<'c>),
    Over,
}

enum Slot<'c> {
    Running(Box<RunningBranch<'c>>),
    Done(OpOutcome),
}

/// Branches that run side by side.
struct Group<'c> {
    slots: Vec<Slot<'c>>,
    path: Path,
    guard: OpGuard,
}

impl<'c> Group<'c> {
    /// Enters the branches, or finds their outcomes in the journal. `None` if the run is held.
    fn enter(ctx: &mut Ctx, parts: Vec<BranchPart<'c>>) -> Option<Self> {
        let (path, guard, new) = enter_group(ctx, OpKind::Branches, parts.len())?;
        if new.is_some() {
            ctx.run.append(&path, ctx.run.now(), new, Event::Entered);
        }
        // All of them are asked for before one is polled: a recorded winner ends a race before another branch acts.
        let begin = |(index, part)| RunningBranch::begin(ctx, path.child(index), part);
        let slots = (0u32..).zip(parts).map(begin).collect();
        Some(Self { slots, path, guard })
    }

    /// Polls the branches that have not ended, in order.
    fn poll(&mut self, cx: &mut Context<'_>) {
        for slot in &mut self.slots {
            slot.poll(cx);
        }
    }

    fn have_ended(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot, Slot::Done(_)))
    }

    /// The branch that won: the first in order that succeeded and was not cancelled, because another one had won.
    fn winner(&self, run: &Run) -> Option<usize> {
        let won = |(index, slot): &(usize, &Slot<'_>)| match slot {
            Slot::Done(outcome) if outcome.result.is_ok() => {
                let path = self.path.child(*index as u32);
                run.with(|machine| machine.cancelled_below(&path).is_none())
            }
            _ => false,
        };
        self.slots.iter().enumerate().find(won).map(|(index, _)| index)
    }

    /// Cancels the branches that have not ended.
    fn cancel_losers(&mut self, run: &Run, winner: usize) {
        let now = run.now();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Slot::Running(branch) = slot else { continue };
            let reason = format!("branch {winner} of the race at {} came first", self.path);
            let path = self.path.child(index as u32);
            run.with(|machine| {
                if machine.cancelled_below(&path).is_none() {
                    machine.cancel_below(&path, reason, now);
                }
            });
            branch.clean_up_by(now);
        }
    }

    /// The outcomes, once all have ended.
    fn outcomes(&mut self) -> Vec<OpOutcome> {
        self.guard.over();
        let done = |slot| if let Slot::Done(outcome) = slot { Some(outcome) } else { None };
        std::mem::take(&mut self.slots).into_iter().filter_map(done).collect()
    }
}

impl Slot<'_> {
    /// Returns whether the branch has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        if let Slot::Running(branch) = self {
            match branch.poll(cx) {
                Poll::Ready(outcome) => *self = Slot::Done(outcome),
                Poll::Pending => return false,
            }
        }
        true
    }
}

impl<S> Unpin for BranchesSettled<'_, S> {}

impl<'c, S: BranchSet<'c>> Future for BranchesSettled<'c, S> {
    type Output = S::Results;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let GroupState::Built(_) = this.state
            && let GroupState::Built(parts) = std::mem::replace(&mut this.state, GroupState::Over)
        {
            let Some(group) = Group::enter(this.ctx, parts) else { return Poll::Pending };
            this.state = GroupState::Started(group);
        }
        let GroupState::Started(group) = &mut this.state else { return Poll::Pending };
        group.poll(cx);
        if this.ctx.run.is_stopped() || !group.have_ended() {
            return Poll::Pending;
        }
        let (path, outcomes) = (group.path.clone(), group.outcomes());
        this.state = GroupState::Over;
        this.ctx.note_answers(&outcomes);
        let decoder = Decoder { run: &this.ctx.run, path: &path, outcomes: outcomes.into_iter().enumerate() };
        match S::decode(decoder) {
            Some(results) => Poll::Ready(results),
            None => Poll::Pending,
        }
    }
}

/// The first of several branches to succeed; see [`BranchesAll::any`].
#[must_use = "branches do nothing until they are awaited"]
pub struct BranchesAny<'c, T> {
    ctx: &'c mut Ctx,
    state: GroupState<'c>,
    output: PhantomData<fn() -> T>,
}

impl<T> Unpin for BranchesAny<'_, T> {}

impl<T: DeserializeOwned + 'static> Future for BranchesAny<'_, T> {
    type Output = ToolResult<(usize, T)>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let GroupState::Built(_) = this.state
            && let GroupState::Built(parts) = std::mem::replace(&mut this.state, GroupState::Over)
        {
            if parts.is_empty() {
                return Poll::Ready(Err(ToolError::failed("a race needs at least one branch")));
            }
            let Some(group) = Group::enter(this.ctx, parts) else { return Poll::Pending };
            this.state = GroupState::Started(group);
        }
        let GroupState::Started(group) = &mut this.state else { return Poll::Pending };
        let run = this.ctx.run.clone();
        let mut winner = group.winner(&run);
        if winner.is_none() {
            for index in 0..group.slots.len() {
                if group.slots[index].poll(cx) {
                    winner = group.winner(&run);
                }
                if winner.is_some() {
                    break;
                }
            }
        }
        if let Some(winner) = winner {
            group.cancel_losers(&run, winner);
            group.poll(cx);
        }
        if run.is_stopped() || !group.have_ended() {
            return Poll::Pending;
        }
        let (path, outcomes) = (group.path.clone(), group.outcomes());
        this.state = GroupState::Over;
        this.ctx.note_answers(&outcomes);
        let index = winner.unwrap_or(0);
        let Some(outcome) = outcomes.get(index) else { return Poll::Pending };
        match decode(&run, &path.child(index as u32), &outcome.result) {
            Some(result) => Poll::Ready(result.map(|value| (index, value))),
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
    /// When a branch that was cancelled must have ended.
    clean_up: Option<BoxFuture<'static, ()>>,
    registration: Registration,
}

enum BranchPhase<'c> {
    Body(BoxFuture<'c, ToolResult<Output>>, Attempt),
    Over,
}

impl<'c> RunningBranch<'c> {
    /// Finds the recorded outcome, or enters the body.
    fn begin(ctx: &Ctx, path: Path, part: BranchPart<'c>) -> Slot<'c> {
        let run = ctx.run.clone();
        let asked = Asked::operation(OpKind::Branch, part.name.clone(), None, Effect::Readonly);
        let (past, decision) = run.with(|machine| machine.ask_past(&path, &asked));
        let began = match decision {
            Decision::Answer { result, at } => return Slot::Done(OpOutcome { result, at, times: Times::default() }),
            Decision::Enter => past.map(|past| past.at),
            // Everything else is held by the machine.
            _ => None,
        };
        let entered = run.kernel.env.clock.ticks();
        let began = began.unwrap_or_else(|| {
            let now = run.at(entered);
            run.append(&path, now, Some(asked), Event::Entered);
            now
        });
        let frame = Frame::new(run.clone(), path.clone(), ctx.frame.prepared.clone());
        let label = Attempt::new(run.origin(), path.clone(), part.name.clone(), 1, 1);
        let mut branch = Self {
            run,
            path,
            name: part.name,
            scope: ctx.scope.clone(),
            tool: ctx.tool.clone(),
            frame: Arc::new(frame),
            phase: BranchPhase::Over,
            entered,
            clean_up: None,
            registration: Registration::default(),
        };
        let (ctx, body) = (branch.ctx(began), part.body);
        // Entered inside the first poll, where a panic is caught.
        branch.phase = BranchPhase::Body(Box::pin(async move { body(ctx).await }), label);
        Slot::Running(Box::new(branch))
    }

    /// The branch was cancelled at this time, and has some time to clean up.
    fn clean_up_by(&mut self, cancelled: Timestamp) {
        let run = &self.run;
        let since = run.with(|machine| machine.cancelled_below(&self.path).map_or(cancelled, |(at, _)| at));
        self.clean_up.get_or_insert_with(|| {
            let end = since + CLEAN_UP;
            // A run that is suspended meanwhile is woken up then.
            run.with(|machine| machine.deadline(&self.path, Some(end)));
            run.kernel.env.clock.sleep(end.since(run.now()))
        });
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<OpOutcome> {
        if self.run.is_stopped() {
            return Poll::Pending;
        }
        let BranchPhase::Body(body, label) = std::mem::replace(&mut self.phase, BranchPhase::Over) else {
            return Poll::Pending;
        };
        let polled = self.poll_body(cx, body, label);
        let Some(timer) = self.clean_up.as_mut().filter(|_| polled.is_pending() && !self.run.is_stopped()) else {
            return polled;
        };
        // A doubt that only a person can settle is not waited for.
        let doubted = self.run.is_all_parked() && self.run.with(|machine| machine.has_doubt_below(&self.path));
        if doubted || timer.poll_unpin(cx).is_ready() { Poll::Ready(self.cut_off()) } else { Poll::Pending }
    }

    /// Ends a cancelled branch whose body has not returned. Its attempts that may have happened stay visible.
    fn cut_off(&mut self) -> OpOutcome {
        self.frame.end();
        self.phase = BranchPhase::Over;
        let (path, now) = (self.path.clone(), self.run.now());
        let reason = self.run.with(|machine| {
            machine.abandon_below(&path, now);
            machine.cancelled_below(&path).map(|(_, reason)| reason.to_owned())
        });
        let outcome = self.finish(Err(ToolError::Cancelled { reason: reason.unwrap_or_default() }));
        self.run.leave_queues_below(&path);
        outcome
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
        if self.clean_up.is_some() {
            self.run.with(|machine| machine.deadline(&self.path, None));
        }
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
