//! What a store keeps of the queues of keys.

use std::sync::Arc;

#[cfg(doc)]
use super::Change;
use crate::path::Path;

/// The place of an operation in the queue of a key, which it keeps while its run is not driven; see [`Change::Keys`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPlace {
    /// Where in the run.
    pub path: Path,
    /// The key, as it was evaluated.
    pub key: Arc<str>,
    /// Grows with every arrival: the order of the queue.
    pub ticket: u64,
    /// Whether the operation holds the key, or still queues for it.
    pub held: bool,
}
