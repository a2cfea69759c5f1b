//! Secret arguments (E26): sealed in the file wherever a run stores them, in clear for tools and for an export. A run
//! whose key is missing is held until the key is back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use windlass::inbox::Blocked;
use windlass::run::record::Record;
use windlass::run::{Cut, ForkChange, Hold, RunState};
use windlass::store::StoreError;
use windlass::tool::{Atomic, Durable, Preparation, Schemas};
use windlass::{Call, Ctx, Effect, Error, Output, RunId, Tool, ToolCall, ToolResult, ToolSpec};
use windlass_core::Runtime;

use crate::world::{Counter, Kind, World};

const MOMENT: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Returns the length of the password: the tool has it in clear, and its result does not contain it.
struct Login(Counter);

impl Atomic for Login {
    fn attempt(&self, call: Call) -> BoxFuture<'static, ToolResult<Output>> {
        self.0.add();
        let length = call.args()["password"].as_str().map_or(0, str::len);
        Box::pin(std::future::ready(Ok(Output::value(json!(length)))))
    }
}

fn schemas() -> Schemas {
    let password = json!({"type": "string", "writeOnly": true});
    Schemas::input(json!({"type": "object", "properties": {"password": password, "to": {"type": "string"}}}))
}

fn login(logins: &Counter) -> Tool {
    Tool::atomic(ToolSpec::new("login", "logs in"), schemas(), Login(logins.clone()))
        .approval_when("args.to == 'vault'")
}

/// Passes its arguments through every part of a run that stores arguments.
struct EveryCarrier;

impl Durable for EveryCarrier {
    fn enter(&self, mut ctx: Ctx, args: Arc<Value>) -> BoxFuture<'static, ToolResult<Output>> {
        Box::pin(async move {
            let password = args["password"].as_str().unwrap_or_default().to_owned();
            let call = |n: &str| ToolCall::new("login", json!({"password": format!("{password}{n}"), "to": "x"}));
            let one: Value = ctx.call(call("-one")).await?;
            let both: Vec<Value> = ctx.call_all(vec![call("-two"), call("-three")]).await?;
            let child = ctx.spawn(call("-child")).await?;
            let child: Value = ctx.join(&child).await?;
            let large: Value = ctx.call(call(&"-large".repeat(10_000))).await?;
            let started: Value = ctx.call_json("causing", json!({"password": format!("{password}-caused")})).await?;
            let vault = json!({"password": format!("{password}-vault"), "to": "vault"});
            let asked: Value = ctx.call(ToolCall::new("login", vault)).await?;
            Ok(Output::value(json!([one, both, child, large, started, asked])))
        })
    }
}

/// Freezes the password in `prepare`, and starts another run with its outcome.
struct Causing;

impl Atomic for Causing {
    fn attempt(&self, call: Call) -> BoxFuture<'static, ToolResult<Output>> {
        let password = format!("{}-frozen", call.args()["password"].as_str().unwrap_or_default());
        let frozen = call.prepared().is_some_and(|payload| payload["frozen"] == password.as_str());
        let next = ToolCall::new("login", json!({"password": password, "to": "x"}));
        Box::pin(std::future::ready(Ok(Output::value(json!(frozen)).start(next))))
    }
}

fn tools(logins: &Counter) -> [Tool; 3] {
    let causing = Tool::atomic(ToolSpec::new("causing", ""), schemas(), Causing).prepare(|call: Call| async move {
        let password = call.args()["password"].as_str().unwrap_or_default().to_owned();
        let (args, frozen) = (json!({"password": password.clone()}), json!({"frozen": format!("{password}-frozen")}));
        Ok(Preparation::freeze(frozen).with_args(args))
    });
    [login(logins), Tool::durable(ToolSpec::new("tour", ""), schemas(), EveryCarrier), causing]
}

