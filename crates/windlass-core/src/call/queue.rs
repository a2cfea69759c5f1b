//! What an attempt holds, and how it gets it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::batch::Barrier;
use super::key::KeyClaim;
use super::rules::{Lane, SessionMode};
use super::shared::SharedSlot;
use crate::admit::{BreakerWait, FifoRequest, HeldKey, Pass, Permit};
use crate::path::Path;
use crate::run::Run;
use crate::store::SlotRequest;
use crate::time::Clock;
use crate::tool::ToolError;

/// What an attempt queues for. Queueing always starts at the front; what the attempt has got, it keeps.
#[derive(Clone, Copy)]
pub(crate) enum AdmissionGoal {
    /// Everything an attempt needs.
    Attempt,
    /// The key alone: an attempt in doubt and a pending call keep it.
    Key,
}

/// What an operation holds while an attempt of it runs.
#[derive(Default)]
pub(crate) struct AttemptQueue {
    /// Keys held by the bodies around it.
    held: Option<Arc<HeldKey>>,
    /// The batch it is part of. It is told when the calls after this one may start.
    pub(crate) barrier: Option<Barrier>,
    exclusivity: Option<FifoRequest>,
    permit: Option<Permit>,
    /// What few attempts queue for. Boxed, because every call has a queue.
    rare: Option<Box<RareParts>>,
    waited: bool,
}

#[derive(Default)]
pub(super) struct RareParts {
    key: Option<KeyClaim>,
    gate: Option<Option<FifoRequest>>,
    pace: Option<Pace>,
    slot: Option<SharedSlot>,
    pub(super) target_wait: Option<BreakerWait>,
    pub(super) target_pass: Option<Pass>,
    deadline: Option<BoxFuture<'static, ()>>,
}

/// The tool's rate.
enum Pace {
    Wait(BoxFuture<'static, ()>),
    Go,
}

impl AttemptQueue {
    pub(crate) fn new(held: Option<Arc<HeldKey>>, barrier: Option<Barrier>) -> Self {
        Self { held, barrier, ..Self::default() }
    }

    /// Whether anything made it wait so far.
    pub(crate) fn waited(&self) -> bool {
        self.waited
    }

    pub(crate) fn note_wait(&mut self) {
        self.waited = true;
    }

    /// Whether the call's deadline passed while it queued. `left` is the time until the deadline when it is first
    /// asked.
    pub(crate) fn is_overdue(&mut self, cx: &mut Context<'_>, clock: &dyn Clock, left: Duration) -> bool {
        let rare = self.rare.get_or_insert_default();
        rare.deadline.get_or_insert_with(|| clock.sleep(left)).poll_unpin(cx).is_ready()
    }

    /// Continues queueing for this attempt. An error names a cycle of keys, or a target whose breaker is open.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        goal: AdmissionGoal,
        place: (&Arc<Run>, &Path, u32),
        lane: &Lane,
    ) -> Result<Poll<()>, ToolError> {
        let all = match (&lane.target, goal) {
            (Some(target), AdmissionGoal::Attempt) => self.try_with_target(cx, place, (target, lane))?,
            _ => self.try_all(cx, goal, place, lane)?,
        };
        if all.is_pending() {
            self.waited = true;
        }
        Ok(all)
    }

    pub(super) fn rare(&mut self) -> &mut RareParts {
        self.rare.get_or_insert_default()
    }

    pub(super) fn take_pass(&mut self) -> Option<Pass> {
        self.rare.as_mut()?.target_pass.take()
    }

