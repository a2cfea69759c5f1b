//! What runs cost that only wait: time to park them, bytes on disk, memory, time to wake a few of them.

use std::fmt;
use std::path::Path;
use std::time::Instant;

use futures_util::future::try_join_all;
use serde::Serialize;
use windlass::{RunId, Windlass};

use crate::drive;
use crate::patient::{self, Left};
use crate::percentile::Sorted;

/// How many are woken together.
const WOKEN: usize = 1_000;

/// How many are woken one after another.
const ALONE: usize = 200;

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Parked {
    /// How many runs were parked.
    pub runs: usize,
    /// Parked per second, durably.
    pub runs_per_s: f64,
    /// Of the database and what belongs to it.
    pub bytes_on_disk_per_run: f64,
    /// What the whole process has when all are parked, where the system tells.
    pub resident_bytes: Option<u64>,
    /// What it grew by while all but the first tenth were parked, where the system tells.
    pub resident_bytes_per_run: Option<f64>,
    /// How many were woken one after another, far apart.
    pub woken_alone: usize,
    /// From sending the signal to the end of the run, the median.
    pub wake_p50_ms: f64,
    /// 99 of 100 take no longer.
    pub wake_p99_ms: f64,
    /// How many others were woken together, far apart.
    pub woken: usize,
    /// From the first signal to the last end.
    pub wake_ms: f64,
}

impl fmt::Display for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |bytes: Option<f64>| bytes.map_or_else(|| "unknown".to_owned(), |bytes| format!("{bytes:.0}"));
        writeln!(f, "{} parked runs on SQLite", self.runs)?;
        writeln!(f, "  parked per second        {:>12.0}", self.runs_per_s)?;
        writeln!(f, "  bytes on disk per run    {:>12.0}", self.bytes_on_disk_per_run)?;
        writeln!(f, "  resident bytes in all    {:>12}", known(self.resident_bytes.map(|bytes| bytes as f64)))?;
        writeln!(f, "  resident bytes per run   {:>12}", known(self.resident_bytes_per_run))?;
        let (p50, p99) = (self.wake_p50_ms, self.wake_p99_ms);
        writeln!(f, "  waking {} alone: p50 {p50:.1} ms, p99 {p99:.1} ms", self.woken_alone)?;
        write!(f, "  waking {} together took {:.0} ms", self.woken, self.wake_ms)
    }
}

/// Parks so many runs on a database of their own, and wakes some.
///
/// # Errors
///
/// When the store fails.
pub fn park(runs: usize) -> anyhow::Result<Parked> {
    let (executor, folder, left) = (drive::threads()?, tempfile::tempdir()?, Left::default());
    let opened = Windlass::open(folder.path().join("bench.db")).tool(patient::tool(left.clone()));
    let windlass = executor.block_on(async { opened.await })?;

    let begin = Instant::now();
    let mut ids: Vec<RunId> = Vec::with_capacity(runs);
    // Allocators and caches fill up first; the slope is what comes after.
    let head = runs / 10;
    patient::park(&executor, &windlass, &left, &mut ids, head)?;
    let before = resident();
    patient::park(&executor, &windlass, &left, &mut ids, runs)?;
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
    executor.block_on(try_join_all(together.iter().map(|run| patient::wake(&windlass, *run))))?;
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

/// Runs far apart: those to be woken alone, and others to be woken together.
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
        patient::wake(windlass, run).await?;
        times.push(begin.elapsed());
    }
    Ok(Sorted::new(times))
}

/// Memory this process has, where the system tells.
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
        config.toolbox.insert(patient::tool(Left::default())).unwrap();
        let runtime = Runtime::new(config);
        for _ in 0..RUNS / 200 {
            for _ in 0..200 {
                runtime.start(ToolCall::new(patient::NAME, json!({}))).unwrap();
            }
            let clock = sim.clone();
            sim.block_on(async move { clock.sleep(Duration::from_millis(1)).await }).unwrap();
        }
        assert_eq!(sim.tasks(), 0, "nothing waits for any of them");
        // What goes with the runtime was not the store's.
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