fn bytes_hold(file: &Path, text: &str) -> bool {
    let bytes = std::fs::read(file).unwrap();
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn beside(file: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(file.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn state(world: &World, runtime: &Runtime, run: RunId) -> RunState {
    let runtime = runtime.clone();
    world.run(async move { runtime.info(run).await }).unwrap().unwrap().state
}

fn outcome(world: &World, runtime: &Runtime, run: RunId) -> Value {
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).unwrap();
    outcomes[0].result.as_ref().unwrap().value.clone()
}

fn approve(world: &World, runtime: &Runtime) {
    let runtime = runtime.clone();
    world.run(async move {
        for item in runtime.inbox().await.unwrap() {
            let Blocked::Approval { digest, .. } = &item.park.on else { continue };
            runtime.decide(item.run, &item.park.path, digest, true, ("ada", "fine")).await.unwrap();
        }
    });
    world.pass(MOMENT);
}

#[test]
fn e26_a_secret_argument_is_nowhere_in_the_file_in_clear() {
    let world = World::new(Kind::Sqlite);
    let (logins, marker) = (Counter::default(), "correct-horse-battery");
    let runtime = world.runtime(tools(&logins));
    let run = runtime.start_unconfirmed(ToolCall::new("tour", json!({"password": marker}))).unwrap();
    // Which of these are secret is unknown.
    let unknown = runtime.start_unconfirmed(ToolCall::new("logn", json!({"password": marker}))).unwrap();
    let unfit = runtime.start_unconfirmed(ToolCall::new("login", json!({"password": [marker]}))).unwrap();
    world.pass(MOMENT);
    assert!(matches!(state(&world, &runtime, run), RunState::Suspended { .. }), "it waits for approval");
    let asked = |record: &Record| record.asked.as_ref().is_some_and(|asked| !asked.secrets.is_empty());
    let journal = |runtime: &Runtime, run: RunId| {
        let runtime = runtime.clone();
        world.run(async move { runtime.journal(run).await }).unwrap()
    };
    assert!(journal(&runtime, run).iter().filter(|record| asked(record)).count() >= 8);
    for run in [unknown, unfit] {
        assert!(journal(&runtime, run).iter().any(asked));
    }
    let look = |file: &Path, when: &str| {
        for file in beside(file) {
            assert!(!bytes_hold(&file, marker), "{} {when}", file.display());
        }
    };
    assert!(beside(&world.file()).iter().any(|file| bytes_hold(file, "causing")), "and all else can be found");
    look(&world.file(), "while it runs");
    drop(runtime);

    let world = world.restart();
    let runtime = world.runtime(tools(&logins));
    look(&world.file(), "after a crash");
    approve(&world, &runtime);
    let n = marker.len();
    let expected = json!([n + 4, [n + 4, n + 6], n + 6, n + 60_000, true, n + 6]);
    assert_eq!(outcome(&world, &runtime, run), expected);
    let exporting = runtime.clone();
    let document = world.run(async move { exporting.export(run).await }).unwrap().to_string();
    assert!(document.contains("correct-horse-battery-vault"), "an export has them whole");
    let forking = runtime.clone();
    let change = ForkChange::Input(json!({"password": format!("{marker}-again"), "to": "x"}));
    let fork = world.run(async move { forking.fork(run, Cut::At("0".parse().unwrap()), Some(change)).await }).unwrap();
    world.pass(MOMENT);
    approve(&world, &runtime);
    assert_eq!(outcome(&world, &runtime, fork)[0], json!(n + 6));
    look(&world.file(), "after a fork");
    drop(runtime);
    let world = world.restart();
    look(&world.file(), "in the end");
}

#[test]
fn e26_a_divergence_over_a_secret_does_not_reveal_it() {
    let world = World::new(Kind::Sqlite);
    let body = |password: &'static str| {
        Tool::durable_fn("job", "", move |mut ctx: Ctx, _: Value| async move {
            let call = ToolCall::new("login", json!({"password": password, "to": "x"}));
            ctx.call(call).await?;
            ctx.sleep(HOUR).await?;
            Ok(json!(null))
        })
    };
    let logins = Counter::default();
    let runtime = world.runtime([login(&logins), body("hunter2")]);
    let run = runtime.start_unconfirmed(ToolCall::new("job", json!({}))).unwrap();
    world.pass(MOMENT);
    drop(runtime);
    let world = world.restart();
    let runtime = world.runtime([login(&logins), body("swordfish")]);
    world.pass(HOUR);
    let recovering = runtime.clone();
    world.run(async move { recovering.recover().await }).unwrap();
    world.pass(MOMENT);
    let RunState::Held { hold } = state(&world, &runtime, run) else { panic!() };
    let text = hold.to_string();
    assert!(text.contains("/password: recorded •••, asked •••") && !text.contains("hunter2"), "{text}");
    assert_eq!(logins.get(), 1);
    for file in beside(&world.file()) {
        assert!(!bytes_hold(&file, "swordfish") && !bytes_hold(&file, "hunter2"), "{}", file.display());
    }
}

/// Sleeps, then logs in.
struct SleepThenLogin;

impl Durable for SleepThenLogin {
    fn enter(&self, mut ctx: Ctx, args: Arc<Value>) -> BoxFuture<'static, ToolResult<Output>> {
        Box::pin(async move {
            ctx.sleep(HOUR).await?;
            let length: Value = ctx.call(ToolCall::new("login", (*args).clone())).await?;
            Ok(Output::value(length))
        })
    }
}

/// Never ends.
struct Hang;

impl Atomic for Hang {
    fn attempt(&self, _: Call) -> BoxFuture<'static, ToolResult<Output>> {
        Box::pin(std::future::pending())
    }
}

