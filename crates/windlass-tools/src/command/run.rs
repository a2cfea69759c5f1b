//! One run of a command, from its start to the death of its last process.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use futures_util::future::join3;
use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::net::unix::pipe;
use windlass::{Call, Effect, ToolError, ToolResult};

use super::argv::expand;
use super::capture::{CapturedOutput, StderrReader, collect, feed};
use super::result::CommandEnd;
use super::{Command, PATH};
use crate::process::count;
use crate::process::running::{Pipes, Running};
use crate::process::shortage::is_transient;
use crate::sandbox::{Instructions, Launch, Level, NOT_RUN_NOW, support};

/// When all processes of a command are dead, the rest of its output is in the pipe. Only a process that left the group,
/// which the sandbox prevents, still holds the pipe open. It is not waited for.
const REST: Duration = Duration::from_millis(100);

/// Delay before the second attempt during a shortage; it doubles with every further attempt.
const SHORTAGE: Duration = Duration::from_secs(2);
/// The longest such delay.
const LONG_SHORTAGE: Duration = Duration::from_secs(60);

/// Runs a command to its end. If the call is cancelled, the command is asked to stop. Unless it then succeeds, this
/// future never resolves, because what was done is unknown: the runtime drops it when the grace is over.
pub(super) async fn run(command: &Command, call: &Call) -> ToolResult<CommandEnd> {
    let here = |problem: String| ToolError::unavailable(format!("`{}` could not be run: {problem}", call.tool()));
    if tokio::runtime::Handle::try_current().is_err() {
        return Err(here("commands need a tokio runtime".to_owned()));
    }
    if let Some(warning) = verdict(command.sandbox.level, &support().missing()).map_err(here)? {
        call.progress(&warning);
    }
    let argv = expand(&command.argv, call.args())?;
    let launcher = &command.launcher;
    let not_started = |what: &str, error: io::Error| not_begun(call, format!("{what}: {error}"), is_transient(&error));
    let no_launcher =
        |error| not_started(&format!("its launcher `{}` cannot be started", launcher.argv().join(" ")), error);
    let begun = launcher.guard().lock().begin(launcher.argv(), launcher.folder());
    begun.map_err(no_launcher)?;
    let temp = launcher.guard().lock().folder();
    let temp = temp.map_err(|error| not_started("no temporary folder can be created", error))?;
    let launch = launch(command, call, argv, &temp);
    let nonce = launch.nonce.clone();
    let input = input(launch, call).map_err(|error| here(error.to_string()));
    let started = input.and_then(|input| {
        let started = Running::start(launcher, &call.idempotency_key(), temp.clone());
        started.map(|started| (started, input)).map_err(no_launcher)
    });
    let ((running, pipes), input) = started.inspect_err(|_| {
        // The folder has not been used.
        let _ = std::fs::remove_dir(&temp);
    })?;
    // The launcher has no instructions yet.
    let watched = WatchedCommand::new(&running, pipes).map_err(no_launcher)?;
    let driven = drive(command, call, running, watched, (&nonce, input)).await;
    let (end, refusal) = driven.map_err(|error| end_unknown(call, &error))?;
    if call.is_cancelled() && end.code != Ok(0) {
        return std::future::pending().await;
    }
    let is_transient = end.code == Ok(i32::from(NOT_RUN_NOW));
    refusal.map_or(Ok(end), |problem| {
        let hint = command.hidden_hint(&problem).unwrap_or_default();
        Err(not_begun(call, format!("{problem}{hint}"), is_transient))
    })
}

/// The error for a command that certainly did not start.
pub(super) fn not_begun(call: &Call, problem: String, is_transient: bool) -> ToolError {
    let message = format!("`{}` could not be run: {problem}", call.tool());
    if !is_transient {
        return ToolError::unavailable(message);
    }
    let doubled = SHORTAGE.saturating_mul(1u32.checked_shl(call.number().saturating_sub(1)).unwrap_or(u32::MAX));
    ToolError::retry_after(format!("{message}; nothing was done"), doubled.min(LONG_SHORTAGE))
}

/// The error for a command that was started and whose end could not be observed. It is dead by now.
fn end_unknown(call: &Call, error: &io::Error) -> ToolError {
    let message = format!("`{}` was started, and how it ended is unknown: {error}", call.tool());
    if call.effect() == Effect::Readonly { ToolError::retryable(message) } else { ToolError::in_doubt(message) }
}

/// Whether a command may run although these features of its sandbox are missing, and the warning to log if so.
fn verdict(level: Level, missing: &[String]) -> Result<Option<String>, String> {
    let missing = match level {
        Level::Off => return Ok(None),
        _ if missing.is_empty() => return Ok(None),
        _ => missing.join("; "),
    };
    if level == Level::BestEffort {
        return Ok(Some(format!("not fully sandboxed: {missing}")));
    }
    Err(format!(
        "it cannot be sandboxed on this machine: {missing}. Use another kernel, or set `sandbox.level = \
         \"best_effort\"` to run it anyway"
    ))
}

