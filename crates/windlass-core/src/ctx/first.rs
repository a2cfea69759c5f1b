//! Races: the first of several parks. The journal records which one it was.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use serde::de::DeserializeOwned;
use serde_json::json;

use super::park::Park;
use super::{Ctx, OpGuard, decode};
use crate::call::park::{ParkPlan, Parking, finished};
use crate::path::Path;
use crate::run::Run;
use crate::run::record::{Asked, Event, OpKind, OpOutcome};
use crate::run::replay::Decision;
use crate::run::state::Hold;
use crate::time::Times;
use crate::tool::{Effect, Output, ToolError, ToolResult};

/// Several parks, of which the first to end counts: a tuple for several types, a vector for one.
pub trait FirstSet {
    /// The result of the first.
    type Output;

    #[doc(hidden)]
    fn plans(self) -> RacePlans;

    #[doc(hidden)]
    fn decode(first_ended: FirstEnded<'_>) -> Option<ToolResult<Self::Output>>;
}

/// What a set of parks waits for.
pub struct RacePlans(Vec<ParkPlan>);

/// Which park ended first, and its outcome.
pub struct FirstEnded<'r> {
    run: &'r Run,
    path: &'r Path,
    index: usize,
    outcome: &'r OpOutcome,
}

impl FirstEnded<'_> {
    fn value<T: DeserializeOwned + 'static>(&self) -> Option<ToolResult<T>> {
        decode(self.run, &self.path.child(self.index as u32), &self.outcome.result)
    }
}

impl<T: DeserializeOwned + 'static> FirstSet for Vec<Park<T>> {
    type Output = (usize, T);

    fn plans(self) -> RacePlans {
        RacePlans(self.into_iter().map(Park::plan).collect())
    }

    fn decode(first_ended: FirstEnded<'_>) -> Option<ToolResult<Self::Output>> {
        Some(first_ended.value()?.map(|value| (first_ended.index, value)))
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
            fn plans(self) -> RacePlans {
                let ($($name,)+) = self;
                RacePlans(vec![$($name.plan()),+])
            }

            fn decode(first_ended: FirstEnded<'_>) -> Option<ToolResult<Self::Output>> {
                match first_ended.index {
                    $($index => Some(first_ended.value()?.map($either::$name)),)+
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
#[must_use = "this waits for nothing until it is awaited: write `ctx.first(…).await?`"]
pub struct First<'c, S> {
    ctx: &'c mut Ctx,
    set: S,
}

impl<'c, S: FirstSet + Send + 'c> IntoFuture for First<'c, S> {
    type Output = ToolResult<S::Output>;
    type IntoFuture = FirstFuture<'c, S>;

    fn into_future(self) -> Self::IntoFuture {
        let RacePlans(plans) = self.set.plans();
        FirstFuture { ctx: self.ctx, state: RaceState::Built(plans), set: std::marker::PhantomData }
    }
}

/// A race that is awaited.
pub struct FirstFuture<'c, S> {
    ctx: &'c mut Ctx,
    state: RaceState,
    set: std::marker::PhantomData<fn() -> S>,
}

enum RaceState {
    Built(Vec<ParkPlan>),
    Racing(Vec<Parking>, Path, OpGuard),
    Over,
}

impl<S> Unpin for FirstFuture<'_, S> {}

