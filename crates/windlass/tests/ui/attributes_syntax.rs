use windlass::prelude::*;

#[tool("add")]
async fn literal() -> ToolResult<()> {
    Ok(())
}

#[tool(timeout: "5s")]
async fn colon() -> ToolResult<()> {
    Ok(())
}

#[tool(effect = readonly timeout = "5s")]
async fn no_comma() -> ToolResult<()> {
    Ok(())
}

fn main() {}
