//! Connection and approval: what a checked call may need before its first attempt. Each parks the call. Nothing is
//! decided twice: a decision is in the journal before anything is attempted.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use serde_json::Value;

use super::child::{CallFuture, narrate};
use super::connect::{self, ConnectionCheck, Looking};
use super::operation::Operation;
use super::plan::{ReadyCall, Scope};
use super::wait::{ParkWait, ParkedOp, WakeCause};
use crate::attribution::Attribution;
use crate::connections::{ConnectionQuery, ConnectionState};
use crate::policy::{EffectivePolicy, Facts, Need, PastCall, Session, Unattended};
use crate::run::parks::ParkAnswer;
use crate::run::recall::{Recalling, SessionCalls};
use crate::run::record::{Event, Grant, OpOutcome, Settled, Settler};
use crate::run::replay::Decision;
use crate::run::spent::EarlierTime;
use crate::run::state::{Blocked, Park};
use crate::run::{Awake, Registration, Run};
use crate::store::StoreError;
use crate::time::{Times, Timestamp};
use crate::tool::narrate::{Phase, WaitReason};
use crate::tool::{Tool, ToolError};
use crate::value::digest::Encoder;

/// A call that must be connected or approved first.
pub(crate) struct GuardedCall {
    run: Arc<Run>,
    scope: Scope,
    operation: Option<Operation>,
    ready: Option<ReadyCall>,
    heeds_cancel: bool,
    /// The ticks when it was asked for, or taken up again. `earlier` is the time that had passed by then.
    asked: u64,
    earlier: EarlierTime,
    registration: Registration,
    awake: Awake,
    /// The history of the session, as read for the next evaluation of the policy.
    of_session: Option<SessionCalls>,
    stage: GuardStage,
}

enum GuardStage {
    Ask,
    Connect,
    /// Looks for the connection in the store.
    Look(Arc<str>, Looking),
    Approve,
    Recall(Recalling),
    Waiting(ParkWait),
    Through(CallFuture),
    Over,
}

/// What the decision about connection and approval depends on.
pub(crate) struct GuardContext<'a> {
    pub(crate) connections: &'a [String],
    pub(crate) attribution: Option<&'a Attribution>,
    pub(crate) session: Session<'a>,
    pub(crate) history: Option<&'a [PastCall]>,
}

/// A call lacks a connection or an approval. A person is asked for it, or the call is refused because the runtime is
/// unattended.
pub(crate) enum MissingGuard<T> {
    Asks(T),
    Refused(ToolError),
}

impl<T> MissingGuard<T> {
    fn of(what: T, policy: &EffectivePolicy, around: &GuardContext<'_>, refuse: impl FnOnce(T) -> ToolError) -> Self {
        match policy.unattended == Unattended::Deny && !around.session.attended {
            true => Self::Refused(refuse(what)),
            false => Self::Asks(what),
        }
    }
}

/// The connection that a call lacks, if any. Calls and dry runs use this and [`approval`], in this order and nothing
/// else, so a dry run predicts what the call would do.
pub(crate) fn connection(
    tool: &Tool,
    policy: &EffectivePolicy,
    around: &GuardContext<'_>,
) -> Option<MissingGuard<Arc<str>>> {
    let provider = tool.spec().guards.connection.as_ref()?;
    let connected = around.connections.iter().any(|connected| connected == &**provider);
    let refuse = |provider: Arc<str>| ToolError::connection_required(&*provider);
    (!connected).then(|| MissingGuard::of(provider.clone(), policy, around, refuse))
}

/// The approval that a call lacks, if any.
pub(crate) fn approval(
    tool: &Tool,
    args: &Value,
    policy: &EffectivePolicy,
    around: &GuardContext<'_>,
) -> Option<MissingGuard<Need>> {
    if policy.demands.is_empty() {
        return None;
    }
    let facts = Facts {
        args,
        tool: Some(tool.spec()),
        caller: around.attribution.and_then(|attribution| attribution.principal.as_deref()),
        cause: around.attribution.and_then(|attribution| attribution.cause.as_deref()),
        session: around.session,
        history: around.history,
    };
    let need = policy.approval(&facts)?;
    Some(MissingGuard::of(need, policy, around, |why| {
        let tool = &tool.spec().name;
        ToolError::denied(format!("this call of `{tool}` needs approval, and this runtime is unattended: {why}"))
    }))
}

/// Whether the call needs a connection or an approval, or its history must be read to find out.
pub(crate) fn is_guarded(run: &Run, ready: &ReadyCall) -> bool {
    lacks_connection(run, ready).is_some()
        || must_recall(run, ready, false)
        || lacks_approval(run, ready, SessionCalls::None).is_some()
}

