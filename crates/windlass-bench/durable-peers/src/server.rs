//! Server processes that end with this program.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// How long a server may take to be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval between two checks.
const PAUSE: Duration = Duration::from_millis(50);

/// The signal that ends a server.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EndSignal {
    /// SIGKILL.
    Kill,
    /// SIGQUIT, PostgreSQL's immediate shutdown, which also ends its child processes.
    Quit,
}

/// A running server.
pub(crate) struct Server {
    child: Child,
    end: EndSignal,
}

impl Server {
    /// Starts a server, with its output in the file `log`.
    pub(crate) fn start(mut command: Command, log: &Path, end: EndSignal) -> anyhow::Result<Self> {
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn();
        let child = child.with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self { child, end })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it is ready.
    pub(crate) fn wait_until(&mut self, log: &Path, ready: impl Fn() -> bool) -> anyhow::Result<()> {
        let begin = Instant::now();
        while !ready() {
            let ended = self.child.try_wait()?;
            if ended.is_some() || begin.elapsed() > READY_TIMEOUT {
                let output = std::fs::read_to_string(log).unwrap_or_default();
                let last: Vec<&str> = output.lines().rev().take(5).collect();
                let what = ended.map_or_else(|| "is not ready".to_owned(), |status| format!("ended with {status}"));
                bail!("the server {what}; its last output, newest first: {last:?}");
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let signalled = match self.end {
            EndSignal::Kill => self.child.kill().is_ok(),
            EndSignal::Quit => {
                let id = self.child.id().to_string();
                Command::new("kill").args(["-QUIT", &id]).status().is_ok_and(|status| status.success())
            }
        };
        // If the signal could not be sent, waiting would never end.
        if signalled {
            drop(self.child.wait());
        }
    }
}

/// A port that is free now.
pub(crate) fn port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
