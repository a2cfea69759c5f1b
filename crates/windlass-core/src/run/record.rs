//! The records that a run's journal consists of.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fork::Cut;
use super::secrets::Places;
use super::state::Blocked;
use crate::id::RunId;
use crate::path::Path;
use crate::policy::Policy;
use crate::store::message::OUTSIDE_TIMED_OUT;
use crate::time::{Times, Timestamp};
use crate::tool::{Effect, Layers, Output, Tool, ToolError};
use crate::value::diff::differences;
use crate::value::{Difference, Metadata};

/// One entry of a journal: something that happened to the operation at `path`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The path of the operation.
    pub path: Path,
    /// When, by the owner's wall clock.
    pub at: Timestamp,
    /// What the body asked for. Only in the first record of a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
    /// What happened.
    pub event: Event,
}

/// What a body asked for, kept whole so that a divergence can be shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// Many fields: a request as it is recorded; most are absent in most records.
pub struct Asked {
    /// Which kind of operation.
    pub kind: OpKind,
    /// The tool's id, the step's name, or the name of a code change.
    pub name: Arc<str>,
    /// The name by which the tool was called, if that is not its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called: Option<Arc<str>>,
    /// No tool had that name or id: `name` is the name that was asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unresolved: bool,
    /// The layers that a call, and everything below it, is made through. Empty without layers.
    #[serde(default, skip_serializing_if = "Layers::is_empty")]
    pub layers: Layers,
    /// The arguments as asked, or a step's declared input.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "null_too")]
    pub input: Option<Arc<Value>>,
    /// The id a model gave the call. Not compared on replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<Arc<str>>,
    /// The effect class the attempts were made under.
    pub effect: Effect,
    /// The tool's own version. Not compared on replay, but shown when something differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Arc<str>>,
    /// The call's own policy. Not compared on replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Box<Policy>>,
    /// Why the arguments could not be accepted. Such a call is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<Arc<String>>,
    /// What the model's provider wants back with the outcome. Not compared on replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// Where the input contains secrets. Not compared on replay, because it follows from the tool's current schema.
    #[serde(default, skip_serializing_if = "Places::is_empty")]
    pub secrets: Places,
}

impl Asked {
    /// A step or other operation that has no tool.
    pub fn operation(kind: OpKind, name: Arc<str>, input: Option<Arc<Value>>, effect: Effect) -> Self {
        Self {
            kind,
            name,
            called: None,
            unresolved: false,
            layers: Layers::default(),
            input,
            call_id: None,
            effect,
            version: None,
            limits: None,
            broken: None,
            metadata: None,
            secrets: Places::default(),
        }
    }

    /// The name that the operation was asked for by.
    pub(crate) fn as_asked(&self) -> &Arc<str> {
        self.called.as_ref().unwrap_or(&self.name)
    }

    /// Whether both ask for the same thing. The effect class and the model's call id may differ, and so may the tool
    /// that a name resolves to: an operation with a record keeps the tool of its record.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let input = match (&self.input, &other.input) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
            (None, None) => true,
            _ => false,
        };
        let named = self.name == other.name || self.as_asked() == other.as_asked();
        input && self.kind == other.kind && named && self.layers == other.layers
    }

    /// The first positions where the inputs differ, with secrets of either hidden.
    pub(crate) fn differences(&self, other: &Self) -> Vec<Difference> {
        let null = Value::Null;
        let mut found = differences(self.input.as_deref().unwrap_or(&null), other.input.as_deref().unwrap_or(&null));
        let secret =
            |found: &&mut Difference| self.secrets.touch(&found.pointer) || other.secrets.touch(&found.pointer);
        found.iter_mut().filter(secret).for_each(Difference::hide);
        found
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            OpKind::Call => {
                write!(f, "call of tool `{}`", self.name)?;
                self.version.iter().try_for_each(|version| write!(f, " (version {version})"))?;
                if self.layers.is_empty() { Ok(()) } else { write!(f, " through the layers {}", self.layers) }
            }
            OpKind::Batch => write!(f, "batch of {} call{}", self.name, if &*self.name == "1" { "" } else { "s" }),
            OpKind::Step => write!(f, "step \"{}\"", self.name),
            OpKind::Steps if &*self.name == "1" => f.write_str("one parallel step"),
            OpKind::Steps => write!(f, "{} parallel steps", self.name),
            OpKind::Branches if &*self.name == "1" => f.write_str("one branch"),
            OpKind::Branches => write!(f, "{} branches", self.name),
            OpKind::Branch => write!(f, "branch \"{}\"", self.name),
            OpKind::Version => write!(f, "version \"{}\"", self.name),
            OpKind::Wait => write!(f, "wait for \"{}\"", self.name),
            OpKind::Sleep => f.write_str("sleep"),
            OpKind::First => write!(f, "first of {}", self.name),
            OpKind::Answer => {
                f.write_str("answer to the wait ")?;
                self.called.iter().try_for_each(|event| write!(f, "for \"{event}\" "))?;
                write!(f, "at {}", self.name)
            }
            OpKind::Receive => write!(f, "receive of signal \"{}\"", self.name),
            OpKind::Spawn => write!(f, "spawn of tool `{}`", self.name),
            OpKind::Join => write!(f, "join of run {}", self.name),
            OpKind::Signal => write!(f, "signal to run {}", self.name),
            OpKind::Cancel => write!(f, "cancel of run {}", self.name),
            OpKind::Emit => write!(f, "event \"{}\"", self.name),
            OpKind::Session => write!(f, "`{}` of its session", self.name),
        }
    }
}

