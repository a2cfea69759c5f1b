//! From records to activities: one pure function over what a reader of a journal must remember of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use smallvec::{SmallVec, smallvec};

use super::{Activity, Cursor, Failure, Happening, Position};
use crate::id::RunId;
use crate::path::Path;
use crate::run::record::{Asked, Event, Finished, OpKind, Record};
use crate::run::state::Ending;
use crate::time::Timestamp;
use crate::tool::narrate::Phase;
use crate::tool::{Tool, ToolError, Toolbox};

/// What to say of a record, in order, and when it happened.
type Said = SmallVec<[(Timestamp, Happening); 2]>;

/// The operations of a run that have begun and not ended: as much of the past as a later record needs to be understood.
#[derive(Default)]
pub(crate) struct Story {
    open: BTreeMap<Path, Open>,
    cancelled: Option<Cancelled>,
}

/// An operation that has begun and not ended.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub(crate) asked: Asked,
    pub(crate) since: Timestamp,
    /// The attempt that was announced last, if it is not known to be over.
    pub(crate) attempt: Option<Attempting>,
    /// A durable body or a group was entered.
    pub(crate) entered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempting {
    pub(crate) attempt: u32,
    pub(crate) since: Timestamp,
    /// It is over by then, where that is known.
    pub(crate) over_by: Option<Timestamp>,
}

/// Who cancelled the run, and when.
#[derive(Clone, Debug)]
pub(crate) struct Cancelled {
    pub(crate) by: String,
    pub(crate) reason: String,
    pub(crate) at: Timestamp,
}

/// Whose story it is, and whom it is told.
pub(crate) struct Telling<'a> {
    pub(crate) run: RunId,
    pub(crate) parent: Option<&'a (RunId, Path)>,
    /// The runtime's own: a call says through which layers its tool is found.
    pub(crate) toolbox: &'a Toolbox,
    pub(crate) locale: &'a str,
}

impl Story {
    /// Operations that have begun and not ended.
    pub(crate) fn open(&self) -> &BTreeMap<Path, Open> {
        &self.open
    }

    pub(crate) fn cancelled(&self) -> Option<&Cancelled> {
        self.cancelled.as_ref()
    }

    /// Takes in a record; returns the operation it belongs to, if that was open.
    pub(crate) fn note(&mut self, record: &Record) -> Option<Open> {
        if let Event::Continued { .. } = record.event {
            *self = Self::default();
        }
        if let Event::Cancelled { by, reason } = &record.event {
            self.cancelled = Some(Cancelled { by: by.clone(), reason: reason.clone(), at: record.at });
        }
        // A place where the code changed neither begins nor ends.
        if let Some(asked) = record.asked.as_ref().filter(|asked| asked.kind != OpKind::Version) {
            let open = Open { asked: asked.clone(), since: began(record), attempt: None, entered: false };
            self.open.insert(record.path.clone(), open);
        }
        if let Event::Finished(_) = record.event {
            let own = self.open.remove(&record.path);
            // What a body left open ended with it.
            let below = |path: &Path| path.positions().starts_with(record.path.positions());
            self.open.retain(|path, _| !below(path));
            return own;
        }
        let open = self.open.get_mut(&record.path)?;
        match &record.event {
            Event::Attempting { attempt } => {
                open.attempt = Some(Attempting { attempt: *attempt, since: record.at, over_by: None });
            }
            Event::Intended { attempt, over_by } => {
                open.attempt = Some(Attempting { attempt: *attempt, since: record.at, over_by: Some(*over_by) });
            }
            Event::Entered => open.entered = true,
            Event::Failed { .. } | Event::Doubted { .. } | Event::Settled { .. } | Event::Parked { .. } => {
                open.attempt = None;
            }
            _ => {}
        }
        Some(open.clone())
    }

    /// What a record says to whoever watches. The number of activities depends on the journal alone: a reader with other
    /// tools, or in another language, counts alike.
    pub(crate) fn activities(&mut self, seq: u64, record: &Record, to: &Telling<'_>) -> SmallVec<[Activity; 2]> {
        let open = self.note(record);
        let mut said = to.beginning(record);
        said.extend(to.event(record, open.as_ref()));
        let numbered = said.into_iter().zip(0u32..);
        let activity = |((at, what), index)| Activity {
            run: to.run,
            position: Position::Recorded(Cursor { record: seq, index }),
            path: record.path.clone(),
            at,
            parent: to.parent.cloned().map(Box::new),
            what,
        };
        numbered.map(activity).collect()
    }
}

