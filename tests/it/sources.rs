//! Tools that a source finds but does not list: they are called, recorded by id, and found again after a crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use windlass::run::{Hold, RunState};
use windlass::testing::{CrashMatrix, Ledger};
use windlass::tool::{Atomic, Body, Schemas, Source, ToolRef};
use windlass::{Call, Ctx, Effect, Output, Tool, ToolCall, ToolError, ToolResult, ToolSpec};
use windlass_core::Runtime;

use crate::world::{Counter, ScratchDisk, World, on_every_store};

/// Finds `nap` (id `remote.nap`, a durable body) and `lookup`, and lists neither.
#[derive(Clone, Default)]
struct Remote {
    down: Arc<AtomicBool>,
    found: Counter,
    schemas: Counter,
}

impl Remote {
    fn lookup(&self) -> Tool {
        let schemas = self.schemas.clone();
        let resolve = move |_: &ToolSpec| {
            schemas.add();
            Ok(Schemas::input(json!({"type": "object", "required": ["key"]})))
        };
        let body = Body::Atomic(Arc::new(Found));
        Tool::lazy(ToolSpec::new("lookup", "Of a remote catalogue."), resolve, body).effect(Effect::Readonly)
    }
}

struct Found;

impl Atomic for Found {
    fn attempt(&self, _: Call) -> BoxFuture<'static, ToolResult<Output>> {
        Box::pin(async { Ok(Output::value(json!("found"))) })
    }
}

impl Source for Remote {
    fn list(&self) -> ToolResult<Vec<Tool>> {
        Ok(Vec::new())
    }

    fn find(&self, tool: &ToolRef) -> ToolResult<Option<Tool>> {
        self.found.add();
        if self.down.load(Ordering::Relaxed) {
            return Err(ToolError::unavailable("connection refused"));
        }
        Ok(match (tool, tool.as_str()) {
            (ToolRef::Name(_), "nap") | (ToolRef::Id(_), "remote.nap") => Some(nap()),
            (_, "lookup") => Some(self.lookup()),
            _ => None,
        })
    }
}

fn nap() -> Tool {
    let body = |mut ctx: Ctx, _: Value| async move {
        ctx.sleep(Duration::from_secs(1)).await?;
        ctx.call_json("lookup", json!({"key": 1})).await
    };
    Tool::durable_fn("nap", "Sleeps, then looks something up.", body).id("remote.nap")
}

fn runtime(world: &World, remote: &Remote) -> Runtime {
    let mut config = world.config([]);
    config.suspend_after = Duration::ZERO;
    config.toolbox.mount_source("remote", remote.clone()).unwrap();
    Runtime::new(config)
}

#[test]
fn l03_calls_of_unlisted_tools_resolve_each_tool_and_schema_once() {
    on_every_store(|world| {
        let remote = Remote::default();
        let runtime = runtime(&world, &remote);
        let outcomes = world.run(async move {
            let calls = [json!({"key": 1}), json!({"key": 2}), json!({})].map(|args| ToolCall::new("lookup", args));
            let mut outcomes = runtime.batch(calls.to_vec(), false).await.unwrap();
            outcomes.push(runtime.call(ToolCall::new("lookup", json!({"key": 3}))).await.unwrap());
            outcomes.push(runtime.call(ToolCall::to(ToolRef::Id("lookup".into()), json!({"key": 4}))).await.unwrap());
            outcomes
        });
        let kinds: Vec<&str> = outcomes.iter().map(|o| o.error().map_or("ok", ToolError::kind)).collect();
        assert_eq!(kinds, ["ok", "ok", "invalid_arguments", "ok", "ok"]);
        assert_eq!((remote.found.get(), remote.schemas.get()), (1, 1));
    });
}

#[test]
fn l03_a_run_of_an_unlisted_tool_is_found_by_id_after_a_restart_or_held_until_its_source_answers() {
    on_every_store(|world| {
        let remote = Remote::default();
        let first = runtime(&world, &remote);
        let run = first.start_unconfirmed(ToolCall::new("nap", json!({}))).unwrap();
        world.pass(Duration::from_millis(500));
        drop(first);
        let world = world.restart();
        remote.down.store(true, Ordering::Relaxed);
        let second = runtime(&world, &remote);
        let recovering = second.clone();
        world.run(async move { recovering.recover().await }).unwrap();
        world.pass(Duration::from_secs(2));
        let asking = second.clone();
        let state = world.run(async move { asking.info(run).await.unwrap().unwrap().state });
        assert!(
            matches!(&state, RunState::Held { hold: Hold::ToolMissing { tool, .. } } if &**tool == "remote.nap"),
            "{state:?}"
        );
        remote.down.store(false, Ordering::Relaxed);
        let outcome = world.run(async move {
            second.resume(run).await.unwrap();
            second.attach(run).await.unwrap().remove(0).for_model()
        });
        assert_eq!(outcome, json!("found"));
    });
}

#[test]
fn l03_unlisted_tools_survive_every_crash() {
    for disk in [false, true] {
        let mut matrix = CrashMatrix::new(|_: &Ledger| Vec::new())
            .config(|config| {
                config.suspend_after = Duration::ZERO;
                config.toolbox.mount_source("remote", Remote::default()).unwrap();
            })
            .call(ToolCall::new("nap", json!({})))
            .call(ToolCall::new("lookup", json!({"key": 1})));
        if disk {
            matrix = matrix.disk(ScratchDisk::new);
        }
        assert_eq!(matrix.run().outcome, json!(["found", "found"]));
    }
}
