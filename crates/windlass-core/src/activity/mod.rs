//! What people and programs see of a run while it goes on. Everything durable about it is derived from the journal, so a
//! reader that comes late sees the same as one that was there, and nothing is ever said twice.

pub(crate) mod story;
pub(crate) mod trace;
mod watch;
pub(crate) mod watchers;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use story::{Open, Story, Telling};
pub use trace::Trace;
pub use watch::Watch;

use crate::id::RunId;
use crate::path::Path;
use crate::run::record::{DoubtCause, OpKind, Settler};
use crate::run::state::{Blocked, Ending, Hold};
use crate::time::{Times, Timestamp};
pub use crate::tool::view::Failure;

/// One thing that happened in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// Which run.
    pub run: RunId,
    /// Its place in the run.
    pub position: Position,
    /// Which call or operation; `/` for the root call and for the run itself.
    pub path: Path,
    /// When. Of a call whose first record is its last: when it was asked for, also if others happened meanwhile.
    pub at: Timestamp,
    /// The run that spawned this one, and where: there this belongs in the parent's trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Box<(RunId, Path)>>,
    /// What.
    #[serde(flatten)]
    pub what: Happening,
}

/// Where an activity stands among those of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// Derived from the journal: the same for every reader, for ever.
    Recorded(Cursor),
    /// Said to whoever watches at that moment, and kept nowhere: it may run ahead of what is durable, and what does not
    /// reach a watcher is lost. It comes after what the store had when it was said, and before the end of whoever said it.
    Live,
}

/// A place in a stream of activities. A reader that goes on here misses nothing and sees nothing twice.
///
/// In the stream of a run, `record` is the sequence in its journal; in that of a session, the position among all records of
/// the store. `index` counts the activities of one record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cursor {
    /// Which record.
    pub record: u64,
    /// Which of its activities, counting from zero.
    pub index: u32,
}

impl Cursor {
    /// Where everything begins.
    pub const START: Self = Self { record: 0, index: 0 };

    /// Where a reader goes on that has seen the activity at this place.
    #[must_use]
    pub fn next(self) -> Self {
        Self { index: self.index.saturating_add(1), ..self }
    }
}

/// What happened. Arguments are shown without their secrets, errors as anyone outside the process may see them; what
/// calls return is not shown, but can be read ([`read_output`](crate::Runtime::read_output)).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Happening {
    /// The run is in the store.
    RunStarted {
        /// What it runs.
        what: String,
    },
    /// A process that drove it died; it goes on in another.
    RunRecovered,
    /// Somebody took it up again on purpose.
    RunResumed,
    /// It comes from a backup of its store: what it did after that is not in its journal.
    RunRestored,
    /// The run was forked from another one; what came before is a copy.
    RunForked {
        /// Which run.
        from: RunId,
        /// The place of the first operation that is not copied.
        cut: String,
    },
    /// It goes on with a fresh journal; paths begin anew.
    RunContinued {
        /// Counts from zero.
        generation: u32,
    },
    /// Somebody cancelled it.
    RunCancelled {
        /// Who.
        by: String,
        /// Why.
        reason: String,
    },
    /// It is held until the cause is gone. No record: shown where a reader meets it.
    RunHeld {
        /// The cause, and what would move it.
        hold: Hold,
        /// The same in a sentence.
        sentence: String,
    },
    /// Its reply keys are void.
    KeysRevoked {
        /// Why.
        reason: String,
    },
    /// It has its outcome.
    RunFinished {
        /// How it ended.
        ending: Ending,
        /// With what error.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    },
    /// A call was asked for.
    CallStarted {
        /// The tool's id.
        tool: Arc<str>,
        /// Its arguments without their secrets; nothing where the tool is not known here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        args: Option<Value>,
        /// The id a model gave the call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call_id: Option<Arc<str>>,
        /// For people, in their language, where the tool has such a line.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        line: Option<String>,
    },
    /// Middleware or the tool itself settled what the call is to do.
    CallPrepared {
        /// The arguments differ from what was asked.
        rewritten: bool,
    },
    /// A call has its outcome.
    CallFinished {
        /// The tool's id.
        tool: Arc<str>,
        /// The error, as it may be seen; nothing if it went well.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
        /// How many attempts it took.
        attempts: u32,
        /// How long it took.
        times: Times,
        /// For people, in their language, where the tool has such a line.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        line: Option<String>,
    },
    /// A step, a wait or a group was begun.
    OperationStarted {
        /// Which kind.
        operation: OpKind,
        /// Its name.
        name: Arc<str>,
    },
    /// A step, a wait or a group has ended.
    OperationFinished {
        /// Which kind.
        operation: OpKind,
        /// Its name.
        name: Arc<str>,
        /// The error, as it may be seen; nothing if it went well.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
        /// How many attempts it took.
        attempts: u32,
        /// How long it took.
        times: Times,
    },
    /// An attempt is about to be made. Those that change nothing outside are not announced.
    AttemptStarted {
        /// Counts from one.
        attempt: u32,
    },
    /// An attempt failed and another will follow.
    AttemptFailed {
        /// Counts from one.
        attempt: u32,
        /// The error, as it may be seen.
        failure: Failure,
        /// When the next one may start.
        retry_at: Timestamp,
    },
    /// Whether an attempt happened is not known.
    InDoubt {
        /// Which attempt.
        attempt: u32,
        /// Why it is not known.
        cause: DoubtCause,
        /// What the attempt itself said of that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        said: Option<Arc<str>>,
    },
    /// A doubt was settled.
    Settled {
        /// Which attempt.
        attempt: u32,
        /// By whom.
        by: Settler,
        /// Why.
        reason: String,
    },
    /// It waits.
    Parked {
        /// For what.
        on: Blocked,
        /// When it stops waiting, whatever happens.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// A person agreed to the call.
    Granted {
        /// Who.
        by: String,
        /// Why.
        reason: String,
        /// The grant is void from then on.
        until: Timestamp,
    },
    /// The run emitted an event its tool declared.
    Emitted {
        /// Which.
        name: Arc<str>,
        /// Its value.
        value: Value,
    },
    /// Another run was started. Its activities name this run and this path as their parent.
    Spawned {
        /// Which run.
        child: RunId,
        /// What it runs.
        tool: Arc<str>,
    },
    /// How far an attempt or a body is, in its own words. Live only.
    Progress {
        /// The words.
        message: String,
    },
    /// What a body has to say. Live only.
    Logged {
        /// The words.
        message: String,
    },
}
