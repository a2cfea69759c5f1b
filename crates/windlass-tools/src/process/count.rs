//! Kills a process group that has more processes and threads than its limit.
//!
//! The kernel's own limit (`RLIMIT_NPROC`) counts all processes of a user and does not apply to root. So we count, on a
//! separate thread: a group that outgrows its limit also slows down everything else. `/proc/loadavg` has the number of
//! threads of the whole machine; only when it has grown do we look at single processes, new ones first. Commands that
//! are counted run at a lower priority than this thread, which would otherwise have to compete with all of their
//! processes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::process::{Signal, setpriority_process};
use rustix::thread::gettid;

use super::group::Group;
use super::table;

/// How often the number of threads is read while a command runs. Few processes can be started in between.
const INTERVAL: Duration = Duration::from_millis(3);

/// Growth up to this does not cause a scan.
const GROWTH: u64 = 8;

/// How often every process is scanned, also those seen before: a process id may have been reused.
const FULL_SCAN_INTERVAL: Duration = Duration::from_secs(5);

/// Before all processes of normal priority, where the system allows it.
const PRIORITY: i32 = -10;

struct WatchedGroup {
    group: Group,
    most: u64,
    is_over: Arc<AtomicBool>,
}

/// The groups whose process ids cannot have been reused yet, and whether the thread that counts them was started.
static WATCHED: Mutex<(BTreeMap<i32, WatchedGroup>, bool)> = Mutex::new((BTreeMap::new(), false));
static GROUP_ADDED: Condvar = Condvar::new();

/// A group that is counted until this is dropped. Drop it before waiting for the leader: afterwards its process id may
/// be reused.
pub(crate) struct Counted {
    pid: i32,
    is_over: Arc<AtomicBool>,
}

impl Counted {
    /// Whether it had too many processes and was killed for that.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        WATCHED.lock().0.remove(&self.pid);
    }
}

/// Kills a group as soon as it has more than `most` processes and threads.
pub(crate) fn watch(group: Group, most: u64) -> std::io::Result<Counted> {
    let mut watched = WATCHED.lock();
    if !watched.1 {
        std::thread::Builder::new().name("windlass-counter".to_owned()).spawn(run)?;
        watched.1 = true;
    }
    let is_over = Arc::new(AtomicBool::new(false));
    watched.0.insert(group.pid, WatchedGroup { group, most, is_over: is_over.clone() });
    GROUP_ADDED.notify_one();
    Ok(Counted { pid: group.pid, is_over })
}

fn run() {
    let _ = setpriority_process(Some(gettid()), PRIORITY);
    let mut scanner = Scanner { last_full_scan: Instant::now(), threads: 0, groups: BTreeMap::new() };
    loop {
        let limits: BTreeMap<i32, u64> = {
            let mut watched = WATCHED.lock();
            while watched.0.is_empty() {
                GROUP_ADDED.wait(&mut watched);
            }
            watched.0.iter().map(|(pid, watched)| (*pid, watched.most)).collect()
        };
        if scanner.is_due(Instant::now()) {
            scanner.count(&limits, kill);
        }
        std::thread::sleep(INTERVAL);
    }
}

fn kill(group: i32) {
    let watched = WATCHED.lock();
    if let Some(watched) = watched.0.get(&group) {
        watched.is_over.store(true, Ordering::Release);
        watched.group.signal(Signal::KILL);
    }
}

struct Scanner {
    /// When every process was last scanned.
    last_full_scan: Instant,
    /// Threads of the machine at the last scan, or fewer if there have been fewer since.
    threads: u64,
    /// The group of every process seen.
    groups: BTreeMap<i32, i32>,
}

impl Scanner {
    /// Whether the machine has enough more processes and threads since the last scan for another one.
    fn is_due(&mut self, now: Instant) -> bool {
        let full_scan_is_due = now - self.last_full_scan >= FULL_SCAN_INTERVAL;
        let threads = threads_of_machine();
        self.threads = self.threads.min(threads);
        // A scan takes longer the more processes there are.
        let growth = GROWTH.max(self.threads / 32);
        if !full_scan_is_due && threads <= self.threads.saturating_add(growth) {
            return false;
        }
        self.threads = threads;
        if full_scan_is_due {
            self.last_full_scan = now;
            self.groups.clear();
        }
        true
    }

    /// Counts the processes and threads of groups, and calls `kill` for each group over its limit as soon as it is
    /// over: by the time all are counted there would be many more.
    fn count(&mut self, limits: &BTreeMap<i32, u64>, mut kill: impl FnMut(i32)) {
        let mut counts: BTreeMap<i32, u64> = BTreeMap::new();
        let pids: BTreeSet<i32> = table::pids().collect();
        self.groups.retain(|pid, _| pids.contains(pid));
        // New processes usually have the highest ids.
        for pid in pids.into_iter().rev() {
            let is_other = self.groups.get(&pid).is_some_and(|group| !limits.contains_key(group));
            // A leader may have been seen before it became one.
            if is_other && !limits.contains_key(&pid) {
                continue;
            }
            let Some(stat) = table::find(pid) else { continue };
            self.groups.insert(pid, stat.group);
            let Some(most) = limits.get(&stat.group).filter(|_| stat.lives()) else { continue };
            let count = counts.entry(stat.group).or_default();
            let before = *count;
            *count += stat.threads.max(1);
            if before <= *most && *count > *most {
                kill(stat.group);
            }
        }
    }
}

/// The fourth field of `/proc/loadavg` is `running/all`.
fn threads_of_machine() -> u64 {
    let line = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let all = line.split(' ').nth(3).and_then(|field| field.split_once('/')).and_then(|(_, all)| all.parse().ok());
    // If it cannot be read, every scan is due.
    all.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_threads_are_counted() {
        let own = table::find(i32::try_from(std::process::id()).unwrap()).unwrap();
        let mut scanner = Scanner { last_full_scan: Instant::now(), threads: 0, groups: BTreeMap::new() };
        // The test's thread and that of its harness.
        for (most, expected) in [(1, vec![own.group]), (1, vec![own.group]), (u64::MAX, Vec::new())] {
            let mut killed = Vec::new();
            scanner.count(&BTreeMap::from([(own.group, most)]), |group| killed.push(group));
            assert_eq!(killed, expected, "{most}");
        }
        assert!(threads_of_machine() > 1);
    }
}
