//! Waiting for time or for the mailbox: what every park does, whatever waits.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::limits;
use crate::path::Path;
use crate::run::machine::Machine;
use crate::run::parks::{Answer, Looks};
use crate::run::record::{Settled, Settler};
use crate::run::state::{Blocked, Park};
use crate::run::{Registration, Run};
use crate::time::Timestamp;
use crate::tool::ToolError;

/// A park of one operation.
pub(crate) struct Wait {
    pub(crate) on: Blocked,
    pub(crate) until: Option<Timestamp>,
    since: Timestamp,
    timer: Option<BoxFuture<'static, ()>>,
    shown: bool,
}

/// What ended a park.
pub(crate) enum Woken {
    Answer(Answer),
    /// Cancelled.
    Stopped(ToolError),
    /// Its key is void, for this reason.
    Revoked(String),
    Expired,
}

/// What is told to an operation whose key is void.
pub(crate) fn revoked(reason: &str) -> (ToolError, Settled) {
    let settled = Settled { by: Settler::Revocation, reason: reason.to_owned() };
    (ToolError::Cancelled { reason: format!("revoked: {reason}") }, settled)
}

/// Whose park it is.
pub(crate) struct Sleeper<'a> {
    pub(crate) run: &'a Arc<Run>,
    pub(crate) path: &'a Path,
    pub(crate) operation: &'a dyn Fn() -> String,
    pub(crate) heeds_cancel: bool,
}

impl Wait {
    pub(crate) fn new(on: Blocked, until: Option<Timestamp>, since: Timestamp) -> Self {
        Self { on, until, since, timer: None, shown: false }
    }

    /// A park that begins. It is on the list before its record is written, so that a client that is told of the record finds it
    /// there.
    pub(crate) fn begin(run: &Run, park: Park) -> Self {
        let wait = Self { on: park.on.clone(), until: park.until, since: park.since, timer: None, shown: true };
        run.note_wait();
        run.with(|machine| machine.park(park));
        wait
    }

    /// `finish` records how it ended, in the same step in which the answer leaves the mailbox.
    pub(crate) fn poll<R>(
        &mut self,
        cx: &mut Context<'_>,
        registration: &mut Registration,
        who: &Sleeper<'_>,
        finish: impl FnOnce(&mut Machine, Woken) -> R,
    ) -> Poll<R> {
        let run = who.run;
        // First, so that whatever comes from now on wakes it.
        registration.register(run, cx);
        let expired = self.is_over(cx, run);
        let ended = run.with(|machine| {
            let Some(woken) = self.woken(machine, who, expired) else {
                self.show(machine, who);
                return None;
            };
            machine.unpark(who.path);
            Some(finish(machine, woken))
        });
        match ended {
            Some(ended) => {
                run.pump_if_due();
                Poll::Ready(ended)
            }
            None => Poll::Pending,
        }
    }

    fn woken(&self, machine: &mut Machine, who: &Sleeper<'_>, expired: bool) -> Option<Woken> {
        if let Some(answer) = machine.take_answer(&Looks { path: who.path, on: &self.on }) {
            return Some(Woken::Answer(answer));
        }
        if who.heeds_cancel && machine.is_cancelled() {
            return Some(Woken::Stopped(machine.cancellation()));
        }
        match (&self.on, machine.revocation()) {
            (Blocked::Input { .. }, Some(reason)) => Some(Woken::Revoked(reason.to_owned())),
            _ => expired.then_some(Woken::Expired),
        }
    }

    fn is_over(&mut self, cx: &mut Context<'_>, run: &Run) -> bool {
        let Some(until) = self.until else { return false };
        // The wall clock decides, and may jump meanwhile: it is looked at now and then.
        loop {
            let left = until.since(run.now());
            if left.is_zero() {
                return true;
            }
            let timer = self.timer.get_or_insert_with(|| run.kernel.env.clock.sleep(left.min(limits::ALARM_LOOK)));
            if timer.poll_unpin(cx).is_pending() {
                return false;
            }
            self.timer = None;
            run.rebase();
        }
    }

    fn show(&mut self, machine: &mut Machine, who: &Sleeper<'_>) {
        if !std::mem::replace(&mut self.shown, true) {
            who.run.note_wait();
            machine.park(Park {
                path: who.path.clone(),
                operation: (who.operation)(),
                on: self.on.clone(),
                since: self.since,
                until: self.until,
            });
        }
    }
}
