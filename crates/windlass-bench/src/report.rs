//! The report: tables for people, or JSON.

use std::fmt::Write as _;

use serde::Serialize;

use crate::engine::{Steps, bare, ours};
use crate::machine::Machine;
use crate::parked::Parked;
use crate::restart::Restart;
use crate::sustained::Sustained;

/// The cost of one contender with one batch size.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The contender.
    pub name: String,
    /// Calls per batch.
    pub batch: usize,
    /// Nanoseconds per call, the median of all rounds.
    pub ns_per_call: f64,
    /// Calls per second on one thread.
    pub calls_per_s: f64,
    /// Allocations per call.
    pub allocs_per_call: f64,
    /// Bytes allocated per call.
    pub bytes_per_call: f64,
    /// Time relative to the baseline, the median of the ratios of all rounds.
    pub ratio_to_baseline: Option<f64>,
    /// Instructions per call, if they were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions_per_call: Option<f64>,
}

/// The cost of one operation of a scenario.
#[derive(Debug, Clone, Serialize)]
pub struct OperationRow {
    /// The scenario.
    pub name: String,
    /// Operations per round.
    pub operations: usize,
    /// Nanoseconds per operation, the median of all rounds.
    pub ns_per_operation: f64,
    /// Operations per second.
    pub operations_per_s: f64,
    /// Allocations per operation.
    pub allocs_per_operation: f64,
    /// Bytes allocated per operation.
    pub bytes_per_operation: f64,
    /// Instructions per operation, if they were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions_per_operation: Option<f64>,
}

/// All results.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The machine, and its load.
    pub machine: Machine,
    /// The cost of calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Row>,
    /// The cost of operations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<OperationRow>,
    /// Durable engines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Steps>,
    /// How soon a file with suspended runs is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// The cost of waiting runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parked: Option<Parked>,
    /// Sustained load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sustained: Option<Sustained>,
}

/// The report as a JSON object.
///
/// # Errors
///
/// When a figure cannot be represented in JSON.
pub fn json(report: &Report) -> serde_json::Result<String> {
    serde_json::to_string_pretty(report)
}

/// The report as text, one part after another.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut parts = vec![report.machine.to_string()];
    if !report.calls.is_empty() {
        parts.push(calls_table(&report.calls));
    }
    if !report.operations.is_empty() {
        parts.push(operations_table(&report.operations));
    }
    parts.extend(report.steps.as_ref().map(steps_table));
    parts.extend(report.restart.as_ref().map(ToString::to_string));
    parts.extend(report.parked.as_ref().map(ToString::to_string));
    parts.extend(report.sustained.as_ref().map(ToString::to_string));
    parts.iter().map(|part| format!("{}\n", part.trim_end())).collect::<Vec<_>>().join("\n")
}

fn steps_table(steps: &Steps) -> String {
    let names = steps.rows.iter().map(|row| row.engine.chars().count());
    let width = names.chain(["engine".len()]).max().unwrap_or(0);
    let mut table = format!(
        "{:width$}  {:>5}  {:>10}  {:>10}  {:>10}  {:>11}\n",
        "engine", "runs", "steps/s", "p50 µs", "p99 µs", "CPU µs/step"
    );
    for row in &steps.rows {
        let cpu = row.cpu_us_per_step.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.1}"));
        let _ = writeln!(
            table,
            "{:width$}  {:>5}  {:>10.0}  {:>10.0}  {:>10.0}  {cpu:>11}",
            row.engine, row.runs, row.steps_per_s, row.p50_us, row.p99_us
        );
    }
    if !steps.first.is_empty() {
        let (first, entered, next) = ("first step, µs", "in the body, µs", "next step, µs");
        let _ = write!(table, "\n{:width$}  {:>5}  {first:>15}  {entered:>15}  {next:>15}\n", "engine", "runs");
    }
    for row in &steps.first {
        let first = row.first_p50_us.map_or_else(|| "-".to_owned(), |first| format!("{first:.0}"));
        let (runs, entered, next) = (row.runs, row.entered_p50_us, row.next_p50_us);
        let _ = writeln!(table, "{:width$}  {runs:>5}  {first:>15}  {entered:>15.0}  {next:>15.0}", row.engine);
    }
    if let Some(ratio) = steps.ratio((ours::ONCE, bare::SQLITE), 1) {
        let _ =
            write!(table, "\none run of once steps reaches {ratio:.2} times the commits/s of bare SQLite in steps/s\n");
    }
    table
}

