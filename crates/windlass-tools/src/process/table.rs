//! The table of processes, read from `/proc`.

use std::{fs, io};

/// The fields of `/proc/PID/stat` that we need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) pid: i32,
    pub(crate) state: char,
    pub(crate) group: i32,
    pub(crate) session: i32,
    pub(crate) threads: u64,
    /// In clock ticks since the machine was started. Together with the process id it identifies a process.
    pub(crate) start: u64,
}

impl Stat {
    /// Whether it is alive: not a zombie, whose exit code has not been collected.
    pub(crate) fn lives(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x')
    }

    fn parse(text: &str) -> Option<Self> {
        // The name of a program may contain anything, also brackets and spaces: the last bracket ends it.
        let (head, tail) = text.rsplit_once(')')?;
        let pid = head.split_once(' ')?.0.parse().ok()?;
        let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
        let field = |index: usize| fields.get(index).copied();
        Some(Self {
            pid,
            state: field(0)?.chars().next()?,
            group: field(2)?.parse().ok()?,
            session: field(3)?.parse().ok()?,
            threads: field(17)?.parse().ok()?,
            start: field(19)?.parse().ok()?,
        })
    }
}

/// A process by its id, if it exists.
pub(crate) fn find(pid: i32) -> Option<Stat> {
    read(pid).ok()
}

/// A process by its id, or why it cannot be read: this process may have reached its limit of open files.
pub(crate) fn read(pid: i32) -> io::Result<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat"))?;
    let unreadable = || io::Error::other(format!("/proc does not show process {pid}"));
    Stat::parse(&String::from_utf8_lossy(&text)).ok_or_else(unreadable)
}

/// All visible processes.
pub(crate) fn all() -> Vec<Stat> {
    pids().filter_map(find).collect()
}

/// The ids of all visible processes.
pub(crate) fn pids() -> impl Iterator<Item = i32> {
    let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(pid)
}

/// This process.
pub(crate) fn own() -> io::Result<Stat> {
    read(i32::try_from(std::process::id()).map_err(io::Error::other)?)
}

/// Whether a process was started with this variable in its environment.
pub(crate) fn has_variable(pid: i32, name: &str, value: &str) -> bool {
    let wanted = format!("{name}={value}");
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes()))
}

/// Identifies this boot of the machine: process ids and start times of another boot are meaningless.
pub(crate) fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// The current time on the clock of start times.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let ticks = rustix::param::clock_ticks_per_second();
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds * ticks + nanos * ticks / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_parsed_whatever_the_program_is_called() {
        let rest = "1 40 41 0 -1 4194304 101 0 0 0 1 2 0 0 20 0 3 0 9876 1000 200 18446744073709551615 0";
        for name in ["cat", "a b", ") R 7 7", "((", ""] {
            let stat = Stat::parse(&format!("42 ({name}) S {rest}")).unwrap();
            let expected = Stat { pid: 42, state: 'S', group: 40, session: 41, threads: 3, start: 9876 };
            assert_eq!(stat, expected, "{name}");
        }
        for bad in ["", "42", "42 (x", "42 (x) S 1 2", "x (y) S 1 2 3"] {
            assert_eq!(Stat::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_process_is_in_the_table() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let own = find(pid).unwrap();
        assert!(own.lives() && own.threads >= 1 && own.start <= now(), "{own:?} at {}", now());
        assert!(all().iter().any(|stat| (stat.pid, stat.start) == (pid, own.start)));
        assert!(!boot().is_empty());
    }
}
