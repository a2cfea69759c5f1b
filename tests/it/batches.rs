//! What is recorded about a batch: its identity, and the order in which its calls settled, over crashes and real kills.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use windlass::run::{Filter, Happening, Start};
use windlass::store::{Durability, SqliteStore};
use windlass::testing::{CrashMatrix, Ledger, Watched};
use windlass::tool::{Concurrency, batch_identity};
use windlass::{Ctx, Effect, RunId, Tool, ToolCall, ToolError, Windlass};
use windlass_core::testing::Sim;
use windlass_core::time::Clock;
use windlass_core::{RecordedBatch, Runtime};

use crate::kill::{DIR, report, run_watched};
use crate::world::{ScratchDisk, World, on_every_store, tool};

fn recorded(world: &World, runtime: &Runtime, run: RunId) -> RecordedBatch {
    let runtime = runtime.clone();
    world.run(async move { runtime.recorded_batch(run).await.unwrap().expect("it is a batch") })
}

fn get(name: &str) -> Tool {
    tool(name, |_| async { Ok(1) }).effect(Effect::Readonly)
}

#[test]
fn l04_a_batch_is_recorded_with_an_identity_of_tool_ids_however_it_is_submitted() {
    on_every_store(|world| {
        let both = Tool::durable_fn("both", "", |mut ctx: Ctx, _: Value| async move {
            let first = ToolCall::<Value>::new("get", json!({"x": 1, "y": 2})).with_id("c1");
            let second = ToolCall::<Value>::new("put", json!({}));
            Ok(ctx.call_all((first, second)).await?.0)
        });
        let tools = [get("get").id("http.get"), tool("put", |_| async { Ok(2) }), both];
        let runtime = world.runtime(tools);
        let calls = |by_id: bool| {
            let args: Value = serde_json::from_str(r#"{"y": 2, "x": 1}"#).unwrap();
            let first = if by_id { ToolCall::by_id("http.get", args) } else { ToolCall::new("get", args) };
            vec![first.with_id("c1"), ToolCall::new("put", json!({}))]
        };
        let identity = batch_identity(runtime.toolbox(), &calls(false));
        assert_eq!(batch_identity(runtime.toolbox(), &calls(true)), identity, "the id counts, not the name");
        assert_ne!(batch_identity(runtime.toolbox(), &calls(false)[..1]), identity);
        let (going, by_name, by_id) = (runtime.clone(), calls(false), calls(true));
        let runs = world.run(async move {
            let direct = going.batch(by_name.clone(), false).await.unwrap()[0].run;
            // A turn is written to the store first.
            let how = Start { session: Some("s".into()), turn: windlass::run::Turn::Queue, ..Start::default() };
            let queued = going.start_batch(by_id, true, how).await.unwrap();
            going.attach(queued).await.unwrap();
            let nested = going.call(ToolCall::new("both", json!({}))).await.unwrap();
            assert!(nested.result.is_ok(), "{:?}", nested.result);
            let nested = nested.run;
            [direct, queued, nested]
        });
        for run in &runs[..2] {
            let batch = RecordedBatch { identity: Some(identity), settled: vec![0, 1] };
            assert_eq!(recorded(&world, &runtime, *run), batch, "{run}");
        }
        let tracing = runtime.clone();
        let trace = world.run(async move { tracing.trace(runs[2]).await.unwrap() });
        let shown = trace.activities.iter().find_map(|activity| match &activity.what {
            Happening::OperationStarted { identity, .. } => *identity,
            _ => None,
        });
        assert_eq!(shown, Some(identity), "the trace shows it");
    });
}

#[test]
fn l04_e26_secrets_do_not_count_for_the_identity() {
    let world = World::new(crate::world::Kind::Memory);
    let schema = json!({"type": "object", "properties": {"password": {"type": "string", "writeOnly": true}}});
    let login = Tool::external("login", "", windlass::tool::Schemas::input(schema));
    let runtime = world.runtime([login]);
    let identity = |password: &str, user: &str| {
        let call = ToolCall::new("login", json!({"password": password, "user": user}));
        batch_identity(runtime.toolbox(), [&call])
    };
    assert_eq!(identity("hunter2", "ada"), identity("hunter3", "ada"), "a digest could be guessed");
    assert_ne!(identity("hunter2", "ada"), identity("hunter2", "bob"));
}

/// A tool whose calls in a batch overlap although they may change something.
fn parallel(tool: Tool) -> Tool {
    tool.with(|spec| spec.guards.concurrency = Concurrency::Parallel)
}

/// Takes as many milliseconds as its argument says.
fn slow(sim: &Sim) -> Tool {
    let sim = sim.clone();
    let body = move |args: Value| {
        let sim = sim.clone();
        async move {
            sim.sleep(Duration::from_millis(args["ms"].as_u64().unwrap())).await;
            Ok(1)
        }
    };
    parallel(tool("slow", body).effect(Effect::Idempotent))
}

#[test]
fn l04_the_order_of_settlement_survives_a_crash_inside_the_batch() {
    // After the crash, the calls that are made again end in the order of their times: 1 before 3 before 0.
    for (dies_at, expected) in [(5, [1, 2, 3, 0]), (15, [1, 2, 3, 0]), (25, [1, 2, 3, 0]), (32, [1, 2, 3, 0])] {
        on_every_store(|world| {
            let start = |world: &World| world.runtime([slow(&world.sim)]);
            let runtime = start(&world);
            let calls = [40, 10, 20, 30].map(|ms| ToolCall::new("slow", json!({"ms": ms}))).to_vec();
            let submitting = runtime.clone();
            let run = world.run(async move { submitting.start_batch(calls, false, Start::default()).await.unwrap() });
            world.pass(Duration::from_millis(dies_at));
            drop(runtime);
            let world = world.restart();
            let runtime = start(&world);
            let before = recorded(&world, &runtime, run).settled;
            let going = runtime.clone();
            world.run(async move {
                going.recover().await.unwrap();
                going.attach(run).await.unwrap();
            });
            let after = recorded(&world, &runtime, run);
            assert_eq!(after.settled, expected);
            assert_eq!(after.settled[..before.len()], before, "died at {dies_at}");
            assert_eq!(before.len(), usize::try_from(dies_at / 10).unwrap().min(3), "died at {dies_at}");
            assert!(after.identity.is_some());
        });
    }
}

#[test]
fn l04_calls_skipped_after_a_crash_name_the_failure_that_was_recorded_first() {
    let check = |disk: bool| {
        let fails = |_: &Ledger| {
            let body = |mut ctx: Ctx, args: Value| async move {
                ctx.sleep(Duration::from_secs(args["after"].as_u64().unwrap())).await?;
                if args["fails"] == true { Err(ToolError::failed("broken")) } else { Ok(1) }
            };
            let exclusive = Tool::new("last", "", |_: Value| async { Ok(1) });
            let exclusive = exclusive.with(|spec| spec.guards.concurrency = Concurrency::Exclusive);
            vec![Tool::durable_fn("work", "", body), exclusive]
        };
        let mut matrix = CrashMatrix::new(fails)
            .config(|config| config.suspend_after = Duration::ZERO)
            .stop_on_failure()
            .call(ToolCall::new("work", json!({"after": 20, "fails": true})))
            .call(ToolCall::new("work", json!({"after": 30})))
            .call(ToolCall::new("work", json!({"after": 10, "fails": true})))
            .call(ToolCall::new("last", json!({})));
        if disk {
            matrix = matrix.disk(ScratchDisk::new);
        }
        let outcome = matrix.run().outcome;
        let skipped = outcome[3]["error"]["message"].as_str().unwrap();
        assert!(skipped.contains("call 2 (`work`) failed"), "{outcome}");
    };
    check(false);
    check(true);
}

fn second_life(dir: &Path) -> PathBuf {
    dir.join("second")
}

/// In the first life, `first` waits for `last`, and `last` for `middle`. In the second one, nothing waits.
fn chained(dir: &Path) -> Vec<Tool> {
    let waits = !second_life(dir).exists();
    let [after_middle, after_last] = [(); 2].map(|()| Arc::new(Notify::new()));
    let make = |name: &str, waits_for: Option<Arc<Notify>>, then: Option<Arc<Notify>>| {
        let body = move |_: Value| {
            let (waits_for, then) = (waits_for.clone().filter(|_| waits), then.clone());
            async move {
                if let Some(event) = waits_for {
                    event.notified().await;
                }
                then.iter().for_each(|event| event.notify_one());
                Ok(json!(1))
            }
        };
        parallel(Tool::new(name, "", body).effect(Effect::Idempotent))
    };
    vec![
        make("first", Some(after_last.clone()), None),
        make("middle", None, Some(after_middle.clone())),
        make("last", Some(after_middle), Some(after_last)),
    ]
}

/// Runs only in a child: makes the batch, or continues it.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let executor = tokio::runtime::Runtime::new().expect("an executor");
    executor.block_on(async {
        let store = SqliteStore::open_with(dir.join("app.db"), Durability::Relaxed).expect("the store opens");
        let builder = Windlass::with_store(Arc::new(Watched::new(Arc::new(store), report)));
        let windlass = chained(&dir).into_iter().fold(builder, windlass::Builder::tool).await.expect("it opens");
        let known = windlass.list(Filter::default(), None, 2).await.expect("the runs");
        let run = match known.first() {
            Some(info) => info.run,
            None => {
                let calls = ["first", "middle", "last"].map(|name| ToolCall::new(name, json!({}))).to_vec();
                windlass.runtime().start_batch(calls, false, Start::default()).await.expect("it starts")
            }
        };
        windlass.runtime().attach(run).await.expect("it ends");
        println!("\nresult {}", shown(&windlass, run).await);
    });
    std::process::exit(0);
}

