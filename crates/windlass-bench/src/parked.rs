//! What runs cost that only wait: time to park them, bytes on disk, memory, time to wake a few of them.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use windlass::{Ctx, RunId, Tool, ToolCall, Windlass};

/// Runs that may be in memory at once, on their way to their row.
const ON_THEIR_WAY: usize = 10_000;
/// Runs started between two looks.
const CHUNK: usize = 500;
/// How long to wait for a store that has enough to do.
const PAUSE: Duration = Duration::from_millis(1);
/// How many are woken in the end.
const WOKEN: usize = 1_000;

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Parked {
    /// How many runs were parked.
    pub runs: usize,
    /// Parked per second, durably.
    pub runs_per_s: f64,
    /// Of the database and what belongs to it.
    pub bytes_on_disk_per_run: f64,
    /// What the process grew by while all but the first tenth were parked, where the system tells.
    pub resident_bytes_per_run: Option<f64>,
    /// How many of them were woken, far apart.
    pub woken: usize,
    /// From the first signal to the last end.
    pub wake_ms: f64,
}

impl fmt::Display for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} parked runs on SQLite", self.runs)?;
        writeln!(f, "  parked per second       {:>12.0}", self.runs_per_s)?;
        writeln!(f, "  bytes on disk per run   {:>12.0}", self.bytes_on_disk_per_run)?;
        match self.resident_bytes_per_run {
            Some(bytes) => writeln!(f, "  resident bytes per run  {bytes:>12.0}")?,
            None => writeln!(f, "  resident bytes per run       unknown")?,
        }
        write!(f, "  waking {} of them took {:.0} ms", self.woken, self.wake_ms)
    }
}

/// Counts bodies that were let go of: those that were started and not counted yet are on their way.
struct Inside(Arc<AtomicUsize>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

fn patient(left: Arc<AtomicUsize>) -> Tool {
    let body = move |mut ctx: Ctx, _: Value| {
        let inside = Inside(left.clone());
        async move {
            let n: u64 = ctx.receive("go").await?;
            drop(inside);
            Ok(json!(n))
        }
    };
    Tool::durable_fn("patient", "Waits to be told a number", body).signal::<u64>("go")
}

/// Parks so many runs on a database of their own, and wakes some.
///
/// # Errors
///
/// When the store fails.
pub fn park(runs: usize) -> anyhow::Result<Parked> {
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    let executor = executor.context("cannot start a tokio runtime")?;
    let folder = tempfile::tempdir()?;
    let left = Arc::new(AtomicUsize::new(0));
    let opened = Windlass::open(folder.path().join("bench.db")).tool(patient(left.clone()));
    let windlass = executor.block_on(async { opened.await })?;

    let begin = Instant::now();
    let mut ids: Vec<RunId> = Vec::with_capacity(runs);
    // Allocators and caches fill up first; the slope is what comes after.
    let (mut first, head) = (None, runs / 10);
    while ids.len() < runs {
        let count = CHUNK.min(runs - ids.len());
        start(&executor, &windlass, &mut ids, count)?;
        wait_for(&executor, || left.load(Relaxed) + ON_THEIR_WAY > ids.len())?;
        if first.is_none() && ids.len() >= head {
            wait_for(&executor, || left.load(Relaxed) >= ids.len())?;
            first = resident().map(|bytes| (ids.len(), bytes));
        }
    }
    wait_for(&executor, || left.load(Relaxed) >= ids.len())?;
    let took = begin.elapsed();
    let resident_bytes_per_run = first.zip(resident()).map(|((before, then), now)| {
        let grown = now as f64 - then as f64 - (std::mem::size_of::<RunId>() * (runs - before)) as f64;
        grown / (runs - before).max(1) as f64
    });
    let bytes_on_disk_per_run = size_of_folder(folder.path())? as f64 / runs as f64;

    let chosen: Vec<RunId> = ids.iter().step_by((runs / WOKEN).max(1)).take(WOKEN).copied().collect();
    let begin = Instant::now();
    executor.block_on(wake(&windlass, &chosen))?;
    Ok(Parked {
        runs,
        runs_per_s: runs as f64 / took.as_secs_f64(),
        bytes_on_disk_per_run,
        resident_bytes_per_run,
        woken: chosen.len(),
        wake_ms: begin.elapsed().as_secs_f64() * 1e3,
    })
}

fn start(executor: &Runtime, windlass: &Windlass, ids: &mut Vec<RunId>, count: usize) -> anyhow::Result<()> {
    let _entered = executor.enter();
    let mut started = 0;
    while started < count {
        match windlass.start(ToolCall::new("patient", json!({}))) {
            Ok(run) => {
                ids.push(run);
                started += 1;
            }
            // More than the store takes at once: it has said so, and nothing was started.
            Err(windlass::Error::Store(windlass::StoreError::Unavailable(_))) => {
                executor.block_on(async { tokio::time::sleep(PAUSE).await });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn wake(windlass: &Windlass, chosen: &[RunId]) -> anyhow::Result<()> {
    try_join_all(chosen.iter().map(|run| windlass.signal(*run, "go", json!(7), None))).await?;
    let ends = try_join_all(chosen.iter().map(|run| windlass.attach(*run))).await?;
    let right = ends.iter().flatten().all(|end| end.result.as_ref().is_ok_and(|output| output.value == json!(7)));
    ensure!(right && ends.len() == chosen.len(), "a run that was woken ended otherwise");
    Ok(())
}

fn wait_for(executor: &Runtime, done: impl Fn() -> bool) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !done() {
        ensure!(begin.elapsed() < Duration::from_secs(600), "the runs are not suspended");
        executor.block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
    }
    Ok(())
}

/// Memory this process has, where the system tells.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1_024)
}

fn size_of_folder(folder: &Path) -> anyhow::Result<u64> {
    let mut size = 0;
    for entry in std::fs::read_dir(folder)? {
        size += entry?.metadata()?.len();
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use windlass_core::store::{MemoryStore, Store};
    use windlass_core::testing::Sim;
    use windlass_core::time::Clock;
    use windlass_core::{Config, Runtime};

    use super::*;
    use crate::allocations;

    #[test]
    fn runs_are_parked_and_woken() {
        let parked = park(300).unwrap();
        assert_eq!((parked.runs, parked.woken), (300, 300));
        assert!(parked.bytes_on_disk_per_run > 0.0);
    }

    #[test]
    fn w03_a_parked_run_costs_less_than_200_bytes_beyond_its_row() {
        const RUNS: usize = 20_000;
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let sim = Sim::new(1);
        let mut config = Config::new(store.clone(), Arc::new(sim.clone()), Arc::new(sim.clone()));
        config.suspend_after = Duration::ZERO;
        config.toolbox.insert(patient(Arc::default())).unwrap();
        let runtime = Runtime::new(config);
        for _ in 0..RUNS / 200 {
            for _ in 0..200 {
                runtime.start(ToolCall::new("patient", json!({}))).unwrap();
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
