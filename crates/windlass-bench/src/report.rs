//! What is printed: a table for people, or JSON.

use std::fmt::Write as _;

use serde::Serialize;

/// What one contender costs with one size of batch.
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
    /// How many times the baseline's time, the median of the ratios of all rounds.
    pub ratio_to_baseline: Option<f64>,
    /// Instructions per call, if they were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions_per_call: Option<f64>,
}

/// What one operation of a scenario costs.
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

/// Everything that was measured.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// What calls cost.
    pub calls: Vec<Row>,
    /// What operations cost.
    pub operations: Vec<OperationRow>,
}

/// The report as a JSON object.
///
/// # Errors
///
/// When a figure is not a number that JSON knows.
pub fn json(report: &Report) -> serde_json::Result<String> {
    serde_json::to_string_pretty(report)
}

/// The report as tables.
#[must_use]
pub fn tables(report: &Report) -> String {
    let mut text = calls_table(&report.calls);
    if !report.operations.is_empty() {
        text.push('\n');
        text.push_str(&operations_table(&report.operations));
    }
    text
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
    fn json_names_the_figures() {
        let text = json(&Report { calls: vec![row(None)], operations: vec![operation(None)] }).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["operations"][0]["operations_per_s"], 2e6);
        let mut keys: Vec<_> = value["calls"][0].as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(
            keys,
            ["allocs_per_call", "batch", "bytes_per_call", "calls_per_s", "name", "ns_per_call", "ratio_to_baseline"]
        );
    }
}
