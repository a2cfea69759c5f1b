use windlass::prelude::*;

/// Does something.

#[tool]
async fn call_by_value(call: Call) -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool]
async fn call_to_change(call: &mut Call) -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool]
async fn ctx_by_value(mut ctx: Ctx) -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool]
async fn ctx_to_look_at(ctx: &windlass::prelude::Ctx) -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool]
async fn call_comes_late(customer: String, call: &Call) -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool]
async fn ctx_comes_late(customer: String, ctx: &mut Ctx) -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool]
async fn both(call: &Call, ctx: &mut Ctx) -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool]
async fn with_default(#[default] call: &Call) -> ToolResult<()> {
    Ok(())
}

fn main() {}
