//! Steps of a durable body: each is performed and journaled, and the run ends durably within the measured time.
//!
//! The memory store would keep all these runs. So each round has a store of its own, and frees that of the previous
//! round within its measured time: as much is freed as is allocated, as in a process that runs for a long time.

use anyhow::ensure;
use futures_util::future::try_join_all;
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use windlass::store::Durability;
use windlass::{Ctx, Tool, ToolCall, ToolResult, Toolbox, Windlass};

use crate::{Scenario, drive};

/// The effect class of the steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Each is announced durably before it is attempted, so that its result is its second record.
    Once,
    /// Each has one record, which is not waited for.
    Readonly,
}

/// Where the journal is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum JournalLocation {
    /// In memory.
    Memory,
    /// In a database file.
    File(Durability),
}

/// `runs` concurrent runs of a body with `steps` steps.
pub struct Steps {
    name: String,
    executor: Runtime,
    toolbox: Toolbox,
    windlass: Windlass,
    /// The store of the previous round, in memory.
    before: Option<Windlass>,
    runs: usize,
    steps: u32,
    /// The folder of the file, removed with it.
    folder: Option<TempDir>,
}

impl Steps {
    /// Creates a scenario.
    ///
    /// # Errors
    ///
    /// When the runtime or the file cannot be opened.
    pub fn new(kind: Kind, location: JournalLocation, runs: usize, steps: u32) -> anyhow::Result<Self> {
        let executor = drive::runtime()?;
        let folder = match location {
            JournalLocation::Memory => None,
            JournalLocation::File(_) => Some(tempfile::tempdir()?),
        };
        let builder = match (&folder, location) {
            (Some(folder), JournalLocation::File(durability)) => {
                Windlass::open(folder.path().join("bench.db")).durability(durability)
            }
            _ => Windlass::in_memory(),
        };
        let toolbox = Toolbox::new();
        toolbox.insert(tool(kind))?;
        let windlass = executor.block_on(async { builder.toolbox(toolbox.clone()).await })?;
        Ok(Self { name: name(kind, location, runs), executor, toolbox, windlass, before: None, runs, steps, folder })
    }
}

fn name(kind: Kind, location: JournalLocation, runs: usize) -> String {
    let kind = if kind == Kind::Once { "once" } else { "readonly" };
    let location = match location {
        JournalLocation::Memory => "memory".to_owned(),
        JournalLocation::File(durability) => format!("SQLite, {durability:?}"),
    };
    let plural = if runs == 1 { "" } else { "s" };
    format!("{kind} steps, {location}, {runs} run{plural}")
}

fn tool(kind: Kind) -> Tool {
    Tool::durable_fn("steps", "Makes this many steps", move |ctx, steps| body(ctx, kind, steps))
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
    fn steps_are_made_on_every_store() {
        let files = [Durability::Full, Durability::Relaxed].map(JournalLocation::File);
        for location in [JournalLocation::Memory].into_iter().chain(files) {
            for kind in [Kind::Once, Kind::Readonly] {
                let mut scenario = Steps::new(kind, location, 2, 3).unwrap();
                assert_eq!(scenario.run().unwrap(), 6, "{}", scenario.name());
            }
        }
    }
}
