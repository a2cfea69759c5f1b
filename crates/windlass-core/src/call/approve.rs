//! Connection and approval: what stands between a checked call and its first attempt. Each parks the call, and nothing of
//! it is decided twice: what was decided is in the journal before anything is attempted.

use std::sync::Arc;
use std::task::{Context, Poll};

use serde_json::Value;

use super::child::CallFuture;
use super::operation::Operation;
use super::plan::{Ready, Scope};
use super::wait::{Sleeper, Wait, Woken};
use crate::policy::{Facts, Need, PastCall, Resolved, Session, Unattended};
use crate::run::parks::Answer;
use crate::run::recall::Recalling;
use crate::run::record::{Event, Grant, Settled, Settler, Told};
use crate::run::replay::Decision;
use crate::run::spent::Earlier;
use crate::run::state::{Blocked, Park};
use crate::run::{Awake, Registration, Run};
use crate::time::{Times, Timestamp};
use crate::tool::{Tool, ToolError};
use crate::value::digest::Encoder;

/// A call that must be connected, or approved, first.
pub(crate) struct Guarded {
    run: Arc<Run>,
    scope: Scope,
    operation: Option<Operation>,
    ready: Option<Ready>,
    heeds_cancel: bool,
    /// The ticks when it was asked for, or taken up again, and what had passed by then.
    asked: u64,
    earlier: Earlier,
    registration: Registration,
    awake: Awake,
    stage: Stage,
}

enum Stage {
    Ask,
    Connect,
    Approve,
    Recall(Recalling),
    Waiting(Wait),
    Through(CallFuture),
    Over,
}

/// The circumstances in which leave is asked for.
pub(crate) struct Around<'a> {
    pub(crate) connections: &'a [String],
    pub(crate) session: Session<'a>,
    pub(crate) history: Option<&'a [PastCall]>,
}

/// A call lacks something: a person is asked for it, or the call is refused in an unattended runtime.
pub(crate) enum Lacks<T> {
    Asks(T),
    Refused(ToolError),
}

impl<T> Lacks<T> {
    fn of(what: T, policy: &Resolved, around: &Around<'_>, refuse: impl FnOnce(T) -> ToolError) -> Self {
        match policy.unattended == Unattended::Deny && !around.session.attended {
            true => Self::Refused(refuse(what)),
            false => Self::Asks(what),
        }
    }
}

/// The connection a call lacks, if it lacks one. Calls and dry runs ask this and [`approval`], in this order, and nothing
/// else: so a dry run tells what the call would do.
pub(crate) fn connection(tool: &Tool, policy: &Resolved, around: &Around<'_>) -> Option<Lacks<Arc<str>>> {
    let provider = tool.spec().guards.connection.as_ref()?;
    let connected = around.connections.iter().any(|connected| connected == &**provider);
    let refuse = |provider: Arc<str>| ToolError::ConnectionRequired { provider: provider.to_string() };
    (!connected).then(|| Lacks::of(provider.clone(), policy, around, refuse))
}

/// The approval a call lacks, if it lacks one.
pub(crate) fn approval(tool: &Tool, args: &Value, policy: &Resolved, around: &Around<'_>) -> Option<Lacks<Need>> {
    if policy.demands.is_empty() {
        return None;
    }
    let facts = Facts { args, tool: Some(tool.spec()), session: around.session, history: around.history };
    let need = policy.approval(&facts)?;
    Some(Lacks::of(need, policy, around, |why| {
        let tool = &tool.spec().name;
        ToolError::denied(format!("this call of `{tool}` needs approval, and nobody attends to it: {why}"))
    }))
}

/// Whether anything stands in the way of a call.
pub(crate) fn is_guarded(run: &Run, ready: &Ready) -> bool {
    lacks_connection(run, ready).is_some() || must_recall(run, ready) || lacks_approval(run, ready).is_some()
}

fn lacks_connection(run: &Run, ready: &Ready) -> Option<Lacks<Arc<str>>> {
    connection(&ready.tool, ready.policy(), &around(run, None))
}

/// Whether the history of the run must be read before anything can be said of the call.
fn must_recall(run: &Run, ready: &Ready) -> bool {
    ready.policy().uses_history() && run.with(|machine| machine.must_recall())
}

fn lacks_approval(run: &Run, ready: &Ready) -> Option<Lacks<Need>> {
    let policy = ready.policy();
    let uses_history = policy.uses_history();
    let past = uses_history.then(|| run.with(|machine| machine.past_calls().map(<[_]>::to_vec))).flatten();
    approval(&ready.tool, &ready.call.args, policy, &around(run, past.as_deref()))
}

fn around<'a>(run: &'a Run, history: Option<&'a [PastCall]>) -> Around<'a> {
    let session = Session { id: run.session.as_deref(), attended: run.kernel.env.attended };
    Around { connections: &run.kernel.env.connections, session, history }
}

