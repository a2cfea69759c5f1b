//! A server with a sample toolbox on a file of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windlass::store::Durability;
use windlass::tool::Schemas;
use windlass::{Ctx, Effect, Tool, ToolError, ToolResult, Windlass};
use windlass_server::{Options, serve};

use crate::net::{Client, until};

/// Counts the external effects of tools.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<AtomicU32>);

impl Ledger {
    pub(crate) fn add(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) ledger: Ledger,
    pub(crate) windlass: Windlass,
    dir: Arc<TempDir>,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<std::io::Result<()>>>,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        Self::open(Arc::new(dir), Ledger::default(), options).await
    }

    async fn open(dir: Arc<TempDir>, ledger: Ledger, options: Options) -> Self {
        let windlass = builder(&dir.path().join("app.db"), &ledger).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async move { drop(stopped.await) };
        let serving = tokio::spawn(serve(listener, windlass.clone(), options, stopped));
        Self { client, ledger, windlass, dir, stop: Some(stop), serving: Some(serving) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a shutdown without waiting for it.
    pub(crate) fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Shuts the server down and waits for it.
    pub(crate) async fn stop(&mut self) {
        self.begin_stop();
        let serving = self.serving.take().expect("the server is running");
        tokio::time::timeout(crate::net::TIMEOUT, serving).await.expect("in time").unwrap().unwrap();
    }

    /// Shuts the server down and starts another one on the same file.
    pub(crate) async fn restart(mut self, options: Options) -> Self {
        self.stop().await;
        let (dir, ledger) = (self.dir.clone(), self.ledger.clone());
        drop(self);
        Self::open(dir, ledger, options).await
    }

    /// Starts another server on the file of one that was shut down.
    pub(crate) async fn restart_stopped(self, options: Options) -> Self {
        let (dir, ledger) = (self.dir.clone(), self.ledger.clone());
        drop(self);
        Self::open(dir, ledger, options).await
    }

    /// Makes a call and does not wait for it; returns its run.
    pub(crate) async fn start(&self, tool: &str, args: Value) -> String {
        let call = json!({"tool": tool, "args": args, "wait_ms": 0});
        let answer = self.client.post("/v1/calls", call).await.is(202);
        answer["run"].as_str().unwrap().to_owned()
    }

    /// Makes a call and waits for its outcome.
    pub(crate) async fn call(&self, tool: &str, args: Value) -> Value {
        self.client.post("/v1/calls", json!({"tool": tool, "args": args})).await.is(200)
    }

    /// The only item of the inbox, once there is one.
    pub(crate) async fn item(&self) -> Value {
        until(|| async {
            let page = self.client.get("/v1/inbox").await.is(200);
            page["items"].as_array().unwrap().first().cloned()
        })
        .await
    }

    /// A run, once it is in this state.
    pub(crate) async fn run_in(&self, run: &str, state: &str) -> Value {
        self.run_in_as(&self.client, run, state).await
    }

    /// The same, as this client sees it.
    pub(crate) async fn run_in_as(&self, client: &Client, run: &str, state: &str) -> Value {
        until(|| async {
            let found = client.get(&format!("/v1/runs/{run}")).await.is(200);
            (found["state"] == state).then_some(found)
        })
        .await
    }
}

pub(crate) fn builder(path: &std::path::Path, ledger: &Ledger) -> windlass::Builder {
    let mut builder = Windlass::open(path).durability(Durability::Relaxed).suspend_after(Duration::from_millis(5));
    for tool in tools(ledger) {
        builder = builder.tool(tool);
    }
    builder
}

fn any(name: &str, description: &str, f: impl Fn(Value) -> ToolResult<Value> + Send + Sync + 'static) -> Tool {
    Tool::new(name, description, move |args: Value| std::future::ready(f(args)))
}

fn tools(ledger: &Ledger) -> Vec<Tool> {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                        "required": ["a", "b"], "additionalProperties": false});
    let add = any("add", "Add two numbers.", |args| {
        Ok(json!(args["a"].as_i64().unwrap_or(0) + args["b"].as_i64().unwrap_or(0)))
    });
    let add = Tool::atomic(add.spec().clone(), Schemas::input(schema), Adds).effect(Effect::Readonly);
    let (charged, paid) = (ledger.clone(), ledger.clone());
    let charge = any("charge", "Charge a card.", move |args| Ok(json!({"charge": charged.add(), "of": args["cents"]})));
    let secret = json!({"type": "object", "properties": {"cents": {"type": "integer"},
                        "pin": {"type": "string", "writeOnly": true}}});
    let pay = Tool::atomic(any("pay", "Pay.", |_| Ok(Value::Null)).spec().clone(), Schemas::input(secret), Pays(paid))
        .approval_when("args.cents > 100");
    let hang = Tool::new("hang", "Never ends.", |_: Value| std::future::pending::<ToolResult<Value>>());
    let slow = Tool::new("slow", "Takes a while.", |args: Value| async move {
        tokio::time::sleep(Duration::from_millis(args["ms"].as_u64().unwrap_or(100))).await;
        Ok(json!("done"))
    })
    .effect(Effect::Readonly);
    let fail = any("fail", "Fails.", |_| Err(ToolError::rejected("no_luck", "not today")));
    let ask = Tool::durable_fn("ask", "Asks a person.", |mut ctx: Ctx, args: Value| async move {
        let name = args["name"].as_str().unwrap_or("word").to_owned();
        let said: Value = ctx.wait(name.as_str()).await?;
        Ok(json!({"said": said}))
    });
    let keyed = Tool::durable_fn("keyed", "Asks a person, one call at a time.", |mut ctx: Ctx, _: Value| async move {
        ctx.wait::<Value>("word").await
    });
    let keyed = keyed.key(windlass::tool::spec::KeyExpression::parse("'till'").expect("it is valid"));
    let steps = Tool::durable_fn("steps", "Does things in steps.", |mut ctx: Ctx, args: Value| async move {
        for n in 0..args["n"].as_u64().unwrap_or(3) {
            let name = "step".to_owned() + &".".repeat(args["pad"].as_u64().unwrap_or(0) as usize);
            let _: u64 = ctx.step(name.as_str(), move |_| async move { Ok(n) }).await?;
        }
        Ok(json!("stepped"))
    });
    let mail = any("mail", "Needs a connection.", |_| Ok(json!("sent")))
        .with(|spec| spec.guards.connection = Some("post".into()));
    let big = any("big", "Says much.", |args| Ok(json!("y".repeat(args["bytes"].as_u64().unwrap_or(0) as usize))))
        .effect(Effect::Readonly);
    let doubt = any("doubt", "Cannot tell.", |_| Err(ToolError::in_doubt("no answer came")));
    vec![big, doubt, keyed, add, charge, pay, hang, slow, fail, ask, steps, mail]
}

struct Adds;

impl windlass::tool::Atomic for Adds {
    fn attempt(
        &self,
        call: windlass::Call,
    ) -> std::pin::Pin<Box<dyn Future<Output = ToolResult<windlass::Output>> + Send>> {
        let sum = call.args()["a"].as_i64().unwrap_or(0) + call.args()["b"].as_i64().unwrap_or(0);
        Box::pin(std::future::ready(Ok(windlass::Output::value(json!(sum)))))
    }
}

struct Pays(Ledger);

impl windlass::tool::Atomic for Pays {
    fn attempt(
        &self,
        _: windlass::Call,
    ) -> std::pin::Pin<Box<dyn Future<Output = ToolResult<windlass::Output>> + Send>> {
        let paid = self.0.add();
        Box::pin(std::future::ready(Ok(windlass::Output::value(json!({"paid": paid})))))
    }
}
