//! What the measured server shares with the program that measures it.
//!
//! Nothing in here may use `windlass_bench`, whose allocator counts allocations.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;
use windlass::tool::Concurrency;
use windlass::{Ctx, Effect, Tool, Windlass};

/// A readonly tool.
pub const READONLY: &str = "readonly";
/// A tool that acts once: intent and outcome are both on disk before the call returns.
pub const ONCE: &str = "once";
/// A durable tool: waits for a signal, makes this many steps, and ends.
pub const STORY: &str = "story";
/// The signal of [`STORY`].
pub const GO: &str = "go";

/// Opens a file in this folder, with tools that do next to nothing.
///
/// # Errors
///
/// When the file cannot be opened.
pub async fn open(folder: &Path) -> Result<Windlass> {
    let plain = |name: &'static str, effect| {
        let tool = Tool::new(name, "Returns its arguments", |args: Value| async move { Ok(args) });
        tool.effect(effect).with(|spec| spec.guards.concurrency = Concurrency::Parallel)
    };
    let story = Tool::durable_fn(STORY, "Makes steps", |mut ctx: Ctx, _: Value| async move {
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
