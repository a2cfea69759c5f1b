//! Middleware: `before` rewrites, refuses or answers a call; `after` changes the visible outcome, never the record.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::run::record::Event;
use windlass::tool::{Incoming, Middleware, Outgoing};
use windlass::{Ctx, Outcome, Output, Tool, ToolCall, ToolError, ToolResult};

use crate::world::{Counter, Kind, World, on_every_store, tool};

/// Middleware made of two functions.
struct Both<B, A>(B, A);

impl<B, A> Middleware for Both<B, A>
where
    B: Fn(&mut Incoming<'_>) -> ToolResult<()> + Send + Sync + 'static,
    A: Fn(&mut Outgoing<'_>) -> ToolResult<()> + Send + Sync + 'static,
{
    fn before(&self, call: &mut Incoming<'_>) -> ToolResult<()> {
        (self.0)(call)
    }

    fn after(&self, call: &mut Outgoing<'_>) -> ToolResult<()> {
        (self.1)(call)
    }
}

fn pass(_: &mut Outgoing<'_>) -> ToolResult<()> {
    Ok(())
}

fn before(f: impl Fn(&mut Incoming<'_>) -> ToolResult<()> + Send + Sync + 'static) -> Arc<dyn Middleware> {
    Arc::new(Both(f, pass))
}

fn after(f: impl Fn(&mut Outgoing<'_>) -> ToolResult<()> + Send + Sync + 'static) -> Arc<dyn Middleware> {
    Arc::new(Both(|_: &mut Incoming<'_>| Ok(()), f))
}

fn call(world: &World, tools: Vec<Tool>, middleware: Vec<Arc<dyn Middleware>>, args: Value) -> (Outcome, Vec<Event>) {
    let mut config = world.another(tools);
    config.middleware = middleware;
    let runtime = windlass_core::Runtime::new(config);
    world.run(async move {
        let outcome = runtime.call(ToolCall::new("t", args)).await.unwrap();
        let journal = runtime.journal(outcome.run).await.unwrap();
        (outcome, journal.into_iter().map(|record| record.event).collect())
    })
}

fn echo() -> Tool {
    tool("t", |args| async move { Ok(args) })
}

#[test]
fn l01_middleware_runs_in_order_on_the_way_in_and_in_reverse_on_the_way_out() {
    let world = World::new(Kind::Memory);
    let log = Arc::new(Mutex::new(Vec::new()));
    let named = |name: &'static str| -> Arc<dyn Middleware> {
        let (one, two) = (log.clone(), log.clone());
        let before = move |call: &mut Incoming<'_>| {
            one.lock().push(format!("{name} before {}", call.tool().name));
            Ok(())
        };
        let after = move |call: &mut Outgoing<'_>| {
            two.lock().push(format!("{name} after {}", call.result().is_ok()));
            Ok(())
        };
        Arc::new(Both(before, after))
    };
    let (_, events) = call(&world, vec![echo()], vec![named("a"), named("b")], json!({}));
    assert_eq!(*log.lock(), ["a before t", "b before t", "b after true", "a after true"]);
    assert_eq!(events.len(), 2, "middleware that changes nothing is not recorded: {events:?}");
}

#[test]
fn l01_rewritten_arguments_are_checked_recorded_and_used() {
    on_every_store(|world| {
        let add = before(|call: &mut Incoming<'_>| {
            let mut args = call.args().clone();
            args["tenant"] = json!("acme");
            call.set_args(args);
            Ok(())
        });
        let (outcome, events) = call(&world, vec![echo()], vec![add], json!({"n": 1}));
        assert_eq!(outcome.value(), Some(&json!({"n": 1, "tenant": "acme"})));
        let Event::Prepared(prepared) = &events[0] else { panic!("{events:?}") };
        assert_eq!(prepared.args.as_deref(), outcome.value());
    });
    let world = World::new(Kind::Memory);
    let spoil = before(|call: &mut Incoming<'_>| {
        call.set_args(json!({"n": "x"}));
        Ok(())
    });
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Args {
        n: u32,
    }
    let strict = Tool::new("t", "", |args: Args| async move { Ok(args.n) });
    let (outcome, _) = call(&world, vec![strict], vec![spoil], json!({"n": 1}));
    assert_eq!(outcome.error().unwrap().kind(), "invalid_arguments");
}

#[test]
fn l01_before_refuses_or_answers_without_an_attempt() {
    on_every_store(|world| {
        let ran = Counter::default();
        let body = || {
            let ran = ran.clone();
            tool("t", move |_| {
                ran.add();
                async { Ok(json!("ran")) }
            })
        };
        let gate = |args: Value| {
            let gate = before(|call: &mut Incoming<'_>| match call.args()["how"].as_str() {
                Some("refuse") => Err(ToolError::denied("not on a Sunday")),
                Some("panic") => panic!("boom"),
                _ => {
                    call.answer(json!("from the cache"));
                    Ok(())
                }
            });
            call(&world, vec![body()], vec![gate], args)
        };
        let (refused, events) = gate(json!({"how": "refuse"}));
        assert_eq!(refused.error().unwrap().to_string(), "denied: not on a Sunday");
        assert!(matches!(events.as_slice(), [Event::Finished(_)]), "{events:?}");
        assert_eq!(gate(json!({"how": "panic"})).0.error().unwrap().kind(), "panicked");
        assert_eq!(gate(json!({})).0.value(), Some(&json!("from the cache")));
        assert_eq!(ran.get(), 0);
    });
}

