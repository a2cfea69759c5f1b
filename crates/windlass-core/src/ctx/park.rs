//! Waiting in a durable body: for an answer from outside, for a time, for a signal, for another run.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::{Ctx, OpGuard};
use crate::call::park::{AnswerCheck, ParkPlan, Parking, finished};
use crate::path::Path;
use crate::run::record::{Asked, Event, OpKind, OpOutcome};
use crate::run::replay::Decision;
use crate::run::state::Blocked;
use crate::time::Times;
use crate::tool::{ToolError, ToolResult, from_output};

/// Something to wait for that is not part of a body yet, for [`Ctx::first`].
#[must_use = "this waits for nothing until it is given to `ctx.first(…)` and that is awaited"]
pub struct Park<T> {
    pub(super) plan: ParkPlan,
    pub(super) output: PhantomData<fn() -> T>,
}

/// An answer from outside, by reply key; see [`Ctx::wait`].
pub fn wait<T>(name: impl Into<Arc<str>>) -> Park<T> {
    let name: Arc<str> = name.into();
    let on = Blocked::Input { name: name.clone(), at: None };
    Park::new(OpKind::Wait, name, on)
}

/// A time; see [`Ctx::sleep`].
pub fn sleep(duration: Duration) -> Park<()> {
    Park::new(OpKind::Sleep, "".into(), Blocked::Time).within(duration)
}

/// A signal; see [`Ctx::receive`].
pub fn receive<T>(name: impl Into<Arc<str>>) -> Park<T> {
    let name: Arc<str> = name.into();
    Park::new(OpKind::Receive, name.clone(), Blocked::Signal { name })
}

impl<T> Park<T> {
    pub(super) fn new(kind: OpKind, name: Arc<str>, on: Blocked) -> Self {
        Self { plan: ParkPlan::new(kind, name, on), output: PhantomData }
    }

    /// Stops waiting after this time, with a `timed_out` error. The time counts from when the wait began, even across
    /// restarts of the process.
    pub fn within(mut self, time: Duration) -> Self {
        self.plan.within = Some(time);
        self
    }
}

impl<T: DeserializeOwned + 'static> Park<T> {
    /// What to wait for, with a check that an answer decodes to `T`. Signals and the outcomes of runs are checked
    /// before they are sent.
    pub(super) fn plan(self) -> ParkPlan {
        let fits: AnswerCheck = |output| from_output::<T>(output).map(drop).map_err(|problem| problem.to_string());
        let asks = matches!(self.plan.kind, OpKind::Wait | OpKind::Answer);
        ParkPlan { fits: asks.then_some(fits), ..self.plan }
    }
}

/// A park of a context. Await it.
#[must_use = "this waits for nothing until it is awaited: write `.await?`"]
pub struct CtxPark<'c, T> {
    ctx: &'c mut Ctx,
    state: ParkState<T>,
}

enum ParkState<T> {
    Refused(ToolError),
    Built(Park<T>),
    Started(Parking, OpGuard),
    Over,
}

impl<'c, T> CtxPark<'c, T> {
    pub(super) fn new(ctx: &'c mut Ctx, park: Park<T>) -> Self {
        Self { ctx, state: ParkState::Built(park) }
    }

    /// A park that is refused with this error.
    pub(super) fn refused(ctx: &'c mut Ctx, error: ToolError) -> Self {
        Self { ctx, state: ParkState::Refused(error) }
    }

    /// Stops waiting after this time, with a `timed_out` error. The time counts from when the wait began, even across
    /// restarts of the process.
    pub fn within(self, time: Duration) -> Self {
        self.with_plan(|plan| plan.within = Some(time))
    }

    pub(super) fn with_plan(mut self, change: impl FnOnce(&mut ParkPlan)) -> Self {
        if let ParkState::Built(park) = &mut self.state {
            change(&mut park.plan);
        }
        self
    }
}

// Nothing in it is pinned in place.
impl<T> Unpin for CtxPark<'_, T> {}

