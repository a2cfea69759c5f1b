//! One run of a command, from its orders to the death of the last process it left.

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

use super::listen::{Heard, Listener, collect, feed};
use super::reply::End;
use super::words::words;
use super::{Command, PATH};
use crate::process::count;
use crate::process::running::{Pipes, Running};
use crate::process::shortage::may_pass;
use crate::sandbox::{Launch, Level, NOT_RUN_NOW, Orders, support};

/// When all of a command is dead, what it printed is in the pipe. Only a process that left its group (which the sandbox prevents)
/// still holds one open, and is not waited for.
const REST: Duration = Duration::from_millis(100);

/// How long a machine that is short of something is given before the second attempt; the double before the next, and so on.
const SHORTAGE: Duration = Duration::from_secs(2);
/// The most it is given.
const LONG_SHORTAGE: Duration = Duration::from_secs(60);

/// Runs a command to its end. Cancelled, it is asked to stop; unless it then ends well, this never resolves, for nobody can tell
/// what was done: the runtime drops it when the grace is over.
pub(super) async fn run(command: &Command, call: &Call) -> ToolResult<End> {
    let here = |problem: String| ToolError::unavailable(format!("`{}` could not be run: {problem}", call.tool()));
    if tokio::runtime::Handle::try_current().is_err() {
        return Err(here("commands need a tokio runtime".to_owned()));
    }
    if let Some(warning) = verdict(command.sandbox.level, &support().missing()).map_err(here)? {
        call.progress(&warning);
    }
    let argv = words(&command.argv, call.args())?;
    let launcher = &command.launcher;
    let unbegun = |what: &str, error: io::Error| not_begun(call, format!("{what}: {error}"), may_pass(&error));
    let no_launcher =
        |error| unbegun(&format!("its launcher `{}` cannot be started", launcher.argv().join(" ")), error);
    let begun = launcher.guard().lock().begin(launcher.argv(), launcher.folder());
    begun.map_err(no_launcher)?;
    let temp = launcher.guard().lock().folder();
    let temp = temp.map_err(|error| unbegun("no temporary folder can be made", error))?;
    let launch = orders(command, call, argv, &temp);
    let nonce = launch.nonce.clone();
    let input = input(launch, call).map_err(|error| here(error.to_string()));
    let started = input.and_then(|input| {
        let started = Running::start(launcher, &call.idempotency_key(), temp.clone());
        started.map(|started| (started, input)).map_err(no_launcher)
    });
    let ((running, pipes), input) = started.inspect_err(|_| {
        // Nothing has used it.
        let _ = std::fs::remove_dir(&temp);
    })?;
    // The launcher has no orders yet.
    let watched = Watched::new(&running, pipes).map_err(no_launcher)?;
    let driven = drive(command, call, running, watched, (&nonce, input)).await;
    let (end, refusal) = driven.map_err(|error| lost_sight(call, &error))?;
    if call.is_cancelled() && end.code != Ok(0) {
        return std::future::pending().await;
    }
    let passes = end.code == Ok(i32::from(NOT_RUN_NOW));
    refusal.map_or(Ok(end), |problem| Err(not_begun(call, problem, passes)))
}

/// What it means that the command was not started, which is known for certain.
fn not_begun(call: &Call, problem: String, passes: bool) -> ToolError {
    let message = format!("`{}` could not be run: {problem}", call.tool());
    if !passes {
        return ToolError::unavailable(message);
    }
    let doubled = SHORTAGE.saturating_mul(1u32.checked_shl(call.number().saturating_sub(1)).unwrap_or(u32::MAX));
    ToolError::retry_after(format!("{message}; nothing was done"), doubled.min(LONG_SHORTAGE))
}

/// What it means that the command was started, and its end cannot be seen. It is dead by now.
fn lost_sight(call: &Call, error: &io::Error) -> ToolError {
    let message = format!("`{}` was started, and how it ended cannot be told: {error}", call.tool());
    if call.effect() == Effect::Readonly { ToolError::retryable(message) } else { ToolError::in_doubt(message) }
}

/// Whether it may run where these things are missing from its sandbox; what is to be said about it if so.
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
        "it cannot be sandboxed on this machine: {missing}. Use another kernel, or give the tool `sandbox = \"best_effort\"` to \
         run it anyway"
    ))
}

