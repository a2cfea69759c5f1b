//! The tools that a session shows (L20, B02), and what a body does with sessions.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::ctx::Handle;
use windlass::run::{Hold, RunState, Start};
use windlass::session::{Author, NewMessage, SessionTools, ToolsChange};
use windlass::tool::{Incoming, Middleware, Preparation};
use windlass::{Call, Ctx, Output, RunId, Tool, ToolCall, ToolResult};
use windlass_core::Runtime;

use crate::world::{Counter, World, on_every_store, tool};

const MOMENT: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// A tool that must not run in some sessions, and bodies that try to call it.
#[derive(Clone, Default)]
struct Tried(Counter);

fn pay() -> ToolCall {
    ToolCall::new("pay", json!({}))
}

fn told<T: serde::Serialize>(result: ToolResult<T>) -> Value {
    match result {
        Ok(value) => json!(value),
        Err(error) => json!(error.to_string()),
    }
}

impl Tried {
    fn tools(&self) -> Vec<Tool> {
        let paid = self.0.clone();
        let pay_tool = tool("pay", move |_| {
            paid.add();
            async { Ok("paid") }
        });
        let later = Tool::durable_fn("later", "pays after an hour", |mut ctx: Ctx, _: Value| async move {
            ctx.sleep(HOUR).await?;
            Ok(told(ctx.call::<Value>(pay()).await))
        });
        let every = Tool::durable_fn("every", "tries every way to pay", |mut ctx: Ctx, _: Value| async move {
            let one = told(ctx.call::<Value>(pay()).await);
            let all = ctx.call_all([pay(), ToolCall::new("look", json!({}))]).settled().await;
            let all: Vec<Value> = all.into_iter().map(told).collect();
            let spawned: ToolResult<Handle<Value>> = ctx.spawn(pay()).await;
            let spawned = match spawned {
                Ok(child) => told(ctx.join(&child).await),
                Err(error) => json!(error.to_string()),
            };
            let started = told(ctx.call_json("starts", json!({})).await);
            Ok(json!([one, all, spawned, started]))
        });
        let starts = tool("starts", |_| async { Ok(Output::value(json!("started")).start(pay())) });
        let look = tool("look", |_| async { Ok("seen") });
        vec![pay_tool, later, every, starts, look]
    }

    fn runtime(&self, world: &World) -> Runtime {
        world.runtime(self.tools())
    }
}

fn call(world: &World, runtime: &Runtime, call: ToolCall) -> Value {
    let runtime = runtime.clone();
    let outcome = world.run(async move { runtime.call(call).await }).unwrap();
    match &outcome.result {
        Ok(output) => output.value.clone(),
        Err(error) => json!(error.to_string()),
    }
}

fn change(world: &World, runtime: &Runtime, session: &'static str, change: ToolsChange) -> SessionTools {
    let session = runtime.session(session);
    world.run(async move {
        session.open(None, None).await.unwrap();
        session.change_tools(change).await.unwrap()
    })
}

fn start(world: &World, runtime: &Runtime, call: ToolCall) -> RunId {
    let runtime = runtime.clone();
    world.run(async move { runtime.start_call(call).await }).unwrap()
}

fn outcome(world: &World, runtime: &Runtime, run: RunId) -> Value {
    let runtime = runtime.clone();
    world.run(async move { runtime.attach(run).await }).unwrap().remove(0).for_model()
}

fn restart(world: World, runtime: Runtime, tried: &Tried) -> (World, Runtime) {
    drop(runtime);
    let world = world.restart();
    let runtime = tried.runtime(&world);
    let recovering = runtime.clone();
    world.run(async move { recovering.recover().await }).unwrap();
    (world, runtime)
}

fn listed(world: &World, runtime: &Runtime, session: &'static str) -> Vec<String> {
    let session = runtime.session(session);
    let toolbox = world.run(async move { session.toolbox().await }).unwrap();
    toolbox.listing().tools.iter().map(|tool| tool.name.to_string()).collect()
}

