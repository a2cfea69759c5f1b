//! Runs that wait until somebody tells them a number, and how to have very many of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use windlass::{Ctx, RunId, RunState, Tool, ToolCall, Windlass};

/// The tool's name.
pub(crate) const NAME: &str = "patient";

/// The signal it waits for.
pub(crate) const SIGNAL: &str = "go";

/// Runs that may be in memory at once, on their way to their row.
const ON_THEIR_WAY: usize = 10_000;

/// Runs started between two looks.
const CHUNK: usize = 500;

/// How long to wait for a store that has enough to do.
const PAUSE: Duration = Duration::from_millis(1);

/// How long runs may take to be suspended.
const PATIENCE: Duration = Duration::from_secs(600);

/// Counts bodies that were let go of: those that were started and not counted yet are on their way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Left(Arc<AtomicUsize>);

impl Left {
    /// So many.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Relaxed)
    }
}

struct Inside(Left);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Relaxed);
    }
}

/// The tool.
pub(crate) fn tool(left: Left) -> Tool {
    let body = move |mut ctx: Ctx, _: Value| {
        let inside = Inside(left.clone());
        async move {
            let n: u64 = ctx.receive(SIGNAL).await?;
            drop(inside);
            Ok(json!(n))
        }
    };
    Tool::durable_fn(NAME, "Waits to be told a number", body).signal::<u64>(SIGNAL)
}

/// Starts runs until there are `runs` of them, and waits until all are suspended.
pub(crate) fn park(
    executor: &Runtime,
    windlass: &Windlass,
    left: &Left,
    ids: &mut Vec<RunId>,
    runs: usize,
) -> anyhow::Result<()> {
    while ids.len() < runs {
        let count = CHUNK.min(runs - ids.len());
        start(executor, windlass, ids, count)?;
        wait_for(executor, || left.count() + ON_THEIR_WAY > ids.len())?;
    }
    wait_for(executor, || left.count() >= ids.len())?;
    // Their bodies are gone, but for the last ones that may not be durable yet.
    let last = ids.len().saturating_sub(ON_THEIR_WAY + CHUNK);
    for &run in &ids[last..] {
        wait_for(executor, || executor.block_on(is_suspended(windlass, run)))?;
    }
    Ok(())
}

async fn is_suspended(windlass: &Windlass, run: RunId) -> bool {
    let info = windlass.info(run).await;
    info.is_ok_and(|info| info.is_some_and(|info| matches!(info.state, RunState::Suspended { .. })))
}

fn start(executor: &Runtime, windlass: &Windlass, ids: &mut Vec<RunId>, count: usize) -> anyhow::Result<()> {
    let _entered = executor.enter();
    let mut started = 0;
    while started < count {
        match windlass.start(ToolCall::new(NAME, json!({}))) {
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

fn wait_for(executor: &Runtime, done: impl Fn() -> bool) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !done() {
        ensure!(begin.elapsed() < PATIENCE, "the runs are not suspended");
        executor.block_on(async { tokio::time::sleep(5 * PAUSE).await });
    }
    Ok(())
}

/// Tells a run its number and waits for its end.
pub(crate) async fn wake(windlass: &Windlass, run: RunId) -> anyhow::Result<()> {
    windlass.signal(run, SIGNAL, json!(7), None).await?;
    let ends = windlass.attach(run).await?;
    let right = ends.iter().all(|end| end.result.as_ref().is_ok_and(|output| output.value == json!(7)));
    ensure!(right && ends.len() == 1, "a run that was woken ended otherwise");
    Ok(())
}
