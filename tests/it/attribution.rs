//! Who a run acts for and what caused it: kept, inherited, shown, and visible to policy.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::Blocked;
use windlass::run::{Cursor, Cut, Filter, Happening, RunInfo};
use windlass::tool::spec::KeyExpression;
use windlass::{Call, Ctx, Effect, Error, Output, RunId, Tool, ToolCall};
use windlass_core::Runtime;

use crate::world::{World, on_every_store, tool};

fn info(world: &World, runtime: &Runtime, run: RunId) -> RunInfo {
    let runtime = runtime.clone();
    world.run(async move { runtime.info(run).await }).unwrap().unwrap()
}

fn named(info: &RunInfo) -> (Option<&str>, Option<&str>) {
    (info.principal.as_deref(), info.cause.as_deref())
}

const BOTH: (Option<&str>, Option<&str>) = (Some("ada"), Some("message 7"));

/// What an atomic body sees; it starts another run with its outcome.
fn leaf() -> Tool {
    let seen = Tool::with_call("leaf", "tells for whom it acts", |call: Call, args: Value| async move {
        let output = Output::value(json!([call.principal(), call.cause()]));
        Ok(if args["last"] == true { output } else { output.start(ToolCall::new("leaf", json!({"last": true}))) })
    });
    seen.effect(Effect::Readonly)
}

/// Spawns a run, continues in a second generation, and tells what it sees there.
fn trunk() -> Tool {
    Tool::durable_fn("trunk", "starts other runs", |mut ctx: Ctx, args: Value| async move {
        if args["again"] != true {
            let child = ctx.spawn(ToolCall::new("leaf", json!({"last": true}))).await?;
            ctx.join(&child).await?;
            return ctx.continue_as(json!({"again": true})).await;
        }
        let called: Value = ctx.call(ToolCall::new("leaf", json!({}))).await?;
        let own = json!([ctx.principal(), ctx.cause()]);
        Ok(json!([own, called]))
    })
}

#[test]
fn l28_principal_and_cause_are_kept_and_inherited_by_every_run_that_follows() {
    on_every_store(|world| {
        let runtime = world.runtime([trunk(), leaf()]);
        let caller = runtime.clone();
        let call = ToolCall::new("trunk", json!({})).principal("ada").cause("message 7").session("s");
        let outcome = world.run(async move { caller.call(call).await }).unwrap();
        let own = json!(["ada", "message 7"]);
        assert_eq!(outcome.value(), Some(&json!([own, own])), "bodies see both, in each generation");
        world.pass(Duration::from_secs(1));

        let lister = runtime.clone();
        let runs = world.run(async move { lister.list(Filter::default(), None, 99).await }).unwrap();
        assert_eq!(runs.len(), 3, "the run, the one it spawned, and the one that an outcome started");
        assert!(runs.iter().all(|info| named(info) == BOTH), "{runs:?}");
        assert_eq!(info(&world, &runtime, outcome.run).generation, 1);

        let (forker, run) = (runtime.clone(), outcome.run);
        let fork = world.run(async move { forker.fork(run, Cut::Start, None).await }).unwrap();
        world.pass(Duration::from_secs(1));
        assert_eq!(named(&info(&world, &runtime, fork)), BOTH);

        let exporter = runtime.clone();
        let document = world.run(async move { exporter.export(run).await }).unwrap().to_string();
        let other = World::new(crate::world::Kind::Memory);
        let importer = other.runtime([trunk(), leaf()]);
        let reader = importer.clone();
        let imported = other.run(async move { importer.import(&document).await }).unwrap();
        assert_eq!(named(&info(&other, &reader, imported)), BOTH);

        drop((runtime, reader));
        let world = world.restart();
        let runtime = world.runtime([trunk(), leaf()]);
        let all = runtime.clone();
        let of_ada = world.run(async move { all.list(Filter::principal("ada"), None, 99).await }).unwrap();
        assert!(of_ada.len() >= 4 && of_ada.iter().all(|info| named(info) == BOTH), "{of_ada:?}");
    });
}

