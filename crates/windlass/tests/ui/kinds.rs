use windlass::prelude::*;

/// Does something.

#[tool]
fn blocking() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool]
async unsafe fn dangerous() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool]
async extern "C" fn foreign() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool]
struct Thing;

/// Does something.

#[tool]
const NUMBER: u8 = 1;

trait Tools {
    /// Does something.
    #[tool]
    async fn declared() -> ToolResult<()>;
}

fn main() {}
