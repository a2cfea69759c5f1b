//! What is said of damage.

use crate::id::RunId;

pub(super) fn sentence(run: Option<&RunId>, place: &str) -> String {
    match run {
        Some(run) => format!(
            "what the store holds of run {run} is damaged ({place}); restore a backup, or finish the run by hand and purge it"
        ),
        None => format!("what the store holds is damaged ({place}); restore a backup"),
    }
}