/// The kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OpKind {
    /// A child call.
    Call,
    /// Several child calls; their paths are below its own.
    Batch,
    /// A durable step.
    Step,
    /// Several steps; their paths are below its own.
    Steps,
    /// Several branches of a body; their paths are below its own.
    Branches,
    /// A branch of a body, whose operations have paths below its own.
    Branch,
    /// The mark of a change in the code.
    Version,
    /// A wait for an answer from outside.
    Wait,
    /// A wait for a time.
    Sleep,
    /// Several waits, of which the first to end counts; their paths are below its own.
    First,
    /// The answer to an event that was waited for, or opened, before.
    Answer,
    /// A wait for a signal.
    Receive,
    /// The start of another run.
    Spawn,
    /// The end of another run.
    Join,
    /// A signal to another run.
    Signal,
    /// The cancellation of another run.
    Cancel,
    /// An event for the watchers of the run.
    Emit,
    /// A read of its session, or a write to it.
    Session,
}

/// A result as it is recorded and shared.
pub type Recorded = Result<Arc<Output>, Arc<ToolError>>;

/// What happened to an operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// It was asked for, and nothing has been checked or done yet.
    Accepted,
    /// Middleware or the tool's own `prepare` decided what the call is to do; nothing was attempted yet. From here on
    /// the recorded bytes count, and neither is asked again.
    Prepared(Prepared),
    /// A durable body, or a group of parallel operations, was entered.
    Entered,
    /// An attempt that may be repeated is about to start. Written where the run is not in the store yet, and for runs
    /// that a process died with before.
    Attempting {
        /// Counts from one.
        attempt: u32,
    },
    /// An attempt that must not be repeated is about to start.
    Intended {
        /// Counts from one.
        attempt: u32,
        /// By this time the attempt is certainly over, wherever it runs.
        over_by: Timestamp,
    },
    /// An attempt failed and another will follow.
    Failed {
        /// Counts from one.
        attempt: u32,
        /// The error of the attempt.
        error: Arc<ToolError>,
        /// When the next attempt may start.
        retry_at: Timestamp,
    },
    /// It is not known whether the attempt happened.
    Doubted {
        /// Which attempt.
        attempt: u32,
        /// Why that is not known.
        cause: DoubtCause,
        /// By this time the attempt is certainly over, wherever it runs.
        over_by: Timestamp,
        /// What the attempt itself reported about it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        said: Option<Arc<str>>,
    },
    /// A doubt was settled without ending the operation: the attempt did not happen, or may be repeated anyway.
    Settled {
        /// Which attempt.
        attempt: u32,
        /// Who settled it.
        by: Settler,
        /// Why.
        reason: String,
    },
    /// It waits for time or for the mailbox.
    Parked {
        /// What for.
        on: Blocked,
        /// When it stops waiting in any case.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        /// The attempt after which it waits; zero if there was none.
        #[serde(default, skip_serializing_if = "is_zero")]
        attempt: u32,
    },
    /// A person agreed to the call.
    Granted(Grant),
    /// The operation has its outcome.
    Finished(Finished),
    /// A process that drove this run died, or its lease was taken. Recorded at the root.
    Recovered,
    /// A person took up the run again on purpose, so earlier deaths no longer count. Recorded at the root.
    Resumed,
    /// The run continues with a fresh journal, of which this is the first record. Recorded at the root.
    Continued {
        /// Counts from zero.
        generation: u32,
        /// Runs that are still cancelled with this one.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        children: Vec<RunId>,
        /// Those of `children` that are cancelled when this run ends in any way.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        cancelled_at_end: Vec<RunId>,
    },
    /// The run is a copy of another one up to a point. One or several of these records begin its journal, and the first
    /// says what the run is. Recorded at the root.
    Forked {
        /// The run it was copied from.
        from: RunId,
        /// Which generation of that run.
        generation: u32,
        /// Where the fork leaves that run.
        cut: Cut,
        /// How many of the records that follow were copied, from that run or from one before it.
        copied: u32,
    },
    /// The run comes from a backup of its store, so its journal lacks what it did after the backup. Recorded at the
    /// root.
    Restored {
        /// Whether it had another id at that time, and so other idempotency keys.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        renamed: bool,
    },
    /// The reply keys handed out so far are void. Recorded at the root.
    Revoked {
        /// Why.
        reason: String,
    },
    /// Everything below its path was cancelled, and the rest of the run continues.
    CancelledBelow {
        /// Why.
        reason: String,
    },
    /// The run was cancelled. Recorded at the root.
    Cancelled {
        /// Who.
        by: String,
        /// Why.
        reason: String,
    },
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A person's approval of one call with exactly these arguments. As a record of that call, it applies to no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The digest of the arguments.
    pub digest: String,
    /// Who approved.
    pub by: String,
    /// Why.
    pub reason: String,
    /// It is void from this time on.
    pub until: Timestamp,
}

