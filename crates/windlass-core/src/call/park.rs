//! Operations that only park: waits, sleeps, receives, joins.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::await_end::EndWait;
use super::await_run::RunWatch;
use super::wait::{ParkWait, ParkedOp, WakeCause, revoked};
use crate::id::RunId;
use crate::path::Path;
use crate::run::machine::Machine;
use crate::run::parks::ParkAnswer;
use crate::run::record::{Asked, Event, Finished, OpKind, OpOutcome, Record, Recorded, Settled};
use crate::run::replay::Decision;
use crate::run::state::{Blocked, Hold, Park};
use crate::run::{Registration, Run};
use crate::time::{Times, Timestamp};
use crate::tool::{Effect, Output, ToolError};

/// What to wait for.
#[derive(Clone, Debug)]
pub(crate) struct ParkPlan {
    pub(crate) kind: OpKind,
    pub(crate) name: Arc<str>,
    pub(crate) on: Blocked,
    pub(crate) within: Option<Duration>,
    /// The run whose handle it was made from.
    pub(crate) child: Option<ChildRef>,
    /// The queues of the keys that the bodies around it hold, if only the end of that run can end it.
    pub(crate) held: Option<Vec<Arc<str>>>,
    /// Checks whether the body can decode an answer from outside, which was not checked before.
    pub(crate) fits: Option<AnswerCheck>,
    /// Why the answer can never come, if that is known.
    pub(crate) never: Option<ToolError>,
    /// The operation that opened the wait, if that is another one. It ends with this one.
    pub(crate) opened: Option<Path>,
    /// Whether a cancellation of this run is passed on to the awaited run, whose end is awaited all the same.
    pub(crate) cancels: bool,
}

/// What a handle says about its run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildRef {
    pub(crate) run: RunId,
    /// The run that spawned it, if the handle comes from there.
    pub(crate) parent: Option<RunId>,
    /// Whether it is a turn of the session both belong to.
    pub(crate) turn: bool,
}

/// Returns why a body cannot decode an answer.
pub(crate) type AnswerCheck = fn(&Output) -> Result<(), String>;

impl ParkPlan {
    pub(crate) fn new(kind: OpKind, name: Arc<str>, on: Blocked) -> Self {
        Self {
            kind,
            name,
            on,
            within: None,
            child: None,
            held: None,
            fits: None,
            never: None,
            opened: None,
            cancels: false,
        }
    }

    /// The same wait for an event that an earlier operation of the body waited for: `made_at` made its key.
    pub(crate) fn again(self, made_at: &Path) -> Self {
        let on = Blocked::Input { name: self.event().clone(), at: Some(made_at.clone()) };
        Self { kind: OpKind::Answer, name: made_at.to_string().into(), on, ..self }
    }

    /// The path where the key was made that answers the wait at `path`, if it is answered by one.
    fn made_at<'p>(&'p self, path: &'p Path) -> Option<&'p Path> {
        match &self.on {
            Blocked::Input { at, .. } => Some(at.as_ref().unwrap_or(path)),
            _ => None,
        }
    }

    /// Whether losing a race revokes its key. A key that was handed out stays valid.
    fn is_revoked_by_loss(&self) -> bool {
        self.kind == OpKind::Wait || (self.kind == OpKind::Answer && self.opened.is_none())
    }

    /// The name of the event it waits for.
    fn event(&self) -> &Arc<str> {
        match &self.on {
            Blocked::Input { name, .. } => name,
            _ => &self.name,
        }
    }

    pub(crate) fn asked(&self) -> Asked {
        let asked = Asked::operation(self.kind, self.name.clone(), None, Effect::Readonly);
        let called = (self.kind == OpKind::Answer && self.opened.is_none()).then(|| self.event().clone());
        Asked { called, ..asked }
    }
}

