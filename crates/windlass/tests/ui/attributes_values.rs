use windlass::prelude::*;

/// Does something.

#[tool(
    name = 5,
    id = "",
    aliases = "old",
    title = Weather,
    version = 2,
    tags = ["a", 7],
    effect = "readonly",
    open_world(yes),
    long_running = "yes",
    cpu_bound = 1,
    approval = sometimes,
    concurrency = keyed,
    timeout = 5,
    deadline,
    heartbeat = 10.0,
    retries = "3",
    in_flight = 0,
    per_second = 5u64,
    on_doubt = panic,
    reconcile = "find",
    connection = github,
    deferral = late,
)]
async fn wrong() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool(key = 5, approval = " ", retries = 0, in_flight = 99999999999, effect)]
async fn wrong_too() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool(destructive = true)]
async fn wrong_flag() -> ToolResult<()> {
    Ok(())
}

/// Does something.

#[tool(retry = 3)]
async fn wrong_retry() -> ToolResult<()> {
    Ok(())
}

fn main() {}