fn is_hidden(answer: &Value) -> bool {
    let text = answer.to_string();
    text.contains("session \\\"ada\\\" hides the tool `pay`") && text.contains("show it")
}

#[test]
fn l20_b02_a_hidden_tool_is_neither_listed_nor_called_nor_used_as_a_child() {
    on_every_store(|world| {
        let tried = Tried::default();
        let runtime = tried.runtime(&world);
        let ada = |name: &str| ToolCall::new(name, json!({})).session("ada");
        assert_eq!(call(&world, &runtime, ada("pay")), json!("paid"));
        change(&world, &runtime, "ada", ToolsChange::hide(["pay"]));
        let answer = call(&world, &runtime, ada("pay"));
        assert!(is_hidden(&answer), "{answer}");
        let answer = call(&world, &runtime, ada("every"));
        assert!(is_hidden(&answer[0]) && is_hidden(&answer[1][0]) && is_hidden(&answer[2]), "{answer}");
        assert_eq!(answer[1][1], json!("seen"));
        assert!(answer[3].to_string().contains("internal"), "a command cannot start it either: {answer}");
        assert_eq!(tried.0.get(), 1, "it ran before it was hidden, and never since");
        assert_eq!(listed(&world, &runtime, "ada"), ["every", "later", "look", "starts"]);

        // Calls elsewhere are not affected.
        assert_eq!(call(&world, &runtime, pay()), json!("paid"));
        assert_eq!(call(&world, &runtime, pay().session("bob")), json!("paid"));
        change(&world, &runtime, "ada", ToolsChange::show(["pay"]));
        assert_eq!(call(&world, &runtime, ada("pay")), json!("paid"));
    });
}

#[test]
fn l20_b02_a_session_shows_only_some_tools_and_those_it_has_revealed() {
    on_every_store(|world| {
        let tried = Tried::default();
        let runtime = tried.runtime(&world);
        change(&world, &runtime, "ada", ToolsChange::only(["look", "planned"]));
        assert_eq!(listed(&world, &runtime, "ada"), ["look"]);
        let tools = change(&world, &runtime, "ada", ToolsChange::reveal(["pay"]));
        assert!(tools.shows("pay") && tools.shows("planned") && !tools.shows("every"));
        assert_eq!(listed(&world, &runtime, "ada"), ["look", "pay"]);
        runtime.toolbox().insert(tool("planned", |_| async { Ok("now") })).unwrap();
        assert_eq!(listed(&world, &runtime, "ada"), ["look", "pay", "planned"], "a name may come before its tool");
        runtime.toolbox().insert(tool("other", |_| async { Ok("now") })).unwrap();
        assert_eq!(listed(&world, &runtime, "ada"), ["look", "pay", "planned"]);
        change(&world, &runtime, "ada", ToolsChange::reset());
        assert_eq!(listed(&world, &runtime, "ada").len(), 7);
        let bad = runtime.session("ada");
        let refused = world.run(async move {
            [
                bad.change_tools(ToolsChange::hide(["no name"])).await.unwrap_err().to_string(),
                bad.change_tools(ToolsChange::default()).await.unwrap_err().to_string(),
            ]
        });
        assert!(refused[0].contains("`no name` is not a tool name") && refused[1].contains("names no tool"));
    });
}

#[test]
fn l20_b02_a_run_never_falls_back_to_a_wider_toolbox() {
    on_every_store(|world| {
        let tried = Tried::default();
        let runtime = tried.runtime(&world);
        change(&world, &runtime, "ada", ToolsChange::hide(["pay"]));
        let run = start(&world, &runtime, ToolCall::new("later", json!({})).session("ada"));
        let open = start(&world, &runtime, ToolCall::new("later", json!({})).session("bob"));
        world.pass(MOMENT);
        // After a restart and a wait, what is hidden stays hidden; what is hidden meanwhile counts too.
        let (world, runtime) = restart(world, runtime, &tried);
        world.pass(MOMENT);
        change(&world, &runtime, "bob", ToolsChange::only(["later"]));
        let (world, runtime) = restart(world, runtime, &tried);
        assert!(is_hidden(&outcome(&world, &runtime, run)));
        assert!(outcome(&world, &runtime, open).to_string().contains("session \\\"bob\\\" hides the tool `pay`"));
        assert_eq!(tried.0.get(), 0);
    });
}

