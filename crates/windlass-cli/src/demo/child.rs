//! The server process that the demo starts, kills, and starts again.

use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::exit::{Exit, Failure, Result};

/// A server that is not ready by then has something to say in its log.
const READY: Duration = Duration::from_secs(10);
/// An earlier server on the same file, whose supervisor was killed, is gone by then.
const GONE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The demo's files.
#[derive(Clone, Debug)]
pub(super) struct Files {
    pub(super) folder: PathBuf,
    pub(super) database: PathBuf,
    pub(super) ledger: PathBuf,
    log: PathBuf,
}

impl Files {
    /// In the folder that is given, or in a new one of our own.
    pub(super) fn new(folder: Option<&Path>) -> Result<Self> {
        let folder = match folder {
            Some(folder) => folder.to_owned(),
            None => {
                let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                let name = format!("windlass-demo-{}-{:x}", std::process::id(), since.as_micros());
                std::env::temp_dir().join(name)
            }
        };
        std::fs::create_dir_all(&folder).map_err(|error| {
            Failure::new(Exit::Unreachable, format!("{} cannot be made: {error}; name another --dir", folder.display()))
        })?;
        // The server works in this folder, and people copy the commands that are printed: names must hold everywhere.
        let folder = folder.canonicalize().unwrap_or(folder);
        let below = |name: &str| folder.join(name);
        Ok(Self { database: below("demo.db"), ledger: below("ledger.jsonl"), log: below("server.log"), folder })
    }

    /// The last thing the server had to say.
    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        let said: Option<Value> = serde_json::from_str(last).ok();
        let message = said.as_ref().and_then(|said| said["error"]["message"].as_str());
        message.unwrap_or(last).to_owned()
    }
}

/// What a server prints when it is ready.
#[derive(Deserialize)]
struct Ready {
    url: String,
}

/// A server at work. It ends with this value: it reads its standard input, and stops when that ends.
pub(super) struct Server {
    pub(super) pid: u32,
    pub(super) url: String,
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Server {
    /// Starts a server on the demo's file, and waits until it is ready.
    pub(super) async fn start(files: &Files) -> Result<Self> {
        let began = Instant::now();
        loop {
            match Self::try_start(files).await {
                // An earlier one may be about to let go of the file.
                Err(failure) if failure.exit == Exit::Unreachable && began.elapsed() < GONE => {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                started => return started,
            }
        }
    }

    async fn try_start(files: &Files) -> Result<Self> {
        let failed = |what: &str, error: std::io::Error| Failure::new(Exit::Failed, format!("{what}: {error}"));
        let program = std::env::current_exe().map_err(|error| failed("this program cannot find itself", error))?;
        let log = OpenOptions::new().create(true).append(true).open(&files.log);
        let log = log.map_err(|error| failed(&files.log.display().to_string(), error))?;
        let mut child = Command::new(program)
            .arg("--file")
            .arg(&files.database)
            .args(["--json", "serve", "--listen", "127.0.0.1:0", "--demo"])
            .arg(&files.ledger)
            .env_remove("WINDLASS_SERVER")
            .env_remove("WINDLASS_TOKEN")
            .current_dir(&files.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed("the server cannot be started", error))?;
        let stdin = child.stdin.take();
        let lines = child.stdout.take().map(|out| BufReader::new(out).lines());
        let ready = tokio::time::timeout(READY, ready(lines)).await.ok().flatten();
        match (ready, child.id()) {
            (Some(ready), Some(pid)) => Ok(Self { pid, url: ready.url, child, stdin }),
            _ => {
                let sentence = format!("the demo's server did not start; it said: {}", files.last_words());
                Err(Failure::new(Exit::Unreachable, sentence))
            }
        }
    }

    /// Ends it in good order, and waits for that: whoever opens the file next finds it closed, and nobody in it.
    pub(super) async fn end(mut self) {
        drop(self.stdin.take());
        // One that does not end by itself in time is killed with this value.
        drop(tokio::time::timeout(GONE, self.child.wait()).await);
    }

    /// SIGKILL: no warning, no last words.
    pub(super) async fn kill(&mut self) -> Result<ExitStatus> {
        let killed = async {
            self.child.start_kill()?;
            self.child.wait().await
        };
        killed.await.map_err(|error| Failure::new(Exit::Failed, format!("the server cannot be killed: {error}")))
    }
}

/// Whether a process ended by SIGKILL.
pub(super) fn was_killed(status: ExitStatus) -> bool {
    const SIGKILL: i32 = 9;
    status.signal() == Some(SIGKILL)
}

async fn ready(lines: Option<Lines<BufReader<ChildStdout>>>) -> Option<Ready> {
    let mut lines = lines?;
    let line = lines.next_line().await.ok().flatten()?;
    // The pipe must not close under a server that prints.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    serde_json::from_str(&line).ok()
}
