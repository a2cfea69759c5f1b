//! Races, spelled out: the first of several parks. Which one it was is journaled.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use serde::de::DeserializeOwned;
use serde_json::json;

use super::park::Park;
use super::{Ctx, Guard, decode};
use crate::call::park::{ParkPlan, Parking, finished};
use crate::path::Path;
use crate::run::Run;
use crate::run::record::{Asked, Event, OpKind, Told};
use crate::run::replay::Decision;
use crate::run::state::Hold;
use crate::time::Times;
use crate::tool::{Effect, Output, ToolError, ToolResult};

/// Several parks of which the first counts: a tuple for several types, a vector for one.
pub trait FirstSet {
    /// What came first.
    type Output;

    #[doc(hidden)]
    fn plans(self) -> Plans;

    #[doc(hidden)]
    fn decode(came: Came<'_>) -> Option<ToolResult<Self::Output>>;
}

/// What a set of parks waits for.
pub struct Plans(Vec<ParkPlan>);

/// Which park came first, and with what.
pub struct Came<'r> {
    run: &'r Run,
    path: &'r Path,
    index: usize,
    told: &'r Told,
}

impl Came<'_> {
    fn value<T: DeserializeOwned + 'static>(&self) -> Option<ToolResult<T>> {
        decode(self.run, &self.path.child(self.index as u32), &self.told.result)
    }
}

impl<T: DeserializeOwned + 'static> FirstSet for Vec<Park<T>> {
    type Output = (usize, T);

    fn plans(self) -> Plans {
        Plans(self.into_iter().map(Park::plan).collect())
    }

    fn decode(came: Came<'_>) -> Option<ToolResult<Self::Output>> {
        Some(came.value()?.map(|value| (came.index, value)))
    }
}

macro_rules! first_sets {
    ($($either:ident $doc:literal ($($name:ident $index:literal),+))+) => {$(
        #[doc = $doc]
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $either<$($name),+> {
            $(
                /// This one.
                $name($name),
            )+
        }

        impl<$($name: DeserializeOwned + 'static),+> FirstSet for ($(Park<$name>,)+) {
            type Output = $either<$($name),+>;

            #[allow(non_snake_case)]
            fn plans(self) -> Plans {
                let ($($name,)+) = self;
                Plans(vec![$($name.plan()),+])
            }

            fn decode(came: Came<'_>) -> Option<ToolResult<Self::Output>> {
                match came.index {
                    $($index => Some(came.value()?.map($either::$name)),)+
                    _ => None,
                }
            }
        }
    )+};
}

first_sets! {
    First2 "Which of two came first." (A 0, B 1)
    First3 "Which of three came first." (A 0, B 1, C 2)
    First4 "Which of four came first." (A 0, B 1, C 2, D 3)
}

/// Several parks of a context; see [`Ctx::first`].
#[must_use = "parks do nothing until they are awaited"]
pub struct First<'c, S> {
    ctx: &'c mut Ctx,
    set: S,
}

impl<'c, S: FirstSet + Send + 'c> IntoFuture for First<'c, S> {
    type Output = ToolResult<S::Output>;
    type IntoFuture = FirstFuture<'c, S>;

    fn into_future(self) -> Self::IntoFuture {
        let Plans(plans) = self.set.plans();
        FirstFuture { ctx: self.ctx, state: State::Built(plans), set: std::marker::PhantomData }
    }
}

/// A race that is awaited.
pub struct FirstFuture<'c, S> {
    ctx: &'c mut Ctx,
    state: State,
    set: std::marker::PhantomData<fn() -> S>,
}

enum State {
    Built(Vec<ParkPlan>),
    Racing(Vec<Parking>, Path, Guard),
    Over,
}

impl<S> Unpin for FirstFuture<'_, S> {}

impl Ctx {
    /// Waits for several things at once and goes on with the first; the choice is journaled. A losing wait is revoked, a
    /// losing receive consumes nothing, a losing child goes on.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass_core::{ctx::{Ctx, First2, park}, tool::ToolResult};
    /// # async fn body(ctx: &mut Ctx) -> ToolResult<String> {
    /// match ctx.first((park::wait::<String>("manager"), park::sleep(Duration::from_secs(86_400)))).await? {
    ///     First2::A(word) => Ok(word),
    ///     First2::B(()) => Ok("nobody said anything for a day".to_owned()),
    /// }
    /// # }
    /// ```
    pub fn first<S: FirstSet>(&mut self, set: S) -> First<'_, S> {
        First { ctx: self, set }
    }
}