#[test]
fn l20_b02_an_unfinished_call_whose_tool_is_hidden_is_held_until_it_is_shown() {
    on_every_store(|world| {
        let tried = Tried::default();
        let runtime = tried.runtime(&world);
        let parent = || {
            Tool::durable_fn("parent", "calls", |mut ctx: Ctx, _: Value| async move {
                ctx.call_json("later", json!({})).await
            })
        };
        runtime.toolbox().insert(parent()).unwrap();
        let run = start(&world, &runtime, ToolCall::new("parent", json!({})).session("ada"));
        world.pass(MOMENT);
        change(&world, &runtime, "ada", ToolsChange::hide(["later"]));
        drop(runtime);
        let world = world.restart();
        let runtime = tried.runtime(&world);
        runtime.toolbox().insert(parent()).unwrap();
        let recovering = runtime.clone();
        world.run(async move { recovering.recover().await }).unwrap();
        world.pass(HOUR * 2);
        let reading = runtime.clone();
        let state = world.run(async move { reading.info(run).await }).unwrap().unwrap().state;
        let RunState::Held { hold } = state else { panic!("{state:?}") };
        let text = hold.to_string();
        let Hold::ToolHidden { path, tool, session } = hold else { panic!("{hold:?}") };
        assert_eq!((path.to_string().as_str(), tool.as_str(), session.as_str()), ("0", "later", "ada"));
        assert!(text.contains("show it in the session's tools, then resume"), "{text}");
        let checking = runtime.clone();
        let check = world.run(async move { checking.replay_check(run).await }).unwrap();
        assert!(matches!(check, windlass::run::Check::Held(Hold::ToolHidden { .. })), "{check:?}");
        change(&world, &runtime, "ada", ToolsChange::show(["later"]));
        let resuming = runtime.clone();
        world.run(async move { resuming.resume(run).await }).unwrap();
        assert_eq!(outcome(&world, &runtime, run), json!("paid"));
    });
}

#[test]
fn l20_b02_sessions_with_different_tools_do_not_leak_into_each_other() {
    on_every_store(|world| {
        let tried = Tried::default();
        let runtime = tried.runtime(&world);
        change(&world, &runtime, "ada", ToolsChange::hide(["pay"]));
        change(&world, &runtime, "bob", ToolsChange::only(["later", "pay"]));
        let runs: Vec<(bool, RunId)> = (0..20)
            .map(|index| {
                let session = ["ada", "bob", "eve"][index % 3];
                let run = start(&world, &runtime, ToolCall::new("later", json!({})).session(session));
                (session != "ada", run)
            })
            .collect();
        for (pays, run) in &runs {
            assert_eq!(outcome(&world, &runtime, *run) == json!("paid"), *pays);
        }
        assert_eq!(tried.0.get() as usize, runs.iter().filter(|(pays, _)| *pays).count());
    });
}

#[test]
fn l20_b02_every_runtime_of_a_store_sees_a_change_at_once() {
    on_every_store(|world| {
        let tried = Tried::default();
        let (one, two) = (tried.runtime(&world), Runtime::new(world.another(tried.tools())));
        let run = start(&world, &one, ToolCall::new("later", json!({})).session("ada"));
        assert_eq!(call(&world, &two, pay().session("ada")), json!("paid"));
        change(&world, &two, "ada", ToolsChange::hide(["pay"]));
        assert!(is_hidden(&call(&world, &one, pay().session("ada"))));
        assert!(is_hidden(&outcome(&world, &one, run)), "a run that the other runtime drives sees it too");
        change(&world, &one, "ada", ToolsChange::reset());
        assert_eq!(call(&world, &two, pay().session("ada")), json!("paid"));
    });
}

