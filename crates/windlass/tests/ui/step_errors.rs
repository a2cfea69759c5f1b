use windlass::prelude::*;

/// Read the notes.
#[tool]
async fn read_notes(ctx: &mut Ctx) -> ToolResult<String> {
    let text = ctx.step("read", |_| async { std::fs::read_to_string("notes.txt") }).await?;
    Ok(text)
}

/// Read two files.
#[tool]
async fn read_two(ctx: &mut Ctx) -> ToolResult<String> {
    let read = |name: &'static str| step(name, move |_| async move { std::fs::read_to_string(name) });
    let [a, b] = ctx.steps_all([read("a"), read("b")]).await?;
    Ok(a + &b)
}

/// Count.
#[tool]
async fn count(ctx: &mut Ctx) -> ToolResult<u32> {
    ctx.step("count", |_| async { 1 }).await
}

fn main() {}
