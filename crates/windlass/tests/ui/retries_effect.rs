use windlass::prelude::*;

/// Charge a card.
#[tool(retries = 3)]
async fn charge(cents: u64) -> ToolResult<()> {
    Ok(())
}

/// Charge a card.
#[tool(retry(attempts = 3, base = "1s"))]
async fn charge_slowly(cents: u64) -> ToolResult<()> {
    Ok(())
}

fn main() {}
