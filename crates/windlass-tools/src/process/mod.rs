//! The process groups of commands, and how they end.
//!
//! A command is a process group: everything it starts is in it, and its sandbox keeps it from leaving. The group ends
//! with the attempt: when the command itself ends, when the attempt is cancelled or times out (SIGTERM, the tool's
//! grace, SIGKILL), and when the attempt is dropped (SIGKILL). The attempt is over only when no process of the group
//! lives, so a later claim that the call did not happen is never made about a running process.
//!
//! If this process dies, however it dies, its guard sees the pipe close and kills the groups that are left. If the
//! guard died too, the next process kills them before it settles anything: [`kill_leftovers`]. Temporary folders are
//! removed in the same way: with the attempt, by the guard, or by the next process.

#[cfg(target_os = "linux")]
pub(crate) mod cleaner;
#[cfg(target_os = "linux")]
pub(crate) mod count;
#[cfg(target_os = "linux")]
pub(crate) mod group;
#[cfg(target_os = "linux")]
pub(crate) mod guard;
#[cfg(target_os = "linux")]
pub(crate) mod records;
#[cfg(target_os = "linux")]
pub(crate) mod remove;
#[cfg(target_os = "linux")]
pub(crate) mod running;
#[cfg(target_os = "linux")]
pub(crate) mod shortage;
#[cfg(target_os = "linux")]
pub(crate) mod table;
#[cfg(target_os = "linux")]
pub(crate) mod temp_root;

use std::io;
use std::path::Path;

/// The result of [`kill_leftovers`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Process groups that were still running, by process id. They are dead now.
    pub killed: Vec<i32>,
    /// Process groups that may be leftovers or may be unrelated: their leader is gone, and the environment of the rest
    /// does not show where they come from. Neither they nor their records were touched. An operator who recognizes one
    /// kills it by hand (`kill -KILL -- -NUMBER`).
    pub unsure: Vec<i32>,
}

/// Kills the commands that a dead process left running, found by the records it kept in this folder
/// ([`Launcher::records`](crate::sandbox::Launcher::records)), and waits until they are dead. The process that owns the
/// database calls it before it continues any run ([`Builder::before_runs`](windlass::Builder::before_runs)): a call
/// must not be settled as not having happened while its command still runs. A command whose owner lives is not a
/// leftover.
///
/// Their temporary folders are removed too: at once if they have few entries, otherwise in the background.
///
/// A process is killed only if it is the recorded one: same process id, same start time, same boot of the machine. A
/// folder that does not exist has no leftovers.
pub fn kill_leftovers(folder: &Path) -> io::Result<Leftovers> {
    #[cfg(target_os = "linux")]
    return records::kill_leftovers(folder);
    #[cfg(not(target_os = "linux"))]
    {
        // Commands run on Linux only, so there is nothing to kill.
        let _ = folder;
        Ok(Leftovers::default())
    }
}