/// What an operation is called: a signal by its own name and whom it is for.
fn name(asked: &Asked) -> Arc<str> {
    let signal = asked.input.as_deref().and_then(|input| input["name"].as_str());
    match (asked.kind, signal) {
        (OpKind::Signal, Some(signal)) => format!("{signal} to run {}", asked.name).into(),
        _ => asked.name.clone(),
    }
}

/// When the operation of this first record was asked for: one that never waited says so with its end.
fn began(record: &Record) -> Timestamp {
    match &record.event {
        Event::Finished(finished) => {
            let total = i64::try_from(finished.times.total / 1_000).unwrap_or(i64::MAX);
            Timestamp::from_micros(record.at.as_micros().saturating_sub(total))
        }
        _ => record.at,
    }
}

impl Telling<'_> {
    /// What the first record of a path says of its beginning.
    fn beginning(&self, record: &Record) -> Said {
        let mut said = Said::new();
        let Some(asked) = &record.asked else { return said };
        let at = began(record);
        if record.path.is_root() && !matches!(record.event, Event::Continued { .. }) {
            said.push((at, Happening::RunStarted { what: asked.to_string() }));
        }
        if let Event::Continued { generation, .. } = record.event {
            said.push((at, Happening::RunContinued { generation }));
        }
        match asked.kind {
            OpKind::Call => said.push((at, self.call_started(asked))),
            // Said with what came of them, which is in the same record.
            OpKind::Emit | OpKind::Spawn | OpKind::Version => {}
            operation => said.push((at, Happening::OperationStarted { operation, name: name(asked) })),
        }
        said
    }

    fn event(&self, record: &Record, open: Option<&Open>) -> Said {
        let what = match &record.event {
            Event::Accepted | Event::Entered | Event::Continued { .. } => return Said::new(),
            Event::Prepared(prepared) => Happening::CallPrepared { rewritten: prepared.args.is_some() },
            Event::Attempting { attempt } | Event::Intended { attempt, .. } => {
                Happening::AttemptStarted { attempt: *attempt }
            }
            Event::Failed { attempt, error, retry_at } => {
                let failure = Failure::of(error);
                Happening::AttemptFailed { attempt: *attempt, failure, retry_at: *retry_at }
            }
            Event::Doubted { attempt, cause, said, .. } => {
                Happening::InDoubt { attempt: *attempt, cause: *cause, said: said.clone() }
            }
            Event::Settled { attempt, by, reason } => {
                Happening::Settled { attempt: *attempt, by: by.clone(), reason: reason.clone() }
            }
            Event::Parked { on, until, .. } => Happening::Parked { on: on.clone(), until: *until },
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

    fn finished(&self, record: &Record, finished: &Finished, open: Option<&Open>) -> Said {
        let mut said = Said::new();
        if let Some(settled) = finished.settlement() {
            let (attempt, by, reason) = (finished.attempts, settled.by.clone(), settled.reason.clone());
            said.push((record.at, Happening::Settled { attempt, by, reason }));
        }
        if let Some(open) = open {
            said.push((record.at, self.ended(record, finished, open)));
        }
        if record.path.is_root() {
            let answer = finished.answer();
            let ending = match &answer {
                Ok(_) => Ending::Ok,
                Err(error) if matches!(**error, ToolError::Cancelled { .. }) => Ending::Cancelled,
                Err(_) => Ending::Failed,
            };
            let failure = answer.as_ref().err().map(|error| Failure::of(error));
            said.push((record.at, Happening::RunFinished { ending, failure }));
        }
        said
    }

    fn ended(&self, record: &Record, finished: &Finished, open: &Open) -> Happening {
        let answer = finished.answer();
        let failure = answer.as_ref().err().map(|error| Failure::of(error));
        let times = finished.took(record.at, open.since);
        let (name, attempts) = (name(&open.asked), finished.attempts);
        match (open.asked.kind, &answer) {
            (OpKind::Call, _) => {
                let phase = if failure.is_none() { Phase::End } else { Phase::Failure };
                let line = self.line(&open.asked, phase);
                Happening::CallFinished { tool: name, failure, attempts, times, line }
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
        Happening::CallStarted { tool, args, call_id, line }
    }

    fn line(&self, asked: &Asked, phase: Phase) -> Option<String> {
        self.tool(asked)?.narrate(self.locale, phase, asked.input.as_deref().unwrap_or(&Value::Null))
    }

    fn tool(&self, asked: &Asked) -> Option<Arc<Tool>> {
        self.toolbox.recorded(&asked.name, &asked.layers)
    }
}

#[cfg(test)]
mod tests;
