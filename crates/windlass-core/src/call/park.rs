//! Operations that are parks and nothing else: waits, sleeps, receives, joins.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::wait::{Sleeper, Wait, Woken, revoked};
use crate::id::RunId;
use crate::path::Path;
use crate::run::machine::Machine;
use crate::run::parks::Answer;
use crate::run::record::{Asked, Event, Finished, OpKind, Record, Recorded, Settled, Told};
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
    /// Of which run's handle it was made.
    pub(crate) child: Option<Child>,
    /// Whether the body can take an answer from outside, which nobody checked before.
    pub(crate) fits: Option<Fits>,
}

/// What a handle says of the run it stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Child {
    pub(crate) run: RunId,
    pub(crate) parent: RunId,
    /// Whether it is a turn of the session both belong to.
    pub(crate) turn: bool,
}

/// Says why a body cannot take an answer.
pub(crate) type Fits = fn(&Output) -> Result<(), String>;

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

/// A park at its place in a run.
pub(crate) struct Parking {
    run: Arc<Run>,
    pub(crate) path: Path,
    plan: ParkPlan,
    heeds_cancel: bool,
    registration: Registration,
    phase: Phase,
}

enum Phase {
    Ask,
    Waiting(Wait),
    /// Nobody will ever answer.
    Refused(Asked),
    Over,
}

impl Parking {
    pub(crate) fn new(run: Arc<Run>, path: Path, plan: ParkPlan) -> Self {
        let heeds_cancel = run.heeds_cancel();
        Self { run, path, plan, heeds_cancel, registration: Registration::default(), phase: Phase::Ask }
    }

    /// `also` may add records to the one that ends the park; they are durable together or not at all.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, also: impl FnOnce(&mut Machine, &Told)) -> Poll<Told> {
        if self.run.is_stopped() {
            return Poll::Pending;
        }
        if let Phase::Ask = self.phase
            && let Some(told) = self.ask()
        {
            return Poll::Ready(told);
        }
        if let Phase::Refused(asked) = &self.phase {
            let told = self.refusal();
            let record = Record { asked: Some(asked.clone()), ..finished(&self.path, &told) };
            self.run.with(|machine| {
                machine.append(record);
                also(machine, &told);
            });
            self.phase = Phase::Over;
            return Poll::Ready(told);
        }
        if let Some(result) = self.answered_before() {
            let told = Told { result, at: self.run.now(), times: Times::default() };
            self.run.with(|machine| {
                machine.append(finished(&self.path, &told));
                also(machine, &told);
            });
            self.phase = Phase::Over;
            return Poll::Ready(told);
        }
        let Phase::Waiting(wait) = &mut self.phase else { return Poll::Pending };
        let (run, path, plan) = (&self.run, &self.path, &self.plan);
        let operation = || plan.asked().to_string();
        let who = Sleeper { run, path, operation: &operation, heeds_cancel: self.heeds_cancel };
        let ended = wait.poll(cx, &mut self.registration, &who, |machine, woken| {
            let expired = matches!(woken, Woken::Expired);
            let (result, settled) = outcome(plan, woken);
            let told = Told { result, at: run.now(), times: Times::default() };
            machine.append(settled_by(settled.clone(), finished(path, &told)));
            // The open wait ends with the operation that took its answer, unless that merely ran out of patience.
            if let (Some(open), false) = (plan.open(), expired) {
                machine.append(settled_by(settled, finished(open, &told)));
                machine.answered_open(open.clone(), told.result.clone());
            }
            also(machine, &told);
            told
        });
        match ended {
            Poll::Ready(told) => {
                self.phase = Phase::Over;
                Poll::Ready(told)
            }
            Poll::Pending => {
                self.run.pump();
                Poll::Pending
            }
        }
    }

    /// What the open wait it waits for came to, by another operation of this body.
    fn answered_before(&self) -> Option<Recorded> {
        let (Phase::Waiting(_), Some(open)) = (&self.phase, self.plan.open()) else { return None };
        self.run.with(|machine| machine.open_answer(open).cloned())
    }

    /// What the journal says it came to.
    pub(crate) fn recorded(&mut self) -> Option<Told> {
        self.ask()
    }

    /// The record of a park that lost and whose key is void from now on.
    pub(crate) fn revoked(&self, at: Timestamp) -> Option<Record> {
        let (error, settled) = revoked("another branch of `first` came first");
        let told = Told { result: Err(Arc::new(error)), at, times: Times::default() };
        (self.plan.kind == OpKind::Wait).then(|| settled_by(Some(settled), finished(&self.path, &told)))
    }

    /// An answer, or the next phase.
    fn ask(&mut self) -> Option<Told> {
        self.phase = Phase::Over;
        let (path, asked) = (&self.path, self.plan.asked());
        let (past, decision) = self.run.with(|machine| machine.ask_past(path, &asked));
        let now = self.run.now();
        let (on, until, since) = match decision {
            Decision::Answer { result, at } => {
                return Some(Told { result, at, times: Times::default() });
            }
            Decision::Perform { .. } if self.is_of_original() => {
                self.phase = Phase::Refused(asked);
                return None;
            }
            Decision::Perform { .. } => {
                let until = self.plan.within.map(|within| now + within);
                let on = self.plan.on.clone();
                let event = Event::Parked { on: on.clone(), until, attempt: 0 };
                let park = Park { path: path.clone(), operation: asked.to_string(), on, since: now, until };
                let wait = Wait::begin(&self.run, park);
                self.run.append(path, now, Some(asked), event);
                self.phase = Phase::Waiting(wait);
                return None;
            }
            Decision::Park { on, until, .. } => (on, until, past.map_or(now, |past| past.since)),
            // Held by the machine, or left alone by it.
            Decision::Diverged(_) => return None,
            Decision::Checked(left) if matches!(*left, Decision::Perform { .. } | Decision::Park { .. }) => {
                return None;
            }
            _ => {
                let recorded = "an operation of the same name that is not a park";
                self.run.hold(Hold::changed_body(path, recorded, &asked.to_string()));
                return None;
            }
        };
        self.phase = Phase::Waiting(Wait::new(on, until, since));
        None
    }

    /// Whether it waits for a run that tells only this one's original how it ends.
    fn is_of_original(&self) -> bool {
        matches!(self.plan.on, Blocked::Child { run } if self.run.origins.have_child(run))
    }

    fn refusal(&self) -> Told {
        let reason = format!(
            "run {} was spawned before this run was forked, and only its parent can wait for it; fork before the spawn",
            self.plan.name
        );
        Told { result: Err(Arc::new(ToolError::failed(reason))), at: self.run.now(), times: Times::default() }
    }
}

