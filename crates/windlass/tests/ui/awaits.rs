use windlass::prelude::*;

/// Add two numbers.
#[tool(effect = readonly)]
async fn add(a: i64, b: i64) -> ToolResult<i64> {
    Ok(a + b)
}

/// Forgets to await a step.
#[tool]
async fn forgotten_step(ctx: &mut Ctx) -> ToolResult<i64> {
    let n = ctx.step("number", |_| async { Ok(1) })?;
    Ok(n)
}

/// Forgets to await a call.
#[tool]
async fn forgotten_call(ctx: &mut Ctx) -> ToolResult<i64> {
    let n = ctx.call(add::call(1, 2))?;
    Ok(n)
}

/// Forgets to await a sleep.
#[tool]
async fn forgotten_sleep(ctx: &mut Ctx) -> ToolResult<()> {
    ctx.sleep(std::time::Duration::from_secs(1))?;
    Ok(())
}

/// Forgets to await a spawn.
#[tool]
async fn forgotten_spawn(ctx: &mut Ctx) -> ToolResult<i64> {
    let child = ctx.spawn(add::call(1, 2))?;
    ctx.join(&child).await
}

async fn outside(windlass: &Windlass) -> windlass::Result<i64> {
    let run = windlass.start(add::call(1, 2))?;
    let n = windlass.call(add::call(1, 2))?;
    Ok(n)
}

fn main() {}
