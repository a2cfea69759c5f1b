//! Checks stored journals against new code, without performing anything.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::run::{Check, Filter, Hold};
use windlass::tool::{Incoming, Middleware, Outgoing, ToolRef};
use windlass::{Call, Ctx, RunId, Tool, ToolCall};
use windlass_core::Runtime;
use windlass_core::testing::FaultyStore;

use crate::world::{Counter, World, on_every_store, tool};

const HOUR: Duration = Duration::from_secs(3_600);

fn counted(name: &str, count: &Counter) -> Tool {
    let count = count.clone();
    tool(name, move |_: Value| {
        let count = count.clone();
        async move { Ok(json!(count.add())) }
    })
}

fn call<T>(name: &str) -> ToolCall<T> {
    ToolCall::to(ToolRef::Name(name.into()), json!({}))
}

/// Two effects and a wait for an hour.
fn old() -> Tool {
    Tool::durable_fn("job", "", |mut ctx: Ctx, _: Value| async move {
        let a: u32 = ctx.call(call("a")).await?;
        let b: u32 = ctx.step("b", |_| async { Ok(2) }).await?;
        ctx.sleep(HOUR).await?;
        let c: u32 = ctx.call(call("a")).await?;
        Ok(json!([a, b, c]))
    })
}

fn start(world: &World, runtime: &Runtime) -> RunId {
    let run = runtime.start_unconfirmed(ToolCall::new("job", json!({}))).unwrap();
    world.pass(Duration::from_secs(1));
    run
}

fn check(world: &World, runtime: &Runtime, run: RunId) -> Check {
    let runtime = runtime.clone();
    world.run(async move { runtime.replay_check(run).await }).unwrap()
}

fn fits(up_to: &str) -> Check {
    Check::Fits { up_to: Some(up_to.parse().unwrap()) }
}

/// The whole content of the store.
fn everything(world: &World, runtime: &Runtime, run: RunId) -> String {
    let runtime = runtime.clone();
    world.run(async move {
        let info = runtime.info(run).await.unwrap();
        format!("{info:?} {:?}", runtime.journal(run).await.unwrap())
    })
}

#[test]
fn w04_a_check_reports_how_far_journal_and_code_match_and_changes_nothing() {
    on_every_store(|world| {
        let attempts = Counter::default();
        let runtime = world.runtime([old(), counted("a", &attempts)]);
        let run = start(&world, &runtime);
        let before = everything(&world, &runtime, run);
        let was = attempts.get();
        assert_eq!(check(&world, &runtime, run), fits("2"), "the sleep is not over");
        let counting = Arc::new(FaultyStore::new(world.store.clone()));
        let mut config = world.another([old(), counted("a", &attempts)]);
        config.store = counting.clone();
        assert_eq!(check(&world, &Runtime::new(config), run), fits("2"));
        assert_eq!((counting.commits(), attempts.get()), (0, was), "neither a commit nor an attempt");
        world.pass(2 * HOUR);
        let done = everything(&world, &runtime, run);
        assert_ne!(before, done);
        assert_eq!(check(&world, &runtime, run), Check::Fits { up_to: None }, "a finished run is entered once more");
        assert_eq!(everything(&world, &runtime, run), done);
        assert_eq!(attempts.get(), was + 1, "by the run itself");
    });
}

#[test]
fn w04_a_check_reports_the_hold_of_a_run() {
    on_every_store(|world| {
        let attempts = Counter::default();
        let runtime = world.runtime([old(), counted("a", &attempts)]);
        let run = start(&world, &runtime);
        let before = everything(&world, &runtime, run);
        let job = |body: fn(Ctx) -> futures_util::future::BoxFuture<'static, windlass::ToolResult<Value>>| {
            Tool::durable_fn("job", "", move |ctx: Ctx, _: Value| body(ctx))
        };
        let diverged = job(|mut ctx| {
            Box::pin(async move {
                ctx.call::<u32>(call("a")).await?;
                ctx.step("other", |_| async { Ok(2) }).await?;
                Ok(json!(null))
            })
        });
        let returns = job(|_| Box::pin(async { Ok(json!(null)) }));
        let undecodable = job(|mut ctx| {
            Box::pin(async move {
                ctx.call::<String>(call("a")).await?;
                Ok(json!(null))
            })
        });
        let abandoned = job(|mut ctx| {
            Box::pin(async move {
                ctx.call::<u32>(call("a")).await?;
                ctx.step("b", |_| async { Ok(2) }).await?;
                let sleeps = std::pin::pin!(std::future::IntoFuture::into_future(ctx.sleep(HOUR)));
                futures_util::future::select(sleeps, std::future::ready(())).await;
                Ok(json!(null))
            })
        });
        for (new, words) in [
            (diverged, "diverged at 1: the journal has step \"b\", the code asks for step \"other\""),
            (returns, "the body returned"),
            (undecodable, "undecodable record at 0"),
            (abandoned, "abandoned operation at path 2"),
        ] {
            let runtime = Runtime::new(world.another([new, counted("a", &attempts)]));
            let Check::Held(hold) = check(&world, &runtime, run) else { panic!("{words}: it fits") };
            assert!(hold.to_string().contains(words), "{hold}");
            let all = runtime.clone();
            let checks = world.run(async move { all.replay_check_all(Filter::default()).await }).unwrap();
            assert_eq!((checks.fits, checks.held, checks.unreadable), (0, 1, 0));
            assert!(checks.first[0].0 == run && checks.first[0].1.contains(words), "{checks:?}");
        }
        let gone = Runtime::new(world.another([counted("a", &attempts)]));
        assert!(matches!(check(&world, &gone, run), Check::Held(Hold::ToolMissing { .. })));
        assert_eq!(everything(&world, &runtime, run), before, "nothing was written");
        assert_eq!(attempts.get(), 1, "nothing was attempted");
    });
}

