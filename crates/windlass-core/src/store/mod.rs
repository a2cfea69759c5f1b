//! The interface of a store: one method that writes, a small read side, and the rules for both.
//!
//! A store knows nothing about tools. It keeps journals, mailboxes and run states, and refuses writes from a process
//! that does not own the run.

mod admission;
mod answer;
mod artifacts;
mod clock;
mod connections;
mod damage;
mod due;
mod error;
mod files;
mod keys;
mod lists;
mod memory;
pub(crate) mod message;
mod outcomes;
mod retention;
mod session_refusal;
mod session_settings;
mod sessions;

use futures_util::future::BoxFuture;

pub use admission::{SharedAdmission, Slot, SlotRequest, ToolLimits, Verdict, WaitRequest, Wants};
pub use answer::{Answer, Promise, Ticket};
pub use artifacts::{
    Access, ArtifactHasher, ArtifactId, Artifacts, BadArtifactId, Stored, Swept, Upload, check_piece, no_upload,
};
pub use clock::StoreClock;
pub use connections::{
    AppliedChange, ConnectionAnswer, ConnectionChange, ConnectionInfo, ConnectionKey, ConnectionWrite, Connections,
    ConnectionsOf, Credential, Rejected, StoredConnection,
};
pub use due::{ClaimedDue, Due};
pub use error::StoreError;
pub use files::*;
pub use keys::KeyPlace;
pub use lists::{Counts, Filter, StateFilter};
pub use memory::MemoryStore;
pub use message::{Mail, Mailboxes, Message, Resolution, Settlement};
pub use outcomes::{RecentOutcomes, SeenOutcome};
pub use retention::{Cutoffs, Retention, Tidied};
pub use session_refusal::{SessionRefusal, refuse_session_write, tools_after};
pub use session_settings::{
    NewTurn, SessionSettings, SettingsChange, Starter, Turn, TurnPolicy, Wake, WakePolicy, message_turn,
    most_unfinished, turn_key,
};
pub use sessions::{
    Author, Closing, DataEntry, DataKind, NewMessage, SessionAccess, SessionAnswer, SessionChange, SessionCursor,
    SessionFilter, SessionInfo, SessionMessage, SessionOperation, SessionSizes, SessionVerdict, SessionWrite, Sessions,
    StartTurn,
};

use std::sync::Arc;
use std::time::Duration;

use crate::id::{RunId, WorkerId};
use crate::path::Path;
use crate::run::record::Record;
use crate::run::state::{Doubt, Park, RunInfo, RunState};
use crate::time::{Clock, Timestamp};
pub use crate::tool::{LiveSessions, LiveTools, SessionTools, ToolsChange};

/// One atomic write.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Who writes, and the state that the write requires.
    pub guard: Guard,
    /// What is written: all of it or nothing.
    pub changes: Vec<Change>,
}

/// Who writes, and the state that the write requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The run's owner, under its epoch and with the length of the journal. Resubmitting the identical commit returns
    /// the original answer.
    Owner {
        /// The run.
        run: RunId,
        /// The epoch of its ownership.
        epoch: u64,
        /// The number of records in the journal.
        expected_seq: u64,
    },
    /// Any other writer. It may only write to mailboxes and start runs.
    Outsider,
}