impl Ctx {
    /// Waits for several things at once and continues with the first; the journal records the choice. A losing wait is
    /// revoked, a losing receive consumes nothing, and a losing child run continues.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass_core::{ctx::{Ctx, First2, park}, tool::ToolResult};
    /// # async fn body(ctx: &mut Ctx) -> ToolResult<String> {
    /// match ctx.first((park::wait::<String>("manager"), park::sleep(Duration::from_secs(86_400)))).await? {
    ///     First2::A(word) => Ok(word),
    ///     First2::B(()) => Ok("no answer came for a day".to_owned()),
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
        if let RaceState::Built(_) = this.state
            && let RaceState::Built(plans) = std::mem::replace(&mut this.state, RaceState::Over)
        {
            if let Some(error) = plans.iter().find_map(|plan| this.ctx.refuse_join(plan)) {
                return Poll::Ready(Err(error));
            }
            if plans.is_empty() {
                return Poll::Ready(Err(ToolError::failed(
                    "`first` was given nothing to wait for; pass at least one park",
                )));
            }
            match enter(this.ctx, plans) {
                RaceEntry::Racing(parkings, path, guard) => this.state = RaceState::Racing(parkings, path, guard),
                RaceEntry::Decided(path, index, outcome) => return this.first_ended(&path, index, &outcome),
                RaceEntry::Held => return Poll::Pending,
            }
        }
        let RaceState::Racing(parkings, path, guard) = &mut this.state else { return Poll::Pending };
        for index in 0..parkings.len() {
            let losers = revocations(parkings, index);
            let group = path.clone();
            let polled = parkings[index].poll(cx, |machine, outcome| {
                for mut record in losers {
                    record.at = outcome.at;
                    machine.unpark(&record.path);
                    machine.append(record);
                }
                let choice = Output::value(json!({ "first": index }));
                let chosen = OpOutcome { result: Ok(Arc::new(choice)), at: outcome.at, times: Times::default() };
                machine.append(finished(&group, &chosen));
            });
            if let Poll::Ready(outcome) = polled {
                guard.over();
                let path = path.clone();
                for loser in parkings.iter() {
                    this.ctx.run.with(|machine| machine.unpark(&loser.path));
                }
                this.state = RaceState::Over;
                return this.first_ended(&path, index, &outcome);
            }
        }
        Poll::Pending
    }
}

impl<S: FirstSet> FirstFuture<'_, S> {
    fn first_ended(&mut self, path: &Path, index: usize, outcome: &OpOutcome) -> Poll<ToolResult<S::Output>> {
        self.ctx.note_answers(std::slice::from_ref(outcome));
        match S::decode(FirstEnded { run: &self.ctx.run, path, index, outcome }) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

fn revocations(parkings: &[Parking], winner: usize) -> Vec<crate::run::record::Record> {
    let losers = parkings.iter().enumerate().filter(|(index, _)| *index != winner);
    losers.filter_map(|(_, parking)| parking.revoked(crate::time::Timestamp::default())).collect()
}

enum RaceEntry {
    Racing(Vec<Parking>, Path, OpGuard),
    Decided(Path, usize, OpOutcome),
    Held,
}

/// Records the race at the next path, or finds it in the journal.
fn enter(ctx: &mut Ctx, plans: Vec<ParkPlan>) -> RaceEntry {
    let place = |(branch, plan)| ctx.placed(plan, Some(branch));
    let plans: Vec<ParkPlan> = (0u32..).zip(plans).map(place).collect();
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
            return recorded_race(ctx, path, plans, index);
        }
        // Held by the machine.
        _ => {
            guard.over();
            return RaceEntry::Held;
        }
    }
    let place = |(index, plan)| Parking::new(ctx.run.clone(), path.child(index as u32), ctx.checked(plan));
    let parkings = plans.into_iter().enumerate().map(place).collect();
    RaceEntry::Racing(parkings, path, guard)
}

/// The race was decided before, and the winner answers from its record.
fn recorded_race(ctx: &mut Ctx, path: Path, plans: Vec<ParkPlan>, index: Option<u64>) -> RaceEntry {
    let index = index.and_then(|index| usize::try_from(index).ok());
    let winner = index.and_then(|index| Some((index, plans.into_iter().nth(index)?)));
    let outcome = winner.and_then(|(index, plan)| {
        let mut parking = Parking::new(ctx.run.clone(), path.child(index as u32), plan);
        parking.recorded().map(|outcome| (index, outcome))
    });
    match outcome {
        Some((index, outcome)) => RaceEntry::Decided(path, index, outcome),
        None => {
            let problem = "the journal does not say which branch of `first` came first".to_owned();
            ctx.run.hold(Hold::Undecodable { path, problem });
            RaceEntry::Held
        }
    }
}
