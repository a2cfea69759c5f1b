//! Secret outputs (E26): the body that called has them, also after a restart; the file has them sealed; nothing else
//! shows them.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use windlass::inbox::{ReplyResult, Resolution};
use windlass::run::{Cursor, RunState};
use windlass::tool::{Atomic, IntoOutput, Reply, Schemas};
use windlass::{Call, Content, Ctx, Output, Path, RunId, Tool, ToolCall, ToolResult, ToolSpec};
use windlass_core::Runtime;

use crate::world::{Kind, World, on_every_store};

const MOMENT: Duration = Duration::from_secs(1);
const MARKER: &str = "correct-horse-battery";
const HIDDEN: &str = "•••";

fn schemas() -> Schemas {
    let output = json!({"type": "object", "properties": {"token": {"type": "string", "writeOnly": true}, "user": {}}});
    Schemas { output: Some(output), ..Schemas::any() }
}

/// Returns a token, or leaves the answer to the holder of its reply key.
struct Login {
    later: bool,
}

impl Atomic for Login {
    fn attempt(&self, call: Call) -> BoxFuture<'static, ToolResult<Output>> {
        let token = format!("{MARKER}-{}", call.args()["for"].as_str().unwrap_or_default());
        let output = match self.later {
            true => Reply::<Value>::later().into_output().unwrap(),
            false => Output::value(json!({"token": token, "user": "ada"})),
        };
        Box::pin(std::future::ready(Ok(output)))
    }
}

/// Gets the secret in every way, and reports whether it had the value each time.
fn tour() -> Tool {
    Tool::durable_fn("tour", "collects secrets", |mut ctx: Ctx, _: Value| async move {
        let is_whole = |value: &Value| value["token"].as_str().is_some_and(|token| token.starts_with(MARKER));
        let called: Value = ctx.call_json("login", json!({"for": "call"})).await?;
        let step = || async { Ok(json!({"token": format!("{MARKER}-step")})) };
        let stepped: Value = ctx.step("read the vault", |_| step()).secret().await?;
        let large: Value = ctx.call_json("login", json!({"for": "large".repeat(20_000)})).await?;
        let child = ctx.spawn(ToolCall::<Value>::new("login", json!({"for": "child"}))).await?;
        let joined: Value = ctx.join(&child).await?;
        let answered: Value = ctx.call_json("ask", json!({})).await?;
        Ok(json!([is_whole(&called), is_whole(&stepped), is_whole(&large), is_whole(&joined), is_whole(&answered)]))
    })
}

fn tools() -> [Tool; 3] {
    let login = |name: &str, later| Tool::atomic(ToolSpec::new(name, ""), schemas(), Login { later });
    [login("login", false), login("ask", true), tour()]
}

fn assert_nowhere(file: &FilePath, when: &str) {
    for entry in std::fs::read_dir(file.parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let found = bytes.windows(MARKER.len()).any(|window| window == MARKER.as_bytes());
        assert!(!found, "{} {when}", path.display());
    }
}

fn assert_hidden(what: &str, shown: &str) {
    assert!(!shown.contains(MARKER), "{what}: {shown}");
}

/// Everything that a run shows: its events, and its records as clients see them.
fn shown(world: &World, runtime: &Runtime, run: RunId) -> String {
    let runtime = runtime.clone();
    world.run(async move {
        let mut watch = runtime.watch(run, Cursor::START).await.unwrap();
        let mut text = String::new();
        while let Some(activity) = watch.next().await {
            text.push_str(&serde_json::to_string(&activity.unwrap()).unwrap());
        }
        for record in runtime.journal(run).await.unwrap() {
            text.push_str(&serde_json::to_string(&*record.without_secrets()).unwrap());
        }
        text.push_str(&runtime.explain(run).await.unwrap().sentence);
        text
    })
}

fn answer(world: &World, runtime: &Runtime) {
    let runtime = runtime.clone();
    world.run(async move {
        let key = runtime.inbox().await.unwrap().remove(0).key.unwrap();
        let value = json!({"token": format!("{MARKER}-answer"), "user": "bob"});
        runtime.resolve(&key, Resolution::Ok { value }).await.unwrap();
        let again = runtime.resolve(&key, Resolution::Ok { value: json!(1) }).await.unwrap();
        let ReplyResult::Already(Ok(first)) = again else { panic!("{again:?}") };
        assert_eq!(
            first.without_secrets().value,
            json!({"token": HIDDEN, "user": "bob"}),
            "a late answer sees no secret"
        );
    });
}

