//! Instructions per call, counted by valgrind's callgrind: a figure that does not depend on the load of the machine.
//!
//! The program runs itself under callgrind with one contender and two different numbers of calls, or one scenario and
//! two different numbers of rounds, and divides the difference of the counts by that of the calls or operations, so
//! that one-time work cancels out. Only the measured section is counted, and only on the thread that makes the calls.

use std::{
    io::ErrorKind,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail, ensure};

use crate::{
    Contender, Scenario, measure,
    report::{OperationRow, Row},
    scenario,
};

/// The numbers of calls of the two runs, rounded to whole batches.
const CALLS: (usize, usize) = (256, 768);

/// The rounds of the two runs of a scenario.
const ROUNDS: (usize, usize) = (1, 3);

/// Whether valgrind is installed.
///
/// # Errors
///
/// When valgrind is installed but does not run.
pub fn available() -> anyhow::Result<bool> {
    match Command::new("valgrind").arg("--version").stdout(Stdio::null()).status() {
        Ok(status) => Ok(status.success()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).context("cannot run valgrind"),
    }
}

/// Sets the instructions per call of `row`.
///
/// # Errors
///
/// When callgrind fails or its output is not as expected.
pub fn count(row: &mut Row) -> anyhow::Result<()> {
    let (few, many) = (CALLS.0.div_ceil(row.batch), CALLS.1.div_ceil(row.batch));
    let calls = (many - few) * row.batch;
    let which = ["--contender", &row.name, "--batch", &row.batch.to_string()];
    let instructions = callgrind(&which, many)?.saturating_sub(callgrind(&which, few)?);
    row.instructions_per_call = Some(instructions as f64 / calls as f64);
    Ok(())
}

/// Sets the instructions per operation of `row`.
///
/// # Errors
///
/// When callgrind fails or its output is not as expected.
pub fn count_operations(row: &mut OperationRow) -> anyhow::Result<()> {
    let which = ["--scenario", &row.name];
    let instructions = callgrind(&which, ROUNDS.1)?.saturating_sub(callgrind(&which, ROUNDS.0)?);
    let operations = (ROUNDS.1 - ROUNDS.0) * row.operations;
    row.instructions_per_operation = Some(instructions as f64 / operations as f64);
    Ok(())
}

/// The instructions of `iterations` batches or rounds.
fn callgrind(which: &[&str], iterations: usize) -> anyhow::Result<u64> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg("--toggle-collect=*measured_section*")
        .arg(program)
        .args(which)
        .args(["--iterations", &iterations.to_string()])
        .output()
        .context("cannot run valgrind")?;
    let output_text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "callgrind failed on {}: {output_text}", which[1]);
    collected(&output_text)
        .filter(|&count| count > 0)
        .with_context(|| format!("callgrind printed no count: {output_text}"))
}

/// The count in callgrind's summary, such as `==4711== Collected : 123456`.
fn collected(output: &str) -> Option<u64> {
    let line = output.lines().find(|line| line.contains("Collected"))?;
    line.rsplit_once(':')?.1.trim().parse().ok()
}

/// Runs under callgrind: makes `iterations` batches of calls with the contender of that name.
///
/// # Errors
///
/// When there is no such contender, or calls fail.
pub fn run_counted(
    contenders: &mut [Box<dyn Contender>],
    name: &str,
    batch: usize,
    iterations: usize,
) -> anyhow::Result<()> {
    let Some(contender) = contenders.iter_mut().find(|contender| contender.name() == name) else {
        bail!("there is no contender named {name:?}");
    };
    contender.prepare(batch, iterations);
    let succeeded = measure::measured_section(contender.as_mut());
    ensure!(succeeded == batch * iterations, "{name}: only {succeeded} of {} calls succeeded", batch * iterations);
    Ok(())
}

/// Runs under callgrind: makes `iterations` rounds of the scenario of that name.
///
/// # Errors
///
/// When there is no such scenario, or it fails.
pub fn run_counted_operations(
    scenarios: &mut [Box<dyn Scenario>],
    name: &str,
    iterations: usize,
) -> anyhow::Result<()> {
    let Some(scenario) = scenarios.iter_mut().find(|scenario| scenario.name() == name) else {
        bail!("there is no scenario named {name:?}");
    };
    for _ in 0..iterations {
        scenario.prepare()?;
        scenario::measured_section(scenario.as_mut())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_from_callgrinds_output() {
        let output = "==7== \n==7== Events    : Ir\n==7== Collected : 123456\n==7== \n==7== I   refs:      123,456\n";
        assert_eq!(collected(output), Some(123_456));
        assert_eq!(collected("==7== nothing\n"), None);
    }
}
