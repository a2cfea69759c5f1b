//! What a run's journal is made of.

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
use crate::time::{Times, Timestamp};
use crate::tool::{Effect, Layers, Output, Tool, ToolError};
use crate::value::Difference;
use crate::value::diff::differences;

/// One entry of a journal: something that happened to the operation at `path`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Where in the run.
    pub path: Path,
    /// When, by the owner's wall clock.
    pub at: Timestamp,
    /// What the body asked for; with the first record of a path only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
    /// What happened.
    pub event: Event,
}

/// What a body asked for, kept whole so that a divergence can be shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Which kind of operation.
    pub kind: OpKind,
    /// The tool's id, the step's name, or the name of a change.
    pub name: Arc<str>,
    /// What the tool was called by, where that is not its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called: Option<Arc<str>>,
    /// No tool had that name or id: `name` is what was asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unresolved: bool,
    /// The layers a call is made through, and with it everything below it; empty outside of layers.
    #[serde(default, skip_serializing_if = "Layers::is_empty")]
    pub layers: Layers,
    /// Arguments as asked, or a step's declared input.
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
    /// Why the arguments could not be taken; such a call is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<Arc<str>>,
    /// Where in the input secrets stand. Not compared on replay: it follows from the schema of the day.
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
            secrets: Places::default(),
        }
    }

    /// What the operation was asked for by.
    pub(crate) fn as_asked(&self) -> &Arc<str> {
        self.called.as_ref().unwrap_or(&self.name)
    }

    /// Whether both ask for the same thing. The effect class and the model's id may differ, and so may the tool that a name
    /// resolves to: an operation that has a record keeps the tool of the record.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let input = match (&self.input, &other.input) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
            (None, None) => true,
            _ => false,
        };
        let named = self.name == other.name || self.as_asked() == other.as_asked();
        input && self.kind == other.kind && named && self.layers == other.layers
    }

    /// The first places where the inputs differ, without what is secret in either.
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
            OpKind::Version => write!(f, "version \"{}\"", self.name),
            OpKind::Wait => write!(f, "wait for \"{}\"", self.name),
            OpKind::Sleep => f.write_str("sleep"),
            OpKind::First => write!(f, "first of {}", self.name),
            OpKind::Answer => write!(f, "answer to the wait at {}", self.name),
            OpKind::Receive => write!(f, "receive of signal \"{}\"", self.name),
            OpKind::Spawn => write!(f, "spawn of tool `{}`", self.name),
            OpKind::Join => write!(f, "join of run {}", self.name),
            OpKind::Signal => write!(f, "signal to run {}", self.name),
            OpKind::Cancel => write!(f, "cancel of run {}", self.name),
            OpKind::Emit => write!(f, "event \"{}\"", self.name),
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
    /// Several child calls; they stand below its path.
    Batch,
    /// A durable step.
    Step,
    /// Several steps; they stand below its path.
    Steps,
    /// A place where the code changed.
    Version,
    /// A wait for an answer from outside.
    Wait,
    /// A wait for a time.
    Sleep,
    /// Several waits of which the first counts; they stand below its path.
    First,
    /// The answer to a wait that was opened before.
    Answer,
    /// A wait for a signal.
    Receive,
    /// The start of another run.
    Spawn,
    /// The end of a run that was spawned.
    Join,
    /// A signal to another run.
    Signal,
    /// The cancellation of another run.
    Cancel,
    /// An event for whoever watches the run.
    Emit,
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
    /// Middleware or the tool's own `prepare` settled what the call is to do; nothing was attempted yet. From here on
    /// these bytes count, not what either would say if it were asked again.
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
        /// The attempt is certainly over by then, wherever it runs.
        over_by: Timestamp,
    },
    /// An attempt failed and another will follow.
    Failed {
        /// Counts from one.
        attempt: u32,
        /// How.
        error: Arc<ToolError>,
        /// When the next attempt may start.
        retry_at: Timestamp,
    },
    /// Whether the attempt happened is not known.
    Doubted {
        /// Which attempt.
        attempt: u32,
        /// Why it is not known.
        cause: DoubtCause,
        /// The attempt is certainly over by then, wherever it runs.
        over_by: Timestamp,
        /// What the attempt itself said of that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        said: Option<Arc<str>>,
    },
    /// A doubt was settled without ending the operation: the attempt did not happen, or may be repeated all the same.
    Settled {
        /// Which attempt.
        attempt: u32,
        /// By whom.
        by: Settler,
        /// Why.
        reason: String,
    },
    /// It waits for time or for the mailbox.
    Parked {
        /// What for.
        on: Blocked,
        /// When it stops waiting, whatever happens.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        /// The attempt after which it waits; zero where none was made.
        #[serde(default, skip_serializing_if = "is_zero")]
        attempt: u32,
    },
    /// A person agreed to the call.
    Granted(Grant),
    /// The operation has its outcome.
    Finished(Finished),
    /// A process that drove this run died, or its lease was taken. Stands at the root.
    Recovered,
    /// Somebody took the run up again on purpose: earlier deaths no longer count. Stands at the root.
    Resumed,
    /// The run goes on with a fresh journal, of which this is the first record. Stands at the root.
    Continued {
        /// Counts from zero.
        generation: u32,
        /// Runs that are still cancelled with this one.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        children: Vec<RunId>,
    },
    /// The run is a copy of another one up to a point, and this, or several of it, the beginning of its journal; the
    /// first says what the run is. Stands at the root.
    Forked {
        /// The run it was copied from.
        from: RunId,
        /// Which generation of that run.
        generation: u32,
        /// Where it leaves that run.
        cut: Cut,
        /// How many of the records that follow are copied, from that run or from one before it.
        copied: u32,
    },
    /// The run comes from a backup of its store: what it did after that is not in its journal. Stands at the root.
    Restored {
        /// Whether it had another id then, and with it other idempotency keys.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        renamed: bool,
    },
    /// The reply keys handed out so far are void. Stands at the root.
    Revoked {
        /// Why.
        reason: String,
    },
    /// Somebody cancelled the run. Stands at the root.
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