/// Counts its calls.
struct CountingMiddleware(Counter);

impl Middleware for CountingMiddleware {
    fn before(&self, _: &mut Incoming<'_>) -> windlass::ToolResult<()> {
        self.0.add();
        Ok(())
    }

    fn after(&self, _: &mut Outgoing<'_>) -> windlass::ToolResult<()> {
        self.0.add();
        Ok(())
    }
}

#[test]
fn w04_a_check_calls_neither_middleware_nor_reconcile_nor_people() {
    on_every_store(|world| {
        let (attempts, asked, seen) = (Counter::default(), Counter::default(), Counter::default());
        let hangs = |asked: &Counter| {
            let asked = asked.clone();
            Tool::with_call("hang", "", |_: Call, _: Value| std::future::pending::<windlass::ToolResult<Value>>())
                .reconcile(move |_| {
                    asked.add();
                    async { Ok(windlass::tool::Reconciled::<Value>::Unknown) }
                })
        };
        let job = || {
            Tool::durable_fn("job", "", |mut ctx: Ctx, _: Value| async move {
                ctx.call_all((call::<u32>("a"), call::<Value>("hang"), call::<u32>("a"))).await?;
                Ok(json!(null))
            })
        };
        let make = |world: &World| {
            let mut config = world.config([job(), hangs(&asked), counted("a", &attempts)]);
            config.middleware = vec![Arc::new(CountingMiddleware(seen.clone()))];
            Runtime::new(config)
        };
        let runtime = make(&world);
        let run = start(&world, &runtime);
        drop(runtime);
        let world = world.restart();
        let runtime = make(&world);
        let (was, before) = ((attempts.get(), seen.get()), everything(&world, &runtime, run));
        assert_eq!(check(&world, &runtime, run), fits("0/1"));
        assert_eq!((attempts.get(), seen.get()), was);
        assert_eq!(asked.get(), 0, "a doubt is left alone");
        assert_eq!(everything(&world, &runtime, run), before);
    });
}

#[test]
fn w04_a_check_is_invisible_to_watchers() {
    on_every_store(|world| {
        let teller = |says: bool| {
            let teller = Tool::durable_fn("teller", "", move |mut ctx: Ctx, _: Value| async move {
                ctx.emit("n", &1)?;
                if says {
                    ctx.emit("n", &2)?;
                    ctx.progress("from the check");
                }
                std::future::pending::<()>().await;
                Ok(json!(null))
            });
            teller.event::<i64>("n")
        };
        let runtime = world.runtime([teller(false)]);
        let run = runtime.start_unconfirmed(ToolCall::new("teller", json!({}))).unwrap();
        world.pass(Duration::from_secs(1));
        let said = world.run(async move {
            let mut watch = runtime.watch(run, windlass::run::Cursor::START).await.unwrap();
            let mut said = String::new();
            while !said.contains("run_held") {
                said += &serde_json::to_string(&watch.next().await.unwrap().unwrap()).unwrap();
            }
            runtime.toolbox().insert(teller(true)).unwrap();
            runtime.replay_check(run).await.unwrap();
            let by_hand = Err(windlass::ToolError::failed("no"));
            runtime.finish_by_hand(run, by_hand, "ada", "enough").await.unwrap();
            while let Some(activity) = watch.next().await {
                said += &serde_json::to_string(&activity.unwrap()).unwrap();
            }
            said
        });
        assert!(said.contains("run_finished") && !said.contains("from the check"), "{said}");
    });
}
