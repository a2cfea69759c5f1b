//! What people and programs can observe of a run while it goes on. All durable activities are derived from the journal,
//! so a reader that starts late sees the same ones as a reader from the beginning, and each only once.

pub(crate) mod derive;
mod session_watch;
pub(crate) mod trace;
mod watch;
pub(crate) mod watchers;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use derive::{ActivityContext, OpenOperation, OpenOperations};
pub use session_watch::{SessionEvent, SessionPosition, SessionWatch};
pub use trace::Trace;
pub use watch::Watch;

use crate::id::RunId;
use crate::path::Path;
use crate::run::record::{DoubtCause, OpKind, Settler};
use crate::run::state::{Blocked, Ending, Hold};
use crate::time::{Times, Timestamp};
pub use crate::tool::view::Failure;
use crate::value::Digest;

/// One observable event of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// The run.
    pub run: RunId,
    /// Its position among the activities of the run.
    pub position: Position,
    /// The call or operation it belongs to; `/` for the root call and for the run itself.
    pub path: Path,
    /// When it happened. For a call with only one record: when it was requested, even if other activities happened
    /// since.
    pub at: Timestamp,
    /// The run that spawned this one, and the path of the operation that did; the activity belongs there in the
    /// parent's trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Box<(RunId, Path)>>,
    /// What happened.
    #[serde(flatten)]
    pub what: Happening,
}

/// The position of an activity among those of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// Derived from the journal: the same for every reader, at any time.
    Recorded(Cursor),
    /// Sent once to the current watchers and not stored. It may be ahead of what is durable, and a watcher that misses
    /// it does not get it again. It comes after everything the store had when it was sent, and before the end of the
    /// operation that sent it.
    ///
    /// A call or step whose start is not recorded, because repeating it does no harm, is reported twice to the watchers of
    /// the process that makes it: live when it starts, and with a position when it is recorded. Both have the same run
    /// and path. The activities with a position are complete without the live ones.
    Live,
}

/// A position in a stream of activities. A reader that continues here misses nothing and sees nothing twice.
///
/// In the stream of a run, `record` is the sequence number in its journal. In the stream of a session, it is the
/// position among all records of the store. `index` counts the activities of one record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cursor {
    /// The record.
    pub record: u64,
    /// Which activity of the record, counted from zero.
    pub index: u32,
}

impl Cursor {
    /// The beginning of a stream.
    pub const START: Self = Self { record: 0, index: 0 };

    /// The cursor for a reader that has seen the activity at this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self { index: self.index.saturating_add(1), ..self }
    }
}

