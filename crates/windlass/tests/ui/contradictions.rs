use windlass::prelude::*;

/// Does something.

#[tool(key = "'printer'", concurrency = parallel)]
async fn overlap() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool(retries = 3, retry(attempts = 4))]
async fn retried_twice() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool(effect = readonly, destructive, retries = 1)]
async fn gentle() -> ToolResult<()> {
    Ok(())
}

fn main() {}
