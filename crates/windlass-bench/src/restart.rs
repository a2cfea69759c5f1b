//! How soon a process serves that takes up a file with very many suspended runs.

use std::fmt;
use std::time::Instant;

use anyhow::ensure;
use serde::Serialize;
use serde_json::{Value, json};
use windlass::{Effect, Tool, ToolCall, Windlass};

use crate::drive;
use crate::parked::size_of_folder;
use crate::patient::{self, Left};

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Restart {
    /// How many runs were suspended.
    pub runs: usize,
    /// Of the database and what belongs to it.
    pub bytes_on_disk: u64,
    /// From opening the file until the runtime is there.
    pub open_ms: f64,
    /// From opening the file to the durable answer of a new call.
    pub first_call_ms: f64,
    /// From opening the file until one of the suspended runs was woken and has ended.
    pub first_wake_ms: f64,
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "restart with {} suspended runs in {} bytes", self.runs, self.bytes_on_disk)?;
        writeln!(f, "  open                     {:>9.1} ms", self.open_ms)?;
        writeln!(f, "  a new call answered      {:>9.1} ms", self.first_call_ms)?;
        write!(f, "  a suspended run ended    {:>9.1} ms", self.first_wake_ms)
    }
}

/// Suspends so many runs, closes their file, opens it again and asks for something new.
///
/// # Errors
///
/// When the store fails.
pub fn restart(runs: usize) -> anyhow::Result<Restart> {
    let (folder, left) = (tempfile::tempdir()?, Left::default());
    let open = || {
        let echo = Tool::new("echo", "Says it again", |said: Value| async move { Ok(said) }).effect(Effect::Idempotent);
        Windlass::open(folder.path().join("bench.db")).tool(patient::tool(left.clone())).tool(echo)
    };
    let mut ids = Vec::with_capacity(runs);
    {
        let executor = drive::threads()?;
        let windlass = executor.block_on(async { open().await })?;
        patient::park(&executor, &windlass, &left, &mut ids, runs)?;
        executor.block_on(windlass.shutdown())?;
    }
    let bytes_on_disk = size_of_folder(folder.path())?;

    let executor = drive::threads()?;
    let begin = Instant::now();
    let since = || begin.elapsed().as_secs_f64() * 1e3;
    let windlass = executor.block_on(async { open().await })?;
    let open_ms = since();
    let said: Value = executor.block_on(windlass.call(ToolCall::new("echo", json!({ "said": 1 }))))?;
    let first_call_ms = since();
    ensure!(said == json!({ "said": 1 }), "the new call was answered with {said}");
    if let Some(&run) = ids.get(runs / 2) {
        executor.block_on(patient::wake(&windlass, run))?;
    }
    let first_wake_ms = since();
    executor.block_on(windlass.shutdown())?;
    Ok(Restart { runs, bytes_on_disk, open_ms, first_call_ms, first_wake_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_opened_again_and_serves() {
        let told = restart(50).unwrap();
        assert_eq!(told.runs, 50);
        assert!(told.open_ms <= told.first_call_ms && told.first_call_ms <= told.first_wake_ms);
    }
}
