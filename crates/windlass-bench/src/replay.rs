//! Replay: a process continues a run that another one left, and its body repeats all its operations.
//!
//! The run has recorded steps, followed by a step that never ends. To leave it, the runtime that drives it shuts down;
//! to continue it, another one opens the same store. Measured is that opening until the body has the result of its last
//! recorded step: finding the run, claiming it, copying and folding its journal, entering the body, and answering each
//! step. No step is performed again and the journal does not grow, so every round replays the same journal.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use anyhow::ensure;
use serde_json::json;
use tokio::runtime::Runtime;
use windlass::store::MemoryStore;
use windlass::{Ctx, Tool, ToolCall, ToolResult, Toolbox, Windlass};

use crate::{
    Scenario, drive,
    steps::{Count, Kind},
};

/// What the body has done.
#[derive(Default)]
struct BodyProgress {
    performed: AtomicU32,
    answered: AtomicU32,
}

/// A run with recorded steps that is continued in every round.
pub struct Replay {
    kind: Kind,
    executor: Runtime,
    store: MemoryStore,
    toolbox: Toolbox,
    progress: Arc<BodyProgress>,
    windlass: Option<Windlass>,
    steps: u32,
}

impl Replay {
    /// Starts the run.
    ///
    /// # Errors
    ///
    /// When a runtime cannot be started.
    pub fn new(kind: Kind, steps: u32) -> anyhow::Result<Self> {
        let progress = Arc::new(BodyProgress::default());
        let (toolbox, inner) = (Toolbox::new(), progress.clone());
        toolbox.insert(Tool::durable_fn("steps", "Makes this many steps", move |ctx, steps| {
            body(ctx, kind, steps, inner.clone())
        }))?;
        let (executor, store) = (drive::runtime()?, MemoryStore::new());
        let mut replay = Self { kind, executor, store, toolbox, progress, windlass: None, steps };
        let windlass = replay.executor.block_on(replay.open())?;
        windlass.runtime().start_unconfirmed(ToolCall::new("steps", json!({ "count": steps })))?;
        replay.executor.block_on(replay.answered());
        replay.windlass = Some(windlass);
        Ok(replay)
    }

    async fn open(&self) -> windlass::Result<Windlass> {
        Windlass::with_store(Arc::new(self.store.clone())).toolbox(self.toolbox.clone()).await
    }

    /// Waits until the body has the result of its last recorded step.
    async fn answered(&self) {
        while self.progress.answered.load(Relaxed) < self.steps {
            tokio::task::yield_now().await;
        }
    }
}

async fn body(mut ctx: Ctx, kind: Kind, steps: Count, progress: Arc<BodyProgress>) -> ToolResult<u64> {
    let mut sum = 0;
    for number in 0..steps.count {
        let progress = &progress;
        let step = ctx.step("add", |_| async move {
            progress.performed.fetch_add(1, Relaxed);
            Ok(u64::from(number))
        });
        sum += if kind == Kind::Once { step.await? } else { step.readonly().await? };
    }
    progress.answered.store(steps.count, Relaxed);
    ctx.step("wait", |_| std::future::pending::<ToolResult<()>>()).readonly().await?;
    Ok(sum)
}

impl Scenario for Replay {
    fn name(&self) -> &str {
        if self.kind == Kind::Once { "replay, once steps" } else { "replay, readonly steps" }
    }

    fn prepare(&mut self) -> anyhow::Result<()> {
        if let Some(windlass) = self.windlass.take() {
            // The last step never ends.
            self.executor.block_on(windlass.shutdown_within(std::time::Duration::ZERO))?;
        }
        self.progress.answered.store(0, Relaxed);
        Ok(())
    }

    fn run(&mut self) -> anyhow::Result<usize> {
        let windlass = self.executor.block_on(async {
            let windlass = self.open().await?;
            self.answered().await;
            Ok::<_, windlass::Error>(windlass)
        })?;
        self.windlass = Some(windlass);
        let performed = self.progress.performed.load(Relaxed);
        ensure!(performed == self.steps, "{}: {performed} steps were performed instead of {}", self.name(), self.steps);
        Ok(self.steps as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_replays_the_same_journal() {
        for kind in [Kind::Once, Kind::Readonly] {
            let mut replay = Replay::new(kind, 300).unwrap();
            for _ in 0..5 {
                replay.prepare().unwrap();
                assert_eq!(replay.run().unwrap(), 300);
            }
        }
    }
}