#[test]
fn l28_batches_and_starts_name_both_and_a_plain_call_names_neither() {
    let executor = tokio::runtime::Runtime::new().unwrap();
    executor.block_on(async {
        let windlass = windlass::Windlass::in_memory().tool(leaf()).await.unwrap();
        let call = || ToolCall::new("leaf", json!({"last": true}));
        let seen = json!(["ada", "message 7"]);
        let batch = windlass.batch([call(), call()]).principal("ada").cause("message 7").key("k").await.unwrap();
        assert!(batch.iter().all(|outcome| outcome.value() == Some(&seen)), "{batch:?}");
        let started = windlass.start(call().principal("ada").cause("message 7")).await.unwrap();
        assert_eq!(started.clone().await.unwrap(), seen);
        assert_eq!(windlass.call(call()).await.unwrap(), json!([null, null]));
        assert_eq!(named(&started.info().await.unwrap()), BOTH);
        assert_eq!(windlass.run(batch[0].run).info().await.unwrap().key.as_deref(), Some("k"));
    });
}

#[test]
fn l28_a_principal_or_cause_that_is_not_a_short_visible_text_is_refused() {
    on_every_store(|world| {
        let runtime = world.runtime([leaf()]);
        let long = "x".repeat(256);
        for (call, what) in [
            (ToolCall::new("leaf", json!({})).principal(""), "`principal`"),
            (ToolCall::new("leaf", json!({})).principal("a\nb"), "`principal`"),
            (ToolCall::new("leaf", json!({})).principal(long.as_str()), "`principal`"),
            (ToolCall::new("leaf", json!({})).cause(" 7"), "`cause`"),
        ] {
            let caller = runtime.clone();
            let refused = world.run(async move { caller.call(call).await }).unwrap_err();
            assert!(
                matches!(&refused, Error::Invalid(why) if why.contains(what) && why.contains("1 to 255")),
                "{refused}"
            );
        }
        let body = Tool::durable_fn("body", "names a principal inside", |mut ctx: Ctx, _: Value| async move {
            ctx.call(ToolCall::new("leaf", json!({})).principal("bob")).await
        });
        let runtime = world.another([body, leaf()]);
        let caller = Runtime::new(runtime);
        let outcome = world.run(async move { caller.call(ToolCall::new("body", json!({}))).await }).unwrap();
        let error = outcome.error().unwrap().to_string();
        assert!(error.contains("a principal or a cause belongs to a whole run"), "{error}");
    });
}

#[test]
fn l28_a_key_names_work_of_one_principal_only() {
    on_every_store(|world| {
        let runtime = world.runtime([leaf()]);
        let call = |principal: &str| ToolCall::new("leaf", json!({"last": true})).key("k").principal(principal);
        let (first, again, other) = (runtime.clone(), runtime.clone(), runtime);
        let run = world.run(async move { first.call(call("ada")).await }).unwrap().run;
        assert_eq!(world.run(async move { again.call(call("ada").cause("another")).await }).unwrap().run, run);
        let refused = world.run(async move { other.call(call("bob")).await }).unwrap_err();
        assert!(matches!(&refused, Error::KeyReused { what, .. } if what.contains("another principal")), "{refused}");
    });
}

#[test]
fn l28_events_and_explanations_name_principal_and_cause() {
    on_every_store(|world| {
        let runtime = world.runtime([leaf().approval_when("true")]);
        let starter = runtime.clone();
        let call = ToolCall::new("leaf", json!({"last": true})).principal("ada").cause("message 7");
        let run = world.run(async move { starter.start_call(call).await }).unwrap();
        world.pass(Duration::from_secs(1));
        let (watcher, tracer, explainer) = (runtime.clone(), runtime.clone(), runtime);
        let first = world.run(async move { watcher.watch(run, Cursor::START).await.unwrap().next().await });
        let traced = world.run(async move { tracer.trace(run).await }).unwrap().activities.remove(0);
        for activity in [first.unwrap().unwrap(), traced] {
            let Happening::RunStarted { principal, cause, .. } = activity.what else { panic!("{activity:?}") };
            assert_eq!((principal.as_deref(), cause.as_deref()), BOTH);
        }
        let explained = world.run(async move { explainer.explain(run).await }).unwrap();
        assert_eq!((explained.principal.as_deref(), explained.cause.as_deref()), BOTH);
    });
}

