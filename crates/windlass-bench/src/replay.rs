//! Replay: a process takes up a run that another one left, and its body asks for everything again.
//!
//! The run stands behind its recorded steps, in one more that never ends. To leave it, the runtime that drives it shuts
//! down; to take it up, another one opens the same store. Measured is that opening, until the body has the answer to its
//! last recorded step: finding the run, claiming it, copying and folding its journal, entering the body, and answering
//! each step. Nothing is performed again and the journal does not grow, so every round replays the same one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use anyhow::ensure;
use serde_json::json;
use tokio::runtime::Runtime;
use windlass::{Ctx, MemoryStore, Tool, ToolCall, ToolResult, Toolbox, Windlass};

use crate::{
    Scenario, drive,
    steps::{Count, Kind},
};

/// What the body tells of itself.
#[derive(Default)]
struct Told {
    performed: AtomicU32,
    answered: AtomicU32,
}

/// A run of so many recorded steps, taken up again and again.
pub struct Replay {
    kind: Kind,
    executor: Runtime,
    store: MemoryStore,
    toolbox: Toolbox,
    told: Arc<Told>,
    windlass: Option<Windlass>,
    steps: u32,
}

impl Replay {
    /// Makes the run.
    ///
    /// # Errors
    ///
    /// When a runtime cannot be started.
    pub fn new(kind: Kind, steps: u32) -> anyhow::Result<Self> {
        let told = Arc::new(Told::default());
        let (toolbox, inner) = (Toolbox::new(), told.clone());
        toolbox.insert(Tool::durable_fn("steps", "Takes so many steps", move |ctx, steps| {
            body(ctx, kind, steps, inner.clone())
        }))?;
        let (executor, store) = (drive::runtime()?, MemoryStore::new());
        let mut replay = Self { kind, executor, store, toolbox, told, windlass: None, steps };
        let windlass = replay.executor.block_on(replay.open())?;
        windlass.start(ToolCall::new("steps", json!({ "count": steps })))?;
        replay.executor.block_on(replay.answered());
        replay.windlass = Some(windlass);
        Ok(replay)
    }

    async fn open(&self) -> windlass::Result<Windlass> {
        Windlass::with_store(Arc::new(self.store.clone())).toolbox(self.toolbox.clone()).await
    }

    /// Until the body has the answer to its last recorded step.
    async fn answered(&self) {
        while self.told.answered.load(Relaxed) < self.steps {
            tokio::task::yield_now().await;
        }
    }
}

async fn body(mut ctx: Ctx, kind: Kind, steps: Count, told: Arc<Told>) -> ToolResult<u64> {
    let mut sum = 0;
    for number in 0..steps.count {
        let told = &told;
        let step = ctx.step("add", |_| async move {
            told.performed.fetch_add(1, Relaxed);
            Ok(u64::from(number))
        });
        sum += if kind == Kind::Once { step.await? } else { step.readonly().await? };
    }
    told.answered.store(steps.count, Relaxed);
    ctx.step("wait", |_| std::future::pending::<ToolResult<()>>()).readonly().await?;
    Ok(sum)
}

impl Scenario for Replay {
    fn name(&self) -> &str {
        if self.kind == Kind::Once { "replay, once steps" } else { "replay, readonly steps" }
    }

    fn prepare(&mut self) -> anyhow::Result<()> {
        if let Some(windlass) = self.windlass.take() {
            // Its last step never ends.
            self.executor.block_on(windlass.shutdown_within(std::time::Duration::ZERO))?;
        }
        self.told.answered.store(0, Relaxed);
        Ok(())
    }

    fn run(&mut self) -> anyhow::Result<usize> {
        let windlass = self.executor.block_on(async {
            let windlass = self.open().await?;
            self.answered().await;
            Ok::<_, windlass::Error>(windlass)
        })?;
        self.windlass = Some(windlass);
        let performed = self.told.performed.load(Relaxed);
        ensure!(performed == self.steps, "{}: {performed} steps were performed, some of them again", self.name());
        Ok(self.steps as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_journal_is_replayed_again_and_again() {
        for kind in [Kind::Once, Kind::Readonly] {
            let mut replay = Replay::new(kind, 300).unwrap();
            for _ in 0..5 {
                replay.prepare().unwrap();
                assert_eq!(replay.run().unwrap(), 300);
            }
        }
    }
}
