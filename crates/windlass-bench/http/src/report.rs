//! The report: for people, or as JSON.

use std::fmt;

use serde::Serialize;
use windlass_bench::machine::Machine;

/// All results.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) http: Http,
}

#[derive(Debug, Serialize)]
pub(crate) struct Http {
    pub(crate) calls: Vec<CallRow>,
    pub(crate) fan_out: FanOut,
    pub(crate) start: Start,
    pub(crate) command: CommandCost,
}

/// One tool with this many concurrent clients, each with a persistent connection.
#[derive(Debug, Serialize)]
pub(crate) struct CallRow {
    pub(crate) tool: String,
    pub(crate) clients: usize,
    pub(crate) calls_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// The same without HTTP, with as many concurrent calls.
    pub(crate) library_calls_per_s: f64,
    pub(crate) library_p50_us: f64,
    pub(crate) library_p99_us: f64,
    /// Calls over HTTP divided by calls of the library, the median of all rounds.
    pub(crate) ratio: f64,
    pub(crate) server_cpu_us_per_call: Option<f64>,
    pub(crate) client_cpu_us_per_call: Option<f64>,
    pub(crate) library_cpu_us_per_call: Option<f64>,
}

/// The events of one run, to many readers.
#[derive(Debug, Serialize)]
pub(crate) struct FanOut {
    pub(crate) readers: usize,
    /// Events of the run; each reader received all of them, in order.
    pub(crate) events: usize,
    /// From the signal to the end of the last stream.
    pub(crate) seconds: f64,
    /// Of all readers together.
    pub(crate) events_per_s: f64,
}

/// The binary.
#[derive(Debug, Serialize)]
pub(crate) struct Start {
    /// From its start until it is ready.
    pub(crate) ready_p50_ms: f64,
    pub(crate) ready_worst_ms: f64,
    /// Without requests.
    pub(crate) resident_bytes: u64,
    pub(crate) binary_bytes: u64,
}

/// A command that does nothing: started directly, as a tool, and as a tool in a sandbox.
#[derive(Debug, Serialize)]
pub(crate) struct CommandCost {
    pub(crate) bare_p50_us: f64,
    pub(crate) bare_p99_us: f64,
    pub(crate) tool_p50_us: f64,
    pub(crate) tool_p99_us: f64,
    pub(crate) sandboxed_p50_us: f64,
    pub(crate) sandboxed_p99_us: f64,
}

const MIB: f64 = (1 << 20) as f64;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.machine)?;
        let Http { calls, fan_out, start, command } = &self.http;
        writeln!(
            f,
            "{:8}  {:>7}  {:>9}  {:>9}  {:>9}  {:>11}  {:>6}  {:>14}  {:>7}  {:>8}",
            "tool",
            "clients",
            "calls/s",
            "p50 µs",
            "p99 µs",
            "library/s",
            "ratio",
            "CPU µs: server",
            "client",
            "library"
        )?;
        for row in calls {
            let cpu = |cpu: Option<f64>| cpu.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.1}"));
            writeln!(
                f,
                "{:8}  {:>7}  {:>9.0}  {:>9.0}  {:>9.0}  {:>11.0}  {:>6.2}  {:>14}  {:>7}  {:>8}",
                row.tool,
                row.clients,
                row.calls_per_s,
                row.p50_us,
                row.p99_us,
                row.library_calls_per_s,
                row.ratio,
                cpu(row.server_cpu_us_per_call),
                cpu(row.client_cpu_us_per_call),
                cpu(row.library_cpu_us_per_call),
            )?;
        }
        writeln!(
            f,
            "\n{} events of one run to {} readers, all in order: {:.2} s, {:.0} events/s",
            fan_out.events, fan_out.readers, fan_out.seconds, fan_out.events_per_s
        )?;
        writeln!(f, "\nfrom start to ready   {:>8.1} ms (worst {:.1} ms)", start.ready_p50_ms, start.ready_worst_ms)?;
        writeln!(f, "idle memory           {:>8.1} MiB", start.resident_bytes as f64 / MIB)?;
        writeln!(f, "binary                {:>8.1} MiB", start.binary_bytes as f64 / MIB)?;
        let line =
            |f: &mut fmt::Formatter<'_>, name, p50, p99| writeln!(f, "{name:22}p50 {p50:>6.0} µs, p99 {p99:>6.0} µs");
        writeln!(f, "\na command that does nothing")?;
        line(f, "directly", command.bare_p50_us, command.bare_p99_us)?;
        line(f, "as a tool", command.tool_p50_us, command.tool_p99_us)?;
        line(f, "as a tool, sandboxed", command.sandboxed_p50_us, command.sandboxed_p99_us)
    }
}
