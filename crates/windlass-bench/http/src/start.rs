//! The cost of the binary: time until it is ready, idle memory, size.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use windlass_bench::percentile::Sorted;

use crate::report::Start;

const STARTS: usize = 20;
/// How long a server is idle before its memory is measured.
const IDLE: Duration = Duration::from_secs(2);

const CONFIG: &str = "\
[tool.echo]
description = \"Returns its arguments.\"
command = [\"cat\"]
input = { text = \"string\" }
effect = \"readonly\"

[tool.fetch]
description = \"Fetches a page.\"
input = { id = \"integer\" }
http = { url = \"https://example.com/{args.id}\" }
";

pub(crate) fn measure() -> anyhow::Result<Start> {
    let binary = beside("windlass")?;
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("windlass.toml"), CONFIG)?;
    let mut times = Vec::with_capacity(STARTS);
    for _ in 0..STARTS {
        times.push(Started::start(&binary, folder.path())?.took);
    }
    let started = Started::start(&binary, folder.path())?;
    std::thread::sleep(IDLE);
    let resident_bytes = resident(started.child.id())?;
    let times = Sorted::new(times);
    Ok(Start {
        ready_p50_ms: times.us(50.0) / 1e3,
        ready_worst_ms: times.us(100.0) / 1e3,
        resident_bytes,
        binary_bytes: std::fs::metadata(&binary)?.len(),
    })
}

/// The path of a program beside this one, in cargo's build folder.
pub(crate) fn beside(name: &str) -> anyhow::Result<PathBuf> {
    let this = std::env::current_exe().context("cannot find this program's own file")?;
    let binary = this.with_file_name(name);
    ensure!(binary.exists(), "{} does not exist; `cargo xtask bench --http` builds it", binary.display());
    Ok(binary)
}

/// A server that is ready; killed when it is dropped.
struct Started {
    child: Child,
    took: Duration,
}

impl Started {
    /// Starts a server and waits until it is ready.
    fn start(binary: &Path, folder: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(binary);
        command.args(["--json", "serve", "--listen", "127.0.0.1:0"]).current_dir(folder);
        command.env_remove("WINDLASS_SERVER").stdin(Stdio::null()).stdout(Stdio::piped());
        let begin = Instant::now();
        let child = command.spawn().with_context(|| format!("cannot start {}", binary.display()))?;
        let mut started = Self { child, took: Duration::ZERO };
        let mut line = String::new();
        if let Some(out) = started.child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let printed: Value = serde_json::from_str(&line).context("the server did not start")?;
        let url = printed["url"].as_str().context("the server did not print its URL")?;
        let address = url.trim_start_matches("http://");
        while !is_ready(address)? {
            std::thread::sleep(Duration::from_millis(1));
        }
        started.took = begin.elapsed();
        Ok(started)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // The server may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_ready(address: &str) -> anyhow::Result<bool> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET /v1/ready HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    Ok(response.starts_with(b"HTTP/1.1 200"))
}

fn resident(process: u32) -> anyhow::Result<u64> {
    let problem = "/proc does not show the memory of the server";
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).context(problem)?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context(problem)?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? << 10)
}
