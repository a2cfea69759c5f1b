//! Every outcome carries its call, and the metadata of the model's provider byte for byte.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use windlass::run::Filter;
use windlass::store::{Durability, SqliteStore};
use windlass::testing::Watched;
use windlass::tool::{Incoming, Metadata, Middleware, Preparation};
use windlass::{Call, Ctx, Outcome, Tool, ToolCall, ToolError, ToolResult, Windlass, limits};
use windlass_core::Runtime;

use crate::kill::{DIR, MOST_POINTS, report, run_child};
use crate::world::{World, on_every_store, tool};

/// Bytes that a JSON library would change: order, repeated and escaped names, number formats, white space.
const RAW: &str =
    "{ \"z\":1.0e2,\n \"a\": [ 1e999, 0.10 ], \"a\":\"\\u00e9\\/\", \"big\":123456789012345678901234567890}";

fn metadata() -> Metadata {
    Metadata::raw(RAW).unwrap()
}

fn echo() -> Tool {
    tool("echo", |args| async move { Ok(args) })
}

fn outcomes(world: &World, runtime: &Runtime, run: windlass::RunId) -> Vec<Outcome> {
    let runtime = runtime.clone();
    world.run(async move { runtime.attach(run).await }).unwrap()
}

/// Doubles `n`.
struct Doubles;

