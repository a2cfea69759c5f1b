use windlass::prelude::*;

/// Does something.

#[tool]
async fn nothing() {}

/// Does something.

#[tool]
async fn bare() -> String {
    String::new()
}

/// Does something.

#[tool]
async fn optional() -> Option<String> {
    None
}

/// Does something.

#[tool]
async fn of_nothing() -> ToolResult {
    Ok(())
}

/// Does something.

#[tool]
async fn too_much() -> ToolResult<u8, String> {
    Ok(1)
}

/// Does something.

#[tool]
async fn borrowed() -> ToolResult<&str> {
    Ok("")
}

/// Does something.

#[tool]
async fn unnamed() -> ToolResult<impl Sized> {
    Ok(())
}

fn main() {}