/// A park at its path in a run.
pub(crate) struct Parking {
    run: Arc<Run>,
    pub(crate) path: Path,
    plan: ParkPlan,
    heeds_cancel: bool,
    registration: Registration,
    phase: ParkPhase,
    /// Its registration among the waits that are searched for cycles.
    awaits: Option<EndWait>,
    /// Finds out when a run ends that does not report its end to this one.
    watch: Option<Box<RunWatch>>,
    /// Whether the cancellation of this run was passed on.
    has_cancelled: bool,
}

enum ParkPhase {
    Ask,
    /// Asks whether it may wait. The record that it waits is not written yet, if there is one.
    MayWait(Option<Asked>, Timestamp),
    Waiting(ParkWait),
    /// Its result is known without waiting. Its first record is still to be written, if there is one.
    Known(Option<Asked>, Recorded),
    Over,
}

impl Parking {
    pub(crate) fn new(run: Arc<Run>, path: Path, plan: ParkPlan) -> Self {
        let heeds_cancel = run.heeds_cancel(&path);
        Self {
            run,
            path,
            plan,
            heeds_cancel,
            registration: Registration::default(),
            phase: ParkPhase::Ask,
            awaits: None,
            watch: None,
            has_cancelled: false,
        }
    }

    /// `also` may add records to the one that ends the park. They become durable together or not at all.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        also: impl FnOnce(&mut Machine, &OpOutcome),
    ) -> Poll<OpOutcome> {
        if self.run.is_stopped() {
            return Poll::Pending;
        }
        if let ParkPhase::Ask = self.phase
            && let Some(outcome) = self.ask()
        {
            return Poll::Ready(outcome);
        }
        if let Some(watch) = &mut self.watch {
            match watch.poll(cx) {
                Poll::Pending => {
                    self.run.pump();
                    return Poll::Pending;
                }
                Poll::Ready(Some(result)) => return Poll::Ready(self.end(result, also)),
                Poll::Ready(None) => {}
            }
        }
        if let ParkPhase::MayWait(..) = self.phase
            && self.poll_may_wait(cx).is_pending()
        {
            self.run.pump();
            return Poll::Pending;
        }
        if let ParkPhase::Known(_, result) = &self.phase {
            let result = result.clone();
            return Poll::Ready(self.end(result, also));
        }
        self.pass_cancellation_on();
        let ParkPhase::Waiting(wait) = &mut self.phase else { return Poll::Pending };
        let (run, path, plan) = (&self.run, &self.path, &self.plan);
        let operation = || plan.asked().to_string();
        let heeds_cancel = self.heeds_cancel && !plan.cancels;
        let parked = ParkedOp { run, path, operation: &operation, heeds_cancel };
        let ended = wait.poll(cx, &mut self.registration, &parked, |machine, cause| {
            let expired = matches!(cause, WakeCause::Expired);
            let is_answer = matches!(cause, WakeCause::Answer(_));
            let (result, settled) = park_result(plan, cause);
            let outcome = OpOutcome { result, at: run.now(), times: Times::default() };
            machine.append(settled_by(settled.clone(), finished(path, &outcome)));
            // The open wait ends with the operation that took its answer, unless that operation only timed out.
            if let (Some(opened), false) = (&plan.opened, expired) {
                machine.append(settled_by(settled, finished(opened, &outcome)));
            }
            // A wait that ended without an answer can be asked for again, under the same key.
            if let (Some(made_at), true) = (plan.made_at(path), is_answer || (plan.opened.is_some() && !expired)) {
                machine.keep_answer(made_at.clone(), outcome.result.clone());
            }
            also(machine, &outcome);
            outcome
        });
        match ended {
            Poll::Ready(outcome) => {
                self.phase = ParkPhase::Over;
                Poll::Ready(outcome)
            }
            Poll::Pending => {
                self.run.pump();
                Poll::Pending
            }
        }
    }

    /// Ends it with a result that it did not get from the mailbox.
    fn end(&mut self, result: Recorded, also: impl FnOnce(&mut Machine, &OpOutcome)) -> OpOutcome {
        let asked = match std::mem::replace(&mut self.phase, ParkPhase::Over) {
            ParkPhase::Known(asked, _) | ParkPhase::MayWait(asked, _) => asked,
            _ => None,
        };
        let awaited = self.watch.take().and(self.plan.child);
        let outcome = OpOutcome { result, at: self.run.now(), times: Times::default() };
        let record = Record { asked, ..finished(&self.path, &outcome) };
        self.run.with(|machine| {
            machine.unpark(&self.path);
            if let Some(child) = awaited {
                machine.join(&self.path, child.run, &outcome.result);
            }
            machine.append(record);
            also(machine, &outcome);
        });
        self.run.pump_if_due();
        outcome
    }

    /// Cancels the awaited run together with this one, if that was asked for.
    fn pass_cancellation_on(&mut self) {
        let Some(child) = self.plan.child.filter(|_| self.plan.cancels && !self.has_cancelled) else { return };
        self.has_cancelled = self.run.with(|machine| machine.pass_cancellation_on(child.run));
        if self.has_cancelled {
            self.run.pump();
        }
    }

    /// The outcome according to the journal.
    pub(crate) fn recorded(&mut self) -> Option<OpOutcome> {
        self.ask()
    }

    /// The record of a park that lost a race and whose key is void from now on.
    pub(crate) fn revoked(&self, at: Timestamp) -> Option<Record> {
        let (error, settled) = revoked("another branch of `first` came first");
        let outcome = OpOutcome { result: Err(Arc::new(error)), at, times: Times::default() };
        self.plan.is_revoked_by_loss().then(|| settled_by(Some(settled), finished(&self.path, &outcome)))
    }

    /// Returns the recorded outcome, or sets the next phase.
    fn ask(&mut self) -> Option<OpOutcome> {
        self.phase = ParkPhase::Over;
        let (path, asked) = (&self.path, self.plan.asked());
        let (past, decision) = self.run.with(|machine| machine.ask_past(path, &asked));
        let now = self.run.now();
        let (on, until, since) = match decision {
            Decision::Answer { result, at } => {
                return Some(OpOutcome { result, at, times: Times::default() });
            }
            Decision::Perform { .. } => {
                self.begin(asked, now);
                return None;
            }
            Decision::Park { on, until, .. } => (on, until, past.map_or(now, |past| past.since)),
            // Held or skipped by the machine.
            Decision::Diverged(_) => return None,
            Decision::Skipped(left) if matches!(*left, Decision::Perform { .. } | Decision::Park { .. }) => {
                return None;
            }
            _ => {
                let recorded = "an operation of the same name that is not a park";
                self.run.hold(Hold::changed_body(path, recorded, &asked.to_string()));
                return None;
            }
        };
        if let Some(result) = self.known() {
            self.phase = ParkPhase::Known(None, result);
            return None;
        }
        self.watch = self.watch(true);
        self.awaits = if until.is_none() { EndWait::of(&self.run, path, &self.plan) } else { None };
        self.phase = match self.awaits {
            Some(_) => ParkPhase::MayWait(None, since),
            None => ParkPhase::Waiting(ParkWait::new(on, until, since)),
        };
        None
    }

    /// Sets the next phase of a wait without a record.
    fn begin(&mut self, asked: Asked, now: Timestamp) {
        let never = self.plan.never.take().map(|error| Err(Arc::new(error)));
        self.phase = match never.or_else(|| self.known()) {
            Some(result) => ParkPhase::Known(Some(asked), result),
            None => {
                self.watch = self.watch(false);
                self.awaits = EndWait::of(&self.run, &self.path, &self.plan);
                ParkPhase::MayWait(Some(asked), now)
            }
        };
    }

    /// The result that an earlier operation of this run received.
    fn known(&self) -> Option<Recorded> {
        let awaited = self.plan.child.map(|child| child.run);
        self.run.with(|machine| match (self.plan.made_at(&self.path), awaited) {
            (Some(made_at), _) => machine.kept_answer(made_at).cloned(),
            (None, Some(run)) => machine.outcome_of(run).cloned(),
            (None, None) => None,
        })
    }

    /// The watch for a run that does not report its end to this generation of this run. `was_found`: it existed when
    /// the wait began.
    fn watch(&self, was_found: bool) -> Option<Box<RunWatch>> {
        let child = self.plan.child?;
        let reports = child.parent == Some(self.run.id) && self.run.generation == 0;
        let is_blocking = self.plan.held.is_some() && self.plan.within.is_none();
        (!reports).then(|| Box::new(RunWatch::new(&self.run, child.run, is_blocking, was_found)))
    }

    /// Begins to wait, once that is allowed.
    fn poll_may_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let allowed = match &mut self.awaits {
            Some(awaits) => std::task::ready!(awaits.poll(cx)),
            None => Ok(()),
        };
        let ParkPhase::MayWait(asked, since) = std::mem::replace(&mut self.phase, ParkPhase::Over) else {
            return Poll::Ready(());
        };
        if let Err(cycle) = allowed {
            self.phase = ParkPhase::Known(asked, Err(Arc::new(ToolError::unavailable(cycle))));
            return Poll::Ready(());
        }
        let path = &self.path;
        let until = self.plan.within.map(|within| since + within);
        let on = self.plan.on.clone();
        let wait = match asked {
            Some(asked) => {
                let event = Event::Parked { on: on.clone(), until, attempt: 0 };
                let park = Park { path: path.clone(), operation: asked.to_string(), on, since, until };
                let wait = ParkWait::begin(&self.run, park);
                self.run.append(path, since, Some(asked), event);
                wait
            }
            // Only a wait without a deadline asks again.
            None => ParkWait::new(on, None, since),
        };
        self.phase = ParkPhase::Waiting(wait);
        Poll::Ready(())
    }
}

