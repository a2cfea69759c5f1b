use windlass::prelude::*;

struct Seat {
    row: u32,
}

/// Reserve a seat.
#[tool]
async fn reserve(ctx: &mut Ctx) -> ToolResult<u32> {
    let seat = ctx.step("reserve", |_| async { Ok(Seat { row: 3 }) }).await?;
    Ok(seat.row)
}

fn main() {}
