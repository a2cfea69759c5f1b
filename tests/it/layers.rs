//! The layers of a run: they are kept over sleeps, crashes, spawns, forks and exports.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::ctx::Handle;
use windlass::run::{Check, Cut, Hold, RunState, Start, Work};
use windlass::testing::{CrashMatrix, Ledger};
use windlass::tool::ToolRef;
use windlass::{Ctx, Error, Output, RunId, Tool, ToolCall};
use windlass_core::{Config, Runtime};

use crate::crash::once;
use crate::crash_parks::{HOUR, check_parked};
use crate::world::{Counter, Kind, World, on_every_store, tool};

/// Calls through layers: a tool that must not run, and bodies that try to call it after a while.
#[derive(Clone, Default)]
struct Tried {
    deleted: Counter,
    noted: Counter,
}

impl Tried {
    fn tools(&self) -> Vec<Tool> {
        let deleted = self.deleted.clone();
        let delete = tool("delete_all", move |_| {
            deleted.add();
            async { Ok("deleted") }
        });
        let job = Tool::durable_fn("job", "tries both, later", |mut ctx: Ctx, _: Value| async move {
            ctx.sleep(Duration::from_secs(1)).await?;
            Ok(both(&mut ctx).await)
        });
        let parent = Tool::durable_fn("parent", "spawns", |mut ctx: Ctx, _: Value| async move {
            let child: Handle<Value> = ctx.spawn(to("job")).await?;
            ctx.join(&child).await
        });
        let starter = tool("starter", |_| async { Ok(Output::default().start(to("job"))) });
        let lender = tool("lender", |_| async { Ok(Output::default().start(to("job").in_layer("guest"))) });
        vec![delete, job, parent, starter, lender]
    }

    /// The layer of a guest: without `delete_all`, with a `note` that others do not have.
    fn fill(&self, config: &Config) {
        let guest = config.toolbox.layer("guest").unwrap();
        guest.hide("delete_all");
        let noted = self.noted.clone();
        guest
            .insert(tool("note", move |_| {
                noted.add();
                async { Ok("noted") }
            }))
            .unwrap();
    }

    fn runtime(&self, world: &World, layered: bool) -> Runtime {
        let mut config = world.config(self.tools());
        config.suspend_after = Duration::ZERO;
        if layered {
            self.fill(&config);
        }
        Runtime::new(config)
    }
}

fn to(name: &str) -> ToolCall<Value> {
    ToolCall::to(ToolRef::Name(name.into()), json!({}))
}

async fn both(ctx: &mut Ctx) -> Value {
    let note = ctx.call_json("note", json!({})).await.map_err(|error| error.kind().to_owned());
    let delete = ctx.call_json("delete_all", json!({})).await.map_err(|error| error.kind().to_owned());
    json!([note, delete])
}

/// The result for a guest, and for a caller without a layer.
fn of_guest() -> Value {
    json!([{"Ok": "noted"}, {"Err": "unavailable"}])
}

fn of_root() -> Value {
    json!([{"Err": "unavailable"}, {"Ok": "deleted"}])
}

fn ended(world: &World, runtime: &Runtime, run: RunId) -> Result<Value, Error> {
    let runtime = runtime.clone();
    world.run(async move { Ok(runtime.attach(run).await?.remove(0).for_model()) })
}

fn state(world: &World, runtime: &Runtime, run: RunId) -> RunState {
    let runtime = runtime.clone();
    world.run(async move { runtime.info(run).await.unwrap().unwrap().state })
}

#[test]
fn b02_a_run_keeps_its_layers_while_it_sleeps() {
    on_every_store(|world| {
        let tried = Tried::default();
        let runtime = tried.runtime(&world, true);
        for (who, expected) in [(runtime.layer("guest").unwrap(), of_guest()), (runtime.clone(), of_root())] {
            let outcome = world.run(async move { who.call(ToolCall::new("job", json!({}))).await });
            assert_eq!(outcome.unwrap().for_model(), expected);
        }
        assert_eq!((tried.noted.get(), tried.deleted.get()), (1, 1));
    });
}

#[test]
fn b02_a_run_keeps_its_layers_over_a_restart() {
    on_every_store(|world| {
        let tried = Tried::default();
        let runtime = tried.runtime(&world, true);
        let run = runtime.layer("guest").unwrap().start_unconfirmed(ToolCall::new("job", json!({}))).unwrap();
        world.pass(Duration::from_millis(500));
        drop(runtime);
        let world = world.restart();
        let runtime = tried.runtime(&world, true);
        let recovering = runtime.clone();
        world.run(async move { recovering.recover().await }).unwrap();
        assert_eq!(ended(&world, &runtime, run).unwrap(), of_guest());
        assert_eq!(tried.deleted.get(), 0);
    });
}

