//! The server that is measured, as this program sees it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use tempfile::TempDir;

use crate::start;

/// A server in a process of its own, on a file of its own.
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
        let address = line.trim().parse().context("the server did not say where it is")?;
        Ok(Self { child, address, _folder: folder })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It stops by itself now; how it does is not what is measured.
        let _ = self.child.wait();
    }
}
