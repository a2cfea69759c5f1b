use windlass::prelude::*;

#[tool]
fn blocking() -> ToolResult<()> {
    Ok(())
}

#[tool]
async unsafe fn dangerous() -> ToolResult<()> {
    Ok(())
}

#[tool]
async extern "C" fn foreign() -> ToolResult<()> {
    Ok(())
}

#[tool]
struct Thing;

#[tool]
const NUMBER: u8 = 1;

trait Tools {
    #[tool]
    async fn declared() -> ToolResult<()>;
}

fn main() {}