pub(crate) fn finished(path: &Path, outcome: &OpOutcome) -> Record {
    let result = outcome.result.clone();
    let finished = Finished { result, told: None, attempts: 1, times: outcome.times, settled: None };
    Record { path: path.clone(), at: outcome.at, asked: None, event: Event::Finished(finished) }
}

/// The same record, with what ended the park instead of an answer.
fn settled_by(by: Option<Settled>, mut record: Record) -> Record {
    if let Event::Finished(finished) = &mut record.event {
        finished.settled = by.map(Box::new);
    }
    record
}

fn park_result(plan: &ParkPlan, cause: WakeCause) -> (Recorded, Option<Settled>) {
    let result = match cause {
        WakeCause::Answer(ParkAnswer::Result(Ok(output))) => match plan.fits.map_or(Ok(()), |fits| fits(&output)) {
            Ok(()) => Ok(output),
            // Not a reason to hold the run: the answerer does not know which type the body expects.
            Err(problem) => {
                let message = format!("the answer to {} does not have the expected type: {problem}", plan.asked());
                Err(Arc::new(ToolError::rejected("bad_answer", message)))
            }
        },
        WakeCause::Answer(ParkAnswer::Result(Err(error))) => Err(error),
        WakeCause::Answer(_) => Err(Arc::new(ToolError::internal("a park got an answer of another kind"))),
        WakeCause::Stopped(error) => Err(Arc::new(error)),
        WakeCause::Revoked(reason) => {
            let (error, settled) = revoked(&reason);
            return (Err(Arc::new(error)), Some(settled));
        }
        WakeCause::Expired if plan.kind == OpKind::Sleep => Ok(Arc::new(Output::default())),
        WakeCause::Expired => {
            let within = plan.within.unwrap_or_default();
            let message = format!("{}: nothing arrived within {within:?}", plan.asked());
            Err(Arc::new(ToolError::TimedOut { message }))
        }
    };
    (result, None)
}