/// One part of a commit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// Creates the guarded run, owned by the writer under the guard's epoch.
    Create(Creation),
    /// Creates another run without an owner: it is queued with these records, and any worker may start it. No effect if
    /// a run with this id exists.
    Start {
        /// The run.
        run: RunId,
        /// Its description.
        creation: Creation,
        /// The first records of its journal.
        records: Vec<Record>,
    },
    /// Appends records to the guarded run's journal.
    Append(Vec<Record>),
    /// Begins the next generation of the guarded run. The records that this commit appends are the beginning of its new
    /// journal.
    Continue,
    /// Sets the guarded run's state.
    State(RunState),
    /// Sets the open doubts of the guarded run.
    Doubts(Vec<Doubt>),
    /// Sets the parks of the guarded run: what else it waits for.
    Parks(Vec<Park>),
    /// Sets the positions of the guarded run's operations in key queues. A run that ends has none.
    Keys(Vec<KeyPlace>),
    /// Removes the operations of the guarded run at or below these paths from the key queues, if the store keeps those
    /// ([`SharedAdmission`]).
    Leave(Vec<Path>),
    /// Sets the mailbox position up to which the owner has examined messages. Later messages make a suspended run due.
    Examined(u64),
    /// Removes these messages, which are now recorded in the journal or void, from the mailbox.
    Consumed(Vec<u64>),
    /// Adds references from a run to artifacts, which are kept for as long as the run is. Refused with
    /// [`StoreError::NoArtifact`] if one does not exist or `by` may not read it. The run is the guarded one, or one
    /// that this commit starts; no effect if the latter existed before.
    Refer {
        /// The run.
        run: RunId,
        /// The artifacts it refers to.
        artifacts: Vec<ArtifactId>,
        /// The run whose access is checked: usually the run itself; for a copy, the run that was copied.
        by: RunId,
    },
    /// Puts a message into a run's mailbox. Refused if the run has ended, unless the message settles an open doubt:
    /// that closes the doubt, and the message is kept as its annotation. Refused if a message with the same dedupe key
    /// was accepted before. In an owner's commit, a message that would be refused is left out instead, so that the
    /// owner's own changes are recorded whatever happened to the recipient.
    Mail {
        /// The recipient.
        run: RunId,
        /// The message.
        message: Message,
        /// At most one message with this key is ever accepted.
        dedupe: Option<Arc<str>>,
    },
    /// Adds the outcomes of the guarded run's calls to the [`RecentOutcomes`] of its session. In the commit that ends the
    /// run, so that they are added once.
    Outcomes {
        /// When the run ended.
        at: Timestamp,
        /// Its outcomes that count.
        outcomes: Vec<SeenOutcome>,
    },
    /// Posts a message to a session, together with the owner's own changes, so it is never refused. If the session is
    /// closed, the message is left out and the store logs that. The turn that it starts is queued, whatever the limits.
    Post {
        /// The session.
        session: Arc<str>,
        /// When it is posted.
        at: Timestamp,
        /// The message.
        message: NewMessage,
        /// Who the turn acts for that it starts.
        principal: Option<Arc<str>>,
    },
    /// Changes the tools that a session shows, together with the owner's own changes, so it is never refused. If the
    /// session is closed, or would name too many tools, the change is left out and the store logs that.
    Tools {
        /// The session.
        session: Arc<str>,
        /// The change.
        change: ToolsChange,
    },
    /// Changes files of a session, together with the owner's own changes, so it is never refused. The changes were
    /// decided about and reserved under the same key ([`SessionChange::Stage`]). What cannot be made although it was,
    /// because the session is closed by now, is left out, and the store logs that.
    Edit {
        /// The session.
        session: Arc<str>,
        /// When they are made.
        at: Timestamp,
        /// The changes.
        edits: Vec<FileEdit>,
        /// The idempotency key of the operation.
        key: Arc<str>,
    },
}

