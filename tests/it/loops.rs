//! Loops: the same call with the same result, over and over.

use serde_json::{Value, json};
use windlass::testing::{CrashMatrix, Ledger};
use windlass::{Ctx, Effect, Tool, ToolCall, limits, tool};

use crate::crash::check;
use crate::world::{Counter, Kind, World, on_every_store, tool as tool_of};

const LOOP: u32 = limits::LOOP_LIMIT;

/// Calls `name` again and again, as a model would, and says how each call ended.
fn model(name: &'static str, times: u32) -> Tool {
    Tool::durable_fn("model", "Calls", move |mut ctx: Ctx, _: Value| async move {
        let mut kinds = Vec::new();
        for _ in 0..times {
            let result = ctx.call_json(name, json!({"n": 1})).await;
            kinds.push(result.map_or_else(|error| error.to_string(), |value| value.to_string()));
        }
        Ok(kinds)
    })
}

fn run(world: &World, tools: impl IntoIterator<Item = Tool>) -> Vec<String> {
    let runtime = world.runtime(tools);
    let outcome = world.run(async move { runtime.call(ToolCall::new("model", json!({}))).await.unwrap() });
    serde_json::from_value(outcome.value().cloned().unwrap()).unwrap()
}

#[test]
fn e13_the_same_call_with_the_same_result_is_refused_in_the_end() {
    on_every_store(|world| {
        let ran = Counter::default();
        let body = ran.clone();
        let look = tool_of("look", move |_| {
            body.add();
            async { Ok(json!("nothing")) }
        });
        let told = run(&world, [look.effect(Effect::Readonly), model("look", LOOP + 2)]);
        assert_eq!(ran.get(), LOOP);
        assert!(told[..LOOP as usize].iter().all(|told| told == "\"nothing\""), "{told:?}");
        for refused in &told[LOOP as usize..] {
            assert!(refused.starts_with("failed: refused: `look` was called 5 times"), "{refused}");
            assert!(refused.contains("call it with other arguments"), "{refused}");
        }
    });
}

#[test]
fn e13_polling_a_changing_job_is_no_loop() {
    let world = World::new(Kind::Memory);
    let count = Counter::default();
    let poll = tool_of("poll", move |_| {
        let n = count.add();
        async move { Ok(n) }
    });
    let told = run(&world, [poll.effect(Effect::Readonly), model("poll", 50)]);
    assert_eq!(told[49], "50");
}

#[test]
fn e13_batches_of_a_body_count_by_what_was_told_before_them() {
    on_every_store(|world| {
        let body = Tool::durable_fn("model", "Calls two at a time", |mut ctx: Ctx, _: Value| async move {
            let mut kinds = Vec::new();
            for _ in 0..5 {
                let calls = [0, 0, 1].map(|n| ToolCall::new("look", json!({"n": n})));
                let told = ctx.call_all(calls).settled().await;
                kinds.push(told.map(|told| if told.is_ok() { 'o' } else { 'x' }).iter().collect::<String>());
            }
            Ok(kinds)
        });
        let look = tool_of("look", |args| async move { Ok(args) }).effect(Effect::Readonly);
        // The first batch is all new; from then on `n = 0` is told twice a batch, `n = 1` once.
        assert_eq!(run(&world, [look, body]), ["ooo", "ooo", "ooo", "ooo", "xxo"]);
    });
}

#[tool(effect = readonly)]
async fn tick() -> windlass::ToolResult<u32> {
    Ok(1)
}

#[test]
fn e13_a_programs_own_typed_calls_are_its_own_business() {
    let world = World::new(Kind::Memory);
    let body = Tool::durable_fn("model", "Calls", |mut ctx: Ctx, _: Value| async move {
        let mut sum = 0;
        for _ in 0..20 {
            sum += ctx.call(tick::call()).await?;
        }
        Ok(vec![sum.to_string()])
    });
    assert_eq!(run(&world, [tick.into(), body]), ["20"]);
}

#[test]
fn e13_a_body_meets_the_same_refusals_after_every_crash() {
    let scenario = |ledger: &Ledger| {
        let ledger = ledger.clone();
        let look = Tool::new("look", "Looks", move |_: Value| {
            let ledger = ledger.clone();
            async move {
                ledger.repeatable("look").await;
                Ok(json!("nothing"))
            }
        });
        vec![look.effect(Effect::Idempotent), model("look", LOOP + 2)]
    };
    let report = check(|| CrashMatrix::new(scenario).call(ToolCall::new("model", json!({}))));
    assert_eq!(report.effects["look"], LOOP);
}
