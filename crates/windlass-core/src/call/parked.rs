//! What of a call's life is spent waiting: for the next attempt, or for an answer from outside.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::execute::{Execution, Flow, Phase, Source};
use super::queue::Stage;
use super::wait::{Sleeper, Wait, Woken, revoked};
use crate::run::parks::Answer;
use crate::run::record::Event;
use crate::run::state::{Blocked, Park};
use crate::tool::{Later, ToolError};

impl<'a, S: Source<'a>> Execution<'a, S> {
    /// Whether all it does is wait for time, for the mailbox or for a key.
    pub(super) fn is_parked(&self) -> bool {
        match &self.phase {
            Phase::Delay(_) | Phase::Parked(_) => true,
            Phase::Doubt(doubting) => doubting.is_asking(),
            Phase::Admit(_) => self.queue.awaited_key().is_some(),
            _ => false,
        }
    }

    pub(super) fn delay(&mut self, cx: &mut Context<'_>, mut wait: Box<Wait>) -> Flow {
        match self.poll_wait(cx, &mut wait) {
            Poll::Pending => self.stay(Phase::Delay(wait)),
            Poll::Ready(Woken::Stopped(error)) => self.finish(Err(error)),
            Poll::Ready(_) => self.go(Phase::Admit(Stage::first())),
        }
    }

    pub(crate) fn poll_wait(&mut self, cx: &mut Context<'_>, wait: &mut Wait) -> Poll<Woken> {
        let (run, path, op) = (&self.run, &self.op.path, &self.op);
        let operation = || op.describe();
        let who = Sleeper { run, path, operation: &operation, heeds_cancel: self.heeds_cancel };
        wait.poll(cx, &mut self.registration, &who, |_, woken| woken)
    }

    /// The attempt said that its outcome comes later.
    pub(super) fn park(&mut self, later: Later) -> Flow {
        let now = self.run.now();
        let asked_for = later.within.map(|within| now + within);
        let until = asked_for.into_iter().chain(self.clock.deadline).min();
        let on = Blocked::Input { name: self.op.name.clone(), at: None };
        let event = Event::Parked { on: on.clone(), until, attempt: self.attempt };
        let (path, operation) = (self.op.path.clone(), self.op.describe());
        let wait = Wait::begin(&self.run, Park { path, operation, on, since: now, until });
        self.append(event);
        // What was begun under the key is not over: it ends with the answer.
        self.queue.release_but_key();
        if let Some(barrier) = &self.queue.barrier {
            barrier.stands_aside();
        }
        self.go(Phase::Parked(Box::new(wait)))
    }

    pub(super) fn parked(&mut self, cx: &mut Context<'_>, mut wait: Box<Wait>) -> Flow {
        // After a crash the place that was kept for it is taken up. Its answer needs no key, so nothing waits for it here.
        if let Err(cycle) = self.queue.poll(cx, Stage::Key, (&self.run, &self.op.path), &self.rules.lane) {
            tracing::debug!(run = %self.run.id, path = %self.op.path, "pending without its key: {cycle}");
        }
        let result = match self.poll_wait(cx, &mut wait) {
            Poll::Pending => return self.stay(Phase::Parked(wait)),
            Poll::Ready(Woken::Answer(Answer::Result(result))) => result,
            Poll::Ready(Woken::Answer(_)) => return self.go(Phase::Parked(wait)),
            Poll::Ready(Woken::Stopped(error)) => return self.finish(Err(error)),
            Poll::Ready(Woken::Revoked(reason)) => {
                let (error, settled) = revoked(&reason);
                return self.finish_at(self.run.kernel.env.clock.ticks(), Err(error), Some(settled));
            }
            Poll::Ready(Woken::Expired) => {
                let message = "whoever was to answer the call did not do so in time".to_owned();
                return self.finish(Err(ToolError::TimedOut { message }));
            }
        };
        self.finish(result.map(Arc::unwrap_or_clone).map_err(Arc::unwrap_or_clone))
    }
}
