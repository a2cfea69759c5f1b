//! Why a run does not continue: what it waits for, open doubts, holds, and what has to happen next.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::{Path, RunId};

use super::Time;
use super::run::{OperationRef, RunState};

/// Why a run is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Hold {
    /// The reason in words, and how to continue.
    pub sentence: String,
    /// The reason for programs.
    #[serde(flatten)]
    pub reason: HoldReason,
}

/// Reason of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum HoldReason {
    /// The code requests something else than the journal has.
    Diverged {
        /// Path of the operation.
        #[schema(value_type = String)]
        path: Path,
        /// What the journal has; missing if it has nothing there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        recorded: Option<String>,
        /// What the code requests; missing if the body returned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        asked: Option<String>,
        /// The first differences of the inputs, in words.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        differences: Vec<String>,
    },
    /// The process crashed repeatedly at the same operation.
    CrashLoop {
        /// Path of the operation.
        #[schema(value_type = String)]
        path: Path,
        /// Number of crashes.
        deaths: u32,
    },
    /// The tool of a recorded call is not registered.
    ToolMissing {
        /// Path of the call.
        #[schema(value_type = String)]
        path: Path,
        /// Id of the tool.
        tool: String,
    },
    /// The session of the run hides the tool of a recorded call.
    ToolHidden {
        /// Path of the call.
        #[schema(value_type = String)]
        path: Path,
        /// Id of the tool.
        tool: String,
        /// Name of the session.
        session: String,
    },
    /// A layer of a recorded call is not registered.
    LayerMissing {
        /// Path of the call.
        #[schema(value_type = String)]
        path: Path,
        /// Name of the layer.
        layer: String,
    },
    /// A recorded value does not match the type that the code expects.
    Undecodable {
        /// Path of the operation.
        #[schema(value_type = String)]
        path: Path,
        /// What does not match.
        problem: String,
    },
    /// The messages that the body read are not in its session any more.
    MessagesGone {
        /// Path of the operation that read them.
        #[schema(value_type = String)]
        path: Path,
        /// Name of the session.
        session: String,
    },
    /// The content of a file that the body read is not in the store any more.
    FileGone {
        /// Path of the operation that read it.
        #[schema(value_type = String)]
        path: Path,
        /// Name of the session.
        session: String,
        /// Path of the file.
        file: String,
    },
    /// The body dropped an operation that it had started.
    Abandoned {
        /// Path of the operation.
        #[schema(value_type = String)]
        path: Path,
        /// The operation.
        operation: String,
    },
    /// The results of the run exceed the size limit.
    TooBig {
        /// The limit.
        bytes: u64,
    },
    /// The body waits for something that is not an operation of its context.
    Outside {
        /// Path of the body.
        #[schema(value_type = String)]
        path: Path,
    },
    /// The run was imported, and the original may still continue elsewhere.
    Imported {
        /// State of the original when it was exported.
        was: String,
        /// Number of generations of its journal that are not imported yet.
        missing: u32,
    },
    /// Secrets of the journal cannot be decrypted.
    Sealed {
        /// What is missing or damaged.
        why: String,
    },
    /// The stored data of the run is damaged.
    Damaged {
        /// Id of the run.
        #[schema(value_type = String, format = "uuid")]
        run: RunId,
        /// What is damaged.
        location: String,
    },
    /// The run exceeds the limit of operations.
    TooLong {
        /// The limit.
        operations: u64,
    },
    /// A reason that this version does not know.
    #[serde(other)]
    Unknown,
}

/// An attempt that waits for a person to settle whether it happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Doubt {
    /// Path of the operation.
    #[schema(value_type = String)]
    pub path: Path,
    /// Number of the attempt.
    pub attempt: u32,
    /// The operation.
    pub operation: String,
    /// Why it is not known: `worker_lost`, `shut_down`, `timed_out`, `cancelled`, `restored` or `unclear`.
    pub cause: String,
    /// What the attempt reported about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
    /// Time by which the attempt has certainly ended. From then on it can be settled as `did_not_happen`.
    pub over_by: Time,
    /// Time since which the doubt is open.
    pub since: Time,
    /// Idempotency key under which the attempt was made. Look it up in the other system to find out whether the attempt
    /// happened. With the cause `restored`, the lost attempt may also have been made by a run with another id, and
    /// therefore under another key.
    pub idempotency_key: String,
}

/// An operation that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Park {
    /// Path of the operation.
    #[schema(value_type = String)]
    pub path: Path,
    /// The operation.
    pub operation: String,
    /// What it waits for.
    pub on: WaitingFor,
    /// Time since which it waits.
    pub since: Time,
    /// Time at which it stops waiting in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

