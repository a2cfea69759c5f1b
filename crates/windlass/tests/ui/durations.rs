use windlass::prelude::*;

/// Does something.

#[tool(timeout = "5", deadline = "2 minutes", heartbeat = "1m30s")]
async fn units() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool(timeout = "0s", deadline = "99999999999999999999d", heartbeat = "1.5s")]
async fn numbers() -> ToolResult<()> {
    Ok(())
}

fn main() {}
