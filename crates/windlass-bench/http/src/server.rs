//! The server that is measured: this program, started anew, with tools that do next to nothing.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use serde_json::Value;
use tempfile::TempDir;
use windlass::tools::Concurrency;
use windlass::{Ctx, Effect, Tool, Windlass};
use windlass_bench::drive;
use windlass_server::Options;

/// What the program passes to itself when it is to serve.
pub(crate) const SERVE: &str = "serve";
/// Changes nothing.
pub(crate) const READONLY: &str = "readonly";
/// Acts once: intent and outcome are both on disk before it is answered.
pub(crate) const ONCE: &str = "once";
/// Waits for a signal, takes so many steps, and ends.
pub(crate) const STORY: &str = "story";
/// What the story waits for.
pub(crate) const GO: &str = "go";

/// A file in this folder, with the tools that are measured.
pub(crate) async fn open(folder: &Path) -> anyhow::Result<Windlass> {
    let plain = |name: &'static str, effect| {
        let tool = Tool::new(name, "Returns what it is given", |given: Value| async move { Ok(given) });
        tool.effect(effect).with(|spec| spec.guards.concurrency = Concurrency::Parallel)
    };
    let story = Tool::durable_fn(STORY, "Takes steps", |mut ctx: Ctx, _: Value| async move {
        let steps: u32 = ctx.receive(GO).await?;
        for number in 0..steps {
            ctx.step("step", |_| async move { Ok(number) }).idempotent().await?;
        }
        Ok(steps)
    })
    .signal::<u32>(GO);
    let tools = [plain(READONLY, Effect::Readonly), plain(ONCE, Effect::Once), story];
    let builder = tools.into_iter().fold(Windlass::open(folder.join("bench.db")), |builder, tool| builder.tool(tool));
    Ok(builder.await?)
}

/// Serves until standard input ends. The first line of its output says where.
pub(crate) fn serve(folder: &Path) -> anyhow::Result<()> {
    drive::threads()?.block_on(async {
        let windlass = open(folder).await?;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        let stop = async {
            // Whoever started us holds the other end, and lets go of it or dies.
            let end = || std::io::stdin().read_to_end(&mut Vec::new());
            drop(tokio::task::spawn_blocking(end).await);
        };
        windlass_server::serve(listener, windlass, Options::default(), stop).await?;
        Ok(())
    })
}

/// A server in a process of its own, on a file of its own.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    _folder: TempDir,
}

impl Server {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let program = std::env::current_exe().context("this program cannot be found")?;
        let mut command = Command::new(program);
        command.arg(SERVE).arg(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
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