async fn shown(windlass: &Windlass, run: RunId) -> Value {
    let batch = windlass.runtime().recorded_batch(run).await.expect("the journal").expect("a batch");
    json!([batch.settled, batch.identity.map(|identity| identity.to_string())])
}

/// What the file says about the batch while no process has it open.
fn left_behind(dir: &Path) -> Option<Value> {
    let executor = tokio::runtime::Runtime::new().expect("an executor");
    executor.block_on(async {
        let windlass = Windlass::open(dir.join("app.db")).idle().await.expect("the file opens");
        let run = windlass.list(Filter::default(), None, 2).await.expect("the runs").first()?.run;
        let shown = shown(&windlass, run).await;
        windlass.shutdown().await.expect("it closes");
        Some(shown)
    })
}

#[test]
fn l04_every_kill_inside_a_batch_keeps_its_identity_and_the_order_of_settlement() {
    let mut interrupted = 0;
    for kill_at in 0..crate::kill::MOST_POINTS {
        let dir = tempfile::tempdir().expect("a directory");
        let mut points = 0;
        let first = run_watched("batches::child", dir.path(), 0, |_| {
            points += 1;
            points <= kill_at
        });
        if first.is_some() {
            assert!(interrupted > 0, "no kill left some calls settled and some not");
            return;
        }
        let before = left_behind(dir.path());
        std::fs::write(second_life(dir.path()), "").expect("it is written");
        let after = run_watched("batches::child", dir.path(), 0, |_| true).expect("the second life ends");
        let order = |shown: &Value| shown[0].as_array().unwrap().clone();
        assert_eq!(order(&after).len(), 3, "{after}");
        if let Some(before) = before {
            assert_eq!(after[1], before[1], "killed at {kill_at}");
            let settled = order(&before);
            assert_eq!(order(&after)[..settled.len()], settled, "killed at {kill_at}: {before} became {after}");
            interrupted += u32::from(settled.len() == 1 && settled[0] != 0);
        }
    }
    panic!("the scenario has more points");
}
