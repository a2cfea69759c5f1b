//! Steps of a durable body: each is performed and journaled, and the run ends durably within the measured time.

use anyhow::ensure;
use futures_util::future::try_join_all;
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use windlass::{Ctx, Durability, Tool, ToolCall, ToolResult, Windlass};

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
    windlass: Windlass,
    runs: usize,
    steps: u32,
    /// Where the file is; goes away with it.
    _folder: Option<TempDir>,
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
        let windlass = executor.block_on(async { builder.tool(tool(kind)).await })?;
        Ok(Self { name: name(kind, place, runs), executor, windlass, runs, steps, _folder: folder })
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
        Ok(())
    }

    fn run(&mut self) -> anyhow::Result<usize> {
        let (steps, count) = (u64::from(self.steps), self.steps);
        let call = || self.windlass.call(ToolCall::new("steps", json!({ "count": count })));
        let sums = self.executor.block_on(try_join_all((0..self.runs).map(|_| call())))?;
        let right = sums.iter().all(|sum| sum.as_u64() == Some(steps * (steps - 1) / 2));
        ensure!(right, "{}: the sums are wrong: {sums:?}", self.name);
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
