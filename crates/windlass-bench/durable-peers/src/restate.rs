//! Restate: its server as a single node, and a service in this process.
//!
//! The service's listener sets TCP_NODELAY, which is not the default of the SDK: without it the responses to single
//! steps are delayed by the kernel.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use hyper::body::Bytes;
use restate_sdk::prelude::{
    Context, ContextSideEffects as _, Endpoint, HandlerResult, HttpServer, RunFuture as _, service,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use windlass_bench::engine::marks::{Marks, Run};
use windlass_bench::{Engine, cpu, drive};

use crate::http::Connection;
use crate::server::{EndSignal, Server, port};

/// The name in the report.
pub(crate) const NAME: &str = "Restate 1.7";

/// The server's package, with its version.
const PACKAGE: &str = "@restatedev/restate-server@1.7.12";

/// The path of the program in the package.
const PROGRAM: &str = "node_modules/@restatedev/restate-server-linux-x64/bin/restate-server";

/// Connections that may wait to be accepted: one for each workflow.
const BACKLOG: u32 = 1_024;

struct Steps(Marks);

#[service]
impl Steps {
    #[handler]
    async fn take(&self, ctx: Context<'_>, steps: u32) -> HandlerResult<u64> {
        let (mut run, mut sum) = (Run::enter(steps), 0);
        for number in 0..steps {
            sum += ctx.run(|| async move { Ok(u64::from(number)) }).name("add").await?;
            run.answered();
        }
        self.0.leave(run);
        Ok(sum)
    }
}

struct Restate {
    executor: Runtime,
    server: Server,
    ingress: SocketAddr,
    connections: Vec<Connection>,
    marks: Marks,
    /// Removed after the server has ended.
    _folder: TempDir,
}

/// Starts the server and the service.
pub(crate) fn engine() -> anyhow::Result<Box<dyn Engine>> {
    let program = program()?;
    let (executor, folder, marks) = (drive::threads()?, tempfile::tempdir()?, Marks::default());
    let address = || port().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let (ingress, admin, node) = (address()?, address()?, address()?);

    let mut command = Command::new(program);
    command.args(["--node-name", "bench", "--base-dir"]).arg(folder.path().join("data"));
    command.envs([("DO_NOT_TRACK", "1"), ("RESTATE_DISABLE_TELEMETRY", "true")]);
    command.envs([("RESTATE_DEFAULT_NUM_PARTITIONS", "2"), ("RESTATE_ROCKSDB_TOTAL_MEMORY_SIZE", "256MB")]);
    command.env("RESTATE_INGRESS__BIND_ADDRESS", ingress.to_string());
    command.env("RESTATE_ADMIN__BIND_ADDRESS", admin.to_string());
    command.env("RESTATE_BIND_ADDRESS", node.to_string());
    let log = folder.path().join("log");
    let mut server = Server::start(command, &log, EndSignal::Kill)?;
    server.wait_until(&log, || {
        executor.block_on(async {
            Connection::healthy(admin, "/health").await && Connection::healthy(ingress, "/restate/health").await
        })
    })?;

    executor.block_on(async {
        let listener = listen()?;
        let uri = format!("http://{}", listener.local_addr()?);
        let service = HttpServer::new(Endpoint::builder().bind(Steps(marks.clone())).build());
        tokio::spawn(service.serve(listener));
        let deployment = json!({ "uri": uri });
        let registered = Connection::open(admin).await?.post("/deployments", &deployment).await;
        registered.context("the service could not be registered")
    })?;
    Ok(Box::new(Restate { executor, server, ingress, connections: Vec::new(), marks, _folder: folder }))
}

/// A listener whose connections inherit TCP_NODELAY.
fn listen() -> anyhow::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_nodelay(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    Ok(socket.listen(BACKLOG)?)
}

/// The server's program: the one named by `RESTATE_SERVER`, or the one in the package, which is installed if necessary.
fn program() -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os("RESTATE_SERVER") {
        return Ok(named.into());
    }
    // Beside this program, in the build folder.
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let folder = own.parent().unwrap_or(Path::new(".")).join("restate");
    let program = folder.join(PROGRAM);
    if !program.is_file() {
        eprintln!("installing {PACKAGE} with npm");
        std::fs::create_dir_all(&folder)?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix"]).arg(&folder).arg(PACKAGE);
        let status = npm.stdout(Stdio::null()).status();
        let status = status.context("cannot start npm; install it, or set RESTATE_SERVER to the server's file")?;
        ensure!(status.success(), "npm ended with {status}");
    }
    if !program.is_file() {
        bail!("{PACKAGE} has no server for this system; set RESTATE_SERVER to the server's file");
    }
    Ok(program)
}

async fn call(mut connection: Connection, steps: u32) -> anyhow::Result<(Connection, Bytes)> {
    let result = connection.post("/Steps/take", &json!(steps)).await?;
    Ok((connection, result))
}

impl Engine for Restate {
    fn name(&self) -> &str {
        NAME
    }

    fn prepare(&mut self, runs: usize) -> anyhow::Result<()> {
        self.executor.block_on(async {
            while self.connections.len() < runs {
                self.connections.push(Connection::open(self.ingress).await?);
            }
            Ok(())
        })
    }

    fn take(&mut self, runs: usize, steps: u32) -> anyhow::Result<Vec<Run>> {
        let sum = u64::from(steps) * u64::from(steps.saturating_sub(1)) / 2;
        self.executor.block_on(async {
            let started = self.connections.drain(..runs).map(|connection| tokio::spawn(call(connection, steps)));
            for run in started.collect::<Vec<_>>() {
                let (connection, result) = run.await??;
                ensure!(*result == *sum.to_string().as_bytes(), "a workflow returned {result:?} instead of {sum}");
                self.connections.push(connection);
            }
            Ok(())
        })?;
        self.marks.collect(runs, steps)
    }

    fn cpu(&self) -> Option<Duration> {
        Some(cpu::of_this()? + cpu::of_tree(self.server.id())?)
    }
}
