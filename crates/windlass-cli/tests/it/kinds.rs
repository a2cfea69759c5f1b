//! One model of time limits for every kind of tool: a table with a row for each kind, and what becomes of each after the
//! process is killed.

use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use windlass::run::RunState;
use windlass::tool::Schemas;
use windlass::{Attempt, Call, Ctx, Effect, Policy, RunHandle, Tool, ToolCall, ToolResult, ToolSpec, Windlass};
use windlass_server::Options;
use windlass_tools::command::Command;
use windlass_tools::http::Request;
use windlass_tools::net;
use windlass_tools::sandbox::{Launcher, Level};

use crate::http::Client;
use crate::world::{PATIENCE, until};

/// The kinds of tools. An attempt of each but the last hangs; the last one waits for a client that does not answer.
const KINDS: [&str; 5] = ["function", "step", "command", "http", "client"];
/// The folder of the child, and the address of the HTTP server that does not answer.
const DIR: &str = "WINDLASS_TEST_KINDS";
const SILENT: &str = "WINDLASS_TEST_SILENT";
const LONG: Duration = Duration::from_secs(600);
/// The deadline across the crash. Longer than a busy machine takes to continue five runs.
const DEADLINE: Duration = Duration::from_secs(6);

/// The limits of one column of the table.
#[derive(Clone, Copy)]
struct Limits {
    timeout: Duration,
    deadline: Duration,
    heartbeat: Duration,
}

const NO_LIMITS: Limits = Limits { timeout: LONG, deadline: LONG, heartbeat: LONG };

/// Notes that the attempt has begun, and hangs.
async fn hang(dir: PathBuf, kind: &'static str, _attempt: Attempt) -> ToolResult<Value> {
    std::fs::write(dir.join(kind), "").unwrap();
    std::future::pending().await
}

/// The folder in which each attempt notes that it has begun.
fn marks(dir: &Path) -> PathBuf {
    dir.join("marks")
}

fn tools(dir: &Path, silent: &str, limits: Limits) -> Vec<Tool> {
    let Limits { timeout, deadline, heartbeat } = limits;
    let (in_tool, in_step) = (marks(dir), marks(dir));
    let function =
        Tool::with_call("function", "", move |call: Call, _: Value| hang(in_tool.clone(), "function", (*call).clone()));
    let step = Tool::durable_fn("step", "", move |mut ctx: Ctx, _: Value| {
        let dir = in_step.clone();
        async move {
            let step = ctx.step("hang", |attempt| hang(dir.clone(), "step", attempt)).idempotent();
            step.timeout(timeout).deadline(deadline).heartbeat(heartbeat).await
        }
    });
    let launcher = Launcher::new([env!("CARGO_BIN_EXE_windlass"), "sandbox-launch"]).records(dir.join("commands"));
    let mut command = Command::new(["/bin/sh", "-c", "touch command; exec sleep 600"], launcher);
    command.dir = Some(marks(dir));
    command.sandbox.level = Level::BestEffort;
    let command = command.tool(ToolSpec::new("command", ""), Schemas::any());
    let rules = net::Rules { allow: vec![silent.parse().unwrap()], ports: None };
    let client = net::Client::new(net::Options { rules, ..net::Options::default() }).unwrap();
    let request = Request::new("GET", &format!("http://{silent}/")).unwrap();
    let http = request.tool(client, ToolSpec::new("http", ""), Schemas::any());
    let limited = |tool: Tool| {
        let policy = Policy {
            timeout: Some(timeout),
            deadline: Some(deadline),
            heartbeat: Some(heartbeat),
            ..Policy::default()
        };
        tool.effect(Effect::Idempotent).policy(policy)
    };
    vec![limited(function), step, limited(command), limited(http)]
}

/// A program with a tool of each kind, and a server through which a client offers the last one.
async fn open(dir: &Path, silent: &str, limits: Limits) -> Windlass {
    let builder = tools(dir, silent, limits)
        .into_iter()
        .fold(Windlass::open(dir.join("app.db")), |builder, tool| builder.tool(tool));
    let windlass = builder.await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = Client::new(&listener.local_addr().unwrap().to_string());
    let never = std::future::pending::<()>();
    tokio::spawn(windlass_server::serve(listener, windlass.clone(), Options::default(), never));
    let deadline = u64::try_from(limits.deadline.as_millis()).unwrap();
    let tool =
        json!({"name": "client", "description": "never answers", "effect": "idempotent", "deadline_ms": deadline});
    let body = json!({"tools": [tool], "everywhere": true}).to_string();
    let answer = client.insist("POST", "/v1/clients", Some("the-client"), &body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    windlass
}

/// An HTTP server that accepts connections, notes that in the folder, and never answers.
async fn silence(dir: &Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, mark) = (listener.local_addr().unwrap().to_string(), marks(dir).join("http"));
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            std::fs::write(&mark, "").unwrap();
            open.push(stream);
        }
    });
    address
}

