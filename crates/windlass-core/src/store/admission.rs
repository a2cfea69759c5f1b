//! Admission shared by several workers: key queues, session exclusivity and tool limits, kept in the store. A runtime
//! that has its store to itself keeps them in memory and does not use this module.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::StoreError;
use crate::id::{RunId, WorkerId};
use crate::path::Path;

/// An operation's request for a key, or for permission to wait for a run to end. The store checks it against the
/// owner's epoch and may refuse it. It keeps a refusal until the run ends or continues with its next generation, so
/// that the same request always gets the same answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitRequest {
    /// The run of the operation.
    pub run: RunId,
    /// The epoch of the run's owner. Refused with [`StoreError::Stale`] if another epoch is in force.
    pub epoch: u64,
    /// The operation. It has at most one request at a time; repeating the request changes nothing.
    pub path: Path,
    /// What it waits for.
    pub wants: Wants,
    /// The queues of the keys held by the bodies that contain the operation.
    pub held: Vec<Arc<str>>,
}

/// What an operation waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wants {
    /// A key.
    Key {
        /// The evaluated key.
        key: Arc<str>,
        /// The queue for it: the key's own queue, or a nested one if an enclosing body holds the key.
        queue: Arc<str>,
    },
    /// The end of a run.
    End(RunId),
}

/// The answer to a [`WaitRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The operation holds the key, or may wait for the run.
    Granted,
    /// The operation is in the queue. The commit that grants it the key also sends
    /// [`Message::Key`](super::Message::Key) to its run.
    Queued,
    /// The operation would wait for ever; the message names the cycle.
    Refused(String),
}

/// Requests what an attempt occupies while it runs: its session and a slot of its tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRequest {
    /// The worker that makes the attempt. Its slots end with its lease.
    pub worker: WorkerId,
    /// Identifies the slot among those of the worker.
    pub slot: u64,
    /// The run that [`Driving::on_change`](super::Driving::on_change) reports when the slot is granted.
    pub run: RunId,
    /// The session, and whether the attempt must run alone in it.
    pub session: Option<(Arc<str>, bool)>,
    /// The tool whose limits apply.
    pub tool: Option<ToolLimits>,
}

/// The limits of a tool across all workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolLimits {
    /// The id of the tool.
    pub id: Arc<str>,
    /// The most attempts that run at once.
    pub in_flight: Option<u32>,
    /// The most attempts that start per second.
    pub per_second: Option<u32>,
}

/// The answer to a [`SlotRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// The attempt may start after this time.
    Granted(Duration),
    /// Earlier attempts are in the way. Send the same request again to learn whether they still are.
    Queued,
}

/// A store that keeps admission for the workers that share it; see [`Driving::admission`](super::Driving::admission).
///
/// A key belongs to an operation. It is released with [`Change::Leave`](super::Change::Leave), with the next generation
/// of its run, or with its run, whatever happens to the worker. The commit that releases it also grants it to the next
/// operation and sends a message to that operation's run. A slot belongs to an attempt. It is released with
/// [`leave`](SharedAdmission::leave) or with the lease of its worker.
pub trait SharedAdmission: Send + Sync {
    /// Requests a key, or permission to wait for the end of a run. Dropping the future may leave the request in the
    /// queue; [`withdraw`](SharedAdmission::withdraw) removes it.
    fn request(&self, request: WaitRequest) -> BoxFuture<'_, Result<Verdict, StoreError>>;

    /// Withdraws the request of the operation at this path and releases its key.
    fn withdraw(&self, run: RunId, path: Path) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Requests a slot, or asks whether it has been granted. Slots are granted in order of arrival. Dropping the future
    /// may leave the request in the queue; [`leave`](SharedAdmission::leave) removes it.
    ///
    /// Refused with [`StoreError::Unavailable`] for a worker without a lease: its slot would outlast its death.
    fn enter(&self, request: SlotRequest) -> BoxFuture<'_, Result<Slot, StoreError>>;

    /// Releases a slot, or withdraws the request for it.
    fn leave(&self, worker: WorkerId, slot: u64) -> BoxFuture<'_, Result<(), StoreError>>;
}