fn lacks_connection(run: &Run, ready: &ReadyCall) -> Option<MissingGuard<Arc<str>>> {
    connection(&ready.tool, ready.policy(), &around(run, None))
}

/// Whether the history of the run, or of its session, must be read before the policy can be evaluated. `has_session`:
/// that of the session was read for this evaluation.
fn must_recall(run: &Run, ready: &ReadyCall, has_session: bool) -> bool {
    ready.policy().uses_history()
        && ((run.session.is_some() && !has_session) || run.with(|machine| machine.must_recall()))
}

fn lacks_approval(run: &Run, ready: &ReadyCall, of_session: SessionCalls) -> Option<MissingGuard<Need>> {
    let policy = ready.policy();
    let past = policy.uses_history().then(|| run.with(|machine| machine.history_after(of_session))).flatten();
    approval(&ready.tool, &ready.call.args, policy, &around(run, past.as_deref()))
}

fn around<'a>(run: &'a Run, history: Option<&'a [PastCall]>) -> GuardContext<'a> {
    let session = Session { id: run.session.as_deref(), attended: run.kernel.env.attended };
    let attribution = run.attribution.as_deref();
    GuardContext { connections: &run.kernel.env.providers.connected, attribution, session, history }
}

/// The digest of the tool and the arguments that a decision applies to.
fn digest(ready: &ReadyCall) -> String {
    let mut encoder = Encoder::new();
    encoder.text(ready.tool.spec().id.as_str());
    encoder.value(&ready.call.args);
    encoder.finish().to_string()
}

/// The error of a call whose connection a person refused, and its record.
pub(super) fn refused_connection(on: &Blocked, reason: String) -> (ToolError, Settled) {
    let provider = if let Blocked::Connection { provider, .. } = on { provider } else { "the provider" };
    let error = ToolError::denied(format!("the connection to {provider} was refused: {reason}"));
    (error, Settled { by: Settler::Refuser(None), reason })
}

impl GuardedCall {
    pub(crate) fn new(run: Arc<Run>, scope: Scope, operation: Operation, ready: ReadyCall) -> Self {
        let (heeds_cancel, asked) = (run.heeds_cancel(&operation.path), run.kernel.env.clock.ticks());
        Self {
            run,
            scope,
            operation: Some(operation),
            ready: Some(ready),
            heeds_cancel,
            asked,
            earlier: EarlierTime::default(),
            registration: Registration::default(),
            awake: Awake::default(),
            of_session: None,
            stage: GuardStage::Ask,
        }
    }

    /// Sets when it was asked for. The time that a person takes to decide is part of its time.
    pub(crate) fn asked_at(&mut self, ticks: u64) {
        self.asked = ticks;
    }

    /// Adds time that had passed before.
    pub(crate) fn after(&mut self, earlier: EarlierTime) {
        self.earlier = earlier;
    }