/// Sees the session of every call.
struct Seen(std::sync::Arc<parking_lot::Mutex<Vec<Value>>>);

impl Middleware for Seen {
    fn before(&self, call: &mut Incoming<'_>) -> ToolResult<()> {
        self.0.lock().push(json!([call.session(), call.id(), call.cause()]));
        Ok(())
    }
}

fn names(call: &Call) -> ToolResult<Value> {
    let session = call.session().expect("a session");
    let names: Vec<_> = session.tools()?.tools.iter().map(|tool| tool.name.clone()).collect();
    Ok(json!([session.name(), names, call.id(), call.cause()]))
}

#[test]
fn l20_bodies_prepare_and_middleware_read_the_session_of_their_call() {
    on_every_store(|world| {
        let reads = Tool::with_call("reads", "reads", |call: Call, _: Value| async move {
            let session = call.session().expect("a session");
            let title = session.info().await?.and_then(|info| info.title);
            let chosen = session.chosen_tools().await?;
            Ok(json!([title, chosen, names(&call)?, call.prepared()]))
        })
        .prepare(|call: Call| async move { Ok(Preparation::freeze(names(&call)?)) });
        let body = Tool::durable_fn("body", "reads", |mut ctx: Ctx, _: Value| async move {
            let before = ctx.session().tools().await?;
            ctx.session().hide_tools(["extra"]).await?;
            let after = ctx.session().tools().await?;
            ctx.sleep(HOUR).await?;
            let names = |tools: &[windlass::session::ShownTool]| {
                tools.iter().map(|tool| (tool.name.clone(), tool.schema.is_some())).collect::<Vec<_>>()
            };
            Ok(json!([ctx.session().title().await?, names(&before), names(&after)]))
        });
        let seen = std::sync::Arc::default();
        let mut config = world.config([reads, body, tool("extra", |_| async { Ok(1) })]);
        config.middleware.push(std::sync::Arc::new(Seen(std::sync::Arc::clone(&seen))));
        let runtime = Runtime::new(config);
        let session = runtime.session("ada");
        world.run(async move {
            session.open(Some("Trip"), None).await.unwrap();
            session.change_tools(ToolsChange::only(["reads", "body", "extra"])).await.unwrap();
        });
        let to = |name: &str| ToolCall::new(name, json!({})).session("ada").with_id("c1").cause("m7");
        let all = json!([["body", true], ["extra", true], ["reads", true]]);
        let body = call(&world, &runtime, to("body"));
        assert_eq!(body, json!(["Trip", all, [["body", true], ["reads", true]]]));
        let snapshot = json!(["ada", ["body", "reads"], "c1", "m7"]);
        let chosen = json!({"shown": ["body", "reads"], "hidden": ["extra"]});
        assert_eq!(call(&world, &runtime, to("reads")), json!(["Trip", chosen, snapshot, snapshot]));
        assert_eq!(seen.lock()[..], [json!(["ada", "c1", "m7"]), json!(["ada", "c1", "m7"])]);
    });
}

#[test]
fn l20_l25_an_outcome_changes_the_tools_of_its_session() {
    on_every_store(|world| {
        let tried = Tried::default();
        let runtime = tried.runtime(&world);
        let hider = |change: ToolsChange| {
            tool("hider", move |_| {
                let change = change.clone();
                async move { Ok(Output::value(json!("done")).change_tools(change)) }
            })
        };
        runtime.toolbox().insert(hider(ToolsChange::hide(["pay"]))).unwrap();
        let hide = || ToolCall::new("hider", json!({}));
        assert!(call(&world, &runtime, hide()).to_string().contains("internal"), "it has no session");
        assert_eq!(call(&world, &runtime, hide().session("ada")), json!("done"));
        assert!(is_hidden(&call(&world, &runtime, pay().session("ada"))));
        runtime.toolbox().insert(hider(ToolsChange::hide(["no name"]))).unwrap();
        assert!(call(&world, &runtime, hide().session("ada")).to_string().contains("internal"));
    });
}

