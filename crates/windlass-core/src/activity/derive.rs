//! Derives activities from the records of a journal, without I/O.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use smallvec::{SmallVec, smallvec};

use super::{Activity, Cursor, Failure, Happening, Position};
use crate::attribution::Attribution;
use crate::call::idempotency_key;
use crate::id::RunId;
use crate::path::Path;
use crate::policy::Policy;
use crate::run::record::{Asked, Event, Finished, OpKind, Record, Recorded};
use crate::run::state::Ending;
use crate::time::Timestamp;
use crate::tool::narrate::{Phase, WaitReason};
use crate::tool::projection::{ModelView, OutputUri};
use crate::tool::{Effect, Tool, ToolError, Toolbox};

/// The activities of one record, in order, each with its time.
type Happenings = SmallVec<[(Timestamp, Happening); 2]>;

/// The operations of a run that have started and not ended: the part of the past that is needed to interpret a later
/// record.
#[derive(Default)]
pub(crate) struct OpenOperations {
    open: BTreeMap<Path, OpenOperation>,
    cancelled: Option<Cancelled>,
    generation: u32,
    /// Of a fork: the runs that its first records were copied from.
    origins: Vec<CopyOrigin>,
    /// Records so far that are not about the fork itself. Counted for forks only.
    records: u32,
}

/// A run that the first records of a fork were copied from.
struct CopyOrigin {
    run: RunId,
    generation: u32,
    /// How many records were made by this run, or by the origins before it.
    copied: u32,
}

/// An operation that has started and not ended.
#[derive(Clone, Debug)]
pub(crate) struct OpenOperation {
    pub(crate) asked: Asked,
    pub(crate) since: Timestamp,
    /// The last attempt that was recorded as started, if it may still run.
    pub(crate) attempt: Option<OpenAttempt>,
    /// Whether a durable body or a group was entered.
    pub(crate) entered: bool,
}

/// An attempt that may still run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenAttempt {
    pub(crate) attempt: u32,
    pub(crate) since: Timestamp,
    /// When it is over at the latest, if that is recorded.
    pub(crate) over_by: Option<Timestamp>,
}

/// Who cancelled the run, why, and when.
#[derive(Clone, Debug)]
pub(crate) struct Cancelled {
    pub(crate) by: String,
    pub(crate) reason: String,
    pub(crate) at: Timestamp,
}

/// The run that activities are derived for, and how they are shown.
pub(crate) struct ActivityContext<'a> {
    pub(crate) run: RunId,
    pub(crate) parent: Option<&'a (RunId, Path)>,
    /// Who the run acts for, and what caused it.
    pub(crate) attribution: Option<&'a Attribution>,
    /// The runtime's own toolbox. A recorded call names the layers in which its tool is found.
    pub(crate) toolbox: &'a Toolbox,
    /// The session of the run, whose own tools are found too.
    pub(crate) session: Option<&'a Arc<str>>,
    pub(crate) locale: &'a str,
    /// The runtime's policy, which bounds the values that are shown.
    pub(crate) policy: &'a Policy,
}

impl OpenOperations {
    /// The operations that have started and not ended.
    pub(crate) fn open(&self) -> &BTreeMap<Path, OpenOperation> {
        &self.open
    }

    pub(crate) fn cancelled(&self) -> Option<&Cancelled> {
        self.cancelled.as_ref()
    }

