//! Admission: what a call waits for before its attempt when others are running too. Permits, exclusivity and limits belong to
//! an attempt and are released when it is dropped. Keys belong to operations and outlive the futures that wait for
//! them.
//!
//! An attempt takes what it needs in a fixed order (key, exclusivity in the session, the tool's own limits, permit), so that
//! the holder of a later one never waits for an earlier one. The breaker of its target is asked before and after: an
//! attempt that waits for it holds only its key.

mod breaker;
mod fifo;
mod gate;
mod keys;
mod permits;
pub(crate) mod queues;
#[cfg(test)]
mod tests;
mod unfinished;

pub use breaker::{BreakerPhase, BreakerPolicy, TargetState};
pub(crate) use breaker::{BreakerWait, Breakers, Health, Pass, Wait};
pub(crate) use fifo::{Fifo, FifoRequest};
pub(crate) use gate::Gate;
pub(crate) use keys::{HeldKey, Keys, QueuedKey};
pub(crate) use permits::{Permit, Permits};
pub(crate) use unfinished::UnfinishedRunLimit;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::limits;
use crate::session::Sessions;

/// What the attempts of one process share.
pub(crate) struct Admission {
    pub(crate) permits: Arc<Permits>,
    pub(crate) keys: Keys,
    /// Exclusivity among the attempts of a session's runs.
    pub(crate) sessions: Sessions,
    /// Whether the store holds keys, exclusivity and tool limits for all workers that share it. Permits count the
    /// attempts of this process either way.
    pub(crate) is_shared: bool,
    pub(crate) breakers: Arc<Breakers>,
    pub(crate) unfinished: UnfinishedRunLimit,
    /// Numbers the slots requested from the store.
    pub(crate) slots: AtomicU64,
}

impl Admission {
    /// Admission for this many attempts at once.
    pub(crate) fn new(in_flight: usize, is_shared: bool) -> Self {
        Self {
            permits: Permits::new(in_flight.max(1)),
            keys: Keys::default(),
            sessions: Sessions::default(),
            is_shared,
            breakers: Breakers::new(BreakerPolicy::default()),
            unfinished: UnfinishedRunLimit::new(limits::UNFINISHED_RUNS),
            slots: AtomicU64::new(0),
        }
    }
}
