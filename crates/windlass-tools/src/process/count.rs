//! Ends a group that has more processes and threads than it may.
//!
//! The system's own limit counts all processes of a user, and does not hold for root. So we count, on a thread of its own, because
//! what outgrows its limit also keeps everything else from running: what the whole machine has is one short line, and only when that
//! has grown do we look at processes, those first that were not there before. Commands that are counted run at a lower priority
//! than this thread, which otherwise would wait for each of those that are too many.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::process::{Signal, setpriority_process};
use rustix::thread::gettid;

use super::group::Group;
use super::table;

/// How often the short line is read while a command runs. Few processes can be started in between.
const EVERY: Duration = Duration::from_millis(3);

/// Growth below this is not worth a look.
const GROWTH: u64 = 8;

/// Every process is looked at, known or not, at least this often: a number may be another's by now.
const AT_LEAST_EVERY: Duration = Duration::from_secs(5);

/// Where the system lets us: before everything of its user that is not in a hurry.
const PRIORITY: i32 = -10;

struct Watched {
    group: Group,
    most: u64,
    is_over: Arc<AtomicBool>,
}

/// The groups whose numbers are certainly theirs, and whether there is a thread that counts them.
static WATCHED: Mutex<(BTreeMap<i32, Watched>, bool)> = Mutex::new((BTreeMap::new(), false));
static CAME: Condvar = Condvar::new();

/// A group that is counted as long as this is there. To be dropped before the exit code of its leader is asked for, after which its
/// number may be another's.
pub(crate) struct Counted {
    pid: i32,
    is_over: Arc<AtomicBool>,
}

impl Counted {
    /// Whether it had too many, and was killed for it.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        WATCHED.lock().0.remove(&self.pid);
    }
}

/// Kills a group as soon as it has more than so many processes and threads.
pub(crate) fn watch(group: Group, most: u64) -> std::io::Result<Counted> {
    let mut watched = WATCHED.lock();
    if !watched.1 {
        std::thread::Builder::new().name("windlass-counter".to_owned()).spawn(run)?;
        watched.1 = true;
    }
    let is_over = Arc::new(AtomicBool::new(false));
    watched.0.insert(group.pid, Watched { group, most, is_over: is_over.clone() });
    CAME.notify_one();
    Ok(Counted { pid: group.pid, is_over })
}

fn run() {
    let _ = setpriority_process(Some(gettid()), PRIORITY);
    let mut looks = Looks { full: Instant::now(), threads: 0, groups: BTreeMap::new() };
    loop {
        let limits: BTreeMap<i32, u64> = {
            let mut watched = WATCHED.lock();
            while watched.0.is_empty() {
                CAME.wait(&mut watched);
            }
            watched.0.iter().map(|(pid, watched)| (*pid, watched.most)).collect()
        };
        if looks.are_due(Instant::now()) {
            looks.count(&limits, end);
        }
        std::thread::sleep(EVERY);
    }
}

fn end(group: i32) {
    let watched = WATCHED.lock();
    if let Some(watched) = watched.0.get(&group) {
        watched.is_over.store(true, Ordering::Release);
        watched.group.signal(Signal::KILL);
    }
}

struct Looks {
    /// When every process was looked at.
    full: Instant,
    /// What the machine had when we looked, or less.
    threads: u64,
    /// The group of every process we know.
    groups: BTreeMap<i32, i32>,
}

impl Looks {
    /// Whether the machine has so many more processes and threads that it is worth a look.
    fn are_due(&mut self, now: Instant) -> bool {
        let is_long_ago = now - self.full >= AT_LEAST_EVERY;
        let threads = on_the_machine();
        self.threads = self.threads.min(threads);
        // The more there are, the more a look takes.
        let growth = GROWTH.max(self.threads / 32);
        if !is_long_ago && threads <= self.threads.saturating_add(growth) {
            return false;
        }
        self.threads = threads;
        if is_long_ago {
            self.full = now;
            self.groups.clear();
        }
        true
    }

    /// Counts processes and threads of groups, and tells `end` of each that has more than its limit, at once: by the time all are
    /// counted there would be many more.
    fn count(&mut self, limits: &BTreeMap<i32, u64>, mut end: impl FnMut(i32)) {
        let mut counts: BTreeMap<i32, u64> = BTreeMap::new();
        let numbers: BTreeSet<i32> = table::numbers().collect();
        self.groups.retain(|pid, _| numbers.contains(pid));
        // What has just begun has the highest numbers.
        for pid in numbers.into_iter().rev() {
            let is_other = self.groups.get(&pid).is_some_and(|group| !limits.contains_key(group));
            // A leader was known before it led.
            if is_other && !limits.contains_key(&pid) {
                continue;
            }
            let Some(stat) = table::look(pid) else { continue };
            self.groups.insert(pid, stat.group);
            let Some(most) = limits.get(&stat.group).filter(|_| stat.lives()) else { continue };
            let count = counts.entry(stat.group).or_default();
            let before = *count;
            *count += stat.threads.max(1);
            if before <= *most && *count > *most {
                end(stat.group);
            }
        }
    }
}

/// The fourth field of the line is `running/all`.
fn on_the_machine() -> u64 {
    let line = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let all = line.split(' ').nth(3).and_then(|field| field.split_once('/')).and_then(|(_, all)| all.parse().ok());
    // Where it cannot be read, every look is worth it.
    all.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_threads_are_counted() {
        let own = table::look(i32::try_from(std::process::id()).unwrap()).unwrap();
        let mut looks = Looks { full: Instant::now(), threads: 0, groups: BTreeMap::new() };
        // The test and its harness.
        for (most, ended) in [(1, vec![own.group]), (1, vec![own.group]), (u64::MAX, Vec::new())] {
            let mut told = Vec::new();
            looks.count(&BTreeMap::from([(own.group, most)]), |group| told.push(group));
            assert_eq!(told, ended, "{most}");
        }
        assert!(on_the_machine() > 1);
    }
}
