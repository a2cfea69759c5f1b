//! Work committed with an outcome (L25): it happens if and only if the outcome is recorded, whatever produced the
//! outcome, and work that cannot be done is reported.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::run::{Filter, RunInfo, RunState};
use windlass::tool::spec::{Approval, Background};
use windlass::tool::{Incoming, Middleware, Outgoing, Preparation, Reply, ToolRef};
use windlass::{Call, Ctx, Output, Policy, RunId, Tool, ToolCall, ToolError, ToolResult};
use windlass_core::Runtime;

use crate::world::{Counter, Kind, World, on_every_store, tool};

const MOMENT: Duration = Duration::from_secs(1);

fn call(name: &str, args: Value) -> ToolCall {
    ToolCall::new(name, args)
}

fn result(world: &World, runtime: &Runtime, call: ToolCall) -> ToolResult<Value> {
    let runtime = runtime.clone();
    let outcome = world.run(async move { runtime.call(call).await }).expect("the run ends");
    outcome.result.map(|output| output.value.clone()).map_err(|error| (*error).clone())
}

fn runs(world: &World, runtime: &Runtime) -> Vec<RunInfo> {
    let runtime = runtime.clone();
    world.run(async move { runtime.list(Filter::default(), None, 1_000).await }).expect("the store answers")
}

/// Counts its calls.
fn counting(counter: &Counter) -> Tool {
    let counter = counter.clone();
    tool("count", move |_| {
        let counter = counter.clone();
        async move { Ok(counter.add()) }
    })
}

fn causing() -> Output {
    Output::value(json!("done")).start(call("count", json!({})))
}

struct Answering;

impl Middleware for Answering {
    fn before(&self, call: &mut Incoming<'_>) -> ToolResult<()> {
        if &*call.tool().name == "asked" {
            call.answer(causing());
        }
        Ok(())
    }
}

/// Fails after every call of `act`.
struct Failing;

impl Middleware for Failing {
    fn after(&self, call: &mut Outgoing<'_>) -> ToolResult<()> {
        if &*call.tool().name == "act" { Err(ToolError::failed("the audit log is full")) } else { Ok(()) }
    }
}

#[test]
fn l25_commands_of_an_outcome_from_middleware_happen_too() {
    on_every_store(|world| {
        let (counter, never) = (Counter::default(), Counter::default());
        let prepared = tool("prepared", |_| async { Ok(json!(0)) })
            .prepare(|_: Call| async { Ok(Preparation::answer(causing())) });
        let asked = {
            let never = never.clone();
            tool("asked", move |_| {
                let never = never.clone();
                async move { Ok(json!(never.add())) }
            })
        };
        let mut config = world.config([counting(&counter), prepared, asked]);
        config.middleware = vec![Arc::new(Answering)];
        let runtime = Runtime::new(config);
        assert_eq!(result(&world, &runtime, call("prepared", json!({}))).unwrap(), json!("done"));
        world.pass(MOMENT);
        assert_eq!(counter.get(), 1, "what `prepare` answers with");
        assert_eq!(result(&world, &runtime, call("asked", json!({}))).unwrap(), json!("done"));
        world.pass(MOMENT);
        assert_eq!((counter.get(), never.get()), (2, 0), "what middleware answers with");
    });
}

#[test]
fn l25_commands_happen_although_middleware_failed_after_the_call() {
    on_every_store(|world| {
        let counter = Counter::default();
        let mut config = world.config([counting(&counter), tool("act", |_| async { Ok(causing()) })]);
        config.middleware = vec![Arc::new(Failing)];
        let runtime = Runtime::new(config);
        assert_eq!(result(&world, &runtime, call("act", json!({}))).unwrap_err().kind(), "internal");
        world.pass(MOMENT);
        assert_eq!(counter.get(), 1, "the record says that it happened, and so did what it causes");
    });
}

#[test]
fn l25_a_durable_body_that_returns_commands_fails_with_advice() {
    on_every_store(|world| {
        let counter = Counter::default();
        let body = Tool::durable_fn("body", "", |_: Ctx, _: Value| async { Ok(causing()) });
        let stepping = Tool::durable_fn("stepping", "", |mut ctx: Ctx, _: Value| async move {
            ctx.step("act", |_| async { Ok(causing()) }).await
        });
        let later = Tool::durable_fn("later", "", |_: Ctx, _: Value| async { Ok(Reply::<u64>::later()) });
        let runtime = world.runtime([counting(&counter), body, stepping, later]);
        for name in ["body", "stepping", "later"] {
            let error = result(&world, &runtime, call(name, json!({}))).unwrap_err();
            assert_eq!(error.kind(), "internal", "{name}: {error}");
        }
        world.pass(MOMENT);
        assert_eq!(counter.get(), 0);
    });
}

#[test]
fn l25_a_body_may_pass_on_the_output_of_a_call_that_caused_work() {
    on_every_store(|world| {
        let counter = Counter::default();
        let passing = Tool::durable_fn("passing", "", |mut ctx: Ctx, _: Value| async move {
            ctx.call(ToolCall::<Output>::to(ToolRef::Name("act".into()), json!({}))).await
        });
        let act = tool("act", |_| async { Ok(causing()) });
        let runtime = world.runtime([counting(&counter), act, passing]);
        assert_eq!(result(&world, &runtime, call("passing", json!({}))).unwrap(), json!("done"));
        world.pass(MOMENT);
        assert_eq!(counter.get(), 1);
    });
}

