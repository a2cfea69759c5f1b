//! CPU time of processes over all their threads. Read from `/proc`, so on Linux only.

use std::fs;
use std::time::Duration;

/// Ticks per second of the times in `/proc`: a constant of Linux for programs, independent of its clock.
const TICKS: u64 = 100;

/// A process in `/proc`.
#[derive(Debug, PartialEq)]
struct Process {
    id: u32,
    parent: u32,
    /// Ticks of itself, and of the children that ended and were waited for.
    ticks: u64,
}

/// CPU time that this process has used so far.
#[must_use]
pub fn of_this() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    parse(&stat).map(|process| time(process.ticks))
}

/// CPU time that a process and all its descendants have used so far.
#[must_use]
pub fn of_tree(root: u32) -> Option<Duration> {
    let processes = processes()?;
    processes.iter().find(|process| process.id == root)?;
    Some(time(sum(&processes, root)))
}

fn processes() -> Option<Vec<Process>> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    // A process that has ended cannot be read; its time is part of its parent's.
    Some(entries.filter_map(|entry| parse(&fs::read_to_string(entry.path().join("stat")).ok()?)).collect())
}

fn sum(processes: &[Process], root: u32) -> u64 {
    let (mut ticks, mut open) = (0, vec![root]);
    while let Some(id) = open.pop() {
        ticks += processes.iter().filter(|process| process.id == id).map(|process| process.ticks).sum::<u64>();
        open.extend(processes.iter().filter(|process| process.parent == id).map(|process| process.id));
    }
    ticks
}

/// A line of `/proc/PID/stat`. The second field is the program's name in brackets, and may contain anything.
fn parse(stat: &str) -> Option<Process> {
    let (id, rest) = stat.split_once(' ')?;
    let fields: Vec<&str> = rest.get(rest.rfind(')')? + 1..)?.split_whitespace().collect();
    let times = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(Process { id: id.parse().ok()?, parent: fields.get(1)?.parse().ok()?, ticks: times })
}

fn time(ticks: u64) -> Duration {
    Duration::from_millis(ticks * 1_000 / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_parsed_whatever_the_program_is_called() {
        let line = "71 (a ) b (c) S 7 71 71 0 -1 4194560 900 80 1 0 30 12 5 3 20 0 4 0 100 9 9";
        assert_eq!(parse(line), Some(Process { id: 71, parent: 7, ticks: 50 }));
        assert_eq!(parse("71 (cut) S 7 71"), None);
        assert_eq!(parse(""), None);
        assert_eq!(time(150), Duration::from_millis(1_500));
    }

    #[test]
    fn the_sum_of_a_tree_excludes_other_processes() {
        let process = |id, parent, ticks| Process { id, parent, ticks };
        let all =
            [process(1, 0, 1), process(2, 1, 10), process(3, 2, 100), process(4, 3, 1_000), process(5, 1, 10_000)];
        assert_eq!(sum(&all, 2), 1_110);
        assert_eq!(sum(&all, 5), 10_000);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_and_its_tree_are_found() {
        let tree = of_tree(std::process::id());
        assert!(tree.is_some() && of_this().is_some());
        assert_eq!(of_tree(u32::MAX), None);
    }
}
