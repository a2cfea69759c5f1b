//! How many processes and threads a group has.
//!
//! The system's own limit counts all processes of a user, and does not hold for root. So we count: what the whole machine has
//! is one short line, and only when that has grown do we look at every process.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::table;

/// How often a running command is looked at; one that is quicker is never.
pub(crate) const EVERY: Duration = Duration::from_millis(25);

/// Growth below this is not worth a look at every process.
const GROWTH: u64 = 8;

/// A look at every process is made at least this often.
const AT_LEAST_EVERY: Duration = Duration::from_secs(1);

struct Look {
    /// When the short line was read.
    line: Instant,
    /// When every process was looked at.
    full: Instant,
    threads: u64,
    groups: BTreeMap<i32, u64>,
}

/// Commands that run at once share their looks.
static LAST: Mutex<Option<Look>> = Mutex::new(None);

/// Processes and threads of a group, as of a moment ago.
pub(crate) fn threads(group: i32) -> u64 {
    let mut last = LAST.lock();
    let now = Instant::now();
    let look = match last.take() {
        Some(look) if now - look.line < EVERY / 2 => look,
        Some(look) if now - look.full < AT_LEAST_EVERY && on_the_machine() <= look.threads + GROWTH => {
            Look { line: now, ..look }
        }
        _ => full(now),
    };
    let count = look.groups.get(&group).copied().unwrap_or(0);
    *last = Some(look);
    count
}

fn full(now: Instant) -> Look {
    let threads = on_the_machine();
    let mut groups = BTreeMap::new();
    for stat in table::all().iter().filter(|stat| stat.lives()) {
        *groups.entry(stat.group).or_default() += stat.threads.max(1);
    }
    Look { line: now, full: now, threads, groups }
}

/// The fourth field of the line is `running/all`.
fn on_the_machine() -> u64 {
    let line = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let all = line.split(' ').nth(3).and_then(|field| field.split_once('/')).and_then(|(_, all)| all.parse().ok());
    // Where it cannot be read, every look is a full one.
    all.unwrap_or(u64::MAX - GROWTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_threads_are_counted() {
        let own = table::look(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(full(Instant::now()).groups[&own.group] >= own.threads.max(2), "the test and its harness");
        assert!(on_the_machine() > 1);
    }
}
