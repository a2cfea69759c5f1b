//! Load that does not end: does it stay as fast, and does the file stay as small as what it holds?

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
use crate::patient::{self, Left};

/// How long a window is, if there is time for more than one.
const WINDOW: Duration = Duration::from_secs(10);

/// How many ask at once, each for the next run when its last one ended.
const CLIENTS: u64 = 64;

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Sustained {
    /// How long in all.
    pub seconds: f64,
    /// How many runs ended.
    pub runs: u64,
    /// Runs ended per second, in one window after another.
    pub windows: Vec<f64>,
    /// The last window by the first.
    pub last_to_first: f64,
    /// Of the database and what belongs to it, after an orderly shutdown.
    pub file_bytes: u64,
    /// Of a copy that holds the same and nothing else.
    pub live_bytes: u64,
}

impl fmt::Display for Sustained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let windows: Vec<String> = self.windows.iter().map(|rate| format!("{rate:.0}")).collect();
        writeln!(f, "{:.0} s of load, {} runs", self.seconds, self.runs)?;
        writeln!(f, "  runs/s, window by window  {}", windows.join(" "))?;
        writeln!(f, "  last window by the first  {:.2}", self.last_to_first)?;
        let ratio = self.file_bytes as f64 / self.live_bytes as f64;
        write!(f, "  file {} bytes, {ratio:.2} times its live data", self.file_bytes)
    }
}

/// Keeps a database busy for so long.
///
/// # Errors
///
/// When a run fails or ends otherwise than it should.
pub fn sustain(time: Duration) -> anyhow::Result<Sustained> {
    let (executor, folder) = (drive::threads()?, tempfile::tempdir()?);
    let path = folder.path().join("bench.db");
    let builder = Windlass::open(&path).tool(patient::tool(Left::default())).tool(leaf()).tool(steps()).tool(tree());
    let windlass = executor.block_on(async { builder.await })?;

    let (ended, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let begin = Instant::now();
    let client = |_| executor.spawn(ask(windlass.clone(), ended.clone(), stop.clone()));
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
        windlass.shutdown().await.context("the runtime was not shut down")
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    drop(windlass);
    drop(executor);

    let last_to_first = windows.last().zip(windows.first()).map_or(f64::NAN, |(last, first)| last / first);
    let file_bytes = size_of_folder(folder.path())?;
    let (runs, live_bytes) = (ended.load(Relaxed), live_bytes(&path)?);
    Ok(Sustained { seconds, runs, windows, last_to_first, file_bytes, live_bytes })
}

/// How many windows of equal length: at least two, so that there is something to compare.
fn windows_in(time: Duration) -> u32 {
    (time.as_secs_f64() / WINDOW.as_secs_f64()).round().max(2.0) as u32
}

/// What the file would be without free pages and half-filled ones.
fn live_bytes(path: &Path) -> anyhow::Result<u64> {
    let copy = path.with_extension("copy");
    let connection = Connection::open(path)?;
    connection.execute("vacuum into ?1", [copy.to_string_lossy()])?;
    Ok(std::fs::metadata(copy)?.len())
}

/// One client: a run of every kind, one after another, and again until it is told to stop.
async fn ask(windlass: Windlass, ended: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> anyhow::Result<()> {
    loop {
        call(&windlass, "leaf", 1).await?;
        ended.fetch_add(1, Relaxed);
        call(&windlass, "steps", 6).await?;
        ended.fetch_add(1, Relaxed);
        call(&windlass, "tree", 2).await?;
        ended.fetch_add(1, Relaxed);
        let patient = windlass.start(ToolCall::new(patient::NAME, json!({})))?;
        patient::wake(&windlass, patient).await?;
        ended.fetch_add(1, Relaxed);
        if stop.load(Relaxed) {
            return Ok(());
        }
    }
}

async fn call(windlass: &Windlass, tool: &str, expected: u64) -> anyhow::Result<()> {
    let told: Value = windlass.call(ToolCall::new(tool, json!({}))).await?;
    ensure!(told == json!(expected), "{tool} came to {told} instead of {expected}");
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

/// Two calls below a call.
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
    fn there_are_always_two_windows_to_compare() {
        assert_eq!(windows_in(Duration::from_secs(60)), 6);
        assert_eq!(windows_in(Duration::from_secs(5)), 2);
    }

    #[test]
    fn every_kind_of_run_comes_to_its_end() {
        let told = sustain(Duration::from_millis(2)).unwrap();
        assert!(told.runs >= 4 * CLIENTS && told.windows.len() == 2 && told.live_bytes > 0, "{told}");
        assert!(told.file_bytes >= told.live_bytes / 2, "{told}");
    }
}
