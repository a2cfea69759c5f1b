//! What a store keeps of key queues.

use std::sync::Arc;

#[cfg(doc)]
use super::Change;
use crate::path::Path;

/// The position of an operation in the queue of a key. The operation keeps it while its run is not driven; see
/// [`Change::Keys`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPlace {
    /// The path of the operation in its run.
    pub path: Path,
    /// The evaluated key.
    pub key: Arc<str>,
    /// The order of the queue: grows with every arrival.
    pub ticket: u64,
    /// Whether the operation holds the key; otherwise it is queued.
    pub held: bool,
}