#[test]
fn e26_a_run_whose_key_is_missing_is_held_until_the_key_is_back() {
    let logins = Counter::default();
    let all = || {
        let sleeper = Tool::durable_fn("sleeper", "", |mut ctx: Ctx, _: Value| async move {
            ctx.sleep(HOUR).await?;
            Ok(json!("slept"))
        });
        let vigil = Tool::durable(ToolSpec::new("vigil", ""), schemas(), SleepThenLogin);
        let hang = Tool::atomic(ToolSpec::new("hang", ""), schemas(), Hang).effect(Effect::Readonly);
        [login(&logins), sleeper, vigil, hang]
    };
    let world = World::new(Kind::Sqlite);
    let runtime = world.runtime(all());
    let secret = |tool: &str| ToolCall::new(tool, json!({"password": "hunter2", "to": "x"}));
    let [vigil, hanging] = ["vigil", "hang"].map(|tool| runtime.start_unconfirmed(secret(tool)).unwrap());
    let other = runtime.start_unconfirmed(ToolCall::new("sleeper", json!({}))).unwrap();
    world.pass(MOMENT);
    drop(runtime);
    let recovered = |world: &World| {
        let runtime = world.runtime(all());
        let recovering = runtime.clone();
        world.run(async move { recovering.recover().await }).unwrap();
        world.pass(MOMENT);
        runtime
    };
    // A run whose process died before is examined more closely.
    let world = world.restart();
    drop(recovered(&world));
    let world = world.restart();
    let key = world.file().with_file_name("test.db-key");
    let kept = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    let runtime = recovered(&world);
    world.pass(2 * HOUR);
    assert_eq!(outcome(&world, &runtime, other), json!("slept"), "the others go on");
    for run in [vigil, hanging] {
        let RunState::Held { hold } = state(&world, &runtime, run) else { panic!("{run}") };
        assert!(matches!(hold, Hold::Sealed { .. }), "{hold}");
        let text = hold.to_string();
        assert!(text.contains(&key.display().to_string()) && text.contains("then resume the run"), "{text}");
        let asking = runtime.clone();
        let (explanation, journal) = world.run(async move { (asking.explain(run).await, asking.journal(run).await) });
        let sentence = explanation.unwrap().sentence;
        assert!(sentence.contains("put the key back"), "{sentence}");
        assert!(matches!(journal, Err(Error::Store(StoreError::Sealed { run: sealed, .. })) if sealed == run));
    }
    assert_eq!(logins.get(), 0, "and no attempt runs with a secret that could not be opened");

    // An operator who gives it up can end it, and purge it.
    let ending = runtime.clone();
    let ended = async move {
        ending.finish_by_hand(hanging, Ok(Output::value(json!(0))), "ada", "its key is lost").await?;
        ending.purge(hanging).await
    };
    world.run(ended).unwrap();
    std::fs::write(&key, kept).unwrap();
    let resuming = runtime.clone();
    world.run(async move { resuming.resume(vigil).await }).unwrap();
    world.pass(MOMENT);
    assert_eq!(outcome(&world, &runtime, vigil), json!("hunter2".len()));
    assert_eq!(logins.get(), 1);
}

#[test]
fn e26_a_lazy_schema_marks_secrets_from_the_first_call_on() {
    let world = World::new(Kind::Sqlite);
    let lazy = |name: &str, schemas: fn() -> Schemas| {
        let body = windlass::tool::Body::Atomic(Arc::new(Login(Counter::default())));
        Tool::lazy(ToolSpec::new(name, ""), move |_| Ok(schemas()), body)
    };
    let runtime = world.runtime([lazy("late", schemas), lazy("open", Schemas::any)]);
    for (tool, expected) in [("late", vec!["/password".to_owned()]), ("open", Vec::new())] {
        let run = runtime.start_unconfirmed(ToolCall::new(tool, json!({"password": "hunter2", "to": "x"}))).unwrap();
        world.pass(MOMENT);
        let reading = runtime.clone();
        let journal = world.run(async move { reading.journal(run).await }).unwrap();
        let asked = journal.iter().find_map(|record| record.asked.as_ref()).unwrap();
        assert_eq!(asked.secrets, windlass_core::run::secrets::Places::new(expected), "{tool}");
    }
}

#[test]
fn w02_e26_an_inbox_item_has_the_arguments_of_its_call_without_their_secrets() {
    crate::world::on_every_store(|world| {
        let runtime = world.runtime([login(&Counter::default())]);
        let (starting, vault) = (runtime.clone(), json!({"password": "hunter2", "to": "vault"}));
        world.run(async move { starting.start_call(ToolCall::new("login", vault)).await.unwrap() });
        world.pass(MOMENT);
        let items = world.run(async move { runtime.inbox().await }).unwrap();
        assert_eq!(items.len(), 1);
        assert_eq!(items[0].args, Some(json!({"password": "•••", "to": "vault"})));
    });
}
