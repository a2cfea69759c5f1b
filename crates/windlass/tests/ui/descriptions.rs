use windlass::prelude::*;

#[tool]
async fn silent() -> ToolResult<()> {
    Ok(())
}

///
#[tool]
async fn blank() -> ToolResult<()> {
    Ok(())
}

#[tool(description = "")]
async fn empty() -> ToolResult<()> {
    Ok(())
}

fn main() {}
