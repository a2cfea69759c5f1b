//! Runs that are due.

use std::time::Duration;

use super::{Claimed, StoreError};
use crate::id::RunId;

/// Runs that a worker should claim; see [`Queries::due`](super::Queries::due).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// The runs.
    pub runs: Vec<RunId>,
    /// The time until the next suspended run is due, by the store's clock.
    pub next: Option<Duration>,
}

/// Runs that were due and that the caller now owns; see [`Driving::claim_due`](super::Driving::claim_due).
#[derive(Debug, Default)]
pub struct ClaimedDue {
    /// Each run with its claim, or why it could not be claimed or read. A run that could not be read may still be
    /// claimed.
    pub runs: Vec<(RunId, Result<Claimed, StoreError>)>,
    /// See [`Due::next`].
    pub next: Option<Duration>,
}