/// What happened. Arguments are shown without their secrets, and errors as clients may see them.
/// Values are cut to the output budget of their tool, and a [`Trace`] leaves some out if there are many; the rest can be
/// read with [`read_output`](crate::Runtime::read_output).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Happening {
    /// The run was stored.
    RunStarted {
        /// Its tool, or what kind of run it is.
        what: String,
        /// Who it acts for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        principal: Option<Arc<str>>,
        /// What caused it, as given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<Arc<str>>,
    },
    /// The process that drove the run died; another one continues it.
    RunRecovered,
    /// The run was resumed by request.
    RunResumed,
    /// The run was restored from a backup. Its journal lacks what it did after the backup.
    RunRestored,
    /// The run was forked from another one; its earlier records are copies.
    RunForked {
        /// The run it was forked from.
        from: RunId,
        /// The position of the first operation that was not copied.
        cut: String,
    },
    /// The run continues with a new journal; paths start again.
    RunContinued {
        /// The generation, counted from zero.
        generation: u32,
    },
    /// The run was cancelled.
    RunCancelled {
        /// Who cancelled it.
        by: String,
        /// The reason that was given.
        reason: String,
    },
    /// The run is held until the cause is removed. Not recorded: reported when a reader finds the run held.
    RunHeld {
        /// The cause, and what to do.
        hold: Hold,
        /// The same as a sentence.
        sentence: String,
    },
    /// The reply keys of the run were invalidated.
    KeysRevoked {
        /// The reason that was given.
        reason: String,
    },
    /// The run has ended.
    RunFinished {
        /// How it ended.
        ending: Ending,
        /// The value that it returned. One beyond the output budget is cut to a text that says how to read on.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "null_too")]
        value: Option<Value>,
        /// Whether the value was cut or left out.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        shortened: bool,
        /// The error, if it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    },
    /// A call was requested.
    CallStarted {
        /// The tool's id.
        tool: Arc<str>,
        /// Its arguments without their secrets; `None` if the tool is not registered here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        args: Option<Value>,
        /// The id that a model gave the call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call_id: Option<Arc<str>>,
        /// A line for people in the runtime's language, unless the tool is unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        line: Option<String>,
        /// The idempotency key of its attempts, if they may change something outside.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        idempotency_key: Option<String>,
    },
    /// Middleware or the tool itself decided what the call will do.
    CallPrepared {
        /// Whether the arguments differ from those that were requested.
        rewritten: bool,
    },
    /// A call has ended.
    CallFinished {
        /// The tool's id.
        tool: Arc<str>,
        /// The value that it returned. One beyond the output budget is cut to a text that says how to read on.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "null_too")]
        value: Option<Value>,
        /// Whether the value was cut or left out.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        shortened: bool,
        /// The error; `None` if it succeeded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
        /// The number of attempts.
        attempts: u32,
        /// How long it took.
        times: Times,
        /// A line for people in the runtime's language, unless the tool is unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        line: Option<String>,
    },
    /// A step, a wait or a group has started.
    OperationStarted {
        /// The kind of operation.
        operation: OpKind,
        /// Its name.
        name: Arc<str>,
        /// Of a batch: the digest of its calls.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        identity: Option<Digest>,
        /// The idempotency key of its attempts, if they may change something outside.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        idempotency_key: Option<String>,
    },
    /// A step, a wait or a group has ended.
    OperationFinished {
        /// The kind of operation.
        operation: OpKind,
        /// Its name.
        name: Arc<str>,
        /// The error; `None` if it succeeded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
        /// The number of attempts.
        attempts: u32,
        /// How long it took.
        times: Times,
    },
    /// An attempt starts. Attempts of readonly operations are not reported.
    AttemptStarted {
        /// The number of the attempt, counted from one.
        attempt: u32,
        /// The idempotency key under which it is made, if it may change something outside.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        idempotency_key: Option<String>,
    },
    /// An attempt failed, and another one follows.
    AttemptFailed {
        /// The number of the attempt, counted from one.
        attempt: u32,
        /// The error.
        failure: Failure,
        /// When the next attempt may start.
        retry_at: Timestamp,
    },
    /// It is unknown whether an attempt took effect.
    InDoubt {
        /// The number of the attempt.
        attempt: u32,
        /// Why it is unknown.
        cause: DoubtCause,
        /// What the attempt itself reported about the doubt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        said: Option<Arc<str>>,
        /// The idempotency key under which the attempt was made: what the outside system may know it by.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        idempotency_key: Option<String>,
    },
    /// A doubt was settled.
    Settled {
        /// The number of the attempt.
        attempt: u32,
        /// Who settled it.
        by: Settler,
        /// The reason that was given.
        reason: String,
    },
    /// The operation waits.
    Parked {
        /// What it waits for.
        on: Blocked,
        /// When the wait times out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        /// A line for people in the runtime's language, if a call waits for an approval, a connection or an answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        line: Option<String>,
    },
    /// A person approved the call.
    Granted {
        /// Who approved it.
        by: String,
        /// The reason that was given.
        reason: String,
        /// When the approval expires.
        until: Timestamp,
    },
    /// The run emitted an event that its tool declares.
    Emitted {
        /// The name of the event.
        name: Arc<str>,
        /// Its value.
        value: Value,
    },
    /// The run started another one. The activities of that run name this run and this path as their parent.
    Spawned {
        /// The new run.
        child: RunId,
        /// The id of its tool.
        tool: Arc<str>,
    },
    /// Progress that an attempt or a body reports. Live only.
    Progress {
        /// The message.
        message: String,
    },
    /// A log message of a body. Live only.
    Logged {
        /// The message.
        message: String,
    },
}

/// Reads a `null` as a value, which is not the same as no value.
fn null_too<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}
