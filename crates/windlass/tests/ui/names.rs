use windlass::prelude::*;

/// Does something.

#[tool(name = "get weather")]
async fn weather() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool]
async fn größe() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool]
async fn a_name_that_goes_on_and_on_and_on_and_on_until_no_model_would_take_it_any_more() -> ToolResult<()> {
    Ok(())
}

fn main() {}
