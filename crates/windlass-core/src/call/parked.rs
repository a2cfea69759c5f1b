//! The waiting phases of a call: for its turn, for the next attempt, or for an answer from outside.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::approve::refused_connection;
use super::connect::ConnectionCheck;
use super::execute::{AttemptSource, Execution, ExecutionPhase, Flow};
use super::key::waits_for_key;
use super::queue::AdmissionGoal;
use super::wait::{ParkWait, ParkedOp, WakeCause, revoked};
use crate::limits;
use crate::policy::Unattended;
use crate::run::parks::ParkAnswer;
use crate::run::record::Event;
use crate::run::state::{Blocked, Park};
use crate::store::Rejected;
use crate::time::Timestamp;
use crate::tool::narrate::{Phase, WaitReason};
use crate::tool::{LaterReply, ToolError};

impl<'a, S: AttemptSource<'a>> Execution<'a, S> {
    /// Whether it only waits for a time, for the mailbox or for a key.
    pub(super) fn is_parked(&self) -> bool {
        match &self.phase {
            ExecutionPhase::Delay(_) => true,
            ExecutionPhase::Parked(wait) => !wait.is_checking(),
            ExecutionPhase::Doubt(doubting) => doubting.is_asking(),
            ExecutionPhase::Admit(_) => self.queue.awaited_key().is_some(),
            _ => false,
        }
    }

    /// Waits for its turn until the deadline.
    pub(super) fn queued(&mut self, cx: &mut Context<'_>) -> Flow {
        if let Some(left) = self.left()
            && self.queue.is_overdue(cx, &*self.run.kernel.env.clock, left)
        {
            self.stop_waiting_for_key();
            return self.finish(Err(self.deadline_passed()));
        }
        self.registration.register(&self.run, cx);
        if let Some(error) = self.run.cancellation(&self.op.path, self.heeds_cancel) {
            self.stop_waiting_for_key();
            return self.finish(Err(error));
        }
        if let Some(key) = self.queue.awaited_key() {
            let park = waits_for_key(&self.run, &self.op, key, self.clock.deadline);
            self.run.with(|machine| machine.park(park));
            self.run.note_wait();
        }
        self.stay(ExecutionPhase::Admit(AdmissionGoal::Attempt))
    }

    pub(super) fn stop_waiting_for_key(&self) {
        if self.rules.lane.key.is_some() {
            self.run.with(|machine| machine.unpark(&self.op.path));
        }
    }

    pub(super) fn delay(&mut self, cx: &mut Context<'_>, mut wait: Box<ParkWait>) -> Flow {
        match self.poll_wait(cx, &mut wait) {
            Poll::Pending => self.stay(ExecutionPhase::Delay(wait)),
            Poll::Ready(WakeCause::Stopped(error)) => self.finish(Err(error)),
            Poll::Ready(_) => self.go(ExecutionPhase::Admit(AdmissionGoal::Attempt)),
        }
    }

    pub(crate) fn poll_wait(&mut self, cx: &mut Context<'_>, wait: &mut ParkWait) -> Poll<WakeCause> {
        let (run, path, op) = (&self.run, &self.op.path, &self.op);
        let operation = || op.describe();
        let parked = ParkedOp { run, path, operation: &operation, heeds_cancel: self.heeds_cancel };
        wait.poll(cx, &mut self.registration, &parked, |_, cause| cause)
    }

    /// Parks the call: the attempt returned that its outcome comes later.
    pub(super) fn park(&mut self, later: LaterReply) -> Flow {
        let now = self.run.now();
        let asked_for = later.within.map(|within| now + within);
        let until = asked_for.into_iter().chain(self.clock.deadline).min();
        self.park_on(Blocked::Input { name: self.op.name.clone(), at: None }, until)
    }

    /// Parks the call: the attempt did nothing, because it needs a connection to a provider. Once that is connected, it
    /// is attempted again, whatever its effect class is.
    pub(super) fn connect(&mut self, (started, ticks): (u64, u64), provider: String) -> Flow {
        let env = &self.run.kernel.env;
        let (within, unattended) = self.rules.asking.unwrap_or_else(|| {
            let within = env.policy.approval_within.unwrap_or(limits::APPROVAL_WITHIN);
            (within, env.policy.unattended.unwrap_or_default())
        });
        let denies = unattended == Unattended::Deny && !env.attended;
        let (provider, now): (Arc<str>, _) = (provider.into(), self.run.at(ticks));
        let used = self.connections.used.iter().rev().find(|(name, _)| *name == provider);
        let at_start = Rejected::SetBy(self.run.at(started));
        let rejected = used.map_or(at_start, |(_, revision)| Rejected::Revision(*revision));
        let refreshes = !std::mem::replace(&mut self.connections.had_refresh, true);
        let check = ConnectionCheck::first(&self.run, &provider, self.attempt, Some(rejected), refreshes);
        let after = self.run.with(|machine| machine.connected_at(&provider));
        let (on, until) = (Blocked::Connection { provider, after, why: None }, Some(now + within));
        self.append(Event::Parked { on: on.clone(), until, attempt: self.attempt });
        self.release_for_wait();
        self.run.note_wait();
        let wait = ParkWait::new(on, until, self.run.now()).checking(check.denying(denies));
        self.go(ExecutionPhase::Parked(Box::new(wait)))
    }

    /// Waits for what the call waited for when its run was last driven. A connection may be there by now.
    pub(super) fn park_again(&mut self, wait: ParkWait) -> Flow {
        let wait = match &wait.on {
            Blocked::Connection { provider, .. } => {
                let check = ConnectionCheck::first(&self.run, provider, self.attempt, None, true);
                wait.checking(check)
            }
            _ => wait,
        };
        self.go(ExecutionPhase::Parked(Box::new(wait)))
    }

    /// The operation is not finished, so its key is kept.
    fn release_for_wait(&mut self) {
        self.queue.release_but_key();
        if let Some(barrier) = &self.queue.barrier {
            barrier.release_later_calls();
        }
    }

    fn park_on(&mut self, on: Blocked, until: Option<Timestamp>) -> Flow {
        let now = self.run.now();
        if let Some(reason) = WaitReason::of(&on) {
            self.source.narrate(&self.run, &self.op.path, Phase::Waiting(reason));
        }
        let event = Event::Parked { on: on.clone(), until, attempt: self.attempt };
        let (path, operation) = (self.op.path.clone(), self.op.describe());
        let wait = ParkWait::begin(&self.run, Park { path, operation, on, since: now, until });
        self.append(event);
        self.release_for_wait();
        self.go(ExecutionPhase::Parked(Box::new(wait)))
    }

    pub(super) fn parked(&mut self, cx: &mut Context<'_>, mut wait: Box<ParkWait>) -> Flow {
        // After a crash it takes up the place that was kept for it. Its answer needs no key, so the key is not awaited
        // here.
        let place = (&self.run, &self.op.path, self.attempt);
        if let Err(cycle) = self.queue.poll(cx, AdmissionGoal::Key, place, &self.rules.lane) {
            tracing::debug!(run = %self.run.id, path = %self.op.path, "pending without its key: {cycle}");
        }
        let polled = self.poll_wait(cx, &mut wait);
        if wait.take_asked()
            && let Some(reason) = WaitReason::of(&wait.on)
        {
            self.source.narrate(&self.run, &self.op.path, Phase::Waiting(reason));
        }
        let result = match polled {
            Poll::Pending => return self.stay(ExecutionPhase::Parked(wait)),
            Poll::Ready(WakeCause::Answer(ParkAnswer::Result(result))) => result,
            Poll::Ready(WakeCause::Answer(ParkAnswer::Connected { refused: None, by_person })) => {
                self.connections.had_refresh &= !by_person;
                self.attempt += 1;
                // The time that a person took is not the call's own.
                self.set_deadline(self.run.now());
                return self.go(ExecutionPhase::Admit(AdmissionGoal::Attempt));
            }
            Poll::Ready(WakeCause::Answer(ParkAnswer::Connected { refused: Some(reason), .. })) => {
                let (error, settled) = refused_connection(&wait.on, reason);
                return self.finish_at(self.run.kernel.env.clock.ticks(), Err(error), Some(settled));
            }
            Poll::Ready(WakeCause::Answer(_)) => return self.go(ExecutionPhase::Parked(wait)),
            Poll::Ready(WakeCause::Stopped(error)) => return self.finish(Err(error)),
            Poll::Ready(WakeCause::Revoked(reason)) => {
                let (error, settled) = revoked(&reason);
                return self.finish_at(self.run.kernel.env.clock.ticks(), Err(error), Some(settled));
            }
            Poll::Ready(WakeCause::Expired) => {
                self.source.narrate(&self.run, &self.op.path, Phase::Failure);
                return self.finish(Err(match &wait.on {
                    Blocked::Connection { provider, .. } => ToolError::connection_required(&**provider),
                    _ => ToolError::TimedOut { message: "no answer to the call came in time".to_owned() },
                }));
            }
        };
        self.finish(result.map(Arc::unwrap_or_clone).map_err(Arc::unwrap_or_clone))
    }
}
