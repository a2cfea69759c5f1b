//! Attempts on their way that must not be repeated.

use std::sync::Arc;

use super::record::{Asked, DoubtCause, OpKind};
use super::state::Doubt;
use crate::path::Path;
use crate::time::Timestamp;
use crate::tool::Effect;

/// An attempt that must not be repeated and has not ended.
pub(super) struct Intent {
    pub(super) path: Path,
    pub(super) attempt: u32,
    pub(super) operation: Option<(OpKind, Arc<str>)>,
    pub(super) over_by: Timestamp,
    pub(super) since: Timestamp,
}

impl Intent {
    /// The doubt it becomes if the run ends around it.
    pub(super) fn doubt(self) -> Doubt {
        let describe = |(kind, name)| Asked::operation(kind, name, None, Effect::Once).to_string();
        Doubt {
            path: self.path,
            attempt: self.attempt,
            operation: self.operation.map(describe).unwrap_or_default(),
            cause: DoubtCause::Cancelled,
            over_by: self.over_by,
            since: self.since,
        }
    }
}
