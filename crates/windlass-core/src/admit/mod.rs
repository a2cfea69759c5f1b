//! Admission: what stands between a call and its attempt when others are at work too. Everything here is held by an
//! attempt and let go when it is dropped; only keys may be held by a durable body.
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
