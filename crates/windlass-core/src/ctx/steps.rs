//! Several steps of a durable body at once.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::calls::{Decoder, all_values, enter_group};
use super::step::{Step, StepSource};
use super::undo::UndoPlan;
use super::{Ctx, Guard};
use crate::call::Attempt;
use crate::call::execute::Execution;
use crate::path::Path;
use crate::run::Run;
use crate::run::record::{OpKind, Told};
use crate::tool::ToolResult;

/// A step in progress, whatever it returns.
#[doc(hidden)]
pub trait Progress: Send {
    #[doc(hidden)]
    fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<ToldBox>;
}

/// What a step came to, for the set it is part of.
#[doc(hidden)]
pub struct ToldBox(Told);

impl<'c, F, Fut, T> Progress for Execution<'c, StepSource<F, T>>
where
    F: FnMut(Attempt) -> Fut + Send + 'c,
    Fut: Future<Output = ToolResult<T>> + Send + 'c,
    T: Serialize + 'static,
{
    fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<ToldBox> {
        self.poll(cx).map(ToldBox)
    }
}

/// The place of a set of steps in its run.
#[doc(hidden)]
pub struct Place {
    run: Arc<Run>,
    path: Path,
    undos: Undos,
}

/// How to undo the steps of a set, by their index.
type Undos = Arc<Mutex<Vec<(usize, (Arc<str>, UndoPlan))>>>;

impl Place {
    fn begin<'c, F, Fut, T>(&self, index: usize, mut step: Step<F>) -> Box<dyn Progress + 'c>
    where
        F: FnMut(Attempt) -> Fut + Send + 'c,
        Fut: Future<Output = ToolResult<T>> + Send + 'c,
        T: Serialize + 'static,
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

    /// How many.
    fn count(&self) -> usize;

    #[doc(hidden)]
    fn begin(self, place: Place) -> Vec<Box<dyn Progress + 'c>>;

    #[doc(hidden)]
    fn decode(results: Decoder<'_>) -> Option<Self::Results>;

    #[doc(hidden)]
    fn values(results: Self::Results) -> ToolResult<Self::Values>;
}

impl<'c, F, Fut, T> StepSet<'c> for Vec<Step<F>>
where
    F: FnMut(Attempt) -> Fut + Send + 'c,
    Fut: Future<Output = ToolResult<T>> + Send + 'c,
    T: Serialize + DeserializeOwned + 'static,
{
    type Values = Vec<T>;
    type Results = Vec<ToolResult<T>>;

    fn count(&self) -> usize {
        self.len()
    }

    fn begin(self, place: Place) -> Vec<Box<dyn Progress + 'c>> {
        self.into_iter().enumerate().map(|(index, step)| place.begin(index, step)).collect()
    }

    fn decode(mut results: Decoder<'_>) -> Option<Self::Results> {
        results.rest()
    }

    fn values(results: Self::Results) -> ToolResult<Vec<T>> {
        results.into_iter().collect()
    }
}

impl<'c, F, Fut, T, const N: usize> StepSet<'c> for [Step<F>; N]
where
    F: FnMut(Attempt) -> Fut + Send + 'c,
    Fut: Future<Output = ToolResult<T>> + Send + 'c,
    T: Serialize + DeserializeOwned + 'static,
{
    type Values = [T; N];
    type Results = [ToolResult<T>; N];

    fn count(&self) -> usize {
        N
    }

    fn begin(self, place: Place) -> Vec<Box<dyn Progress + 'c>> {
        self.into_iter().enumerate().map(|(index, step)| place.begin(index, step)).collect()
    }

    fn decode(mut results: Decoder<'_>) -> Option<Self::Results> {
        results.rest()?.try_into().ok()
    }

    fn values(results: Self::Results) -> ToolResult<[T; N]> {
        all_values(results)
    }
}

macro_rules! step_tuples {
    ($($count:literal ($($f:ident $fut:ident $t:ident $index:tt),+))+) => {$(
        impl<'c, $($f, $fut, $t),+> StepSet<'c> for ($(Step<$f>,)+)
        where
            $($f: FnMut(Attempt) -> $fut + Send + 'c,
              $fut: Future<Output = ToolResult<$t>> + Send + 'c,
              $t: Serialize + DeserializeOwned + 'static,)+
        {
            type Values = ($($t,)+);
            type Results = ($(ToolResult<$t>,)+);

            fn count(&self) -> usize {
                $count
            }

            fn begin(self, place: Place) -> Vec<Box<dyn Progress + 'c>> {
                vec![$(place.begin($index, self.$index)),+]
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
    1 (F0 U0 T0 0)
    2 (F0 U0 T0 0, F1 U1 T1 1)
    3 (F0 U0 T0 0, F1 U1 T1 1, F2 U2 T2 2)
    4 (F0 U0 T0 0, F1 U1 T1 1, F2 U2 T2 2, F3 U3 T3 3)
}

/// Several steps; see [`Ctx::steps_all`].
#[must_use = "steps do nothing until they are awaited"]
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
        StepsSettled { ctx: self.ctx, state: State::Built(Some(self.steps)), set: PhantomData }
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
    state: State<'c, S>,
    set: PhantomData<fn() -> S>,
}

enum State<'c, S> {
    Built(Option<S>),
    Started { slots: Vec<Slot<'c>>, path: Path, guard: Guard, undos: Undos },
    Over,
}

enum Slot<'c> {
    Running(Box<dyn Progress + 'c>),
    Done(Told),
}

impl<S> Unpin for StepsSettled<'_, S> {}

impl<'c, S: StepSet<'c>> Future for StepsSettled<'c, S> {
    type Output = S::Results;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let State::Built(steps) = &mut this.state {
            let Some(steps) = steps.take() else { return Poll::Pending };
            let Some((path, guard)) = enter_group(this.ctx, OpKind::Steps, steps.count()) else {
                return Poll::Pending;
            };
            let undos = Undos::default();
            let place = Place { run: this.ctx.run.clone(), path: path.clone(), undos: undos.clone() };
            let slots = steps.begin(place).into_iter().map(Slot::Running).collect();
            this.state = State::Started { slots, path, guard, undos };
        }
        let State::Started { slots, path, guard, undos } = &mut this.state else { return Poll::Pending };
        let mut pending = false;
        for slot in slots.iter_mut() {
            if let Slot::Running(step) = slot {
                match step.poll_told(cx) {
                    Poll::Ready(told) => *slot = Slot::Done(told.0),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            return Poll::Pending;
        }
        guard.over();
        let finished = std::mem::take(slots).into_iter();
        let told: Vec<Told> =
            finished.filter_map(|slot| if let Slot::Done(told) = slot { Some(told) } else { None }).collect();
        let path = path.clone();
        let undos = std::mem::take(&mut *undos.lock());
        this.state = State::Over;
        for (index, undo) in undos {
            if let Some(told) = told.get(index) {
                this.ctx.remember_undo(Some(undo), told);
            }
        }
        this.ctx.note_answers(&told);
        let decoder = Decoder { run: &this.ctx.run, path: &path, told: told.into_iter().enumerate() };
        match S::decode(decoder) {
            Some(results) => Poll::Ready(results),
            None => Poll::Pending,
        }
    }
}