#[test]
fn b02_children_and_started_runs_inherit_the_layers_of_their_caller() {
    on_every_store(|world| {
        let tried = Tried::default();
        let runtime = tried.runtime(&world, true);
        let guest = runtime.layer("guest").unwrap();
        let calling = guest.clone();
        let outcome = world.run(async move { calling.call(ToolCall::new("parent", json!({}))).await });
        assert_eq!(outcome.unwrap().for_model(), of_guest());
        let calling = guest.clone();
        world.run(async move { calling.call(ToolCall::new("starter", json!({}))).await }).unwrap();
        world.run(async move { runtime.call(ToolCall::new("lender", json!({}))).await }).unwrap();
        world.pass(Duration::from_secs(2));
        assert_eq!((tried.noted.get(), tried.deleted.get()), (3, 0));
    });
}

#[test]
fn b02_a_call_may_add_a_layer_to_its_callers_and_an_unknown_one_is_refused() {
    on_every_store(|world| {
        let tried = Tried::default();
        let body = |layer: &'static str| {
            move |mut ctx: Ctx, _: Value| async move {
                let inner: Value = ctx.call(to("job").in_layer(layer)).await?;
                let all = ctx.call_all([to("job").in_layer(layer), to("job")]).await?;
                let child: Handle<Value> = ctx.spawn(to("job").in_layer(layer)).await?;
                Ok(json!([inner, all, ctx.join(&child).await?]))
            }
        };
        let mut tools = tried.tools();
        tools.push(Tool::durable_fn("adds", "", body("guest")));
        tools.push(Tool::durable_fn("fails", "", body("gone")));
        let config = world.config(tools);
        tried.fill(&config);
        let runtime = Runtime::new(config);
        let calling = runtime.clone();
        let adds = world.run(async move { calling.call(ToolCall::new("adds", json!({}))).await }).unwrap();
        assert_eq!(adds.for_model(), json!([of_guest(), [of_guest(), of_root()], of_guest()]));
        for call in [ToolCall::new("fails", json!({})), ToolCall::new("job", json!({})).in_layer("gone")] {
            let calling = runtime.clone();
            let failed = world.run(async move { calling.call(call).await }).unwrap();
            assert!(failed.for_model().to_string().contains("there is no layer `gone`"), "{:?}", failed.for_model());
        }
    });
}

#[test]
fn b02_a_run_whose_layer_is_not_registered_is_held_until_it_is() {
    on_every_store(|world| {
        let tried = Tried::default();
        let runtime = tried.runtime(&world, true);
        let named = runtime.layer("guest").unwrap().start_unconfirmed(ToolCall::new("job", json!({}))).unwrap();
        let unnamed = runtime.unnamed_layer();
        let nameless = unnamed.start_unconfirmed(ToolCall::new("job", json!({}))).unwrap();
        world.pass(Duration::from_millis(500));
        drop((runtime, unnamed));

        let world = world.restart();
        let runtime = tried.runtime(&world, false);
        let recovering = runtime.clone();
        world.run(async move { recovering.recover().await }).unwrap();
        world.pass(Duration::from_secs(2));
        let RunState::Held { hold: Hold::LayerMissing { layer, .. } } = state(&world, &runtime, named) else {
            panic!("{:?}", state(&world, &runtime, named));
        };
        assert_eq!(layer, "guest");
        assert!(matches!(state(&world, &runtime, nameless), RunState::Held { hold: Hold::LayerMissing { .. } }));
        let explaining = runtime.clone();
        let sentence = world.run(async move { explaining.explain(named).await }).unwrap().sentence;
        assert!(sentence.contains("layer `guest`") && sentence.contains("[layer.guest]"), "{sentence}");
        assert_eq!((tried.noted.get(), tried.deleted.get()), (0, 0));

        let guest = runtime.layer("guest").unwrap();
        guest.toolbox().hide("delete_all");
        let resuming = runtime.clone();
        world.run(async move { resuming.resume(named).await }).unwrap();
        assert_eq!(ended(&world, &runtime, named).unwrap(), json!([{"Err": "unavailable"}, {"Err": "unavailable"}]));
        assert_eq!(tried.deleted.get(), 0);
    });
}

/// A body that pays, waits, and pays again; `pay` has this id.
fn payer(id: &'static str, paid: &Counter) -> Vec<Tool> {
    let paid = paid.clone();
    let pay = tool("pay", move |_| {
        paid.add();
        async move { Ok(id) }
    });
    let body = Tool::durable_fn("twice", "", |mut ctx: Ctx, _: Value| async move {
        let first: Value = ctx.call_json("pay", json!({})).await?;
        ctx.sleep(HOUR).await?;
        let second: Value = ctx.call_json("pay", json!({})).await?;
        Ok(json!([first, second]))
    });
    vec![pay.id(id), body]
}

