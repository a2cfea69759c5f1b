//! A process group, by the process that leads it.

use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, test_kill_process_group, waitpgid};

use super::table::{self, Stat};

/// How long the dead take to be gone is up to the system, and short; how often we look at first.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Where a thousand of them are dying, looking would keep them from it.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_millis(32);

/// Longer than anything but a process that hangs inside the kernel, on a disk or a network drive that is gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// A process group. The number alone may be somebody else's by now; with the start time it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) pid: i32,
    pub(crate) start: u64,
}

/// What became of a group that somebody else started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// There was nothing left of it.
    Gone,
    /// It ran, and is dead.
    Killed,
    /// There is a group of that number, and nobody can tell whose.
    Unsure,
    /// It was told to die and did not within our patience.
    Hangs,
}

/// How long to wait before the next look.
pub(crate) fn longer(pause: Duration) -> Duration {
    (2 * pause).min(LOOK_AT_LEAST_EVERY)
}

impl Group {
    /// The group of a child that nobody has waited for: its number is its own until then.
    pub(crate) fn of_child(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).map_err(io::Error::other)?;
        let stat = table::read(pid)?;
        Ok(Self { pid, start: stat.start })
    }

    /// Sends a signal to all of the group. Only while its number is known to be its own.
    pub(crate) fn signal(self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        // A launcher that has not come to lead a group yet is alone.
        if kill_process_group(pid, signal) == Err(Errno::SRCH) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether nothing of it lives any more, once nobody new can come. `until` is when its leader was dead: what began later
    /// has only the number from it.
    pub(crate) fn is_gone(self, until: u64) -> bool {
        let Some(pid) = Pid::from_raw(self.pid) else { return true };
        if test_kill_process_group(pid) == Err(Errno::SRCH) {
            return true;
        }
        let lives = table::all().iter().any(|stat| self.has(stat) && stat.lives() && stat.start <= until);
        // Those whose parent we have become: by their own doing without a sandbox, or because we are the first process of all.
        // After the look, so that what it saw dead is not left as a zombie.
        while matches!(waitpgid(pid, WaitOptions::NOHANG), Ok(Some(_))) {}
        !lives || test_kill_process_group(pid) == Err(Errno::SRCH)
    }

    fn has(self, stat: &Stat) -> bool {
        stat.group == self.pid || (stat.pid, stat.start) == (self.pid, self.start)
    }

    /// Blocks until nothing of it lives; false when our patience ends.
    pub(crate) fn wait_until_gone(self, until: u64) -> bool {
        let (started, mut pause) = (Instant::now(), LOOK_EVERY);
        while !self.is_gone(until) {
            if started.elapsed() > PATIENCE {
                return false;
            }
            std::thread::sleep(pause);
            pause = longer(pause);
        }
        true
    }

    /// Kills a group that another process started, if it is still that one.
    pub(crate) fn end(self, key: &str) -> Fate {
        let leader = table::look(self.pid);
        // The system gives a number to nobody new while a group has it.
        if leader.is_some_and(|stat| stat.start != self.start) {
            return Fate::Gone;
        }
        let is_left = |stat: &Stat| stat.lives() && self.has(stat) && (leader.is_some() || stat.session == self.pid);
        let left: Vec<Stat> = table::all().into_iter().filter(is_left).collect();
        if left.is_empty() {
            return Fate::Gone;
        }
        let knows_us = |stat: &Stat| table::has_variable(stat.pid, "WINDLASS_IDEMPOTENCY_KEY", key);
        if leader.is_none() && !left.iter().any(knows_us) {
            return Fate::Unsure;
        }
        self.signal(Signal::KILL);
        if self.wait_until_gone(table::now()) { Fate::Killed } else { Fate::Hangs }
    }
}
