//! The store's side of the kernel: one write method, a small read side, and the rules both keep.
//!
//! A store knows no tools. It keeps journals, mailboxes and run states, and it refuses whoever does not own a run.

mod answer;
mod artifacts;
mod damage;
mod keys;
mod lists;
mod memory;
mod message;
mod retention;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

pub use answer::{Answer, Promise, Ticket};
pub use artifacts::{
    Access, ArtifactHasher, ArtifactId, Artifacts, BadArtifactId, Stored, Swept, Upload, check_piece, no_upload,
};
pub use keys::KeyPlace;
pub use lists::{Counts, Filter};
pub use memory::MemoryStore;
pub use message::{Mail, Mailboxes, Message, Resolution, Settlement};
pub use retention::{Cutoffs, Retention, Tidied};

use std::sync::Arc;

use crate::id::{RunId, WorkerId};
use crate::path::Path;
use crate::run::record::Record;
use crate::run::state::{Doubt, Park, RunInfo, RunState};
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
    /// Another worker drives the run and its lease is not over. The claimant waits.
    #[error("run {run} is leased to another worker until {until:?}")]
    Leased {
        /// Which run.
        run: RunId,
        /// When the lease ends unless it is renewed.
        until: Timestamp,
    },
    /// A run was created under this key before. The caller uses that one.
    #[error("the key belongs to run {run}")]
    KeyTaken {
        /// The run that has the key.
        run: RunId,
    },
    /// A run was created under this key before, and is no longer kept. The caller does without: what it asks for was done,
    /// or given up, long ago.
    #[error("the key belonged to run {run}, which is no longer kept; if this is new work, use a new key")]
    KeySpent {
        /// The run that had the key.
        run: RunId,
    },
    /// The run ended so long ago that only its summary is kept.
    #[error("the journal of run {0} is no longer kept, only its summary: it ended longer ago than journals are kept")]
    JournalGone(RunId),
    /// The journal has secrets that the store keeps sealed and cannot open now. Nothing of it is lost, and other runs are as
    /// they were. A claim is not refused for it: see [`Claimed::sealed`].
    #[error(
        "the journal of run {run} has secrets that cannot be opened: {why}; put the key back, or purge the run, once \
         it is over or was finished by hand"
    )]
    Sealed {
        /// Which run.
        run: RunId,
        /// What is missing or damaged, and where.
        why: String,
    },
    /// What the store holds is not what was written. It names the run and the place, and is no answer; other runs are as they
    /// were. A claim is not refused for a damaged journal: see [`Claimed::damaged`].
    #[error("{}", damage::sentence(run.as_ref(), place))]
    Damaged {
        /// Which run, if it is known.
        run: Option<RunId>,
        /// What is damaged, and where.
        place: String,
    },
    /// The run is not finished, so it cannot be purged.
    #[error("run {0} is not finished and cannot be purged; cancel it first, and purge it when it has ended")]
    Unfinished(RunId),
    /// The run has ended with open doubts, so it cannot be purged.
    #[error("run {0} has open doubts and cannot be purged; settle them first, if need be by giving them up")]
    Doubted(RunId),
    /// A message with this dedupe key is, or was, in the mailbox already. Nothing was written.
    #[error("run {run} has had a message under the key {dedupe:?} already")]
    Duplicate {
        /// Which run.
        run: RunId,
        /// The dedupe key.
        dedupe: Arc<str>,
    },
    /// The session has a turn that is not over, and the new one would not wait for it.
    #[error("session {session} is busy with the turn of run {turn}")]
    Busy {
        /// Which session.
        session: Arc<str>,
        /// The turn it is busy with.
        turn: RunId,
    },
    /// There is no such artifact, or none for whoever asks: the two look the same from outside. The caller names another.
    #[error(
        "there is no artifact {artifact} here for whoever asked; it may have been collected, or belong to another session"
    )]
    NoArtifact {
        /// Which artifact.
        artifact: ArtifactId,
    },
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
    Create(Creation),
    /// Creates another run that nobody owns yet: it is queued with these records, for any worker to take up. Nothing
    /// happens if a run of this id is there already.
    Start {
        /// Which run.
        run: RunId,
        /// What is known of it.
        creation: Creation,
        /// The beginning of its journal.
        records: Vec<Record>,
    },
    /// Appends to the guarded run's journal.
    Append(Vec<Record>),
    /// Begins the next generation of the guarded run: what this commit appends is the beginning of its fresh journal.
    Continue,
    /// Sets the guarded run's state.
    State(RunState),
    /// Sets what of the guarded run waits for a settlement.
    Doubts(Vec<Doubt>),
    /// Sets what else the guarded run waits for.
    Parks(Vec<Park>),
    /// Sets the places that operations of the guarded run have in the queues of keys. A run that ends has none.
    Keys(Vec<KeyPlace>),
    /// The owner has looked at its mailbox up to this position: later mail makes a suspended run due.
    Examined(u64),
    /// These messages are in the journal now, or void: the mailbox may forget what they said.
    Consumed(Vec<u64>),
    /// The run refers to these artifacts from now on: they are kept as long as it is. Refused with
    /// [`StoreError::NoArtifact`] if one of them is not there, or `by` may not read it. The run is the guarded one, or one
    /// that this commit starts; if that was there already, nothing happens.
    Refer {
        /// Which run.
        run: RunId,
        /// What it refers to.
        artifacts: Vec<ArtifactId>,
        /// By whose right: usually the run itself, for a copy the run it is a copy of.
        by: RunId,
    },
    /// Puts a message into a run's mailbox. Refused if the run is finished, unless the message settles an
    /// open doubt: that closes the doubt, and the message stays as its annotation. Refused if the mailbox has had a
    /// message under the same dedupe key. In an owner's commit a message that would be refused is left out instead:
    /// what the owner did is recorded whatever became of the addressee.
    Mail {
        /// Whose mailbox.
        run: RunId,
        /// The message.
        message: Message,
        /// At most one message under this key is ever accepted.
        dedupe: Option<Arc<str>>,
    },
}

