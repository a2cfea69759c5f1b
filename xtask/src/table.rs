//! `cargo xtask table`: Markdown of what `cargo xtask bench --json` printed.

use std::fmt::Write as _;
use std::io::Read as _;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::no_arguments;

/// The level whose latency and CPU time are shown.
const SHOWN: u64 = 256;

/// A load average beyond which a machine was not ours alone.
const QUIET: f64 = 0.5;

pub(crate) fn main(args: &[String]) -> Result<()> {
    no_arguments("table", args)?;
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    let report: Value = serde_json::from_str(&text).context("standard input is not what `bench --json` prints")?;
    print!("{}", markdown(&report)?);
    Ok(())
}

fn markdown(report: &Value) -> Result<String> {
    let http = &report["http"];
    let parts = [steps(&report["steps"]), calls(&report["calls"]), disk(report), over_http(http), binary(http)];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    ensure!(!parts.is_empty(), "there is nothing in it that a table could show");
    Ok(format!("{}\n\n{}", machine(&report["machine"]), parts.join("\n")))
}

fn machine(machine: &Value) -> String {
    let cores = machine["cores"].as_u64().unwrap_or_default();
    let busy = machine["load_before"].as_f64().map(|load| {
        let how =
            if load <= QUIET { "quiet" } else { "busy with other work, so that what few runs at once do says little" };
        format!(", {how} (load {load:.1})")
    });
    format!("Measured on {cores} cores{}.", busy.unwrap_or_default())
}

/// A line for each engine, a column for each number of runs at once.
fn steps(steps: &Value) -> Option<String> {
    let rows = steps["rows"].as_array()?;
    let mut levels: Vec<u64> = rows.iter().filter_map(|row| row["runs"].as_u64()).collect();
    levels.sort_unstable();
    levels.dedup();
    let columns: String = levels.iter().map(|&level| format!(" {} |", number(level as f64))).collect();
    let mut table =
        format!("| steps/s with so many runs at once |{columns} p50 / p99 at {SHOWN} | CPU per step at {SHOWN} |\n");
    table.push_str(&format!("|---|{}---:|---:|\n", "---:|".repeat(levels.len())));
    let mut engines: Vec<&str> = Vec::new();
    for engine in rows.iter().filter_map(|row| row["engine"].as_str()) {
        if !engines.contains(&engine) {
            engines.push(engine);
        }
    }
    for engine in engines {
        let at = |level: u64| rows.iter().find(|row| row["engine"] == engine && row["runs"] == level);
        let rate = |level: &u64| at(*level).and_then(|row| row["steps_per_s"].as_f64());
        let rates: String =
            levels.iter().map(|level| format!(" {} |", rate(level).map_or_else(String::new, number))).collect();
        let shown = |figure: &str| at(SHOWN).and_then(|row| row[figure].as_f64());
        let times = shown("p50_us").zip(shown("p99_us"));
        let times = times.map_or_else(String::new, |(p50, p99)| format!("{:.1} / {:.1} ms", p50 / 1e3, p99 / 1e3));
        let cpu = shown("cpu_us_per_step").map_or_else(String::new, |cpu| format!("{cpu:.0} µs"));
        let _ = writeln!(table, "| {engine} |{rates} {times} | {cpu} |");
    }
    Some(table)
}

/// A line for each contender, a column for each size of batch.
fn calls(calls: &Value) -> Option<String> {
    let rows = calls.as_array()?;
    let mut table = "| µs per validated call | alone | in a batch of 64 |\n|---|---:|---:|\n".to_owned();
    for row in rows.iter().filter(|row| row["batch"] == 1) {
        let time = |batch: u64| {
            let found = rows.iter().find(|found| found["name"] == row["name"] && found["batch"] == batch);
            found.and_then(|row| row["ns_per_call"].as_f64()).map_or_else(String::new, |ns| format!("{:.2}", ns / 1e3))
        };
        let _ = writeln!(table, "| {} | {} | {} |", row["name"].as_str().unwrap_or("?"), time(1), time(64));
    }
    Some(table)
}

/// A sentence for each of the other parts.
fn disk(report: &Value) -> Option<String> {
    let mut lines = String::new();
    let figure = |part: &str, name: &str| report[part][name].as_f64();
    if let Some((runs, ms)) = figure("restart", "runs").zip(figure("restart", "first_call_ms")) {
        let _ = writeln!(
            lines,
            "- A file with {} suspended runs: a new call is answered {ms:.0} ms after opening it.",
            number(runs)
        );
    }
    if let Some((runs, bytes)) = figure("parked", "runs").zip(figure("parked", "resident_bytes")) {
        let (mib, disk) = (bytes / f64::from(1 << 20), figure("parked", "bytes_on_disk_per_run").unwrap_or(f64::NAN));
        let of = |name| figure("parked", name).unwrap_or(f64::NAN);
        let (p50, p99) = (of("wake_p50_ms"), of("wake_p99_ms"));
        let _ = writeln!(
            lines,
            "- {} parked runs: {mib:.0} MiB resident in all, {disk:.0} bytes on disk each; one wakes and ends in {p50:.1} ms \
             (p50), {p99:.1} ms (p99).",
            number(runs)
        );
    }
    if let Some((seconds, ratio)) = figure("sustained", "seconds").zip(figure("sustained", "last_to_first")) {
        let of = |name| figure("sustained", name).unwrap_or(f64::NAN);
        let (rate, size) = (of("runs") / seconds, of("file_bytes") / of("live_bytes"));
        let _ = writeln!(
            lines,
            "- {seconds:.0} s of mixed short runs: {} runs/s, the last ten seconds {ratio:.2} times the first, the file \
             {size:.2} times its live data.",
            number(rate)
        );
    }
    (!lines.is_empty()).then_some(lines)
}

