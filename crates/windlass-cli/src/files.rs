//! The open-file limit of this process, and how much of it connections may use.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use windlass_server::Limits;

/// Reserved for everything but connections, if the limit allows it: the store, tools and their connections, artifacts.
const RESERVED: u64 = 1_024;

/// More than a server uses. Commands inherit the limit, some systems allow a billion files, and some programs loop over
/// every possible file descriptor.
const ENOUGH: u64 = 65_536;

/// The open-file limit after [`raise_limit`]; `None` if there is no limit.
pub(crate) fn limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(ENOUGH, |hard| hard.min(ENOUGH));
    limit.current.map(|soft| soft.max(wanted))
}

/// Raises the soft limit as far as allowed, and returns the limit that is now in effect.
pub(crate) fn raise_limit() -> Option<u64> {
    let before = getrlimit(Resource::Nofile);
    let limit = limit()?;
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: before.maximum });
    if raised.is_ok() { Some(limit) } else { before.current }
}

/// The connection limit of a server with this open-file limit.
pub(crate) fn connections(files: Option<u64>) -> usize {
    let default = Limits::default().connections;
    let left = |files: u64| files - RESERVED.min(files / 2);
    files.map_or(default, |files| usize::try_from(left(files)).unwrap_or(default).clamp(1, default))
}

/// Whether the connection limit is below the default, and a sentence about both limits.
pub(crate) fn describe(files: Option<u64>) -> (bool, String) {
    let (connections, default) = (connections(files), Limits::default().connections);
    let files = files.map_or_else(|| "no limit on open files".to_owned(), |n| format!("at most {n} open files"));
    if connections == default {
        return (false, format!("{files}; a server accepts up to {default} connections"));
    }
    let sentence = format!(
        "{files}, so a server accepts up to {connections} connections instead of {default} and lets further ones wait; \
         raise the hard limit (ulimit -Hn) to allow more"
    );
    (true, sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_everything_else() {
        for (files, connections) in [(None, 4_096), (Some(0), 1), (Some(1), 1), (Some(256), 128), (Some(1_024), 512)] {
            assert_eq!(super::connections(files), connections, "{files:?}");
        }
        assert_eq!((connections(Some(4_096)), connections(Some(5_120))), (3_072, 4_096));
        assert_eq!(connections(Some(u64::MAX)), 4_096);
        assert!(describe(Some(256)).1.contains("up to 128 connections instead of 4096"));
    }
}
