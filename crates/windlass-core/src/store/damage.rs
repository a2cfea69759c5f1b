//! The message of [`StoreError::Damaged`](super::StoreError::Damaged).

use crate::id::RunId;

pub(super) fn message(run: Option<&RunId>, place: &str) -> String {
    match run {
        Some(run) => format!(
            "the stored data of run {run} is damaged ({place}); restore a backup, or finish the run by hand and \
             purge it"
        ),
        None => format!("the store's data is damaged ({place}); restore a backup"),
    }
}