/// What an operation waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum WaitingFor {
    /// A point in time.
    Time,
    /// An answer by reply key.
    Input {
        /// Name of the wait, or of the tool that was called.
        name: String,
        /// Path of the operation that created the reply key, if it is another one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        at: Option<Path>,
    },
    /// A signal.
    Signal {
        /// Name of the signal.
        name: String,
    },
    /// The end of a child run.
    Child {
        /// Id of the child run.
        #[schema(value_type = String, format = "uuid")]
        run: RunId,
    },
    /// Approval of a call.
    Approval {
        /// Id of the tool.
        tool: String,
        /// Digest of the arguments: the approval is valid for these only.
        digest: String,
        /// Why approval is needed.
        why: String,
    },
    /// A connection to a provider.
    Connection {
        /// Name of the provider.
        provider: String,
    },
    /// The next attempt after a failure.
    Retry,
    /// A key that another operation holds.
    Key {
        /// The key.
        key: String,
    },
    /// Something that this version does not know.
    #[serde(other)]
    Unknown,
}

/// The state of a run, and what has to happen before it continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// Id of the run.
    #[schema(value_type = String, format = "uuid")]
    pub run: RunId,
    /// Id of the root tool, or `batch`.
    pub tool: String,
    /// State of the run.
    pub state: RunState,
    /// Layers through which the run was called, the lowest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<String>,
    /// Principal for whom the run acts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Cause of the run, as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The whole explanation in one sentence.
    pub sentence: String,
    /// What would let the run continue; empty if it has ended.
    pub moves: Vec<Move>,
}

/// Something that would let a run continue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Move {
    /// Path of the operation; `/` for the run itself.
    #[schema(value_type = String)]
    pub path: Path,
    /// The situation in words, and who or what changes it.
    pub sentence: String,
    /// Idempotency key of the operation's attempts. Only if an attempt is in doubt, is running or is to be repeated, and
    /// may change something outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// The situation for programs.
    #[serde(flatten)]
    pub reason: MoveReason,
}

/// Why an operation does not continue, or that it is running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum MoveReason {
    /// No worker has started the run yet.
    Queued {
        /// Session of the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
        /// Unfinished runs of the session that come first.
        #[schema(value_type = Vec<String>)]
        behind: Vec<RunId>,
        /// Number of such runs that are not named, because they act for other principals.
        #[serde(default, skip_serializing_if = "is_zero")]
        others: u64,
    },
    /// A process died while it drove the run. The run waits until other such runs have been driven.
    Suspect,
    /// An attempt is being made.
    Attempt {
        /// The operation.
        operation: String,
        /// Number of the attempt.
        attempt: u32,
        /// Start of the attempt.
        since: Time,
        /// Time by which the attempt has certainly ended, if it is recorded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        over_by: Option<Time>,
    },
    /// An attempt that leaves no record is running or queued.
    AtWork {
        /// The operation.
        operation: String,
        /// Start of the operation.
        since: Time,
    },
    /// The operation waits.
    Waits {
        /// The operation.
        operation: String,
        /// What it waits for.
        on: WaitingFor,
        /// Time since which it waits.
        since: Time,
        /// Time at which it stops waiting in any case.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Time>,
        /// The explanation of the child run that it waits for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(no_recursion)]
        child: Option<Box<Explanation>>,
    },
    /// It is not known whether an attempt happened.
    InDoubt {
        /// The operation.
        operation: String,
        /// Number of the attempt.
        attempt: u32,
        /// Why it is not known: `worker_lost`, `shut_down`, `timed_out`, `cancelled`, `restored` or `unclear`.
        cause: String,
        /// Time by which the attempt has certainly ended.
        over_by: Time,
        /// What the attempt reported about it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        said: Option<String>,
    },
    /// The operation waits for a key.
    Key {
        /// The key.
        key: String,
        /// The call that holds the key, if it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        holder: Option<OperationRef>,
        /// Whether the holder is not named, because it acts for another principal.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        other_principal: bool,
    },
    /// The operation waits for the circuit breaker of its target.
    Breaker {
        /// The target.
        target: String,
        /// When an attempt is let through; absent while another attempt tests the target.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Time>,
    },
    /// The run was cancelled and cleans up.
    CleaningUp {
        /// Who cancelled it.
        by: String,
        /// Why.
        reason: String,
        /// Time at which the rest is dropped.
        until: Time,
    },
    /// The run is held.
    Held {
        /// Why.
        hold: Hold,
    },
    /// Another process drives the run.
    Elsewhere,
    /// The process that drove the run is gone. Only where no server drives the file.
    OwnerGone,
    /// What the run waits for depends on another run, which is not driven. Only where no server drives the file.
    NotDriven {
        /// The other run; absent if it acts for another principal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>, format = "uuid")]
        run: Option<RunId>,
    },
    /// A message is in the run's mailbox. Only where no server drives the file.
    InMailbox {
        /// The message, such as `the approval by ada`.
        message: String,
    },
    /// A reason that this version does not know.
    #[serde(other)]
    Unknown,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
