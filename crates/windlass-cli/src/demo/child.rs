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

/// How long to wait for a server to be ready; its log says why it is not.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for an earlier server on the same file to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The demo's files.
#[derive(Clone, Debug)]
pub(super) struct Files {
    pub(super) folder: PathBuf,
    pub(super) database: PathBuf,
    pub(super) ledger: PathBuf,
    log: PathBuf,
}

impl Files {
    /// The files in this folder, or in a new temporary one.
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
            Failure::new(
                Exit::Unreachable,
                format!("could not create {}: {error}; name another --dir", folder.display()),
            )
        })?;
        // The server runs in this folder, and users copy the printed commands: the paths must be absolute.
        let folder = folder.canonicalize().unwrap_or(folder);
        let below = |name: &str| folder.join(name);
        Ok(Self { database: below("demo.db"), ledger: below("ledger.jsonl"), log: below("server.log"), folder })
    }

    /// The last message in the server's log.
    fn last_log_message(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        let error: Option<Value> = serde_json::from_str(last).ok();
        let message = error.as_ref().and_then(|error| error["error"]["message"].as_str());
        message.unwrap_or(last).to_owned()
    }
}

/// The line that a server prints when it is ready.
#[derive(Deserialize)]
struct Ready {
    url: String,
}

/// A running server. It exits when this value is dropped, because that closes its standard input.
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
                // An earlier server may be about to close the file.
                Err(failure) if failure.exit == Exit::Unreachable && began.elapsed() < EXIT_TIMEOUT => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                started => return started,
            }
        }
    }

    async fn try_start(files: &Files) -> Result<Self> {
        let failed = |what: &str, error: std::io::Error| Failure::new(Exit::Failed, format!("{what}: {error}"));
        let program =
            std::env::current_exe().map_err(|error| failed("could not determine the path of this program", error))?;
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
            .map_err(|error| failed("could not start the server", error))?;
        let stdin = child.stdin.take();
        let lines = child.stdout.take().map(|out| BufReader::new(out).lines());
        let ready = tokio::time::timeout(READY_TIMEOUT, ready(lines)).await.ok().flatten();
        match (ready, child.id()) {
            (Some(ready), Some(pid)) => Ok(Self { pid, url: ready.url, child, stdin }),
            _ => {
                let message = format!("the demo's server did not start; its log says: {}", files.last_log_message());
                Err(Failure::new(Exit::Unreachable, message))
            }
        }
    }

    /// Stops the server cleanly, and waits for it, so that the file is closed afterwards.
    pub(super) async fn stop(mut self) {
        drop(self.stdin.take());
        // If it does not stop in time, dropping the child kills it.
        drop(tokio::time::timeout(EXIT_TIMEOUT, self.child.wait()).await);
    }

    /// Sends SIGKILL.
    pub(super) async fn kill(&mut self) -> Result<ExitStatus> {
        let killed = async {
            self.child.start_kill()?;
            self.child.wait().await
        };
        killed.await.map_err(|error| Failure::new(Exit::Failed, format!("could not kill the server: {error}")))
    }
}

/// Whether a process was ended by SIGKILL.
pub(super) fn was_killed(status: ExitStatus) -> bool {
    const SIGKILL: i32 = 9;
    status.signal() == Some(SIGKILL)
}

async fn ready(lines: Option<Lines<BufReader<ChildStdout>>>) -> Option<Ready> {
    let mut lines = lines?;
    let line = lines.next_line().await.ok().flatten()?;
    // Keep reading, so that the pipe stays open for a server that prints.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    serde_json::from_str(&line).ok()
}