/// What is known of a run when it is created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Creation {
    /// What it runs: the root tool's id, or `batch`.
    pub tool: Arc<str>,
    /// When.
    pub at: Timestamp,
    /// Who drives it; nobody for a run that is started for others.
    pub worker: WorkerId,
    /// At most one run is created under this key; later ones are refused with [`StoreError::KeyTaken`], and for a while
    /// after the run is gone with [`StoreError::KeySpent`]; see [`Retention`].
    pub key: Option<Arc<str>>,
    /// The session it belongs to.
    pub session: Option<Arc<str>>,
    /// Whether it is a turn of its session, and what happens if the session has one already.
    pub turn: Turn,
    /// The run that spawned it, and where.
    pub parent: Option<Box<(RunId, Path)>>,
}

/// A session has one turn at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Turn {
    /// The run is not a turn.
    #[default]
    No,
    /// It waits for the turns before it. Only for runs that nobody owns yet.
    Queue,
    /// It is refused while the session has a turn that is not over.
    Refuse,
}

/// A run with its new owner's fence and everything the owner needs to drive it.
#[derive(Clone, Debug)]
// Many fields: a claim is one answer of the store; all of it was read in one look.
pub struct Claimed {
    /// The new owner's epoch.
    pub epoch: u64,
    /// Which generation the journal belongs to; counts from zero.
    pub generation: u32,
    /// How many records the journal has had, in all generations.
    pub seq: u64,
    /// The journal of this generation.
    pub records: Vec<Record>,
    /// Mail that was not consumed.
    pub mail: Vec<Mail>,
    /// Whether every earlier owner is certainly dead, so that none of its attempts can still be running.
    pub owners_dead: bool,
    /// Whether the last owner gave the run up in good order.
    pub orderly: bool,
    /// Who owned it last; nobody, if nobody has yet.
    pub last: WorkerId,
    /// Whether it is a turn of its session.
    pub turn: bool,
    /// The session it belongs to.
    pub session: Option<Arc<str>>,
    /// The run that spawned it, and where.
    pub parent: Option<Box<(RunId, Path)>>,
    /// Why secrets of the journal could not be opened. They stand in it as they stand in the store then, and no body may
    /// see them: all that can be done with the run is to hold it, or to end it.
    pub sealed: Option<String>,
    /// What of the journal or the mailbox is damaged, and where. Neither is given then, only where the journal ends: all that
    /// can be done with the run is to hold it, or to end it.
    pub damaged: Option<String>,
}