/// Waits until the attempt of this kind has begun, or its call waits for its client.
async fn begun(windlass: &Windlass, dir: &Path, kind: &str, run: &RunHandle<Value>) {
    let began = tokio::time::Instant::now();
    loop {
        let state = windlass.run(run.id()).info().await.unwrap().state;
        let is_begun =
            if kind == "client" { matches!(state, RunState::Suspended { .. }) } else { marks(dir).join(kind).exists() };
        if is_begun {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{kind} does not begin: {state:?}");
        tokio::task::yield_now().await;
    }
}

/// The error of a run that failed, and how long after its start it ended.
async fn failed(windlass: &Windlass, run: &RunHandle<Value>) -> (String, Duration) {
    let ended = tokio::time::timeout(PATIENCE, windlass.run(run.id()).outcome()).await;
    let outcome = ended.unwrap_or_else(|_| panic!("run {} does not end", run.id())).unwrap();
    let info = windlass.run(run.id()).info().await.unwrap();
    let took = info.ended.unwrap().since(info.created);
    (outcome.result.unwrap_err().to_string(), took)
}

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(marks(dir.path())).unwrap();
    dir
}

#[tokio::test(flavor = "multi_thread")]
async fn w06_every_kind_of_tool_has_the_same_limits() {
    let short = Duration::from_millis(300);
    let columns = [
        ("timeout", Limits { timeout: short, ..NO_LIMITS }, "the attempt took longer than 300ms"),
        ("deadline", Limits { deadline: short, ..NO_LIMITS }, "the deadline of 300ms passed"),
        ("heartbeat", Limits { heartbeat: short, ..NO_LIMITS }, "no heartbeat for 300ms"),
    ];
    for (column, limits, message) in columns {
        let dir = folder();
        let silent = silence(dir.path()).await;
        let windlass = open(dir.path(), &silent, limits).await;
        for kind in KINDS {
            // A call of a client makes no attempt that could hang: only its deadline limits it.
            if kind == "client" && column != "deadline" {
                continue;
            }
            let run = windlass.start(ToolCall::new(kind, json!({}))).await.unwrap();
            let (error, took) = failed(&windlass, &run).await;
            assert!(error.starts_with("timed_out: "), "{column} of {kind}: {error}");
            assert!(kind == "client" || error.ends_with(message), "{column} of {kind}: {error}");
            assert!(took >= short, "{column} of {kind}: after {took:?}");
        }
        windlass.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn w06_l05_every_kind_of_tool_ends_when_it_is_cancelled() {
    let dir = folder();
    let silent = silence(dir.path()).await;
    let windlass = open(dir.path(), &silent, NO_LIMITS).await;
    for kind in KINDS {
        let run = windlass.start(ToolCall::new(kind, json!({}))).await.unwrap();
        begun(&windlass, dir.path(), kind, &run).await;
        run.cancel("ann", "rain").await.unwrap();
        let (error, _) = failed(&windlass, &run).await;
        assert_eq!(error, "cancelled: rain", "{kind}");
    }
    windlass.shutdown().await.unwrap();
}

/// Runs only in a child: starts a run of each kind and waits to be killed.
#[tokio::test(flavor = "multi_thread")]
async fn child() {
    let (Some(dir), Ok(silent)) = (std::env::var_os(DIR).map(PathBuf::from), std::env::var(SILENT)) else { return };
    let windlass = open(&dir, &silent, Limits { deadline: DEADLINE, ..NO_LIMITS }).await;
    for kind in KINDS {
        let run = windlass.start(ToolCall::new(kind, json!({})).key(kind)).await.unwrap();
        begun(&windlass, &dir, kind, &run).await;
    }
    std::fs::write(dir.join("all"), "").unwrap();
    std::future::pending().await
}

#[tokio::test(flavor = "multi_thread")]
async fn w06_the_deadline_of_every_kind_of_tool_counts_across_a_crash() {
    let dir = folder();
    let silent = silence(dir.path()).await;
    let mut process = Process::new(std::env::current_exe().unwrap());
    process.args(["--exact", "kinds::child", "--nocapture"]).env(DIR, dir.path()).env(SILENT, &silent);
    let mut child = process.stdout(Stdio::null()).spawn().unwrap();
    until("all kinds have begun", || dir.path().join("all").exists().then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    // The deadlines pass while no process drives the runs.
    let began = std::fs::metadata(dir.path().join("all")).unwrap().modified().unwrap();
    until("the deadlines pass", || (SystemTime::now() >= began + DEADLINE).then_some(()));
    let windlass = open(dir.path(), &silent, Limits { deadline: DEADLINE, ..NO_LIMITS }).await;
    let again = SystemTime::now();
    for kind in KINDS {
        let run = windlass.run_by_key(kind).await.unwrap().unwrap();
        let (error, took) = failed(&windlass, &run).await;
        assert!(error.starts_with("timed_out: "), "{kind}: {error}");
        assert!(took >= DEADLINE, "{kind}: after {took:?}");
        let waited = again.elapsed().unwrap();
        assert!(waited < DEADLINE, "the crash began the deadline of {kind} again: {waited:?}");
    }
    windlass.shutdown().await.unwrap();
}