/// A call as it is to be executed, where that differs from what was asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prepared {
    /// The arguments, if they were rewritten.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "null_too")]
    pub args: Option<Arc<Value>>,
    /// What `prepare` froze for the attempts.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "null_too")]
    pub payload: Option<Arc<Value>>,
    /// Where the arguments contain secrets.
    #[serde(default, skip_serializing_if = "Places::is_empty")]
    pub secrets: Places,
    /// Where the frozen payload contains secrets. No schema describes it: if the tool takes secrets, all of it counts
    /// as one.
    #[serde(default, skip_serializing_if = "Places::is_empty")]
    pub payload_secrets: Places,
}

impl Prepared {
    /// The prepared form of a call of this tool.
    pub(crate) fn new(args: Option<Arc<Value>>, payload: Option<Arc<Value>>, tool: &Tool) -> Self {
        let secrets = args.as_ref().map(|args| tool.secret_places(args)).unwrap_or_default();
        let all = payload.as_ref().filter(|_| tool.takes_secrets());
        let payload_secrets = all.map(|payload| Places::whole(payload)).unwrap_or_default();
        Self { args, payload, secrets, payload_secrets }
    }
}

/// Reads a value that is present as `Some`, even if it is `null`.
fn null_too<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<Value>>, D::Error> {
    Value::deserialize(deserializer).map(|value| Some(Arc::new(value)))
}

/// The end of an operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finished {
    /// The result of the effect.
    #[serde(with = "recorded_form")]
    pub result: Recorded,
    /// What the body was told, where a check or middleware replaced the result.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "told_form")]
    pub told: Option<Recorded>,
    /// How many attempts it took.
    pub attempts: u32,
    /// How its time was spent.
    pub times: Times,
    /// Who settled it, if it was in doubt before or was ended from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<Box<Settled>>,
}

impl Finished {
    /// The settlement of a doubt, or an end by hand.
    pub(crate) fn settlement(&self) -> Option<&Settled> {
        let is_one = |settled: &&Settled| !matches!(settled.by, Settler::Refuser(_) | Settler::Revocation);
        self.settled.as_deref().filter(is_one)
    }

    /// The name of the person who refused the call, and the reason.
    pub(crate) fn refusal(&self) -> Option<(&str, &str)> {
        match self.settled.as_deref()? {
            Settled { by: Settler::Refuser(by), reason } => Some((by.as_deref().unwrap_or(A_PERSON), reason)),
            _ => None,
        }
    }

    /// Why its reply key is void, if that ended it.
    pub(crate) fn revocation(&self) -> Option<&str> {
        let settled = self.settled.as_deref()?;
        (settled.by == Settler::Revocation).then_some(settled.reason.as_str())
    }