fn says(text: &str) -> NewMessage {
    NewMessage::text(Author::Agent, text)
}

#[test]
fn l20_l28_a_body_opens_writes_to_and_closes_sessions_of_its_principal() {
    on_every_store(|world| {
        let body = Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
            let opened = ctx.in_session("side").open(Some("Side talk")).await?;
            let again = ctx.in_session("side").open(None).await?;
            let at = ctx.in_session("side").post(says("hello")).await?;
            ctx.in_session("side").set("n", &1).await?;
            ctx.in_session("side").hide_tools(["body"]).await?;
            let read = ctx.in_session("side").messages(0, 9).await?.len();
            let value: Option<u32> = ctx.in_session("side").get("n").await?;
            let title = ctx.in_session("side").title().await?;
            let shown = ctx.in_session("side").tools().await?.len();
            ctx.in_session("side").close("done").await?;
            let late = ctx.in_session("side").post(says("late")).await.unwrap_err();
            Ok(json!([opened, again, at, read, value, title, shown, late.code()]))
        });
        let intruder = Tool::durable_fn("intruder", "", |mut ctx: Ctx, _: Value| async move {
            let codes = [
                ctx.in_session("secret").open(None).await.map(drop),
                ctx.in_session("secret").post(says("hello")).await.map(drop),
                ctx.in_session("secret").hide_tools(["body"]).await.map(drop),
                ctx.in_session("secret").messages(0, 9).await.map(drop),
                ctx.in_session("secret").title().await.map(drop),
                ctx.in_session("secret").tools().await.map(drop),
                ctx.in_session("secret").close("mine").await,
                ctx.in_session("never").post(says("hello")).await.map(drop),
            ];
            Ok(json!(codes.map(|code| code.unwrap_err().code().map(str::to_owned))))
        });
        let runtime = world.runtime([body, intruder]);
        let secret = runtime.session("secret");
        world.run(async move { secret.open(Some("Secret"), Some("ada")).await.unwrap() });
        for principal in [Some("bob"), None] {
            let as_principal = |name: &str| match principal {
                Some(principal) => ToolCall::new(name, json!({})).principal(principal),
                None => ToolCall::new(name, json!({})).cause("test"),
            };
            let side = runtime.session("side");
            assert_eq!(
                call(&world, &runtime, as_principal("body")),
                json!([true, false, 1, 1, 1, "Side talk", 1, "session_closed"])
            );
            let info = world.run(async move {
                let info = side.info().await.unwrap().unwrap();
                side.purge().await.unwrap();
                info
            });
            assert_eq!((info.owner.as_deref(), info.closed.is_some()), (principal, true));
            let codes = call(&world, &runtime, as_principal("intruder"));
            assert_eq!(codes, json!(vec!["no_session"; 8]), "{principal:?}");
        }
        let secret = runtime.session("secret");
        let info = world.run(async move { secret.info().await }).unwrap().unwrap();
        assert_eq!((info.title.as_deref(), info.messages, info.tools), (Some("Secret"), 0, None));
        assert!(info.closed.is_none());
    });
}

#[test]
fn l20_l28_work_that_is_bound_to_its_principal_finds_no_other_session() {
    on_every_store(|world| {
        let runtime = Tried::default().runtime(&world);
        let as_principal = |principal: &str| Start {
            session: Some("s".into()),
            principal: Some(principal.into()),
            own_session: true,
            ..Start::default()
        };
        let begin = |principal: &str| {
            let (runtime, how) = (runtime.clone(), as_principal(principal));
            world.run(async move { runtime.start_with(pay(), how).await })
        };
        begin("ada").unwrap();
        let refused = begin("bob").unwrap_err();
        assert!(refused.to_string().contains("no session \"s\""), "{refused}");
        let session = runtime.session("s");
        world.run(async move {
            let refused = session.clone().as_principal("bob").post(says("hello")).await.unwrap_err();
            assert!(matches!(refused, windlass::Error::NotFound(_)), "{refused}");
            session.as_principal("ada").post(says("hello")).await.unwrap();
        });
    });
}
