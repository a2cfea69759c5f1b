//! The store's side of the kernel: one write method, a small read side, and the rules both keep.
//!
//! A store knows no tools. It keeps journals, mailboxes and run states, and it refuses whoever does not own a run.

mod answer;
mod memory;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

pub use answer::{Answer, Promise, Ticket};
pub use memory::MemoryStore;

use crate::id::RunId;
use crate::path::Path;
use crate::run::record::{Record, Recorded};
use crate::run::state::{Doubt, RunInfo, RunState};
use crate::time::Timestamp;

/// Why a store did not do something, split by what the caller does next.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// Somebody else owns the run now. The writer stops for good.
    #[error("run {run} is owned under epoch {current}; a write under epoch {epoch} was refused")]
    Stale {
        /// Which run.
        run: RunId,
        /// The writer's epoch.
        epoch: u64,
        /// The epoch in force.
        current: u64,
    },
    /// The journal is not where the writer thinks it is. The writer reloads.
    #[error("run {run} is at sequence {current}; a write at {expected} was refused")]
    WrongSequence {
        /// Which run.
        run: RunId,
        /// Where the writer thought it was.
        expected: u64,
        /// Where it is.
        current: u64,
    },
    /// There is no such run.
    #[error("there is no run {0}")]
    NoSuchRun(RunId),
    /// The run has ended and takes nothing more.
    #[error("run {0} is finished")]
    Finished(RunId),
    /// It is not known whether the commit happened. The writer reloads and replay decides.
    #[error("the store failed, and whether the write happened is not known: {0}")]
    Unknown(String),
    /// No store could ever accept this commit.
    #[error("the commit cannot be accepted: {0}")]
    Invalid(String),
    /// The store cannot be used.
    #[error("the store cannot be used: {0}")]
    Unavailable(String),
}

/// One atomic write.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Who writes, and what must be true for it.
    pub guard: Guard,
    /// What is written; all of it or none.
    pub changes: Vec<Change>,
}

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The run's owner, under its epoch, knowing where the journal ends. Resubmitting the identical commit returns the
    /// original answer.
    Owner {
        /// Which run.
        run: RunId,
        /// The epoch of the lease.
        epoch: u64,
        /// How many records the journal has.
        expected_seq: u64,
    },
    /// Anybody: may only write to mailboxes.
    Outsider,
}

/// One piece of a commit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// Creates the guarded run, owned by the writer under the guard's epoch.
    Create {
        /// What it runs.
        tool: std::sync::Arc<str>,
        /// When.
        at: Timestamp,
    },
    /// Appends to the guarded run's journal.
    Append(Vec<Record>),
    /// Sets the guarded run's state.
    State(RunState),
    /// Sets what of the guarded run waits for a settlement.
    Doubts(Vec<Doubt>),
    /// The owner has examined its mailbox up to this position; those messages are in the journal or void.
    Examined(u64),
    /// Puts a message into a run's mailbox. Refused if the run is finished, unless the message settles an
    /// open doubt: that closes the doubt, and the message stays as its annotation.
    Mail {
        /// Whose mailbox.
        run: RunId,
        /// The message.
        message: Message,
    },
}

/// What others tell a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Message {
    /// Settles a doubt.
    Settle {
        /// Where.
        path: Path,
        /// Which attempt.
        attempt: u32,
        /// How.
        settlement: Settlement,
        /// Who says so.
        by: String,
        /// Why.
        reason: String,
    },
    /// Cancels the run.
    Cancel {
        /// Who says so.
        by: String,
        /// Why.
        reason: String,
    },
}

/// How a person settles a doubt.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settlement {
    /// It happened, and this is its outcome.
    Happened(#[serde(with = "crate::run::record::recorded_form")] Recorded),
    /// It did not happen: attempt it again.
    DidNotHappen,
    /// Nobody can tell: the body gets an `in_doubt` error.
    GiveUp,
}

/// A message with its place in the mailbox.
#[derive(Clone, Debug)]
pub struct Mail {
    /// Counts from one in each mailbox.
    pub position: u64,
    /// What it says.
    pub message: Message,
}

/// A run with its new owner's fence and everything the owner needs to drive it.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The new owner's epoch.
    pub epoch: u64,
    /// The journal.
    pub records: Vec<Record>,
    /// Mail beyond the examined position.
    pub mail: Vec<Mail>,
    /// Whether every earlier owner is certainly dead, so that none of its attempts can still be running.
    pub owners_dead: bool,
    /// Whether the last owner gave the run up in good order.
    pub orderly: bool,
}

/// What [`Store::list`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Runs that are neither finished nor held.
    Running,
    /// Runs that are held.
    Held,
    /// Runs with open doubts.
    Doubted,
    /// All runs.
    All,
}

/// Keeps runs. All methods may be called from any thread.
///
/// The contract, checked by `testing::store_suite`:
/// - a commit is atomic; once it is answered with success it survives the process;
/// - an owner's commit is refused unless epoch and sequence are the run's; the identical commit again is answered as
///   the first time; nothing of a refused commit is kept;
/// - commits of one run are answered in the order they were submitted;
/// - a claim raises the epoch, so that every later write of an earlier owner is refused.
pub trait Store: Send + Sync + 'static {
    /// Writes atomically. Dropping the ticket does not undo the write.
    fn commit(&self, commit: Commit) -> Answer<()>;

    /// Takes over a run. Dropping the future may leave the epoch raised: nobody owns the run then until the next claim.
    ///
    /// Raises its epoch and returns everything needed to drive it. A held run is running again.
    /// Refused for a finished run.
    fn claim(&self, run: RunId) -> BoxFuture<'_, Result<Claimed, StoreError>>;

    /// Says that the owner under `epoch` stopped in good order. Ignored if the epoch is stale.
    fn release(&self, run: RunId, epoch: u64) -> BoxFuture<'_, Result<(), StoreError>>;

    /// A run's state.
    fn info(&self, run: RunId) -> BoxFuture<'_, Result<Option<RunInfo>, StoreError>>;

    /// A run's journal.
    fn journal(&self, run: RunId) -> BoxFuture<'_, Result<Vec<Record>, StoreError>>;

    /// A run's mail beyond `after`.
    fn mail(&self, run: RunId, after: u64) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>>;

    /// Runs that match, oldest first, at most `limit`, after the run `after`.
    fn list(
        &self,
        filter: Filter,
        after: Option<RunId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<RunInfo>, StoreError>>;

    /// Writes and answers everything submitted before, then gives up whatever it holds, such as a file's lock. Later
    /// requests fail.
    fn close(&self) -> BoxFuture<'_, ()>;
}
