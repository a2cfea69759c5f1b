#![deny(unused_must_use)]

use windlass::prelude::*;

/// Add two numbers.
#[tool(effect = readonly)]
async fn add(a: i64, b: i64) -> ToolResult<i64> {
    Ok(a + b)
}

/// Does nothing of this.
#[tool]
async fn idle(ctx: &mut Ctx) -> ToolResult<()> {
    ctx.step("number", |_| async { Ok(1) });
    ctx.steps_all([step("number", |_| async { Ok(1) })]);
    ctx.call(add::call(1, 2));
    ctx.call_all([add::call(1, 2)]);
    ctx.sleep(std::time::Duration::from_secs(1));
    ctx.spawn(add::call(1, 2));
    ctx.first((park::wait::<u32>("number"), park::sleep(std::time::Duration::from_secs(1))));
    add::call(1, 2);
    Ok(())
}

async fn outside(windlass: &Windlass) {
    windlass.start(add::call(1, 2));
    windlass.call(add::call(1, 2));
    windlass.batch([]);
}

fn main() {}
