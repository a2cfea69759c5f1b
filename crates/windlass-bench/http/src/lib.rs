//! What the server that is measured shares with the program that measures it.
//!
//! Nothing in here may use `windlass_bench`: it counts allocations with an allocator of its own.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;
use windlass::tools::Concurrency;
use windlass::{Ctx, Effect, Tool, Windlass};

/// Changes nothing.
pub const READONLY: &str = "readonly";
/// Acts once: intent and outcome are both on disk before it is answered.
pub const ONCE: &str = "once";
/// Waits for a signal, takes so many steps, and ends.
pub const STORY: &str = "story";
/// What the story waits for.
pub const GO: &str = "go";

/// A file in this folder, with tools that do next to nothing.
///
/// # Errors
///
/// When the file cannot be opened.
pub async fn open(folder: &Path) -> Result<Windlass> {
    let plain = |name: &'static str, effect| {
        let tool = Tool::new(name, "Returns what it is given", |given: Value| async move { Ok(given) });
        tool.effect(effect).with(|spec| spec.guards.concurrency = Concurrency::Parallel)
    };
    let story = Tool::durable_fn(STORY, "Takes steps", |mut ctx: Ctx, _: Value| async move {
        let steps: u32 = ctx.receive(GO).await?;
        for number in 0..steps {
            ctx.step("step", |_| async move { Ok(number) }).idempotent().await?;
        }
        Ok(steps)
    })
    .signal::<u32>(GO);
    let tools = [plain(READONLY, Effect::Readonly), plain(ONCE, Effect::Once), story];
    let builder = tools.into_iter().fold(Windlass::open(folder.join("bench.db")), |builder, tool| builder.tool(tool));
    Ok(builder.await?)
}