    /// Whether an answer from outside ended the wait, and not a time limit, a revocation, or a cancellation of the run for
    /// one of these reasons.
    pub(crate) fn is_answer<'r>(&self, cancelled: impl IntoIterator<Item = &'r str>) -> bool {
        match self.result.as_ref().map_err(|error| &**error) {
            Err(ToolError::TimedOut { message }) => message == OUTSIDE_TIMED_OUT,
            Err(ToolError::Cancelled { reason }) => {
                self.revocation().is_none() && !cancelled.into_iter().any(|own| own == reason)
            }
            _ => true,
        }
    }

    /// How the time was spent by an operation that was first recorded at `since` and ended at `at`. Operations that
    /// only waited, or were ended from outside, do not measure it.
    pub(crate) fn took(&self, at: Timestamp, since: Timestamp) -> Times {
        if self.times != Times::default() {
            return self.times;
        }
        let total = u64::try_from(at.since(since).as_nanos()).unwrap_or(u64::MAX);
        Times { queued: total, running: 0, total }
    }

    /// Turns it into what the body sees.
    pub(crate) fn into_answer(self) -> Recorded {
        self.told.unwrap_or(self.result)
    }

    /// What the body sees.
    pub(crate) fn answer(&self) -> Recorded {
        self.told.as_ref().unwrap_or(&self.result).clone()
    }
}

/// Who settled a doubt, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// Who settled it.
    pub by: Settler,
    /// Why.
    pub reason: String,
}

/// Who can settle a doubt, or end an operation from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settler {
    /// The tool's own `reconcile`.
    Tool,
    /// The tool's `on_doubt` policy.
    Policy,
    /// A person.
    Person(String),
    /// An answer by the call's reply key.
    Reply,
    /// A person who refused an approval or a connection, with the name if it is known.
    Refuser(Option<String>),
    /// The run, because the reply key is void.
    Revocation,
}

/// The name shown for a person whose name is not recorded.
pub(crate) const A_PERSON: &str = "a person";

impl fmt::Display for Settler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tool => f.write_str("the tool"),
            Self::Policy => f.write_str("policy"),
            Self::Person(name) => f.write_str(name),
            Self::Reply => f.write_str("the holder of its reply key"),
            Self::Refuser(name) => f.write_str(name.as_deref().unwrap_or(A_PERSON)),
            Self::Revocation => f.write_str("the run"),
        }
    }
}

/// Why an attempt is in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DoubtCause {
    /// The process that made it died, or lost the run.
    WorkerLost,
    /// The process that made it was shut down before it ended.
    ShutDown,
    /// It ran out of time.
    TimedOut,
    /// It was cancelled in the middle.
    Cancelled,
    /// The run comes from a backup of its store, and the attempt may have been made after the backup.
    Restored,
    /// The body itself could not tell: it got no answer, or an incomplete one.
    Unclear,
}

impl DoubtCause {
    /// Why it is not known, with what the attempt itself reported.
    pub(crate) fn with(self, said: Option<&str>) -> String {
        said.map_or_else(|| self.to_string(), |said| format!("{self}: {said}"))
    }
}

impl fmt::Display for DoubtCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WorkerLost => "the worker was lost during the attempt",
            Self::ShutDown => "a shutdown interrupted the attempt",
            Self::TimedOut => "the attempt timed out",
            Self::Cancelled => "the attempt was cancelled in the middle",
            Self::Restored => "the store was restored from a backup, and the attempt may have been made after that",
            Self::Unclear => "the attempt itself could not tell",
        })
    }
}

/// The JSON form of what a body was told: an error as it is, an output as `{"ok": …}`.
mod told_form {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Form {
        Output { ok: Arc<Output> },
        Error(Arc<ToolError>),
    }

    pub(super) fn serialize<S: serde::Serializer>(told: &Option<Recorded>, serializer: S) -> Result<S::Ok, S::Error> {
        let form = told.as_ref().map(|told| match told {
            Ok(output) => Form::Output { ok: output.clone() },
            Err(error) => Form::Error(error.clone()),
        });
        form.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Recorded>, D::Error> {
        Ok(Option::<Form>::deserialize(deserializer)?.map(|form| match form {
            Form::Output { ok } => Ok(ok),
            Form::Error(error) => Err(error),
        }))
    }
}

/// The JSON form of results: `{"ok": …}` or `{"error": …}`.
pub(crate) mod recorded_form {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Form {
        Ok(Arc<Output>),
        Error(Arc<ToolError>),
    }

    pub(crate) fn serialize<S: serde::Serializer>(result: &Recorded, serializer: S) -> Result<S::Ok, S::Error> {
        match result {
            Ok(output) => Form::Ok(output.clone()),
            Err(error) => Form::Error(error.clone()),
        }
        .serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Recorded, D::Error> {
        Ok(match Form::deserialize(deserializer)? {
            Form::Ok(output) => Ok(output),
            Form::Error(error) => Err(error),
        })
    }
}

/// The outcome of an operation as its body gets it.
#[derive(Clone, Debug)]
pub(crate) struct OpOutcome {
    pub(crate) result: Recorded,
    pub(crate) at: Timestamp,
    pub(crate) times: Times,
}
