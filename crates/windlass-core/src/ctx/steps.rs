//! Several steps of a durable body at once.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use super::calls::{Decoder, all_values, enter_group};
use super::step::{Step, StepSource};
use super::undo::UndoPlan;
use super::{Ctx, OpGuard};
use crate::call::execute::Execution;
use crate::path::Path;
use crate::run::Run;
use crate::run::record::{Event, OpKind, OpOutcome};
use crate::tool::ToolResult;

/// A step in progress, whatever its type.
#[doc(hidden)]
pub trait StepProgress: Send {
    #[doc(hidden)]
    fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<StepOutcome>;
}

/// The outcome of a step, for the set it is part of.
#[doc(hidden)]
pub struct StepOutcome(OpOutcome);

impl<'c, F: Send + 'c> StepProgress for Execution<'c, StepSource<'c, F>> {
    fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<StepOutcome> {
        self.poll(cx).map(StepOutcome)
    }
}

/// The position of a set of steps in its run.
#[doc(hidden)]
pub struct StepSetSite {
    run: Arc<Run>,
    path: Path,
    undos: Undos,
}

/// How to undo the steps of a set, by their index.
type Undos = Arc<Mutex<Vec<(usize, (Arc<str>, UndoPlan))>>>;

impl StepSetSite {
    fn begin<'c, F, T>(&self, index: usize, mut step: Step<'c, F, T>) -> Box<dyn StepProgress + 'c>
    where
        F: Send + 'c,
    {
        self.undos.lock().extend(step.take_undo().map(|undo| (index, undo)));
        Box::new(step.begin(self.run.clone(), self.path.child(index as u32)))
    }
}

/// Several steps with one closure type (an array or vector) or with several (a tuple).
pub trait StepSet<'c> {
    /// Their values.
    type Values;
    /// Their results.
    type Results;

    /// The number of steps.
    fn count(&self) -> usize;

    #[doc(hidden)]
    fn begin(self, site: StepSetSite) -> Vec<Box<dyn StepProgress + 'c>>;

    #[doc(hidden)]
    fn decode(results: Decoder<'_>) -> Option<Self::Results>;

    #[doc(hidden)]
    fn values(results: Self::Results) -> ToolResult<Self::Values>;
}

impl<'c, F, T> StepSet<'c> for Vec<Step<'c, F, T>>
where
    F: Send + 'c,
    T: DeserializeOwned + 'static,
{
    type Values = Vec<T>;
    type Results = Vec<ToolResult<T>>;

    fn count(&self) -> usize {
        self.len()
    }

    fn begin(self, site: StepSetSite) -> Vec<Box<dyn StepProgress + 'c>> {
        self.into_iter().enumerate().map(|(index, step)| site.begin(index, step)).collect()
    }

    fn decode(mut results: Decoder<'_>) -> Option<Self::Results> {
        results.rest()
    }

    fn values(results: Self::Results) -> ToolResult<Vec<T>> {
        results.into_iter().collect()
    }
}

impl<'c, F, T, const N: usize> StepSet<'c> for [Step<'c, F, T>; N]
where
    F: Send + 'c,
    T: DeserializeOwned + 'static,
{
    type Values = [T; N];
    type Results = [ToolResult<T>; N];

    fn count(&self) -> usize {
        N
    }

    fn begin(self, site: StepSetSite) -> Vec<Box<dyn StepProgress + 'c>> {
        self.into_iter().enumerate().map(|(index, step)| site.begin(index, step)).collect()
    }

    fn decode(mut results: Decoder<'_>) -> Option<Self::Results> {
        results.rest()?.try_into().ok()
    }

    fn values(results: Self::Results) -> ToolResult<[T; N]> {
        all_values(results)
    }
}

