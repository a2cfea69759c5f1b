//! Steps of a durable body: each is performed and journaled, and the run ends durably within the measured time.
//!
//! The memory store would keep all these runs. Each round therefore has a store of its own, and frees that of the round
//! before within its measured time: as much is freed as is made, as in a process that runs for long.

use anyhow::ensure;
use futures_util::future::try_join_all;
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use windlass::{Ctx, Durability, Tool, ToolCall, ToolResult, Toolbox, Windlass};

use crate::{Scenario, drive};

/// What the steps are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Each is announced durably before it is attempted, so its result is its second record.
    Once,
    /// Each has one record, which waits for nobody.
    Readonly,
}

/// Where the journal is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Place {
    /// In memory.
    Memory,
    /// In a database file.
    File(Durability),
}

/// `runs` runs at a time, each of a body that takes so many steps.
pub struct Steps {
    name: String,
    executor: Runtime,
    toolbox: Toolbox,
    windlass: Windlass,
    /// The round before, in memory.
    before: Option<Windlass>,
    runs: usize,
    steps: u32,
    /// Where the file is; goes away with it.
    folder: Option<TempDir>,
}

impl Steps {
    /// A scenario.
    ///
    /// # Errors
    ///
    /// When the runtime or the file cannot be opened.
    pub fn new(kind: Kind, place: Place, runs: usize, steps: u32) -> anyhow::Result<Self> {
        let executor = drive::runtime()?;
        let folder = match place {
            Place::Memory => None,
            Place::File(_) => Some(tempfile::tempdir()?),
        };
        let builder = match (&folder, place) {
            (Some(folder), Place::File(durability)) => {
                Windlass::open(folder.path().join("bench.db")).durability(durability)
            }
            _ => Windlass::in_memory(),
        };
        let toolbox = Toolbox::new();
        toolbox.insert(tool(kind))?;
        let windlass = executor.block_on(async { builder.toolbox(toolbox.clone()).await })?;
        Ok(Self { name: name(kind, place, runs), executor, toolbox, windlass, before: None, runs, steps, folder })
    }
}

fn name(kind: Kind, place: Place, runs: usize) -> String {
    let kind = if kind == Kind::Once { "once" } else { "readonly" };
    let place = match place {
        Place::Memory => "memory".to_owned(),
        Place::File(durability) => format!("SQLite, {durability:?}"),
    };
    let plural = if runs == 1 { "" } else { "s" };
    format!("{kind} steps, {place}, {runs} run{plural}")
}

fn tool(kind: Kind) -> Tool {
    Tool::durable_fn("steps", "Takes so many steps", move |ctx, steps| body(ctx, kind, steps))
}

/// The argument of the bodies.
#[derive(serde::Deserialize, schemars::JsonSchema)]
pub(crate) struct Count {
    pub(crate) count: u32,
}

async fn body(mut ctx: Ctx, kind: Kind, steps: Count) -> ToolResult<u64> {
    let mut sum = 0;
    for number in 0..steps.count {
        let step = ctx.step("add", |_| async move { Ok(u64::from(number)) });
        sum += if kind == Kind::Once { step.await? } else { step.readonly().await? };
    }
    Ok(sum)
}

impl Scenario for Steps {
    fn name(&self) -> &str {
        &self.name
    }

    fn prepare(&mut self) -> anyhow::Result<()> {
        if self.folder.is_none() {
            let fresh = Windlass::in_memory().toolbox(self.toolbox.clone());
            let fresh = self.executor.block_on(async { fresh.await })?;
            self.before = Some(std::mem::replace(&mut self.windlass, fresh));
        }
        Ok(())
    }

    fn run(&mut self) -> anyhow::Result<usize> {
        let (steps, count) = (u64::from(self.steps), self.steps);
        let call = || self.windlass.call(ToolCall::new("steps", json!({ "count": count })));
        let sums = self.executor.block_on(try_join_all((0..self.runs).map(|_| call())))?;
        let right = sums.iter().all(|sum| sum.as_u64() == Some(steps * (steps - 1) / 2));
        ensure!(right, "{}: the sums are wrong: {sums:?}", self.name);
        self.before = None;
        Ok(self.runs * self.steps as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_taken_everywhere() {
        for place in [Place::Memory, Place::File(Durability::Full), Place::File(Durability::Relaxed)] {
            for kind in [Kind::Once, Kind::Readonly] {
                let mut scenario = Steps::new(kind, place, 2, 3).unwrap();
                assert_eq!(scenario.run().unwrap(), 6, "{}", scenario.name());
            }
        }
    }
}
