//! The JSON value that an error carries (E29): for the body that called, for models and in the journal, also after a
//! restart.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::inbox::Resolution;
use windlass::run::{Cursor, Happening};
use windlass::{Ctx, RunId, Tool, ToolCall, ToolError};
use windlass_core::Runtime;

use crate::world::{World, on_every_store, tool};

const MOMENT: Duration = Duration::from_secs(1);

fn tools() -> [Tool; 2] {
    let seat = tool("seat", |_: Value| async {
        let error = ToolError::rejected("sold_out", "no seat is left").with_data(json!({"next": {"row": 7}}));
        Err::<Value, _>(error)
    });
    let trip = Tool::durable_fn("trip", "catches errors, and passes one on", |mut ctx: Ctx, _: Value| async move {
        let from_call = ctx.call_json("seat", json!({})).await.unwrap_err();
        let failing = || async { Err::<Value, _>(ToolError::failed("no").with_data(json!([1, 2]))) };
        let from_step = ctx.step("try", |_| failing()).await.unwrap_err();
        let from_key = ctx.wait::<Value>("the office").await.unwrap_err();
        let seen = [&from_call, &from_step, &from_key].map(|error| json!([error.code(), error.data()]));
        Err::<Value, _>(ToolError::rejected("given_up", "nothing worked").with_data(json!(seen)))
    });
    [seat, trip]
}

fn answer(world: &World, runtime: &Runtime) {
    let runtime = runtime.clone();
    world.run(async move {
        let item = runtime.inbox().await.unwrap().remove(0);
        let data = Some(Box::new(json!({"opens": 9})));
        let closed = Resolution::Err { code: "closed".into(), message: "come tomorrow".into(), data };
        runtime.resolve(&item.key.unwrap(), closed).await.unwrap();
    });
    world.pass(MOMENT);
}

/// What the run failed with according to its events.
fn shown(world: &World, runtime: &Runtime, run: RunId) -> Vec<Value> {
    let runtime = runtime.clone();
    world.run(async move {
        let mut watch = runtime.watch(run, Cursor::START).await.unwrap();
        let mut seen = Vec::new();
        while let Some(activity) = watch.next().await {
            if let Happening::CallFinished { failure: Some(failure), .. } = activity.unwrap().what {
                seen.push(json!([failure.code, failure.data]));
            }
        }
        seen
    })
}

#[test]
fn e29_an_error_carries_its_value_through_calls_steps_keys_and_restarts() {
    on_every_store(|world| {
        let runtime = world.runtime(tools());
        let run = runtime.start_unconfirmed(ToolCall::new("trip", json!({}))).unwrap();
        world.pass(MOMENT);
        drop(runtime);
        // The body is replayed: what it catches now comes from the journal.
        let world = world.restart();
        let runtime = world.runtime(tools());
        answer(&world, &runtime);
        let again = runtime.clone();
        let outcome = world.run(async move { again.attach(run).await }).unwrap().remove(0);
        let caught = json!([["sold_out", {"next": {"row": 7}}], [null, [1, 2]], ["closed", {"opens": 9}]]);
        let expected = json!({"error": {"kind": "failed", "code": "given_up", "message": "nothing worked",
                                        "data": caught, "retryable": false}});
        assert_eq!(outcome.for_model(), expected);
        let events = shown(&world, &runtime, run);
        assert_eq!(events, [json!(["sold_out", {"next": {"row": 7}}]), json!(["given_up", caught])]);
    });
}

#[test]
fn e29_the_recorded_value_is_bounded() {
    on_every_store(|world| {
        let large = tool("large", |_: Value| async {
            Err::<Value, _>(ToolError::failed("x").with_data(json!({"text": "ü".repeat(1_000_000)})))
        });
        let runtime = world.runtime([large]);
        let run = runtime.start_unconfirmed(ToolCall::new("large", json!({}))).unwrap();
        world.pass(MOMENT);
        let journal = world.run(async move { runtime.journal(run).await }).unwrap();
        let text = serde_json::to_string(&journal).unwrap();
        assert!(text.len() < 10_000, "{}", text.len());
        assert!(text.contains("of 2000011 bytes omitted here"), "{text}");
    });
}
