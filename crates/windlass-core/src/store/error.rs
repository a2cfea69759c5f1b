//! Why a store refused a request, or failed.

use std::sync::Arc;
use std::time::Duration;

use super::{ArtifactId, damage};
use crate::id::RunId;
use crate::time::Timestamp;

/// Why a store refused or failed, split by what the caller does next.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// Another worker owns the run. The writer must stop driving it.
    #[error("run {run} is owned under epoch {current}; a write under epoch {epoch} was refused")]
    Stale {
        /// The run.
        run: RunId,
        /// The writer's epoch.
        epoch: u64,
        /// The epoch in force.
        current: u64,
    },
    /// The journal has another length than the writer expected. The writer reloads it.
    #[error("run {run} is at sequence {current}; a write at {expected} was refused")]
    WrongSequence {
        /// The run.
        run: RunId,
        /// The length that the writer expected.
        expected: u64,
        /// The actual length.
        current: u64,
    },
    /// There is no such run.
    #[error("there is no run {0}")]
    NoSuchRun(RunId),
    /// The run has ended and accepts no more changes.
    #[error("run {0} is finished")]
    Finished(RunId),
    /// Another worker drives the run and its lease is not over. The caller waits.
    #[error("run {run} is leased to another worker for {left:?}")]
    Leased {
        /// The run.
        run: RunId,
        /// How long the lease lasts unless it is renewed, by the store's clock.
        left: Duration,
    },
    /// A run was created with this key before. The caller uses that run.
    #[error("the key belongs to run {run}")]
    KeyTaken {
        /// The run that has the key.
        run: RunId,
    },
    /// A run was created with this key before, and has been removed since. The caller does nothing: the request was
    /// completed, or given up, long ago.
    #[error("the key belonged to run {run}, which is no longer kept; if this is new work, use a new key")]
    KeySpent {
        /// The run that had the key.
        run: RunId,
    },
    /// The run ended so long ago that only its summary is kept.
    #[error("the journal of run {0} is no longer kept, only its summary; the run ended too long ago")]
    JournalGone(RunId),
    /// The journal contains encrypted secrets that the store cannot decrypt now. Nothing is lost, and other runs are
    /// not affected. A claim still succeeds: see [`Claimed::sealed`](super::Claimed::sealed).
    #[error(
        "the journal of run {run} has secrets that cannot be opened: {why}; put the key back, or purge the run after \
         it has ended or was finished by hand"
    )]
    Sealed {
        /// The run.
        run: RunId,
        /// What is missing or damaged, and where.
        why: String,
    },
    /// The stored data is not what was written. The error names the run and the location instead of returning wrong
    /// data; other runs are not affected. A claim still succeeds: see [`Claimed::damaged`](super::Claimed::damaged).
    #[error("{}", damage::message(run.as_ref(), place))]
    Damaged {
        /// The run, if it is known.
        run: Option<RunId>,
        /// What is damaged, and where.
        place: String,
    },
    /// The run has not ended, so it cannot be purged.
    #[error("run {0} is not finished and cannot be purged; cancel it first, and purge it after it has ended")]
    Unfinished(RunId),
    /// The run ended with open doubts, so it cannot be purged.
    #[error("run {0} has open doubts and cannot be purged; settle them first, or give them up")]
    Doubted(RunId),
    /// A message with this dedupe key was accepted before. Nothing was written.
    #[error("run {run} already got a message with the dedupe key {dedupe:?}")]
    Duplicate {
        /// The run.
        run: RunId,
        /// The dedupe key.
        dedupe: Arc<str>,
    },
    /// The session has a turn that is not over, and the new turn was not to be queued.
    #[error(
        "session {session} is busy with the turn of run {turn}, which was created at {since}; wait for its end, cancel \
         it, or queue the new turn"
    )]
    Busy {
        /// The session.
        session: Arc<str>,
        /// The run of the current turn.
        turn: RunId,
        /// When that run was created.
        since: Timestamp,
    },
    /// The session has as many unfinished runs as it may have. The caller waits for one of them, or ends it.
    #[error(
        "session {session:?} has {most} unfinished runs, which is its limit; wait for one of them to end, such as run \
         {run}, cancel it, or raise the limit of the session"
    )]
    SessionFull {
        /// The session.
        session: Arc<str>,
        /// The limit.
        most: u64,
        /// The oldest of the unfinished runs.
        run: RunId,
    },
    /// The session is closed and takes no new work. The caller uses another session.
    #[error("session {session:?} is closed and takes no new work; use another session")]
    SessionClosed {
        /// The session.
        session: Arc<str>,
    },
    /// The session is open, so it cannot be purged.
    #[error("session {session:?} is open and cannot be purged; close it first")]
    SessionOpen {
        /// The session.
        session: Arc<str>,
    },
    /// A run of the session has not ended, so the session cannot be purged.
    #[error("session {session:?} has an unfinished run, {run}, and cannot be purged; cancel it, or wait for its end")]
    SessionBusy {
        /// The session.
        session: Arc<str>,
        /// One of its unfinished runs.
        run: RunId,
    },
    /// There is no such session.
    #[error("there is no session {session:?}")]
    NoSession {
        /// The session.
        session: Arc<str>,
    },
    /// A secret of the session cannot be unsealed. Nothing is lost, and everything else works.
    #[error("the secret {name:?} of session {session:?} cannot be opened: {why}; put the key back, or set it again")]
    Unsealable {
        /// The session.
        session: Arc<str>,
        /// The name of the secret.
        name: Arc<str>,
        /// What is missing or damaged.
        why: String,
    },
    /// The credential of a connection cannot be unsealed. Nothing is lost, and everything else works.
    #[error("the credential of {connection} cannot be opened: {why}; put the key back, or connect again")]
    UnsealableCredential {
        /// The connection.
        connection: String,
        /// What is missing or damaged.
        why: String,
    },
    /// The artifact does not exist, or the reader has no access; the two cannot be told apart. The caller names another
    /// one.
    #[error(
        "there is no artifact {artifact} that the caller may read; it may have been deleted, or belong to another \
         session"
    )]
    NoArtifact {
        /// The artifact.
        artifact: ArtifactId,
    },
    /// It is unknown whether the commit was written. The writer reloads the run, and replay decides.
    #[error("the store failed, and it is unknown whether the write happened: {0}")]
    Unknown(String),
    /// The commit breaks a rule that holds in every store. Resubmitting it does not help.
    #[error("the commit is invalid: {0}")]
    Invalid(String),
    /// The store cannot be used, or does not support the request.
    #[error("the store cannot be used: {0}")]
    Unavailable(String),
}
