//! The same calls without HTTP: the best that the server could reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use windlass::Windlass;
use windlass_bench::drive;

use crate::load::TimedCalls;

pub(crate) struct Library {
    executor: Runtime,
    windlass: Windlass,
    calls: Arc<AtomicU64>,
    _folder: TempDir,
}

impl Library {
    pub(crate) fn open() -> anyhow::Result<Self> {
        let (executor, folder) = (drive::threads()?, tempfile::tempdir()?);
        let windlass = executor.block_on(windlass_bench_http::open(folder.path()))?;
        Ok(Self { executor, windlass, calls: Arc::default(), _folder: folder })
    }

    /// Calls a tool for this time, with `at_once` calls at a time.
    pub(crate) fn turn(&self, tool: &'static str, at_once: usize, time: Duration) -> anyhow::Result<TimedCalls> {
        let begin = Instant::now();
        let end = begin + time;
        let caller = |_| {
            let (windlass, calls) = (self.windlass.clone(), self.calls.clone());
            self.executor.spawn(async move {
                let mut times = Vec::new();
                while Instant::now() < end {
                    // Identical repeated calls would be refused as a loop.
                    let number = calls.fetch_add(1, Ordering::Relaxed);
                    let begin = Instant::now();
                    let outcome = windlass.call_json(tool, json!({ "n": format!("{number:012}") })).await?;
                    times.push(begin.elapsed());
                    ensure!(outcome.result.is_ok(), "a call failed: {:?}", outcome.result);
                }
                anyhow::Ok(times)
            })
        };
        let callers: Vec<_> = (0..at_once).map(caller).collect();
        let mut times = Vec::new();
        for caller in callers {
            times.extend(self.executor.block_on(caller).context("a caller panicked")??);
        }
        Ok(TimedCalls { times, elapsed: begin.elapsed() })
    }
}