#[test]
fn b02_l22_replay_compares_the_name_and_only_new_operations_resolve_again() {
    on_every_store(|world| {
        let paid = Counter::default();
        let runtime = world.runtime(payer("pay.v1", &paid));
        let run = runtime.start_unconfirmed(ToolCall::new("twice", json!({}))).unwrap();
        world.pass(Duration::from_secs(60));
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime(payer("pay.v2", &paid));
        let recovering = runtime.clone();
        world.run(async move { recovering.recover().await }).unwrap();
        assert_eq!(ended(&world, &runtime, run).unwrap(), json!(["pay.v1", "pay.v2"]));
        assert_eq!(paid.get(), 2);
    });
}

#[test]
fn b02_a_call_that_is_not_finished_and_whose_tool_is_hidden_now_is_held() {
    on_every_store(|world| {
        let paid = Counter::default();
        let tools = |id| {
            let mut tools = payer(id, &paid);
            let pay = tools.remove(0).approval_when("true");
            tools.insert(0, pay);
            tools
        };
        let config = world.config(tools("pay.v1"));
        config.toolbox.layer("shop").unwrap();
        let runtime = Runtime::new(config);
        let run = runtime.layer("shop").unwrap().start_unconfirmed(ToolCall::new("twice", json!({}))).unwrap();
        world.pass(Duration::from_secs(60));
        drop(runtime);
        let world = world.restart();
        let config = world.config(tools("pay.v1"));
        // Another tool with the same name is not the one that was called and approved.
        let other = paid.clone();
        let shop = config.toolbox.layer("shop").unwrap();
        let fake = tool("pay", move |_| {
            other.add();
            async { Ok("elsewhere") }
        });
        shop.insert(fake.id("pay.other")).unwrap();
        let runtime = Runtime::new(config);
        let recovering = runtime.clone();
        world.run(async move { recovering.recover().await }).unwrap();
        let deciding = runtime.clone();
        world.run(async move {
            for item in deciding.inbox().await.unwrap() {
                let windlass::inbox::Blocked::Approval { digest, .. } = &item.park.on else { continue };
                deciding.decide(item.run, &item.park.path, digest, true, ("ada", "fine")).await.unwrap();
            }
        });
        world.pass(Duration::from_secs(1));
        let state = state(&world, &runtime, run);
        assert!(
            matches!(&state, RunState::Held { hold: Hold::ToolMissing { tool, .. } } if tool == "pay.v1"),
            "{state:?}"
        );
        assert_eq!(paid.get(), 0);
    });
}

#[test]
fn b02_w10_forks_exports_and_replay_checks_carry_the_scope() {
    let world = World::new(Kind::Sqlite);
    let tried = Tried::default();
    let runtime = tried.runtime(&world, true);
    let guest = runtime.layer("guest").unwrap();
    let run = guest.start_unconfirmed(ToolCall::new("job", json!({}))).unwrap();
    assert_eq!(ended(&world, &runtime, run).unwrap(), of_guest());

    let asking = runtime.clone();
    let check = world.run(async move { asking.replay_check(run).await }).unwrap();
    assert!(matches!(check, Check::Fits { .. }), "{check:?}");
    let forking = runtime.clone();
    let fork = world.run(async move { forking.fork(run, Cut::Start, None).await }).unwrap();
    assert_eq!(ended(&world, &runtime, fork).unwrap(), of_guest());
    assert_eq!(tried.deleted.get(), 0);

    let waiting = guest.start_unconfirmed(ToolCall::new("job", json!({}))).unwrap();
    let exporting = runtime.clone();
    let document = world.run(async move { exporting.export(waiting).await }).unwrap().to_string();
    let other = World::new(Kind::Memory);
    let bare = tried.runtime(&other, false);
    let importing = bare.clone();
    other
        .run(async move {
            importing.import(&document).await.unwrap();
            importing.resume(waiting).await
        })
        .unwrap();
    other.pass(Duration::from_secs(5));
    assert!(matches!(state(&other, &bare, waiting), RunState::Held { hold: Hold::LayerMissing { .. } }));
    let asking = bare.clone();
    let check = other.run(async move { asking.replay_check(waiting).await }).unwrap();
    assert!(matches!(check, Check::Held(Hold::LayerMissing { .. })), "{check:?}");
}

#[test]
fn b02_l12_a_key_belongs_to_the_scope_it_was_used_in() {
    on_every_store(|world| {
        let tried = Tried::default();
        let runtime = tried.runtime(&world, true);
        let guest = runtime.layer("guest").unwrap();
        let submit = |runtime: Runtime| {
            world.run(async move {
                let work = Work::Call(ToolCall::new("job", json!({})));
                runtime.submit(work, Start::key("k")).await?.accepted().await
            })
        };
        let first = submit(guest.clone()).unwrap();
        assert_eq!(submit(guest).unwrap(), first);
        assert!(matches!(submit(runtime), Err(Error::KeyReused { run, .. }) if run == first));
    });
}