/// The description of a new run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Creation {
    /// The id of the root tool, or `batch`.
    pub tool: Arc<str>,
    /// When it was created.
    pub at: Timestamp,
    /// The worker that drives it; `WorkerId::default()` for a run without an owner.
    pub worker: WorkerId,
    /// At most one run is created with this key. Later ones are refused with [`StoreError::KeyTaken`], and for a while
    /// after the run was removed with [`StoreError::KeySpent`]; see [`Retention`].
    pub key: Option<Arc<str>>,
    /// The session it belongs to. A run that is created from outside is refused with [`StoreError::SessionClosed`] if
    /// the session is closed.
    pub session: Option<Arc<str>>,
    /// Who it acts for.
    pub principal: Option<Arc<str>>,
    /// What caused it, as given: the id of a message, a turn or a frame.
    pub cause: Option<Arc<str>>,
    /// Whether it is a turn of its session, and what happens if the session has a turn already.
    pub turn: Turn,
    /// The run that spawned it, and the path of the operation that did.
    pub parent: Option<Box<(RunId, Path)>>,
    /// Whether its session must belong to its principal. A run that is created from outside in a session of another one
    /// is refused with [`StoreError::NoSession`]: that session looks missing.
    pub own_session: bool,
    /// Refused with [`StoreError::SessionFull`] if its session has this many unfinished runs, unless the session sets
    /// another limit. `None` for a run that belongs to the work of another one. A run that ends in the commit that
    /// creates it is not refused.
    pub most: Option<u64>,
}

/// A claimed run: its new epoch and everything its owner needs to drive it.
#[derive(Clone, Debug)]
// Many fields: a claim is one consistent read of the store.
pub struct Claimed {
    /// The new owner's epoch.
    pub epoch: u64,
    /// The generation of the journal, counted from zero.
    pub generation: u32,
    /// The number of records in all generations.
    pub seq: u64,
    /// The journal of this generation.
    pub records: Vec<Record>,
    /// Messages that were not consumed.
    pub mail: Vec<Mail>,
    /// The position of the latest message, consumed or not.
    pub mailed: u64,
    /// Whether every earlier owner is certainly dead, so that none of its attempts is still running.
    pub owners_dead: bool,
    /// Whether the run was running: its last owner had neither suspended nor held it.
    pub was_running: bool,
    /// The positions of its operations in key queues, if the store keeps those.
    pub places: Vec<KeyPlace>,
    /// Whether the last owner shut down cleanly.
    pub orderly: bool,
    /// The last owner; `WorkerId::default()` if there was none.
    pub last: WorkerId,
    /// Whether it is a turn of its session.
    pub turn: bool,
    /// The session it belongs to.
    pub session: Option<Arc<str>>,
    /// Who it acts for.
    pub principal: Option<Arc<str>>,
    /// What caused it.
    pub cause: Option<Arc<str>>,
    /// The run that spawned it, and the path of the operation that did.
    pub parent: Option<Box<(RunId, Path)>>,
    /// Why secrets of the journal could not be decrypted. The records then contain them encrypted, and no body may see
    /// them: the run can only be held or ended.
    pub sealed: Option<String>,
    /// What of the journal or the mailbox is damaged, and where. Neither is returned then, only the length of the
    /// journal: the run can only be held or ended.
    pub damaged: Option<String>,
}

/// Called after something was written for a run; see [`Driving::on_change`].
pub type OnChange = Arc<dyn Fn(RunId) + Send + Sync>;

/// A record with its position in its run's journal and among the records of all runs.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Grows with every record of any run.
    pub position: u64,
    /// The run.
    pub run: RunId,
    /// The position in the run's journal, counted from zero over all generations.
    pub seq: u64,
    /// The record.
    pub record: Record,
}

/// A store of runs. All methods may be called from any thread.
///
/// The contract, checked by `testing::store_suite`:
/// - a commit is atomic; once it is answered with success, it survives the process;
/// - an owner's commit is refused unless its epoch and sequence match the run; the identical commit gets the same
///   answer again; nothing of a refused commit is kept;
/// - commits of one run are answered in the order in which they were submitted;
/// - a claim raises the epoch, so that every later write of an earlier owner is refused;
/// - an unfinished run is never removed, however old it is;
/// - no wake-up is lost: a suspended run is due as soon as its time has come or its mailbox has a message beyond the
///   position that its owner examined, whether the message or the suspension was written first;
/// - no awaited end is lost: the commit that finishes a run puts a [`Message::Over`] into the mailbox of every run that
///   has sent it a [`Message::Await`].
///
/// A record tells which of its values are secret ([`Record::change_secrets`]). A store that writes to a disk should
/// encrypt them, as the SQLite store does, and decrypt them when they are read. A store in memory can ignore this.
pub trait Store: Driving + Queries + Upkeep {
    /// The artifacts of the store.
    fn artifacts(&self) -> &dyn Artifacts;

