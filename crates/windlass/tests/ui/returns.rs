use windlass::prelude::*;

#[tool]
async fn nothing() {}

#[tool]
async fn bare() -> String {
    String::new()
}

#[tool]
async fn optional() -> Option<String> {
    None
}

#[tool]
async fn of_nothing() -> ToolResult {
    Ok(())
}

#[tool]
async fn too_much() -> ToolResult<u8, String> {
    Ok(1)
}

#[tool]
async fn borrowed() -> ToolResult<&str> {
    Ok("")
}

#[tool]
async fn unnamed() -> ToolResult<impl Sized> {
    Ok(())
}

fn main() {}
