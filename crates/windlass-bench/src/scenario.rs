//! The cost of an operation of a durable body: a step, or answering a recorded one from the journal.
//!
//! There is no baseline for these. Each is measured by itself in rounds, and the median is reported.

use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::{allocations, measure::median, report::OperationRow};

/// An operation whose cost is measured.
pub trait Scenario {
    /// The name in the report, unique in a run.
    fn name(&self) -> &str;

    /// Prepares the next round. Not measured.
    ///
    /// # Errors
    ///
    /// When the preparation fails.
    fn prepare(&mut self) -> anyhow::Result<()>;

    /// Runs one round and returns the number of operations. Measured.
    ///
    /// # Errors
    ///
    /// When an operation fails.
    fn run(&mut self) -> anyhow::Result<usize>;
}

/// Rounds that count, if there is time.
const ROUNDS: usize = 31;

/// No further round begins after this time.
const TIME: Duration = Duration::from_secs(2);

/// Measures one scenario.
///
/// # Errors
///
/// When it fails.
pub fn measure(scenario: &mut dyn Scenario) -> anyhow::Result<OperationRow> {
    let (mut figures, begin) = (Vec::new(), Instant::now());
    round(scenario)?;
    while figures.is_empty() || (figures.len() < ROUNDS && begin.elapsed() < TIME) {
        figures.push(round(scenario)?);
    }
    let ns_per_operation = median(figures);
    scenario.prepare()?;
    let (operations, allocated) = allocations::count(|| measured_section(scenario));
    let operations = operations?;
    Ok(OperationRow {
        name: scenario.name().to_owned(),
        operations,
        ns_per_operation,
        operations_per_s: 1e9 / ns_per_operation,
        allocs_per_operation: allocated.allocations as f64 / operations as f64,
        bytes_per_operation: allocated.bytes as f64 / operations as f64,
        instructions_per_operation: None,
    })
}

/// Nanoseconds per operation.
fn round(scenario: &mut dyn Scenario) -> anyhow::Result<f64> {
    scenario.prepare()?;
    let start = Instant::now();
    let operations = measured_section(scenario)?;
    let elapsed = start.elapsed();
    ensure!(operations > 0, "{}: no operation was measured", scenario.name());
    Ok(elapsed.as_nanos() as f64 / operations as f64)
}

/// The operations and nothing else. [`instructions`](crate::instructions) selects this function by its name.
#[inline(never)]
pub(crate) fn measured_section(scenario: &mut dyn Scenario) -> anyhow::Result<usize> {
    scenario.run()
}
