//! Attempts in doubt: an attempt may have happened, and its result was not recorded. It is settled by an answer in the
//! mailbox, by the tool itself, by policy, or by a person, in this order, and never by guessing.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::attempt::Attempt;
use super::execute::{AttemptSource, Execution, ExecutionPhase, Flow};
use super::queue::AdmissionGoal;
use crate::limits;
use crate::run::machine::SettleMail;
use crate::run::parks::{ParkAnswer, ParkQuery};
use crate::run::record::{DoubtCause, Event, OpKind, Settled, Settler};
use crate::run::state::{Blocked, Doubt};
use crate::store::Settlement;
use crate::time::Timestamp;
use crate::tool::spec::OnDoubt;
use crate::tool::{Output, Reconciled, ToolError, ToolResult};

/// How often an uninterruptible thread is checked for its end.
const THREAD_POLL: Duration = Duration::from_millis(100);

pub(crate) struct Doubting<'a> {
    cause: DoubtCause,
    /// After this time the attempt cannot still be running.
    over_by: Timestamp,
    /// What the attempt itself reported.
    said: Option<Arc<str>>,
    /// Since when it is in doubt, if the journal records that already.
    recorded: Option<Timestamp>,
    opened: bool,
    step: DoubtStep<'a>,
}

enum DoubtStep<'a> {
    /// Look for an answer, then ask the tool.
    Open,
    Reconcile(BoxFuture<'a, ToolResult<Reconciled<Output>>>, BoxFuture<'static, ()>),
    /// Only a person can settle it.
    Ask,
    /// It was settled as "did not happen". That takes effect once the attempt cannot still be running.
    Quiet(BoxFuture<'static, ()>, AfterQuiet),
}

/// What follows once the old attempt is certainly over.
enum AfterQuiet {
    /// Ask the tool again, because it may have happened meanwhile.
    Reconcile,
    /// Attempt again.
    Again(Settled),
}

impl Doubting<'_> {
    pub(crate) fn new(cause: DoubtCause, over_by: Timestamp) -> Self {
        Self { cause, over_by, said: None, recorded: None, opened: false, step: DoubtStep::Open }
    }

    /// Sets what the attempt itself reported.
    pub(crate) fn said(mut self, said: Option<Arc<str>>) -> Self {
        self.said = said;
        self
    }

    /// Sets since when the journal records it.
    pub(crate) fn recorded(mut self, since: Option<Timestamp>) -> Self {
        self.recorded = since;
        self
    }

    /// Why it is not known whether the attempt happened.
    fn why(&self) -> String {
        self.cause.with(self.said.as_deref())
    }

    /// Whether only a person can settle it.
    pub(crate) fn is_asking(&self) -> bool {
        matches!(self.step, DoubtStep::Ask)
    }
}