impl<T: DeserializeOwned + 'static> Future for CtxPark<'_, T> {
    type Output = ToolResult<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let ParkState::Built(_) = this.state
            && let ParkState::Built(park) = std::mem::replace(&mut this.state, ParkState::Over)
        {
            let plan = this.ctx.checked(park.plan());
            let plan = this.ctx.placed(plan, None);
            let (path, guard) = this.ctx.next(plan.kind, plan.name.clone());
            this.state = ParkState::Started(Parking::new(this.ctx.run.clone(), path, plan), guard);
        }
        if let ParkState::Refused(error) = &this.state {
            return Poll::Ready(Err(error.clone()));
        }
        let ParkState::Started(parking, guard) = &mut this.state else { return Poll::Pending };
        let outcome = std::task::ready!(parking.poll(cx, |_, _| {}));
        guard.over();
        let path = parking.path.clone();
        this.state = ParkState::Over;
        match this.ctx.answer_at(&path, &outcome) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

/// A wait whose key is handed out before it is awaited; see [`Ctx::open_wait`].
pub struct OpenWait<T> {
    /// Where the key was made.
    made_at: Path,
    /// The operation that opened it.
    opened: Path,
    name: Arc<str>,
    key: String,
    output: PhantomData<fn() -> T>,
}

impl<T> OpenWait<T> {
    /// The key to hand out. The answer is given with it through `Windlass::resolve`.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Waits for the answer as part of a [`Ctx::first`]. Losing does not revoke the key.
    pub fn park(&self) -> Park<T> {
        let on = Blocked::Input { name: self.name.clone(), at: Some(self.made_at.clone()) };
        let mut park = Park::new(OpKind::Answer, self.made_at.to_string().into(), on);
        park.plan.opened = Some(self.opened.clone());
        park
    }
}

impl Ctx {
    /// Waits for an answer from outside, given by the reply key that the inbox shows. If the body itself hands out the
    /// key, see [`open_wait`](Ctx::open_wait). Meanwhile the run costs only a row in the store. Returns the value; the
    /// answer's own error (`failed`, with its code); `timed_out`; or `cancelled`.
    ///
    /// The answer is not checked when it is given: one that is not a `T` fails the wait. A body that must not fail then
    /// waits for a [`Value`](serde_json::Value), checks it, and asks again under another name.
    ///
    /// In one body, the same name is the same event. Once it is answered, with a value or an error, every further wait
    /// for the name returns that answer at once. A wait that ended without an answer (it timed out, lost a race, or was
    /// cancelled with the run) can be asked for again: it waits under the same key, with a time limit of its own. A body
    /// that waits for several events needs a name for each (`ctx.wait(format!("page {n}"))`), or
    /// [receives](Ctx::receive) signals.
    ///
    /// Dropping it after its first poll holds the run.
    pub fn wait<T: DeserializeOwned + 'static>(&mut self, name: impl Into<Arc<str>>) -> CtxPark<'_, T> {
        CtxPark::new(self, wait(name))
    }

    /// Sleeps. The time is durable: a restart does not start it again.
    pub fn sleep(&mut self, duration: Duration) -> CtxPark<'_, ()> {
        CtxPark::new(self, sleep(duration))
    }

    /// Waits for a signal of this name. The Nth receive gets the Nth signal. The tool of the run declares its signals:
    /// `#[tool(signals(approve = Decision))]`, or [`Tool::signal`](crate::tool::Tool::signal). A receive of another one
    /// fails at once, because no such signal can be sent to the run.
    pub fn receive<T: DeserializeOwned + 'static>(&mut self, name: impl Into<Arc<str>>) -> CtxPark<'_, T> {
        CtxPark::new(self, receive(name))
    }

    /// The plan, refused if it waits for a signal that cannot be sent to this run.
    pub(super) fn checked(&self, plan: ParkPlan) -> ParkPlan {
        let never = match (plan.kind, &self.scope.root) {
            (OpKind::Receive, Some(tool)) => tool.channels().refuse_receive(&tool.spec().name, &plan.name),
            _ => None,
        };
        ParkPlan { never, ..plan }
    }

    /// The plan of a wait at the next path, or at `branch` below it: the first wait for a name makes the event's key,
    /// and later ones of this body use it.
    pub(super) fn placed(&mut self, plan: ParkPlan, branch: Option<u32>) -> ParkPlan {
        if plan.kind != OpKind::Wait {
            return plan;
        }
        let next = self.path.child(self.frame.next.load(Ordering::Acquire));
        let path = branch.map_or_else(|| next.clone(), |branch| next.child(branch));
        match self.made_at(&plan.name, &path) {
            Some(made_at) => plan.again(&made_at),
            None => plan,
        }
    }

