//! Servers that are started here and end with this program.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// How long a server may take to be ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// How a server is asked to end.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    /// By the signal that ends every process.
    Kill,
    /// By the signal that PostgreSQL takes for "at once": its processes must end too.
    Quit,
}

/// A running server.
pub(crate) struct Server {
    child: Child,
    end: End,
}

impl Server {
    /// Starts it; what it says goes into the file `log`.
    pub(crate) fn start(mut command: Command, log: &Path, end: End) -> anyhow::Result<Self> {
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn();
        let child = child.with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self { child, end })
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it is ready.
    pub(crate) fn wait_until(&mut self, log: &Path, ready: impl Fn() -> bool) -> anyhow::Result<()> {
        let begin = Instant::now();
        while !ready() {
            let ended = self.child.try_wait()?;
            if ended.is_some() || begin.elapsed() > PATIENCE {
                let said = std::fs::read_to_string(log).unwrap_or_default();
                let last: Vec<&str> = said.lines().rev().take(5).collect();
                let what = ended.map_or_else(|| "is not ready".to_owned(), |status| format!("ended with {status}"));
                bail!("the server {what}; the last it said, newest first: {last:?}");
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let asked = match self.end {
            End::Kill => self.child.kill().is_ok(),
            End::Quit => {
                let id = self.child.id().to_string();
                Command::new("kill").args(["-QUIT", &id]).status().is_ok_and(|status| status.success())
            }
        };
        // Where it could not be asked there is nothing to wait for.
        if asked {
            drop(self.child.wait());
        }
    }
}

/// A port that is free now.
pub(crate) fn port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
