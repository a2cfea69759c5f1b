//! Admission: what stands between a call and its attempt when others are at work too. Permits, turns and limits are held by
//! an attempt and let go when it is dropped. Keys belong to operations and outlast the futures that wait for them.
//!
//! The order in which an attempt takes what it needs is fixed (key, turn in the session, the tool's own limits, permit),
//! so that whoever holds a later thing never waits for an earlier one.

mod fifo;
mod gate;
mod keys;
mod permits;

pub(crate) use fifo::{Fifo, Turn};
pub(crate) use gate::Gate;
pub(crate) use keys::{Held, KeyTurn, Keys};
pub(crate) use permits::{Permit, Permits};

use std::sync::Arc;

use crate::session::Sessions;

/// What the attempts of one process share.
pub(crate) struct Admission {
    pub(crate) permits: Arc<Permits>,
    pub(crate) keys: Keys,
    /// Exclusivity among the attempts of a session's runs.
    pub(crate) sessions: Sessions,
}

impl Admission {
    /// For so many attempts at once.
    pub(crate) fn new(in_flight: usize) -> Self {
        Self { permits: Permits::new(in_flight.max(1)), keys: Keys::default(), sessions: Sessions::default() }
    }
}
