use windlass::prelude::*;

#[tool(retry(attempts = "4", base = 200, cap = "soon", jitter = 1, base = "1s"))]
async fn settings() -> ToolResult<()> {
    Ok(())
}

#[tool(retry(base = "1s"))]
async fn no_attempts() -> ToolResult<()> {
    Ok(())
}

#[tool(retry)]
async fn nothing() -> ToolResult<()> {
    Ok(())
}

#[tool(retries = 4294967295)]
async fn too_many() -> ToolResult<()> {
    Ok(())
}

fn main() {}