#[test]
fn b02_l12_a_keyed_repeat_is_the_same_run_after_its_name_means_another_tool() {
    on_every_store(|world| {
        let tool = |id: &str| {
            let id = id.to_owned();
            let job = Tool::new("job", "", |_: Value| async { Ok(json!("done")) });
            job.with(|spec| spec.id = id.as_str().into())
        };
        let runtime = world.runtime([tool("one")]);
        let submit = |args: Value| {
            let runtime = runtime.clone();
            world.run(async move {
                let work = Work::Call(ToolCall::new("job", args));
                runtime.submit(work, Start::key("k")).await?.outcomes().await.map(|(run, _)| run)
            })
        };
        let first = submit(json!({})).unwrap();
        runtime.toolbox().remove("job");
        runtime.toolbox().insert(tool("two")).unwrap();
        assert_eq!(submit(json!({})).unwrap(), first);
        assert!(matches!(submit(json!({"n": 1})), Err(Error::KeyReused { run, .. }) if run == first));
    });
}

#[test]
fn b02_l13_signals_are_checked_against_the_tool_of_the_runs_own_scope() {
    on_every_store(|world| {
        let config = world.config([]);
        let listener = Tool::durable_fn("listener", "", |mut ctx: Ctx, _: Value| async move {
            Ok(json!(ctx.receive::<i64>("number").await?))
        });
        config.toolbox.layer("guest").unwrap().insert(listener.signal::<i64>("number")).unwrap();
        let runtime = Runtime::new(config);
        let run = runtime.layer("guest").unwrap().start_unconfirmed(ToolCall::new("listener", json!({}))).unwrap();
        let telling = runtime.clone();
        world.run(async move {
            assert!(telling.signal(run, "number", json!("one"), None).await.is_err(), "not a number");
            telling.signal(run, "number", json!(1), None).await.unwrap();
        });
        assert_eq!(ended(&world, &runtime, run).unwrap(), json!(1));
    });
}

/// A run through two layers that spawns a child and parks; `late` is hidden from the upper layer while it is parked.
fn scenario(ledger: &Ledger) -> Vec<Tool> {
    let child = Tool::durable_fn("child", "", |mut ctx: Ctx, _: Value| async move {
        ctx.sleep(HOUR).await?;
        Ok(json!([tried(&mut ctx, "upper").await, tried(&mut ctx, "forbidden").await]))
    });
    let root = Tool::durable_fn("root", "", |mut ctx: Ctx, _: Value| async move {
        let child: Handle<Value> = ctx.spawn(to("child")).await?;
        let before = json!([tried(&mut ctx, "lower").await, tried(&mut ctx, "late").await]);
        ctx.wait::<Value>("go").await?;
        let after = json!([tried(&mut ctx, "late").await, tried(&mut ctx, "forbidden").await]);
        Ok(json!([before, after, ctx.join(&child).await?]))
    });
    vec![child, root, once(ledger, "forbidden"), once(ledger, "late")]
}

async fn tried(ctx: &mut Ctx, name: &str) -> bool {
    ctx.call_json(name, json!({})).await.is_ok()
}

#[test]
fn b02_a_run_with_two_layers_a_spawn_and_a_changed_layer_survives_every_crash() {
    let report = check_parked(|| {
        // What an operator has deployed is outside of the process, like the ledger.
        let outside: Arc<Mutex<Option<Ledger>>> = Arc::default();
        let (deployed, seen) = (outside.clone(), outside);
        CrashMatrix::new(move |ledger| {
            *seen.lock() = Some(ledger.clone());
            scenario(ledger)
        })
        .config(move |config| {
            let ledger = deployed.lock().clone().expect("the tools were made first");
            let lower = config.toolbox.layer("lower").unwrap();
            lower.hide("forbidden");
            lower.insert(once(&ledger, "lower")).unwrap();
            let upper = config.toolbox.layer("upper").unwrap();
            upper.insert(once(&ledger, "upper")).unwrap();
            if ledger.look_up("changed").is_some() {
                upper.hide("late");
            }
        })
        .call(ToolCall::new("root", json!({})).in_layer("lower").in_layer("upper"))
        .outside(|outside| {
            if outside.inbox().is_empty() {
                return;
            }
            outside.ledger().write_down("changed", "late is hidden");
            outside.act(|runtime| async move { runtime.toolbox().layer("upper").unwrap().hide("late") });
            outside.answer("go", json!(null));
        })
    });
    assert_eq!(report.outcome, json!([[[true, true], [false, false], [true, false]]]));
    assert_eq!((report.effects["lower"], report.effects["late"], report.effects["upper"]), (1, 1, 1));
    assert_eq!(report.effects.get("forbidden"), None);
}
