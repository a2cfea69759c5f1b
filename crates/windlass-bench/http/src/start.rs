//! What the binary costs: how soon it serves, what it needs while nobody asks, how large it is.

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
/// How long a server is left alone before its memory is looked at.
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

/// A program beside this one, where cargo puts them all.
pub(crate) fn beside(name: &str) -> anyhow::Result<PathBuf> {
    let this = std::env::current_exe().context("this program cannot be found")?;
    let binary = this.with_file_name(name);
    ensure!(binary.exists(), "there is no {}; `cargo xtask bench --http` builds it", binary.display());
    Ok(binary)
}

/// A server that answered; killed when it is dropped.
struct Started {
    child: Child,
    took: Duration,
}

impl Started {
    /// From the moment it is asked for to the moment it says that it is ready.
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
        let told: Value = serde_json::from_str(&line).context("the server did not start")?;
        let url = told["url"].as_str().context("the server did not say where it is")?;
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
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_ready(address: &str) -> anyhow::Result<bool> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET /v1/ready HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer.starts_with(b"HTTP/1.1 200"))
}

fn resident(process: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).context("the system does not tell")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("the system does not tell")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? << 10)
}
