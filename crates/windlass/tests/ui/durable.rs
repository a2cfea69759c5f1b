use windlass::prelude::*;

async fn find(_: &Call) -> ToolResult<Reconciled<()>> {
    Ok(Reconciled::Unknown)
}

/// Does something.

#[tool(
    effect = once,
    timeout = "5s",
    heartbeat = "5s",
    retries = 3,
    reconcile = find,
    on_doubt = fail,
    cpu_bound,
    in_flight = 3,
    per_second = 5,
    deadline = "3d",
    open_world,
)]
async fn trip(ctx: &mut Ctx) -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool(retry(attempts = 3))]
async fn tour(ctx: &mut Ctx) -> ToolResult<()> {
    Ok(())
}

fn main() {}
