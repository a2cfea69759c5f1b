use windlass::prelude::*;

/// Does something.

#[tool]
async fn wrong(#[default = true] days: u8) -> ToolResult<u8> {
    Ok(days)
}

fn main() {}
