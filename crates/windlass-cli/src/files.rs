//! How many files this process may have open, and what of that is for connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use windlass_server::Limits;

/// Kept for everything but connections, where the limit allows: the store, tools and whom they talk to, artifacts.
const KEPT: u64 = 1_024;

/// More than a server uses. Without a bound, commands would inherit what some systems have, a billion, and some programs look
/// at every number up to it.
const ENOUGH: u64 = 65_536;

/// As many files as this process may have open once [`raised`]; nothing where there is no limit.
pub(crate) fn most() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let asked = limit.maximum.map_or(ENOUGH, |hard| hard.min(ENOUGH));
    limit.current.map(|soft| soft.max(asked))
}

/// Takes as many as it may, and says how many those are.
pub(crate) fn raised() -> Option<u64> {
    let before = getrlimit(Resource::Nofile);
    let most = most()?;
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: before.maximum });
    if raised.is_ok() { Some(most) } else { before.current }
}

/// How many connections there is room for among so many files.
pub(crate) fn connections(files: Option<u64>) -> usize {
    let usual = Limits::default().connections;
    let left = |files: u64| files - KEPT.min(files / 2);
    files.map_or(usual, |files| usize::try_from(left(files)).unwrap_or(usual).clamp(1, usual))
}

/// What that means, and whether it is less than usual.
pub(crate) fn sentence(files: Option<u64>) -> (bool, String) {
    let (taken, usual) = (connections(files), Limits::default().connections);
    let may = files.map_or_else(|| "any number of files may be open".to_owned(), |n| format!("{n} files may be open"));
    if taken == usual {
        return (false, format!("{may} at once: a server takes {usual} connections"));
    }
    let sentence = format!(
        "{may} at once, so a server takes {taken} connections instead of {usual}, and whoever comes then waits; a higher \
         hard limit (ulimit -Hn) leaves more"
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
        assert!(sentence(Some(256)).1.contains("takes 128 connections instead of 4096"));
    }
}
