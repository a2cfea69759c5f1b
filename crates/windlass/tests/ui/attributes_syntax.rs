use windlass::prelude::*;

/// Does something.

#[tool("add")]
async fn literal() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool(timeout: "5s")]
async fn colon() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool(effect = readonly timeout = "5s")]
async fn no_comma() -> ToolResult<()> {
    Ok(())
}

fn main() {}
