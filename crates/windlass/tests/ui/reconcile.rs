use windlass::prelude::*;

async fn of_another_type(_: &Call) -> ToolResult<Reconciled<String>> {
    Ok(Reconciled::Unknown)
}

async fn by_value(_: Call) -> ToolResult<Reconciled<u64>> {
    Ok(Reconciled::Unknown)
}

fn not_async(_: &Call) -> ToolResult<Reconciled<u64>> {
    Ok(Reconciled::Unknown)
}

/// Does something.

#[tool(reconcile = of_another_type)]
async fn one() -> ToolResult<u64> {
    Ok(1)
}

/// Does something.

#[tool(reconcile = by_value)]
async fn two() -> ToolResult<u64> {
    Ok(2)
}

/// Does something.

#[tool(reconcile = not_async)]
async fn three() -> ToolResult<u64> {
    Ok(3)
}

/// Does something.

#[tool(reconcile = nowhere)]
async fn four() -> ToolResult<u64> {
    Ok(4)
}

fn main() {}