impl<S: FirstSet> Future for FirstFuture<'_, S> {
    type Output = ToolResult<S::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let State::Built(_) = this.state
            && let State::Built(plans) = std::mem::replace(&mut this.state, State::Over)
        {
            if let Some(error) = plans.iter().find_map(|plan| this.ctx.deaf_to(plan)) {
                return Poll::Ready(Err(error));
            }
            if plans.is_empty() {
                return Poll::Ready(Err(ToolError::failed(
                    "`first` was given nothing to wait for, and nothing ever comes",
                )));
            }
            match enter(this.ctx, plans) {
                Entered::Racing(parkings, path, guard) => this.state = State::Racing(parkings, path, guard),
                Entered::Known(path, index, told) => return this.came(&path, index, &told),
                Entered::Held => return Poll::Pending,
            }
        }
        let State::Racing(parkings, path, guard) = &mut this.state else { return Poll::Pending };
        for index in 0..parkings.len() {
            let losers = revocations(parkings, index);
            let group = path.clone();
            let polled = parkings[index].poll(cx, |machine, told| {
                for mut record in losers {
                    record.at = told.at;
                    machine.unpark(&record.path);
                    machine.append(record);
                }
                let choice = Output::value(json!({ "first": index }));
                let chosen = Told { result: Ok(Arc::new(choice)), at: told.at, times: Times::default() };
                machine.append(finished(&group, &chosen));
            });
            if let Poll::Ready(told) = polled {
                guard.over();
                let path = path.clone();
                for loser in parkings.iter() {
                    this.ctx.run.with(|machine| machine.unpark(&loser.path));
                }
                this.state = State::Over;
                return this.came(&path, index, &told);
            }
        }
        Poll::Pending
    }
}

impl<S: FirstSet> FirstFuture<'_, S> {
    fn came(&mut self, path: &Path, index: usize, told: &Told) -> Poll<ToolResult<S::Output>> {
        self.ctx.note_answers(std::slice::from_ref(told));
        match S::decode(Came { run: &self.ctx.run, path, index, told }) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

fn revocations(parkings: &[Parking], winner: usize) -> Vec<crate::run::record::Record> {
    let losers = parkings.iter().enumerate().filter(|(index, _)| *index != winner);
    losers.filter_map(|(_, parking)| parking.revoked(crate::time::Timestamp::default())).collect()
}

enum Entered {
    Racing(Vec<Parking>, Path, Guard),
    Known(Path, usize, Told),
    Held,
}

/// Records, or finds recorded, the race at the next path.
fn enter(ctx: &mut Ctx, plans: Vec<ParkPlan>) -> Entered {
    let name: Arc<str> = plans.len().to_string().into();
    let (path, mut guard) = ctx.next(OpKind::First, name.clone());
    let asked = Asked::operation(OpKind::First, name, None, Effect::Readonly);
    match ctx.run.with(|machine| machine.ask(&path, &asked)) {
        Decision::Perform { .. } => {
            ctx.run.append(&path, ctx.run.now(), Some(asked), Event::Entered);
        }
        Decision::Enter => {}
        Decision::Answer { result, .. } => {
            guard.over();
            let index = result.ok().and_then(|output| output.value["first"].as_u64());
            return known(ctx, path, plans, index);
        }
        // Held by the machine.
        _ => {
            guard.over();
            return Entered::Held;
        }
    }
    let run = &ctx.run;
    let place = |(index, plan)| Parking::new(run.clone(), path.child(index as u32), plan);
    let parkings = plans.into_iter().enumerate().map(place).collect();
    Entered::Racing(parkings, path, guard)
}

/// The race was decided before: the winner answers from its record.
fn known(ctx: &mut Ctx, path: Path, plans: Vec<ParkPlan>, index: Option<u64>) -> Entered {
    let index = index.and_then(|index| usize::try_from(index).ok());
    let winner = index.and_then(|index| Some((index, plans.into_iter().nth(index)?)));
    let told = winner.and_then(|(index, plan)| {
        let mut parking = Parking::new(ctx.run.clone(), path.child(index as u32), plan);
        parking.recorded().map(|told| (index, told))
    });
    match told {
        Some((index, told)) => Entered::Known(path, index, told),
        None => {
            let problem = "the journal does not say which branch of `first` came first".to_owned();
            ctx.run.hold(Hold::Undecodable { path, problem });
            Entered::Held
        }
    }
}