    pub(super) fn try_all(
        &mut self,
        cx: &mut Context<'_>,
        goal: AdmissionGoal,
        (run, path, _): (&Arc<Run>, &Path, u32),
        lane: &Lane,
    ) -> Result<Poll<()>, ToolError> {
        if let Some(key) = &lane.key {
            let rare = self.rare.get_or_insert_default();
            let place = match rare.key.take() {
                Some(place) => place,
                None => {
                    KeyClaim::request(run, path, key.clone(), self.held.as_ref()).map_err(ToolError::unavailable)?
                }
            };
            match rare.key.insert(place).poll(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(cycle)) => return Err(ToolError::unavailable(cycle)),
                Poll::Pending => return Ok(Poll::Pending),
            }
        }
        if matches!(goal, AdmissionGoal::Key) {
            return Ok(Poll::Ready(()));
        }
        if run.kernel.admission.is_shared && (lane.gate.is_some() || run.session.is_some()) {
            if self.poll_slot(cx, run, lane).is_pending() {
                return Ok(Poll::Pending);
            }
            let permit = self.permit.get_or_insert_with(|| run.kernel.admission.permits.request(run.id));
            return Ok(permit.poll(cx));
        }
        let place = match lane.session {
            SessionMode::Apart => None,
            SessionMode::Parallel => Some(self.exclusivity.get_or_insert_with(|| run.exclusivity.shared())),
            SessionMode::Exclusive => Some(self.exclusivity.get_or_insert_with(|| run.exclusivity.exclusive())),
        };
        if place.is_some_and(|place| place.poll(cx).is_pending()) || self.poll_gate(cx, run, lane).is_pending() {
            return Ok(Poll::Pending);
        }
        let permit = self.permit.get_or_insert_with(|| run.kernel.admission.permits.request(run.id));
        Ok(permit.poll(cx))
    }

    /// Exclusivity in the session and the limits of the tool, where the store holds them for all workers.
    fn poll_slot(&mut self, cx: &mut Context<'_>, run: &Arc<Run>, lane: &Lane) -> Poll<()> {
        let session = match lane.session {
            SessionMode::Apart => None,
            SessionMode::Parallel => run.session.clone().map(|session| (session, false)),
            SessionMode::Exclusive => run.session.clone().map(|session| (session, true)),
        };
        let tool = lane.gate.as_ref().map(|gate| gate.shared());
        if session.is_none() && tool.is_none() {
            return Poll::Ready(());
        }
        let slot = self.rare.get_or_insert_default().slot.get_or_insert_with(|| {
            let slot = run.kernel.admission.slots.fetch_add(1, Ordering::Relaxed);
            SharedSlot::new(run, SlotRequest { worker: run.kernel.lease.worker, slot, run: run.id, session, tool })
        });
        slot.poll(cx)
    }

    fn poll_gate(&mut self, cx: &mut Context<'_>, run: &Run, lane: &Lane) -> Poll<()> {
        let Some(gate) = &lane.gate else { return Poll::Ready(()) };
        let rare = self.rare.get_or_insert_default();
        if let Some(place) = rare.gate.get_or_insert_with(|| gate.enter()) {
            std::task::ready!(place.poll(cx));
        }
        let clock = &run.kernel.env.clock;
        let pace = rare.pace.get_or_insert_with(|| {
            let delay = gate.reserve(clock.ticks());
            if delay.is_zero() { Pace::Go } else { Pace::Wait(clock.sleep(delay)) }
        });
        if let Pace::Wait(timer) = pace {
            std::task::ready!(timer.poll_unpin(cx));
            *pace = Pace::Go;
        }
        Poll::Ready(())
    }

    /// The key it waits for, if any. A run that does nothing else is suspended.
    pub(crate) fn awaited_key(&self) -> Option<&Arc<str>> {
        self.rare.as_ref()?.key.as_ref()?.awaited()
    }

    /// Releases everything: the operation is over.
    pub(crate) fn release(&mut self) {
        self.release_but_key();
        self.rare = None;
    }

    /// Releases everything but the key. The key belongs to the operation, and everything else to an attempt, so an
    /// operation in doubt, a pending call and a delay before the next attempt keep only the key.
    pub(crate) fn release_but_key(&mut self) {
        self.permit = None;
        if let Some(rare) = &mut self.rare {
            **rare = RareParts { key: rare.key.take(), ..RareParts::default() };
        }
        self.exclusivity = None;
        self.waited = true;
    }
}