#[test]
fn e05_after_changes_the_visible_outcome_and_never_the_record() {
    on_every_store(|world| {
        let redact = after(|call: &mut Outgoing<'_>| {
            call.tell(Ok(Output::value(json!("redacted"))));
            Ok(())
        });
        let (outcome, events) = call(&world, vec![echo()], vec![redact], json!({"card": 4111}));
        assert_eq!(outcome.value(), Some(&json!("redacted")));
        let Some(Event::Finished(finished)) = events.last() else { panic!("{events:?}") };
        assert_eq!(finished.result.as_ref().unwrap().value, json!({"card": 4111}), "the effect is in the record");
        assert_eq!(finished.told.as_ref().unwrap().as_ref().unwrap().value, json!("redacted"));
    });
}

#[test]
fn e05_middleware_that_fails_on_the_way_out_hides_the_outcome_and_keeps_the_record() {
    on_every_store(|world| {
        let fail = || after(|_: &mut Outgoing<'_>| Err(ToolError::failed("cannot redact")));
        let boom = || after(|_: &mut Outgoing<'_>| panic!("boom"));
        for middleware in [fail(), boom()] {
            let (outcome, events) = call(&world, vec![echo()], vec![middleware], json!({"card": 4111}));
            assert_eq!(outcome.error().unwrap().kind(), "internal");
            assert!(!outcome.for_model().to_string().contains("redact"), "{}", outcome.for_model());
            let Some(Event::Finished(finished)) = events.last() else { panic!("{events:?}") };
            assert_eq!(finished.result.as_ref().unwrap().value, json!({"card": 4111}));
        }
    });
}

#[test]
fn e05_an_outcome_from_middleware_must_match_the_tools_schema() {
    let world = World::new(Kind::Memory);
    let number = tool("t", |_| async { Ok(7u32) });
    let wrong = after(|call: &mut Outgoing<'_>| {
        call.tell(Ok(Output::value(json!("seven"))));
        Ok(())
    });
    let (outcome, _) = call(&world, vec![number], vec![wrong], json!({}));
    assert_eq!(outcome.error().unwrap().kind(), "internal");
}

#[test]
fn l01_middleware_is_not_called_again_for_recorded_calls() {
    on_every_store(|world| {
        let asked = Counter::default();
        let tools = || {
            let body = Tool::durable_fn("t", "", |mut ctx: Ctx, _: Value| async move {
                let first: Value = ctx.call_json("leaf", json!({})).await?;
                let second: Value = ctx.call_json("leaf", json!({"wait": true})).await?;
                Ok(json!([first, second]))
            });
            let leaf = tool("leaf", |args| async move {
                if args["wait"] == true && args["stamp"] == 3 {
                    std::future::pending::<()>().await;
                }
                Ok(args)
            });
            [body, leaf.effect(windlass::Effect::Idempotent)]
        };
        let stamp = || {
            let asked = asked.clone();
            before(move |call: &mut Incoming<'_>| {
                let mut args = call.args().clone();
                args["stamp"] = json!(asked.add());
                call.set_args(args);
                Ok(())
            })
        };
        let mut config = world.config(tools());
        config.middleware = vec![stamp()];
        let runtime = windlass_core::Runtime::new(config);
        let run = runtime.start_unconfirmed(ToolCall::new("t", json!({}))).unwrap();
        world.pass(std::time::Duration::from_millis(10));
        assert_eq!(asked.get(), 3, "the root and two calls");
        drop(runtime);
        let world = world.restart();
        let tools = tools().into_iter().map(|tool| if tool.is_durable() { tool } else { echo_leaf() });
        let mut config = world.config(tools);
        config.middleware = vec![stamp()];
        let runtime = windlass_core::Runtime::new(config);
        let value = world.run(async move {
            runtime.recover().await.unwrap();
            runtime.attach(run).await.unwrap().remove(0).value().cloned()
        });
        assert_eq!(value, Some(json!([{"stamp": 2}, {"wait": true, "stamp": 3}])));
        assert_eq!(asked.get(), 3, "and nothing was asked again");
    });
}

fn echo_leaf() -> Tool {
    tool("leaf", |args| async move { Ok(args) }).effect(windlass::Effect::Idempotent)
}
