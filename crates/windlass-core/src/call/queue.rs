//! What an attempt holds, and how it gets it.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::batch::Barrier;
use super::key::Key;
use super::rules::{Lane, Session};
use crate::admit::{Held, Permit, Turn};
use crate::path::Path;
use crate::run::Run;
use crate::time::Clock;

/// Where in the queue an attempt stands; always begins at the front, what it has it keeps.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    /// Everything an attempt needs.
    Attempt,
    /// The key alone: a doubt and a pending call keep it.
    Key,
}

impl Stage {
    pub(crate) fn first() -> Self {
        Self::Attempt
    }
}

/// What an operation holds while an attempt of it runs.
#[derive(Default)]
pub(crate) struct Queue {
    /// Keys held by the bodies around it.
    held: Option<Arc<Held>>,
    /// The batch it stands in, told when a doubt lets the calls after it go on.
    pub(crate) barrier: Option<Barrier>,
    turn: Option<Turn>,
    permit: Option<Permit>,
    /// What few attempts queue for; out of line, because every call has a queue.
    seldom: Option<Box<Seldom>>,
    waited: bool,
}

#[derive(Default)]
struct Seldom {
    key: Option<Key>,
    gate: Option<Option<Turn>>,
    pace: Option<Pace>,
    deadline: Option<BoxFuture<'static, ()>>,
}

/// The tool's rate.
enum Pace {
    Wait(BoxFuture<'static, ()>),
    Go,
}

impl Queue {
    pub(crate) fn new(held: Option<Arc<Held>>, barrier: Option<Barrier>) -> Self {
        Self { held, barrier, ..Self::default() }
    }

    /// Whether anything made it wait so far.
    pub(crate) fn waited(&self) -> bool {
        self.waited
    }

    pub(crate) fn note_wait(&mut self) {
        self.waited = true;
    }

    /// Whether the call's deadline passed while it queued; it was so far away when it began to.
    pub(crate) fn is_overdue(&mut self, cx: &mut Context<'_>, clock: &dyn Clock, left: Duration) -> bool {
        let seldom = self.seldom.get_or_insert_default();
        seldom.deadline.get_or_insert_with(|| clock.sleep(left)).poll_unpin(cx).is_ready()
    }

    /// Goes on queueing; an error names a cycle of keys.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        stage: Stage,
        place: (&Arc<Run>, &Path),
        lane: &Lane,
    ) -> Result<Poll<()>, String> {
        let all = self.try_all(cx, stage, place, lane)?;
        if all.is_pending() {
            self.waited = true;
        }
        Ok(all)
    }

    fn try_all(
        &mut self,
        cx: &mut Context<'_>,
        stage: Stage,
        (run, path): (&Arc<Run>, &Path),
        lane: &Lane,
    ) -> Result<Poll<()>, String> {
        if let Some(key) = &lane.key {
            let seldom = self.seldom.get_or_insert_default();
            let place = match seldom.key.take() {
                Some(place) => place,
                None => Key::request(run, path, key.clone(), self.held.as_ref())?,
            };
            if seldom.key.insert(place).poll(cx).is_pending() {
                return Ok(Poll::Pending);
            }
        }
        if matches!(stage, Stage::Key) {
            return Ok(Poll::Ready(()));
        }
        let turn = match lane.session {
            Session::Apart => None,
            Session::Parallel => Some(self.turn.get_or_insert_with(|| run.turns.shared())),
            Session::Exclusive => Some(self.turn.get_or_insert_with(|| run.turns.exclusive())),
        };
        if turn.is_some_and(|turn| turn.poll(cx).is_pending()) || self.poll_gate(cx, run, lane).is_pending() {
            return Ok(Poll::Pending);
        }
        let permit = self.permit.get_or_insert_with(|| run.kernel.admission.permits.request(run.id));
        Ok(permit.poll(cx))
    }

    fn poll_gate(&mut self, cx: &mut Context<'_>, run: &Run, lane: &Lane) -> Poll<()> {
        let Some(gate) = &lane.gate else { return Poll::Ready(()) };
        let seldom = self.seldom.get_or_insert_default();
        if let Some(turn) = seldom.gate.get_or_insert_with(|| gate.enter()) {
            std::task::ready!(turn.poll(cx));
        }
        let clock = &run.kernel.env.clock;
        let pace = seldom.pace.get_or_insert_with(|| {
            let delay = gate.reserve(clock.ticks());
            if delay.is_zero() { Pace::Go } else { Pace::Wait(clock.sleep(delay)) }
        });
        if let Pace::Wait(timer) = pace {
            std::task::ready!(timer.poll_unpin(cx));
            *pace = Pace::Go;
        }
        Poll::Ready(())
    }

    /// The key it waits for, if it waits for one: a run that does nothing else is suspended.
    pub(crate) fn awaited_key(&self) -> Option<&Arc<str>> {
        self.seldom.as_ref()?.key.as_ref()?.awaited()
    }

    /// Lets go of everything: the operation is over.
    pub(crate) fn release(&mut self) {
        self.release_but_key();
        self.seldom = None;
    }

    /// The key belongs to the operation, and all else to an attempt: a doubt, a pending call and a delay before the next
    /// attempt keep the key alone.
    pub(crate) fn release_but_key(&mut self) {
        self.permit = None;
        if let Some(seldom) = &mut self.seldom {
            **seldom = Seldom { key: seldom.key.take(), ..Seldom::default() };
        }
        self.turn = None;
        self.waited = true;
    }
}
