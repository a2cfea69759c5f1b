//! Starts and stops the measured server.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use tempfile::TempDir;

use crate::start;

/// A server in a separate process, on a new file.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    _folder: TempDir,
}

impl Server {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(start::beside("windlass-bench-server")?);
        command.arg(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("the server cannot be started")?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let address = line.trim().parse().context("the server did not print its address")?;
        Ok(Self { child, address, _folder: folder })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It stops now; how long that takes is not measured.
        let _ = self.child.wait();
    }
}