    /// The sessions of the store.
    fn sessions(&self) -> &dyn Sessions;

    /// The connections of the store.
    fn connections(&self) -> &dyn Connections;

    /// The secret that signs reply keys. Created with the store and kept with it.
    fn secret(&self) -> [u8; 32];

    /// Sets the clock for leases and wake times, for a store that runs in the process of its runtime. A store with a
    /// server uses the server's clock and ignores this.
    fn use_clock(&self, _clock: Arc<dyn Clock>) {}
}

/// What the owner of a run, or a worker that looks for runs, needs of a [`Store`].
pub trait Driving: Send + Sync + 'static {
    /// Writes atomically. Durable when it is answered. Dropping the ticket does not undo the write.
    fn commit(&self, commit: Commit) -> Answer<()>;

    /// Claims a run: raises its epoch and returns everything needed to drive it. A held, suspended or queued run is
    /// running again.
    ///
    /// Refused for a run that has ended, for a running one whose owner is another worker with a lease that is not over,
    /// and for a turn that waits for earlier turns ([`StoreError::Busy`]).
    ///
    /// Dropping the future may leave the epoch raised; the run then has no owner until the next claim.
    fn claim(&self, run: RunId, worker: WorkerId) -> BoxFuture<'_, Result<Claimed, StoreError>>;

    /// Finds runs that are due ([`Queries::due`]) and claims at most `limit` of them, in one step: two workers that ask
    /// at the same time get different runs. Running runs of the worker itself are left out.
    ///
    /// After an error it is unknown whether any run was claimed. The caller then looks for runs that it owns but does
    /// not drive: [`RunInfo::worker`] is the owner. The same holds if the future is dropped.
    fn claim_due(&self, worker: WorkerId, limit: usize) -> BoxFuture<'_, Result<ClaimedDue, StoreError>>;

    /// Records that the owner under `epoch` shut down cleanly, so that the run can be claimed at once. Ignored if the
    /// epoch is stale.
    fn release(&self, run: RunId, epoch: u64) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Extends the lease on every run that this worker owns to `lease` from now, by the store's clock. A worker that
    /// never calls this has no lease: its runs can be claimed at any time.
    fn renew(&self, worker: WorkerId, lease: Duration) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Registers a callback for writes that workers look for: messages, and runs that are due. It is only a hint, which
    /// may come late, too often or never; polling stays the reliable way. The callback is removed when the caller drops
    /// it.
    fn on_change(&self, _tell: &OnChange) {}

    /// The admission that the workers of this store share. `None` if one process owns the store; its runtime then keeps
    /// admission in memory.
    fn admission(&self) -> Option<&dyn SharedAdmission> {
        None
    }

    /// The positions of unfinished runs in key queues, in no particular order; see [`Change::Keys`]. A runtime that has
    /// the store to itself reads them once, when it starts.
    fn key_places(&self) -> BoxFuture<'_, Result<Vec<(RunId, KeyPlace)>, StoreError>>;

    /// The messages of a run after position `after` that were not consumed.
    fn mail(&self, run: RunId, after: u64) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>>;

    /// Like [`mail`](Driving::mail), for many runs at once. Runs without such messages, and runs whose messages cannot
    /// be read, are left out.
    fn mail_of_many(&self, runs: Vec<(RunId, u64)>) -> BoxFuture<'_, Result<Mailboxes, StoreError>>;
}

