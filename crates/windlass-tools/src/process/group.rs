//! A process group, identified by its leader.

use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, test_kill_process_group, waitpgid};

use super::table::{self, Stat};

/// The first interval at which we check whether killed processes are gone.
pub(crate) const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The longest interval. Checking more often would slow down the exit of a group with a thousand processes.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(32);

/// Only a process that hangs inside the kernel takes longer to die, as on a disk or a network drive that is gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A process group. Its process id may be reused; together with the start time it is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) pid: i32,
    pub(crate) start: u64,
}

/// The result of killing a group that another process started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KillOutcome {
    /// No process of it was left.
    AlreadyGone,
    /// It was running, and is dead now.
    Killed,
    /// There is a group with that process id, and whether it is the same group is unknown.
    Unknown,
    /// It was killed, and still lives after [`KILL_TIMEOUT`].
    StillAlive,
}

/// The interval that follows `pause`.
pub(crate) fn next_interval(pause: Duration) -> Duration {
    (2 * pause).min(MAX_POLL_INTERVAL)
}

impl Group {
    /// The group of a child that has not been waited for: until then its process id is not reused.
    pub(crate) fn of_child(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).map_err(io::Error::other)?;
        let stat = table::read(pid)?;
        Ok(Self { pid, start: stat.start })
    }

    /// Sends a signal to the whole group. Call it only while the process id cannot have been reused.
    pub(crate) fn signal(self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        // A launcher that does not lead a group yet is a single process.
        if kill_process_group(pid, signal) == Err(Errno::SRCH) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether no process of it lives, once no new one can join. `until` is a time at which its leader was dead: a
    /// process that started later only reuses the id.
    pub(crate) fn is_gone(self, until: u64) -> bool {
        let Some(pid) = Pid::from_raw(self.pid) else { return true };
        if test_kill_process_group(pid) == Err(Errno::SRCH) {
            return true;
        }
        let lives = table::all().iter().any(|stat| self.has(stat) && stat.lives() && stat.start <= until);
        // Reaps processes whose parent we have become: without a sandbox they can arrange that, and as PID 1 we adopt
        // orphans. After the check, so that a process it saw dead does not stay a zombie.
        while matches!(waitpgid(pid, WaitOptions::NOHANG), Ok(Some(_))) {}
        !lives || test_kill_process_group(pid) == Err(Errno::SRCH)
    }

    fn has(self, stat: &Stat) -> bool {
        stat.group == self.pid || (stat.pid, stat.start) == (self.pid, self.start)
    }

    /// Blocks until no process of it lives; false after [`KILL_TIMEOUT`].
    pub(crate) fn wait_until_gone(self, until: u64) -> bool {
        let (started, mut pause) = (Instant::now(), FIRST_POLL_INTERVAL);
        while !self.is_gone(until) {
            if started.elapsed() > KILL_TIMEOUT {
                return false;
            }
            std::thread::sleep(pause);
            pause = next_interval(pause);
        }
        true
    }

    /// Kills a group that another process started, if it is still the same group.
    pub(crate) fn kill(self, key: &str) -> KillOutcome {
        let leader = table::find(self.pid);
        // The kernel does not reuse a process id while a group has it.
        if leader.is_some_and(|stat| stat.start != self.start) {
            return KillOutcome::AlreadyGone;
        }
        let is_left = |stat: &Stat| stat.lives() && self.has(stat) && (leader.is_some() || stat.session == self.pid);
        let left: Vec<Stat> = table::all().into_iter().filter(is_left).collect();
        if left.is_empty() {
            return KillOutcome::AlreadyGone;
        }
        let has_our_key = |stat: &Stat| table::has_variable(stat.pid, "WINDLASS_IDEMPOTENCY_KEY", key);
        if leader.is_none() && !left.iter().any(has_our_key) {
            return KillOutcome::Unknown;
        }
        self.signal(Signal::KILL);
        if self.wait_until_gone(table::now()) { KillOutcome::Killed } else { KillOutcome::StillAlive }
    }
}
