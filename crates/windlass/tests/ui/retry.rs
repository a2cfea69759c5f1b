use windlass::prelude::*;

/// Does something.

#[tool(retry(attempts = "4", base = 200, cap = "soon", jitter = 1, base = "1s"))]
async fn settings() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool(retry(base = "1s"))]
async fn no_attempts() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool(retry)]
async fn nothing() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool(retries = 4294967295)]
async fn too_many() -> ToolResult<()> {
    Ok(())
}

fn main() {}
