//! What a command may touch, and how it is kept to that.
//!
//! A [`Sandbox`] says it; a [`Launcher`] does it: our own program, started anew, takes its orders from the first bytes of its
//! standard input, locks itself in, and becomes the command. So nothing of the orders is in the command's arguments or
//! environment, and there is no moment in which the command runs unconfined.
//!
//! | what | kept by |
//! |---|---|
//! | files: the working directory and a private temporary one to read and write; programs, libraries and certificates of the system to read; `/dev/null`, `zero`, `full`, `random`, `urandom`; what [`Sandbox::read`] and [`Sandbox::write`] add; nothing else | Landlock |
//! | network: none, of whatever kind, unless asked for; then TCP and UDP alone | seccomp, and Landlock where it knows TCP |
//! | other programs: no sockets of theirs, no signals to them (Linux 6.12), no debugging, no shared memory | seccomp, Landlock |
//! | limits, priorities and processors of other processes: untouched; what it sets is its own | seccomp |
//! | leaving its process group, children that are left to the server, namespaces, mounts, kernel modules, io_uring and the like | seccomp |
//! | memory, processor time, open files, file sizes, core dumps | resource limits, each for one process |
//! | processes and threads in all | counted while it runs; too many end it |
//! | privileges | none: `no_new_privs`, no capabilities, also for root |
//!
//! What the command's own server lives by is kept from it: [`Launcher::keep`] and [`Sandbox::kept`] name files that no folder of a
//! command may have in it.
//!
//! What this cannot do: before Linux 6.12 Landlock does not look at signals, and a command can send them to every process of its
//! user, its server too; seccomp cannot tell a command's own processes from others. On every kernel the existence, size and times of
//! files elsewhere can be asked for (Landlock does not hide names), and a command that runs as the owner of the system's files may
//! change their modes through an open file. Do not run servers as root.

#[cfg(target_os = "linux")]
mod confine;
#[cfg(target_os = "linux")]
mod filter;
mod kept;
mod launch;
mod launcher;
mod support;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use kept::{Kept, SecondName};
pub use launch::launch_main;
#[cfg(target_os = "linux")]
pub(crate) use launch::{Launch, NOT_RUN_NOW, Orders};
pub use launcher::Launcher;
pub use support::{Support, support};

/// Enough for interpreters that reserve address space by the gigabyte, too little to bring a machine down alone.
pub const MEMORY: u64 = 4 << 30;

/// A build with all its helpers stays below; a fork bomb does not.
pub const PROCESSES: u64 = 64;

/// The soft limit most systems have is four times that; a tool rarely opens ten.
pub const FILES: u64 = 256;

/// One file cannot fill a disk.
pub const FILE_SIZE: u64 = 1 << 30;

/// What a command may touch beyond its working directory and the system's programs. See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Whether it is kept to all that.
    pub level: Level,
    /// Files and folders it may read, and execute from. One that does not exist fails the call.
    pub read: Vec<PathBuf>,
    /// Files and folders it may read and write. One that does not exist fails the call.
    pub write: Vec<PathBuf>,
    /// What it never reaches: a command is not run if what it may touch has one of these in it. Its
    /// [launcher](Launcher::keep)'s come on top.
    pub kept: Vec<Kept>,
    /// Lets it use TCP and UDP.
    pub network: bool,
    /// Lets it change modes, owners, times and extended attributes by path (`chmod`, `tar`, `git`). Landlock cannot keep that to
    /// its own files, so a command that may do it may do it to every file of its user.
    pub metadata: bool,
    /// Bytes of address space of each of its processes.
    pub memory: Option<u64>,
    /// Processor time of each of its processes; the attempt's timeout limits the whole in any case.
    pub cpu_seconds: Option<u64>,
    /// Processes and threads at once. They are counted every few milliseconds, and too many are killed at once: some more may be
    /// started in between. A command that is counted runs at a lower priority than its server.
    pub processes: Option<u64>,
    /// Open files of each of its processes.
    pub files: Option<u64>,
    /// Bytes in a file it writes.
    pub file_size: Option<u64>,
}

/// Whether a command is kept to its sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// It is, or it is not run.
    #[default]
    Required,
    /// As far as this kernel can; what it cannot is said in the run's log, with every call.
    BestEffort,
    /// It is not; of all this only the limits are set. Its process group is killed like any other's.
    Off,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self {
            level: Level::Required,
            read: Vec::new(),
            write: Vec::new(),
            kept: Vec::new(),
            network: false,
            metadata: false,
            memory: Some(MEMORY),
            cpu_seconds: None,
            processes: Some(PROCESSES),
            files: Some(FILES),
            file_size: Some(FILE_SIZE),
        }
    }
}

impl Sandbox {
    /// No sandbox and no limits.
    pub fn off() -> Self {
        let none = None;
        let (memory, cpu_seconds, processes, files, file_size) = (none, none, none, none, none);
        Self { level: Level::Off, memory, cpu_seconds, processes, files, file_size, ..Self::default() }
    }
}