/// Who claims a run, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// The new owner.
    pub worker: WorkerId,
    /// Leases that ended before this are over.
    pub now: Timestamp,
}

/// Runs to be taken up; see [`Driving::due`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Which.
    pub runs: Vec<RunId>,
    /// When the next suspended run is due that is not yet.
    pub next: Option<Timestamp>,
}

/// A record with its places: in its run's journal, and among the records of all runs.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Grows with every record the store takes, whatever run it belongs to.
    pub position: u64,
    /// Whose record.
    pub run: RunId,
    /// Where in the run's journal; counts from zero, over all generations.
    pub seq: u64,
    /// The record.
    pub record: Record,
}

/// Keeps runs. All methods may be called from any thread.
///
/// The contract, checked by `testing::store_suite`:
/// - a commit is atomic; once it is answered with success it survives the process;
/// - an owner's commit is refused unless epoch and sequence are the run's; the identical commit again is answered as
///   the first time; nothing of a refused commit is kept;
/// - commits of one run are answered in the order they were submitted;
/// - a claim raises the epoch, so that every later write of an earlier owner is refused;
/// - what is not finished is never forgotten, however old it is;
/// - no wake-up is lost: a suspended run is due as soon as its time has come or its mailbox has anything beyond the
///   position its owner examined, whichever of mail and suspension was written first.
///
/// A record says which of its values are secret ([`Record::change_secrets`]). A store that writes to a disk should keep
/// those sealed, as the SQLite store does, and give them back as they were. One that does not, such as the one in memory,
/// need not look at it.
pub trait Store: Driving + Queries + Upkeep {
    /// Where it keeps artifacts.
    fn artifacts(&self) -> &dyn Artifacts;

    /// The secret reply keys are signed with: made with the store, kept with it.
    fn secret(&self) -> [u8; 32];
}

/// What the owner of a run, or a worker that looks for runs, asks of a [`Store`].
pub trait Driving: Send + Sync + 'static {
    /// Writes atomically. Dropping the ticket does not undo the write.
    fn commit(&self, commit: Commit) -> Answer<()>;

    /// Takes over a run. Dropping the future may leave the epoch raised: nobody owns the run then until the next claim.
    ///
    /// Raises its epoch and returns everything needed to drive it. A held, suspended or queued run is running again.
    /// Refused for a finished run, for a running one whose owner is another worker with a lease that is not over, and
    /// for a turn that waits for the turns before it ([`StoreError::Busy`]).
    fn claim(&self, run: RunId, by: Claimant) -> BoxFuture<'_, Result<Claimed, StoreError>>;

    /// Says that the owner under `epoch` stopped in good order: the run can be claimed at once. Ignored if the epoch is
    /// stale.
    fn release(&self, run: RunId, epoch: u64) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Prolongs the lease on every run this worker owns. A worker that never does has no lease: its runs can be claimed
    /// at any time.
    fn renew(&self, worker: WorkerId, until: Timestamp) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Runs that should be taken up, at most `limit`: queued ones, suspended ones whose time has come or that have mail
    /// nobody examined, and running ones whose owner's lease is over.
    fn due(&self, now: Timestamp, limit: usize) -> BoxFuture<'_, Result<Due, StoreError>>;

    /// The places of unfinished runs in the queues of keys, in no particular order; see [`Change::Keys`]. Read once, when a
    /// runtime that has the store to itself begins.
    fn key_places(&self) -> BoxFuture<'_, Result<Vec<(RunId, KeyPlace)>, StoreError>>;

    /// A run's mail beyond `after` that was not consumed.
    fn mail(&self, run: RunId, after: u64) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>>;

    /// The same of many runs at once, for a worker that looks for what others wrote. Runs without such mail, and runs whose
    /// mail cannot be read, are left out.
    fn mail_of_many(&self, runs: Vec<(RunId, u64)>) -> BoxFuture<'_, Result<Mailboxes, StoreError>>;
}