fn operations_table(rows: &[OperationRow]) -> String {
    let counted = rows.iter().any(|row| row.instructions_per_operation.is_some());
    let width = rows.iter().map(|row| row.name.chars().count()).chain(["scenario".len()]).max().unwrap_or(0);
    let mut table =
        format!("{:width$}  {:>10}  {:>10}  {:>9}  {:>9}", "scenario", "µs/op", "ops/s", "allocs/op", "bytes/op");
    if counted {
        let _ = write!(table, "  {:>12}", "instrs/op");
    }
    table.push('\n');
    for row in rows {
        let _ = write!(
            table,
            "{:width$}  {:>10.3}  {:>10.0}  {:>9.1}  {:>9.0}",
            row.name,
            row.ns_per_operation / 1e3,
            row.operations_per_s,
            row.allocs_per_operation,
            row.bytes_per_operation,
        );
        if counted {
            let _ = write!(table, "  {:>12}", count(row.instructions_per_operation));
        }
        table.push('\n');
    }
    table
}

fn count(instructions: Option<f64>) -> String {
    instructions.map_or_else(|| "-".to_owned(), |count| format!("{count:.0}"))
}

fn calls_table(rows: &[Row]) -> String {
    let counted = rows.iter().any(|row| row.instructions_per_call.is_some());
    let width = rows.iter().map(|row| row.name.chars().count()).chain(["contender".len()]).max().unwrap_or(0);
    let mut table = format!(
        "{:width$}  {:>5}  {:>10}  {:>10}  {:>11}  {:>10}  {:>8}",
        "contender", "batch", "µs/call", "calls/s", "allocs/call", "bytes/call", "×base"
    );
    if counted {
        let _ = write!(table, "  {:>12}", "instrs/call");
    }
    table.push('\n');
    for row in rows {
        let ratio = row.ratio_to_baseline.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let _ = write!(
            table,
            "{:width$}  {:>5}  {:>10.3}  {:>10.0}  {:>11.1}  {:>10.0}  {ratio:>8}",
            row.name,
            row.batch,
            row.ns_per_call / 1e3,
            row.calls_per_s,
            row.allocs_per_call,
            row.bytes_per_call,
        );
        if counted {
            let _ = write!(table, "  {:>12}", count(row.instructions_per_call));
        }
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{FirstRow, StepRow};

    fn row(instructions_per_call: Option<f64>) -> Row {
        Row {
            name: "baseline".to_owned(),
            batch: 64,
            ns_per_call: 500.0,
            calls_per_s: 2e6,
            allocs_per_call: 3.0,
            bytes_per_call: 300.0,
            ratio_to_baseline: Some(1.0),
            instructions_per_call,
        }
    }

    fn operation(instructions_per_operation: Option<f64>) -> OperationRow {
        OperationRow {
            name: "steps".to_owned(),
            operations: 10,
            ns_per_operation: 500.0,
            operations_per_s: 2e6,
            allocs_per_operation: 3.0,
            bytes_per_operation: 300.0,
            instructions_per_operation,
        }
    }

    #[track_caller]
    fn lines_up(table: &str) {
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.chars().count() == lines[0].chars().count()), "{table}");
        assert!(lines[2].ends_with("1234"), "{table}");
    }

    #[test]
    fn tables_line_up() {
        lines_up(&calls_table(&[row(None), row(Some(1234.0))]));
        lines_up(&operations_table(&[operation(None), operation(Some(1234.0))]));
    }

    #[test]
    fn the_steps_table_lines_up_and_has_the_ratio_to_the_disk() {
        let row = |engine: &str, steps_per_s, cpu_us_per_step| StepRow {
            engine: engine.to_owned(),
            runs: 1,
            steps_per_run: 20,
            steps_per_s,
            rounds: vec![steps_per_s],
            p50_us: 300.0,
            p99_us: 900.0,
            cpu_us_per_step,
        };
        let engine = ours::ONCE.to_owned();
        let first = FirstRow { engine, runs: 1, first_p50_us: Some(310.0), entered_p50_us: 305.0, next_p50_us: 300.0 };
        let rows = vec![row(bare::SQLITE, 4_000.0, None), row(ours::ONCE, 3_000.0, Some(31.25))];
        let table = steps_table(&Steps { rows, first: vec![first] });
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[..3].iter().all(|line| line.chars().count() == lines[0].chars().count()), "{table}");
        assert!(lines[4].chars().count() == lines[5].chars().count() && lines[5].ends_with("300"), "{table}");
        assert!(lines[7].contains("0.75 times"), "{table}");
    }

    #[test]
    fn json_has_the_measured_parts_with_named_figures() {
        let report = Report { calls: vec![row(None)], operations: vec![operation(None)], ..Report::default() };
        let value: serde_json::Value = serde_json::from_str(&json(&report).unwrap()).unwrap();
        assert!(value["machine"]["cores"].is_u64() && value.get("steps").is_none());
        assert_eq!(value["operations"][0]["operations_per_s"], 2e6);
        let mut keys: Vec<_> = value["calls"][0].as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(
            keys,
            ["allocs_per_call", "batch", "bytes_per_call", "calls_per_s", "name", "ns_per_call", "ratio_to_baseline"]
        );
    }
}