impl<'a, S: AttemptSource<'a>> Execution<'a, S> {
    pub(crate) fn doubting(&mut self, cx: &mut Context<'_>, mut doubting: Box<Doubting<'a>>) -> Flow {
        if !doubting.opened {
            self.open_doubt(&mut doubting);
        }
        // After a crash the operation queues for its key again, because other calls with that key must not run before
        // the doubt is settled. Settling needs no key, so the result is not awaited here, and a cycle of keys does not
        // end an operation that may have happened.
        let place = (&self.run, &self.op.path, self.attempt);
        if let Err(cycle) = self.queue.poll(cx, AdmissionGoal::Key, place, &self.rules.lane) {
            tracing::debug!(run = %self.run.id, path = %self.op.path, "in doubt without its key: {cycle}");
        }
        self.registration.register(&self.run, cx);
        let (path, attempt) = (&self.op.path, self.attempt);
        if let Some(mail) = self.run.with(|machine| machine.take_settlement(path, attempt)) {
            return self.settle_by_mail(doubting, mail);
        }
        // The attempt may have handed out its reply key before it was lost. Then the outside knows the result.
        let on = Blocked::Input { name: self.op.name.clone(), at: None };
        let answer = self.run.with(|machine| machine.take_answer(&ParkQuery { path: &self.op.path, on: &on }));
        if let Some(ParkAnswer::Result(result)) = answer {
            let settled = Settled { by: Settler::Reply, reason: "it was answered by its reply key".to_owned() };
            let ticks = self.run.kernel.env.clock.ticks();
            let result = result.map(Arc::unwrap_or_clone).map_err(Arc::unwrap_or_clone);
            return self.finish_at(ticks, result, Some(settled));
        }
        match std::mem::replace(&mut doubting.step, DoubtStep::Ask) {
            DoubtStep::Open => self.ask_the_tool(doubting),
            DoubtStep::Reconcile(reconcile, timeout) => self.reconciling(cx, doubting, reconcile, timeout),
            DoubtStep::Ask => self.stay(ExecutionPhase::Doubt(doubting)),
            DoubtStep::Quiet(mut timer, then) => {
                if timer.poll_unpin(cx).is_ready() {
                    return self.quiet(doubting, then);
                }
                doubting.step = DoubtStep::Quiet(timer, then);
                self.stay(ExecutionPhase::Doubt(doubting))
            }
        }
    }

    /// Records the doubt and lists it. The session and the calls behind it continue.
    fn open_doubt(&mut self, doubting: &mut Doubting<'a>) {
        doubting.opened = true;
        let (path, operation) = (self.op.path.clone(), self.op.describe());
        let (cause, over_by, said) = (doubting.cause, doubting.over_by, doubting.said.clone());
        let since = doubting.recorded.unwrap_or_else(|| self.run.now());
        let doubt = Doubt { path, attempt: self.attempt, operation, cause, over_by, since, said };
        // Listed before it is recorded: once the record is durable, the doubt must be ready to be settled.
        self.run.with(|machine| machine.open_doubt(doubt.clone()));
        // A new owner does not record it again, and it may be settled by then.
        if doubting.recorded.replace(since).is_none() {
            self.append_at(since, doubt.event());
            let (path, operation) = (&doubt.path, &doubt.operation);
            tracing::warn!(run = %self.run.id, %path, %operation, cause = doubt.why(), "in doubt");
        }
        self.run.note_wait();
        self.run.pump();
        self.queue.release_but_key();
        if let Some(barrier) = &self.queue.barrier {
            barrier.release_later_calls();
        }
    }

    fn ask_the_tool(&mut self, mut doubting: Box<Doubting<'a>>) -> Flow {
        let (path, name) = (self.op.path.clone(), self.op.name.clone());
        let attempt = Attempt::new(self.run.origin(), path, name, self.attempt, self.rules.attempts());
        if doubting.cause == DoubtCause::Restored && !self.run.with(|machine| machine.has_old_keys()) {
            return self.apply_policy(doubting);
        }
        let (source, asked) = (&mut self.source, attempt.clone());
        let reconcile = std::panic::catch_unwind(AssertUnwindSafe(|| source.reconcile(asked)));
        let Ok(Some(reconcile)) = reconcile else { return self.apply_policy(doubting) };
        let run = self.run.clone();
        let reconcile = reconcile.map(move |mut found| {
            attempt.redact_reconciled(&mut found);
            if let Ok(Reconciled::Happened(_)) = found {
                run.vouch(attempt.path(), attempt.vouched());
            }
            found
        });
        let reconcile = Box::pin(reconcile);
        let timeout = self.run.kernel.env.clock.sleep(self.rules.timeout);
        doubting.step = DoubtStep::Reconcile(reconcile, timeout);
        self.go(ExecutionPhase::Doubt(doubting))
    }

    fn reconciling(
        &mut self,
        cx: &mut Context<'_>,
        mut doubting: Box<Doubting<'a>>,
        mut reconcile: BoxFuture<'a, ToolResult<Reconciled<Output>>>,
        mut timeout: BoxFuture<'static, ()>,
    ) -> Flow {
        let found = match std::panic::catch_unwind(AssertUnwindSafe(|| reconcile.poll_unpin(cx))) {
            Ok(Poll::Pending) if timeout.poll_unpin(cx).is_pending() => {
                doubting.step = DoubtStep::Reconcile(reconcile, timeout);
                return self.stay(ExecutionPhase::Doubt(doubting));
            }
            Ok(Poll::Ready(Ok(found))) => found,
            Ok(Poll::Ready(Err(error))) => {
                tracing::warn!(run = %self.run.id, path = %self.op.path, "reconcile failed: {error}");
                Reconciled::Unknown
            }
            Ok(Poll::Pending) | Err(_) => {
                tracing::warn!(run = %self.run.id, path = %self.op.path, "reconcile timed out or panicked");
                Reconciled::Unknown
            }
        };
        let whose = if self.op.kind == OpKind::Step { "the step's" } else { "the tool's" };
        let by_tool = || Settled { by: Settler::Tool, reason: format!("{whose} reconcile") };
        match found {
            Reconciled::Happened(output) => {
                self.finish_at(self.run.kernel.env.clock.ticks(), Ok(output), Some(by_tool()))
            }
            Reconciled::DidNotHappen if self.tried_enough() => self.ask_a_person(doubting),
            Reconciled::DidNotHappen if self.is_over(&doubting) => self.again(by_tool()),
            Reconciled::DidNotHappen => self.wait_quiet(doubting, AfterQuiet::Reconcile),
            Reconciled::Unknown => self.apply_policy(doubting),
        }
    }

    /// Whether another attempt would only continue a loop.
    fn tried_enough(&self) -> bool {
        self.attempt >= self.rules.attempts().max(limits::ATTEMPTS_IN_DOUBT)
    }

    fn ask_a_person(&mut self, mut doubting: Box<Doubting<'a>>) -> Flow {
        doubting.step = DoubtStep::Ask;
        self.stay(ExecutionPhase::Doubt(doubting))
    }

    fn apply_policy(&mut self, doubting: Box<Doubting<'a>>) -> Flow {
        let by_policy = |reason: &str| Settled { by: Settler::Policy, reason: reason.to_owned() };
        match self.rules.on_doubt {
            OnDoubt::Ask => self.ask_a_person(doubting),
            OnDoubt::Rerun if self.tried_enough() => self.ask_a_person(doubting),
            OnDoubt::Fail => {
                let error = ToolError::InDoubt { reason: format!("{}; it may have happened", doubting.why()) };
                let ticks = self.run.kernel.env.clock.ticks();
                self.finish_at(ticks, Err(error), Some(by_policy("on_doubt = fail")))
            }
            OnDoubt::Rerun => self.wait_quiet(doubting, AfterQuiet::Again(by_policy("on_doubt = rerun"))),
        }
    }

    fn settle_by_mail(&mut self, doubting: Box<Doubting<'a>>, mail: SettleMail) -> Flow {
        let settled = Settled { by: Settler::Person(mail.by), reason: mail.reason };
        let ticks = self.run.kernel.env.clock.ticks();
        match mail.settlement {
            Settlement::Happened(Ok(output)) => self.finish_at(ticks, Ok(Arc::unwrap_or_clone(output)), Some(settled)),
            Settlement::Happened(Err(error)) => self.finish_at(ticks, Err(Arc::unwrap_or_clone(error)), Some(settled)),
            Settlement::DidNotHappen => self.wait_quiet(doubting, AfterQuiet::Again(settled)),
            Settlement::GiveUp => {
                let reason = format!("{}; given up by {}: {}", doubting.why(), settled.by, settled.reason);
                self.finish_at(ticks, Err(ToolError::InDoubt { reason }), Some(settled))
            }
        }
    }

    fn is_over(&self, doubting: &Doubting<'a>) -> bool {
        self.run.now() >= doubting.over_by && !self.run.kernel.is_on_thread(self.run.id, &self.op.path)
    }

    /// Waits until the old attempt cannot still be running, so that it never runs beside its successor.
    fn wait_quiet(&mut self, mut doubting: Box<Doubting<'a>>, then: AfterQuiet) -> Flow {
        let mut wait = doubting.over_by.since(self.run.now());
        if wait.is_zero() && !self.is_over(&doubting) {
            wait = THREAD_POLL;
        }
        doubting.step = DoubtStep::Quiet(self.run.kernel.env.clock.sleep(wait), then);
        self.go(ExecutionPhase::Doubt(doubting))
    }

    fn quiet(&mut self, mut doubting: Box<Doubting<'a>>, then: AfterQuiet) -> Flow {
        if !self.is_over(&doubting) {
            return self.wait_quiet(doubting, then);
        }
        match then {
            AfterQuiet::Reconcile => {
                doubting.step = DoubtStep::Open;
                self.go(ExecutionPhase::Doubt(doubting))
            }
            AfterQuiet::Again(settled) => self.again(settled),
        }
    }

    /// Attempts again: it did not happen, or may be repeated anyway.
    fn again(&mut self, settled: Settled) -> Flow {
        let attempt = self.attempt;
        self.append(Event::Settled { attempt, by: settled.by, reason: settled.reason });
        self.queue.release();
        self.attempt += 1;
        self.go(ExecutionPhase::Admit(AdmissionGoal::Attempt))
    }
}