#[test]
fn l28_a_watch_of_a_session_can_show_one_principal_only() {
    on_every_store(|world| {
        let runtime = world.runtime([leaf()]);
        for (principal, cause) in [("ada", "1"), ("bob", "2"), ("ada", "3"), ("bob", "4")] {
            let caller = runtime.clone();
            let call = ToolCall::new("leaf", json!({"last": true})).session("s").principal(principal).cause(cause);
            world.run(async move { caller.call(call).await }).unwrap();
        }
        let reader = runtime.clone();
        let causes = world.run(async move {
            let mut watch = reader.watch_session("s", Cursor::START).only_of("ada");
            let mut causes = Vec::new();
            while causes.len() < 2 {
                let activity = watch.next().await.unwrap().unwrap();
                if let Happening::RunStarted { principal, cause, .. } = activity.what {
                    assert_eq!(principal.as_deref(), Some("ada"));
                    causes.push(cause.unwrap().to_string());
                }
            }
            // The stream continues where this one stopped, and shows nothing twice.
            let rest = reader.watch_session("s", watch.cursor()).only_of("bob");
            (causes, rest.cursor() == watch.cursor())
        });
        assert_eq!(causes, (vec!["1".to_owned(), "3".to_owned()], true));
    });
}

#[test]
fn l28_w07_conditions_and_keys_see_the_caller_and_the_cause() {
    on_every_store(|world| {
        let pay = || tool("pay", |_| async { Ok("paid") });
        let guarded = |condition: &str| pay().approval_when(condition);
        for (condition, principal, cause, asks) in [
            ("caller == 'guest'", Some("guest"), None, true),
            ("caller == 'guest'", Some("ada"), None, false),
            ("caller == 'guest'", None, None, false),
            ("caller == null", None, None, true),
            ("caller == null", Some("ada"), None, false),
            ("cause != null && cause.startsWith('mail/')", None, Some("mail/7"), true),
            ("cause != null && cause.startsWith('mail/')", None, Some("chat/7"), false),
            ("cause != null && cause.startsWith('mail/')", None, None, false),
        ] {
            let runtime = Runtime::new(world.another([guarded(condition)]));
            let mut call = ToolCall::new("pay", json!({}));
            call = principal.into_iter().fold(call, |call, principal| call.principal(principal));
            call = cause.into_iter().fold(call, |call, cause| call.cause(cause));
            let starter = runtime.clone();
            let run = world.run(async move { starter.start_call(call).await }).unwrap();
            world.pass(Duration::from_millis(100));
            let parks = info(&world, &runtime, run).parks;
            let waits = matches!(parks.first().map(|park| &park.on), Some(Blocked::Approval { .. }));
            assert_eq!(waits, asks, "{condition} for {principal:?}, cause {cause:?}");
        }
        // Two calls of one caller take turns; that of another caller does not wait for them.
        let key = KeyExpression::parse("'turn of ' + caller").unwrap();
        let slow =
            Tool::durable_fn("slow", "waits", |mut ctx: Ctx, _: Value| async move { ctx.wait::<Value>("go").await });
        let runtime = Runtime::new(world.another([slow.key(key)]));
        let mut waiting = Vec::new();
        for principal in ["ada", "ada", "bob"] {
            let starter = runtime.clone();
            let call = ToolCall::new("slow", json!({})).principal(principal);
            let run = world.run(async move { starter.start_call(call).await }).unwrap();
            world.pass(Duration::from_millis(100));
            waiting.push(info(&world, &runtime, run).parks.remove(0).on);
        }
        assert!(matches!(&waiting[0], Blocked::Input { .. }) && matches!(&waiting[2], Blocked::Input { .. }));
        assert!(matches!(&waiting[1], Blocked::Key { key } if &**key == "turn of ada"), "{waiting:?}");
    });
}