impl Middleware for Doubles {
    fn before(&self, call: &mut Incoming<'_>) -> ToolResult<()> {
        if let Some(n) = call.args()["n"].as_i64() {
            call.set_args(json!({"n": n * 2}));
        }
        Ok(())
    }
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Login {
    user: String,
    #[serde(rename = "password")]
    #[schemars(extend("writeOnly" = true))]
    _password: String,
}

#[test]
fn b13_every_outcome_carries_its_call_as_asked_and_as_executed() {
    on_every_store(|world| {
        let tools = || {
            let prepared = echo().with(|spec| spec.name = "prepared".into());
            let prepared = prepared.prepare(|call: Call| async move {
                Ok(Preparation::go().with_args(json!({"n": call.args()["n"], "prepared": true})))
            });
            [echo().with(|spec| spec.id = "tool-1".into()), prepared]
        };
        let make = |world: &World| {
            let mut config = world.config(tools());
            config.middleware = vec![Arc::new(Doubles)];
            Runtime::new(config)
        };
        let runtime = make(&world);
        let calls = vec![
            ToolCall::new("echo", json!({"n": 1})).with_id("c1"),
            ToolCall::by_id("tool-1", json!({"text": "same"})),
            ToolCall::new("prepared", json!({"n": 2})),
            ToolCall::new("missing", json!({"n": 3})),
        ];
        let caller = runtime.clone();
        let live = world.run(async move { caller.batch(calls, false).await }).unwrap();
        let run = live[0].run;
        let again = outcomes(&world, &runtime, run);
        drop(runtime);
        let world = world.restart();
        let runtime = make(&world);
        let later = outcomes(&world, &runtime, run);
        let expected = [
            ("tool-1", "echo", json!({"n": 1}), json!({"n": 2})),
            ("tool-1", "tool-1", json!({"text": "same"}), json!({"text": "same"})),
            ("echo", "prepared", json!({"n": 2}), json!({"n": 4, "prepared": true})),
            ("missing", "missing", json!({"n": 3}), json!({"n": 3})),
        ];
        for (when, outcomes) in [("live", live), ("attached", again), ("after a restart", later)] {
            assert_eq!(outcomes.len(), expected.len());
            for (outcome, (tool, name, asked, executed)) in outcomes.iter().zip(&expected) {
                let call = &outcome.call;
                assert_eq!((&*call.tool, &*call.name), (*tool, *name), "{when}");
                assert_eq!((&*call.args, &**call.executed()), (asked, executed), "{when}: {name}");
                let shown = (*name != "missing").then(|| asked.clone());
                assert_eq!(call.shown_args(), shown, "{when}: arguments of an unknown tool are not shown");
                let changed = (asked != executed).then(|| executed.clone());
                assert_eq!(call.shown_executed(), changed, "{when}: {name}");
            }
        }
    });
}

#[test]
fn b13_secret_arguments_are_hidden_where_the_call_is_shown() {
    on_every_store(|world| {
        let login = Tool::new("login", "takes a secret", |login: Login| async move { Ok(login.user) });
        let runtime = world.runtime([login]);
        let caller = runtime.clone();
        let args = json!({"user": "ada", "password": "hunter2"});
        let call = ToolCall::new("login", args.clone());
        let live = world.run(async move { caller.call(call).await }).unwrap();
        let attached = outcomes(&world, &runtime, live.run).remove(0);
        for outcome in [live, attached] {
            assert_eq!(*outcome.call.args, args, "the program itself has them");
            let shown = outcome.call.shown_args().unwrap();
            assert!(shown["user"] == "ada" && !shown.to_string().contains("hunter2"), "{shown}");
            assert!(!format!("{outcome:?}").contains("hunter2"), "{outcome:?}");
        }
    });
}

#[test]
fn l26_metadata_comes_back_byte_for_byte_also_after_a_restart() {
    on_every_store(|world| {
        let runtime = world.runtime([echo()]);
        let call = |n: u32| ToolCall::new("echo", json!({"n": n})).metadata(metadata());
        let (one, many, failing) = (runtime.clone(), runtime.clone(), runtime.clone());
        let outcome = world.run(async move { one.call(call(1)).await }).unwrap();
        let plain = ToolCall::new("echo", json!({}));
        let value = ToolCall::new("echo", json!({})).metadata(json!({"id": "rs_1"}));
        let batch = world.run(async move { many.batch(vec![call(2), plain, value], false).await }).unwrap();
        let refused = ToolCall::new("nothing", json!({})).metadata(metadata());
        let refused = world.run(async move { failing.call(refused).await }).unwrap();
        assert!(refused.error().is_some());
        let text = |outcome: &Outcome| outcome.call.metadata.as_ref().map(|metadata| metadata.as_str().to_owned());
        let expected = vec![Some(RAW.to_owned()), None, Some(r#"{"id":"rs_1"}"#.to_owned())];
        assert_eq!(batch.iter().map(text).collect::<Vec<_>>(), expected);
        assert_eq!((text(&outcome).as_deref(), text(&refused).as_deref()), (Some(RAW), Some(RAW)));
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([echo()]);
        assert_eq!(outcomes(&world, &runtime, batch[0].run).iter().map(text).collect::<Vec<_>>(), expected);
        for run in [outcome.run, refused.run] {
            assert_eq!(text(&outcomes(&world, &runtime, run)[0]).as_deref(), Some(RAW));
        }
    });
}

#[test]
fn l26_metadata_is_not_part_of_the_work_and_has_a_size_limit() {
    on_every_store(|world| {
        let runtime = world.runtime([echo()]);
        let keyed = |metadata: Metadata| ToolCall::new("echo", json!({})).key("k").metadata(metadata);
        let (first, again, large) = (runtime.clone(), runtime.clone(), runtime);
        let run = world.run(async move { first.call(keyed(metadata())).await }).unwrap().run;
        let repeated = world.run(async move { again.call(keyed(json!(2).into())).await }).unwrap();
        assert_eq!(repeated.run, run, "the same work under the same key");
        assert_eq!(repeated.call.metadata, Some(metadata()), "as it was first given");
        let most = "x".repeat(limits::METADATA_BYTES - 2);
        let over = format!("{most}x");
        for (text, fits) in [(most, true), (over, false)] {
            let caller = large.clone();
            let call = ToolCall::new("echo", json!({})).metadata(json!(text));
            let outcome = world.run(async move { caller.call(call).await }).unwrap();
            let why = outcome.error().map(ToString::to_string).unwrap_or_default();
            assert_eq!(outcome.error().is_none(), fits, "{why}");
            assert!(fits || why.contains("metadata of the call is larger than 262144 bytes"), "{why}");
        }
        assert!(Metadata::raw("{not json").is_err());
    });
}

async fn open(dir: &Path) -> Windlass {
    let store = SqliteStore::open_with(dir.join("app.db"), Durability::Relaxed).expect("the store opens");
    let builder = Windlass::with_store(Arc::new(Watched::new(Arc::new(store), report)));
    let whose = Tool::with_call("whose", "tells for whom it acts", |call: Call, _: Value| async move {
        Ok(json!([call.principal(), call.cause()]))
    });
    let trip = Tool::durable_fn("trip", "starts a run", |mut ctx: Ctx, _: Value| async move {
        let child = ctx.spawn(ToolCall::new("whose", json!({}))).await?;
        let joined: Value = ctx.join(&child).await?;
        ctx.step("note", |_| async { Ok::<_, ToolError>(()) }).idempotent().await?;
        Ok(json!([joined, ctx.principal(), ctx.cause()]))
    });
    let whose = whose.effect(windlass::Effect::Idempotent);
    builder.tool(whose).tool(trip).await.expect("the runtime opens")
}

/// Runs only in a child: starts its work, or continues it.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let executor = tokio::runtime::Runtime::new().expect("an executor");
    executor.block_on(async {
        let windlass = open(&dir).await;
        let call = ToolCall::new("trip", json!({})).key("k").principal("ada").cause("message 7").metadata(metadata());
        let outcome = windlass.start(call).await.expect("it is accepted").outcome().await.expect("it ends");
        let text = outcome.call.metadata.as_ref().map(|metadata| metadata.as_str().to_owned());
        let runs = windlass.list(Filter { cause: Some("message 7".into()), ..Filter::principal("ada") }, None, 9).await;
        let runs = runs.expect("the runs").len();
        println!("\nresult {}", json!([outcome.value(), text, runs]));
    });
    std::process::exit(0);
}

#[test]
fn l26_l28_b13_metadata_principal_and_cause_survive_every_kill() {
    let expected = json!([[["ada", "message 7"], "ada", "message 7"], RAW, 2]);
    for kill_at in 0..MOST_POINTS {
        let dir = tempfile::tempdir().expect("a directory");
        let (first, before) = run_child("outcomes::child", dir.path(), Some(kill_at));
        if let Some(first) = first {
            assert_eq!(first, expected);
            assert!(kill_at >= 4, "the child must be killed somewhere: {before:?}");
            return;
        }
        let (second, after) = run_child("outcomes::child", dir.path(), None);
        assert_eq!(second.as_ref(), Some(&expected), "killed at {:?}; then {after:?}", before.last());
    }
    panic!("the scenario has more than {MOST_POINTS} points");
}