#[test]
fn e26_a_secret_output_is_sealed_in_the_file_and_whole_for_the_body() {
    let world = World::new(Kind::Sqlite);
    let runtime = world.runtime(tools());
    let run = runtime.start_unconfirmed(ToolCall::new("tour", json!({}))).unwrap();
    world.pass(MOMENT);
    let again = runtime.clone();
    let info = world.run(async move { again.info(run).await }).unwrap().unwrap();
    assert!(matches!(info.state, RunState::Suspended { .. }), "it waits for the answer: {info:?}");
    assert_nowhere(&world.file(), "while it waits");
    drop(runtime);
    // The body is replayed: its secrets come from the file.
    let world = world.restart();
    let runtime = world.runtime(tools());
    answer(&world, &runtime);
    assert_nowhere(&world.file(), "with the answer in the mailbox or consumed");
    world.pass(MOMENT);
    let again = runtime.clone();
    let outcome = world.run(async move { again.attach(run).await }).unwrap().remove(0);
    assert_eq!(outcome.value(), Some(&json!([true, true, true, true, true])), "{outcome:?}");
    assert_nowhere(&world.file(), "at the end");
    assert_hidden("the run", &shown(&world, &runtime, run));
    drop(runtime);
    let world = world.restart();
    let runtime = world.runtime(tools());
    assert_nowhere(&world.file(), "after another restart");
    let journal = world.run(async move { runtime.journal(run).await }).unwrap();
    assert!(serde_json::to_string(&journal).unwrap().contains(MARKER), "the program itself reads them in clear");
}

#[test]
fn e26_a_secret_output_is_shown_to_no_model_and_no_reader() {
    on_every_store(|world| {
        let runtime = world.runtime(tools());
        let caller = runtime.clone();
        let call = ToolCall::new("login", json!({"for": "x"}));
        let outcome = world.run(async move { caller.call(call).await }).unwrap();
        let clean = json!({"token": HIDDEN, "user": "ada"});
        assert_eq!(outcome.value().unwrap()["token"], format!("{MARKER}-x"), "the program that called has it");
        assert_eq!(outcome.for_model(), clean);
        assert_eq!(outcome.projection().content, [Content::text(clean.to_string())]);
        let run = outcome.run;
        assert_hidden("the run", &shown(&world, &runtime, run));
        let reader = runtime.clone();
        let (page, artifact) = world.run(async move {
            let page = reader.read_output(run, &Path::root(), 0, 10_000).await.unwrap();
            (page, reader.artifact(run, &Path::root()).await.unwrap())
        });
        assert_eq!(page.text, clean.to_string());
        assert_eq!(artifact.bytes(), Some(clean.to_string().as_bytes()));
        let other = runtime.clone();
        let call = ToolCall::new("login", json!({"for": "y"}));
        let compared = world.run(async move {
            let second = other.call(call).await.unwrap().run;
            other.compare(run, second).await.unwrap()
        });
        assert_hidden("the comparison", &format!("{compared:?}"));
    });
}

#[test]
fn e26_an_output_that_does_not_fit_its_schema_is_sealed_as_a_whole() {
    let world = World::new(Kind::Sqlite);
    let broken = Tool::atomic(ToolSpec::new("login", ""), schemas(), Broken);
    let runtime = world.runtime([broken]);
    let caller = runtime.clone();
    let outcome = world.run(async move { caller.call(ToolCall::new("login", json!({}))).await }).unwrap();
    assert_eq!(outcome.error().map(windlass::ToolError::kind), Some("internal"));
    assert_nowhere(&world.file(), "a secret may be anywhere in it");
    assert_hidden("the run", &shown(&world, &runtime, outcome.run));
}

struct Broken;

impl Atomic for Broken {
    fn attempt(&self, _: Call) -> BoxFuture<'static, ToolResult<Output>> {
        Box::pin(std::future::ready(Ok(Output::value(json!([{"tokn": MARKER}])))))
    }
}

#[test]
fn e26_a_run_whose_key_is_lost_keeps_its_secret_answer_until_the_key_is_back() {
    let world = World::new(Kind::Sqlite);
    let runtime = world.runtime(tools());
    let run = runtime.start_unconfirmed(ToolCall::new("ask", json!({}))).unwrap();
    world.pass(MOMENT);
    // Another program writes the answer; this one is not there to consume it.
    let outsider = runtime.clone();
    let key = world.run(async move { outsider.inbox().await.unwrap().remove(0).key.unwrap() });
    drop(runtime);
    let world = world.restart();
    let mut config = world.config(tools());
    config.drives = windlass_core::Drives::Nothing;
    let idle = Runtime::new(config);
    let writer = idle.clone();
    world.run(async move {
        let value = json!({"token": format!("{MARKER}-answer")});
        writer.resolve(&key, Resolution::Ok { value }).await.unwrap();
    });
    assert_nowhere(&world.file(), "with the answer in the mailbox");
    drop(idle);
    let keys = world.file().with_file_name("test.db-key");
    let aside = keys.with_file_name("aside");
    std::fs::rename(&keys, &aside).unwrap();
    let world = world.restart();
    let runtime = world.runtime(tools());
    world.pass(MOMENT);
    let again = runtime.clone();
    let info = world.run(async move { again.info(run).await }).unwrap().unwrap();
    assert!(!matches!(info.state, RunState::Finished { .. }), "{info:?}");
    drop(runtime);
    std::fs::rename(&aside, &keys).unwrap();
    let world = world.restart();
    let runtime = world.runtime(tools());
    let resuming = runtime.clone();
    world.run(async move { resuming.resume(run).await }).ok();
    world.pass(MOMENT);
    let outcome = world.run(async move { runtime.attach(run).await }).unwrap().remove(0);
    assert_eq!(outcome.value().unwrap()["token"], format!("{MARKER}-answer"));
    let _: Arc<Output> = outcome.result.unwrap();
}
