//! How soon a process is ready after opening a file with very many suspended runs.

use std::fmt;
use std::time::Instant;

use anyhow::ensure;
use serde::Serialize;
use serde_json::{Value, json};
use windlass::tool::spec::KeyExpression;
use windlass::{Effect, Tool, ToolCall, Windlass};

use crate::drive;
use crate::parked::size_of_folder;
use crate::waiting::{self, LeaveCounter};

/// The result.
#[derive(Debug, Serialize)]
pub struct Restart {
    /// Suspended runs.
    pub runs: usize,
    /// How many of them hold a key.
    pub key_holders: usize,
    /// Size of the database with its log and index.
    pub bytes_on_disk: u64,
    /// From opening the file until the runtime is ready.
    pub open_ms: f64,
    /// From opening the file to the durable result of a new call.
    pub first_call_ms: f64,
    /// From opening the file until one of the suspended runs was woken and has ended.
    pub first_wake_ms: f64,
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, key_holders, bytes_on_disk, .. } = self;
        writeln!(f, "restart with {runs} suspended runs, {key_holders} of them with a key, in {bytes_on_disk} bytes")?;
        writeln!(f, "  open                     {:>9.1} ms", self.open_ms)?;
        writeln!(f, "  a new call returned    {:>9.1} ms", self.first_call_ms)?;
        write!(f, "  a suspended run ended    {:>9.1} ms", self.first_wake_ms)
    }
}

/// Suspends this many runs, a tenth of which hold a key, closes their file, opens it again and makes a new call.
///
/// # Errors
///
/// When the store fails.
pub fn restart(runs: usize) -> anyhow::Result<Restart> {
    let (folder, left) = (tempfile::tempdir()?, LeaveCounter::default());
    let key_holders = runs / 10;
    let key = KeyExpression::parse("args.key")?;
    let open = || {
        let echo = Tool::new("echo", "Returns its arguments", |args: Value| async move { Ok(args) });
        let echo = echo.effect(Effect::Idempotent);
        let keyed = waiting::keyed(left.clone(), key.clone());
        Windlass::open(folder.path().join("bench.db")).tool(waiting::tool(left.clone())).tool(keyed).tool(echo)
    };
    let mut ids = Vec::with_capacity(runs);
    {
        let executor = drive::threads()?;
        let windlass = executor.block_on(async { open().await })?;
        waiting::park(&executor, &windlass, &left, &mut ids, (runs, key_holders))?;
        executor.block_on(windlass.shutdown())?;
    }
    let bytes_on_disk = size_of_folder(folder.path())?;

    let executor = drive::threads()?;
    let begin = Instant::now();
    let since = || begin.elapsed().as_secs_f64() * 1e3;
    let windlass = executor.block_on(async { open().await })?;
    let open_ms = since();
    let echoed: Value = executor.block_on(windlass.call(ToolCall::new("echo", json!({ "text": 1 }))))?;
    let first_call_ms = since();
    ensure!(echoed == json!({ "text": 1 }), "the new call returned {echoed}");
    if let Some(&run) = ids.get(runs / 2) {
        executor.block_on(waiting::wake(&windlass, run))?;
    }
    let first_wake_ms = since();
    executor.block_on(windlass.shutdown())?;
    Ok(Restart { runs, key_holders, bytes_on_disk, open_ms, first_call_ms, first_wake_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reopened_file_accepts_calls_and_wakes_runs() {
        let result = restart(50).unwrap();
        assert_eq!((result.runs, result.key_holders), (50, 5));
        assert!(result.open_ms <= result.first_call_ms && result.first_call_ms <= result.first_wake_ms);
    }
}
