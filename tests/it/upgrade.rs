//! New code with old journals: a waiting run continues under code that matches its journal, and is held by code that
//! does not.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use windlass::inbox::Resolution;
use windlass::run::{Hold, RunState};
use windlass::{Ctx, RunId, Tool, ToolCall, ToolResult};
use windlass_core::Runtime;

use crate::world::{Counter, World, on_every_store};

type Body = fn(Ctx, Counter) -> BoxFuture<'static, ToolResult<Value>>;

/// The code with which the run began: reserve, wait, charge.
fn before(mut ctx: Ctx, done: Counter) -> BoxFuture<'static, ToolResult<Value>> {
    Box::pin(async move {
        let seat: u32 = ctx.step("reserve", |_| async { Ok(done.add()) }).await?;
        let word: String = ctx.wait("manager").await?;
        let paid: u32 = ctx.step("charge", |_| async { Ok(done.add()) }).await?;
        Ok(json!([seat, word, paid]))
    })
}

/// Code that differs after the wait only.
fn fitting(mut ctx: Ctx, done: Counter) -> BoxFuture<'static, ToolResult<Value>> {
    Box::pin(async move {
        let seat: u32 = ctx.step("reserve", |_| async { Ok(done.add()) }).await?;
        let word: String = ctx.wait("manager").await?;
        let mailed: u32 = ctx.step("mail", |_| async { Ok(done.add()) }).await?;
        Ok(json!({"seat": seat, "word": word, "mailed": mailed}))
    })
}

/// Code that waits first and reserves then.
fn reordered(mut ctx: Ctx, done: Counter) -> BoxFuture<'static, ToolResult<Value>> {
    Box::pin(async move {
        let word: String = ctx.wait("manager").await?;
        let seat: u32 = ctx.step("reserve", |_| async { Ok(done.add()) }).await?;
        Ok(json!([seat, word]))
    })
}

/// The same change, for runs that begin from now on.
fn versioned(mut ctx: Ctx, done: Counter) -> BoxFuture<'static, ToolResult<Value>> {
    Box::pin(async move { if ctx.version("ask first") { reordered(ctx, done).await } else { before(ctx, done).await } })
}

fn trip(body: Body, done: &Counter) -> Tool {
    let done = done.clone();
    Tool::durable_fn("trip", "a trip", move |ctx: Ctx, _: Value| body(ctx, done.clone()))
}

fn begin(world: &World, done: &Counter) -> RunId {
    let runtime = world.runtime([trip(before, done)]);
    let run = runtime.start_unconfirmed(ToolCall::new("trip", json!({}))).unwrap();
    world.pass(Duration::from_secs(1));
    run
}

/// Opens the same store with other code, and answers what waits.
fn deploy(world: &World, body: Body, done: &Counter) -> Runtime {
    let runtime = world.runtime([trip(body, done)]);
    let deployed = runtime.clone();
    world.run(async move {
        deployed.recover().await.unwrap();
        for item in deployed.inbox().await.unwrap() {
            let yes = Resolution::Ok { value: json!("yes") };
            deployed.resolve(&item.key.unwrap(), yes).await.unwrap();
        }
    });
    world.pass(Duration::from_secs(1));
    runtime
}

fn value(world: &World, runtime: &Runtime, run: RunId) -> Value {
    let runtime = runtime.clone();
    let outcome = world.run(async move { runtime.attach(run).await.unwrap().remove(0) });
    outcome.value().cloned().unwrap_or_default()
}

#[test]
fn w04_a_parked_run_continues_under_changed_but_matching_code() {
    on_every_store(|world| {
        let done = Counter::default();
        let run = begin(&world, &done);
        let world = world.restart();
        let runtime = deploy(&world, fitting, &done);
        assert_eq!(value(&world, &runtime, run), json!({"seat": 1, "word": "yes", "mailed": 2}));
    });
}

#[test]
fn w04_a_parked_run_is_held_by_reordered_code_and_nothing_is_lost() {
    on_every_store(|world| {
        let done = Counter::default();
        let run = begin(&world, &done);
        let world = world.restart();
        let runtime = deploy(&world, reordered, &done);
        let held = runtime.clone();
        let info = world.run(async move { held.info(run).await }).unwrap().unwrap();
        let RunState::Held { hold: Hold::Diverged(divergence) } = &info.state else { panic!("{info:?}") };
        assert_eq!(divergence.recorded.as_deref(), Some("step \"reserve\""));
        assert_eq!(divergence.asked.as_deref(), Some("wait for \"manager\""));
        drop(runtime);
        // With the old code again, the answer that came meanwhile is still there.
        let world = world.restart();
        let runtime = deploy(&world, before, &done);
        assert_eq!(value(&world, &runtime, run), json!([1, "yes", 2]));
    });
}

#[test]
fn w04_version_takes_the_old_branch_for_a_parked_run_and_the_new_one_for_others() {
    on_every_store(|world| {
        let done = Counter::default();
        let old = begin(&world, &done);
        let world = world.restart();
        let runtime = deploy(&world, versioned, &done);
        assert_eq!(value(&world, &runtime, old), json!([1, "yes", 2]));
        let new = runtime.start_unconfirmed(ToolCall::new("trip", json!({}))).unwrap();
        world.pass(Duration::from_secs(1));
        drop(runtime);
        let world = world.restart();
        let runtime = deploy(&world, versioned, &done);
        assert_eq!(value(&world, &runtime, new), json!([3, "yes"]));
    });
}