#[test]
fn a_step_may_return_a_whole_output() {
    on_every_store(|world| {
        let body = || {
            Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
                let output: Output = ctx
                    .step("look", |_| async { Ok(Output::value(json!(7)).with(windlass::Content::text("seven"))) })
                    .await?;
                ctx.sleep(60 * MOMENT).await?;
                Ok(json!([output.value, output.content.len()]))
            })
        };
        let runtime = world.runtime([body()]);
        let run = runtime.start_unconfirmed(call("body", json!({}))).unwrap();
        world.pass(MOMENT);
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([body()]);
        let outcomes = world.run(async move {
            runtime.recover().await.unwrap();
            runtime.attach(run).await.unwrap()
        });
        assert_eq!(outcomes[0].result.as_ref().unwrap().value, json!([7, 1]));
    });
}

#[test]
fn l25_a_command_starts_exactly_the_given_call() {
    let world = World::new(Kind::Memory);
    let counter = Counter::default();
    // Models and programs know it under different names.
    let renamed = counting(&counter).with(|spec| spec.id = "count.v1".into());
    let act = tool("act", |args: Value| async move {
        let count = || ToolCall::<u32>::to(ToolRef::Id("count.v1".into()), json!({}));
        Ok(match args["how"].as_str().unwrap() {
            "id" => Output::default().start(count()),
            "policy" => {
                let ask = Policy { approval: Some(Approval::Always), ..Policy::default() };
                Output::default().start(count().policy(ask))
            }
            _ => Output::default().start(ToolCall::<u32>::broken(ToolRef::Name("count".into()), "not a number")),
        })
    });
    let runtime = world.runtime([renamed, act]);
    result(&world, &runtime, call("act", json!({"how": "id"}))).unwrap();
    world.pass(MOMENT);
    assert_eq!(counter.get(), 1);
    result(&world, &runtime, call("act", json!({"how": "policy"}))).unwrap();
    world.pass(MOMENT);
    assert_eq!(counter.get(), 1, "it waits for approval");
    result(&world, &runtime, call("act", json!({"how": "broken"}))).unwrap_err();
    world.pass(MOMENT);
    assert_eq!(counter.get(), 1);
}

#[test]
fn l25_a_tool_that_does_not_run_in_the_background_is_not_started() {
    let world = World::new(Kind::Memory);
    let counter = Counter::default();
    let shy = counting(&counter).with(|spec| spec.guards.background = Background::Never);
    let runtime = world.runtime([shy, tool("act", |_| async { Ok(causing()) })]);
    result(&world, &runtime, call("act", json!({}))).unwrap_err();
    world.pass(MOMENT);
    assert_eq!((counter.get(), runs(&world, &runtime).len()), (0, 1));
}

#[test]
fn l25_an_outcome_may_signal_and_cancel_its_own_run() {
    on_every_store(|world| {
        let act = Tool::with_call("act", "", |call: Call, args: Value| async move {
            let output = Output::value(json!("done"));
            Ok(if args["cancel"] == true {
                output.cancel(call.run(), "enough")
            } else {
                output.signal(call.run(), "n", json!(7))
            })
        });
        let body = Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
            ctx.call_json("act", json!({})).await?;
            let n: u64 = ctx.receive("n").await?;
            ctx.call_json("act", json!({"cancel": true})).await?;
            ctx.sleep(MOMENT).await?;
            Ok(n)
        })
        .signal::<u64>("n");
        let runtime = world.runtime([act, body]);
        let error = result(&world, &runtime, call("body", json!({}))).unwrap_err();
        assert_eq!(error.kind(), "cancelled");
        let ended = runs(&world, &runtime).remove(0);
        assert!(matches!(ended.state, RunState::Finished { .. }), "{ended:?}");
        let _: RunId = ended.run;
    });
}

#[test]
fn l25_an_outcome_given_by_a_person_cannot_have_commands() {
    let world = World::new(Kind::Memory);
    let body = Tool::durable_fn("body", "", |mut ctx: Ctx, _: Value| async move {
        ctx.step("one", |_| async { Ok(1) }).await?;
        std::future::pending::<()>().await;
        Ok(json!(null))
    });
    let counter = Counter::default();
    let runtime = world.runtime([body, counting(&counter)]);
    let run = runtime.start_unconfirmed(call("body", json!({}))).unwrap();
    world.pass(MOMENT);
    let (by_hand, forked) = world.run(async move {
        let by_hand = runtime.finish_by_hand(run, Ok(causing()), "ada", "enough").await;
        let change =
            windlass::run::ForkChange::Outcome { result: Ok(causing()), by: "ada".to_owned(), reason: "so".to_owned() };
        (by_hand, runtime.fork(run, windlass::run::Cut::At("0".parse().unwrap()), Some(change)).await)
    });
    assert!(by_hand.unwrap_err().to_string().contains("commands to be committed"));
    assert!(forked.unwrap_err().to_string().contains("contains commands"));
}