    /// Applies a record. Returns the operation it belongs to, if that has started.
    pub(crate) fn note(&mut self, record: &Record) -> Option<OpenOperation> {
        match &record.event {
            Event::Continued { generation, .. } => *self = Self { generation: *generation, ..Self::default() },
            Event::Forked { from, generation, copied, .. } => {
                self.origins.push(CopyOrigin { run: *from, generation: *generation, copied: *copied });
            }
            _ if !self.origins.is_empty() => self.records = self.records.saturating_add(1),
            _ => {}
        }
        if let Event::Cancelled { by, reason } = &record.event {
            self.cancelled = Some(Cancelled { by: by.clone(), reason: reason.clone(), at: record.at });
        }
        // A version mark is a point in the code, not an operation that starts and ends.
        if let Some(asked) = record.asked.as_ref().filter(|asked| asked.kind != OpKind::Version) {
            let open = OpenOperation { asked: asked.clone(), since: began(record), attempt: None, entered: false };
            self.open.insert(record.path.clone(), open);
        }
        if let Event::Finished(_) = record.event {
            let own = self.open.remove(&record.path);
            // Operations that the body left open ended with it.
            let below = |path: &Path| path.positions().starts_with(record.path.positions());
            self.open.retain(|path, _| !below(path));
            return own;
        }
        let open = self.open.get_mut(&record.path)?;
        match &record.event {
            Event::Attempting { attempt } => {
                open.attempt = Some(OpenAttempt { attempt: *attempt, since: record.at, over_by: None });
            }
            Event::Intended { attempt, over_by } => {
                open.attempt = Some(OpenAttempt { attempt: *attempt, since: record.at, over_by: Some(*over_by) });
            }
            Event::Entered => open.entered = true,
            Event::Failed { .. } | Event::Doubted { .. } | Event::Settled { .. } | Event::Parked { .. } => {
                open.attempt = None;
            }
            _ => {}
        }
        Some(open.clone())
    }

    /// The activities of a record. Their number depends only on the journal, so that cursors are the same for readers
    /// with other tools or in another language.
    pub(crate) fn activities(
        &mut self,
        seq: u64,
        record: &Record,
        context: &ActivityContext<'_>,
    ) -> SmallVec<[Activity; 2]> {
        let open = self.note(record);
        let mut happenings = context.beginning(record);
        happenings.extend(context.event(record, open.as_ref()));
        if let Some(open) = &open {
            happenings.iter_mut().for_each(|(_, what)| self.add_key(what, record, &open.asked, context.run));
        }
        let numbered = happenings.into_iter().zip(0u32..);
        let activity = |((at, what), index)| Activity {
            run: context.run,
            position: Position::Recorded(Cursor { record: seq, index }),
            path: record.path.clone(),
            at,
            parent: context.parent.cloned().map(Box::new),
            what,
        };
        numbered.map(activity).collect()
    }
}

impl OpenOperations {
    /// The idempotency key of the open operation at `path`, if its attempts have one.
    pub(crate) fn idempotency_key(&self, run: RunId, path: &Path) -> Option<String> {
        let has_key = self.open.get(path).is_some_and(|open| has_key(&open.asked));
        has_key.then(|| idempotency_key(run, self.generation, path))
    }

    /// Adds the idempotency key to what `record` says of an operation that was `asked` for.
    fn add_key(&self, what: &mut Happening, record: &Record, asked: &Asked, run: RunId) {
        let key = match what {
            Happening::CallStarted { idempotency_key, .. }
            | Happening::OperationStarted { idempotency_key, .. }
            | Happening::AttemptStarted { idempotency_key, .. }
                if has_key(asked) =>
            {
                idempotency_key
            }
            Happening::InDoubt { idempotency_key, .. } => idempotency_key,
            _ => return,
        };
        // The attempts of a copied record were made by the run that it was copied from.
        let copied = |origin: &&CopyOrigin| (1..=origin.copied).contains(&self.records);
        let origin = self.origins.iter().find(copied).map(|origin| (origin.run, origin.generation));
        let (run, generation) = origin.unwrap_or((run, self.generation));
        *key = Some(idempotency_key(run, generation, &record.path));
    }
}

/// Whether the attempts are made under an idempotency key: those of a call or a step that may change something outside.
fn has_key(asked: &Asked) -> bool {
    let attempted = matches!(asked.kind, OpKind::Call | OpKind::Step) && !asked.unresolved && asked.broken.is_none();
    attempted && asked.effect != Effect::Readonly
}

/// The name of an operation. For a signal: its name and its recipient.
fn name(asked: &Asked) -> Arc<str> {
    let signal = asked.input.as_deref().and_then(|input| input["name"].as_str());
    match (asked.kind, signal) {
        (OpKind::Signal, Some(signal)) => format!("{signal} to run {}", asked.name).into(),
        _ => asked.name.clone(),
    }
}