fn orders(command: &Command, call: &Call, argv: Vec<String>, temp: &Path) -> Launch {
    let dir = command.dir.clone().unwrap_or_else(|| temp.to_owned());
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let given =
        [("PATH", PATH.to_owned()), ("LANG", "C.UTF-8".to_owned()), ("HOME", text(&dir)), ("TMPDIR", text(temp))];
    let mut env: BTreeMap<String, String> = given.map(|(name, value)| (name.to_owned(), value)).into();
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

/// What goes down the pipe: orders for the launcher, then arguments for the command.
fn input(launch: Launch, call: &Call) -> io::Result<Vec<u8>> {
    let mut bytes = Orders::Launch(launch).encode()?;
    serde_json::to_writer(&mut bytes, &**call.args())?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Its end and our ends of its pipes, as events.
struct Watched<F> {
    ended: F,
    stdin: pipe::Sender,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

impl Watched<()> {
    fn new(running: &Running, pipes: Pipes) -> io::Result<Watched<impl Future<Output = io::Result<()>> + use<>>> {
        Ok(Watched {
            ended: running.ended()?,
            stdin: pipe::Sender::from_owned_fd(pipes.stdin)?,
            stdout: pipe::Receiver::from_owned_fd(pipes.stdout)?,
            stderr: pipe::Receiver::from_owned_fd(pipes.stderr)?,
        })
    }
}

/// Lets it run, and sees to its end. Returns also what its launcher said, if it could not become the command.
async fn drive(
    command: &Command,
    call: &Call,
    mut running: Running,
    watched: Watched<impl Future<Output = io::Result<()>>>,
    (nonce, input): (&str, Vec<u8>),
) -> io::Result<(End, Option<String>)> {
    let Watched { ended, stdin, stdout, stderr } = watched;
    let mut ended = std::pin::pin!(ended);
    let heard = Mutex::new(Heard::default());
    let say = |line: &str| call.progress(line);
    let listener = Listener { heard: &heard, redact: command.redact.as_ref(), nonce, say: &say };
    let reading = join3(feed(stdin, input), collect(stdout, command.max_output, &heard, call), listener.listen(stderr));
    let mut reading = std::pin::pin!(reading);
    let mut cancelled = std::pin::pin!(call.cancelled());
    let most = command.sandbox.processes;
    let counted = most.map(|most| count::watch(running.group, most)).transpose()?;
    let (mut is_read, mut is_asked) = (false, false);
    loop {
        tokio::select! {
            biased;
            ended = &mut ended => break ended?,
            _ = &mut reading, if !is_read => is_read = true,
            () = &mut cancelled, if !is_asked => {
                is_asked = true;
                running.group.signal(Signal::TERM);
            }
        }
    }
    let is_over = counted.is_some_and(|counted| counted.is_over());
    let stopped = most.filter(|_| is_over);
    let stopped = stopped.map(|most| format!("was ended: it had more than its {most} processes and threads"));
    let status = running.finish().await?;
    if !is_read {
        let _ = tokio::time::timeout(REST, &mut reading).await;
    }
    let Heard { stdout, printed, last_words, refusal } = std::mem::take(&mut *heard.lock());
    let code = status.code().ok_or_else(|| status.signal().unwrap_or(0));
    Ok((End { code, stdout, printed, last_words, stopped }, refusal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e26_what_cannot_be_sandboxed_is_refused_unless_somebody_said_otherwise() {
        let gap = ["the network is open".to_owned()];
        for level in [Level::Required, Level::BestEffort, Level::Off] {
            assert_eq!(verdict(level, &[]), Ok(None), "{level:?}");
        }
        let refused = verdict(Level::Required, &gap).unwrap_err();
        assert!(refused.contains("network is open") && refused.contains("best_effort"), "{refused}");
        let warned = verdict(Level::BestEffort, &gap).unwrap().unwrap();
        assert!(warned.contains("not fully sandboxed") && warned.contains("network is open"), "{warned}");
        assert_eq!(verdict(Level::Off, &gap), Ok(None), "nothing is promised, so nothing is missing");
    }
}