fn launch(command: &Command, call: &Call, argv: Vec<String>, temp: &Path) -> Launch {
    let dir = command.dir.clone().unwrap_or_else(|| temp.to_owned());
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let base =
        [("PATH", PATH.to_owned()), ("LANG", "C.UTF-8".to_owned()), ("HOME", text(&dir)), ("TMPDIR", text(temp))];
    let mut env: BTreeMap<String, String> = base.map(|(name, value)| (name.to_owned(), value)).into();
    env.extend(command.env.clone());
    let own = [
        ("WINDLASS_IDEMPOTENCY_KEY", call.idempotency_key()),
        ("WINDLASS_RUN", call.run().to_string()),
        ("WINDLASS_PATH", call.path().to_string()),
        ("WINDLASS_ATTEMPT", call.number().to_string()),
    ];
    env.extend(own.map(|(name, value)| (name.to_owned(), value)));
    let nonce = uuid::Uuid::new_v4().simple().to_string();
    let mut sandbox = command.sandbox.clone();
    sandbox.kept.extend(command.launcher.kept().iter().cloned());
    Launch { nonce, argv, env, dir, temp: temp.to_owned(), sandbox }
}

/// What is written to the pipe: instructions for the launcher, then the arguments for the command.
fn input(launch: Launch, call: &Call) -> io::Result<Vec<u8>> {
    let mut bytes = Instructions::Launch(launch).encode()?;
    serde_json::to_writer(&mut bytes, &**call.args())?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// The end of a command and our ends of its pipes, as events.
struct WatchedCommand<F> {
    ended: F,
    stdin: pipe::Sender,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

impl WatchedCommand<()> {
    fn new(
        running: &Running,
        pipes: Pipes,
    ) -> io::Result<WatchedCommand<impl Future<Output = io::Result<()>> + use<>>> {
        Ok(WatchedCommand {
            ended: running.ended()?,
            stdin: pipe::Sender::from_owned_fd(pipes.stdin)?,
            stdout: pipe::Receiver::from_owned_fd(pipes.stdout)?,
            stderr: pipe::Receiver::from_owned_fd(pipes.stderr)?,
        })
    }
}

/// Waits for the end of the command. Also returns the launcher's message, if it could not become the command.
async fn drive(
    command: &Command,
    call: &Call,
    mut running: Running,
    watched: WatchedCommand<impl Future<Output = io::Result<()>>>,
    (nonce, input): (&str, Vec<u8>),
) -> io::Result<(CommandEnd, Option<String>)> {
    let WatchedCommand { ended, stdin, stdout, stderr } = watched;
    let mut ended = std::pin::pin!(ended);
    let captured = Mutex::new(CapturedOutput::default());
    let on_line = |line: &str| call.progress(line);
    let reader = StderrReader { captured: &captured, redact: command.redact.as_ref(), nonce, on_line: &on_line };
    let reading = join3(feed(stdin, input), collect(stdout, command.max_output, &captured, call), reader.read(stderr));
    let mut reading = std::pin::pin!(reading);
    let mut cancelled = std::pin::pin!(call.cancelled());
    let most = command.sandbox.processes;
    let counted = most.map(|most| count::watch(running.group, most)).transpose()?;
    let (mut is_read, mut is_asked_to_stop) = (false, false);
    loop {
        tokio::select! {
            biased;
            ended = &mut ended => break ended?,
            _ = &mut reading, if !is_read => is_read = true,
            () = &mut cancelled, if !is_asked_to_stop => {
                is_asked_to_stop = true;
                running.group.signal(Signal::TERM);
            }
        }
    }
    let is_over = counted.is_some_and(|counted| counted.is_over());
    let stopped = most.filter(|_| is_over);
    let stopped = stopped.map(|most| format!("was killed: it had more than {most} processes and threads"));
    let status = running.finish().await?;
    if !is_read {
        let _ = tokio::time::timeout(REST, &mut reading).await;
    }
    let CapturedOutput { stdout, printed, stderr_tail, refusal } = std::mem::take(&mut *captured.lock());
    let code = status.code().ok_or_else(|| status.signal().unwrap_or(0));
    Ok((CommandEnd { code, stdout, printed, stderr_tail, stopped }, refusal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e26_a_command_that_cannot_be_sandboxed_is_refused_unless_configured() {
        let gap = ["commands can use the network".to_owned()];
        for level in [Level::Required, Level::BestEffort, Level::Off] {
            assert_eq!(verdict(level, &[]), Ok(None), "{level:?}");
        }
        let refused = verdict(Level::Required, &gap).unwrap_err();
        assert!(refused.contains("use the network") && refused.contains("best_effort"), "{refused}");
        let warned = verdict(Level::BestEffort, &gap).unwrap().unwrap();
        assert!(warned.contains("not fully sandboxed") && warned.contains("use the network"), "{warned}");
        assert_eq!(verdict(Level::Off, &gap), Ok(None), "without a sandbox nothing is missing");
    }
}
