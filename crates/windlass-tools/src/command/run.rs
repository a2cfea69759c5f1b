//! One run of a command, from its orders to the death of the last process it left.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join3;
use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::net::unix::pipe;
use tokio::time::MissedTickBehavior;
use windlass::{Call, ToolError, ToolResult};

use super::listen::{Heard, Listener, collect, feed};
use super::reply::End;
use super::words::words;
use super::{Command, PATH};
use crate::process::count;
use crate::process::running::{Pipes, Running};
use crate::sandbox::{Launch, Level, Orders, support};

/// When all of a command is dead, what it printed is in the pipe. Only a process that left its group (which the sandbox prevents)
/// still holds one open, and is not waited for.
const REST: Duration = Duration::from_millis(100);

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
    let temp = Temp::make().map_err(|error| here(format!("no temporary folder can be made: {error}")))?;
    let launch = orders(command, call, argv, &temp.0);
    let nonce = launch.nonce.clone();
    let input = input(launch, call).map_err(|error| here(error.to_string()))?;
    let started = Running::start(&command.launcher, &call.idempotency_key(), temp.0.clone());
    let (running, pipes) = started.map_err(|error| {
        let launcher = command.launcher.argv().join(" ");
        here(format!("its launcher `{launcher}` cannot be started: {error}"))
    })?;
    // From here on the folder is removed with the process that uses it.
    temp.keep();
    let (end, refusal) =
        drive(command, call, running, pipes, (&nonce, input)).await.map_err(|error| here(error.to_string()))?;
    if call.is_cancelled() && end.code != Ok(0) {
        return std::future::pending().await;
    }
    refusal.map_or(Ok(end), |problem| Err(here(problem)))
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
    Launch { nonce, argv, env, dir, temp: temp.to_owned(), sandbox: command.sandbox.clone() }
}

/// What goes down the pipe: orders for the launcher, then arguments for the command.
fn input(launch: Launch, call: &Call) -> io::Result<Vec<u8>> {
    let mut bytes = Orders::Launch(launch).encode()?;
    serde_json::to_writer(&mut bytes, &**call.args())?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Lets it run, and sees to its end. Returns also what its launcher said, if it could not become the command.
async fn drive(
    command: &Command,
    call: &Call,
    mut running: Running,
    pipes: Pipes,
    (nonce, input): (&str, Vec<u8>),
) -> io::Result<(End, Option<String>)> {
    let mut ended = std::pin::pin!(running.ended()?);
    let stdin = pipe::Sender::from_owned_fd(pipes.stdin)?;
    let (stdout, stderr) = (pipe::Receiver::from_owned_fd(pipes.stdout)?, pipe::Receiver::from_owned_fd(pipes.stderr)?);
    let heard = Mutex::new(Heard::default());
    let say = |line: &str| call.progress(line);
    let listener = Listener { heard: &heard, redact: command.redact.as_ref(), nonce, say: &say };
    let reading = join3(feed(stdin, input), collect(stdout, command.max_output, &heard, call), listener.listen(stderr));
    let mut reading = std::pin::pin!(reading);
    let mut cancelled = std::pin::pin!(call.cancelled());
    let mut looks = tokio::time::interval(count::EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks.tick().await;
    let (mut is_read, mut is_asked, mut stopped) = (false, false, None);
    loop {
        tokio::select! {
            biased;
            ended = &mut ended => break ended?,
            _ = &mut reading, if !is_read => is_read = true,
            () = &mut cancelled, if !is_asked => {
                is_asked = true;
                running.group.signal(Signal::TERM);
            }
            _ = looks.tick(), if stopped.is_none() => {
                let most = command.sandbox.processes.unwrap_or(u64::MAX);
                if count::threads(running.group.pid) > most {
                    stopped = Some(format!("was ended: it had more than its {most} processes and threads"));
                    running.group.signal(Signal::KILL);
                }
            }
        }
    }
    let status = running.finish().await?;
    if !is_read {
        let _ = tokio::time::timeout(REST, &mut reading).await;
    }
    let Heard { stdout, printed, last_words, refusal } = std::mem::take(&mut *heard.lock());
    let code = status.code().ok_or_else(|| status.signal().unwrap_or(0));
    Ok((End { code, stdout, printed, last_words, stopped }, refusal))
}

/// A private folder, removed unless a process has taken it over.
struct Temp(PathBuf);

impl Temp {
    fn make() -> io::Result<Self> {
        let name = format!("windlass-{}", uuid::Uuid::new_v4().simple());
        let path = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    fn keep(mut self) {
        self.0 = PathBuf::new();
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            let _ = std::fs::remove_dir(&self.0);
        }
    }
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