/// A line for each tool and number of clients.
fn over_http(http: &Value) -> Option<String> {
    let rows = http["calls"].as_array()?;
    let mut table = "| calls over HTTP | clients | calls/s | p50 / p99 | library, calls/s | ratio |\n".to_owned();
    table.push_str("|---|---:|---:|---:|---:|---:|\n");
    for row in rows {
        let of = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
        let _ = writeln!(
            table,
            "| `{}` | {} | {} | {:.1} / {:.1} ms | {} | {:.2} |",
            row["tool"].as_str().unwrap_or("?"),
            of("clients"),
            number(of("calls_per_s")),
            of("p50_us") / 1e3,
            of("p99_us") / 1e3,
            number(of("library_calls_per_s")),
            of("ratio")
        );
    }
    Some(table)
}

/// A sentence for each of the rest of it.
fn binary(http: &Value) -> Option<String> {
    let of = |part: &str, name: &str| http[part][name].as_f64().unwrap_or(f64::NAN);
    http["start"].as_object()?;
    let mib = f64::from(1 << 20);
    let (ready, resident, size) =
        (of("start", "ready_p50_ms"), of("start", "resident_bytes"), of("start", "binary_bytes"));
    let (readers, events) = (of("fan_out", "readers"), of("fan_out", "events"));
    let (bare, tool) = (of("command", "bare_p50_us") / 1e3, of("command", "tool_p50_us") / 1e3);
    Some(format!(
        "- {} events of one run reach {} readers, all in order, at {} events/s.\n\
         - The binary has {:.0} MiB, answers {ready:.0} ms after it is started, and needs {:.0} MiB while idle.\n\
         - A command takes {bare:.1} ms by hand, {tool:.1} ms as a tool, {:.1} ms as a tool in a sandbox.\n",
        number(events),
        number(readers),
        number(of("fan_out", "events_per_s")),
        size / mib,
        resident / mib,
        of("command", "sandboxed_p50_us") / 1e3
    ))
}

/// A whole number with its thousands apart.
fn number(figure: f64) -> String {
    let digits = format!("{figure:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        let told: Vec<String> = [7.4, 999.0, 1_000.0, 1_234_567.0].map(number).into();
        assert_eq!(told, ["7", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn every_engine_has_a_line_and_every_level_a_column() {
        let row = |engine: &str, runs: u64, rate: f64| {
            json!({ "engine": engine, "runs": runs, "steps_per_s": rate, "p50_us": 1_500.0, "p99_us": 9_000.0,
                    "cpu_us_per_step": 41.7 })
        };
        let rows = [row("bare", 1, 3_600.0), row("ours", 1, 3_000.0), row("ours", 256, 60_000.0)];
        let report = json!({ "machine": { "cores": 2, "load_before": 0.1 }, "steps": { "rows": rows } });
        let expected = "\
Measured on 2 cores, quiet (load 0.1).

| steps/s with so many runs at once | 1 | 256 | p50 / p99 at 256 | CPU per step at 256 |
|---|---:|---:|---:|---:|
| bare | 3,600 |  |  |  |
| ours | 3,000 | 60,000 | 1.5 / 9.0 ms | 42 µs |
";
        assert_eq!(markdown(&report).unwrap(), expected);
    }

    #[test]
    fn the_other_parts_are_sentences() {
        let report = json!({
            "machine": { "cores": 2, "load_before": 7.0 },
            "calls": [{ "name": "a", "batch": 1, "ns_per_call": 900.0 }, { "name": "a", "batch": 64, "ns_per_call": 600.0 }],
            "restart": { "runs": 100_000, "first_call_ms": 84.2 },
            "parked": { "runs": 1_000_000, "resident_bytes": 104_857_600_u64, "bytes_on_disk_per_run": 420.0,
                        "wake_p50_ms": 1.25, "wake_p99_ms": 4.0 },
            "sustained": { "seconds": 60.0, "runs": 60_000, "last_to_first": 0.97, "file_bytes": 300, "live_bytes": 200 },
        });
        let text = markdown(&report).unwrap();
        for part in [
            "says little (load 7.0)",
            "| a | 0.90 | 0.60 |",
            "100,000 suspended runs: a new call is answered 84 ms",
            "100 MiB resident in all, 420 bytes on disk each",
            "1,000 runs/s, the last ten seconds 0.97 times the first, the file 1.50 times",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }

    #[test]
    fn http_is_a_table_and_sentences() {
        let row = json!({ "tool": "once", "clients": 64, "calls_per_s": 12_345.6, "p50_us": 5_000.0, "p99_us": 9_950.0,
                          "library_calls_per_s": 15_000.0, "ratio": 0.823 });
        let report = json!({ "machine": { "cores": 2 }, "http": {
            "calls": [row],
            "fan_out": { "readers": 1_000, "events": 404, "events_per_s": 250_000.0 },
            "start": { "ready_p50_ms": 41.3, "resident_bytes": 26 << 20, "binary_bytes": 31 << 20 },
            "command": { "bare_p50_us": 900.0, "tool_p50_us": 2_100.0, "sandboxed_p50_us": 2_700.0 },
        } });
        let text = markdown(&report).unwrap();
        for part in [
            "| `once` | 64 | 12,346 | 5.0 / 9.9 ms | 15,000 | 0.82 |",
            "404 events of one run reach 1,000 readers, all in order, at 250,000 events/s",
            "has 31 MiB, answers 41 ms after it is started, and needs 26 MiB",
            "0.9 ms by hand, 2.1 ms as a tool, 2.7 ms",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }

    #[test]
    fn an_empty_report_is_refused() {
        assert!(markdown(&json!({ "machine": {} })).unwrap_err().to_string().contains("nothing"));
    }
}
