//! Waiting for a time or for the mailbox, as every park does.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::connect::{Checked, ConnectionCheck};
use crate::limits;
use crate::path::Path;
use crate::run::machine::Machine;
use crate::run::parks::{ParkAnswer, ParkQuery};
use crate::run::record::{Event, Settled, Settler};
use crate::run::state::{Blocked, Park};
use crate::run::{Registration, Run};
use crate::time::Timestamp;
use crate::tool::ToolError;

/// The wait of one parked operation.
pub(crate) struct ParkWait {
    pub(crate) on: Blocked,
    pub(crate) until: Option<Timestamp>,
    since: Timestamp,
    timer: Option<BoxFuture<'static, ()>>,
    shown: bool,
    /// For a wait for a connection: looks for it in the store.
    check: Option<Box<ConnectionCheck>>,
}

/// What ended a park.
pub(crate) enum WakeCause {
    Answer(ParkAnswer),
    /// Cancelled.
    Stopped(ToolError),
    /// Its key is void, for this reason.
    Revoked(String),
    Expired,
}

/// The error of an operation whose key is void, and its record.
pub(crate) fn revoked(reason: &str) -> (ToolError, Settled) {
    let settled = Settled { by: Settler::Revocation, reason: reason.to_owned() };
    (ToolError::Cancelled { reason: format!("revoked: {reason}") }, settled)
}

/// The operation that is parked.
pub(crate) struct ParkedOp<'a> {
    pub(crate) run: &'a Arc<Run>,
    pub(crate) path: &'a Path,
    pub(crate) operation: &'a dyn Fn() -> String,
    pub(crate) heeds_cancel: bool,
}

impl ParkWait {
    pub(crate) fn new(on: Blocked, until: Option<Timestamp>, since: Timestamp) -> Self {
        Self { on, until, since, timer: None, shown: false, check: None }
    }

    /// Begins a park. It is listed before its record is written, so that a client that sees the record finds it in the
    /// list.
    pub(crate) fn begin(run: &Run, park: Park) -> Self {
        let wait =
            Self { on: park.on.clone(), until: park.until, since: park.since, timer: None, shown: true, check: None };
        run.note_wait();
        run.with(|machine| machine.park(park));
        wait
    }

    /// The same wait, which looks for its connection in the store first. It is listed if there is none.
    pub(crate) fn checking(mut self, check: ConnectionCheck) -> Self {
        self.check = Some(Box::new(check));
        self
    }

    /// Whether it is looking for its connection, so that the run must not be suspended.
    pub(crate) fn is_checking(&self) -> bool {
        self.check.as_ref().is_some_and(|check| !check.is_over())
    }

    /// Whether a person was asked since the last call of this.
    pub(crate) fn take_asked(&mut self) -> bool {
        self.check.as_mut().is_some_and(|check| check.take_asked())
    }

    /// `finish` records how it ended, in the same step in which the answer leaves the mailbox.
    pub(crate) fn poll<R>(
        &mut self,
        cx: &mut Context<'_>,
        registration: &mut Registration,
        parked: &ParkedOp<'_>,
        finish: impl FnOnce(&mut Machine, WakeCause) -> R,
    ) -> Poll<R> {
        let run = parked.run;
        // Registered first, so that every later event wakes it.
        registration.register(run, cx);
        let expired = self.is_over(cx, run);
        let checked = self.check(cx, parked);
        let is_hidden = self.check.as_ref().is_some_and(|check| check.hides());
        let ended = run.with(|machine| {
            let Some(cause) = self.cause(machine, parked, expired).or(checked) else {
                if !is_hidden {
                    self.show(machine, parked);
                }
                return None;
            };
            machine.unpark(parked.path);
            Some(finish(machine, cause))
        });
        match ended {
            Some(ended) => {
                run.pump_if_due();
                Poll::Ready(ended)
            }
            None => Poll::Pending,
        }
    }

    fn cause(&self, machine: &mut Machine, parked: &ParkedOp<'_>, expired: bool) -> Option<WakeCause> {
        if let Some(answer) = machine.take_answer(&ParkQuery { path: parked.path, on: &self.on }) {
            return Some(WakeCause::Answer(answer));
        }
        if parked.heeds_cancel
            && let Some(error) = machine.cancellation(parked.path)
        {
            return Some(WakeCause::Stopped(error));
        }
        match (&self.on, machine.revocation()) {
            (Blocked::Input { .. }, Some(reason)) => Some(WakeCause::Revoked(reason.to_owned())),
            _ => expired.then_some(WakeCause::Expired),
        }
    }

    /// Looks for the connection that it waits for.
    fn check(&mut self, cx: &mut Context<'_>, parked: &ParkedOp<'_>) -> Option<WakeCause> {
        let mut check = self.check.take()?;
        let cause = match check.poll(cx, parked.run) {
            Poll::Pending => None,
            Poll::Ready(Checked::Connected) => {
                Some(WakeCause::Answer(ParkAnswer::Connected { refused: None, by_person: false }))
            }
            Poll::Ready(Checked::Denied) => Some(WakeCause::Expired),
            Poll::Ready(Checked::Missing(why)) => {
                self.ask_person(parked, &mut check, why);
                // The next step is to wait until the question is in the store.
                self.check = Some(check);
                return self.check(cx, parked);
            }
        };
        self.check = Some(check);
        cause
    }

    /// Lists the question, with the reason if the recorded one has another.
    fn ask_person(&mut self, parked: &ParkedOp<'_>, check: &mut ConnectionCheck, found: Option<Arc<str>>) {
        let run = parked.run;
        if let Blocked::Connection { why, .. } = &mut self.on
            && *why != found
        {
            *why = found;
            self.since = run.now();
            self.shown = false;
            let event = Event::Parked { on: self.on.clone(), until: self.until, attempt: check.attempt };
            run.append(parked.path, self.since, None, event);
        }
        run.with(|machine| {
            self.show(machine, parked);
            check.listed(machine.publish_now());
        });
    }

    fn is_over(&mut self, cx: &mut Context<'_>, run: &Run) -> bool {
        let Some(until) = self.until else { return false };
        // The wall clock decides, and may jump, so it is checked at intervals.
        loop {
            let left = until.since(run.now());
            if left.is_zero() {
                return true;
            }
            let timer = self.timer.get_or_insert_with(|| run.kernel.env.clock.sleep(left.min(limits::CLOCK_CHECK)));
            if timer.poll_unpin(cx).is_pending() {
                return false;
            }
            self.timer = None;
            run.rebase();
        }
    }

    fn show(&mut self, machine: &mut Machine, parked: &ParkedOp<'_>) {
        if !std::mem::replace(&mut self.shown, true) {
            parked.run.note_wait();
            machine.park(Park {
                path: parked.path.clone(),
                operation: (parked.operation)(),
                on: self.on.clone(),
                since: self.since,
                until: self.until,
            });
        }
    }
}