    pub(crate) fn accept(&mut self) {
        match (&mut self.stage, &mut self.operation) {
            (GuardStage::Through(call), _) => call.accept(),
            (_, Some(operation)) => operation.accept(&self.run),
            _ => {}
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<OpOutcome> {
        loop {
            if self.run.is_stopped() {
                return Poll::Pending;
            }
            self.stage = match std::mem::replace(&mut self.stage, GuardStage::Over) {
                GuardStage::Ask => match self.ask() {
                    Ok(stage) => stage,
                    Err(outcome) => return Poll::Ready(outcome),
                },
                GuardStage::Connect => self.connect(),
                GuardStage::Look(provider, mut looking) => match looking.poll_unpin(cx) {
                    Poll::Ready(found) => self.found(provider, found),
                    Poll::Pending => {
                        self.stage = GuardStage::Look(provider, looking);
                        self.registration.register(&self.run, cx);
                        let path = self.operation.as_ref().map(|operation| operation.path.clone()).unwrap_or_default();
                        if let Some(error) = self.run.cancellation(&path, self.heeds_cancel) {
                            self.stage = self.refuse(error);
                            continue;
                        }
                        self.run.pump();
                        self.awake.set(&self.run, true);
                        return Poll::Pending;
                    }
                },
                GuardStage::Approve => self.approve(),
                GuardStage::Recall(mut recalling) => match recalling.poll(cx, &self.run, &mut self.registration) {
                    Poll::Ready(of_session) => {
                        self.of_session = Some(of_session);
                        GuardStage::Approve
                    }
                    Poll::Pending => {
                        self.stage = GuardStage::Recall(recalling);
                        self.run.pump();
                        self.awake.set(&self.run, true);
                        return Poll::Pending;
                    }
                },
                GuardStage::Waiting(mut wait) => match self.wait(cx, &mut wait) {
                    Poll::Ready(stage) => stage,
                    Poll::Pending => {
                        let is_checking = wait.is_checking();
                        self.stage = GuardStage::Waiting(wait);
                        self.run.pump();
                        self.awake.set(&self.run, is_checking);
                        return Poll::Pending;
                    }
                },
                GuardStage::Through(mut call) => {
                    self.awake.set(&self.run, false);
                    let polled = call.poll(cx);
                    self.stage = GuardStage::Through(call);
                    return polled;
                }
                GuardStage::Over => return Poll::Pending,
            };
        }
    }

    /// Asks the journal where to continue.
    fn ask(&mut self) -> Result<GuardStage, OpOutcome> {
        let Some(operation) = &mut self.operation else { return Ok(GuardStage::Over) };
        let Some(asked) = operation.asked() else { return Ok(GuardStage::Over) };
        let path = &operation.path;
        let (past, decision) = self.run.with(|machine| machine.ask_past(path, asked));
        if let Some(past) = &past {
            operation.mark_recorded();
            self.earlier = past.spent.by(self.run.at(self.asked));
        }
        // Since it was last asked for: a decision about an earlier request does not count.
        let since = past.map_or_else(|| self.run.now(), |past| past.at);
        Ok(match decision {
            Decision::Answer { result, at } => return Err(OpOutcome { result, at, times: Times::default() }),
            Decision::Park { on: on @ Blocked::Approval { .. }, until, .. } => {
                GuardStage::Waiting(ParkWait::new(on, until, since))
            }
            Decision::Park { on: Blocked::Connection { provider, after, why }, until, .. } => {
                let check = ConnectionCheck::first(&self.run, &provider, 0, None, true);
                let on = Blocked::Connection { provider, after, why };
                GuardStage::Waiting(ParkWait::new(on, until, since).checking(check))
            }
            Decision::Granted(grant) if self.is_valid(&grant.digest, grant.until) => self.through(),
            // A void grant is requested again.
            Decision::Granted(_) => GuardStage::Approve,
            Decision::Perform { .. } => GuardStage::Connect,
            // Held by the machine, or recorded by something other than a guarded call.
            _ => GuardStage::Over,
        })
    }

    fn is_valid(&self, of: &str, until: Timestamp) -> bool {
        self.ready.as_ref().is_some_and(|ready| digest(ready) == *of) && self.run.now() < until
    }

    fn connect(&mut self) -> GuardStage {
        let Some(ready) = &self.ready else { return GuardStage::Over };
        // Whatever would follow without a connection: there may be one in the store.
        let provider = ready.tool.spec().guards.connection.clone();
        let Some(provider) = provider.filter(|_| lacks_connection(&self.run, ready).is_some()) else {
            return GuardStage::Approve;
        };
        let query = ConnectionQuery { refreshes: true, ..ConnectionQuery::new(connect::key(&self.run, &provider)) };
        let looking = connect::look(&self.run, query);
        GuardStage::Look(provider, looking)
    }

    /// The store was searched for the connection.
    fn found(&mut self, provider: Arc<str>, found: Result<ConnectionState, StoreError>) -> GuardStage {
        let why = match found {
            Ok(ConnectionState::Connected { .. }) => return GuardStage::Approve,
            Ok(ConnectionState::Missing { why }) => why,
            // No body sees the failure: the run is taken up again once the store can be read.
            Err(error) => {
                self.run.failed(error);
                return GuardStage::Over;
            }
        };
        let Some(ready) = &self.ready else { return GuardStage::Over };
        match lacks_connection(&self.run, ready) {
            Some(MissingGuard::Refused(error)) => self.refuse(error),
            _ => {
                let within = ready.policy().approval_within;
                let after = self.run.with(|machine| machine.connected_at(&provider));
                let stage = self.park(Blocked::Connection { provider: provider.clone(), after, why }, within);
                let GuardStage::Waiting(wait) = stage else { return stage };
                let mark = self.run.with(|machine| machine.publish_now());
                GuardStage::Waiting(wait.checking(ConnectionCheck::after_asking(&self.run, &provider, mark)))
            }
        }
    }

    fn approve(&mut self) -> GuardStage {
        let Some(ready) = &self.ready else { return GuardStage::Over };
        if must_recall(&self.run, ready, self.of_session.is_some()) {
            return GuardStage::Recall(Recalling::default());
        }
        // Read again for the next evaluation: other runs of the session go on meanwhile.
        let of_session = self.of_session.take().unwrap_or(SessionCalls::None);
        match lacks_approval(&self.run, ready, of_session) {
            None => self.through(),
            Some(MissingGuard::Refused(error)) => self.refuse(error),
            Some(MissingGuard::Asks(need)) => {
                let (tool, why) = (ready.tool.spec().name.clone(), need.to_string());
                let (digest, within) = (digest(ready), ready.policy().approval_within);
                self.park(Blocked::Approval { tool, digest, why }, within)
            }
        }
    }

    fn park(&mut self, on: Blocked, within: std::time::Duration) -> GuardStage {
        let Some(operation) = &mut self.operation else { return GuardStage::Over };
        if let (Some(ready), Some(reason)) = (&self.ready, WaitReason::of(&on)) {
            narrate(&ready.tool, &self.run, &operation.path, Phase::Waiting(reason), &ready.call.args);
        }
        let now = self.run.now();
        let until = Some(now + within);
        let event = Event::Parked { on: on.clone(), until, attempt: 0 };
        let park = Park { path: operation.path.clone(), operation: operation.describe(), on, since: now, until };
        let wait = ParkWait::begin(&self.run, park);
        // The same instant is recorded and listed, now and when the run is taken up again.
        operation.record_at(&self.run, now, event);
        GuardStage::Waiting(wait)
    }

    fn wait(&mut self, cx: &mut Context<'_>, wait: &mut ParkWait) -> Poll<GuardStage> {
        let Some(operation) = &self.operation else { return Poll::Ready(GuardStage::Over) };
        let describe = || operation.describe();
        let parked =
            ParkedOp { run: &self.run, path: &operation.path, operation: &describe, heeds_cancel: self.heeds_cancel };
        let cause = std::task::ready!(wait.poll(cx, &mut self.registration, &parked, |_, cause| cause));
        // The run must not be suspended before the answer is recorded.
        self.awake.set(&self.run, true);
        Poll::Ready(match cause {
            WakeCause::Stopped(error) => self.refuse(error),
            // No reply key answers such a park.
            WakeCause::Revoked(_) => GuardStage::Over,
            WakeCause::Expired => self.expired(&wait.on),
            // The store decides: the connection may have expired or been deleted since the message was sent.
            WakeCause::Answer(ParkAnswer::Connected { refused: None, by_person: true }) => GuardStage::Connect,
            WakeCause::Answer(ParkAnswer::Connected { refused: None, by_person: false }) => GuardStage::Approve,
            WakeCause::Answer(ParkAnswer::Connected { refused: Some(reason), .. }) => {
                let (error, settled) = refused_connection(&wait.on, reason);
                self.refused_by(settled, error)
            }
            WakeCause::Answer(ParkAnswer::Decided { granted: false, by, reason, .. }) => {
                let error = ToolError::denied(format!("denied by {by}: {reason}"));
                self.refused_by(Settled { by: Settler::Refuser(Some(by)), reason }, error)
            }
            WakeCause::Answer(ParkAnswer::Decided { by, reason, until, .. }) => self.granted(wait, by, reason, until),
            WakeCause::Answer(ParkAnswer::Result(_)) => GuardStage::Over,
        })
    }

    fn granted(&mut self, wait: &ParkWait, by: String, reason: String, until: Timestamp) -> GuardStage {
        let Blocked::Approval { digest, .. } = &wait.on else { return GuardStage::Over };
        if !self.is_valid(digest, until) {
            tracing::warn!(run = %self.run.id, by, "a grant arrived after it expired; the approval is requested again");
            return GuardStage::Approve;
        }
        let grant = Grant { digest: digest.clone(), by, reason, until };
        if let Some(operation) = &mut self.operation {
            operation.record(&self.run, Event::Granted(grant));
        }
        self.through()
    }

    fn expired(&mut self, on: &Blocked) -> GuardStage {
        let error = match on {
            Blocked::Connection { provider, .. } => ToolError::connection_required(&**provider),
            Blocked::Approval { tool, why, .. } => ToolError::denied(format!(
                "no decision was made in time about this call of `{tool}`, which needs approval: {why}"
            )),
            _ => ToolError::denied("no answer came in time"),
        };
        self.refuse(error)
    }

    fn through(&mut self) -> GuardStage {
        let (Some(ready), Some(operation)) = (self.ready.take(), self.operation.take()) else {
            return GuardStage::Over;
        };
        GuardStage::Through(ready.future(&self.run, &self.scope, operation).after(self.spent()))
    }

    /// The time it took until the decision.
    fn spent(&self) -> EarlierTime {
        self.earlier.waited(self.run.kernel.env.clock.ticks().saturating_sub(self.asked))
    }

    fn refuse(&mut self, error: ToolError) -> GuardStage {
        match self.operation.take() {
            Some(operation) => {
                GuardStage::Through(CallFuture::refused(self.run.clone(), operation, error).after(self.spent()))
            }
            None => GuardStage::Over,
        }
    }

    /// Ends the call because a person refused it.
    fn refused_by(&mut self, by: Settled, error: ToolError) -> GuardStage {
        match self.operation.take() {
            Some(operation) => {
                GuardStage::Through(CallFuture::refused_by(self.run.clone(), operation, by, error).after(self.spent()))
            }
            None => GuardStage::Over,
        }
    }
}
