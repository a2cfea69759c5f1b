use windlass::prelude::*;

#[tool(name = "get weather")]
async fn weather() -> ToolResult<()> {
    Ok(())
}

#[tool]
async fn größe() -> ToolResult<()> {
    Ok(())
}

#[tool]
async fn a_name_that_goes_on_and_on_and_on_and_on_until_no_model_would_take_it_any_more() -> ToolResult<()> {
    Ok(())
}

fn main() {}