    /// Where the key of this event was made, if that is not `path`, where the body waits for it now.
    fn made_at(&mut self, name: &Arc<str>, path: &Path) -> Option<Path> {
        let Some((_, made_at)) = self.events.iter_mut().find(|(event, _)| event == name) else {
            self.events.push((name.clone(), Some(path.clone())));
            return None;
        };
        // Older journals have a key for each wait. Such a body continues like that.
        if self.run.recorded_op(path, |op| op.asked.kind == OpKind::Wait).unwrap_or(false) {
            *made_at = None;
        }
        made_at.clone()
    }

    /// Opens a wait and returns its key, to be handed out by a step or a call. An answer that arrives before it is
    /// awaited is kept. Await it with [`answer`](Ctx::answer), as often as needed. Another wait for the same name, opened
    /// or not, has the same key and the same answer; see [`wait`](Ctx::wait).
    pub fn open_wait<T>(&mut self, name: impl Into<Arc<str>>) -> OpenWait<T> {
        let name: Arc<str> = name.into();
        let on = Blocked::Input { name: name.clone(), at: None };
        let plan = self.placed(ParkPlan::new(OpKind::Wait, name.clone(), on), None);
        let (path, mut guard) = self.next(plan.kind, plan.name.clone());
        guard.over();
        let made_at = plan.on.made_at().unwrap_or(&path).clone();
        let asked = plan.asked();
        match self.run.with(|machine| machine.ask(&path, &asked)) {
            Decision::Perform { .. } => self.record_open(&path, &made_at, plan.on, asked),
            Decision::Answer { result, .. } => self.run.with(|machine| machine.keep_answer(made_at.clone(), result)),
            // Still open, or held by the machine. It is listed at the operation that waits for its answer.
            _ => self.run.with(|machine| machine.unpark(&path)),
        }
        // A fork that has passed this wait handed out its original's key; its own is in the inbox.
        let (run, generation) = self.identity();
        let key = self.run.kernel.reach.signer.sign(run, generation, &made_at);
        OpenWait { made_at, opened: path, name, key, output: PhantomData }
    }

    /// Records that a wait is open, or answered if its event is.
    fn record_open(&self, path: &Path, made_at: &Path, on: Blocked, asked: Asked) {
        let at = self.run.now();
        let answer = self.run.with(|machine| machine.kept_answer(made_at).cloned());
        let event = match answer {
            Some(result) => finished(path, &OpOutcome { result, at, times: Times::default() }).event,
            None => Event::Parked { on, until: None, attempt: 0 },
        };
        self.run.append(path, at, Some(asked), event);
    }

    /// Waits for the answer to an open wait. Once given, the answer can be awaited again.
    pub fn answer<'c, T>(&'c mut self, open: &'c mut OpenWait<T>) -> Answer<'c, T> {
        Answer { ctx: self, open, within: None }
    }
}

/// The answer to an open wait. Await it.
#[must_use = "this waits for nothing until it is awaited: write `.await?`"]
pub struct Answer<'c, T> {
    ctx: &'c mut Ctx,
    open: &'c mut OpenWait<T>,
    within: Option<Duration>,
}

impl<T> Answer<'_, T> {
    /// Stops waiting after this time, with a `timed_out` error. The wait stays open and can be awaited again.
    pub fn within(mut self, time: Duration) -> Self {
        self.within = Some(time);
        self
    }
}

impl<'c, T: DeserializeOwned + Send + 'static> IntoFuture for Answer<'c, T> {
    type Output = ToolResult<T>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { ctx, open, within } = self;
            let mut plan = open.park().plan();
            plan.within = within;
            let (path, mut guard) = ctx.next(plan.kind, plan.name.clone());
            let mut parking = Parking::new(ctx.run.clone(), path.clone(), plan);
            let outcome = std::future::poll_fn(|cx| parking.poll(cx, |_, _| {})).await;
            guard.over();
            match ctx.answer_at(&path, &outcome) {
                Some(result) => result,
                None => std::future::pending().await,
            }
        })
    }
}
