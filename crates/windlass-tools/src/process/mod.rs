//! Process groups, and how they end.
//!
//! A command is a process group: whatever it starts is in it, and its sandbox keeps it from leaving. The group ends with the
//! attempt: when the command itself ends, when the attempt is cancelled or times out (SIGTERM, the tool's grace, SIGKILL), and
//! when it is dropped (SIGKILL). In all of these the attempt is over only when nothing of the group lives any more, so whoever says
//! afterwards that it did not happen does not say it of a living process.
//!
//! If this process dies, however it dies, its guard sees a pipe close and kills what is left. If the guard died too, the next
//! process does, before it settles anything: [`kill_leftovers`]. Temporary folders go the same way: with the attempt, by the guard,
//! or by the next process.

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
pub(crate) mod temps;

use std::io;
use std::path::Path;

/// What [`kill_leftovers`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Process groups that still ran, by number. They are dead.
    pub killed: Vec<i32>,
    /// Process groups that may be leftovers or may be somebody else's: the process that led them is gone, and the rest does not
    /// say where it comes from. They were left alone, and so were their records. Whoever knows them kills them by hand
    /// (`kill -KILL -- -NUMBER`).
    pub unsure: Vec<i32>,
}

/// Kills the commands that a dead process left running, by the records it kept in this folder
/// ([`Launcher::records`](crate::sandbox::Launcher::records)), and waits until they are dead. To be called by the process that
/// owns the database, before it takes up any run ([`Builder::before_runs`](windlass::Builder::before_runs)): nothing may be settled
/// as not having happened while it still happens, and a command whose owner lives is no leftover.
///
/// What they left in temporary folders is removed too: at once if it is little, else in the background.
///
/// A process is killed only if it is the one that was recorded: same number, same start time, same boot of the machine.
/// A folder that does not exist has no leftovers.
pub fn kill_leftovers(folder: &Path) -> io::Result<Leftovers> {
    #[cfg(target_os = "linux")]
    return records::kill_leftovers(folder);
    #[cfg(not(target_os = "linux"))]
    {
        // Nothing was ever started here.
        let _ = folder;
        Ok(Leftovers::default())
    }
}
