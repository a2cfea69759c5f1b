//! DBOS for Rust: a library on a PostgreSQL server that is started for it.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use dbos::{Config, DBOS, WorkflowRef};
use tokio::runtime::Runtime;
use windlass_bench::engine::marks::{Marks, Run};
use windlass_bench::{Engine, cpu, drive};

use crate::postgres::Postgres;

/// The name in the report.
pub(crate) const NAME: &str = "DBOS 0.5";

/// Connections to the database. The default is 10; with more workflows than connections, they wait for one another.
const CONNECTIONS: u32 = 32;

struct Dbos {
    executor: Runtime,
    dbos: DBOS,
    workflow: WorkflowRef<u32, u64>,
    marks: Marks,
    /// Dropped after everything that uses it.
    postgres: Postgres,
}

/// Starts the database and connects to it.
pub(crate) fn engine() -> anyhow::Result<Box<dyn Engine>> {
    let (postgres, executor, marks) = (Postgres::start()?, drive::threads()?, Marks::default());
    let (version, connections) = (Some("1".to_owned()), CONNECTIONS);
    let config = Config { app_version: version, max_connections: connections, ..Config::new("bench", postgres.url()) };
    let dbos = DBOS::new(config);
    let left = marks.clone();
    let workflow = dbos.register_workflow("steps", move |steps: u32| body(steps, left.clone()))?;
    executor.block_on(dbos.launch()).context("DBOS could not be launched")?;
    Ok(Box::new(Dbos { executor, dbos, workflow, marks, postgres }))
}

async fn body(steps: u32, marks: Marks) -> dbos::Result<u64> {
    let (mut run, mut sum) = (Run::enter(steps), 0);
    for number in 0..steps {
        sum += dbos::step("add", || async move { dbos::Result::Ok(u64::from(number)) }).await?;
        run.answered();
    }
    marks.leave(run);
    Ok(sum)
}

impl Engine for Dbos {
    fn name(&self) -> &str {
        NAME
    }

    fn prepare(&mut self, _runs: usize) -> anyhow::Result<()> {
        Ok(())
    }

    fn take(&mut self, runs: usize, steps: u32) -> anyhow::Result<Vec<Run>> {
        let sum = u64::from(steps) * u64::from(steps.saturating_sub(1)) / 2;
        self.executor.block_on(async {
            let started = (0..runs).map(|_| {
                let workflow = self.workflow.clone();
                tokio::spawn(async move { workflow.run(steps).await })
            });
            for run in started.collect::<Vec<_>>() {
                let result = run.await??;
                ensure!(result == sum, "a workflow returned {result} instead of {sum}");
            }
            Ok(())
        })?;
        self.marks.collect(runs, steps)
    }

    fn cpu(&self) -> Option<Duration> {
        Some(cpu::of_this()? + cpu::of_tree(self.postgres.id())?)
    }
}

impl Drop for Dbos {
    fn drop(&mut self) {
        self.executor.block_on(self.dbos.shutdown());
    }
}