/// Says which call with which arguments a decision is about.
fn digest(ready: &Ready) -> String {
    let mut encoder = Encoder::new();
    encoder.text(ready.tool.spec().id.as_str());
    encoder.value(&ready.call.args);
    encoder.finish().to_string()
}

impl Guarded {
    pub(crate) fn new(run: Arc<Run>, scope: Scope, operation: Operation, ready: Ready) -> Self {
        let (heeds_cancel, asked) = (run.heeds_cancel(), run.kernel.env.clock.ticks());
        Self {
            run,
            scope,
            operation: Some(operation),
            ready: Some(ready),
            heeds_cancel,
            asked,
            earlier: Earlier::default(),
            registration: Registration::default(),
            awake: Awake::default(),
            stage: Stage::Ask,
        }
    }

    /// It was asked for then; what a person takes to decide is part of its time.
    pub(crate) fn asked_at(&mut self, ticks: u64) {
        self.asked = ticks;
    }

    /// So much of its time had passed before.
    pub(crate) fn after(&mut self, earlier: Earlier) {
        self.earlier = earlier;
    }

    pub(crate) fn accept(&mut self) {
        match (&mut self.stage, &mut self.operation) {
            (Stage::Through(call), _) => call.accept(),
            (_, Some(operation)) => operation.accept(&self.run),
            _ => {}
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Told> {
        loop {
            if self.run.is_stopped() {
                return Poll::Pending;
            }
            self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Ask => match self.ask() {
                    Ok(stage) => stage,
                    Err(told) => return Poll::Ready(told),
                },
                Stage::Connect => self.connect(),
                Stage::Approve => self.approve(),
                Stage::Recall(mut recalling) => match recalling.poll(cx, &self.run, &mut self.registration) {
                    Poll::Ready(()) => Stage::Approve,
                    Poll::Pending => {
                        self.stage = Stage::Recall(recalling);
                        self.run.pump();
                        self.awake.set(&self.run, true);
                        return Poll::Pending;
                    }
                },
                Stage::Waiting(mut wait) => match self.wait(cx, &mut wait) {
                    Poll::Ready(stage) => stage,
                    Poll::Pending => {
                        self.stage = Stage::Waiting(wait);
                        self.run.pump();
                        self.awake.set(&self.run, false);
                        return Poll::Pending;
                    }
                },
                Stage::Through(mut call) => {
                    self.awake.set(&self.run, false);
                    let polled = call.poll(cx);
                    self.stage = Stage::Through(call);
                    return polled;
                }
                Stage::Over => return Poll::Pending,
            };
        }
    }

    /// What the journal knows of it.
    fn ask(&mut self) -> Result<Stage, Told> {
        let Some(operation) = &mut self.operation else { return Ok(Stage::Over) };
        let Some(asked) = operation.asked() else { return Ok(Stage::Over) };
        let path = &operation.path;
        let (past, decision) = self.run.with(|machine| machine.ask_past(path, asked));
        if let Some(past) = &past {
            operation.is_written();
            self.earlier = past.spent.by(self.run.at(self.asked));
        }
        // Since it was asked for last: a decision about an earlier time is another one.
        let since = past.map_or_else(|| self.run.now(), |past| past.at);
        Ok(match decision {
            Decision::Answer { result, at } => return Err(Told { result, at, times: Times::default() }),
            Decision::Park { on: on @ (Blocked::Approval { .. } | Blocked::Connection { .. }), until, .. } => {
                Stage::Waiting(Wait::new(on, until, since))
            }
            Decision::Granted(grant) if self.is_valid(&grant.digest, grant.until) => self.through(),
            // A grant that is void is asked for again.
            Decision::Granted(_) => Stage::Approve,
            Decision::Perform { .. } => Stage::Connect,
            // Held by the machine, or something no guarded call records.
            _ => Stage::Over,
        })
    }

    fn is_valid(&self, of: &str, until: Timestamp) -> bool {
        self.ready.as_ref().is_some_and(|ready| digest(ready) == *of) && self.run.now() < until
    }

    fn connect(&mut self) -> Stage {
        let Some(ready) = &self.ready else { return Stage::Over };
        match lacks_connection(&self.run, ready) {
            None => Stage::Approve,
            Some(Lacks::Refused(error)) => self.refuse(error),
            Some(Lacks::Asks(provider)) => {
                let within = ready.policy().approval_within;
                self.park(Blocked::Connection { provider }, within)
            }
        }
    }

    fn approve(&mut self) -> Stage {
        let Some(ready) = &self.ready else { return Stage::Over };
        if must_recall(&self.run, ready) {
            return Stage::Recall(Recalling::default());
        }
        match lacks_approval(&self.run, ready) {
            None => self.through(),
            Some(Lacks::Refused(error)) => self.refuse(error),
            Some(Lacks::Asks(need)) => {
                let (tool, why) = (ready.tool.spec().name.clone(), need.to_string());
                let (digest, within) = (digest(ready), ready.policy().approval_within);
                self.park(Blocked::Approval { tool, digest, why }, within)
            }
        }
    }

    fn park(&mut self, on: Blocked, within: std::time::Duration) -> Stage {
        let Some(operation) = &mut self.operation else { return Stage::Over };
        let now = self.run.now();
        let until = Some(now + within);
        let event = Event::Parked { on: on.clone(), until, attempt: 0 };
        let park = Park { path: operation.path.clone(), operation: operation.describe(), on, since: now, until };
        let wait = Wait::begin(&self.run, park);
        // Since when it waits is said in one way, now and when it is taken up again.
        operation.record_at(&self.run, now, event);
        Stage::Waiting(wait)
    }

    fn wait(&mut self, cx: &mut Context<'_>, wait: &mut Wait) -> Poll<Stage> {
        let Some(operation) = &self.operation else { return Poll::Ready(Stage::Over) };
        let describe = || operation.describe();
        let who =
            Sleeper { run: &self.run, path: &operation.path, operation: &describe, heeds_cancel: self.heeds_cancel };
        let woken = std::task::ready!(wait.poll(cx, &mut self.registration, &who, |_, woken| woken));
        // Until it is recorded, nothing about it may be forgotten.
        self.awake.set(&self.run, true);
        Poll::Ready(match woken {
            Woken::Stopped(error) => self.refuse(error),
            // No reply key answers it.
            Woken::Revoked(_) => Stage::Over,
            Woken::Expired => self.expired(&wait.on),
            Woken::Answer(Answer::Connected { refused: None }) => Stage::Approve,
            Woken::Answer(Answer::Connected { refused: Some(reason) }) => {
                let provider = match &wait.on {
                    Blocked::Connection { provider } => provider.to_string(),
                    _ => String::new(),
                };
                let error = ToolError::denied(format!("the connection to {provider} was refused: {reason}"));
                self.refused_by(Settled { by: Settler::Refuser(None), reason }, error)
            }
            Woken::Answer(Answer::Decided { granted: false, by, reason, .. }) => {
                let error = ToolError::denied(format!("denied by {by}: {reason}"));
                self.refused_by(Settled { by: Settler::Refuser(Some(by)), reason }, error)
            }
            Woken::Answer(Answer::Decided { by, reason, until, .. }) => self.granted(wait, by, reason, until),
            Woken::Answer(Answer::Result(_)) => Stage::Over,
        })
    }

    fn granted(&mut self, wait: &Wait, by: String, reason: String, until: Timestamp) -> Stage {
        let Blocked::Approval { digest, .. } = &wait.on else { return Stage::Over };
        if !self.is_valid(digest, until) {
            tracing::warn!(run = %self.run.id, by, "a grant came too late and is void; it is asked for again");
            return Stage::Approve;
        }
        let grant = Grant { digest: digest.clone(), by, reason, until };
        if let Some(operation) = &mut self.operation {
            operation.record(&self.run, Event::Granted(grant));
        }
        self.through()
    }

    fn expired(&mut self, on: &Blocked) -> Stage {
        let error = match on {
            Blocked::Connection { provider } => ToolError::ConnectionRequired { provider: provider.to_string() },
            Blocked::Approval { tool, why, .. } => ToolError::denied(format!(
                "nobody decided in time about this call of `{tool}`, which needs approval: {why}"
            )),
            _ => ToolError::denied("nobody answered in time"),
        };
        self.refuse(error)
    }

    fn through(&mut self) -> Stage {
        let (Some(ready), Some(operation)) = (self.ready.take(), self.operation.take()) else { return Stage::Over };
        Stage::Through(ready.future(&self.run, &self.scope, operation).after(self.spent()))
    }

    /// What it took until somebody decided.
    fn spent(&self) -> Earlier {
        self.earlier.waited(self.run.kernel.env.clock.ticks().saturating_sub(self.asked))
    }

    fn refuse(&mut self, error: ToolError) -> Stage {
        match self.operation.take() {
            Some(operation) => {
                Stage::Through(CallFuture::refused(self.run.clone(), operation, error).after(self.spent()))
            }
            None => Stage::Over,
        }
    }

    /// A person refused it.
    fn refused_by(&mut self, by: Settled, error: ToolError) -> Stage {
        match self.operation.take() {
            Some(operation) => {
                Stage::Through(CallFuture::refused_by(self.run.clone(), operation, by, error).after(self.spent()))
            }
            None => Stage::Over,
        }
    }
}
