//! Runs that wait for a signal with a number, and how to start very many of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use windlass::run::RunState;
use windlass::tool::spec::KeyExpression;
use windlass::{Ctx, RunId, Tool, ToolCall, Windlass};

/// The tool's name.
pub(crate) const NAME: &str = "waiting";

/// The name of the same tool with a key.
pub(crate) const KEYED: &str = "waiting_with_key";

/// The signal it waits for.
pub(crate) const SIGNAL: &str = "go";

/// Runs that may be in memory at once, before they are suspended.
const MAX_ACTIVE: usize = 10_000;

/// Runs started between two checks.
const CHUNK: usize = 500;

/// How long to wait for a busy store.
const PAUSE: Duration = Duration::from_millis(1);

/// How long runs may take to be suspended.
const SUSPEND_TIMEOUT: Duration = Duration::from_secs(600);

/// Counts bodies that were dropped. Runs that were started and are not counted yet are still active.
#[derive(Debug, Clone, Default)]
pub(crate) struct LeaveCounter(Arc<AtomicUsize>);

impl LeaveCounter {
    /// The number of dropped bodies.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Relaxed)
    }
}

struct CountOnDrop(LeaveCounter);

impl Drop for CountOnDrop {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Relaxed);
    }
}

/// The tool.
pub(crate) fn tool(left: LeaveCounter) -> Tool {
    named(NAME, left)
}

/// The same tool with a key: a run of it holds its key while it waits.
pub(crate) fn keyed(left: LeaveCounter, key: KeyExpression) -> Tool {
    named(KEYED, left).key(key)
}

fn named(name: &str, left: LeaveCounter) -> Tool {
    let body = move |mut ctx: Ctx, _: Value| {
        let guard = CountOnDrop(left.clone());
        async move {
            let n: u64 = ctx.receive(SIGNAL).await?;
            drop(guard);
            Ok(json!(n))
        }
    };
    Tool::durable_fn(name, "Waits for a number", body).signal::<u64>(SIGNAL)
}

/// Starts runs until there are `runs` of them, and waits until all are suspended. The first `holders` hold a key each.
pub(crate) fn park(
    executor: &Runtime,
    windlass: &Windlass,
    left: &LeaveCounter,
    ids: &mut Vec<RunId>,
    (runs, holders): (usize, usize),
) -> anyhow::Result<()> {
    while ids.len() < runs {
        let count = CHUNK.min(runs - ids.len());
        start(executor, windlass, ids, count, holders)?;
        wait_for(executor, || left.count() + MAX_ACTIVE > ids.len())?;
    }
    wait_for(executor, || left.count() >= ids.len())?;
    // All bodies are dropped, but the last runs may not be durable yet.
    let last = ids.len().saturating_sub(MAX_ACTIVE + CHUNK);
    for &run in &ids[last..] {
        wait_for(executor, || executor.block_on(is_suspended(windlass, run)))?;
    }
    Ok(())
}

async fn is_suspended(windlass: &Windlass, run: RunId) -> bool {
    let info = windlass.runtime().info(run).await;
    info.is_ok_and(|info| info.is_some_and(|info| matches!(info.state, RunState::Suspended { .. })))
}

fn start(
    executor: &Runtime,
    windlass: &Windlass,
    ids: &mut Vec<RunId>,
    count: usize,
    holders: usize,
) -> anyhow::Result<()> {
    let _entered = executor.enter();
    let mut started = 0;
    while started < count {
        let call = if ids.len() < holders {
            ToolCall::new(KEYED, json!({ "key": format!("account {}", ids.len()) }))
        } else {
            ToolCall::new(NAME, json!({}))
        };
        match windlass.runtime().start_unconfirmed(call) {
            Ok(run) => {
                ids.push(run);
                started += 1;
            }
            // The store's queue is full; nothing was started.
            Err(windlass::Error::Store(windlass::store::StoreError::Unavailable(_))) => {
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
        ensure!(begin.elapsed() < SUSPEND_TIMEOUT, "the runs were not suspended within {SUSPEND_TIMEOUT:?}");
        executor.block_on(async { tokio::time::sleep(5 * PAUSE).await });
    }
    Ok(())
}

/// Sends a run its number and waits for its end.
pub(crate) async fn wake(windlass: &Windlass, run: RunId) -> anyhow::Result<()> {
    windlass.runtime().signal(run, SIGNAL, json!(7), None).await?;
    let ends = windlass.runtime().attach(run).await?;
    let right = ends.iter().all(|end| end.result.as_ref().is_ok_and(|output| output.value == json!(7)));
    ensure!(right && ends.len() == 1, "a run that was woken has a wrong result: {ends:?}");
    Ok(())
}
