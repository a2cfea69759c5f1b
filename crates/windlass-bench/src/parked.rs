//! The cost of runs that only wait: time to park them, bytes on disk, memory, time to wake some of them.

use std::fmt;
use std::path::Path;
use std::time::Instant;

use futures_util::future::try_join_all;
use serde::Serialize;
use windlass::{RunId, Windlass};

use crate::drive;
use crate::percentile::Sorted;
use crate::waiting::{self, LeaveCounter};

/// Runs that are woken together.
const WOKEN: usize = 1_000;

/// Runs that are woken one after another.
const ALONE: usize = 200;

/// The result.
#[derive(Debug, Serialize)]
pub struct Parked {
    /// Runs that were parked.
    pub runs: usize,
    /// Parked per second, durably.
    pub runs_per_s: f64,
    /// Size of the database with its log and index.
    pub bytes_on_disk_per_run: f64,
    /// Resident memory of the process when all runs are parked, if the system reports it.
    pub resident_bytes: Option<u64>,
    /// Growth of the resident memory per run, without the first tenth of them, if the system reports it.
    pub resident_bytes_per_run: Option<f64>,
    /// Runs that were woken one after another, spread over all runs.
    pub woken_alone: usize,
    /// From sending the signal to the end of the run, the median.
    pub wake_p50_ms: f64,
    /// The 99th percentile of the same.
    pub wake_p99_ms: f64,
    /// Other runs that were woken together, spread over all runs.
    pub woken: usize,
    /// From the first signal to the last end.
    pub wake_ms: f64,
}

impl fmt::Display for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |bytes: Option<f64>| bytes.map_or_else(|| "unknown".to_owned(), |bytes| format!("{bytes:.0}"));
        writeln!(f, "{} parked runs on SQLite", self.runs)?;
        writeln!(f, "  parked per second        {:>12.0}", self.runs_per_s)?;
        writeln!(f, "  bytes on disk per run    {:>12.0}", self.bytes_on_disk_per_run)?;
        writeln!(f, "  resident bytes in total  {:>12}", shown(self.resident_bytes.map(|bytes| bytes as f64)))?;
        writeln!(f, "  resident bytes per run   {:>12}", shown(self.resident_bytes_per_run))?;
        let (p50, p99) = (self.wake_p50_ms, self.wake_p99_ms);
        writeln!(f, "  waking {} alone: p50 {p50:.1} ms, p99 {p99:.1} ms", self.woken_alone)?;
        write!(f, "  waking {} together took {:.0} ms", self.woken, self.wake_ms)
    }
}

/// Parks this many runs in a new database, and wakes some.
///
/// # Errors
///
/// When the store fails.
pub fn park(runs: usize) -> anyhow::Result<Parked> {
    let (executor, folder, left) = (drive::threads()?, tempfile::tempdir()?, LeaveCounter::default());
    let opened = Windlass::open(folder.path().join("bench.db")).tool(waiting::tool(left.clone()));
    let windlass = executor.block_on(async { opened.await })?;

    let begin = Instant::now();
    let mut ids: Vec<RunId> = Vec::with_capacity(runs);
    // The first runs also fill allocators and caches; the growth after them is the cost per run.
    let head = runs / 10;
    waiting::park(&executor, &windlass, &left, &mut ids, (head, 0))?;
    let before = resident();
    waiting::park(&executor, &windlass, &left, &mut ids, (runs, 0))?;
    let took = begin.elapsed();
    let resident_bytes = resident();
    let resident_bytes_per_run = before.zip(resident_bytes).map(|(before, after)| {
        let grown = after as f64 - before as f64 - (size_of::<RunId>() * (runs - head)) as f64;
        grown / (runs - head) as f64
    });
    let bytes_on_disk_per_run = size_of_folder(folder.path())? as f64 / runs as f64;

    let (alone, together) = chosen(&ids);
    let alone = executor.block_on(wake_alone(&windlass, &alone))?;
    let begin = Instant::now();
    executor.block_on(try_join_all(together.iter().map(|run| waiting::wake(&windlass, *run))))?;
    Ok(Parked {
        runs,
        runs_per_s: runs as f64 / took.as_secs_f64(),
        bytes_on_disk_per_run,
        resident_bytes,
        resident_bytes_per_run,
        woken_alone: ALONE.min(runs),
        wake_p50_ms: alone.us(50.0) / 1e3,
        wake_p99_ms: alone.us(99.0) / 1e3,
        woken: together.len(),
        wake_ms: begin.elapsed().as_secs_f64() * 1e3,
    })
}

/// Runs spread over all: those to wake alone, and others to wake together.
fn chosen(ids: &[RunId]) -> (Vec<RunId>, Vec<RunId>) {
    let apart = |from: usize, count: usize| {
        let step = (ids.len() / count).max(1);
        ids.iter().skip(from).step_by(step).take(count).copied().collect::<Vec<_>>()
    };
    let alone = apart(0, ALONE);
    let mut together = apart(1, WOKEN);
    together.retain(|run| !alone.contains(run));
    (alone, together)
}

async fn wake_alone(windlass: &Windlass, runs: &[RunId]) -> anyhow::Result<Sorted> {
    let mut times = Vec::with_capacity(runs.len());
    for &run in runs {
        let begin = Instant::now();
        waiting::wake(windlass, run).await?;
        times.push(begin.elapsed());
    }
    Ok(Sorted::new(times))
}

/// Resident memory of this process, if the system reports it.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1_024)
}

pub(crate) fn size_of_folder(folder: &Path) -> anyhow::Result<u64> {
    let mut size = 0;
    for entry in std::fs::read_dir(folder)? {
        size += entry?.metadata()?.len();
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::json;
    use windlass::ToolCall;
    use windlass_core::store::{MemoryStore, Store};
    use windlass_core::testing::Sim;
    use windlass_core::time::Clock;
    use windlass_core::{Config, Runtime};

    use super::*;
    use crate::allocations;

    #[test]
    fn runs_are_parked_and_woken() {
        let parked = park(300).unwrap();
        assert_eq!((parked.runs, parked.woken_alone, parked.woken), (300, 200, 100));
        assert!(parked.wake_p99_ms >= parked.wake_p50_ms);
        assert!(parked.bytes_on_disk_per_run > 0.0);
    }

    #[test]
    fn w03_a_parked_run_costs_less_than_200_bytes_beyond_its_row() {
        const RUNS: usize = 20_000;
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let sim = Sim::new(1);
        let mut config = Config::new(store.clone(), Arc::new(sim.clone()), Arc::new(sim.clone()));
        config.suspend_after = Duration::ZERO;
        config.toolbox.insert(waiting::tool(LeaveCounter::default())).unwrap();
        let runtime = Runtime::new(config);
        for _ in 0..RUNS / 200 {
            for _ in 0..200 {
                runtime.start_unconfirmed(ToolCall::new(waiting::NAME, json!({}))).unwrap();
            }
            let clock = sim.clone();
            sim.block_on(async move { clock.sleep(Duration::from_millis(1)).await }).unwrap();
        }
        assert_eq!(sim.tasks(), 0, "no task waits for any of them");
        // What the runtime frees did not belong to the store.
        let (_, gone) = allocations::count(|| {
            drop(runtime);
            drop(sim);
        });
        let each = (gone.freed - gone.bytes) / RUNS as u64;
        println!("{} bytes for {RUNS} parked runs", gone.freed - gone.bytes);
        assert!(each < 200, "{each} bytes each");
        drop(store);
    }
}