/// Somebody's agreement to one call with exactly these arguments. Being a record of that call, it serves no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The arguments, by their digest.
    pub digest: String,
    /// Who agreed.
    pub by: String,
    /// Why.
    pub reason: String,
    /// It is void from then on.
    pub until: Timestamp,
}

/// A call as it is to be executed, where that is not what was asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prepared {
    /// The arguments, if they were rewritten.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "null_too")]
    pub args: Option<Arc<Value>>,
    /// What `prepare` froze for the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "null_too")]
    pub payload: Option<Arc<Value>>,
    /// Where in the arguments secrets stand.
    #[serde(default, skip_serializing_if = "Places::is_empty")]
    pub secrets: Places,
    /// The same for what was frozen. No schema describes that: where the arguments may have secrets, all of it is one.
    #[serde(default, skip_serializing_if = "Places::is_empty")]
    pub payload_secrets: Places,
}

impl Prepared {
    /// What a call of this tool became.
    pub(crate) fn new(args: Option<Arc<Value>>, payload: Option<Arc<Value>>, tool: &Tool) -> Self {
        let secrets = args.as_ref().map(|args| tool.secret_places(args)).unwrap_or_default();
        let all = payload.as_ref().filter(|_| tool.takes_secrets());
        let payload_secrets = all.map(|payload| Places::whole(payload)).unwrap_or_default();
        Self { args, payload, secrets, payload_secrets }
    }
}

/// A value that is there is there, also if it is `null`.
fn null_too<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<Value>>, D::Error> {
    Value::deserialize(deserializer).map(|value| Some(Arc::new(value)))
}

/// The end of an operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finished {
    /// What the effect returned.
    #[serde(with = "recorded_form")]
    pub result: Recorded,
    /// What the body was told, where a check or middleware made that differ from the result.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "told_form")]
    pub told: Option<Recorded>,
    /// How many attempts it took.
    pub attempts: u32,
    /// Where the time went.
    pub times: Times,
    /// Who settled it, where a doubt came before, or it was ended from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<Box<Settled>>,
}