/// What is looked at in a [`Store`]. Looking writes nothing.
pub trait Queries: Send + Sync + 'static {
    /// A run's state.
    fn info(&self, run: RunId) -> BoxFuture<'_, Result<Option<RunInfo>, StoreError>>;

    /// A run's journal from the record `from` on, over all generations. [`StoreError::JournalGone`] if only its summary is
    /// kept.
    fn journal(&self, run: RunId, from: u64) -> BoxFuture<'_, Result<Vec<Record>, StoreError>>;

    /// The same, at most `limit` records. A store that can read less than the whole of a journal does.
    fn page(&self, run: RunId, from: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        let journal = self.journal(run, from);
        Box::pin(async move {
            let mut records = journal.await?;
            records.truncate(limit);
            Ok(records)
        })
    }

    /// What was recorded after `position` for the runs of a session, at most `limit` entries. Secrets that cannot be opened
    /// stay sealed in it: one run must not hide the others.
    fn feed(&self, session: Arc<str>, after: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Entry>, StoreError>>;

    /// Runs that match, oldest first, at most `limit`, after the run `after`.
    fn list(
        &self,
        filter: Filter,
        after: Option<RunId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<RunInfo>, StoreError>>;

    /// The same, newest first: before the run `before`, or from the newest on.
    fn latest(
        &self,
        _filter: Filter,
        _before: Option<RunId>,
        _limit: usize,
    ) -> BoxFuture<'_, Result<Vec<RunInfo>, StoreError>> {
        lacks("it does not list the newest runs first")
    }

    /// The run that has this key, if it is still kept.
    fn keyed(&self, _key: Arc<str>) -> BoxFuture<'_, Result<Option<RunId>, StoreError>> {
        lacks("it does not say which run has a key")
    }

    /// Whether a run's mailbox has, or has had, a message under this dedupe key.
    fn told(&self, _run: RunId, _dedupe: Arc<str>) -> BoxFuture<'_, Result<bool, StoreError>> {
        lacks("it does not say which messages it has had")
    }

    /// How many runs there are. May take a while where there are many; for whoever looks after a store now and then.
    fn counts(&self) -> BoxFuture<'_, Result<Counts, StoreError>> {
        lacks("it does not count runs")
    }
}

/// What keeps a [`Store`] in order.
pub trait Upkeep: Send + Sync + 'static {
    /// Lets go of a little of what is kept no longer at this time; see [`Retention`]. Small enough that no commit has to
    /// wait for it. A store that keeps everything does nothing.
    fn tidy(&self, _now: Timestamp) -> BoxFuture<'_, Result<Tidied, StoreError>> {
        Box::pin(std::future::ready(Ok(Tidied::default())))
    }

    /// Forgets one finished run at once: its journal, its mail, its row. Its key stays taken, as if it were gone from this
    /// moment on for the usual reason. What it said to other runs is theirs, and stays.
    ///
    /// Refused with [`StoreError::Unfinished`] and [`StoreError::Doubted`]. Dropping the future may leave it half done:
    /// then the journal is gone, and purging it again does the rest.
    fn purge(&self, _run: RunId, _now: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
        lacks("it does not purge runs")
    }

    /// Writes and answers everything submitted before, then gives up whatever it holds, such as a file's lock. Later
    /// requests fail.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// What a store answers that cannot do something.
fn lacks<'a, T: Send + 'a>(what: &str) -> BoxFuture<'a, Result<T, StoreError>> {
    Box::pin(std::future::ready(Err(StoreError::Unavailable(what.to_owned()))))
}
