//! Operations that are parks and nothing else: waits, sleeps, receives, joins.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::execute::Told;
use super::wait::{Sleeper, Wait, Woken};
use crate::id::RunId;
use crate::path::Path;
use crate::run::machine::Machine;
use crate::run::parks::{Answer, OUTSIDE_TIMED_OUT};
use crate::run::record::{Asked, Event, Finished, OpKind, Record, Recorded};
use crate::run::replay::Decision;
use crate::run::state::{Blocked, Hold};
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
}

/// What a handle says of the run it stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Child {
    pub(crate) run: RunId,
    pub(crate) parent: RunId,
    /// Whether it is a turn of the session both belong to.
    pub(crate) turn: bool,
}

impl ParkPlan {
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
    expired: bool,
}

/// How a park ended.
pub(crate) struct Ended<'a> {
    pub(crate) told: &'a Told,
    /// Nothing came in time.
    pub(crate) expired: bool,
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
        Self { run, path, plan, heeds_cancel, registration: Registration::default(), phase: Phase::Ask, expired: false }
    }

    /// Whether it ended because nothing came in time.
    pub(crate) fn has_expired(&self) -> bool {
        self.expired
    }

    /// `also` may add records to the one that ends the park; they are durable together or not at all.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, also: impl FnOnce(&mut Machine, &Ended<'_>)) -> Poll<Told> {
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
                also(machine, &Ended { told: &told, expired: false });
            });
            self.phase = Phase::Over;
            return Poll::Ready(told);
        }
        let Phase::Waiting(wait) = &mut self.phase else { return Poll::Pending };
        let (run, path, plan) = (&self.run, &self.path, &self.plan);
        let operation = || plan.asked().to_string();
        let who = Sleeper { run, path, operation: &operation, heeds_cancel: self.heeds_cancel };
        let expired = &mut self.expired;
        let ended = wait.poll(cx, &mut self.registration, &who, |machine, woken| {
            *expired = matches!(woken, Woken::Expired);
            let told = Told { result: outcome(plan, woken), at: run.now(), times: Times::default() };
            machine.append(finished(path, &told));
            also(machine, &Ended { told: &told, expired: *expired });
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

    /// What the journal says it came to.
    pub(crate) fn recorded(&mut self) -> Option<Told> {
        self.ask()
    }

    /// Ends with an answer that is known already.
    pub(crate) fn known(&mut self, told: &Told) -> Told {
        if let Some(recorded) = self.ask() {
            return recorded;
        }
        self.phase = Phase::Over;
        let told = Told { at: self.run.now(), ..told.clone() };
        self.run.with(|machine| machine.append(finished(&self.path, &told)));
        told
    }

    /// The record of a park that lost and whose key is void from now on.
    pub(crate) fn revoked(&self, at: Timestamp) -> Option<Record> {
        let reason = "revoked: another branch of `first` came first".to_owned();
        let told = Told { result: Err(Arc::new(ToolError::Cancelled { reason })), at, times: Times::default() };
        (self.plan.kind == OpKind::Wait).then(|| finished(&self.path, &told))
    }

    /// An answer, or the next phase.
    fn ask(&mut self) -> Option<Told> {
        self.phase = Phase::Over;
        let (path, asked) = (&self.path, self.plan.asked());
        let (past, decision) = self.run.with(|machine| machine.ask_past(path, &asked));
        let now = self.run.now();
        let (on, until, since) = match decision {
            Decision::Answer { result, at } => {
                self.expired = matches!(&result, Err(error) if is_expiry(error));
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
                self.run.append(path, now, Some(asked), event);
                (on, until, now)
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

fn is_expiry(error: &ToolError) -> bool {
    matches!(error, ToolError::TimedOut { message } if message != OUTSIDE_TIMED_OUT)
}

pub(crate) fn finished(path: &Path, told: &Told) -> Record {
    let result = told.result.clone();
    let finished = Finished { result, told: None, attempts: 1, times: told.times, settled: None };
    Record { path: path.clone(), at: told.at, asked: None, event: Event::Finished(finished) }
}

fn outcome(plan: &ParkPlan, woken: Woken) -> Recorded {
    match woken {
        Woken::Answer(Answer::Result(result)) => result,
        Woken::Answer(_) => Err(Arc::new(ToolError::internal("a park got an answer of another kind"))),
        Woken::Stopped(error) => Err(Arc::new(error)),
        Woken::Expired if plan.kind == OpKind::Sleep => Ok(Arc::new(Output::default())),
        Woken::Expired => {
            let within = plan.within.unwrap_or_default();
            let message = format!("{}: nothing came within {within:?}", plan.asked());
            Err(Arc::new(ToolError::TimedOut { message }))
        }
    }
}
