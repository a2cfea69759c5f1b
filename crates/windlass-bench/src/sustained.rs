//! Sustained load: does the rate stay the same, and does the file stay as small as its data?

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rusqlite::Connection;
use serde::Serialize;
use serde_json::{Value, json};
use windlass::{Ctx, Tool, ToolCall, ToolResult, Windlass};

use crate::drive;
use crate::parked::size_of_folder;
use crate::waiting::{self, LeaveCounter};

/// Length of a window, if there is time for more than one.
const WINDOW: Duration = Duration::from_secs(10);

/// Concurrent clients. Each starts its next run when the previous one has ended.
const CLIENTS: u64 = 64;

/// The result.
#[derive(Debug, Serialize)]
pub struct Sustained {
    /// Total time.
    pub seconds: f64,
    /// Runs that ended.
    pub runs: u64,
    /// Runs per second, window by window.
    pub windows: Vec<f64>,
    /// The rate of the last window divided by that of the first.
    pub last_to_first: f64,
    /// Size of the database with its log and index, after a clean shutdown.
    pub file_bytes: u64,
    /// Size of a compact copy with the same content.
    pub live_bytes: u64,
}

impl fmt::Display for Sustained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let windows: Vec<String> = self.windows.iter().map(|rate| format!("{rate:.0}")).collect();
        writeln!(f, "{:.0} s of load, {} runs", self.seconds, self.runs)?;
        writeln!(f, "  runs/s, window by window  {}", windows.join(" "))?;
        writeln!(f, "  last window / first       {:.2}", self.last_to_first)?;
        let ratio = self.file_bytes as f64 / self.live_bytes as f64;
        write!(f, "  file {} bytes, {ratio:.2} times its live data", self.file_bytes)
    }
}

/// Loads a database for this time.
///
/// # Errors
///
/// When a run fails or has a wrong result.
pub fn sustain(time: Duration) -> anyhow::Result<Sustained> {
    let (executor, folder) = (drive::threads()?, tempfile::tempdir()?);
    let path = folder.path().join("bench.db");
    let waiting = waiting::tool(LeaveCounter::default());
    let builder = Windlass::open(&path).tool(waiting).tool(leaf()).tool(steps()).tool(tree());
    let windlass = executor.block_on(async { builder.await })?;

    let (ended, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let begin = Instant::now();
    let client = |_| executor.spawn(client(windlass.clone(), ended.clone(), stop.clone()));
    let clients: Vec<_> = (0..CLIENTS).map(client).collect();
    let mut windows = Vec::new();
    let count = windows_in(time);
    for _ in 0..count {
        let (before, from) = (ended.load(Relaxed), Instant::now());
        std::thread::sleep(time / count);
        windows.push((ended.load(Relaxed) - before) as f64 / from.elapsed().as_secs_f64());
    }
    stop.store(true, Relaxed);
    executor.block_on(async {
        for client in clients {
            client.await.context("a client panicked")??;
        }
        windlass.shutdown().await.context("the runtime did not shut down")
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    drop(windlass);
    drop(executor);

    let last_to_first = windows.last().zip(windows.first()).map_or(f64::NAN, |(last, first)| last / first);
    let file_bytes = size_of_folder(folder.path())?;
    let (runs, live_bytes) = (ended.load(Relaxed), live_bytes(&path)?);
    Ok(Sustained { seconds, runs, windows, last_to_first, file_bytes, live_bytes })
}

/// The number of windows of equal length: at least two, so that they can be compared.
fn windows_in(time: Duration) -> u32 {
    (time.as_secs_f64() / WINDOW.as_secs_f64()).round().max(2.0) as u32
}

/// The size of the file without free pages and half-filled ones.
fn live_bytes(path: &Path) -> anyhow::Result<u64> {
    let copy = path.with_extension("copy");
    let connection = Connection::open(path)?;
    connection.execute("vacuum into ?1", [copy.to_string_lossy()])?;
    Ok(std::fs::metadata(copy)?.len())
}

/// One client: a run of every kind, one after another, until it is stopped.
async fn client(windlass: Windlass, ended: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> anyhow::Result<()> {
    loop {
        call(&windlass, "leaf", 1).await?;
        ended.fetch_add(1, Relaxed);
        call(&windlass, "steps", 6).await?;
        ended.fetch_add(1, Relaxed);
        call(&windlass, "tree", 2).await?;
        ended.fetch_add(1, Relaxed);
        let run = windlass.runtime().start_unconfirmed(ToolCall::new(waiting::NAME, json!({})))?;
        waiting::wake(&windlass, run).await?;
        ended.fetch_add(1, Relaxed);
        if stop.load(Relaxed) {
            return Ok(());
        }
    }
}

async fn call(windlass: &Windlass, tool: &str, expected: u64) -> anyhow::Result<()> {
    let result: Value = windlass.call(ToolCall::new(tool, json!({}))).await?;
    ensure!(result == json!(expected), "{tool} returned {result} instead of {expected}");
    Ok(())
}

fn leaf() -> Tool {
    Tool::new("leaf", "Does one thing once", |_: Value| async { Ok(1_u64) })
}

/// One step of each kind.
fn steps() -> Tool {
    let body = |mut ctx: Ctx, _: Value| async move {
        let a: u64 = ctx.step("look", |_| async { Ok(1) }).readonly().await?;
        let b: u64 = ctx.step("put", |_| async { Ok(2) }).idempotent().await?;
        let c: u64 = ctx.step("send", |_| async { Ok(3) }).await?;
        ToolResult::Ok(a + b + c)
    };
    Tool::durable_fn("steps", "Takes three steps", body)
}

/// A call with two child calls.
fn tree() -> Tool {
    let body = |mut ctx: Ctx, _: Value| async move {
        let mut sum = 0;
        for _ in 0..2 {
            let leaf: Value = ctx.call(ToolCall::new("leaf", json!({}))).await?;
            sum += leaf.as_u64().unwrap_or_default();
        }
        ToolResult::Ok(sum)
    };
    Tool::durable_fn("tree", "Makes two calls", body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_at_least_two_windows() {
        assert_eq!(windows_in(Duration::from_secs(60)), 6);
        assert_eq!(windows_in(Duration::from_secs(5)), 2);
    }

    #[test]
    fn runs_of_every_kind_succeed() {
        let result = sustain(Duration::from_millis(2)).unwrap();
        assert!(result.runs >= 4 * CLIENTS && result.windows.len() == 2 && result.live_bytes > 0, "{result}");
        assert!(result.file_bytes >= result.live_bytes / 2, "{result}");
    }
}