impl Finished {
    /// The settlement of a doubt, or an end by hand.
    pub(crate) fn settlement(&self) -> Option<&Settled> {
        let is_one = |settled: &&Settled| !matches!(settled.by, Settler::Refuser(_) | Settler::Revocation);
        self.settled.as_deref().filter(is_one)
    }

    /// Why a person refused the call, and who did.
    pub(crate) fn refusal(&self) -> Option<(&str, &str)> {
        match self.settled.as_deref()? {
            Settled { by: Settler::Refuser(by), reason } => Some((by.as_deref().unwrap_or(A_PERSON), reason)),
            _ => None,
        }
    }

    /// Why the reply key is void that it was to be answered by.
    pub(crate) fn revocation(&self) -> Option<&str> {
        let settled = self.settled.as_deref()?;
        (settled.by == Settler::Revocation).then_some(settled.reason.as_str())
    }

    /// Where the time went of an operation that ended `at` and was first recorded `since` then; one that only waited, or was
    /// ended from outside, does not measure it.
    pub(crate) fn took(&self, at: Timestamp, since: Timestamp) -> Times {
        if self.times != Times::default() {
            return self.times;
        }
        let total = u64::try_from(at.since(since).as_nanos()).unwrap_or(u64::MAX);
        Times { queued: total, running: 0, total }
    }

    /// What the body sees, and nothing else.
    pub(crate) fn into_answer(self) -> Recorded {
        self.told.unwrap_or(self.result)
    }

    /// What the body sees.
    pub(crate) fn answer(&self) -> Recorded {
        self.told.as_ref().unwrap_or(&self.result).clone()
    }
}

/// The run a spawn's record names, unless it was abandoned on purpose.
pub(crate) fn spawned(output: &Output) -> Option<RunId> {
    let run = output.value.get("run")?.as_str()?.parse().ok()?;
    (output.value.get("abandoned") != Some(&Value::Bool(true))).then_some(run)
}

/// Who settled a doubt, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// By whom.
    pub by: Settler,
    /// Why.
    pub reason: String,
}

/// Who settles doubts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settler {
    /// The tool's own `reconcile`.
    Tool,
    /// The tool's `on_doubt` policy.
    Policy,
    /// A person.
    Person(String),
    /// Whoever had the call's reply key.
    Reply,
    /// A person who was asked for leave, or for a connection, and refused; by name where that is known.
    Refuser(Option<String>),
    /// The run: the reply key is void.
    Revocation,
}

/// Stands for a person whose name is not recorded.
pub(crate) const A_PERSON: &str = "a person";

impl fmt::Display for Settler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tool => f.write_str("the tool"),
            Self::Policy => f.write_str("policy"),
            Self::Person(name) => f.write_str(name),
            Self::Reply => f.write_str("whoever had its reply key"),
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
    /// It ran out of time.
    TimedOut,
    /// It was cancelled in the middle.
    Cancelled,
    /// The run comes from a backup of its store, and the attempt may have been made after that.
    Restored,
    /// The body itself could not tell: it asked, and no answer came, or not a whole one.
    Unclear,
}

impl DoubtCause {
    /// Why it is not known, with what the attempt itself said of that.
    pub(crate) fn with(self, said: Option<&str>) -> String {
        said.map_or_else(|| self.to_string(), |said| format!("{self}: {said}"))
    }
}

impl fmt::Display for DoubtCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WorkerLost => "the worker was lost during the attempt",
            Self::TimedOut => "the attempt timed out",
            Self::Cancelled => "the attempt was cancelled in the middle",
            Self::Restored => "the store was restored from a backup, and the attempt may have been made after that",
            Self::Unclear => "the attempt itself could not tell",
        })
    }
}

/// What a body was told in JSON: an error as it is, an output as `{"ok": …}`.
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

/// Results in JSON: `{"ok": …}` or `{"error": …}`.
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

/// What an operation came to.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) result: Recorded,
    pub(crate) at: Timestamp,
    pub(crate) times: Times,
}