/// The read side of a [`Store`]. None of these methods writes.
pub trait Queries: Send + Sync + 'static {
    /// Runs that a worker should claim, at most `limit`: queued runs, suspended runs whose time has come by the store's
    /// clock or that have messages their owner did not examine, and running runs whose owner's lease is over.
    fn due(&self, limit: usize) -> BoxFuture<'_, Result<Due, StoreError>>;

    /// The state of a run; `None` if there is no such run.
    fn info(&self, run: RunId) -> BoxFuture<'_, Result<Option<RunInfo>, StoreError>>;

    /// The journal of a run from record `from` on, over all generations. [`StoreError::JournalGone`] if only its
    /// summary is kept.
    fn journal(&self, run: RunId, from: u64) -> BoxFuture<'_, Result<Vec<Record>, StoreError>>;

    /// Like [`journal`](Queries::journal), at most `limit` records. A store that can read a part of a journal overrides
    /// this.
    fn page(&self, run: RunId, from: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        let journal = self.journal(run, from);
        Box::pin(async move {
            let mut records = journal.await?;
            records.truncate(limit);
            Ok(records)
        })
    }

    /// The records of a session's runs after `position`, at most `limit`. Secrets that cannot be decrypted stay
    /// encrypted in it, so that one run does not hide the others.
    fn feed(&self, session: Arc<str>, after: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Entry>, StoreError>>;

    /// Runs that match the filter, oldest first, at most `limit`, after the run `after`.
    fn list(
        &self,
        filter: Filter,
        after: Option<RunId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<RunInfo>, StoreError>>;

    /// Like [`list`](Queries::list), newest first: before the run `before`, or from the newest on.
    fn latest(
        &self,
        _filter: Filter,
        _before: Option<RunId>,
        _limit: usize,
    ) -> BoxFuture<'_, Result<Vec<RunInfo>, StoreError>> {
        unsupported("this store cannot list the newest runs first")
    }

    /// The run that has this key, if it is still kept.
    fn keyed(&self, _key: Arc<str>) -> BoxFuture<'_, Result<Option<RunId>, StoreError>> {
        unsupported("this store cannot look up a run by its key")
    }

    /// Whether a run's mailbox has ever accepted a message with this dedupe key.
    fn told(&self, _run: RunId, _dedupe: Arc<str>) -> BoxFuture<'_, Result<bool, StoreError>> {
        unsupported("this store cannot tell which messages a run has had")
    }

    /// The number of unfinished runs by state, of at most `limit` of them. Fast enough to be asked often.
    fn unfinished(&self, _limit: u64) -> BoxFuture<'_, Result<Counts, StoreError>> {
        unsupported("this store cannot count unfinished runs")
    }

    /// The number of runs by state. May be slow in a large store; meant for occasional use by an operator.
    fn counts(&self) -> BoxFuture<'_, Result<Counts, StoreError>> {
        unsupported("this store cannot count runs")
    }
}

/// Maintenance of a [`Store`].
pub trait Upkeep: Send + Sync + 'static {
    /// Removes a small part of what need not be kept at this time; see [`Retention`]. Small enough that commits do not
    /// have to wait for it. A store that keeps everything does nothing.
    fn tidy(&self, _now: Timestamp) -> BoxFuture<'_, Result<Tidied, StoreError>> {
        Box::pin(std::future::ready(Ok(Tidied::default())))
    }

    /// Removes one finished run now: its journal, its messages and its row. Its key stays taken for as long as
    /// [`Retention`] says, counted from now. Messages that it sent to other runs stay.
    ///
    /// Refused with [`StoreError::Unfinished`] or [`StoreError::Doubted`]. Dropping the future may leave the run half
    /// removed, without its journal; purging it again removes the rest.
    fn purge(&self, _run: RunId, _now: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
        unsupported("this store cannot purge runs")
    }

    /// Writes and answers everything that was submitted before, then releases what the store holds, such as a file
    /// lock. Later requests fail.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// The answer of a store that does not implement an optional method.
fn unsupported<'a, T: Send + 'a>(what: &str) -> BoxFuture<'a, Result<T, StoreError>> {
    Box::pin(std::future::ready(Err(StoreError::Unavailable(what.to_owned()))))
}
