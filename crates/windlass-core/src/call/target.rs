//! The breaker of the target that an attempt is made at.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;

use super::queue::{AdmissionGoal, AttemptQueue};
use super::rules::Lane;
use super::running::AttemptEnd;
use crate::admit::Health;
use crate::path::Path;
use crate::run::Run;
use crate::tool::ToolError;

impl AttemptQueue {
    /// Queues for everything, and for the breaker of the target. It is asked first, so that a call that waits for it
    /// holds only its key, and again at the end: it may have opened while the attempt was queued.
    pub(super) fn try_with_target(
        &mut self,
        cx: &mut Context<'_>,
        place: (&Arc<Run>, &Path, u32),
        (target, lane): (&Arc<str>, &Lane),
    ) -> Result<Poll<()>, ToolError> {
        let (run, _, attempt) = place;
        let (breakers, clock) = (&run.kernel.admission.breakers, &run.kernel.env.clock);
        loop {
            if self.try_all(cx, AdmissionGoal::Key, place, lane)?.is_pending() {
                return Ok(Poll::Pending);
            }
            let mut looked = breakers.look(target, clock.ticks(), cx.waker());
            if looked.is_ok() {
                self.rare().target_wait = None;
                if self.try_all(cx, AdmissionGoal::Attempt, place, lane)?.is_pending() {
                    return Ok(Poll::Pending);
                }
                looked = match breakers.enter(target, clock.ticks(), cx.waker()) {
                    Ok(pass) => {
                        self.rare().target_pass = pass;
                        return Ok(Poll::Ready(()));
                    }
                    Err(wait) => Err(wait),
                };
                self.release_but_key();
            }
            let Err(wait) = looked else { continue };
            if attempt <= 1 && !lane.waits_for_target {
                return Err(breakers.refusal(target, wait));
            }
            let waiting = self.rare().target_wait.get_or_insert_with(|| breakers.waits(run.id, place.1, target));
            let crate::admit::Wait::For(left) = wait else { return Ok(Poll::Pending) };
            if waiting.timer.get_or_insert_with(|| clock.sleep(left)).poll_unpin(cx).is_pending() {
                return Ok(Poll::Pending);
            }
            waiting.timer = None;
        }
    }

    /// Tells the breaker how an attempt ended.
    pub(super) fn report_target(&mut self, ended: &AttemptEnd, now: u64) {
        let Some(pass) = self.take_pass() else { return };
        let health = match ended {
            AttemptEnd::Returned(Ok(_)) => Health::Good,
            AttemptEnd::Returned(Err(error)) => Health::of(error),
            AttemptEnd::TimedOut(_) => Health::Bad,
            AttemptEnd::Cancelled | AttemptEnd::Panicked(_) => Health::Unknown,
        };
        pass.report(health, now);
    }
}