pub(crate) fn finished(path: &Path, told: &Told) -> Record {
    let result = told.result.clone();
    let finished = Finished { result, told: None, attempts: 1, times: told.times, settled: None };
    Record { path: path.clone(), at: told.at, asked: None, event: Event::Finished(finished) }
}

/// The same, where the record names what ended it instead of an answer.
fn settled_by(by: Option<Settled>, mut record: Record) -> Record {
    if let Event::Finished(finished) = &mut record.event {
        finished.settled = by.map(Box::new);
    }
    record
}

fn outcome(plan: &ParkPlan, woken: Woken) -> (Recorded, Option<Settled>) {
    let result = match woken {
        Woken::Answer(Answer::Result(Ok(output))) => match plan.fits.map_or(Ok(()), |fits| fits(&output)) {
            Ok(()) => Ok(output),
            // Not a reason to hold the run: whoever answers does not know what the body can take.
            Err(problem) => {
                let message = format!("the answer to {} is not what was asked for: {problem}", plan.asked());
                Err(Arc::new(ToolError::rejected("bad_answer", message)))
            }
        },
        Woken::Answer(Answer::Result(Err(error))) => Err(error),
        Woken::Answer(_) => Err(Arc::new(ToolError::internal("a park got an answer of another kind"))),
        Woken::Stopped(error) => Err(Arc::new(error)),
        Woken::Revoked(reason) => {
            let (error, settled) = revoked(&reason);
            return (Err(Arc::new(error)), Some(settled));
        }
        Woken::Expired if plan.kind == OpKind::Sleep => Ok(Arc::new(Output::default())),
        Woken::Expired => {
            let within = plan.within.unwrap_or_default();
            let message = format!("{}: nothing came within {within:?}", plan.asked());
            Err(Arc::new(ToolError::TimedOut { message }))
        }
    };
    (result, None)
}
