//! Operations that only park: waits, sleeps, receives, joins.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::await_end::EndWait;
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
}

/// What a handle says about its run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildRef {
    pub(crate) run: RunId,
    pub(crate) parent: RunId,
    /// Whether it is a turn of the session both belong to.
    pub(crate) turn: bool,
}

/// Returns why a body cannot decode an answer.
pub(crate) type AnswerCheck = fn(&Output) -> Result<(), String>;

impl ParkPlan {
    /// The open wait whose answer it waits for.
    fn open(&self) -> Option<&Path> {
        match &self.on {
            Blocked::Input { at, .. } => at.as_ref(),
            _ => None,
        }
    }

    fn asked(&self) -> Asked {
        Asked::operation(self.kind, self.name.clone(), None, Effect::Readonly)
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
}

enum ParkPhase {
    Ask,
    /// Asks whether it may wait. The record that it waits is not written yet, if there is one.
    MayWait(Option<Asked>, Timestamp),
    Waiting(ParkWait),
    /// It will never be answered. Its first record is still to be written, if there is one.
    Refused(Option<Asked>, ToolError),
    Over,
}

impl Parking {
    pub(crate) fn new(run: Arc<Run>, path: Path, plan: ParkPlan) -> Self {
        let heeds_cancel = run.heeds_cancel();
        Self {
            run,
            path,
            plan,
            heeds_cancel,
            registration: Registration::default(),
            phase: ParkPhase::Ask,
            awaits: None,
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
        if let ParkPhase::MayWait(..) = self.phase
            && self.poll_may_wait(cx).is_pending()
        {
            self.run.pump();
            return Poll::Pending;
        }
        if let ParkPhase::Refused(asked, error) = &self.phase {
            let outcome =
                OpOutcome { result: Err(Arc::new(error.clone())), at: self.run.now(), times: Times::default() };
            let record = Record { asked: asked.clone(), ..finished(&self.path, &outcome) };
            self.run.with(|machine| {
                machine.append(record);
                also(machine, &outcome);
            });
            self.phase = ParkPhase::Over;
            return Poll::Ready(outcome);
        }
        if let Some(result) = self.answered_before() {
            let outcome = OpOutcome { result, at: self.run.now(), times: Times::default() };
            self.run.with(|machine| {
                machine.append(finished(&self.path, &outcome));
                also(machine, &outcome);
            });
            self.phase = ParkPhase::Over;
            return Poll::Ready(outcome);
        }
        let ParkPhase::Waiting(wait) = &mut self.phase else { return Poll::Pending };
        let (run, path, plan) = (&self.run, &self.path, &self.plan);
        let operation = || plan.asked().to_string();
        let parked = ParkedOp { run, path, operation: &operation, heeds_cancel: self.heeds_cancel };
        let ended = wait.poll(cx, &mut self.registration, &parked, |machine, cause| {
            let expired = matches!(cause, WakeCause::Expired);
            let (result, settled) = park_result(plan, cause);
            let outcome = OpOutcome { result, at: run.now(), times: Times::default() };
            machine.append(settled_by(settled.clone(), finished(path, &outcome)));
            // The open wait ends with the operation that took its answer, unless that operation only timed out.
            if let (Some(open), false) = (plan.open(), expired) {
                machine.append(settled_by(settled, finished(open, &outcome)));
                machine.answered_open(open.clone(), outcome.result.clone());
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

    /// The answer to the open wait, if another operation of this body got it.
    fn answered_before(&self) -> Option<Recorded> {
        let (ParkPhase::Waiting(_), Some(open)) = (&self.phase, self.plan.open()) else { return None };
        self.run.with(|machine| machine.open_answer(open).cloned())
    }

    /// The outcome according to the journal.
    pub(crate) fn recorded(&mut self) -> Option<OpOutcome> {
        self.ask()
    }

    /// The record of a park that lost a race and whose key is void from now on.
    pub(crate) fn revoked(&self, at: Timestamp) -> Option<Record> {
        let (error, settled) = revoked("another branch of `first` came first");
        let outcome = OpOutcome { result: Err(Arc::new(error)), at, times: Times::default() };
        (self.plan.kind == OpKind::Wait).then(|| settled_by(Some(settled), finished(&self.path, &outcome)))
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
            Decision::Perform { .. } if self.is_of_original() => {
                self.phase = ParkPhase::Refused(Some(asked), self.refusal());
                return None;
            }
            Decision::Perform { .. } if self.plan.never.is_some() => {
                let never = self.plan.never.take().map(|error| ParkPhase::Refused(Some(asked), error));
                self.phase = never.unwrap_or(ParkPhase::Over);
                return None;
            }
            Decision::Perform { .. } => {
                self.awaits = EndWait::of(&self.run, path, &self.plan);
                self.phase = ParkPhase::MayWait(Some(asked), now);
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
        self.awaits = if until.is_none() { EndWait::of(&self.run, path, &self.plan) } else { None };
        self.phase = match self.awaits {
            Some(_) => ParkPhase::MayWait(None, since),
            None => ParkPhase::Waiting(ParkWait::new(on, until, since)),
        };
        None
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
            self.phase = ParkPhase::Refused(asked, ToolError::unavailable(cycle));
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

    /// Whether it waits for a run that reports its end only to this run's original.
    fn is_of_original(&self) -> bool {
        matches!(self.plan.on, Blocked::Child { run } if self.run.origins.have_child(run))
    }

    fn refusal(&self) -> ToolError {
        let reason = format!(
            "run {} was spawned before this run was forked, and only its parent can wait for it; fork before the spawn",
            self.plan.name
        );
        ToolError::failed(reason)
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
