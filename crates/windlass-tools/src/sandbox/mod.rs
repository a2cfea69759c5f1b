//! What a command may access, and how that is enforced.
//!
//! A [`Sandbox`] describes it and a [`Launcher`] enforces it: our own program is started again, reads its instructions
//! from the first bytes of its standard input, confines itself, and becomes the command. So the instructions are in
//! neither the arguments nor the environment of the command, and the command never runs unconfined.
//!
//! | what | enforced by |
//! |---|---|
//! | files: the working directory and a private temporary one to read and write; programs, libraries and certificates of the system to read; `/dev/null`, `zero`, `full`, `random`, `urandom`; what [`Sandbox::read`] and [`Sandbox::write`] add; nothing else | Landlock |
//! | network: none of any kind unless [`Sandbox::network`] is set, then TCP and UDP only | seccomp, and Landlock where it covers TCP |
//! | other programs: no access to their sockets, no signals to them (Linux 6.12), no debugging, no shared memory | seccomp, Landlock |
//! | limits, priorities and processors of other processes: cannot be changed | seccomp |
//! | leaving the process group, children with the server as parent, namespaces, mounts, kernel modules, io_uring and the like: refused | seccomp |
//! | memory, processor time, open files, file sizes, core dumps | resource limits, each for one process |
//! | number of processes and threads | counted while it runs; a command with too many is killed |
//! | privileges | none: `no_new_privs`, no capabilities, also for root |
//!
//! The server's own files are protected: no folder of a command may contain a file that [`Launcher::keep`] or
//! [`Sandbox::kept`] names.
//!
//! What this cannot do: before Linux 6.12 Landlock does not restrict signals, so a command can send them to every
//! process of its user, including its server; seccomp cannot tell a command's own processes from others. On every
//! kernel a command can ask for the existence, size and times of files elsewhere (Landlock does not hide names), and a
//! command that runs as the owner of the system's files can change their modes through an open file. Do not run servers
//! as root.

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
pub(crate) use kept::{links_to, resolved};
pub use launch::launch_main;
#[cfg(target_os = "linux")]
pub(crate) use launch::{Instructions, Launch, NOT_RUN_NOW};
pub use launcher::Launcher;
pub use support::{Support, support};

/// Enough for interpreters that reserve gigabytes of address space, and too little for one process to exhaust a
/// machine.
pub const MEMORY: u64 = 4 << 30;

/// A build with all its helper processes stays below; a fork bomb does not.
pub const PROCESSES: u64 = 64;

/// A quarter of the usual soft limit; a tool rarely opens ten.
pub const FILES: u64 = 256;

/// A single file cannot fill a disk.
pub const FILE_SIZE: u64 = 1 << 30;

/// What a command may access beyond its working directory and the system's programs. See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Whether the sandbox is enforced.
    pub level: Level,
    /// Files and folders it may read and execute. A path that does not exist fails the call.
    pub read: Vec<PathBuf>,
    /// Files and folders it may read and write. A path that does not exist fails the call.
    pub write: Vec<PathBuf>,
    /// Protected files: a command is not run if it may access one of them. Those of the [launcher](Launcher::keep) are
    /// added.
    pub kept: Vec<Kept>,
    /// Allows TCP and UDP.
    pub network: bool,
    /// Allows changes of modes, owners, times and extended attributes by path (`chmod`, `tar`, `git`). Landlock cannot
    /// restrict them to the command's own files, so they are allowed for every file of its user.
    pub metadata: bool,
    /// Bytes of address space for each process.
    pub memory: Option<u64>,
    /// Processor time of each process. The attempt's timeout limits the command as a whole in any case.
    pub cpu_seconds: Option<u64>,
    /// Processes and threads at once. They are counted every few milliseconds, and a command with too many is killed;
    /// some more may be started in between. A command that is counted runs at a lower priority than its server.
    pub processes: Option<u64>,
    /// Open files of each process.
    pub files: Option<u64>,
    /// Size in bytes of a file that it writes.
    pub file_size: Option<u64>,
}

/// Whether a command is confined to its sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// It is confined, or it is not run.
    #[default]
    Required,
    /// It is confined as far as this kernel allows; every call logs what the kernel lacks.
    BestEffort,
    /// It is not confined; only the limits are set. Its process group is killed like that of any other command.
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