/// When the operation of this first record was requested. An operation that never waited has only one record, with its
/// end and its duration.
fn began(record: &Record) -> Timestamp {
    match &record.event {
        Event::Finished(finished) => {
            let total = i64::try_from(finished.times.total / 1_000).unwrap_or(i64::MAX);
            Timestamp::from_micros(record.at.as_micros().saturating_sub(total))
        }
        _ => record.at,
    }
}

impl ActivityContext<'_> {
    /// The activities for the start of an operation, from the first record of its path.
    fn beginning(&self, record: &Record) -> Happenings {
        let mut happenings = Happenings::new();
        let Some(asked) = &record.asked else { return happenings };
        let at = began(record);
        if record.path.is_root() && !matches!(record.event, Event::Continued { .. }) {
            let principal = self.attribution.and_then(|attribution| attribution.principal.clone());
            let cause = self.attribution.and_then(|attribution| attribution.cause.clone());
            happenings.push((at, Happening::RunStarted { what: asked.to_string(), principal, cause }));
        }
        if let Event::Continued { generation, .. } = record.event {
            happenings.push((at, Happening::RunContinued { generation }));
        }
        match asked.kind {
            // Reported with their result, which is in the same record.
            OpKind::Emit | OpKind::Spawn | OpKind::Version => {}
            _ => happenings.push((at, self.start(asked))),
        }
        happenings
    }

    fn start(&self, asked: &Asked) -> Happening {
        match asked.kind {
            OpKind::Call => self.call_started(asked),
            operation => {
                Happening::OperationStarted { operation, name: name(asked), identity: None, idempotency_key: None }
            }
        }
    }

    /// The start of a call or a step that has no record yet, as its record will report it.
    pub(crate) fn started(&self, asked: &Asked, generation: u32, path: &Path) -> Happening {
        let mut started = self.start(asked);
        if let Happening::CallStarted { idempotency_key: key, .. }
        | Happening::OperationStarted { idempotency_key: key, .. } = &mut started
        {
            *key = has_key(asked).then(|| idempotency_key(self.run, generation, path));
        }
        started
    }

    fn event(&self, record: &Record, open: Option<&OpenOperation>) -> Happenings {
        let what = match &record.event {
            // What is cancelled below a path tells so when it ends.
            Event::Accepted | Event::Entered | Event::Continued { .. } | Event::CancelledBelow { .. } => {
                return Happenings::new();
            }
            Event::Prepared(prepared) => Happening::CallPrepared { rewritten: prepared.args.is_some() },
            Event::Attempting { attempt } | Event::Intended { attempt, .. } => {
                Happening::AttemptStarted { attempt: *attempt, idempotency_key: None }
            }
            Event::Failed { attempt, error, retry_at } => {
                let failure = Failure::of(error);
                Happening::AttemptFailed { attempt: *attempt, failure, retry_at: *retry_at }
            }
            Event::Doubted { attempt, cause, said, .. } => {
                let (attempt, cause, said) = (*attempt, *cause, said.clone());
                Happening::InDoubt { attempt, cause, said, idempotency_key: None }
            }
            Event::Settled { attempt, by, reason } => {
                Happening::Settled { attempt: *attempt, by: by.clone(), reason: reason.clone() }
            }
            Event::Parked { on, until, .. } => {
                let asked = open.map(|open| &open.asked).filter(|asked| asked.kind == OpKind::Call);
                let line = asked.zip(WaitReason::of(on)).and_then(|(asked, on)| self.line(asked, Phase::Waiting(on)));
                Happening::Parked { on: on.clone(), until: *until, line }
            }
            Event::Granted(grant) => {
                let (by, reason) = (grant.by.clone(), grant.reason.clone());
                Happening::Granted { by, reason, until: grant.until }
            }
            Event::Forked { from, cut, .. } => Happening::RunForked { from: *from, cut: cut.to_string() },
            Event::Recovered => Happening::RunRecovered,
            Event::Resumed => Happening::RunResumed,
            Event::Restored { .. } => Happening::RunRestored,
            Event::Revoked { reason } => Happening::KeysRevoked { reason: reason.clone() },
            Event::Cancelled { by, reason } => Happening::RunCancelled { by: by.clone(), reason: reason.clone() },
            Event::Finished(finished) => return self.finished(record, finished, open),
        };
        smallvec![(record.at, what)]
    }

    fn finished(&self, record: &Record, finished: &Finished, open: Option<&OpenOperation>) -> Happenings {
        let mut happenings = Happenings::new();
        if let Some(settled) = finished.settlement() {
            let (attempt, by, reason) = (finished.attempts, settled.by.clone(), settled.reason.clone());
            happenings.push((record.at, Happening::Settled { attempt, by, reason }));
        }
        if let Some(open) = open {
            happenings.push((record.at, self.ended(record, finished, open)));
        }
        if record.path.is_root() {
            let answer = finished.answer();
            let ending = match &answer {
                Ok(_) => Ending::Ok,
                Err(error) if matches!(**error, ToolError::Cancelled { .. }) => Ending::Cancelled,
                Err(_) => Ending::Failed,
            };
            let failure = answer.as_ref().err().map(|error| Failure::of(error));
            let (value, shortened) = self.value(record, open, &answer);
            happenings.push((record.at, Happening::RunFinished { ending, value, shortened, failure }));
        }
        happenings
    }

    fn ended(&self, record: &Record, finished: &Finished, open: &OpenOperation) -> Happening {
        let answer = finished.answer();
        let failure = answer.as_ref().err().map(|error| Failure::of(error));
        let times = finished.took(record.at, open.since);
        let (name, attempts) = (name(&open.asked), finished.attempts);
        match (open.asked.kind, &answer) {
            (OpKind::Call, _) => {
                let phase = if failure.is_none() { Phase::End } else { Phase::Failure };
                let line = self.line(&open.asked, phase);
                let (value, shortened) = self.value(record, Some(open), &answer);
                Happening::CallFinished { tool: name, value, shortened, failure, attempts, times, line }
            }
            (OpKind::Emit, Ok(_)) => {
                let value = open.asked.input.as_deref().cloned().unwrap_or_default();
                Happening::Emitted { name, value }
            }
            (OpKind::Spawn, Ok(output)) => match output.value["run"].as_str().and_then(|run| run.parse().ok()) {
                Some(child) => Happening::Spawned { child, tool: name },
                None => Happening::OperationFinished { operation: OpKind::Spawn, name, failure, attempts, times },
            },
            (operation, _) => Happening::OperationFinished { operation, name, failure, attempts, times },
        }
    }

    fn call_started(&self, asked: &Asked) -> Happening {
        let args = self.tool(asked).and_then(|tool| tool.without_secrets(asked.input.as_deref()?));
        let (tool, call_id, line) = (asked.name.clone(), asked.call_id.clone(), self.line(asked, Phase::Start));
        Happening::CallStarted { tool, args, call_id, line, idempotency_key: None }
    }

    /// The value of an answer within the output budget, and whether it was cut.
    fn value(&self, record: &Record, open: Option<&OpenOperation>, answer: &Recorded) -> (Option<Value>, bool) {
        let Ok(output) = answer else { return (None, false) };
        let tool = open.and_then(|open| self.tool(&open.asked));
        let own = open.and_then(|open| open.asked.limits.as_deref());
        let view = ModelView::of(tool.as_ref(), &Arc::default(), (own, self.policy), false);
        let output = output.without_secrets();
        let shown = view.unprojected(&output, &OutputUri { run: self.run, path: &record.path });
        let shortened = matches!(shown, Cow::Owned(_));
        (Some(shown.into_owned()), shortened)
    }

    fn line(&self, asked: &Asked, phase: Phase) -> Option<String> {
        self.tool(asked)?.narrate(self.locale, phase, asked.input.as_deref().unwrap_or(&Value::Null))
    }

    fn tool(&self, asked: &Asked) -> Option<Arc<Tool>> {
        self.toolbox.recorded(&asked.name, &asked.layers, self.session)
    }
}

#[cfg(test)]
mod tests;