macro_rules! step_tuples {
    ($($count:literal ($($f:ident $t:ident $index:tt),+))+) => {$(
        impl<'c, $($f, $t),+> StepSet<'c> for ($(Step<'c, $f, $t>,)+)
        where
            $($f: Send + 'c, $t: DeserializeOwned + 'static,)+
        {
            type Values = ($($t,)+);
            type Results = ($(ToolResult<$t>,)+);

            fn count(&self) -> usize {
                $count
            }

            fn begin(self, site: StepSetSite) -> Vec<Box<dyn StepProgress + 'c>> {
                vec![$(site.begin($index, self.$index)),+]
            }

            fn decode(mut results: Decoder<'_>) -> Option<Self::Results> {
                Some(($(results.next::<$t>()?,)+))
            }

            #[allow(non_snake_case)]
            fn values(results: Self::Results) -> ToolResult<Self::Values> {
                let ($($t,)+) = results;
                Ok(($($t?,)+))
            }
        }
    )+};
}

step_tuples! {
    1 (F0 T0 0)
    2 (F0 T0 0, F1 T1 1)
    3 (F0 T0 0, F1 T1 1, F2 T2 2)
    4 (F0 T0 0, F1 T1 1, F2 T2 2, F3 T3 3)
}

/// Several steps; see [`Ctx::steps_all`].
#[must_use = "steps do nothing until they are awaited: write `ctx.steps_all(…).await?`"]
pub struct StepsAll<'c, S> {
    ctx: &'c mut Ctx,
    steps: S,
}

impl<'c, S: StepSet<'c>> StepsAll<'c, S> {
    pub(super) fn new(ctx: &'c mut Ctx, steps: S) -> Self {
        Self { ctx, steps }
    }

    /// Each step's own result, instead of the first error.
    pub fn settled(self) -> StepsSettled<'c, S> {
        StepsSettled { ctx: self.ctx, state: StepsState::Built(Some(self.steps)), set: PhantomData }
    }
}

impl<'c, S: StepSet<'c> + Send + 'c> IntoFuture for StepsAll<'c, S>
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

/// Several steps, each with its own result; see [`StepsAll::settled`].
#[must_use = "steps do nothing until they are awaited"]
pub struct StepsSettled<'c, S> {
    ctx: &'c mut Ctx,
    state: StepsState<'c, S>,
    set: PhantomData<fn() -> S>,
}

enum StepsState<'c, S> {
    Built(Option<S>),
    Started { slots: Vec<StepSlot<'c>>, path: Path, guard: OpGuard, undos: Undos },
    Over,
}

enum StepSlot<'c> {
    Running(Box<dyn StepProgress + 'c>),
    Done(OpOutcome),
}

impl<S> Unpin for StepsSettled<'_, S> {}

impl<'c, S: StepSet<'c>> Future for StepsSettled<'c, S> {
    type Output = S::Results;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let StepsState::Built(steps) = &mut this.state {
            let Some(steps) = steps.take() else { return Poll::Pending };
            let Some((path, guard, new)) = enter_group(this.ctx, OpKind::Steps, steps.count()) else {
                return Poll::Pending;
            };
            if new.is_some() {
                this.ctx.run.append(&path, this.ctx.run.now(), new, Event::Entered);
            }
            let undos = Undos::default();
            let site = StepSetSite { run: this.ctx.run.clone(), path: path.clone(), undos: undos.clone() };
            let slots = steps.begin(site).into_iter().map(StepSlot::Running).collect();
            this.state = StepsState::Started { slots, path, guard, undos };
        }
        let StepsState::Started { slots, path, guard, undos } = &mut this.state else { return Poll::Pending };
        let mut pending = false;
        for slot in slots.iter_mut() {
            if let StepSlot::Running(step) = slot {
                match step.poll_outcome(cx) {
                    Poll::Ready(outcome) => *slot = StepSlot::Done(outcome.0),
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
            finished.filter_map(|slot| if let StepSlot::Done(outcome) = slot { Some(outcome) } else { None }).collect();
        let path = path.clone();
        let undos = std::mem::take(&mut *undos.lock());
        this.state = StepsState::Over;
        for (index, undo) in undos {
            if let Some(outcome) = outcomes.get(index) {
                this.ctx.remember_undo(Some(undo), outcome);
            }
        }
        this.ctx.note_answers(&outcomes);
        let decoder = Decoder { run: &this.ctx.run, path: &path, outcomes: outcomes.into_iter().enumerate() };
        match S::decode(decoder) {
            Some(results) => Poll::Ready(results),
            None => Poll::Pending,
        }
    }
}
