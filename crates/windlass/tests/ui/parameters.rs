use windlass::prelude::*;

/// Does something.

#[tool]
async fn borrowed(name: &str, bytes: &[u8], path: &Path, number: &u32, names: Vec<&'static str>) -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool]
async fn unnamed((a, b): (u8, u8), _: u8, ref c: u8, d @ 1: u8) -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool]
async fn unknown(text: impl Into<String>) -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool]
async fn generic<T>(value: T) -> ToolResult<()>
where
    T: Send,
{
    Ok(())
}

/// Does something.

#[tool]
async fn lifetime<'a>(value: u8) -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool]
async fn attributed(
    #[serde(rename = "x")] a: u8,
    #[cfg(unix)] b: u8,
    #[default]
    #[default = 5]
    c: u8,
    #[default()] d: u8,
) -> ToolResult<()> {
    Ok(())
}

fn main() {}
