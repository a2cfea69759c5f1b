use std::rc::Rc;

use windlass::prelude::*;

async fn elsewhere() {}

/// Does something.

#[tool]
async fn shared(count: u64) -> ToolResult<u64> {
    let count = Rc::new(count);
    elsewhere().await;
    Ok(*count)
}

async fn find(_: &Call) -> ToolResult<Reconciled<()>> {
    let unknown = Rc::new(());
    elsewhere().await;
    Ok(Reconciled::Happened(*unknown))
}

/// Does something.

#[tool(reconcile = find)]
async fn doubtful() -> ToolResult<()> {
    Ok(())
}

fn main() {}
