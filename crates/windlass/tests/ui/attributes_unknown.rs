use windlass::prelude::*;

/// Does something.

#[tool(timout = "5s", readonly, description = "Adds", colour = "red")]
async fn misspelt() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool(effect = once, tags = ["a"], effect = readonly, tags = ["b"])]
async fn twice() -> ToolResult<()> {
    Ok(())
}

fn main() {}
