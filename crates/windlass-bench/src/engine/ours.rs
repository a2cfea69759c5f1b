//! Windlass on a database file with default settings, except one: as many attempts may be in flight as there are runs.
//! The default is meant for tools with processes and sockets; with it, three of four runs would wait. Every commit is
//! synced before anything depends on it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use windlass::{Ctx, Tool, ToolCall, ToolResult, Windlass};

use super::{
    Engine,
    marks::{Marks, Run},
};
use crate::{cpu, drive, steps::Count};

/// The effect class of the steps.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// May be repeated after a crash, like the steps of most other engines: one record each.
    Idempotent,
    /// Announced durably before it is attempted: two records each.
    Once,
    /// Changes nothing, so its record is not waited for.
    Readonly,
}

impl Kind {
    fn tool(self) -> &'static str {
        match self {
            Self::Idempotent => "idempotent",
            Self::Once => "once",
            Self::Readonly => "readonly",
        }
    }

    fn engine(self) -> &'static str {
        match self {
            Self::Idempotent => "windlass, idempotent",
            Self::Once => ONCE,
            Self::Readonly => "windlass, readonly",
        }
    }
}

/// The engine that is compared with the bare disk.
pub const ONCE: &str = "windlass, once";

/// Attempts in flight: more than there are runs.
const ATTEMPTS: usize = 2_048;

/// The open file, shared by all kinds.
struct OpenFile {
    executor: Runtime,
    windlass: Windlass,
    marks: Marks,
    /// The folder of the file, removed with it.
    _folder: TempDir,
}

/// One kind of step.
struct Ours {
    kind: Kind,
    opened: Arc<OpenFile>,
}

/// Windlass with each kind of step, on one file.
///
/// # Errors
///
/// When the file cannot be opened.
pub fn engines() -> anyhow::Result<Vec<Box<dyn Engine>>> {
    let (executor, folder, marks) = (drive::threads()?, tempfile::tempdir()?, Marks::default());
    let kinds = [Kind::Idempotent, Kind::Once, Kind::Readonly];
    let builder = Windlass::open(folder.path().join("bench.db")).in_flight(ATTEMPTS);
    let builder = kinds.iter().fold(builder, |builder, &kind| builder.tool(tool(kind, &marks)));
    let windlass = executor.block_on(async { builder.await })?;
    let opened = Arc::new(OpenFile { executor, windlass, marks, _folder: folder });
    Ok(kinds.map(|kind| Box::new(Ours { kind, opened: opened.clone() }) as Box<dyn Engine>).into())
}

fn tool(kind: Kind, marks: &Marks) -> Tool {
    let marks = marks.clone();
    Tool::durable_fn(kind.tool(), "Makes this many steps", move |ctx, steps| body(ctx, kind, steps, marks.clone()))
}

async fn body(mut ctx: Ctx, kind: Kind, steps: Count, marks: Marks) -> ToolResult<u64> {
    let (mut run, mut sum) = (Run::enter(steps.count), 0);
    for number in 0..steps.count {
        let step = ctx.step("add", |_| async move { Ok(u64::from(number)) });
        sum += match kind {
            Kind::Idempotent => step.idempotent().await?,
            Kind::Once => step.await?,
            Kind::Readonly => step.readonly().await?,
        };
        run.answered();
    }
    marks.leave(run);
    Ok(sum)
}

impl Ours {
    fn call(&self, steps: u32) -> ToolCall {
        ToolCall::new(self.kind.tool(), json!({ "count": steps }))
    }

    /// Several lanes at once, each with this many runs one after another.
    fn run_in_lanes(&self, lanes: usize, runs: usize, steps: u32) -> anyhow::Result<Vec<Run>> {
        let opened = &self.opened;
        opened.executor.block_on(async {
            let started = (0..lanes).map(|_| {
                let (windlass, call) = (opened.windlass.clone(), self.call(steps));
                opened.executor.spawn(async move {
                    for _ in 0..runs {
                        check_sum(&windlass.call(call.clone()).await?, steps)?;
                    }
                    anyhow::Ok(())
                })
            });
            for lane in started.collect::<Vec<_>>() {
                lane.await.context("a run panicked")??;
            }
            anyhow::Ok(())
        })?;
        opened.marks.collect(lanes * runs, steps)
    }
}

fn check_sum(result: &Value, steps: u32) -> anyhow::Result<()> {
    let sum = u64::from(steps) * u64::from(steps.saturating_sub(1)) / 2;
    ensure!(result.as_u64() == Some(sum), "a run returned {result} instead of {sum}");
    Ok(())
}

impl Engine for Ours {
    fn name(&self) -> &str {
        self.kind.engine()
    }

    fn prepare(&mut self, _runs: usize) -> anyhow::Result<()> {
        Ok(())
    }

    fn take(&mut self, runs: usize, steps: u32) -> anyhow::Result<Vec<Run>> {
        if runs == 1 {
            // On the calling thread, as in the `main` of a program.
            let opened = &self.opened;
            check_sum(&opened.executor.block_on(opened.windlass.call(self.call(steps)))?, steps)?;
            return opened.marks.collect(runs, steps);
        }
        self.run_in_lanes(runs, 1, steps)
    }

    fn take_in_lanes(&mut self, lanes: usize, runs: usize, steps: u32) -> Option<anyhow::Result<Vec<Run>>> {
        Some(self.run_in_lanes(lanes, runs, steps))
    }

    fn cpu(&self) -> Option<Duration> {
        cpu::of_this()
    }
}
