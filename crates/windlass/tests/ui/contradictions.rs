use windlass::prelude::*;

#[tool(key = "'printer'", concurrency = parallel)]
async fn overlap() -> ToolResult<()> {
    Ok(())
}

#[tool(retries = 3, retry(attempts = 4))]
async fn retried_twice() -> ToolResult<()> {
    Ok(())
}

#[tool(effect = readonly, destructive, retries = 1)]
async fn gentle() -> ToolResult<()> {
    Ok(())
}

fn main() {}
